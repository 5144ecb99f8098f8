"""How many communication groups one host makes the engine remember."""

from __future__ import annotations

from tests.pipeline.runtime.embedded.listener.kit import NOW
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.job.groups import GroupBook, GroupBounds
from tocsin.pipeline.job.rank_filter import RefusedRecords
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.schemas.records import NS_PER_SECOND, CommGroup, GroupKind, Groups, JobKey, RankPlace, Topology

JOB = JobKey("c", "j")
BOUNDS = GroupBounds(group_count=3, member_count=100)


def _say(book: GroupBook, host: str, *groups: tuple[str, int]) -> None:
    ordered_witnesses = tuple(CommGroup(name, GroupKind.DP, tuple(range(size))) for name, size in groups)
    book.take(Groups(JOB, host, NOW, ordered_witnesses))


def test_the_oldest_of_a_host_s_groups_go_and_are_counted() -> None:
    book = GroupBook(BOUNDS)
    _say(book, "a", ("g0", 4))
    for number in range(5):
        _say(book, "evil", (f"g{number + 1}", 4))

    assert sorted(book.groups) == ["g0", "g3", "g4", "g5"]
    assert list(book.take_gone()) == [("evil", 2)]
    assert list(book.take_gone()) == []


def test_members_are_bounded_and_a_group_that_grows_counts_for_who_says_so() -> None:
    book = GroupBook(BOUNDS)
    for name in ("g0", "g1", "g2"):
        _say(book, "evil", (name, 4))
    for name in ("g0", "g1", "g2"):
        for host in ("evil", "accomplice"):
            _say(book, host, (name, 60))

    assert sum(len(group.ranks) for group in book.groups.values()) <= 100
    gone = dict(book.take_gone())
    assert gone.keys() <= {"evil", "accomplice"}
    assert sum(gone.values()) >= 2


def test_one_host_alone_changes_no_group_that_another_one_announced() -> None:
    book = GroupBook(BOUNDS)
    for host in ("a", "b"):
        _say(book, host, ("g0", 4))
    for size in (2, 3, 50, 2):
        _say(book, "evil", ("g0", size))
        assert len(book.groups["g0"].ranks) == 4
    again = GroupBook(BOUNDS)
    again.load_state(unpack_state({"book": pack_state(book.to_state())}, "book"))
    _say(again, "evil", ("g0", 2))
    assert len(again.groups["g0"].ranks) == 4


def test_who_announced_a_group_first_is_outvoted_by_the_others() -> None:
    book = GroupBook(BOUNDS)
    _say(book, "evil", ("g0", 2))
    _say(book, "a", ("g0", 4))
    assert len(book.groups["g0"].ranks) == 2
    _say(book, "b", ("g0", 4))
    assert len(book.groups["g0"].ranks) == 4
    _say(book, "evil", ("g0", 2))
    assert len(book.groups["g0"].ranks) == 4


def test_a_group_that_all_announce_anew_is_the_new_one() -> None:
    book = GroupBook(BOUNDS)
    for size in (4, 6, 5):
        for host in ("a", "b", "c", "d"):
            _say(book, host, ("g0", size))
        assert len(book.groups["g0"].ranks) == size


def test_a_group_that_another_host_announces_stays() -> None:
    book = GroupBook(BOUNDS)
    _say(book, "evil", ("world", 4))
    _say(book, "a", ("world", 4))
    for number in range(10):
        _say(book, "evil", (f"made-up-{number}", 4))

    assert "world" in book.groups
    assert len(book.groups) == 4


def test_a_host_that_says_the_same_again_and_again_loses_nothing() -> None:
    book = GroupBook(BOUNDS)
    for _ in range(10):
        _say(book, "a", ("g0", 4), ("g1", 4))
        _say(book, "a", ("g2", 4))

    assert sorted(book.groups) == ["g0", "g1", "g2"]
    assert not book.take_gone()


def test_a_recording_s_player_speaks_for_all_hosts() -> None:
    book = GroupBook(None)
    _say(book, "player", *((f"g{number}", 4) for number in range(5000)))

    assert len(book.groups) == 5000


def test_what_counts_for_whom_stands_in_the_state() -> None:
    book, again = GroupBook(BOUNDS), GroupBook(BOUNDS)
    _say(book, "b", ("g2", 4), ("g0", 4), ("g1", 4))
    _say(book, "a", ("g0", 4))
    again.load_state(unpack_state({"graph": pack_state(book.to_state())}, "graph"))
    for one in (book, again):
        _say(one, "b", ("g3", 4), ("g4", 4))

    assert sorted(again.groups) == ["g0", "g1", "g3", "g4"]
    assert pack_state(again.to_state()) == pack_state(book.to_state())


def test_a_host_that_announces_ever_new_groups_is_bounded_and_told_of() -> None:
    engine = EmbeddedEngine(EngineConfig(history=None, job=JobConfig(groups=BOUNDS)))
    engine.tick(NOW)
    engine.take_record(Topology(JOB, "evil", NOW, (RankPlace(0, "evil"),)))
    dead_letters: list[tuple[JobKey, RefusedRecords]] = []
    for second in range(20):
        now_ns = NOW + second * NS_PER_SECOND
        group = CommGroup(f"g{second}", GroupKind.DP, (0, 1))
        engine.take_record(Groups(JOB, "evil", now_ns, (group,)))
        dead_letters += engine.tick(now_ns).refused
    pipeline = engine.pipeline(JOB)

    assert pipeline is not None
    assert len(pipeline.graph.groups) == BOUNDS.group_count
    assert {(job, dead_letter.host, dead_letter.reason.value) for job, dead_letter in dead_letters} == {
        (JOB, "evil", "too_many_groups")
    }
    assert engine.counters["refused_too_many_groups"] == pipeline.abstained["too_many_groups"] > 10
