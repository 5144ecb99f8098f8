"""Model cards: what a registry stores about a model besides its bytes, ``card.json``.

Cards and models are read as data: JSON, and bytes whose SHA-256 is the card's. Nothing is unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from tocsin.schemas.errors import FieldError, RegistryError, SchemaError
from tocsin.schemas.model_announcement import BUILTIN_VERSION, DEFAULT_FORMAT, content_hash
from tocsin.schemas.reasons import RegistryRefusal
from tocsin.schemas.wire.validate import ObjectReader, dump_json, load_json

BUILTIN: Final = BUILTIN_VERSION
CARD_VERSION: Final = 1
MAX_CARD_BYTES: Final = 1 << 20
_DETECTOR: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_VERSION: Final = re.compile(r"\d{8}-[0-9a-f]{8}")
_FORMAT: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}/[1-9]\d{0,8}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_PARTS: Final = ("training", "settings", "thresholds", "metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The origin and quality of one model.

    Attributes:
        detector: detector of the model.
        format: format word of the payload: name, "/", number.
        trained_at: time of the training, UTC, ISO 8601.
        code_version: version of the program that trained it (``provenance.code_version``).
        seed: seed of the training.
        training: ``fingerprint`` (``provenance.fingerprint_of``), ``recordings``, ``machine_days``, ``faults``,
            ``source``.
        settings: settings of the training.
        thresholds: fitted values.
        metrics: figures on the training and validation recordings, with the names of ``tocsin score --json``.
        version: day of training and the payload's hash; ``Registry.add`` fills it in.
        content_hash: sha256 of the payload; ``Registry.add`` fills it in.
    """

    detector: str
    format: str
    trained_at: str
    code_version: str
    seed: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    content_hash: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the card represents the detector's default settings, without a payload."""
        return self.format == DEFAULT_FORMAT


def is_detector(name: str) -> bool:
    """Return whether a folder's name can be a detector's."""
    return _DETECTOR.fullmatch(name) is not None


def is_version(name: str) -> bool:
    """Return whether a folder's name can be a version's."""
    return _VERSION.fullmatch(name) is not None


def named(card: ModelCard, payload: bytes) -> ModelCard:
    """Return the card with version and hash filled in for these bytes.

    Raises:
        FieldError: a field of the card is invalid.
    """
    digest = content_hash(payload)
    day = _utc(card.trained_at, "card.trained_at").strftime("%Y%m%d")
    return read_card(write_card(replace(card, version=f"{day}-{digest[:8]}", content_hash=digest)), "card")


def own_settings(detector: str, code_version: str) -> ModelCard:
    """Return the card of a detector's default settings, which apply if nothing is announced."""
    return ModelCard(
        detector=detector,
        format=DEFAULT_FORMAT,
        trained_at="",
        code_version=code_version,
        version=BUILTIN,
        content_hash=content_hash(b""),
    )


def write_card(card: ModelCard) -> bytes:
    """Return the text of ``card.json``; the same card always gives the same bytes.

    Raises:
        FieldError: a value cannot be written as JSON (NaN, for example).
    """
    return dump_json({"card_version": CARD_VERSION, **asdict(card)}, "card") + b"\n"


def read_card(data: bytes, file: str) -> ModelCard:
    """Parse ``card.json``.

    Args:
        data: content of the file.
        file: name of the file, for errors.

    Raises:
        RegistryError: the data is cut short, damaged, newer than this program, or no card.
        FieldError: a field is missing or has a wrong value (only where ``file`` is "card").
    """
    try:
        return _read_card(ObjectReader(load_json(data, "card"), "card"))
    except FieldError as error:
        if file == "card":
            raise
        raise RegistryError(RegistryRefusal.CARD_UNREADABLE.value, file, str(error)) from error
    except SchemaError as error:
        raise RegistryError(RegistryRefusal.CARD_UNREADABLE.value, file, f"{error} (cut short?)") from error


def _read_card(values: ObjectReader) -> ModelCard:
    """Read the fields of a card."""
    version = values.integer("card_version", 1)
    if version > CARD_VERSION:
        raise FieldError("card.card_version", version, f"{CARD_VERSION} at most: this program is older than the card")
    _utc(values.text("trained_at"), "card.trained_at")
    parts = {key: values.mapping(key) for key in _PARTS}
    return ModelCard(
        detector=_matching(values, "detector", _DETECTOR, "lower-case letters and digits"),
        format=_matching(values, "format", _FORMAT, "a name, / and a number, e.g. peers/1"),
        trained_at=values.text("trained_at"),
        code_version=values.name("code_version"),
        seed=values.integer("seed", 0),
        version=_version(values),
        content_hash=_matching(values, "content_hash", _HASH, "64 hexadecimal digits"),
        **parts,
    )


def _matching(values: ObjectReader, key: str, pattern: re.Pattern[str], must: str) -> str:
    """Return a text field that must match a pattern."""
    text = values.text(key)
    if pattern.fullmatch(text) is None:
        raise FieldError(values.field(key), text, must)
    return text


def _version(values: ObjectReader) -> str:
    """Return the version of a card."""
    text = values.text("version")
    if text != BUILTIN and not is_version(text):
        raise FieldError(values.field("version"), text, f"YYYYMMDD-HHHHHHHH, or {BUILTIN}")
    return text


def _utc(text: str, name: str) -> datetime:
    """Return the time in a text with a time zone, as UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise FieldError(name, text, "a time, e.g. 2026-11-21T10:00:00+00:00") from None
    if found.tzinfo is None:
        raise FieldError(name, text, "a time with its zone, e.g. 2026-11-21T10:00:00+00:00")
    return found.astimezone(UTC)
