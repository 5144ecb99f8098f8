"""Actions together with the bytes that the controller signed, for targets that check the signature themselves."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.actions import Action

_MOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class SignedAction:
    """One change of an action as it was signed.

    Attributes:
        action: the action, decoded from the bytes.
        value: the bytes that were signed.
        signature: the controller's signature header.
    """

    action: Action
    value: bytes
    signature: bytes


class SignedActions:
    """The newest signed change of each action; those that changed longest ago are forgotten first."""

    def __init__(self) -> None:
        """Start empty."""
        self._known: OrderedDict[str, SignedAction] = OrderedDict()

    def put(self, one: SignedAction) -> None:
        """Keep a change unless a later one is known."""
        key = one.action.action_id
        known = self._known.get(key)
        if known is not None and (known.action.epoch, known.action.revision) > (one.action.epoch, one.action.revision):
            return
        self._known[key] = one
        self._known.move_to_end(key)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def of(self, action: Action) -> SignedAction | None:
        """Return an action as it was signed, None if exactly this change of it is not known."""
        known = self._known.get(action.action_id)
        return known if known is not None and known.action == action else None
