"""What an agent reads for a hook: below its folder of dumps, and nothing else."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tocsin.collectors.agent import beneath
from tocsin.collectors.agent.beneath import DumpFolders, open_beneath, open_root

ME = os.geteuid()
LIMIT = 1000
Change = Callable[[Path, Path], str]


@pytest.fixture(params=["openat2", "walk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of opening: the kernel's call, and the walk for kernels that lack it."""
    if request.param == "walk":

        def absent(root_fd: int, relative: str) -> int:
            raise OSError(errno.ENOSYS, "not there")

        monkeypatch.setattr(beneath, "openat2", absent)
    return str(request.param)


def in_secret(root: Path, secret: Path) -> str:
    return str(secret)


def upwards(root: Path, secret: Path) -> str:
    return f"{root}/../{secret.parent.name}/{secret.name}"


def upwards_from_below(root: Path, secret: Path) -> str:
    (root / "a").mkdir()
    return f"{root}/a/../../{secret.parent.name}/{secret.name}"


def link(root: Path, secret: Path) -> str:
    (root / "fr_0").symlink_to(secret)
    return f"{root}/fr_0"


def linked_folder(root: Path, secret: Path) -> str:
    (root / "job").symlink_to(secret.parent)
    return f"{root}/job/{secret.name}"


def magic_link(root: Path, secret: Path) -> str:
    (root / "job").symlink_to("/proc/self/root")
    return f"{root}/job{secret}"


def hard_link(root: Path, secret: Path) -> str:
    os.link(secret, root / "fr_0")
    return f"{root}/fr_0"


def pipe(root: Path, secret: Path) -> str:
    os.mkfifo(root / "fr_0")
    return f"{root}/fr_0"


def folder(root: Path, secret: Path) -> str:
    (root / "fr_0").mkdir()
    return f"{root}/fr_0"


def too_large(root: Path, secret: Path) -> str:
    (root / "fr_0").write_bytes(b"x" * (LIMIT + 1))
    return f"{root}/fr_0"


def nul(root: Path, secret: Path) -> str:
    return f"{root}/fr_0\0x"


def absent(root: Path, secret: Path) -> str:
    return f"{root}/fr_0"


def name_that_begins_alike(root: Path, secret: Path) -> str:
    other = root.with_name(root.name + "-other")
    other.mkdir()
    (other / "fr_0").write_bytes(b"secret")
    return str(other / "fr_0")


HOSTILE: tuple[Change, ...] = (
    in_secret,
    upwards,
    upwards_from_below,
    link,
    linked_folder,
    magic_link,
    hard_link,
    pipe,
    folder,
    too_large,
    nul,
    absent,
    name_that_begins_alike,
)


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_nothing_but_dumps_is_read(tmp_path: Path, way: str, make: Change) -> None:
    """The file's user alone would not do: root of a container is root, as are the agent's own secrets."""
    root, kept = tmp_path / "dumps", tmp_path / "kept"
    root.mkdir()
    kept.mkdir()
    (kept / "password").write_bytes(b"secret")
    path = make(root, kept / "password")

    with pytest.raises((OSError, ValueError)):
        DumpFolders(str(root)).read(path, ME, LIMIT)


def test_a_dump_of_the_sender_is_read(tmp_path: Path, way: str) -> None:
    (tmp_path / "job" / "x").mkdir(parents=True)
    (tmp_path / "job" / "x" / "fr_0").write_bytes(b"dump")

    assert DumpFolders(str(tmp_path)).read(f"{tmp_path}/job/x/fr_0", ME, LIMIT) == b"dump"
    with pytest.raises(ValueError, match="no plain file of user"):
        DumpFolders(str(tmp_path)).read(f"{tmp_path}/job/x/fr_0", ME + 1, LIMIT)


def test_a_folder_that_is_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "password").write_bytes(b"secret")
    (tmp_path / "dumps").symlink_to(tmp_path / "kept")

    with pytest.raises(OSError, match="dumps"):
        DumpFolders(str(tmp_path / "dumps")).read(f"{tmp_path}/dumps/password", ME, LIMIT)


def test_without_a_folder_only_what_was_asked_for_is_read(tmp_path: Path) -> None:
    (tmp_path / "fr_0").write_bytes(b"dump")
    folders = DumpFolders("")
    folders.prepare()
    asked = Path(folders.asked())
    (asked / "fr_1").write_bytes(b"asked")

    with pytest.raises(PermissionError, match="dump-dir"):
        folders.read(str(tmp_path / "fr_0"), ME, LIMIT)
    assert folders.read(str(asked / "fr_1"), ME, LIMIT) == b"asked"
    folders.remove(str(tmp_path / "fr_0"))
    folders.remove(str(asked / "fr_1"))
    folders.close()
    assert (tmp_path / "fr_0").exists()
    assert not asked.exists()


def test_the_folder_is_made_for_all_users_and_an_existing_one_is_left(tmp_path: Path) -> None:
    DumpFolders(str(tmp_path / "a" / "dumps")).prepare()
    DumpFolders(str(tmp_path)).prepare()

    assert (tmp_path / "a" / "dumps").stat().st_mode & 0o7777 == 0o1733
    assert tmp_path.stat().st_mode & 0o077 == 0


def test_the_kernel_of_this_machine_has_the_call(tmp_path: Path) -> None:
    """Else the other tests would try the walk twice."""
    (tmp_path / "f").write_bytes(b"x")
    root = open_root(str(tmp_path))
    try:
        os.close(beneath.openat2(root, "f"))
    except OSError as error:
        if error.errno not in beneath.WITHOUT_CALL:
            raise
        pytest.skip("kernel without openat2")
    finally:
        os.close(root)


def test_deep_paths_end(tmp_path: Path, way: str) -> None:
    root = open_root(str(tmp_path))
    with pytest.raises(OSError, match="plain path"):
        open_beneath(root, "a/" * 2000 + "f")
    os.close(root)
