"""What a rank's model needs in a step, and its GPU: as the script gives it, as the environment does, or counted."""

import math
import os
from collections.abc import Mapping
from typing import Any

from tocsin.collectors.hook._torch import module

GIVEN = (
    "flops_per_step",
    "parameters",
    "tokens_per_step",
    "layers",
    "hidden_size",
    "sequence_length",
    "peak_flops_per_second",
)
"""Keywords of ``attach``; each has a variable, such as ``TOCSIN_FLOPS_PER_STEP``."""
FROZEN_SHARE = 4 / 6
"""Share of a frozen parameter's operations: its own gradient, a third, is not computed."""
_SPLIT_BY_TENSOR = ("tp", "tensor")
_NAME_LETTERS = 256


def work_of(given: Mapping[str, float], model: Any, env: Mapping[str, str] = os.environ) -> dict[str, float | str]:
    """Return what is known of a rank's work: numbers that are given, else its parameters; and the name of its GPU.

    Args:
        given: keywords of ``attach``.
        model: the module, None = there is none.
        env: the environment; a keyword wins over its variable.

    Raises:
        TypeError: a keyword is unknown, or its value is no number.
        ValueError: a keyword's value is negative or not finite.
    """
    found: dict[str, float | str] = {}
    for name, value in given.items():
        if name not in GIVEN:
            raise TypeError(f"attach() got an unknown keyword {name!r}; of the work there are: {', '.join(GIVEN)}")
        if value is not None:
            found[name] = _number(name, value)
    for name in GIVEN:
        if name not in found and (number := _from(env, name)) is not None:
            found[name] = number
    if "flops_per_step" not in found and "parameters" not in found and (count := counted_parameters(model)):
        found["rank_parameters"] = count
    if found and (name := gpu_name()):
        found["gpu_name"] = name[:_NAME_LETTERS]
    return found


def _number(name: str, value: float) -> float:
    """Return a keyword's value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"attach({name}=...) takes a number, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"attach({name}=...) takes a number of at least 0, not {value!r}")
    return float(value)


def _from(env: Mapping[str, str], name: str) -> float | None:
    """Return the number in the variable of a keyword, None for none."""
    try:
        number = float(env.get(f"TOCSIN_{name.upper()}", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def counted_parameters(model: Any) -> float:
    """Return the parameters of a rank's module that work on each of its tokens, 0 = they cannot be counted.

    They cannot where the module holds a slice of flattened parameters (FSDP 1), where tensors are split over a mesh
    with a tensor-parallel dimension, and where some are not made yet.
    """
    count = 0.0
    for parameter in model.parameters() if hasattr(model, "parameters") else ():
        kinds = {base.__name__ for base in type(parameter).__mro__}
        names = getattr(getattr(parameter, "device_mesh", None), "mesh_dim_names", None) or ()
        is_split = any(word in str(name).lower() for name in names for word in _SPLIT_BY_TENSOR)
        if is_split or hasattr(parameter, "_is_flat_param") or kinds & {"FlatParameter", "UninitializedParameter"}:
            return 0.0
        count += parameter.numel() * (1.0 if parameter.requires_grad else FROZEN_SHARE)
    return count


def gpu_name() -> str:
    """Return the name of this process's GPU, "" = it uses none yet; CUDA is not begun for it."""
    cuda = getattr(module("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return ""
    return str(cuda.get_device_name(cuda.current_device()))
