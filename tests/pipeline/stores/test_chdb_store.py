"""The incident database in a folder: what survives, what is refused.

chDB opens one folder per process, so what needs a folder of its own runs in a process of its own.
"""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.pipeline.stores.chdb_store import ChdbStore
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.migrations import migrations


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chdb") / "db"


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[ChdbStore]:
    opened = ChdbStore(folder)
    opened.migrate()
    yield opened
    opened.close()


def in_process(tmp_path: Path, code: str) -> str:
    """Run code in a process that may open a folder of its own; ``db`` is that folder."""
    script = f"from pathlib import Path\ndb = Path({str(tmp_path / 'db')!r})\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_was_written_is_there_in_the_next_process(tmp_path: Path) -> None:
    code = """
        from tests.pipeline.stores.samples import verdict
        from tocsin.pipeline.stores.chdb_store import ChdbStore
        store = ChdbStore(db); store.migrate()
        print(store.query("SELECT count() FROM tocsin.incidents_all", "CSV").decode().strip())
        store.write_verdicts([verdict("kept")]); store.close(); store.close()
    """
    assert [in_process(tmp_path, code).strip() for _ in range(2)] == ["0", "1"]


def test_a_newer_database_and_a_changed_migration_are_refused(tmp_path: Path) -> None:
    said = in_process(
        tmp_path,
        """
        from tocsin.pipeline.stores.chdb_store import ChdbBackend
        from tocsin.pipeline.stores.sql_store import SqlStore
        from tocsin.schemas.errors import StoreError
        from tocsin.schemas.migrations import migrations
        backend = ChdbBackend(db); SqlStore(backend).migrate()
        known = migrations()
        for other in (known[:-1], (known[0]._replace(sha256="f" * 64), *known[1:])):
            try: SqlStore(backend, other).migrate()
            except StoreError as error: print(error.reason, error)
        backend.close()
        """,
    ).splitlines()
    newest = len(migrations())
    assert said[0].startswith(f"database_newer the database has schema version {newest}, this program knows")
    assert said[1].startswith("store migration 1 (database) was applied to this database with checksum")


def test_a_folder_that_is_open_elsewhere_names_folder_and_process(
    store: ChdbStore, folder: Path, tmp_path: Path
) -> None:
    code = f"""
        from tocsin.pipeline.stores.chdb_store import ChdbStore
        from tocsin.schemas.errors import DatabaseLockedError
        try: ChdbStore(Path({str(folder)!r}))
        except DatabaseLockedError as error: print(error)
    """
    said = in_process(tmp_path, code)
    assert f"is open in process {os.getpid()}" in said
    assert str(folder) in said


def test_a_forked_child_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    said = in_process(
        tmp_path,
        """
        import os
        from tocsin.pipeline.stores.chdb_store import ChdbStore
        from tocsin.schemas.errors import StoreError
        store = ChdbStore(db)
        if not (child := os.fork()):
            try: store.query("SELECT 1", "CSV")
            except StoreError as error: print(error, flush=True)
            store.close(); os._exit(0)
        print(os.waitpid(child, 0)[1], store.query("SELECT 1", "CSV")); store.close()
        """,
    )
    assert said.splitlines()[0].startswith("chDB does not survive fork")
    assert said.splitlines()[1] == "0 b'1\\n'"


def test_a_path_that_chdb_would_read_as_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\?"):
        ChdbStore(tmp_path / "a?mode=ro")
