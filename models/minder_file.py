"""File format of a Minder model: a sealed head with limits, metric order and thresholds, then its LSTM-VAEs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from tocsin.models.lstm_vae import WINDOW_TICKS, Limits, LstmVae
from tocsin.models.lstm_vae_file import arrays_of, decode_vae, encode_vae
from tocsin.models.minder import MinderModel, Variant
from tocsin.models.sealed import refuse, seal, unseal
from tocsin.schemas.metrics import BUILTIN_TABLE, Metric, possible_range
from tocsin.schemas.reasons import ModelRefusal

MAGIC: Final = b"TCMDR"
FORMAT_VERSION: Final = 1
FORMAT_NAME: Final = "minder/1"
"""The format word of a ``minder`` model in registries."""
MAX_METRICS: Final = 32
"""Most metrics of a model that a running engine takes."""
MAX_HIDDEN_SIZE, MAX_LATENT_SIZE = 16, 32
"""Largest network that a running engine takes: four times the paper's, sixteen times its work."""
MAX_WEIGHT: Final = 1000.0
"""Largest weight: gates are saturated at a hundredth of it."""
MIN_WIDTH, MIN_CUSTOM_WIDTH = 1e-3, 1e-18
"""Least distance of a metric's limits, in its unit: of a built-in metric a thousandth, finer than any source tells it
(a milliwatt, a packet in a quarter hour); of users' metrics, whose unit nobody knows, the inverse of the largest value
that they may have. Between closer limits all values would be far outside, and all machines alike."""
_BUILTIN: Final = {metric.name: metric for metric in (*BUILTIN_TABLE.gpu, *BUILTIN_TABLE.host)}
_INTEGRATED: Final = ""
"""Name of the all-metrics model in the list of parts, where other parts have their metric's name."""


def encode_minder(model: MinderModel) -> bytes:
    """Return a Minder model as a file; the same model always gives the same bytes."""
    parts = {name: encode_vae(vae) for name, vae in sorted(model.single.items())}
    if model.integrated is not None:
        parts[_INTEGRATED] = encode_vae(model.integrated)
    head = {
        "limits": {name: [limits.low, limits.high] for name, limits in model.limits.items()},
        "priority": list(model.priority),
        "threshold_sigmas": model.threshold_sigmas,
        "version": model.version,
        "variant_sigmas": dict(sorted(model.variant_sigmas.items())),
        "parts": [[name, len(data)] for name, data in parts.items()],
    }
    return seal(MAGIC, FORMAT_VERSION, head, b"".join(parts.values()))


