"""A receiver of alerts without a network: it keeps what it is sent, and fails on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.pipeline.alerts.adapters.kinds import AdapterKind
from tocsin.pipeline.alerts.notice import Adapter, DeliveryReason, DeliveryResult, Notice


class FakeAdapter:
    """Keeps the notices that it is sent.

    Attributes:
        kind: ``fake``.
        max_batch_count: most notices of a call.
        resend_seconds: distance of resends, None for none.
        sent: notices that it took, oldest first.
        answers: answers of the next calls, in order; afterwards all is taken.
        call_count: how often it was called.
        is_closed: whether it was closed.
    """

    def __init__(self, max_batch_count: int = 10, resend_seconds: float | None = None) -> None:
        """Start with nothing sent.

        Args:
            max_batch_count: most notices of a call.
            resend_seconds: distance of resends, None for none.
        """
        self.kind = "fake"
        self.max_batch_count = max_batch_count
        self.resend_seconds = resend_seconds
        self.sent: list[Notice] = []
        self.answers: list[DeliveryResult] = []
        self.call_count = 0
        self.is_closed = False

    def send(self, notices: Sequence[Notice], now_ns: int) -> DeliveryResult:  # noqa: ARG002  # of the protocol
        """Take notices, or give the next answer."""
        self.call_count += 1
        if self.answers:
            answer = self.answers.pop(0)
            if not answer.is_delivered:
                return answer
        self.sent += notices
        references = tuple(f"m-{one.verdict.verdict_id}" for one in notices)
        return DeliveryResult(DeliveryReason.DELIVERED, references=references)

    def close(self) -> None:
        """Note that it was closed."""
        self.is_closed = True


def fake_registry(adapters: Mapping[str, FakeAdapter]) -> dict[str, AdapterKind]:
    """Return a registry with the kind ``fake``, whose setting ``name`` picks one of the adapters."""

    def make(settings: Mapping[str, object], _where: str) -> Adapter:
        return adapters[str(settings["name"])]

    schema: dict[str, object] = {
        "type": "object",
        "properties": {"kind": {"const": "fake"}, "name": {"enum": sorted(adapters)}},
        "required": ["kind", "name"],
        "additionalProperties": False,
    }
    return {"fake": AdapterKind("fake", schema, make)}
