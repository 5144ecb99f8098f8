"""What the hook reports of real data loaders, and what it leaves alone."""

import subprocess
import sys
import time
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collectors.fakes import Agent
from tests.conftest import ROOT
from tocsin.collectors import hook
from tocsin.collectors.hook import _loader as loading
from tocsin.collectors.hook._attach import TimedLoader
from tocsin.collectors.hook._identity import Identity
from tocsin.collectors.hook._lengths import MIXED, BatchFacts, facts_of
from tocsin.collectors.hook._loader import LoaderWatch, source_of
from tocsin.collectors.hook._recorder import Recorder
from tocsin.collectors.hook._sender import Sender

torch: Any = pytest.importorskip("torch", reason="needs the train extra")

ROWS = 4


class Texts(torch.utils.data.Dataset):  # type: ignore[misc]
    """Sequences of 1 to 8 tokens."""

    name = "web"

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.arange(8) <= index % 8

    @property
    def source(self) -> str:
        raise RuntimeError("the hook runs no code of the script")


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """The same, one after another."""

    def __iter__(self) -> Iterator[Any]:
        return iter([torch.arange(8) <= index % 8 for index in range(24)])


def collate(masks: list[Any]) -> dict[str, Any]:
    return {"attention_mask": torch.stack(masks)}


def watched(loader: Any, source: str | None = None) -> tuple[Any, LoaderWatch]:
    """Return an attached loader and what is known of it; no agent, no thread."""
    recorder = Recorder(Identity("east", "job", 0, 3), Sender())
    return TimedLoader(loader, recorder, source), recorder.loaders


@pytest.mark.parametrize(
    ("dataset", "workers", "source"),
    [(Texts(), 0, "web"), (Texts(), 2, "web"), (Stream(), 0, "Stream")],
)
def test_steps_of_a_real_loader_are_reported(
    monkeypatch: pytest.MonkeyPatch, dataset: Any, workers: int, source: str
) -> None:
    monkeypatch.setattr(loading, "REPORT_NS", 0)
    monkeypatch.setattr(loading, "COST_FACTOR", 0)
    plain = torch.utils.data.DataLoader(
        dataset, ROWS, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0
    )
    loader, watch = watched(plain)
    batches = [batch["attention_mask"] for _ in range(2) for batch in loader]
    found: list[Any] = watch.take()

    wanted = [(int(mask.sum()), int(mask.sum(1).max())) for mask in batches]
    assert [(one["tokens"], one["max_length"]) for one in found] == wanted
    assert [one["step"] for one in found] == list(range(12))
    assert {(one["rows"], one["source"]) for one in found} == {(ROWS, source)}
    assert all(one["fetch_seconds"] >= 0 and ("queue_depth" in one) == bool(workers) for one in found)
    assert found[-1].get("worker_count", 0) == workers
    assert (found[-1].get("memory_bytes", 0) > 1e7) == bool(workers)


def test_a_report_names_the_source_that_the_script_or_the_batch_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "REPORT_NS", 0)
    monkeypatch.setattr(loading, "COST_FACTOR", 0)
    batches: list[Any] = [torch.ones(2, 3), {"source": ["a", "a"]}, {"source": ["a", "b"]}, {"dataset": "c"}]
    loader, watch = watched(batches, "books")

    assert list(loader) == batches
    assert [one["source"] for one in watch.take()] == ["books", "a", MIXED, "c"]


def test_a_fetch_that_lasts_is_reported_while_it_lasts(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "WAITING_NS", 10_000_000)

    class Slow:
        def __iter__(self) -> Iterator[int]:
            agent.wait_for(lambda one: one["t"] == "loader" and one["rows"] == 0)
            yield 1

    assert list(hook.attach(loader=Slow(), source="mirror")) == [1]
    [first, *_] = agent.of("loader")
    assert (first["source"], first["queue_depth"]) == ("mirror", 0)
    assert first["fetch_seconds"] >= 0.01


def test_a_loader_that_failed_and_began_anew_is_told_with_the_time_that_it_took(agent: Agent) -> None:
    class Failing:
        def __init__(self) -> None:
            self.is_sound = False

        def __iter__(self) -> Iterator[int]:
            yield 1
            if not self.is_sound:
                raise OSError("storage")
            yield 2

    plain = Failing()
    loader = hook.attach(loader=plain)
    with pytest.raises(OSError, match="storage"):
        list(loader)
    plain.is_sound = True
    assert list(loader) == [1, 2]
    told = agent.wait_for(lambda one: one["t"] == "loader" and "restarts" in one)

    assert told["restarts"] == 1
    assert 0 <= told["recovery_seconds"] < 60