def decode_minder(data: bytes) -> MinderModel:
    """Read a file of ``encode_minder``.

    Raises:
        ModelRefusedError: the file is cut short, damaged, newer than this program, or inconsistent: a window that is
            not the procedure's, a metric of the order that occurs twice or has no LSTM-VAE, limits that do not ascend
            or differ from those of the LSTM-VAE, a threshold that is not positive and finite.
    """
    head, body = unseal(data, MAGIC, FORMAT_VERSION)
    try:
        limits = {name: _limits(ends, f"limits of {name}") for name, ends in head["limits"].items()}
        priority = _listed(head["priority"])
        threshold, version = _number(head["threshold_sigmas"], "threshold_sigmas"), str(head["version"])
        variants = head.get("variant_sigmas", {})
        of_variants = {name: _number(value, f"variant_sigmas.{name}") for name, value in variants.items()}
        sizes = [(str(name), int(size)) for name, size in head["parts"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"its head lacks or garbles {error}")
    _check_sigmas("threshold_sigmas", threshold)
    for name, value in of_variants.items():
        if name not in get_args(Variant):
            refuse(ModelRefusal.OUT_OF_RANGE, f"variant_sigmas: no variant is called {name!r}")
        _check_sigmas(f"variant_sigmas.{name}", value)
    _check_limits(limits)
    vaes = dict(_cut(body, sizes))
    integrated = vaes.pop(_INTEGRATED, None)
    for vae in (*vaes.values(), *(() if integrated is None else (integrated,))):
        _check_vae(vae, limits)
    _check_priority(priority, vaes)
    return MinderModel(limits, vaes, integrated, priority, threshold, version, of_variants)


def decode_live_minder(data: bytes) -> MinderModel:
    """Read a file of ``encode_minder`` for a running engine, where each network runs over all machines in each slice.

    Raises:
        ModelRefusedError: as ``decode_minder``; or there are too many metrics, a network is too large, or a weight
            is so large that it can only saturate; or the limits of a metric are such that no value of it lies between
            them, or all look alike.
    """
    model = decode_minder(data)
    for name, limits in model.limits.items():
        _check_possible(name, limits)
    if len(model.priority) > MAX_METRICS:
        refuse(
            ModelRefusal.OUT_OF_RANGE, f"priority names {len(model.priority)} metrics: must be {MAX_METRICS} at most"
        )
    for name in model.priority:
        vae = model.single[name]
        hidden, latent = max(vae.encoder.hidden_size, vae.decoder.hidden_size), len(vae.latent_bias)
        if hidden > MAX_HIDDEN_SIZE or latent > MAX_LATENT_SIZE:
            found, wanted = f"hidden {hidden}, latent {latent}", f"{MAX_HIDDEN_SIZE} and {MAX_LATENT_SIZE} at most"
            refuse(ModelRefusal.OUT_OF_RANGE, f"LSTM-VAE of {name}: {found}: must be {wanted}")
        largest = max(float(abs(values).max()) for _, values in arrays_of(vae))
        if largest > MAX_WEIGHT:
            refuse(
                ModelRefusal.OUT_OF_RANGE,
                f"LSTM-VAE of {name}: a weight of {largest:g}: must be {MAX_WEIGHT:g} at most",
            )
    return model


def _check_possible(name: str, limits: Limits) -> None:
    """Refuse limits beyond what the metric can be (``possible_range``), or closer than its source tells it."""
    low, high = possible_range(_BUILTIN.get(name, Metric(name, "host")))
    if not low <= limits.low < limits.high <= high:
        found, wanted = f"{limits.low:g} to {limits.high:g}", f"within what it can be, {low:g} to {high:g}"
        refuse(ModelRefusal.OUT_OF_RANGE, f"limits of {name} = {found}: must be {wanted}")
    least = MIN_WIDTH if name in _BUILTIN else MIN_CUSTOM_WIDTH
    if limits.high - limits.low < least:
        found = f"{limits.low:g} to {limits.high:g}"
        refuse(ModelRefusal.OUT_OF_RANGE, f"limits of {name} = {found}: must be {least:g} apart at least")


def _number(value: Any, field: str) -> float:
    """Return the value as a float; raise ``TypeError`` if it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} = {str(value)[:80]!r}: must be a number")
    return float(value)


def _limits(ends: Any, field: str) -> Limits:
    """Return a list of two numbers as normalisation limits; raise ``TypeError`` for anything else."""
    if not isinstance(ends, list) or len(ends) != 2:
        raise TypeError(f"{field} = {str(ends)[:80]!r}: must be two numbers")
    return Limits(_number(ends[0], field), _number(ends[1], field))


def _listed(names: Any) -> tuple[str, ...]:
    """Return a list of strings as a tuple; raise ``TypeError`` for anything else."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"priority = {str(names)[:80]!r}: must be a list of metrics")
    return tuple(names)


def _check_sigmas(field: str, value: float) -> None:
    """Refuse a threshold that is not above 0 and finite."""
    if not 0 < value < math.inf:
        refuse(ModelRefusal.OUT_OF_RANGE, f"{field} = {value:g}: must be above 0 and finite")


def _check_limits(limits: Mapping[str, Limits]) -> None:
    """Refuse limits that are not finite or do not ascend."""
    for name, ends in limits.items():
        if not 0 < ends.high - ends.low < math.inf:
            text = f"limits of {name} = {ends.low:g} to {ends.high:g}: must be finite and ascend"
            refuse(ModelRefusal.OUT_OF_RANGE, text)


def _cut(body: bytes, sizes: Sequence[tuple[str, int]]) -> Iterator[tuple[str, LstmVae]]:
    """Yield (metric, LSTM-VAE) for each part of the body."""
    parts = dict(sizes)
    if len(parts) != len(sizes):
        name, count = Counter(name for name, _ in sizes).most_common(1)[0]
        text = f"parts name {name or 'the model of all metrics'} {count} times: must name each once"
        refuse(ModelRefusal.MODEL_UNDECODABLE, text)
    if sum(parts.values()) != len(body) or any(size < 0 for size in parts.values()):
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"{len(body)} bytes of models: must be as many as its head says")
    place = 0
    for name, size in parts.items():
        yield name, decode_vae(body[place : place + size], None if name == _INTEGRATED else (name,))
        place += size


def _check_vae(vae: LstmVae, limits: Mapping[str, Limits]) -> None:
    """Refuse an LSTM-VAE whose window is not the procedure's or whose limits differ from the model's."""
    of = f"LSTM-VAE of {', '.join(vae.metrics)}"
    if vae.window_ticks != WINDOW_TICKS:
        refuse(ModelRefusal.OUT_OF_RANGE, f"{of}: window_ticks = {vae.window_ticks}: must be {WINDOW_TICKS}")
    for name, own in zip(vae.metrics, vae.limits, strict=True):
        stored = limits.get(name)
        if stored is None:
            refuse(ModelRefusal.OUT_OF_RANGE, f"limits of {name} are missing: must be {own.low:g} to {own.high:g}")
        if stored != own:
            found, wanted = f"{stored.low:g} to {stored.high:g}", f"{own.low:g} to {own.high:g}"
            refuse(ModelRefusal.OUT_OF_RANGE, f"limits of {name} = {found}: must be {wanted}, as its {of} has them")


def _check_priority(priority: tuple[str, ...], vaes: Mapping[str, LstmVae]) -> None:
    """Refuse an order of metrics that is empty, names one twice or names one without an LSTM-VAE."""
    if not priority:
        refuse(ModelRefusal.OUT_OF_RANGE, "priority = []: must name a metric at least")
    for name, count in Counter(priority).items():
        if count > 1:
            refuse(ModelRefusal.OUT_OF_RANGE, f"priority names {name} {count} times: must name each metric once")
        if name not in vaes:
            text = f"priority names {name}: must be one that it has an LSTM-VAE of ({', '.join(vaes) or 'it has none'})"
            refuse(ModelRefusal.OUT_OF_RANGE, text)
