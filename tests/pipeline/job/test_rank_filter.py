"""Who may speak of a rank."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tocsin.pipeline.job.rank_filter import RankFilter, RefusedRecords
from tocsin.pipeline.job.rank_holders import RankFilterConfig
from tocsin.pipeline.lab.testing.builders import JOB, at_second
from tocsin.schemas.job_key import lone_host
from tocsin.schemas.reasons import SpeakerRefusal
from tocsin.schemas.records import (
    CollectiveBatch,
    CollectiveRecord,
    CommGroup,
    Event,
    EventSource,
    GroupKind,
    Groups,
    HostStatus,
    JobRecord,
    ProbeAnswer,
    RankPlace,
    Severity,
    StepBatch,
    StepRecord,
    Topology,
)

HOSTS = ("a", "b", "c", "d")


def topology(second: float, host: str, *ranks: int, size: int = 0) -> Topology:
    return Topology(JOB, host, at_second(second), tuple(RankPlace(rank, host, world_size=size) for rank in ranks))


def event(second: float, host: str, rank: int, name: str = "nan", source: str = "process", **payload: object) -> Event:
    return Event(JOB, host, at_second(second), rank, EventSource(source), name, Severity.ERROR, payload)


def steps(second: float, host: str, *ranks: int) -> StepBatch:
    return StepBatch(
        JOB, host, at_second(second), tuple(StepRecord(at_second(second), rank, int(second), 0.5) for rank in ranks)
    )


def groups(second: float, host: str, *ranks: int) -> Groups:
    return Groups(JOB, host, at_second(second), (CommGroup("g", GroupKind.DP, ranks),))


def status(second: float, host: str, *ranks: int) -> HostStatus:
    return HostStatus(JOB, host, at_second(second), 0, 0, ranks, hook_present=True, dropped_count=0, spooled_count=0)


def waits(second: float, host: str, *ranks: int) -> CollectiveBatch:
    rows = tuple(CollectiveRecord(at_second(second), "state", rank, "g", "all_reduce", 1) for rank in ranks)
    return CollectiveBatch(JOB, host, at_second(second), rows)


def answer(second: float, host: str, rank: int) -> ProbeAnswer:
    return ProbeAnswer(JOB, host, at_second(second), rank, "r", "flight_recorder", b"{}")


def placed(config: RankFilterConfig | None = None) -> RankFilter:
    """Ranks 0 to 3 on hosts a to d."""
    rank_filter = RankFilter(config or RankFilterConfig(), lambda _rank: True)
    rank_filter.admit([topology(0, host, rank, size=4) for rank, host in enumerate(HOSTS)], at_second(1))
    return rank_filter


def reasons(refused: Sequence[RefusedRecords]) -> list[tuple[str, int, str]]:
    return [(dead_letter.host, dead_letter.rank, dead_letter.reason.value) for dead_letter in refused]


class TestRows:
    def test_what_is_right_comes_back_as_it_is(self) -> None:
        records: list[JobRecord] = [
            topology(2, "a", 0, size=4),
            groups(2, "a", 0, 1, 2, 3),
            event(2, "b", 1),
            status(2, "b", 1),
            waits(2, "c", 2),
            steps(2, "d", 3),
            answer(2, "d", 3),
        ]
        admitted, refused = placed().admit(records, at_second(3))

        assert admitted is records
        assert refused == ()

    @pytest.mark.parametrize("record", [event(2, "a", 1), answer(2, "a", 1)], ids=lambda record: type(record).__name__)
    def test_a_record_of_another_s_rank_is_refused_whole_with_its_bytes(self, record: JobRecord) -> None:
        admitted, refused = placed().admit([record], at_second(3))

        assert list(admitted) == []
        assert reasons(refused) == [("a", 1, "rank_of_other_host")]
        assert refused[0].data
        assert "rank 1 is placed on b, a speaks of it" in refused[0].sentence

    def test_of_a_batch_only_the_rows_of_others_are_refused_one_letter_a_rank(self) -> None:
        records: list[JobRecord] = [status(2, "a", 0, 1), waits(2, "a", 0, 1, 1), steps(2, "a", 0, 1, 2)]
        admitted, refused = placed().admit(records, at_second(3))

        found_status, found_waits, found_steps = admitted
        assert isinstance(found_status, HostStatus)
        assert found_status.ranks_seen == (0,)
        assert isinstance(found_waits, CollectiveBatch)
        assert [row.rank for row in found_waits.rows] == [0]
        assert isinstance(found_steps, StepBatch)
        assert [row.rank for row in found_steps.rows] == [0]
        assert sorted((dead_letter.kind, dead_letter.rank) for dead_letter in refused) == [
            ("CollectiveBatch", 1),
            ("HostStatus", 1),
            ("StepBatch", 1),
            ("StepBatch", 2),
        ]

    def test_letters_of_a_turn_are_bounded_and_counted_by_host(self) -> None:
        rank_filter = placed(RankFilterConfig(max_refusal_count=5))
        _, refused = rank_filter.admit([event(2, "a", 1 + index % 3) for index in range(90)], at_second(3))

        assert [dead_letter.count for dead_letter in refused] == [30, 30, 30]
        _, refused = rank_filter.admit([event(3, f"x{index}", 1) for index in range(90)], at_second(4))
        assert len(refused) == 5
        assert rank_filter.refused_by_host["a"] == 90

    def test_a_rank_that_nobody_placed_belongs_to_its_first_speaker_until_a_topology_says_otherwise(self) -> None:
        rank_filter = RankFilter(RankFilterConfig())
        assert reasons(rank_filter.admit([steps(1, "a", 0), steps(1, "b", 0)], at_second(2))[1]) == [
            ("b", 0, "rank_of_other_host")
        ]
        assert rank_filter.admit([topology(3, "b", 0), steps(3, "b", 0)], at_second(4))[1] == ()
        assert reasons(rank_filter.admit([steps(5, "a", 0)], at_second(6))[1]) == [("a", 0, "rank_of_other_host")]

    def test_a_group_comes_from_a_host_that_has_a_member_in_it(self) -> None:
        rank_filter = placed()
        assert rank_filter.admit([groups(2, "a", 3, 0), groups(2, "a", 0, 7)], at_second(3))[1] == ()
        admitted, refused = rank_filter.admit([groups(3, "a", 1, 2), groups(3, "laptop", 1, 2)], at_second(4))

        assert [record.groups for record in admitted if isinstance(record, Groups)] == [(), ()]
        assert reasons(refused) == [("a", -1, "group_of_others"), ("laptop", -1, "group_of_others")]

    def test_a_rank_that_most_hosts_say_does_not_exist(self) -> None:
        rank_filter = placed()
        _, refused = rank_filter.admit([topology(2, "d", 3, 4, 900, size=1000), steps(2, "d", 5)], at_second(3))

        assert reasons(refused) == [
            ("d", 4, "rank_beyond_world"),
            ("d", 900, "rank_beyond_world"),
            ("d", 5, "rank_beyond_world"),
        ]

    def test_ranks_that_were_made_up_before_the_others_told_the_size_are_forgotten(self) -> None:
        rank_filter = RankFilter(RankFilterConfig())
        rank_filter.admit([topology(0, "d", 3, 99, size=4000)], at_second(1))
        rank_filter.admit([topology(1, host, rank, size=4) for rank, host in enumerate("abc")], at_second(2))

        assert reasons(rank_filter.admit([steps(3, "d", 3, 99)], at_second(4))[1]) == [("d", 99, "rank_beyond_world")]

    def test_hosts_that_announce_their_own_ranks_as_the_job_s_size_are_heard(self) -> None:
        """An exporter that confuses the two: no rank may be lost for that."""
        rank_filter = RankFilter(RankFilterConfig())
        reported = [topology(0, host, 2 * index, 2 * index + 1, size=2) for index, host in enumerate(HOSTS)]
        rank_filter.admit(reported, at_second(1))

        assert rank_filter.admit([steps(2, "d", 6, 7)], at_second(3))[1] == ()


class TestRoles:
    def test_a_scheduler_speaks_of_any_rank_where_the_engine_was_told_so(self) -> None:
        record = event(2, "slurm", 1, "exit", "scheduler", code=1)
        assert placed(RankFilterConfig(schedulers=("slurm",))).admit([record], at_second(3))[1] == ()
        assert reasons(placed().admit([record], at_second(3))[1]) == [("slurm", 1, "rank_of_other_host")]
        other = event(2, "slurm", 1, "exit", "process", code=1)
        assert placed(RankFilterConfig(schedulers=("slurm",))).admit([other], at_second(3))[1]

    def test_a_player_moves_ranks_at_once_and_is_heard_as_a_scheduler(self) -> None:
        rank_filter = placed(RankFilterConfig(is_played=True))
        records: list[JobRecord] = [topology(2, "x", 1), steps(2, "x", 1), event(2, "slurm", 2, "exit", "scheduler")]
        assert rank_filter.admit(records, at_second(3)) == (records, ())
        assert rank_filter.host_of(1) == "x"

    def test_a_phase_of_the_job_is_that_of_its_host_s_ranks_but_for_a_player(self) -> None:
        record = event(2, "a", -1, "phase", "job", phase="checkpoint", edge="begin")
        admitted, _ = placed().admit([record], at_second(3))
        assert [entry.rank for entry in admitted if isinstance(entry, Event)] == [0]

        assert placed(RankFilterConfig(is_played=True)).admit([record], at_second(3)) == ([record], ())
        foreign = event(2, "laptop", -1, "phase", "job", phase="checkpoint", edge="begin")
        assert reasons(placed().admit([foreign], at_second(3))[1]) == [("laptop", -1, "phase_of_nobody")]

    def test_a_host_s_own_events_need_no_rank(self) -> None:
        record = event(2, "laptop", -1, "gpu_lost", "kernel")
        assert placed().admit([record], at_second(3)) == ([record], ())


class TestNames:
    def test_short_and_full_names_are_one_host(self) -> None:
        rank_filter = placed()
        assert rank_filter.admit([event(2, "a.rack.example", 0)], at_second(3))[1] == ()
        assert reasons(rank_filter.admit([event(2, "a2", 0)], at_second(3))[1]) == [("a2", 0, "rank_of_other_host")]

    def test_a_name_that_stands_for_a_rank_s_host_speaks_of_that_rank_until_it_is_placed(self) -> None:
        """Recordings without topology: steps do not say where they ran, events do."""
        rank_filter = RankFilter(RankFilterConfig())
        records: list[JobRecord] = [event(1, "b", 1), steps(1, lone_host(1), 1), groups(1, lone_host(0), 0, 1)]
        assert rank_filter.admit(records, at_second(2)) == (records, ())
        assert reasons(rank_filter.admit([steps(2, lone_host(2), 1)], at_second(3))[1]) == [
            (lone_host(2), 1, "rank_of_other_host")
        ]
        rank_filter.admit([topology(3, "b", 1)], at_second(4))
        assert rank_filter.admit([steps(5, lone_host(1), 1)], at_second(6))[1]


class TestClaims:
    def test_a_topology_speaks_of_its_own_host(self) -> None:
        record = Topology(JOB, "a", at_second(2), (RankPlace(0, "a"), RankPlace(1, "laptop"), RankPlace(2, "b")))
        admitted, refused = placed().admit([record], at_second(3))

        assert [place.rank for entry in admitted if isinstance(entry, Topology) for place in entry.places] == [0]
        assert reasons(refused) == [("a", 1, "place_of_other_host"), ("a", 2, "place_of_other_host")]

    def test_the_earlier_holder_keeps_a_rank_and_goes_on_to_be_heard_of_it(self) -> None:
        rank_filter = placed()
        for second in range(2, 120):
            records: list[JobRecord] = [topology(second, "laptop", 1), steps(second, "laptop", 1)]
            records += [steps(second, host, rank) for rank, host in enumerate(HOSTS)]
            admitted, refused = rank_filter.admit(
                sorted(records, key=lambda r: isinstance(r, StepBatch)), at_second(second + 1)
            )
            assert {dead_letter.reason for dead_letter in refused} == {
                SpeakerRefusal.RANK_HELD,
                SpeakerRefusal.RANK_OF_OTHER_HOST,
            }
            assert len([r for r in admitted if isinstance(r, StepBatch) and r.rows]) == 4
        assert rank_filter.contested == frozenset()
        assert rank_filter.host_of(1) == "b"

    def test_two_that_claim_a_rank_at_the_start_are_not_heard_of_it(self) -> None:
        rank_filter = RankFilter(RankFilterConfig())
        rank_filter.admit([topology(0, "a", 0), topology(0, "b", 1)], at_second(1))
        _, refused = rank_filter.admit([topology(2, "laptop", 1)], at_second(3))
        assert reasons(refused) == [("laptop", 1, "rank_held")]
        assert rank_filter.contested == {1}

        admitted, refused = rank_filter.admit([steps(3, "a", 0), steps(3, "b", 1), steps(3, "laptop", 1)], at_second(4))
        assert [row.rank for r in admitted if isinstance(r, StepBatch) for row in r.rows] == [0]
        assert reasons(refused) == [("b", 1, "rank_contested"), ("laptop", 1, "rank_of_other_host")]

        rank_filter.admit([steps(80, "a", 0)], at_second(81))  # it was not claimed again
        assert rank_filter.contested == frozenset()
        assert rank_filter.admit([steps(81, "b", 1)], at_second(82))[1] == ()

    @pytest.mark.parametrize("way", ["exit", "silent", "elsewhere"])
    def test_a_rank_moves_as_the_job_is_started_again(self, way: str) -> None:
        """Its host said that it ended, or fell silent, or speaks no more of it; and the others make steps again."""
        rank_filter = placed()
        if way == "exit":
            rank_filter.admit([event(10, "b", 1, "exit", code=1)], at_second(11))
        rank_filter.admit([topology(12, "x", 1)], at_second(13))
        moved_at = 0
        for second in range(13, 60):
            records: list[JobRecord] = [steps(second, host, rank) for rank, host in ((0, "a"), (2, "c"), (3, "d"))]
            records.append(steps(second, "x", 1))
            if way != "silent":
                records.append(status(second, "b"))
            admitted, _ = rank_filter.admit(records, at_second(second + 1))
            if rank_filter.host_of(1) == "x":
                moved_at = second
                reported = [entry for entry in admitted if isinstance(entry, Topology)]
                assert [(entry.host, entry.ts_ns) for entry in reported] == [("x", at_second(12))]
                break
        assert moved_at == {"exit": 22, "silent": 22, "elsewhere": 46}[way]
        assert rank_filter.admit([steps(61, "x", 1)], at_second(62))[1] == ()

    @pytest.mark.parametrize("said", ["exit", "nothing"])
    def test_a_death_gives_the_rank_to_nobody_while_the_job_stands(self, said: str) -> None:
        """Whoever takes a dead rank would take the blame with it."""
        rank_filter = placed()
        if said == "exit":
            rank_filter.admit([event(10, "b", 1, "exit", signal=9)], at_second(11))
        for second in range(11, 120):
            others = [status(second, host, rank) for rank, host in ((0, "a"), (2, "c"), (3, "d"))]
            rank_filter.admit(
                [topology(second, "laptop", 1), *others, steps(second, "laptop", 1)], at_second(second + 1)
            )
        assert rank_filter.host_of(1) == "b"

    def test_a_frozen_rank_stays_where_its_agent_says_it_is(self) -> None:
        rank_filter = placed()
        for second in range(10, 200):
            records: list[JobRecord] = [topology(second, "laptop", 1)]
            if second % 30 == 0:
                records.append(topology(second, "b", 1))
            records += [
                status(second, "b"),
                *(steps(second, host, rank) for rank, host in ((0, "a"), (2, "c"), (3, "d"))),
            ]
            rank_filter.admit(records, at_second(second + 1))
            assert rank_filter.host_of(1) == "b"

    def test_a_host_that_was_only_silent_takes_its_ranks_back_by_a_step(self) -> None:
        rank_filter = placed()
        others = ((0, "a"), (2, "c"), (3, "d"))
        for second in range(10, 40):
            records: list[JobRecord] = [topology(second, "x", 1), *(steps(second, host, rank) for rank, host in others)]
            rank_filter.admit(records, at_second(second + 1))
        assert rank_filter.host_of(1) == "x"

        assert rank_filter.admit([steps(41, "b", 1)], at_second(42))[1] == ()
        assert reasons(rank_filter.admit([steps(42, "x", 1)], at_second(43))[1]) == [("x", 1, "rank_of_other_host")]
        assert rank_filter.admit([topology(43, "b", 1)], at_second(44))[1] == ()

    def test_state_there_and_back(self) -> None:
        rank_filter, other = placed(), RankFilter(RankFilterConfig(), lambda _rank: True)
        rank_filter.admit([event(10, "b", 1, "exit", code=1), event(10, "c", 2, "bye")], at_second(11))
        rank_filter.admit([topology(12, "x", 1), topology(12, "d", 3, size=9)], at_second(13))
        rank_filter.admit([steps(13, "a", 0)], at_second(14))
        other.restore(rank_filter.snapshot())
        assert other.snapshot() == rank_filter.snapshot()

        for second in range(14, 40):
            records = [steps(second, host, rank) for rank, host in ((0, "a"), (1, "x"), (2, "c"), (3, "d"))]
            assert other.admit(records, at_second(second + 1)) == rank_filter.admit(records, at_second(second + 1))
        assert rank_filter.host_of(1) == other.host_of(1) == "x"
        assert other.snapshot() == rank_filter.snapshot()


def test_who_trains_a_rank_has_it_whoever_claimed_it_first() -> None:
    """A host that holds nothing reserves the rank, and says again and again that it runs there."""
    trained: set[int] = set()
    rank_filter = RankFilter(RankFilterConfig(), trained.__contains__)
    rank_filter.admit([topology(0, "x", 3)], at_second(1))
    rank_filter.admit([topology(40, "a", 3), topology(40, "x", 3)], at_second(41))
    assert rank_filter.host_of(3) == "x"
    kept, refused = rank_filter.admit([steps(45, "a", 3)], at_second(46))
    assert rank_filter.host_of(3) == "a"
    assert steps(45, "a", 3) in kept
    assert not refused
    trained.add(3)
    rank_filter.admit([topology(50, "x", 3)], at_second(51))
    assert rank_filter.host_of(3) == "a"
    assert not rank_filter.contested


def test_a_contest_ends_with_the_first_step_of_one_of_both() -> None:
    trained: set[int] = set()
    rank_filter = RankFilter(RankFilterConfig(), trained.__contains__)
    rank_filter.admit([topology(0, "a", 3), topology(0, "x", 3)], at_second(1))
    assert rank_filter.contested == {3}
    rank_filter.admit([steps(5, "a", 3)], at_second(6))
    assert not rank_filter.contested
    trained.add(3)
    rank_filter.admit([topology(10, "x", 3)], at_second(11))
    assert not rank_filter.contested


def test_the_long_name_of_a_host_announces_a_phase_of_its_ranks() -> None:
    rank_filter = placed()
    phase = event(5, "a.rack2.example", -1, "phase", "job", phase="checkpoint", edge="begin")
    kept, refused = rank_filter.admit([phase], at_second(6))
    assert [one.rank for one in kept if isinstance(one, Event)] == [0]
    assert not refused
