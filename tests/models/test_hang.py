"""The hang analysis: each rank of a grid struck in turn, and what must never accuse."""

import time
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import hang_cases as cases
from tocsin.models import hang
from tocsin.models.hang import GroupInfo, HangInput, OpState, RankWait, analyse
from tocsin.models.hang_input import MAX_LISTED_RANKS, base_name, unheard_ranks

WORLD = GroupInfo("w", "world", (0, 1, 2, 3))
SURE_KINDS = ("cpu_stall", "stopped", "no_dump", "skip", "wrong_op", "gpu_error", "gpu_stall_timed")
GRID = (2, 4, 2)


def waiting(seq: int = 21, name: str = "all_reduce", size: int = 64, comm: str = "w") -> tuple[OpState, ...]:
    return (OpState(comm, seq, name, size),)


def world_of(*pending: tuple[OpState, ...]) -> HangInput:
    states = tuple(RankWait(rank, ops, {"w": 20}) for rank, ops in enumerate(pending))
    return HangInput((WORLD,), states)


@pytest.mark.parametrize("kind", SURE_KINDS)
@pytest.mark.parametrize("ahead", [1, 6])
def test_every_rank_of_a_grid_is_found_when_it_is_struck(kind: str, ahead: int) -> None:
    for rank in range(16):
        for at in cases.places(rank, 3, 56):
            finding = analyse(cases.strike(kind, rank, at, GRID, ahead).data)
            assert finding.culprits == (rank,), (kind, rank, at, finding.evidence)
            assert rank not in finding.victims


@pytest.mark.parametrize("ahead", [1, 6])
def test_a_skipped_send_or_receive_is_found_in_half_of_the_cases_and_accuses_nobody_else(ahead: int) -> None:
    found = total = 0
    for rank in range(16):
        for at in cases.places(rank, 3, 56):
            culprits = analyse(cases.strike("skip_p2p", rank, at, GRID, ahead).data).culprits
            assert culprits in {(), (rank,)}
            found += culprits == (rank,)
            total += 1
    assert found / total >= 0.5


@pytest.mark.parametrize("kind", ["skip", "wrong_op", "skip_p2p"])
def test_without_the_past_operations_nobody_is_accused_wrongly(kind: str) -> None:
    found = total = 0
    for rank in range(16):
        for at in cases.places(rank, 3, 56):
            stuck = cases.strike(kind, rank, at, GRID, 6)
            stuck.states = {r: replace(state, history=()) for r, state in stuck.states.items()}
            culprits = analyse(stuck.data).culprits
            assert culprits in {(), (rank,)}
            found += culprits == (rank,)
            total += 1
    assert kind == "skip_p2p" or found / total > 0.6


def test_reasons_tell_the_kinds_apart() -> None:
    expected = {
        "cpu_stall": "never_arrived",
        "stopped": "process_stopped_peers_wait",
        "no_dump": "silent_and_peers_stalled",
        "skip": "entered_other_collective",
        "wrong_op": "entered_other_collective",
        "gpu_error": hang.STUCK_WHERE_PEERS_FINISHED,
        "gpu_stall_timed": "never_arrived",
    }
    seen = {kind: analyse(cases.strike(kind, 5, 30, GRID, 6).data).reason for kind in SURE_KINDS}
    assert seen == expected


def test_two_ranks_struck_at_once_are_both_found() -> None:
    groups, programs = cases.grid_groups(*GRID), cases.grid_programs(*GRID)
    both = 0
    for one, two in combinations(range(16), 2):
        limits = {one: 20 + one, two: 20 + two}
        done = cases.run_until_stuck(groups, programs, limits)
        states = tuple(
            RankWait(
                rank,
                tuple(map(cases.as_state, ops[done[rank] : min(done[rank] + 6, limits.get(rank, 999))])),
                cases.completed_of(ops[: done[rank]]),
            )
            for rank, ops in programs.items()
        )
        # The one that is held up by the other before it comes to its own fault is a victim.
        at_fault = tuple(rank for rank in (one, two) if done[rank] == limits[rank])
        assert analyse(HangInput(groups, states)).culprits == at_fault
        both += len(at_fault) == 2
    assert both > 20


