"""The registry: models by detector and version, in a folder or in an object store.

Layout::

    REGISTRY/DETECTOR/VERSION/model.bin      the payload, exactly the bytes that are announced
    REGISTRY/DETECTOR/VERSION/card.json      ``ModelCard``; written last, so a version without it is incomplete
    REGISTRY/DETECTOR/VERSION/refused.json   only if somebody marked the version as not to be used
    REGISTRY/DETECTOR/current.json           which version was promoted, when, on what figures

Models and cards are written once and never changed; ``current.json`` is replaced atomically. So readers need no
lock, and of two concurrent promotions the later one wins.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from tocsin.pipeline.lab.registry.builtin import (
    CARD_FILE,
    MODEL_FILE,
    builtin_cards,
    builtin_payload,
    checked,
)
from tocsin.pipeline.lab.registry.card import (
    BUILTIN,
    MAX_CARD_BYTES,
    ModelCard,
    is_detector,
    is_version,
    named,
    read_card,
    write_card,
)
from tocsin.pipeline.lab.registry.files import Files
from tocsin.pipeline.lab.registry.readers import check_readable
from tocsin.schemas.errors import ConfigError, ModelRefusedError, RegistryError, SchemaError
from tocsin.schemas.model_announcement import MAX_MODEL_BYTES
from tocsin.schemas.reasons import RegistryRefusal
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.validate import ObjectReader, dump_json, load_json

_LOG = logging.getLogger("tocsin.registry")
CURRENT_FILE: Final = "current.json"
REFUSED_FILE: Final = "refused.json"
OnBad = Callable[[RegistryError], None]
"""Callback with the error of each version that cannot be read."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """The content of ``current.json``: which version of a detector was promoted.

    Attributes:
        version: current version.
        promoted_at: time of the promotion, UTC, ISO 8601.
        previous: version that was current before, None for none.
        figures: figures of the comparison that led to the promotion.
    """

    version: str
    promoted_at: str
    previous: str | None
    figures: Mapping[str, Any]


class Registry:
    """The stored models of all detectors, together with the built-in ones as version ``builtin``."""

    def __init__(self, files: Files, now_ns: Callable[[], int] = time.time_ns) -> None:
        """Use these files; ``now_ns`` returns the time."""
        self._files = files
        self._now_ns = now_ns

    @classmethod
    def open(cls, where: str, now_ns: Callable[[], int] = time.time_ns) -> Registry:
        """Open a folder or an address (``s3://``, ``gs://``, ``file://``); one that does not exist yet is empty.

        Raises:
            ConfigError: the text is neither.
        """
        return cls(Files.open(where), now_ns)

    @property
    def where(self) -> str:
        """The place as the user named it."""
        return self._files.where

    # -- models ----------------------------------------------------------------------------------

    def add(self, card: ModelCard, payload: bytes) -> ModelCard:
        """Store a model and return its card with version and hash.

        If the same payload is stored already, that version's card is returned, even if it is marked as refused.

        Args:
            card: without version and hash.
            payload: the model's bytes.

        Raises:
            ConfigError: the payload is empty or too large, or is stored under another format.
            FieldError: a field of the card is invalid.
            ModelRefusedError: the detector cannot read the model (checked if the detector is known, see ``readers``).
            RegistryError: the place cannot be written, or another model has the same version.
        """
        if not 0 < len(payload) <= MAX_MODEL_BYTES:
            raise ConfigError("model", f"{len(payload)} bytes", f"1 to {MAX_MODEL_BYTES} bytes")
        whole = named(card, payload)
        check_readable(whole, payload)
        for other in self.cards(whole.detector):
            if other.content_hash == whole.content_hash and other.version != BUILTIN:
                if other.format != whole.format:
                    raise ConfigError("format", whole.format, f"{other.format}, as {other.version} of the same bytes")
                self._repair(other, payload)
                return other
            if other.version == whole.version:
                text = "another model whose SHA-256 begins alike stands there: train with another seed"
                raise RegistryError(RegistryRefusal.FOREIGN.value, self._files.path(_folder(whole)), text)
        self._files.write(f"{_folder(whole)}/{MODEL_FILE}", payload)
        self._files.write(f"{_folder(whole)}/{CARD_FILE}", write_card(whole))
        return whole

    def _repair(self, card: ModelCard, payload: bytes) -> None:
        """Write a model's bytes again if the stored ones are damaged."""
        try:
            self.payload(card.detector, card.version)
        except RegistryError as error:
            if error.reason == RegistryRefusal.UNREACHABLE:
                raise
            self._files.write(f"{_folder(card)}/{MODEL_FILE}", payload)

    def cards(self, detector: str | None = None, on_bad: OnBad | None = None) -> list[ModelCard]:
        """Return the cards of all models, built-in ones first, then by day of training.

        Args:
            detector: only the models of this detector; None for all.
            on_bad: called with the error of each version that cannot be read; None: it is logged.

        Raises:
            RegistryError: the place itself cannot be read.
        """
        built_in = builtin_cards()
        names = sorted({*built_in, *filter(is_detector, self._files.folders())})
        found = []
        for name in names if detector is None else [detector] if detector in names else []:
            if name in built_in:
                found.append(built_in[name])
            for version in filter(is_version, self._files.folders(name)):
                try:
                    card = self._card(name, version)
                except RegistryError as error:
                    (on_bad or _warn)(error)
                    continue
                if card is not None:
                    found.append(card)
        return found

    def card(self, detector: str, version: str) -> ModelCard:
        """Return the card of one model.

        Raises:
            RegistryError: the model does not exist, or its card cannot be read.
        """
        if version == BUILTIN:
            own = builtin_cards().get(detector)
            return own if own is not None else self._missing(detector, version)
        card = self._card(detector, version) if is_detector(detector) and is_version(version) else None
        return card if card is not None else self._missing(detector, version)

    def payload(self, detector: str, version: str) -> bytes:
        """Return the bytes of one model, checked against its card; b"" for a detector's default settings.

        Raises:
            RegistryError: the model does not exist, or its bytes are damaged.
        """
        card = self.card(detector, version)
        if version == BUILTIN:
            return builtin_payload(card)
        name = f"{_folder(card)}/{MODEL_FILE}"
        return checked(self._files.read(name, MAX_MODEL_BYTES) or b"", card, self._files.path(name))

    def readable(self, detector: str, version: str) -> bytes:
        """Return the bytes of one model after checking that its detector can read them; b"" for its default settings.

        Raises:
            RegistryError: the model does not exist, or its bytes are damaged.
            ModelRefusedError: the bytes are no model of the detector.
        """
        payload = self.payload(detector, version)
        try:
            check_readable(self.card(detector, version), payload)
        except ModelRefusedError as error:
            raise ModelRefusedError(error.reason, f"{detector} {version}: {error}") from error
        return payload

    def _card(self, detector: str, version: str) -> ModelCard | None:
        """Return the card in a version's folder, None if the version is incomplete."""
        name = f"{detector}/{version}/{CARD_FILE}"
        data = self._files.read(name, MAX_CARD_BYTES)
        if data is None:
            return None
        card = read_card(data, self._files.path(name))
        if (card.detector, card.version) != (detector, version):
            text = f"says {card.detector} {card.version}: must say {detector} {version}"
            raise RegistryError(RegistryRefusal.FOREIGN.value, self._files.path(name), text)
        if version.rpartition("-")[2] != card.content_hash[:8]:
            text = f"content_hash = {card.content_hash}: must begin with the digits of its version, {version}"
            raise RegistryError(RegistryRefusal.HASH_MISMATCH.value, self._files.path(name), text)
        return card

    def _missing(self, detector: str, version: str) -> NoReturn:
        """Raise the error for a model that does not exist; it lists the versions that do."""
        there = [card.version for card in self.cards(detector)]
        text = f"no such model in {self.where}"
        text += f": {detector} has {', '.join(there)}" if there else f", and none of {detector}"
        raise RegistryError(RegistryRefusal.NOT_FOUND.value, f"{detector} {version}", text)

    # -- which one is used -----------------------------------------------------------------------

    def current(self, detector: str) -> ModelCard | None:
        """Return the card of the promoted version, None if nothing was ever promoted.

        Raises:
            RegistryError: ``current.json`` or the card cannot be read.
        """
        promotion = self.promotion(detector)
        return None if promotion is None else self.card(detector, promotion.version)

    def in_use(self, detector: str) -> ModelCard | None:
        """Return the card of the promoted version, else of the built-in one; None if there is none.

        Raises:
            RegistryError: ``current.json`` or the card cannot be read.
        """
        current = self.current(detector)
        return builtin_cards().get(detector) if current is None else current

    def promotion(self, detector: str) -> Promotion | None:
        """Return which version was promoted, None if none ever was.

        Raises:
            RegistryError: ``current.json`` cannot be read.
        """
        values = self._object(f"{detector}/{CURRENT_FILE}") if is_detector(detector) else None
        if values is None:
            return None
        name = self._files.path(f"{detector}/{CURRENT_FILE}")
        try:
            previous = None if values.value("previous") is None else values.name("previous")
            return Promotion(values.name("version"), values.text("promoted_at"), previous, values.mapping("figures"))
        except SchemaError as error:
            raise RegistryError(RegistryRefusal.CARD_UNREADABLE.value, name, str(error)) from error

    def promote(self, detector: str, version: str, figures: Mapping[str, Any], *, is_forced: bool = False) -> Promotion:
        """Make a version the current one, without comparing it (``comparison`` does that).

        Args:
            detector: the detector.
            version: version to promote; ``builtin`` for the built-in model.
            figures: figures that led to the promotion, stored for later reference.
            is_forced: whether to replace a ``current.json`` that cannot be read; the previous version is then unknown.

        Raises:
            RegistryError: the model does not exist, is damaged or marked as refused, or ``current.json`` cannot be
                read.
            ModelRefusedError: the detector cannot read the model.
            FieldError: the figures cannot be written as JSON.
        """
        self.readable(detector, version)
        self.check_not_refused(detector, version)
        try:
            before = self.promotion(detector)
        except RegistryError:
            if not is_forced:
                raise
            before = None
        new = Promotion(version, self._now(), None if before is None else before.version, figures)
        fields = {"promoted_at": new.promoted_at, "previous": new.previous, "figures": new.figures}
        self._write(f"{detector}/{CURRENT_FILE}", {"version": version, **fields})
        return new

    def check_unchanged(self, detector: str, before: Promotion | None) -> None:
        """Check that a detector's promotion is still ``before``, because a comparison takes minutes.

        Raises:
            RegistryError: something was promoted since.
        """
        after = self.promotion(detector)
        if after != before:
            now = "nothing" if after is None else after.version
            text = f"{now} became current since the comparison began: compare again"
            where = self._files.path(f"{detector}/{CURRENT_FILE}")
            raise RegistryError(RegistryRefusal.PROMOTED_MEANWHILE.value, where, text)

    def refuse(self, detector: str, version: str, reason: str) -> None:
        """Mark a version as not to be promoted or announced; engines that already use it continue to.

        Raises:
            RegistryError: the model does not exist, or is built in.
        """
        card = self.card(detector, version)
        if version == BUILTIN:
            text = "part of the program: promote or announce another one"
            raise RegistryError(RegistryRefusal.BUILT_IN.value, f"{detector} {version}", text)
        self._write(f"{_folder(card)}/{REFUSED_FILE}", {"reason": reason, "at": self._now()})

    def refusal(self, detector: str, version: str) -> str | None:
        """Return why a version was marked as refused, None if it was not.

        Raises:
            RegistryError: the mark cannot be read.
        """
        name = f"{detector}/{version}/{REFUSED_FILE}"
        values = self._object(name) if is_detector(detector) and is_version(version) else None
        try:
            return None if values is None else values.text("reason")
        except SchemaError as error:
            raise RegistryError(RegistryRefusal.CARD_UNREADABLE.value, self._files.path(name), str(error)) from error

    def check_not_refused(self, detector: str, version: str) -> None:
        """Check that a version is not marked as refused.

        Raises:
            RegistryError: it is marked.
        """
        reason = self.refusal(detector, version)
        if reason is not None:
            text = f"marked as refused: {reason}"
            raise RegistryError(RegistryRefusal.MARKED_REFUSED.value, f"{detector} {version}", text)

    def _object(self, name: str) -> ObjectReader | None:
        """Return a reader of a JSON file, None if it does not exist."""
        data = self._files.read(name, MAX_CARD_BYTES)
        if data is None:
            return None
        try:
            return ObjectReader(load_json(data, "file"), "file")
        except SchemaError as error:
            raise RegistryError(RegistryRefusal.CARD_UNREADABLE.value, self._files.path(name), str(error)) from error

    def _write(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a JSON file."""
        self._files.write(name, dump_json(values, "file") + b"\n")

    def _now(self) -> str:
        """Return the present time as UTC, ISO 8601."""
        return datetime.fromtimestamp(self._now_ns() // NS_PER_SECOND, UTC).isoformat()


def _folder(card: ModelCard) -> str:
    """Return the folder of a version, relative to the registry."""
    return f"{card.detector}/{card.version}"


def _warn(error: RegistryError) -> None:
    """Log a version that cannot be read."""
    _LOG.warning("a model of the registry cannot be read", extra={"file": error.file, "error": str(error)})