_LOSES_A_WORKER = """
import multiprocessing, signal, sys
import torch
from tests.collectors.hook.test_loader import ROWS, Stream
from tocsin.collectors import hook

hook.init("job", 3, "east", agent_socket=sys.argv[1])
loader = hook.attach(loader=torch.utils.data.DataLoader(Stream(), ROWS, num_workers=2, collate_fn=len))
batches = iter(loader)
next(batches)
try:
    multiprocessing.active_children()[0].kill()
    list(batches)
except RuntimeError as error:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    print(error, flush=True)
next(iter(loader))
sys.stdin.read()
"""
"""torch raises in its handler of SIGCHLD, wherever the main thread is: so this is a process of its own.

A batch is a plain number. A tensor's memory would be fetched from the worker itself, and fetching it
from one that was just killed is an ``OSError`` before the signal arrives.
"""


def test_a_killed_worker_is_an_error_of_torch_and_the_next_pass_is_a_new_start(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock")
    command = [sys.executable, "-c", _LOSES_A_WORKER, agent.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        told = agent.wait_for(lambda one: one["t"] == "loader" and "restarts" in one)
        printed, _ = process.communicate(timeout=60)
    agent.close()

    assert "DataLoader worker" in printed
    assert told["restarts"] == 1


class Odd(dict[str, Any]):
    """A dictionary that runs code of its own."""

    def __getitem__(self, key: str) -> Any:
        raise AssertionError("must not be asked")


def ints(*values: int) -> Any:
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("batch", "wanted"),
    [
        ({"lengths": ints(3, 4)}, BatchFacts(2, 7, 4, 25)),
        ({"lengths": [3, 4], "input_ids": torch.zeros(2, 9, dtype=int)}, BatchFacts(2, 7, 4, 25)),
        ({"input_ids": torch.zeros(2, 9, dtype=int)}, BatchFacts(2, 18, 9, 162)),
        ({"cu_seqlens": ints(0, 3, 7)}, BatchFacts(3, 7, 4, 25)),
        ({"tokens": [ints(1, 2), ints(3)]}, BatchFacts(2, 3, 2, 5)),
        (UserDict({"attention_mask": ints(1, 1, 0, 1, 0, 0).view(2, 3)}), BatchFacts(2, 3, 2, 5)),
        ((torch.zeros(2, 9, dtype=int), ints(0, 1)), BatchFacts(2, 18, 9, 162)),
        ([{"lengths": [2], "source": "a"}], BatchFacts(1, 2, 2, 4, "a")),
        (torch.zeros(5, 3, 8, 8), BatchFacts(5)),
        ({"input_ids": torch.zeros(2, 9, dtype=int, device="meta")}, BatchFacts(2, 18, 9, 162)),
        ({"attention_mask": torch.ones(2, 9, dtype=int, device="meta")}, BatchFacts(2)),
        ({"lengths": [-1, 5]}, BatchFacts(2)),
        ({"lengths": ["a"]}, BatchFacts(1)),
        (Odd(lengths=[1]), BatchFacts()),
        (torch.tensor(3), BatchFacts()),
        ([], BatchFacts(0)),
        (None, BatchFacts()),
        (17, BatchFacts()),
    ],
)
def test_a_batch_tells_its_lengths(batch: Any, wanted: BatchFacts) -> None:
    assert facts_of(batch) == wanted


def test_a_source_is_read_through_wrappers_and_no_code_of_the_script_runs() -> None:
    subset = torch.utils.data.Subset(torch.utils.data.Subset(Texts(), range(8)), range(4))

    assert source_of(torch.utils.data.DataLoader(subset), None) == "web"
    assert source_of(torch.utils.data.DataLoader(Stream()), None) == "Stream"
    assert source_of([1, 2], None) == ""
    assert source_of([1, 2], "a\0b\ud800") == "a?b?"


def test_ranks_of_any_pace_report_steps_that_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0

    def now() -> int:
        return clock

    monkeypatch.setattr(loading, "_now_ns", now)
    shared: list[set[object]] = []
    for step_ns in (90_000_000, 160_000_000):
        clock, rows = 0, []
        watch = LoaderWatch()
        for step in range(2000):
            watch.begin_fetch(None, step)
            watch.end_fetch(None)
            clock += step_ns
            rows += watch.take()
        shared.append({row["step"] for row in rows})
        assert len(rows) <= 2000 * step_ns / loading.REPORT_NS + 4

    assert len(shared[0] & shared[1]) > 25


def test_reading_a_batch_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0

    def slow(_batch: Any) -> BatchFacts:
        nonlocal clock
        clock += 50_000_000
        return BatchFacts()

    monkeypatch.setattr(loading, "_now_ns", lambda: clock)
    monkeypatch.setattr(loading, "facts_of", slow)
    watch = LoaderWatch()
    for step in range(20_000):
        watch.begin_fetch(None, step)
        watch.end_fetch(None)
        clock += 100_000_000
    steps_ns = 20_000 * 100_000_000

    assert (clock - steps_ns) / steps_ns < 0.003


def test_a_watched_fetch_takes_microseconds() -> None:
    loader, _watch = watched([{"input_ids": torch.zeros(8, 128, dtype=torch.int64)}] * 2000)
    best_seconds = 1.0
    for _ in range(5):
        begin = time.perf_counter()
        for _batch in loader:
            pass
        best_seconds = min(best_seconds, (time.perf_counter() - begin) / 2000)

    assert best_seconds < 1e-3
