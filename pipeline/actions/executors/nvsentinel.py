"""Actions on a cluster in which NVSentinel does what is done to nodes.

NVSentinel's connector takes events and answers no questions, so nothing can be read from it. What an event holds comes
from the action alone: after a death the same bytes are sent again, and NVSentinel, which keeps one state for each
check and entity, changes nothing for them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tocsin.pipeline.actions.executors.nvsentinel_events import EventSettings, healthy_events, unhealthy_events
from tocsin.pipeline.actions.executors.nvsentinel_peer import EventConnector
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import TargetAwayError
from tocsin.schemas.formats.nvsentinel import HealthEvent, ProcessingStrategy, health_envelope
from tocsin.schemas.verdicts import ActionKind

KINDS: Final = frozenset(
    {ActionKind.NOTIFY, ActionKind.DRAIN, ActionKind.EVICT, ActionKind.RESET_GPU, ActionKind.REBOOT}
)
"""What NVSentinel can be asked for, if it may act. A ``probe`` is its result, and NVSentinel tells none."""
STORED_KINDS: Final = frozenset({ActionKind.NOTIFY})
"""What an event that is only stored can do: be read by somebody."""

_TOLD = "told"
_TOLD_BACK = "told_back"
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class NvSentinelConfig:
    """Settings of NVSentinel as a target.

    Attributes:
        events: how events are written, and what NVSentinel may do with them.
    """

    events: EventSettings = field(default_factory=EventSettings)

    @property
    def kinds(self) -> frozenset[ActionKind]:
        """Kinds of actions that can be done with this strategy."""
        may_act = self.events.strategy is ProcessingStrategy.EXECUTE_REMEDIATION
        return KINDS if may_act else STORED_KINDS


class EnvelopeFile:
    """A file with a CloudEvents envelope a line, as NVSentinel's exporter publishes events; it is only added to."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self._path = path

    def add(self, events: Sequence[HealthEvent], action: Action, step: str) -> None:
        """Add events; one that is added again has the same id.

        Raises:
            TargetAwayError: the file cannot be written.
        """
        cluster = action.target.job.cluster
        lines = [
            json.dumps(health_envelope(one, cluster, f"{action.action_id}/{one.node_name}/{step}")) for one in events
        ]
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            raise TargetAwayError(f"{self._path} cannot be written: {error}") from error


class NvSentinelTarget:
    """NVSentinel as a target of actions.

    Attributes:
        kinds: kinds of actions that it can do.
    """

    def __init__(
        self, config: NvSentinelConfig, connector: EventConnector, envelopes: EnvelopeFile | None = None
    ) -> None:
        """Send nothing yet.

        Args:
            config: settings.
            connector: takes the events.
            envelopes: is given each event that was taken, None: nobody is.
        """
        self._envelopes = envelopes
        self.kinds = config.kinds
        self._settings = config.events
        self._connector = connector
        self._sent: OrderedDict[tuple[str, str], None] = OrderedDict()

    def look(self, action: Action) -> Look:
        """See ``TargetSystem.look``. ``DONE`` says that NVSentinel has been told, not that the node is out of use."""
        if action.kind is ActionKind.PROBE:
            detail = "NVSentinel tells nobody what a check found: tocsin executor preflight carries probes out"
            return Look(Stage.REFUSED, ExecutorReason.RESULT_NOT_TOLD, detail=detail)
        if action.kind not in self.kinds:
            return Look(Stage.REFUSED, ExecutorReason.KIND_NOT_DONE_HERE)
        if not action.target.machines:
            return Look(Stage.REFUSED, ExecutorReason.NO_MACHINE)
        if (action.action_id, _TOLD) in self._sent:
            return Look(Stage.DONE, ExecutorReason.TOLD_NVSENTINEL, effects=(_TOLD,))
        return Look(Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE, _TOLD)

    def look_back(self, action: Action) -> Look:
        """See ``TargetSystem.look_back``."""
        if action.kind not in self.kinds or (action.action_id, _TOLD_BACK) in self._sent:
            return Look(Stage.DONE, ExecutorReason.NOTHING_TO_UNDO)
        return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, _TOLD_BACK, effects=(_TOLD,))

    def make(self, action: Action, look: Look) -> None:
        """See ``TargetSystem.make``."""
        make_events = unhealthy_events if look.step == _TOLD else healthy_events
        events = make_events(action, self._settings)
        self._connector.send(events)
        if self._envelopes is not None:
            self._envelopes.add(events, action, look.step)
        self._sent[action.action_id, look.step] = None
        while len(self._sent) > _MOST_REMEMBERED:
            self._sent.popitem(last=False)
