"""The loss that an attached loop never tells: what ``backward`` is called on."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.collectors.fakes import Agent
from tocsin.collectors import hook
from tocsin.collectors.hook import _loss
from tocsin.collectors.hook._loss import MAX_COPIES, LossWatch

torch = pytest.importorskip("torch", reason="needs the train extra")

NAN = float("nan")


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Let torch load what it loads late: for seconds the hook's beats would fill the agent's socket meanwhile."""
    layer = torch.nn.Linear(2, 1)
    torch.optim.SGD(layer.parameters(), lr=1e-6).step()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.utils.checkpoint.checkpoint(layer, torch.ones(2), use_reentrant=False).sum()).backward()
    importlib.import_module("torch.distributed.fsdp.sharded_grad_scaler")


Loss = Callable[[Any, int], Any]


def train(loss_of: Loss, steps: int = 4, backward: Callable[[Any], None] = lambda loss: loss.backward()) -> Any:
    """The two documented lines around a plain loop; returns the model."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for number, batch in enumerate(hook.attach(model, optimizer, [torch.ones(3, 2)] * steps)):
        backward(loss_of(model(batch).square().mean() * 0 + number + 1, number))
        optimizer.zero_grad()  # before the step: a gradient without a number would spoil the weights
        optimizer.step()
    return model


def nans(agent: Agent) -> list[tuple[int, str, str]]:
    return [(m["step"], m["what"], m["value"]) for m in agent.of("nan")]


def losses(agent: Agent) -> list[Any]:
    return [m["loss"] for m in agent.of("step")]


def test_attach_sees_a_loss_that_becomes_nan(agent: Agent) -> None:
    train(lambda loss, number: loss * NAN if number == 2 else loss)

    assert nans(agent) == [(2, "loss", "nan")]
    assert losses(agent) == [1.0, 2.0, "nan", 4.0]


def test_an_explicit_loss_wins(agent: Agent) -> None:
    def reported(loss: Any, number: int) -> Any:
        if number == 1:
            hook.loss(7.0)
        return loss * NAN if number in (1, 3) else loss

    train(reported)

    assert nans(agent) == [(3, "loss", "nan")]
    assert losses(agent) == [1.0, 7.0, 3.0, "nan"]


def test_of_several_backward_calls_the_last_counts_or_one_without_a_number(agent: Agent) -> None:
    def accumulate(loss: Any) -> None:
        for part in range(3):
            scale = NAN if loss.item() == 2 and part == 1 else part
            (loss * scale).backward(retain_graph=True)

    train(lambda loss, _: loss, 3, accumulate)

    assert nans(agent) == [(1, "loss", "nan")]
    assert losses(agent) == [2.0, "nan", 6.0]


def test_several_losses_of_one_call_are_several_calls(agent: Agent) -> None:
    train(lambda loss, _: loss, 1, lambda loss: torch.autograd.backward([loss, loss * 2]))

    assert losses(agent) == [2.0]


@pytest.mark.parametrize("kind", ["vector", "parallel"])
def test_what_is_no_plain_number_is_no_loss(agent: Agent, kind: str) -> None:
    class Parallel(torch.Tensor):  # type: ignore[misc,name-defined]  # as a DTensor: reading it may talk to other ranks
        def item(self) -> Any:
            raise AssertionError("it was read")

    def backward(loss: Any) -> None:
        if kind == "vector":
            (loss * torch.full((3,), NAN)).backward(torch.ones(3))
        else:
            (loss * NAN).as_subclass(Parallel).backward()

    train(lambda loss, _: loss, 2, backward)

    assert nans(agent) == []
    assert losses(agent) == [None, None]


def test_a_checkpointed_part_has_no_loss_of_its_own(agent: Agent) -> None:
    from torch.utils.checkpoint import checkpoint

    def part(one: Any) -> Any:
        return one.clamp(min=0.0).sum() * 0 + 100

    train(lambda loss, _: loss + 0 * checkpoint(part, loss, use_reentrant=True), 2)

    assert losses(agent) == [1.0, 2.0]


def test_the_loss_of_a_step_that_an_exception_ends_is_told(agent: Agent) -> None:
    def fails(loss: Any, number: int) -> Any:
        if number == 1:
            (loss * NAN).backward()
            raise ArithmeticError
        return loss

    with pytest.raises(ArithmeticError) as raised:
        train(fails)
    started = hook._hook  # noqa: SLF001  # the one that the functions share
    assert started is not None
    started.die(raised.value)

    assert [m["t"] for m in agent.drain() if m["t"] in ("nan", "exit")] == ["nan", "exit"]
    assert nans(agent) == [(1, "loss", "nan")]


# --- losses that a scaler has multiplied -----------------------------------------------------------


def scaled(scaler: Any) -> Callable[[Any], None]:
    return lambda loss: scaler.scale(loss).backward()


def test_a_scaled_loss_that_overflows_is_told_unscaled(agent: Agent) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    train(lambda loss, _: loss * 1000, 3, scaled(scaler))

    assert math.isinf(scaler.scale(torch.tensor(1000.0)))
    assert nans(agent) == []
    assert losses(agent) == [1000.0, 2000.0, 3000.0]


def test_a_loss_that_was_nan_before_it_was_scaled_is_told(agent: Agent) -> None:
    scaler = torch.amp.GradScaler("cpu")
    train(lambda loss, number: loss * NAN if number == 1 else loss, 3, scaled(scaler))

    assert nans(agent) == [(1, "loss", "nan")]


def test_what_was_made_of_a_scaled_loss_may_overflow(agent: Agent) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    train(lambda loss, _: loss * 1000, 2, lambda loss: (scaler.scale(loss) / 2).backward())

    assert nans(agent) == []
    assert losses(agent) == [None, None]


def test_a_half_loss_of_a_scaler_that_nobody_knows_may_overflow(agent: Agent) -> None:
    train(lambda loss, _: loss.half() * 65504, 2)

    assert nans(agent) == []
    assert losses(agent) == [65504.0, None]


def test_losses_that_are_scaled_together_and_a_scaler_that_does_nothing(agent: Agent) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    off = torch.amp.GradScaler("cpu", enabled=False)
    train(lambda loss, _: loss, 1, lambda loss: torch.autograd.backward(scaler.scale([loss * 1000, loss * 2000])))
    assert losses(agent) == [2000.0]
    hook.init("job", 3, "east", agent_socket=agent.path)
    train(lambda loss, _: loss * float("inf"), 1, scaled(off))
    assert nans(agent) == [(0, "loss", "inf")]


def test_a_closed_hook_leaves_the_scaler_as_it_was(agent: Agent) -> None:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    before = torch.amp.GradScaler.scale, ShardedGradScaler.scale
    train(lambda loss, _: loss, 1)
    assert torch.amp.GradScaler.scale is not before[0]
    assert ShardedGradScaler.scale is not before[1]
    hook.close()
    assert (torch.amp.GradScaler.scale, ShardedGradScaler.scale) == before


# --- a GPU: nothing here ever waits for it -----------------------------------------------------------


class Event:
    def __init__(self) -> None:
        self.is_done = False

    def record(self, stream: str) -> None:
        assert stream == "stream of cuda:1"
        self.is_done = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        raise AssertionError("the hook has waited for the GPU")


class Pinned:
    """Host memory: garbage until the copy has arrived."""

    def __init__(self) -> None:
        self.number = NAN

    def copy_(self, source: OnGpu, *, non_blocking: bool) -> None:
        assert non_blocking
        assert not source.requires_grad
        self.number = source.number

    def item(self) -> float:
        return self.number


class OnGpu:
    """A loss on a GPU that knows no way to read it."""

    is_cuda, device, dtype = True, "cuda:1", "float32"

    def __init__(self, number: float, *, requires_grad: bool = True) -> None:
        self.number = number
        self.requires_grad = requires_grad

    def detach(self) -> OnGpu:
        return OnGpu(self.number, requires_grad=False)

    def item(self) -> float:
        raise AssertionError("the hook has waited for the GPU")

    __float__ = __bool__ = cpu = tolist = item


class Gpu:
    """The part of torch that the hook may use."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_capturing = False
        self.float16 = "float16"
        self.cuda = SimpleNamespace(
            Event=self.event,
            current_stream=lambda device: f"stream of {device}",
            is_current_stream_capturing=lambda: self.is_capturing,
        )

    def event(self) -> Event:
        self.events.append(Event())
        return self.events[-1]

    def empty(self, size: tuple[()], *, dtype: str, pin_memory: bool) -> Pinned:
        assert (size, dtype, pin_memory) == ((), OnGpu.dtype, True)
        return Pinned()

    def catch_up(self) -> None:
        for event in self.events:
            event.is_done = True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(_loss, "module", lambda _: gpu)
    return gpu


