"""Which of several replicas of one executor acts: they share its name, so the core's claims do not tell them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, ShowsProposals, TargetSystem, TellsFacts
from tocsin.schemas.action_events import ActionEvent
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import TargetAwayError


class Turn(Protocol):
    """Says whether this replica is the one that acts."""

    def is_mine(self) -> bool:
        """Return whether this replica may begin an effect now."""
        ...

    def may_speak(self) -> bool:
        """Return whether this replica takes actions and says what came of them."""
        ...

    def give_up(self) -> None:
        """Let another replica begin at once."""
        ...


class TurnTarget:
    """A target on which effects are made only in this replica's turn; looks change nothing, and are always made.

    Attributes:
        kinds: kinds of actions that the target can do.
    """

    def __init__(self, target: TargetSystem, turn: Turn) -> None:
        """Ask nothing yet.

        Args:
            target: where effects are made.
            turn: says whether this replica may make them.
        """
        self.kinds = target.kinds
        self._target = target
        self._turn = turn

    def look(self, action: Action) -> Look:
        """See ``TargetSystem.look``."""
        return self._target.look(action)

    def look_back(self, action: Action) -> Look:
        """See ``TargetSystem.look_back``."""
        return self._target.look_back(action)

    def make(self, action: Action, look: Look) -> None:
        """See ``TargetSystem.make``.

        Raises:
            TargetAwayError: it is another replica's turn, or the target does not answer.
            TargetRefusedError: the target refused it.
        """
        if not self._turn.is_mine():
            raise TargetAwayError("another replica of this executor acts", ExecutorReason.ANOTHER_REPLICA)
        self._target.make(action, look)

    def on_action(self, action: Action) -> None:
        """See ``ShowsProposals.on_action``."""
        if isinstance(self._target, ShowsProposals):
            self._target.on_action(action)

    def on_time(self) -> None:
        """See ``ShowsProposals.on_time``."""
        if isinstance(self._target, ShowsProposals) and self._turn.is_mine():
            self._target.on_time()

    def facts(self, cluster: str) -> Sequence[ActionEvent]:
        """See ``TellsFacts.facts``."""
        if isinstance(self._target, TellsFacts) and self._turn.is_mine():
            return self._target.facts(cluster)
        return ()
