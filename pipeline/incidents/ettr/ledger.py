"""The ledger of effective training time (ETTR): what each attempt of each job spent its wall time on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.incidents.closing import without_closings
from tocsin.pipeline.incidents.ettr.attempt import AttemptAccount
from tocsin.pipeline.incidents.ettr.starts import begin_of_stages
from tocsin.pipeline.stores.attempt_starts import AttemptStart
from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.pipeline.stores.base import ActionChange
from tocsin.schemas.action_records import RESTARTING, ToldChange, told_change
from tocsin.schemas.action_states import FINAL_STATES, ActionState
from tocsin.schemas.job_key import IDLE_JOB_ID
from tocsin.schemas.records import NS_PER_SECOND, Event, JobKey, JobRecord, Slice, StepBatch, Topology
from tocsin.schemas.verdicts import Verdict

PART: Final = "ettr"
"""Name of the only part of a snapshot."""
_HEARD_NS: Final = 60 * NS_PER_SECOND
"""A start is told again while nothing of it is new, as long as its attempt was heard within this time."""
_LONGEST_STAGE_NS: Final = 3600 * NS_PER_SECOND
"""A stage that began longer before an attempt's first word does not begin it: its process waited to be used."""
_DECIDED: Final = frozenset({ActionState.APPROVED, ActionState.CLAIMED, ActionState.STARTED, ActionState.DONE})


@dataclass(frozen=True, slots=True)
class EttrConfig:
    """Settings of the ledger.

    Attributes:
        tell_ns: distance of two accounts of an attempt that goes on.
        silent_ns: an attempt that was not heard for so long, and that no other one followed, ended at its last sign.
        most_jobs_count: jobs that are kept; the one that was silent for the longest time is dropped first.
        most_attempts_count: attempts of one job that are kept; the oldest is dropped first. Its stored row stays.
        forget_ns: a job that was not heard for so long is dropped. An attempt that follows later begins a new account.
    """

    tell_ns: int = 60 * NS_PER_SECOND
    silent_ns: int = 3600 * NS_PER_SECOND
    most_jobs_count: int = 1024
    most_attempts_count: int = 16
    forget_ns: int = 30 * 24 * 3600 * NS_PER_SECOND


@dataclass(slots=True)
class _Job:
    """One job: its attempts by number, and the newest step number that any of them made (-1 = none)."""

    attempts: dict[int, AttemptAccount] = field(default_factory=dict)
    made_step: int = -1
    has_news: bool = False
    """Whether, since the last account, an attempt began, its last process ended, or steps came after that end."""

    @property
    def last_sign_ns(self) -> int:
        """When the job was heard last."""
        return max((one.last_sign_ns for one in self.attempts.values()), default=0)


