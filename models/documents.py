"""Models of numbers: the payloads of detectors that are rules with fitted numbers, and the bounds of each number.

The payload is a JSON object of sections of numbers. A number that is left out keeps the detector's default; an unknown
name is an error. ``model_formats.accept`` is the entry for what is announced, networks included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from tocsin.models.peer_scales import scale_of
from tocsin.schemas.errors import ModelRefusedError, SchemaError
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.reasons import ModelRefusal
from tocsin.schemas.wire.validate import load_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ConfigT = TypeVar("ConfigT", bound="DataclassInstance")
Numbers = Mapping[str, Mapping[str, float]]
"""Numbers of a model: section -> name -> value."""


@dataclass(frozen=True, slots=True)
class Model:
    """An accepted model of one detector.

    Attributes:
        version: human-readable version, "" for the detector's default settings.
        fitted: numbers that replace the detector's defaults, None for the defaults.
        trained: what the payload of a trained detector holds, in the type that its reader returns; None: a model of
            numbers, or a withdrawal.
        content_hash: SHA-256 of the payload, "" without one. Two models with the same hash are the same model.
    """

    version: str
    fitted: Numbers | None
    trained: object = field(default=None, compare=False)
    content_hash: str = ""


def numbers_of(model: Model | None) -> Numbers:
    """Return a model's numbers that replace the detector's defaults; empty for the defaults."""
    return {} if model is None or model.fitted is None else model.fitted


def with_numbers(config: ConfigT, model: Model | None, section: str) -> ConfigT:
    """Return a detector's settings with the numbers of one section of a model put in.

    Args:
        config: the settings as a frozen dataclass; its fields have the numbers' names.
        model: the model, None: the settings are returned unchanged.
        section: which section of the model's numbers.
    """
    changes: dict[str, Any] = dict(numbers_of(model).get(section, {}))
    return replace(config, **changes) if changes else config


def version_of(model: Model | None) -> str:
    """Return the model version that anomalies carry, "" for the detector's default settings."""
    return "" if model is None else model.version


class Bounds(NamedTuple):
    """The allowed range of a number, both ends included."""

    low: float
    high: float


Sections = Mapping[str, Mapping[str, Bounds]]


def read_numbers(payload: bytes, sections: Sections) -> dict[str, dict[str, float]]:
    """Read and check a JSON object of sections of numbers.

    Args:
        payload: the JSON text.
        sections: allowed sections, their names and the bounds of each number.

    Returns:
        Section -> name -> value, only what the payload holds.

    Raises:
        ModelRefusedError: the payload is no such object, has an unknown name, or a number is out of bounds.
    """
    try:
        body = load_json(payload, "model")
    except SchemaError as error:
        raise ModelRefusedError(ModelRefusal.MODEL_UNDECODABLE.value, str(error)) from error
    found: dict[str, dict[str, float]] = {}
    for section, values in _object(body, "model").items():
        known = sections.get(section)
        if known is None:
            refuse_field(ModelRefusal.MODEL_UNDECODABLE, "section", section, f"one of {' '.join(sorted(sections))}")
        named = _object(values, section)
        found[section] = {name: _number(value, f"{section}.{name}", known, name) for name, value in named.items()}
    return found


def _object(value: object, field: str) -> dict[str, object]:
    """Return the value if it is a JSON object; refuse the model otherwise."""
    if not isinstance(value, dict):
        refuse_field(ModelRefusal.MODEL_UNDECODABLE, field, value, "a JSON object")
    return value


def _number(value: object, field: str, known: Mapping[str, Bounds], name: str) -> float:
    """Return the value as a float if its name is known and it is within its bounds; refuse the model otherwise."""
    bounds = known.get(name)
    if bounds is None:
        refuse_field(ModelRefusal.MODEL_UNDECODABLE, "field", field, f"one of {' '.join(sorted(known))}")
    wanted = f"a number from {bounds.low:g} to {bounds.high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse_field(ModelRefusal.MODEL_UNDECODABLE, field, value, wanted)
    if not bounds.low <= value <= bounds.high:
        refuse_field(ModelRefusal.OUT_OF_RANGE, field, value, wanted)
    return float(value)


def in_order(found: Numbers, section: str, own: Mapping[str, float], names: tuple[str, str]) -> None:
    """Check that the first of two numbers of a section is below the second.

    Args:
        found: the model's numbers.
        section: the section of both.
        own: the detector's defaults, used for a number that the model leaves out.
        names: names of the smaller and of the larger number.

    Raises:
        ModelRefusedError: the first is not below the second.
    """
    low, high = ({**own, **found.get(section, {})}[name] for name in names)
    if low >= high:
        refuse_field(ModelRefusal.OUT_OF_RANGE, f"{section}.{names[0]}", low, f"below {section}.{names[1]}, {high:g}")


def write_numbers(numbers: Numbers) -> bytes:
    """Return the payload of a model of numbers as canonical JSON; the same numbers always give the same bytes."""
    return json.dumps(numbers, sort_keys=True, separators=(",", ":")).encode()


def refuse_field(reason: ModelRefusal, field: str, value: object, must: str) -> NoReturn:
    """Raise ``ModelRefusedError`` with a sentence "field = value: must be ..."; a long value is cut."""
    shown = repr(value)
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    raise ModelRefusedError(reason.value, f"{field} = {shown}: must be {must}")


# -- the detectors ---------------------------------------------------------------------------------

