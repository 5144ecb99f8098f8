"""A whole Minder model as bytes: limits, order of metrics, threshold, and the LSTM-VAEs of ``lstm_vae_file``."""

from __future__ import annotations

import math
from typing import Final

from tocsin.models.lstm_vae import Limits, LstmVae
from tocsin.models.lstm_vae_file import decode_vae, encode_vae
from tocsin.models.minder import MinderModel
from tocsin.models.sealed import refuse, seal, unseal
from tocsin.schemas.reasons import ModelRefusal

MAGIC: Final = b"TCMDR"
FORMAT_VERSION: Final = 1
_INTEGRATED: Final = ""
"""Stands where a metric's name stands: the model of all of them."""


def encode_minder(model: MinderModel) -> bytes:
    """Write a model; the same model always gives the same bytes."""
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
    """Read what ``encode_minder`` wrote.

    Raises:
        ModelRefusedError: it is cut short, damaged, newer than this program, or does not fit together.
    """
    head, body = unseal(data, MAGIC, FORMAT_VERSION)
    try:
        limits = {str(name): Limits(float(low), float(high)) for name, (low, high) in head["limits"].items()}
        priority = tuple(str(name) for name in head["priority"])
        threshold, version = float(head["threshold_sigmas"]), str(head["version"])
        of_variants = {str(name): float(value) for name, value in head.get("variant_sigmas", {}).items()}
        sizes = [(str(name), int(size)) for name, size in head["parts"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"its head lacks or garbles {error}")
    for name, value in {"threshold_sigmas": threshold, **of_variants}.items():
        if not 0 < value < math.inf:
            refuse(ModelRefusal.OUT_OF_RANGE, f"{name} = {value:g}: must be above 0 and finite")
    for name in priority:
        if name not in limits or not _ascend(limits[name]):
            refuse(ModelRefusal.OUT_OF_RANGE, f"limits of {name}: must be there and ascend")
    if sum(size for _, size in sizes) != len(body) or any(size < 0 for _, size in sizes):
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"{len(body)} bytes of models: must be as many as its head says")
    vaes: dict[str, LstmVae] = {}
    place = 0
    for name, size in sizes:
        part = body[place : place + size]
        vaes[name] = decode_vae(part, None if name == _INTEGRATED else (name,))
        place += size
    integrated = vaes.pop(_INTEGRATED, None)
    return MinderModel(limits, vaes, integrated, priority, threshold, version, of_variants)


def _ascend(limits: Limits) -> bool:
    return math.isfinite(limits.low) and math.isfinite(limits.high) and limits.low < limits.high
