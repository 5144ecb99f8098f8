"""Files of ours: closed to others, never through their links; sockets are removed, and nothing else."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin.schemas.private_files import (
    check_links,
    is_socket,
    make_private_folder,
    open_folder,
    open_private,
    private_file,
    write_private,
)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize(
    ("folder", "file"), [(0o700, 0o600), (0o750, 0o640), (0o755, 0o640), (0o2770, 0o660), (0o777, 0o660)]
)
def test_a_file_is_open_to_whom_its_folder_is_open_and_never_to_all(tmp_path: Path, folder: int, file: int) -> None:
    before = os.umask(0)
    try:
        tmp_path.chmod(folder)
        write_private(tmp_path / "f", b"x")
    finally:
        os.umask(before)

    assert mode_of(tmp_path / "f") == file
    assert mode_of(tmp_path) == folder


def test_a_folder_that_is_made_is_its_owners(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a")
    make_private_folder(tmp_path / "a")
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path)

    assert mode_of(tmp_path / "a") == 0o700
    assert mode_of(tmp_path) == 0o755


def test_a_file_that_was_open_to_all_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "f").chmod(0o644)
    with private_file(tmp_path / "f", "a") as file:
        file.write(b"new")

    assert mode_of(tmp_path / "f") == 0o640
    assert (tmp_path / "f").read_bytes() == b"oldnew"


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to], ids=["symbolic", "hard"])
def test_a_link_is_not_written_through(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"v")
    make(tmp_path / "f", victim)

    with pytest.raises(OSError, match="f"):
        write_private(tmp_path / "f", b"x")
    assert victim.read_bytes() == b"v"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")

    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        with pytest.raises(OSError, match=r"f|device"):
            os.close(open_private(tmp_path / "f", flags))


def as_file(path: Path) -> None:
    path.write_bytes(b"data")


def as_link(path: Path) -> None:
    target = path.with_name("target.sock")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(target))
    path.symlink_to(target)


@pytest.mark.parametrize("make", [as_file, as_link, os.mkfifo, Path.mkdir])
def test_only_a_socket_is_a_socket(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "s")

    with pytest.raises(FileExistsError, match="is left alone"):
        is_socket(tmp_path / "s")


def test_sockets_and_nothing_are_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))

    assert is_socket(tmp_path / "s")
    assert not is_socket(tmp_path / "none")


def test_links_of_this_user_and_of_root_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "way").symlink_to("real")
    tmp_path.chmod(0o1777)
    check_links(f"{tmp_path}/way/x/../y")

    os.close(open_folder(tmp_path / "way" / "spool"))
    assert mode_of(tmp_path / "real" / "spool") == 0o700


def test_links_in_a_ring_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(PermissionError, match="too many"):
        check_links(f"{tmp_path}/a/x")
