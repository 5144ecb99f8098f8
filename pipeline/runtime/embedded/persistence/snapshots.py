"""Snapshots of an engine's state on disk; only the parts that changed are written.

A generation is a manifest (``snapshot-N.json``) that says where each part is: in its own pack (``parts-N.pack``) or in
an earlier one. The manifest is written last and renamed into place, so a generation exists completely or not at all.
Two generations are kept, so a damaged one loses nothing. Packs are rewritten when more than half of their bytes are
unused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tocsin.pipeline.core.operator import STATE_VERSION, UNCHANGED
from tocsin.pipeline.runtime.embedded.persistence.regular_files import read_regular, remove_old
from tocsin.schemas.errors import SnapshotError

FORMAT_VERSION = 1
KEPT_GENERATIONS_COUNT = 2
_SPARE_BYTES = 1 << 20
_NAME = re.compile(r"snapshot-([0-9]{12})\.json")
_PACK_NAME = re.compile(r"parts-([0-9]{12})\.pack")


class Place(NamedTuple):
    """Location of a part.

    Attributes:
        pack: number of the generation whose pack holds it.
        offset: its first byte in the pack.
        length: its size in bytes.
        digest: hexadecimal digest of its bytes.
    """

    pack: int
    offset: int
    length: int
    digest: str


@dataclass(frozen=True, slots=True)
class Generation:
    """One snapshot.

    Attributes:
        manifest_index: number of its manifest.
        journal_index: number of the journal segment that continues from it.
        tick_ns: the newest tick processed before it.
        state_version: state version of its parts.
        places: part name -> location.
    """

    manifest_index: int
    journal_index: int
    tick_ns: int
    state_version: int = STATE_VERSION
    places: Mapping[str, Place] = field(default_factory=dict)


class SnapshotFiles:
    """The snapshot generations in one folder; written by one thread only."""

    def __init__(self, folder: Path) -> None:
        """Start without loading a generation.

        Args:
            folder: an existing folder.
        """
        self._folder = folder
        self._newest: Generation | None = None
        self._kept: list[Generation] = []
        self._number = max((*self.numbers(), *_numbers(folder, _PACK_NAME)), default=0)

    @property
    def newest(self) -> Generation | None:
        """The generation that was written or resumed last, None = none."""
        return self._newest

    @property
    def known(self) -> frozenset[str]:
        """Names of the parts in the newest generation."""
        return frozenset() if self._newest is None else frozenset(self._newest.places)

    def numbers(self) -> list[int]:
        """Return the numbers of the generations on disk, newest first."""
        return sorted(_numbers(self._folder, _NAME), reverse=True)

    def manifest(self, number: int) -> Generation:
        """Read the manifest of a generation.

        Raises:
            SnapshotError: it is damaged, or in a format that this program does not read.
        """
        path = self._manifest_path(number)
        try:
            crc, _, body = read_regular(path).partition(b"\n")
            if int(crc, 16) != zlib.crc32(body):
                raise SnapshotError(f"{path}: its checksum is another one")
            found: dict[str, Any] = json.loads(body)
            if found["format"] != FORMAT_VERSION:
                raise SnapshotError(f"{path}: format {found['format']}, this program reads {FORMAT_VERSION}")
            places = {name: Place(*place) for name, place in found["parts"].items()}
            numbers = [found["journal"], found["tick_ns"], found["state_version"]]
            numbers += [number for place in places.values() for number in place[:3]]
            if not all(type(number) is int for number in numbers):
                raise SnapshotError(f"{path}: what must be a number is none")
            return Generation(number, found["journal"], found["tick_ns"], found["state_version"], places)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SnapshotError(f"{path} cannot be read: {error}") from error

    def load(self, generation: Generation) -> dict[str, bytes]:
        """Return all parts of a generation.

        Raises:
            SnapshotError: a part is missing or damaged.
        """
        parts = {}
        for pack in sorted({place.pack for place in generation.places.values()}):
            try:
                data = read_regular(self._pack_path(pack))
            except OSError as error:
                raise SnapshotError(f"{self._pack_path(pack)} cannot be read: {error}") from error
            for name, place in generation.places.items():
                if place.pack != pack:
                    continue
                parts[name] = data[place.offset : place.offset + place.length]
                if _digest(parts[name]) != place.digest:
                    raise SnapshotError(f"{self._pack_path(pack)}: part {name!r} is damaged")
        return parts

    def resume(self, generation: Generation) -> None:
        """Continue from a loaded generation, so that its unchanged parts are not written again."""
        self._newest = generation
        self._kept = [generation]

    def write(self, parts: Mapping[str, bytes], journal: int, tick_ns: int) -> tuple[Generation, int]:
        """Write the changed parts and a manifest, then remove files that no kept generation needs.

        Args:
            parts: the complete state; ``UNCHANGED`` stands for a part of the newest generation.
            journal: number of the journal segment that continues from here.
            tick_ns: the newest processed tick.

        Returns:
            The new generation, and the number of bytes written.

        Raises:
            OSError: the disk refuses; the newest generation stays the one before.
            SnapshotError: a part is ``UNCHANGED`` but was never written, or an older pack was damaged meanwhile.
        """
        number = self._number = self._number + 1
        old = self._newest.places if self._newest is not None else {}
        changed: dict[str, bytes] = {}
        places: dict[str, Place] = {}
        for name, data in parts.items():
            if data == UNCHANGED:
                if name not in old:
                    raise SnapshotError(f"part {name!r} is said to be unchanged, and was never written")
                places[name] = old[name]
                continue
            digest = _digest(data)
            if name in old and old[name].digest == digest and old[name].length == len(data):
                places[name] = old[name]
            else:
                changed[name] = data
        if self._is_wasteful(places):
            changed.update(self.load(Generation(number, journal, tick_ns, places=places)))
            places.clear()
        places.update(self._write_pack(number, changed))
        generation = Generation(number, journal, tick_ns, places=places)
        written = sum(map(len, changed.values())) + self._write_manifest(generation)
        self._kept = [generation, *self._kept][:KEPT_GENERATIONS_COUNT]
        self._newest = generation
        self._remove_others()
        return generation, written

    @property
    def first_journal(self) -> int:
        """Number of the oldest journal segment that a kept generation needs."""
        return min((one.journal_index for one in self._kept), default=0)

    def _is_wasteful(self, places: Mapping[str, Place]) -> bool:
        """Return whether more than half of the bytes in the packs that hold these parts are unused."""
        used = sum(place.length for place in places.values())
        held = 0
        for pack in {place.pack for place in places.values()}:
            with contextlib.suppress(OSError):
                held += self._pack_path(pack).stat().st_size
        return held > 2 * used + _SPARE_BYTES

    def _write_pack(self, number: int, parts: Mapping[str, bytes]) -> dict[str, Place]:
        """Write parts to a new pack and return part name -> location."""
        places, offset = {}, 0
        if not parts:
            return {}
        with _create(self._pack_path(number)) as file:
            for name, data in parts.items():
                file.write(data)
                places[name] = Place(number, offset, len(data), _digest(data))
                offset += len(data)
            file.flush()
            os.fsync(file.fileno())
        return places

    def _write_manifest(self, generation: Generation) -> int:
        """Write a generation's manifest, rename it into place, and return its size in bytes."""
        body = json.dumps(
            {
                "format": FORMAT_VERSION,
                "state_version": generation.state_version,
                "journal": generation.journal_index,
                "tick_ns": generation.tick_ns,
                "parts": generation.places,
            },
            separators=(",", ":"),
        ).encode()
        path = self._manifest_path(generation.manifest_index)
        new = path.with_suffix(".new")
        with _create(new) as file:
            file.write(b"%08x\n" % zlib.crc32(body) + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)  # noqa: PTH105  # the whole generation is there, or the one before it
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return len(body)

    def _remove_others(self) -> None:
        """Remove the manifests and packs that no kept generation needs."""
        kept = {one.manifest_index for one in self._kept}
        packs = {place.pack for one in self._kept for place in one.places.values()}
        for number in self.numbers():
            if number not in kept:
                remove_old(self._manifest_path(number))
        for number in _numbers(self._folder, _PACK_NAME):
            if number not in packs:
                remove_old(self._pack_path(number))

    def _manifest_path(self, number: int) -> Path:
        return self._folder / f"snapshot-{number:012d}.json"

    def _pack_path(self, number: int) -> Path:
        return self._folder / f"parts-{number:012d}.pack"


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    """Return the numbers in the names of the folder's files that match the pattern."""
    return [int(found[1]) for path in folder.iterdir() if (found := pattern.fullmatch(path.name))]


def _create(path: Path) -> Any:
    """Open a file for writing, readable by its owner only; leftovers of a killed process are overwritten."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe is refused
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def _digest(data: bytes) -> str:
    """Return the hexadecimal digest of a part."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