def test_a_loss_on_a_gpu_is_read_when_it_has_arrived(gpu: Gpu) -> None:
    watch = LossWatch()
    watch.see(OnGpu(1.0), 0)
    assert list(watch.take(0, is_reported=False)) == []
    watch.see(OnGpu(NAN), 1)
    gpu.catch_up()
    [first, second] = watch.take(1, is_reported=False)

    assert first == (0, 1.0)
    assert second[0] == 1
    assert math.isnan(second[1])
    assert watch.is_empty
    watch.see(OnGpu(3.0), 2)
    assert len(gpu.events) == 2, "a slot is used again"


def test_a_nan_on_a_gpu_is_told_with_its_own_step(agent: Agent, gpu: Gpu) -> None:
    started = hook._hook  # noqa: SLF001  # the one that the functions share
    assert started is not None
    for number in range(3):
        with hook.step():
            started.recorder.losses.see(OnGpu(NAN if number == 1 else 1.0), number)
        gpu.catch_up()
    hook.close()

    assert nans(agent) == [(1, "loss", "nan")]
    assert losses(agent) == [None, 1.0, "nan"]


def test_a_told_loss_wins_over_one_that_arrives_later(gpu: Gpu) -> None:
    watch = LossWatch()
    watch.see(OnGpu(NAN), 0)
    assert list(watch.take(0, is_reported=True)) == []
    gpu.catch_up()

    assert list(watch.take(1, is_reported=False)) == []
    assert watch.is_empty