class EttrLedger:
    """Accounts of all jobs: an operator over their slices, the lines of their verdicts, and changes of actions.

    The attempts of a job follow each other without a gap: one reaches up to the first sign of the next. So the time
    between the death of one and the first sign of the next belongs to the one that died.
    """

    def __init__(self, config: EttrConfig | None = None) -> None:
        """Start without jobs.

        Args:
            config: settings; None: the defaults.
        """
        self._config = config or EttrConfig()
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._told_ns = 0
        self._told: dict[JobKey, AttemptTime] = {}
        """What was told last of each attempt; part of a snapshot, so that a restart tells what it would have told."""

    def on_slice(self, data: Slice) -> Sequence[AttemptTime]:
        """Take the records of one attempt in one span of time; what it costs is told by ``on_time``."""
        for record in data.records:
            if isinstance(record, Event) and (change := told_change(record)) is not None:
                self._take_change(change)
        data, _ = without_closings(data)  # what a person says of an incident is no sign of the job
        if not data.records or data.job.job_id == IDLE_JOB_ID:
            return ()
        job = self._job(data.job)
        if data.job.attempt < max(job.attempts, default=0):
            return ()  # the time belongs to the attempt that followed
        account = job.attempts.get(data.job.attempt)
        if account is None:
            account = self._begin(job, data.job, data.records)
        was_left_ns = account.left_ns
        account.last_sign_ns = max(account.last_sign_ns, data.end_ns)
        for record in data.records:
            if isinstance(record, Event):
                account.take_event(record)
            elif isinstance(record, Topology):
                account.take_places(record)
        batches = [record for record in data.records if isinstance(record, StepBatch)]
        if batches:
            job.made_step = account.take_steps(batches, job.made_step)
        account.bound()
        job.has_news |= account.left_ns != was_left_ns or (bool(batches) and account.left_ns > 0)
        return ()

    def on_verdicts(self, verdicts: Iterable[Verdict], now_ns: int) -> None:
        """Take lines of verdicts, of any jobs; a line may come again.

        Args:
            verdicts: the lines that the engine tells now.
            now_ns: the present.
        """
        for verdict in verdicts:
            job = self._jobs.get((verdict.job.cluster, verdict.job.job_id))
            account = None if job is None else job.attempts.get(verdict.job.attempt)
            if account is not None:
                account.take_verdict(verdict, now_ns)

    def on_action(self, change: ActionChange) -> None:
        """Take a change of an action; scheduling begins where one that starts the job again is approved."""
        action = change.action
        if not action.dry_run:
            told = ToldChange(action.job, action.verdict_id, action.kind, change.state, change.changed_ns)
            self._take_change(told)

    def _take_change(self, change: ToldChange) -> None:
        """Take a change of an action; it may come after the attempt that followed."""
        job = self._jobs.get((change.job.cluster, change.job.job_id))
        account = None if job is None else job.attempts.get(change.job.attempt)
        if job is None or account is None or change.kind not in RESTARTING:
            return
        name = f"{change.verdict_id}/{change.kind.value}"
        if change.state in _DECIDED:
            account.take_decided(name, change.changed_ns)
            later = [number for number in job.attempts if number > change.job.attempt]
            if later:
                account.end_waiting(job.attempts[min(later)].begin_ns)
                job.has_news = True
        elif change.state in FINAL_STATES:
            account.take_given_up(name)

    def on_time(self, now_ns: int) -> list[AttemptTime]:
        """Return what is new: each minute the accounts that changed, and at once those of jobs whose attempts end.

        Args:
            now_ns: the present.
        """
        is_due = now_ns - self._told_ns >= self._config.tell_ns or now_ns < self._told_ns
        if is_due:
            self._told_ns = now_ns - now_ns % self._config.tell_ns
            self._forget(now_ns)
        found = []
        for key, job in self._jobs.items():
            if is_due or job.has_news:
                job.has_news = False
                found += [told for told in self._accounts(key, job, now_ns) if self._is_new(told)]
        self._told.update((told.job, told) for told in found)
        return found

    def starts_on_time(self, now_ns: int) -> list[AttemptStart]:
        """Return the starts that are to be told now, of all jobs.

        Args:
            now_ns: the present.
        """
        found = []
        for key, job in self._jobs.items():
            self._end_starts(job, now_ns)
            newest = max(job.attempts, default=0)
            for number, account in job.attempts.items():
                is_heard = now_ns - account.last_sign_ns < _HEARD_NS and number == newest and not account.left_ns
                found += account.starts.due(JobKey(*key, number), now_ns, is_heard=is_heard)
        return found

    def accounts(self, now_ns: int) -> list[AttemptTime]:
        """Return the account of each attempt that is kept, by job and attempt.

        Args:
            now_ns: the present.
        """
        return [told for key, job in sorted(self._jobs.items()) for told in self._accounts(key, job, now_ns)]

    @property
    def last_sign_ns(self) -> int:
        """When any job was heard last, 0 = none is kept."""
        return max((job.last_sign_ns for job in self._jobs.values()), default=0)

    def is_settled(self, now_ns: int) -> bool:
        """Return whether all attempts ended and were told, so that only new records can change what is told.

        Args:
            now_ns: the present.
        """
        return not any(
            job.has_news
            or any(one.starts.has_news for one in job.attempts.values())
            or any(not told.is_over or self._is_new(told) for told in self._accounts(key, job, now_ns))
            for key, job in self._jobs.items()
        )

    def _forget(self, now_ns: int) -> None:
        """Drop the jobs that were not heard for too long."""
        for name in [name for name, job in self._jobs.items() if now_ns - job.last_sign_ns >= self._config.forget_ns]:
            self._drop(name)

    def _is_new(self, told: AttemptTime) -> bool:
        """Return whether an account differs from what was told last of its attempt."""
        before = self._told.get(told.job)
        return before is None or replace(before, told_ns=told.told_ns) != told

    def _accounts(self, key: tuple[str, str], job: _Job, now_ns: int) -> list[AttemptTime]:
        """Return the accounts of one job's attempts."""
        self._end_starts(job, now_ns)
        found = []
        for number, account, until_ns, is_over in self._ends(job, now_ns):
            numbers = (account.steps_count, account.recomputed_steps_count, account.last_step, account.starts.gpu_count)
            own = account.begin_ns, until_ns, now_ns, is_over, account.parts(until_ns)
            found.append(AttemptTime(JobKey(*key, number), *own, *numbers))
        return found

    def _end_starts(self, job: _Job, now_ns: int) -> None:
        """Note which starts are over though they have not trained."""
        for _, account, until_ns, is_over in self._ends(job, now_ns):
            account.end_start(until_ns, is_over=is_over, tells_steps=job.made_step >= 0)

    def _ends(self, job: _Job, now_ns: int) -> Iterator[tuple[int, AttemptAccount, int, bool]]:
        """Yield number, account, end (of one that goes on: the present), and whether it is over, of each attempt."""
        numbers = sorted(job.attempts)
        begins = [job.attempts[number].begin_ns for number in numbers[1:]]
        for number, next_ns in zip(numbers, [*begins, 0], strict=True):
            account = job.attempts[number]
            is_silent = now_ns - account.last_sign_ns >= self._config.silent_ns
            until_ns = account.last_sign_ns if is_silent else now_ns
            if account.is_ended_in_order:
                until_ns = min(until_ns, account.left_ns)
            until_ns = max(next_ns or until_ns, account.timeline.settled_ns)
            yield number, account, until_ns, next_ns > 0 or is_silent or account.is_ended_in_order

    def _job(self, key: JobKey) -> _Job:
        """Return a job; a new one gets room."""
        name = (key.cluster, key.job_id)
        if name not in self._jobs:
            if len(self._jobs) >= self._config.most_jobs_count:
                self._drop(min(self._jobs, key=lambda one: self._jobs[one].last_sign_ns))
            self._jobs[name] = _Job()
        return self._jobs[name]

    def _drop(self, name: tuple[str, str]) -> None:
        """Forget a job."""
        del self._jobs[name]
        self._told = {key: told for key, told in self._told.items() if (key.cluster, key.job_id) != name}

    def _begin(self, job: _Job, key: JobKey, records: Sequence[JobRecord]) -> AttemptAccount:
        """Begin an attempt, the newest; it ends the one before it.

        It begins with its first word, or with the stage whose length that word tells; but while the attempt before was
        heard, the time is that one's.
        """
        begin_ns = min(record.ts_ns for record in records)
        staged_ns = begin_of_stages(records, begin_ns - _LONGEST_STAGE_NS)
        if job.attempts:
            older = job.attempts[max(job.attempts)]
            begin_ns = max(begin_ns, older.begin_ns, older.timeline.settled_ns)
            staged_ns = max(staged_ns, older.begin_ns, older.timeline.settled_ns, older.left_ns or older.last_sign_ns)
            older.end_waiting(min(begin_ns, staged_ns))
        begin_ns = min(begin_ns, staged_ns)
        account = job.attempts[key.attempt] = AttemptAccount(begin_ns)
        while len(job.attempts) > self._config.most_attempts_count:
            oldest = min(job.attempts)
            del job.attempts[oldest]
            self._told.pop(replace(key, attempt=oldest), None)
        job.has_news = True
        return account

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts."""
        jobs = [
            [
                *name,
                job.made_step,
                job.has_news,
                [[number, account.to_state()] for number, account in job.attempts.items()],
            ]
            for name, job in self._jobs.items()
        ]
        told = [_told_state(one) for one in self._told.values()]
        return {PART: pack_state({"told_ns": self._told_ns, "jobs": jobs, "told": told})}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned.

        Raises:
            SnapshotError: the part is missing, damaged or of another version.
        """
        state: dict[str, Any] = unpack_state(parts, PART)
        self._told_ns = state["told_ns"]
        self._told = {told.job: told for told in map(_told_from, state["told"])}
        self._jobs = {
            (cluster, job_id): _Job(
                {number: AttemptAccount.from_state(account) for number, account in attempts}, made_step, has_news
            )
            for cluster, job_id, made_step, has_news, attempts in state["jobs"]
        }


def _told_state(told: AttemptTime) -> list[Any]:
    """Return an account as JSON-serialisable values."""
    parts = [[part.value, length_ns] for part, length_ns in told.parts_ns.items()]
    numbers = [told.steps_count, told.recomputed_steps_count, told.last_step, told.gpu_count]
    job = [told.job.cluster, told.job.job_id, told.job.attempt]
    return [job, told.began_ns, told.until_ns, told.told_ns, told.is_over, parts, *numbers]


def _told_from(state: Sequence[Any]) -> AttemptTime:
    """Return the account that ``_told_state`` described; an older engine's has no number of GPUs."""
    job, began_ns, until_ns, told_ns, is_over, parts, *numbers = state
    spent = {TimePart(part): length_ns for part, length_ns in parts}
    return AttemptTime(JobKey(*job), began_ns, until_ns, told_ns, is_over, spent, *numbers)
