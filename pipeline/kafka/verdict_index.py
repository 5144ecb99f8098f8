"""The verdicts that a process has read, by id: whose they are and until when they stand; kept as parts of a state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from tocsin.pipeline.runtime.embedded.close_handler import standing_id
from tocsin.pipeline.runtime.embedded.note_places import one_id_of
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Verdict, VerdictState

_PART: Final = "told/"
_SHARD_CHARACTERS: Final = 2
_STANDING: Final = frozenset({VerdictState.OPEN, VerdictState.CONFIRMED})


class KnownVerdict(NamedTuple):
    """What is remembered of a verdict.

    Attributes:
        cluster: cluster of its job.
        job_id: its job.
        attempt: the job's attempt.
        update: number of its newest line.
        stands_until_ns: when it expires; 0: it is over.
    """

    cluster: str
    job_id: str
    attempt: int
    update: int
    stands_until_ns: int

    @property
    def job(self) -> JobKey:
        """The verdict's job."""
        return JobKey(self.cluster, self.job_id, self.attempt)


class VerdictIndex:
    """Verdicts by id; of too many with the same beginning the one that was told longest ago is forgotten.

    They are kept in parts by the first two characters of the id, so that a new line changes one small part.
    """

    def __init__(self, most_of_a_part: int = 200) -> None:
        """Start without verdicts.

        Args:
            most_of_a_part: how many are remembered for each first two characters of an id.
        """
        self._most_of_a_part = most_of_a_part
        self._parts: dict[str, dict[str, KnownVerdict]] = {}
        self._changed: set[str] = set()

    def take(self, verdict: Verdict) -> None:
        """Remember a verdict's line; an older one than the known changes nothing."""
        if verdict.reason == Reason.CANARY.value:
            return
        name = verdict.verdict_id[:_SHARD_CHARACTERS]
        part = self._parts.setdefault(name, {})
        known, job = part.get(verdict.verdict_id), verdict.job
        if known is not None and known.update > verdict.update:
            return
        until_ns = verdict.expires_ns if verdict.state in _STANDING else 0
        fresh = KnownVerdict(job.cluster, job.job_id, job.attempt, verdict.update, until_ns)
        if fresh == known:
            return
        part.pop(verdict.verdict_id, None)  # the newest comes last
        part[verdict.verdict_id] = fresh
        while len(part) > self._most_of_a_part:
            del part[next(iter(part))]
        self._changed.add(name)

    def find(self, wanted: str) -> tuple[str, str]:
        """Return id and cluster of the verdict with this id, or of the only one whose id begins so.

        Raises:
            EngineRefusedError: there is none, or there are several.
        """
        found = {name: one.cluster for name, one in self._beginning(wanted) if name.startswith(wanted)}
        name = one_id_of(found, wanted)
        return name, found[name]

    def standing(self, wanted: str, now_ns: int) -> tuple[str, JobKey]:
        """Return id and job of the verdict that stands and has this id, or whose id alone begins so.

        Raises:
            EngineRefusedError: there is none, or there are several.
        """
        found = {name: one.job for name, one in self._beginning(wanted) if one.stands_until_ns > now_ns}
        name = standing_id(found, wanted)
        return name, found[name]

    def jobs(self, now_ns: int) -> set[tuple[str, str]]:
        """Return cluster and job id of each verdict that stands."""
        return {(one.cluster, one.job_id) for _, one in self._beginning("") if one.stands_until_ns > now_ns}

    def _beginning(self, wanted: str) -> Iterator[tuple[str, KnownVerdict]]:
        """Yield the verdicts whose ids may begin so."""
        if len(wanted) >= _SHARD_CHARACTERS:
            yield from self._parts.get(wanted[:_SHARD_CHARACTERS], {}).items()
            return
        for part in self._parts.values():
            yield from part.items()

    def changes(self) -> dict[str, bytes | None]:
        """Return the parts that changed since the last call, by name."""
        changed, self._changed = self._changed, set()
        return {
            f"{_PART}{quote(name, safe='')}": json.dumps(
                [[key, *one] for key, one in self._parts[name].items()]
            ).encode()
            for name in sorted(changed)
        }

    def load(self, state: Mapping[str, bytes]) -> None:
        """Replace all verdicts by those of the parts of a state; other parts are left out."""
        self._parts, self._changed = {}, set()
        for name, data in state.items():
            if name.startswith(_PART):
                for key, *fields in json.loads(data):
                    self._parts.setdefault(key[:_SHARD_CHARACTERS], {})[key] = KnownVerdict(*fields)