def test_a_gpu_that_is_far_behind_costs_no_more_memory(gpu: Gpu) -> None:
    watch = LossWatch()
    for number in range(MAX_COPIES + 10):
        watch.see(OnGpu(1.0), number)
        assert list(watch.take(number, is_reported=False)) == []
    gpu.catch_up()

    assert len(gpu.events) == MAX_COPIES
    assert [step for step, _ in watch.take(99, is_reported=False)] == list(range(MAX_COPIES))


def test_a_captured_graph_gets_no_copy(gpu: Gpu) -> None:
    gpu.is_capturing = True
    watch = LossWatch()
    watch.see(OnGpu(NAN), 0)

    assert watch.is_empty


@pytest.mark.parametrize(
    ("number", "is_scaled", "reported"), [("inf", True, []), ("nan", True, [0]), ("inf", False, [0])]
)
def test_an_overflow_on_a_gpu_is_no_news(gpu: Gpu, number: str, *, is_scaled: bool, reported: list[int]) -> None:
    watch = LossWatch()
    watch.is_scaled = is_scaled
    watch.see(OnGpu(float(number)), 0)
    gpu.catch_up()

    assert [step for step, _ in watch.take(0, is_reported=False)] == reported


def test_a_gpu_that_fails_raises_nothing_here(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = LossWatch()
    watch.see(OnGpu(1.0), 0)

    def fail(_event: Event) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Event, "query", fail)
    assert list(watch.take(0, is_reported=False)) == []
    assert watch.is_empty
