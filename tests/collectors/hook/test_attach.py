"""What a script may do with a loader and a model that the hook is attached to."""

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.collectors.fakes import Agent
from tocsin.collectors import hook
from tocsin.collectors.hook._attach import LocalHook


class Loader:
    """A loader that any process can unpickle."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2))

    def __len__(self) -> int:
        return 2


def test_an_attached_loader_passes_for_the_loader(agent: Agent) -> None:
    plain = Loader()
    loader: Any = hook.attach(loader=plain)
    loader.epoch = 7
    loader.note = "x"
    del loader.note

    assert isinstance(loader, Loader)
    assert (plain.epoch, loader.epoch, vars(plain)) == (7, 7, {"epoch": 7})
    assert (len(loader), list(loader)) == (2, [1, 2])
    with pytest.raises(AttributeError, match="no_such"):
        getattr(loader, "no_such" + "_name")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_an_attached_loader_is_a_plain_loader(agent: Agent, duplicate: Any) -> None:
    loader: Any = hook.attach(loader=Loader())
    loader.epoch = 3
    other = duplicate(loader)

    assert type(other) is Loader
    assert other.epoch == 3


def test_a_loader_that_is_attached_twice_gives_each_step_once(agent: Agent) -> None:
    for _batch in hook.attach(loader=hook.attach(loader=Loader())):
        pass

    assert [step["step"] for step in agent.of("step")] == [0, 1]


def test_a_copied_module_hook_does_nothing_and_needs_no_tocsin() -> None:
    calls: list[Any] = []
    ours = LocalHook(lambda *args: calls.append(args))
    data = pickle.dumps(ours)
    code = f"import pickle, sys; print(pickle.loads({data!r})(1, 2), 'tocsin' in sys.modules)"
    ran = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    ours(1)
    copy.deepcopy(ours)(2)

    assert ran.stdout == "None False\n"
    assert calls == [(1,)]


def test_an_attached_model_is_copied_pickled_and_attached_data_loaders_are_data_loaders(agent: Agent) -> None:
    torch = pytest.importorskip("torch", reason="needs the train extra")
    model = torch.nn.Linear(2, 2)
    plain = torch.utils.data.DataLoader([torch.ones(2)] * 2)
    loader: Any = hook.attach(model, None, plain, collectives=False)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]

    for other in others:
        assert torch.equal(other(torch.ones(2)), model(torch.ones(2)))
    assert isinstance(loader, torch.utils.data.DataLoader)
    loader.pin_memory = True
    assert plain.pin_memory is True
    with pytest.raises(ValueError, match="batch_size"):
        loader.batch_size = 3  # as DataLoader itself says