def test_all_inside_one_operation_accuses_nobody() -> None:
    finding = analyse(world_of(waiting(), waiting(), waiting(), waiting()))

    assert finding.culprits == ()
    assert finding.reason == hang.STUCK_INSIDE
    assert finding.ambiguous == (0, 1, 2, 3)


def test_nobody_waits_where_nothing_is_pending() -> None:
    finding = analyse(replace(world_of((), (), (), ()), silent=frozenset({5})))

    assert (finding.culprits, finding.reason) == ((), hang.NOBODY_WAITS)
    assert any("monitoring lost" in line for line in finding.evidence)


def test_the_one_that_came_early_is_not_a_reason_to_accuse_all_others() -> None:
    finding = analyse(world_of(waiting(), (), (), ()))

    assert finding.culprits == ()
    assert finding.ambiguous == (1, 2, 3)


def test_a_stopped_process_inside_the_operation_is_the_culprit() -> None:
    data = replace(world_of(waiting(), waiting(), waiting(), waiting()), facts={2: hang.FACT_STOPPED})

    assert analyse(data).culprits == (2,)


def test_silence_of_a_healthy_rank_does_not_hide_who_never_arrived() -> None:
    data = world_of(waiting(), waiting(), ())
    finding = analyse(replace(data, silent=frozenset({3}), world_size=4))

    assert finding.culprits == (2,)
    assert finding.missing_ranks == (3,)
    assert finding.ambiguous == (3,)


def test_half_of_a_job_without_a_trace_is_not_accused() -> None:
    data = world_of(waiting(), waiting())
    finding = analyse(replace(data, silent=frozenset({2, 3}), world_size=4))

    assert finding.culprits == ()
    assert finding.ambiguous == (2, 3)


def test_even_numbers_of_two_operations_accuse_nobody() -> None:
    other = waiting(name="broadcast")
    finding = analyse(world_of(waiting(), waiting(), other, other))

    assert (finding.culprits, finding.reason) == ((), "ambiguous")
    assert any("broadcast" in line for line in finding.evidence)


def test_another_size_is_another_operation_but_not_in_all_to_all() -> None:
    pending = [waiting(), waiting(), waiting(), waiting(size=65)]
    assert analyse(world_of(*pending)).culprits == (3,)

    uneven = [waiting(name="all_to_all", size=rank) for rank in range(4)]
    assert analyse(world_of(*uneven)).culprits == ()


def test_a_size_that_is_not_known_is_no_other_size() -> None:
    assert analyse(world_of(waiting(), waiting(), waiting(), waiting(size=-1))).culprits == ()


def test_a_completion_newer_than_the_view_of_a_rank_is_no_lag() -> None:
    late = RankWait(3, waiting(), {"w": 20}, seen_ns=1_000_000_000)
    ahead = tuple(RankWait(r, waiting(22), {"w": 21}, {"w": 900_000_000}, seen_ns=1_000_000_000) for r in range(3))
    fresh = analyse(HangInput((WORLD,), (*ahead, late)))
    settled = analyse(HangInput((WORLD,), (*ahead, replace(late, seen_ns=5_000_000_000))))

    assert fresh.culprits == ()
    assert (settled.culprits, settled.reason) == ((3,), hang.STUCK_WHERE_PEERS_FINISHED)


def test_a_broadcast_that_the_root_has_left_proves_no_lag() -> None:
    root = RankWait(0, (), {"w": 21})
    rest = tuple(RankWait(r, waiting(name="broadcast"), {"w": 20}) for r in (1, 2, 3))

    assert analyse(HangInput((WORLD,), (root, *rest))).culprits == ()


