"""Binds the servers of PyFlink's Beam to loopback, by changing one class of Flink's Python jar.

A TaskManager talks with its Python workers over six gRPC ports without authentication. The workers are its own
children and get the address ``localhost:PORT``. But Beam binds to all interfaces (``NettyServerBuilder.forPort``).
Anybody who can reach the machine could therefore read any file that the TaskManager can. No setting changes that.

This module changes one instruction in the one class that binds: ``forPort(address.getPort())`` becomes
``forAddress(address)``, where the address is already a loopback address. The jar with the changed class replaces the
original one when Flink runs.

``python -m tocsin.cli.cluster.beam_loopback FROM TO`` writes such a jar, for container images.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from tocsin.cli.cluster.jars import cache_folder
from tocsin.schemas.errors import EngineError

CLASS: Final = "org/apache/beam/sdk/fn/server/ServerFactory$InetSocketAddressServerFactory.class"
_JAR: Final = "flink-python-*.jar"
_MAGIC: Final = 0xCAFEBABE
_UTF8, _NAME_AND_TYPE, _METHOD = 1, 12, 10
_SIZES: Final = {
    3: 4,
    4: 4,
    5: 8,
    6: 8,
    7: 2,
    8: 2,
    9: 4,
    10: 4,
    11: 4,
    12: 4,
    15: 3,
    16: 2,
    17: 4,
    18: 4,
    19: 2,
    20: 2,
}
"""Bytes of each kind of constant in a class file, by tag; the tag itself is not counted."""
_ALOAD_1, _NOP, _INVOKE_VIRTUAL, _INVOKE_STATIC = 0x2B, 0x00, 0xB6, 0xB8


class UnknownJarError(EngineError):
    """Raised when a jar is not the version that this module knows how to change."""

    reason = "unknown_jar"


def patched(data: bytes) -> bytes:
    """Return the class file changed so that the server binds only to the address that it is given.

    Args:
        data: the original class file of ``CLASS``.

    Raises:
        UnknownJarError: it is not the known class.
    """
    constants, end = _constants(data)
    get_port = _method(constants, b"InetSocketAddress", b"getPort")
    for_port = _method(constants, b"NettyServerBuilder", b"forPort")
    if get_port is None or for_port is None:
        raise UnknownJarError(f"{CLASS}: does not call getPort and forPort; is this apache-flink 2.2?")
    before = struct.pack(">BBHBH", _ALOAD_1, _INVOKE_VIRTUAL, get_port, _INVOKE_STATIC, for_port)
    if data.count(before) != 1:
        raise UnknownJarError(f"{CLASS}: calls forPort(getPort()) {data.count(before)} times, not once")
    owner, name_and_type = struct.unpack(">HH", constants[for_port][1])
    returned = constants[struct.unpack(">HH", constants[name_and_type][1])[1]][1].partition(b")")[2]
    count = struct.unpack(">H", data[8:10])[0]
    added = (
        _utf8(b"forAddress")
        + _utf8(b"(Ljava/net/SocketAddress;)" + returned)
        + struct.pack(">BHH", _NAME_AND_TYPE, count, count + 1)
        + struct.pack(">BHH", _METHOD, owner, count + 2)
    )
    after = struct.pack(">BBBBBH", _ALOAD_1, _NOP, _NOP, _NOP, _INVOKE_STATIC, count + 3)
    rest = data[end:].replace(before, after)
    return data[:8] + struct.pack(">H", count + 4) + data[10:end] + added + rest


def write_jar(source: Path, target: Path) -> None:
    """Copy a jar with the class changed; the target appears only once it is complete.

    Raises:
        UnknownJarError: the jar is not the known one.
        EngineError: the source cannot be read or the target cannot be written.
    """
    try:
        number, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        os.close(number)
    except OSError as error:
        raise EngineError(f"{target.parent} cannot be written to: {error.strerror}") from error
    try:
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
            if CLASS not in old.namelist():
                raise UnknownJarError(f"{source} has no {CLASS}")
            for entry in old.infolist():
                content = old.read(entry)
                new.writestr(entry, patched(content) if entry.filename == CLASS else content, compresslevel=1)
        Path(name).chmod(0o644)
        Path(name).rename(target)
    except (OSError, zipfile.BadZipFile) as error:
        raise EngineError(f"{source} cannot be written anew as {target}: {error}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def opt_folder(home: Path) -> Path:
    """Return a folder with the changed jar, for ``FLINK_OPT_DIR``; it is made once, in the user's cache.

    Args:
        home: Flink's home folder.

    Raises:
        UnknownJarError: this Flink's jar is not the known one.
        EngineError: the jar is missing, or the folder cannot be written.
    """
    source = next((home / "opt").glob(_JAR), None)
    if source is None:
        raise EngineError(f"{home / 'opt'} holds no {_JAR}: is this apache-flink?")
    seen = source.stat()
    known = f"{source.name} {seen.st_size} {seen.st_mtime_ns} {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}"
    folder = cache_folder() / f"flink-opt-{hashlib.sha256(known.encode()).hexdigest()[:12]}"
    target = folder / source.name
    if not target.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(f"{folder} cannot be made: {error.strerror}") from error
        write_jar(source, target)
    return folder


def _constants(data: bytes) -> tuple[dict[int, tuple[int, bytes]], int]:
    """Parse a class file's constant pool: return number -> (tag, content), and the offset where the pool ends."""
    try:
        magic, _, count = struct.unpack(">IIH", data[:10])
        if magic != _MAGIC:
            raise UnknownJarError(f"{CLASS}: is no Java class")
        position, number, found = 10, 1, dict[int, tuple[int, bytes]]()
        while number < count:
            tag = data[position]
            begin = position + (3 if tag == _UTF8 else 1)
            size = struct.unpack(">H", data[position + 1 : begin])[0] if tag == _UTF8 else _SIZES[tag]
            found[number] = tag, data[begin : begin + size]
            position, number = begin + size, number + (2 if tag in {5, 6} else 1)  # long and double count twice
    except (IndexError, KeyError, struct.error) as error:
        raise UnknownJarError(f"{CLASS}: its constants cannot be read ({error!r})") from error
    return found, position


def _method(constants: dict[int, tuple[int, bytes]], owner: bytes, name: bytes) -> int | None:
    """Return the number of the constant that refers to a class's method, None: it is absent.

    Args:
        constants: number -> (tag, content).
        owner: last part of the class's name.
        name: the method.
    """
    for number, (tag, content) in constants.items():
        if tag == _METHOD:
            class_number, named = struct.unpack(">HH", content)
            of_class = constants[struct.unpack(">H", constants[class_number][1])[0]][1]
            found = constants[struct.unpack(">H", constants[named][1][:2])[0]][1]
            if found == name and of_class.rpartition(b"/")[2] == owner:
                return number
    return None


def _utf8(text: bytes) -> bytes:
    """Return a class file's UTF-8 constant with this text."""
    return struct.pack(">BH", _UTF8, len(text)) + text


if __name__ == "__main__":
    write_jar(Path(sys.argv[1]), Path(sys.argv[2]))
