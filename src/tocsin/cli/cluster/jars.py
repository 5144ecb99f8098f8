"""Fetches the Java jars that ``deploy/pom.xml`` pins, once, into a cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tocsin.schemas.errors import ConfigError, EngineError

POM: Final = Path(__file__).with_name("pom.xml")  # a link to deploy/pom.xml; in the wheel a copy
SUMS: Final = Path(__file__).with_name("jars.sha256")  # as the pom; docs/cluster.md says how it is made
JAVA_VERSION: Final = 17
_FETCH_SECONDS: Final = 900
_KAFKA_MAIN: Final = "kafka_2.13-*.jar"
_FLINK_CONNECTOR: Final = "flink-sql-connector-kafka-*.jar"
_ZSTD: Final = "zstd-jni-*.jar"


class Jars:
    """A folder with the jars of a Kafka broker and of the Flink job."""

    def __init__(self, folder: Path) -> None:
        """Check that the folder holds the jars.

        Raises:
            ConfigError: a jar is missing.
        """
        self.folder = folder
        for pattern in (f"kafka/{_KAFKA_MAIN}", f"flink/{_FLINK_CONNECTOR}", f"flink/{_ZSTD}"):
            if not next(folder.glob(pattern), None):
                raise ConfigError("TOCSIN_JARS", str(folder), f"a folder with {pattern} in it")

    @property
    def kafka_class_path(self) -> str:
        """Class path for ``java -cp`` for a broker and its tools."""
        return str(self.folder / "kafka" / "*")

    @property
    def flink_connector(self) -> Path:
        """The jar for ``flink run -j``."""
        return next((self.folder / "flink").glob(_FLINK_CONNECTOR))

    @property
    def zstd(self) -> Path:
        """The jar that the connector needs to decompress what agents send."""
        return next((self.folder / "flink").glob(_ZSTD))


def fetch_jars() -> Jars:
    """Return the jars; Maven fetches those that are not in the cache yet.

    The folder is ``TOCSIN_JARS``, else one in the user's cache, named after the hash of the pom. A lock makes sure that
    two processes do not both fetch.

    Raises:
        ConfigError: ``TOCSIN_JARS`` names a folder without the jars.
        EngineError: Maven is missing, or fails.
    """
    named = os.environ.get("TOCSIN_JARS")
    if named:
        return Jars(Path(named))
    folder = cache_folder() / f"jars-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _fetch(folder)
    return Jars(folder)


def java() -> str:
    """Return the path of a ``java`` program that is new enough.

    Raises:
        EngineError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    where = f"in JAVA_HOME ({home})" if home else "on the PATH"
    if found is None:
        raise EngineError(f"no java {where}: install Java {JAVA_VERSION} or newer, or set JAVA_HOME")
    output = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', output.stderr + output.stdout)
    if version is None or int(version[1]) < JAVA_VERSION:
        first = (output.stderr + output.stdout).partition("\n")[0]
        raise EngineError(f"{found} says {first!r}: Java {JAVA_VERSION} or newer is needed")
    return found


def missing() -> str:
    """Return why Java programs cannot be started here, as the reason to skip a test; "": they can."""
    try:
        java()
    except EngineError as error:
        return str(error)
    named = os.environ.get("TOCSIN_JARS")
    folder = cache_folder() / f"jars-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    if named or folder.is_dir() or shutil.which("mvn"):
        return ""
    return _NO_MAVEN


_NO_MAVEN: Final = "no mvn on the PATH: install Maven, or set TOCSIN_JARS to a folder that holds the jars of the pom"


def cache_folder() -> Path:
    """Return the path of tocsin's folder in the user's cache; it may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME")
    # The XDG rules say to ignore a relative path.
    return (Path(cache) if cache and Path(cache).is_absolute() else Path.home() / ".cache") / "tocsin"


def check_sums(folder: Path, sums: str) -> None:
    """Check the jars of a folder against their checksums.

    Args:
        folder: holds ``kafka/`` and ``flink/``.
        sums: lines as ``sha256sum`` prints them, with paths relative to the folder.

    Raises:
        EngineError: a jar is missing, has another checksum, or has none.
    """
    wanted = {path: digest for digest, path in (line.split(None, 1) for line in sums.splitlines() if line.strip())}
    found = {str(path.relative_to(folder)): path for path in sorted(folder.glob("*/*.jar"))}
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            raise EngineError(f"the jar {name} was not fetched, and jars.sha256 lists it")
        if name not in wanted:
            raise EngineError(f"the jar {name} was fetched, and jars.sha256 has no checksum of it")
        digest = hashlib.sha256(found[name].read_bytes()).hexdigest()
        if digest != wanted[name]:
            raise EngineError(f"the jar {name} has the checksum {digest}, jars.sha256 says {wanted[name]}: not used")


def _fetch(folder: Path) -> None:
    """Fetch the jars into a temporary folder, check them and rename it, so that the folder is always complete."""
    maven = shutil.which("mvn")
    if maven is None:
        raise EngineError(_NO_MAVEN)
    making = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    goals = ("dependency:copy-dependencies@kafka", "dependency:copy@flink")
    command = [maven, "-q", "-B", "-f", str(POM.resolve()), *goals, f"-Djars={making}"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
        if ran.returncode:
            errors = [line for line in (ran.stdout + ran.stderr).splitlines() if "ERROR" in line][:3]
            raise EngineError(f"Maven could not fetch the jars of {POM.resolve()}: {' '.join(errors)[:600]}")
        check_sums(making, SUMS.read_text())
        making.chmod(0o755)  # mkdtemp makes it the owner's alone
        making.rename(folder)
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"Maven did not fetch the jars within {_FETCH_SECONDS} s") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
