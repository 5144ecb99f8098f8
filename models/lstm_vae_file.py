"""File format of an LSTM-VAE: a sealed head with metrics, limits, window and shapes, then float32 arrays.

The arrays follow one after the other, little-endian. A model of one metric takes about 2 kB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.models.lstm_vae import Limits, Lstm, LstmVae
from tocsin.models.sealed import refuse, seal, unseal
from tocsin.schemas.reasons import ModelRefusal

MAGIC: Final = b"TCVAE"
FORMAT_VERSION: Final = 1
_MAX_SIZE: Final = 4096
"""Longest side of an array; a damaged head must not ask for gigabytes."""


def encode_vae(model: LstmVae) -> bytes:
    """Return an LSTM-VAE as a file; the same model always gives the same bytes."""
    arrays = dict(arrays_of(model))
    body = b"".join(values.astype("<f4").tobytes() for values in arrays.values())
    head = {
        "metrics": [[name, limits.low, limits.high] for name, limits in zip(model.metrics, model.limits, strict=True)],
        "window_ticks": model.window_ticks,
        "shapes": {name: list(values.shape) for name, values in arrays.items()},
    }
    return seal(MAGIC, FORMAT_VERSION, head, body)


def decode_vae(data: bytes, metrics: Sequence[str] | None = None) -> LstmVae:
    """Read a file of ``encode_vae``.

    Args:
        data: the whole file.
        metrics: metrics that the model must be for; None accepts any.

    Raises:
        ModelRefusedError: the file is cut short, damaged, newer than this program, or for other metrics.
    """
    head, body = unseal(data, MAGIC, FORMAT_VERSION)
    try:
        names = tuple(str(name) for name, _, _ in head["metrics"])
        limits = tuple(Limits(float(low), float(high)) for _, low, high in head["metrics"])
        window_ticks = int(head["window_ticks"])
        shapes = {name: tuple(int(side) for side in head["shapes"][name]) for name in _shapes(1, 1, 1)}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"its head lacks or garbles {error}")
    _check_head(names, limits, window_ticks, shapes)
    if metrics is not None and names != tuple(metrics):
        wanted = ", ".join(metrics)
        refuse(ModelRefusal.OTHER_METRIC, f"it is a model of {', '.join(names)}: must be one of {wanted}")
    wanted_bytes = 4 * sum(math.prod(shape) for shape in shapes.values())
    if len(body) != wanted_bytes:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"{len(body)} bytes of weights: must be {wanted_bytes} (cut short?)")
    return _model(names, limits, window_ticks, dict(_cut(body, shapes)))


def _shapes(width: int, hidden: int, latent: int) -> dict[str, tuple[int, ...]]:
    """Return array name -> shape, in file order.

    Args:
        width: number of metrics.
        hidden: features of each LSTM.
        latent: size of the latent distribution.
    """
    return {
        "encoder.input_weight": (4 * hidden, width),
        "encoder.hidden_weight": (4 * hidden, hidden),
        "encoder.bias": (4 * hidden,),
        "latent_weight": (latent, hidden),
        "latent_bias": (latent,),
        "decoder.input_weight": (4 * hidden, latent),
        "decoder.hidden_weight": (4 * hidden, hidden),
        "decoder.bias": (4 * hidden,),
        "output_weight": (width, hidden),
        "output_bias": (width,),
    }


def _check_head(
    names: tuple[str, ...], limits: tuple[Limits, ...], window_ticks: int, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse a head whose limits, metrics, window or shapes are not valid or do not fit together."""
    for name, limit in zip(names, limits, strict=True):
        if not (math.isfinite(limit.low) and math.isfinite(limit.high) and limit.low < limit.high):
            refuse(ModelRefusal.OUT_OF_RANGE, f"limits of {name} = {limit.low:g} to {limit.high:g}: must ascend")
    if not names or len(set(names)) != len(names):
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"metrics = {list(names)}: must be one or more, each once")
    if not 1 <= window_ticks <= _MAX_SIZE:
        refuse(ModelRefusal.OUT_OF_RANGE, f"window_ticks = {window_ticks}: must be 1 to {_MAX_SIZE}")
    latent, *rest = shapes["latent_weight"] or (0,)
    hidden = rest[0] if len(rest) == 1 else 0
    if not (1 <= hidden <= _MAX_SIZE and 1 <= latent <= _MAX_SIZE):
        refuse(ModelRefusal.OUT_OF_RANGE, f"latent_weight has the shape {shapes['latent_weight']}")
    for name, wanted in _shapes(len(names), hidden, latent).items():
        if shapes[name] != wanted:
            refuse(ModelRefusal.MODEL_UNDECODABLE, f"{name} has the shape {shapes[name]}: must be {wanted}")


def _cut(body: bytes, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield (name, array) for each array of the body; refuse one with a weight that is not finite."""
    place = 0
    for name in _shapes(1, 1, 1):
        count = math.prod(shapes[name])
        values = np.frombuffer(body, "<f4", count, place).astype(np.float32).reshape(shapes[name])
        if not np.isfinite(values).all():
            refuse(ModelRefusal.OUT_OF_RANGE, f"{name} holds a weight that is no number")
        place += 4 * count
        yield name, values


def arrays_of(model: LstmVae) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield (name, array) for each array of a model, in file order."""
    for name in _shapes(1, 1, 1):
        value: Any = model
        for word in name.split("."):
            value = getattr(value, word)
        yield name, value


def _model(
    names: tuple[str, ...], limits: tuple[Limits, ...], window_ticks: int, arrays: Mapping[str, NDArray[np.float32]]
) -> LstmVae:
    """Build an LSTM-VAE from the fields of its head and its arrays by name."""
    layers = {
        layer: Lstm(*(arrays[f"{layer}.{part}"] for part in ("input_weight", "hidden_weight", "bias")))
        for layer in ("encoder", "decoder")
    }
    return LstmVae(
        names,
        limits,
        window_ticks,
        layers["encoder"],
        arrays["latent_weight"],
        arrays["latent_bias"],
        layers["decoder"],
        arrays["output_weight"],
        arrays["output_bias"],
    )
