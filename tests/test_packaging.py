"""Guards of docs/adr/0004-links.md: four root folders, one import name."""

import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOMS = ("collectors", "models", "pipeline", "schemas")


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_a_relative_link_to_its_root_folder(repo_root: Path, room: str) -> None:
    link = repo_root / "src" / "tocsin" / room

    assert link.is_symlink(), f"{link} is no link: was the checkout made without core.symlinks?"
    assert link.readlink() == Path("../..") / room
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_imports_below_tocsin(room: str) -> None:
    assert importlib.import_module(f"tocsin.{room}").__name__ == f"tocsin.{room}"


def test_the_hook_s_package_imports_nothing_of_ours_but_itself() -> None:
    code = "import sys, tocsin.collectors; print(sorted(m for m in sys.modules if m.startswith('tocsin')))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "['tocsin', 'tocsin.collectors']"


@pytest.fixture(scope="module")
def wheel(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built from a copy so that no build folder is left here."""
    tree = tmp_path_factory.mktemp("tree")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "deploy", *ROOMS):  # deploy: its pom.xml is linked from the command line
        shutil.copytree(repo_root / name, tree / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (repo_root / name).exists():
            shutil.copy(repo_root / name, tree)
    out = tmp_path_factory.mktemp("wheel")
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    built = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=tree, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_owns_no_top_level_name_but_tocsin(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {name for name in names if not name.endswith(".dist-info")} == {"tocsin"}


@pytest.mark.slow
def test_the_wheel_holds_every_module_every_migration_and_the_type_marker(wheel: Path, repo_root: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = repo_root / "src"
    wanted = {"tocsin/py.typed", "tocsin/cli/cluster/pom.xml", "tocsin/cli/cluster/jars.sha256"} | {
        str(path.relative_to(source)) for path in (source / "tocsin/cli").rglob("*.py")
    }
    for room in ROOMS:
        for pattern in ("*.py", "*.sql", "defaults/*/card.json", "defaults/*/model.bin"):
            wanted |= {f"tocsin/{path.relative_to(repo_root)}" for path in (repo_root / room).rglob(pattern)}

    assert wanted <= packed, f"missing: {sorted(wanted - packed)}"


@pytest.mark.slow
def test_the_wheel_leaves_a_trainer_its_own_models_and_schemas(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    trainer = tmp_path / "trainer"
    for name in ("models", "schemas"):
        (trainer / name).mkdir(parents=True)
        (trainer / name / "__init__.py").write_text("MINE = True\n")
    code = (
        "import models, schemas, tocsin.models, tocsin.schemas, tocsin;"
        "assert models.MINE and schemas.MINE;"
        "print(tocsin.__file__)"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.append({str(site)!r}); {code}"],
        cwd=trainer,
        env={"PYTHONPATH": str(trainer)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(site))