def test_a_rank_with_operations_that_nobody_records_is_accused_only_alone() -> None:
    idle = [RankWait(rank, (), {"w": 20}, hidden_ops=True) for rank in (2, 3)]
    others = [RankWait(rank, waiting(), {"w": 20}) for rank in (0, 1)]

    assert analyse(HangInput((WORLD,), (*others, *idle))).culprits == ()
    sure = replace(idle[1], hidden_ops=False)
    assert analyse(HangInput((WORLD,), (*others, idle[0], sure))).culprits == (3,)


def test_members_of_an_unknown_group_are_guessed_and_marked() -> None:
    states = tuple(RankWait(r, waiting() if r else (), {"w": 20}) for r in range(4))
    finding = analyse(HangInput((), states))

    assert finding.culprits == (0,)
    assert finding.blocked[0].inferred


def relabelled(data: HangInput, to: dict[int, int]) -> HangInput:
    def op(o: OpState) -> OpState:
        return replace(o, peer=to.get(o.peer, -1))

    return HangInput(
        tuple(replace(g, ranks=tuple(to[r] for r in g.ranks)) for g in reversed(data.groups)),
        tuple(
            replace(s, rank=to[s.rank], pending=tuple(map(op, s.pending)), history=tuple(map(op, s.history)))
            for s in reversed(data.states)
        ),
        frozenset(to[r] for r in data.silent),
        {to[r]: fact for r, fact in data.facts.items()},
        data.world_size,
    )


@settings(max_examples=60)
@given(
    kind=st.sampled_from(cases.KINDS),
    rank=st.integers(0, 7),
    at=st.integers(0, 56),
    ahead=st.integers(1, 8),
    order=st.permutations(range(8)),
    lost=st.integers(0, 7),
)
def test_other_numbers_for_the_ranks_give_the_same_answer_in_other_numbers(
    kind: str, rank: int, at: int, ahead: int, order: list[int], lost: int
) -> None:
    stuck = cases.strike(kind, rank, at, (2, 2, 2), ahead)
    stuck.silent |= {lost} if at % 3 == 0 else set()
    to = dict(enumerate(order))

    plain, other = analyse(stuck.data), analyse(relabelled(stuck.data, to))

    assert other.culprits == tuple(sorted(to[r] for r in plain.culprits))
    assert other.ambiguous == tuple(sorted(to[r] for r in plain.ambiguous))
    assert other.victims == tuple(sorted(to[r] for r in plain.victims))
    assert other.reason == plain.reason
    assert analyse(stuck.data) == plain


def test_ten_thousand_ranks_take_about_a_second() -> None:
    groups = cases.grid_groups(10, 125, 8)
    states = []
    for rank in range(10_000):
        stage, inside = divmod(rank, 1000)
        d, t = divmod(inside, 8)
        names = {"world": 9, f"tp{stage}.{d}": 40, f"dp{stage}.{t}": 12, f"pp{d}.{t}": 0}
        if rank == 777:
            ops: tuple[OpState, ...] = ()
        elif (stage, d) == (0, 97):
            ops = waiting(41, comm=f"tp{stage}.{d}")
        elif stage == 0:
            ops = waiting(13, comm=f"dp{stage}.{t}")
        else:
            ops = waiting(10, comm="world")
        states.append(RankWait(rank, ops, names))
    begun = time.process_time()  # what others take of the core is not counted
    finding = analyse(HangInput(groups, tuple(states), world_size=10_000))
    took = time.process_time() - begun

    assert finding.culprits == (777,)
    assert len(finding.victims) == 9_999
    assert took < 4, "about a second on a free core; the machine may be shared"


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("nccl:send 0->1", "send"),
        ("nccl:_all_gather_base", "all_gather_base"),
        ("AllReduce", "all_reduce"),
        ("ncclReduceScatter", "reduce_scatter_base"),
        ("all_gather", "all_gather"),
        ("gloo:barrier", "barrier"),
    ],
)
def test_operations_have_one_name_whoever_tells_it(reported: str, name: str) -> None:
    assert base_name(reported) == name