FACTOR: Final = 2.0
"""Largest factor by which a model's number may lie above or below the program's default.

Numbers fitted on recordings stay within it (``pipeline/lab/training/numbers.py``). Wider bounds would let whoever
announces a model blind a detector in all jobs. With every number at its least sensitive end, a machine that doubles the
step time or stalls is still named (``tests/pipeline/runtime/test_model_bounds.py``).
"""
TIME_FACTOR: Final = 4.0
"""The same limit for numbers that say how long something must last. It is wider because a fault named after six seconds
is late, not missed."""


def _bounds_around(own: float, low: float = 0.0, high: float = math.inf, factor: float = FACTOR) -> Bounds:
    """Return bounds from ``own / factor`` to ``own * factor``, cut to the range [low, high]."""
    return Bounds(max(low, own / factor), min(high, own * factor))


_SUMS: Final = {
    "max_sigmas": _bounds_around(9.0),
    "drift_sigmas": _bounds_around(3.0, factor=1.5),  # what lies below it is never evidence, however long it lasts
    "alarm_sum": _bounds_around(10.0),
    "limit_ratio": _bounds_around(1.4, low=1.1),  # below 1 no sum would reach the line
    "keep_ratio": _bounds_around(0.4),
}
OWN_SUMS: Final = {"max_sigmas": 9.0, "drift_sigmas": 3.0, "alarm_sum": 10.0}
OWN_LASTING: Final = {"min_lasting_seconds": 1.5, "max_lasting_seconds": 60.0}
PEERS_SECTIONS: Final[Sections] = {
    "comparison": {
        "suspicious_sigmas": _bounds_around(4.0),
        "suspicious_rate_ratio": _bounds_around(0.1),
        "relative_floor_ratio": _bounds_around(0.015),
        "idle_ratio": _bounds_around(0.35),
    },
    "working": _SUMS,
    "standing": _SUMS,
    "lines": {
        "standing_share_ratio": _bounds_around(0.3),
        "lone_standing_share_ratio": _bounds_around(0.5, high=0.9),  # at 1 nothing less than total rest would count
        "lone_gpu_ratio": _bounds_around(0.8, high=1.0),
    },
    "floors": {
        metric.name: _bounds_around(scale_of(metric).floor) for metric in (*BUILTIN_TABLE.gpu, *BUILTIN_TABLE.host)
    },
}
"""Allowed numbers of a ``peers`` model and their bounds.

``comparison`` sets ``PeerConfig``, ``working`` and ``standing`` set ``SumConfig``, ``lines`` sets ``PeersConfig``.
``floors`` sets, by built-in metric, the least spread (in the metric's unit; packet rates as logarithms). Users' own
metrics bring their limits with them.
"""

STEPS_SECTIONS: Final[Sections] = {
    "slow": {
        "min_excess_seconds": _bounds_around(0.005),
        "min_strength_ratio": _bounds_around(0.1),
        "spread_factor": _bounds_around(5.0),
        "min_share_ratio": _bounds_around(0.8, high=0.9),  # at 1 a single other step would acquit
        "min_wait_ratio": _bounds_around(0.4, high=0.6),
        "max_suspect_ratio": _bounds_around(0.34, low=0.26, high=0.5),  # one of four must be able to be the one
    },
    "lines": {
        "min_lasting_seconds": _bounds_around(1.5, factor=TIME_FACTOR),
        "max_lasting_seconds": _bounds_around(60.0),
        "lasting_scale_seconds": _bounds_around(0.4),
        "from_start_factor": _bounds_around(4.0),
        "from_start_seconds": _bounds_around(20.0),
        "early_ratio": _bounds_around(0.5, high=0.9),
        "job_strength_ratio": _bounds_around(0.25),
        "max_volatility_ratio": _bounds_around(0.12),
        "max_host_ratio": _bounds_around(0.125),
    },
}
"""Allowed numbers of a ``steps`` model and their bounds: ``slow`` sets ``SlowConfig``, ``lines`` sets ``StepsConfig``.
"""


def read_peers(payload: bytes) -> Numbers:
    """Read and check the payload of a ``peers`` model."""
    found = read_numbers(payload, PEERS_SECTIONS)
    for section in ("working", "standing"):
        in_order(found, section, OWN_SUMS, ("drift_sigmas", "max_sigmas"))
        _check_reach(found, section)
    return found


def _check_reach(found: Numbers, section: str) -> None:
    """Check that the strongest evidence still reaches the CUSUM alarm line in few windows.

    The three numbers ``alarm_sum``, ``max_sigmas`` and ``drift_sigmas`` are bounded one by one; only together do they
    give the count.
    """
    numbers = {**OWN_SUMS, **found.get(section, {})}
    windows = numbers["alarm_sum"] / (numbers["max_sigmas"] - numbers["drift_sigmas"])
    most = TIME_FACTOR * OWN_SUMS["alarm_sum"] / (OWN_SUMS["max_sigmas"] - OWN_SUMS["drift_sigmas"])
    if windows > most + 1e-9:
        wanted = f"reached by the strongest evidence in {most:.1f} windows; with this drift_sigmas: {windows:.1f}"
        refuse_field(ModelRefusal.OUT_OF_RANGE, f"{section}.alarm_sum", numbers["alarm_sum"], wanted)


def read_steps(payload: bytes) -> Numbers:
    """Read and check the payload of a ``steps`` model."""
    found = read_numbers(payload, STEPS_SECTIONS)
    in_order(found, "lines", OWN_LASTING, ("min_lasting_seconds", "max_lasting_seconds"))
    return found
