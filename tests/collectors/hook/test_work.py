"""What the hook tells of its model's work: given in the script, in the environment, or counted."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.collectors.fakes import Agent
from tocsin.collectors import hook
from tocsin.collectors.hook._work import counted_parameters, gpu_name, work_of


class Parameter:
    """A parameter of some elements."""

    def __init__(self, count: int, *, requires_grad: bool = True, mesh: tuple[str, ...] | None = None) -> None:
        self.requires_grad = requires_grad
        self.device_mesh = None if mesh is None else SimpleNamespace(mesh_dim_names=mesh)
        self._count = count

    def numel(self) -> int:
        return self._count


class FlatParameter(Parameter):
    """A slice of flattened parameters, as FSDP 1 keeps them."""


def model_of(*parameters: Parameter) -> Any:
    return SimpleNamespace(parameters=lambda: iter(parameters))


def test_what_the_script_gives_is_told_to_the_agent(agent: Agent) -> None:
    hook.attach(flops_per_step=3.5e18, peak_flops_per_second=989e12)

    told = agent.wait_for(lambda message: message["t"] == "model")
    assert (told["flops_per_step"], told["peak_flops_per_second"]) == (3.5e18, 989e12)
    assert told["rank"] == 3


def test_a_second_attach_adds_to_the_first(agent: Agent) -> None:
    hook.attach(parameters=7e9, tokens_per_step=4e6)
    hook.attach(layers=32, hidden_size=4096, sequence_length=4096)

    told = agent.wait_for(lambda message: message["t"] == "model" and "layers" in message)
    assert (told["parameters"], told["tokens_per_step"], told["layers"]) == (7e9, 4e6, 32)


def test_without_work_nothing_is_told(agent: Agent) -> None:
    hook.attach()
    hook.close()

    assert agent.of("model") == []


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"flop_per_step": 1.0}, TypeError, "unknown keyword 'flop_per_step'.*flops_per_step"),
        ({"flops_per_step": "1e21"}, TypeError, "takes a number, not '1e21'"),
        ({"parameters": True}, TypeError, "takes a number, not True"),
        ({"parameters": -1}, ValueError, "at least 0, not -1"),
        ({"tokens_per_step": float("nan")}, ValueError, "not nan"),
    ],
)
def test_a_wrong_keyword_is_named(agent: Agent, given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        hook.attach(**given)


def test_the_environment_gives_what_the_script_does_not() -> None:
    env = {"TOCSIN_PARAMETERS": "7e9", "TOCSIN_TOKENS_PER_STEP": "4194304", "TOCSIN_LAYERS": "many"}
    assert work_of({"tokens_per_step": 8.0}, None, env) == {"parameters": 7e9, "tokens_per_step": 8.0}


class TestCounting:
    def test_the_module_s_parameters_are_counted(self) -> None:
        assert work_of({}, model_of(Parameter(30), Parameter(12)), {}) == {"rank_parameters": 42.0}

    def test_a_frozen_parameter_takes_four_of_six_operations(self) -> None:
        assert counted_parameters(model_of(Parameter(6), Parameter(60, requires_grad=False))) == pytest.approx(46.0)

    def test_what_is_given_is_not_counted(self) -> None:
        assert work_of({"parameters": 7.0}, model_of(Parameter(30)), {}) == {"parameters": 7.0}

    @pytest.mark.parametrize(
        "odd", [FlatParameter(8), Parameter(8, mesh=("dp", "tp")), Parameter(8, mesh=("tensor_parallel",))]
    )
    def test_parts_of_parameters_are_not_counted(self, odd: Parameter) -> None:
        assert counted_parameters(model_of(Parameter(30), odd)) == 0.0

    def test_parameters_that_are_sharded_over_data_parallel_ranks_count_whole(self) -> None:
        assert counted_parameters(model_of(Parameter(30, mesh=("dp_shard",)))) == 30.0


def test_the_gpu_is_named_once_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: True, current_device=lambda: 1, get_device_name=lambda at: f"NVIDIA H100 {at}"
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert gpu_name() == "NVIDIA H100 1"
    cuda.is_initialized = lambda: False
    assert gpu_name() == ""