@pytest.mark.parametrize("word", ["AllReduce", "nccl:all_reduce", "ReduceScatter"])
@pytest.mark.parametrize("heard_of", [16, 10])
def test_whoever_brings_another_size_is_named_though_nobody_tells_of_half_of_the_ranks(
    word: str, heard_of: int
) -> None:
    """States are samples: of ranks that tell none nobody knows whether they arrived."""
    group = GroupInfo("dp0", "dp", tuple(range(16)))
    states = []
    for rank in range(16):
        op = OpState("dp0", 1347, word, 4096 if rank == 3 else 8192, start_ns=10)
        states.append(RankWait(rank, (op,) if rank < heard_of else (), {"dp0": 1346}))

    found = analyse(HangInput((group,), tuple(states), world_size=16))

    assert (found.culprits, found.reason) == ((3,), "entered_other_collective")


def test_an_announced_size_is_counted_not_built() -> None:
    """Two ranks of a job that is said to have 10^15: whoever was never heard of is listed up to a bound."""
    data = replace(world_of(waiting(), waiting()), world_size=10**15)
    finding = analyse(data)

    assert len(finding.missing_ranks) == 2 + MAX_LISTED_RANKS  # the group's own two, and those that nobody knows
    assert finding.missing_ranks[:2] == (2, 3)


def test_more_silent_ranks_than_are_listed_are_not_accused() -> None:
    silent = frozenset(range(2, 4))
    data = replace(world_of(waiting(), waiting()), silent=silent, world_size=200_000)

    assert analyse(data).culprits == (2, 3)
    assert analyse(replace(data, unlisted_count=100_000)).culprits == ()


@given(world=st.integers(0, 300), heard=st.frozensets(st.integers(0, 400), max_size=300))
def test_unheard_ranks_are_those_of_the_range(world: int, heard: frozenset[int]) -> None:
    assert unheard_ranks(world, heard) == sorted(set(range(world)) - heard)


HOSTS = {rank: f"n{rank}" for rank in range(4)}


def finished_by(*ranks: int, hosts: dict[int, str]) -> HangInput:
    """All stand in number 21 of the world but these, who say that they finished it and stand in the next one."""
    states = tuple(
        RankWait(rank, waiting(22), {"w": 21}) if rank in ranks else RankWait(rank, waiting(), {"w": 20})
        for rank in range(4)
    )
    return HangInput((WORLD,), states, host_of=hosts)


def test_one_host_s_word_that_it_finished_accuses_nobody_who_waits() -> None:
    assert analyse(finished_by(2, hosts=HOSTS)).culprits == ()


@pytest.mark.parametrize("hosts", [HOSTS, {**HOSTS, 3: "n2"}])
def test_two_hosts_that_finished_and_the_own_one_are_believed(hosts: dict[int, str]) -> None:
    assert analyse(finished_by(0, 1, 2, hosts=hosts)).culprits == (3,)
    assert analyse(finished_by(0, 1, 2, hosts=hosts)).reason == hang.STUCK_WHERE_PEERS_FINISHED


def test_a_rank_of_the_own_host_that_finished_is_believed() -> None:
    both = {0: "n0", 1: "n0", 2: "n2", 3: "n3"}
    states = (RankWait(0, waiting(comm="p"), {"p": 20}), RankWait(1, waiting(), {"p": 21, "w": 20}))
    finding = analyse(HangInput((GroupInfo("p", "tp", (0, 1)), WORLD), (*states, *_at_world(2, 3)), host_of=both))
    assert finding.culprits == (0,)


def _at_world(*ranks: int) -> tuple[RankWait, ...]:
    return tuple(RankWait(rank, waiting(), {"w": 20}) for rank in ranks)


def test_in_one_folder_of_dumps_one_rank_is_believed() -> None:
    assert analyse(finished_by(0, 1, 2, hosts={})).culprits == (3,)
