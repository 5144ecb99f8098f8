"""Two works of one active process: both see all messages, and what both write is one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.pipeline.kafka.active import ActiveWork
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.schemas.formats.prometheus_text import Family


class JoinedWork:
    """An ``ActiveWork`` of two: the second one's parts of the state have a prefix.

    Attributes:
        inputs: those of both; where both read a topic, the first one says where the very first start begins.
    """

    def __init__(self, first: ActiveWork, second: ActiveWork, prefix: str) -> None:
        """Join two works.

        Args:
            first: its parts of the state keep their names; it looks only at messages that it knows.
            second: likewise, with its parts behind the prefix.
            prefix: no part of the first one begins with it.
        """
        self._first = first
        self._second = second
        self._prefix = prefix
        self.inputs: Mapping[str, float | None] = {**second.inputs, **first.inputs}

    def begin(self, state: Mapping[str, bytes], partition_counts: Mapping[str, int]) -> None:
        """See ``ActiveWork.begin``."""
        prefix = self._prefix
        self._first.begin({name: data for name, data in state.items() if not name.startswith(prefix)}, partition_counts)
        own = {name.removeprefix(prefix): data for name, data in state.items() if name.startswith(prefix)}
        self._second.begin(own, partition_counts)

    def take(self, messages: Sequence[Message]) -> None:
        """See ``ActiveWork.take``: each is given the messages of its topics."""
        for work in (self._first, self._second):
            work.take([one for one in messages if one.topic.rpartition(".")[2] in work.inputs])

    def is_due(self) -> bool:
        """See ``ActiveWork.is_due``."""
        return self._first.is_due() or self._second.is_due()

    def changes(self) -> dict[str, bytes | None]:
        """See ``ActiveWork.changes``."""
        own = {f"{self._prefix}{name}": data for name, data in self._second.changes().items()}
        return {**self._first.changes(), **own}

    def outputs(self) -> list[Output]:
        """See ``ActiveWork.outputs``."""
        return [*self._first.outputs(), *self._second.outputs()]

    def committed(self) -> None:
        """See ``ActiveWork.committed``."""
        self._first.committed()
        self._second.committed()

    def finish(self) -> None:
        """See ``ActiveWork.finish``."""
        self._first.finish()
        self._second.finish()

    def end(self) -> None:
        """See ``ActiveWork.end``."""
        self._first.end()
        self._second.end()

    def families(self) -> list[Family]:
        """See ``ActiveWork.families``."""
        return [*self._first.families(), *self._second.families()]
