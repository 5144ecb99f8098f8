"""Analysis of a folder of Flight Recorder dumps: the ranks that the others wait for.

Reads one file per rank, whose name ends in the rank, and asks ``tocsin.models.hang``. An unreadable file is evidence
about its rank and does not end the analysis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tocsin.models.hang import HangFinding, HangInput, analyse
from tocsin.models.hang_input import unheard_ranks
from tocsin.pipeline.rca.evidence.dump_names import DEFAULT_GROUP_DESC, DEFAULT_GROUP_NAME, DumpNames
from tocsin.pipeline.rca.evidence.missing_dumps import without_the_uncollected
from tocsin.schemas.errors import ConfigError, FieldError, SchemaError
from tocsin.schemas.formats.flight_recorder import (
    MAX_DUMP_BYTES,
    FlightDump,
    parse_dump,
    rank_of_filename,
)
from tocsin.schemas.wire.validate import MAX_RANKS


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """Contents of a folder of dumps.

    Attributes:
        dumps: rank -> its dump.
        unreadable: rank -> (file name, error) of files that are no whole dump.
        notes: sentences about files that were passed over.
        names: rank -> name of the file that its dump was read from.
    """

    dumps: Mapping[int, FlightDump]
    unreadable: Mapping[int, tuple[str, str]]
    notes: tuple[str, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)


def read_folder(folder: Path) -> DumpFolder:
    """Read all dumps of a folder, without its subfolders.

    Args:
        folder: the folder.

    Raises:
        ConfigError: the folder does not exist, no file's name ends in a rank, or no file is readable.
    """
    if not folder.is_dir():
        what = "it is a file" if folder.exists() else "it does not exist"
        raise ConfigError("DIR", str(folder), f"a folder with Flight Recorder dumps; {what}")
    files = _files_by_rank(folder)
    if not files:
        raise ConfigError("DIR", str(folder), "a folder with files whose names end in a rank; it has none")
    dumps: dict[int, FlightDump] = {}
    names: dict[int, str] = {}
    broken: list[tuple[int, Path, str]] = []
    notes: list[str] = []
    for rank, paths in sorted(files.items()):
        for path in paths:
            dump = _read_file(path)
            if isinstance(dump, str):
                broken.append((rank, path, dump))
            elif rank in dumps:
                notes.append(f"{path.name}: a second dump of rank {rank}, passed over")
            else:
                dumps[rank] = dump
                names[rank] = path.name
    if not dumps:
        _, path, why = broken[0]
        raise ConfigError("DIR", str(folder), f"a folder with readable dumps; {path.name}: {why}")
    found = _sort_broken(dumps, broken, notes, {_prefix(p) for r in dumps for p in files[r]})
    return replace(found, names=names)


def _sort_broken(
    dumps: dict[int, FlightDump], broken: list[tuple[int, Path, str]], notes: list[str], prefixes: set[str]
) -> DumpFolder:
    """Return the folder's contents, with broken files sorted into unreadable dumps and notes.

    A broken file is an unreadable dump only where its name is built like a readable dump's, or its rank is no higher.

    Args:
        dumps: rank -> its dump.
        broken: rank, path and error of each broken file.
        notes: notes so far; more are added.
        prefixes: what the names of readable dumps begin with.
    """
    unreadable: dict[int, tuple[str, str]] = {}
    for rank, path, why in broken:
        if rank in dumps or (_prefix(path) not in prefixes and rank > max(dumps)):
            notes.append(f"{path.name}: passed over, {why}")
        else:
            unreadable[rank] = (path.name, why)
    return DumpFolder(dumps, unreadable, tuple(notes))


def _files_by_rank(folder: Path) -> dict[int, list[Path]]:
    """Return the files whose names end in a rank, by rank, each rank's files by name."""
    files: dict[int, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            try:
                rank = rank_of_filename(path.name)
            except FieldError:
                continue
            if rank < MAX_RANKS:
                files.setdefault(rank, []).append(path)
    return files


def _prefix(path: Path) -> str:
    """Return a file's name without suffix and without the rank at its end."""
    return path.stem.rstrip("0123456789")


def _read_file(path: Path) -> FlightDump | str:
    """Return a file's dump, or the error as a sentence."""
    try:
        if path.stat().st_size > MAX_DUMP_BYTES:
            return f"larger than {MAX_DUMP_BYTES} bytes"
        return parse_dump(path.read_bytes())
    except (SchemaError, OSError) as error:
        return str(error)


def analyse_folder(folder: Path, world_size: int = 0) -> HangFinding:
    """Read a folder of dumps and return the ranks that the others wait for.

    The finding's evidence names unreadable files.

    Args:
        folder: the folder.
        world_size: ranks in the job; 0: taken from the dumps and from the files' numbers.

    Raises:
        ConfigError: the folder has no readable dump, or none of a rank of this job.
    """
    content = read_folder(folder)
    finding = analyse_dumps(content, world_size)
    return without_the_uncollected(finding, len(set(content.dumps) | set(finding.missing_ranks)))


def analyse_dumps(content: DumpFolder, world_size: int = 0, facts: Mapping[int, str] | None = None) -> HangFinding:
    """Return the ranks that the others wait for by dumps that were read before.

    The finding's evidence names unreadable files and ranks without a dump.

    Args:
        content: the dumps.
        world_size: as in ``analyse_folder``.
        facts: rank -> a ``FACT_...`` of ``tocsin.models.hang`` for ranks without a dump.

    Raises:
        ConfigError: no dump is of a rank of this job.
    """
    content = _within_world(content, world_size)
    data = hang_input(content, world_size)
    known = {rank: fact for rank, fact in (facts or {}).items() if rank not in content.dumps}
    finding = analyse(replace(data, facts=known, silent=data.silent - set(known)))
    extra = [f"rank {rank}: {name} is unreadable: {why}" for rank, (name, why) in sorted(content.unreadable.items())]
    absent = sorted(set(finding.missing_ranks) - set(content.unreadable))
    if absent:
        extra.append(f"no dump of rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent[:32]))}")
    return replace(finding, evidence=(*finding.evidence, *extra, *content.notes))


def _within_world(content: DumpFolder, world_size: int) -> DumpFolder:
    """Return the contents without ranks beyond the job's world size: those files are another job's."""
    world = world_size or _known_world(content.dumps.values())
    strangers = sorted(rank for rank in {*content.dumps, *content.unreadable} if rank >= world > 0)
    if not strangers:
        return content
    dumps = {rank: dump for rank, dump in content.dumps.items() if rank < world}
    if not dumps:
        raise ConfigError("world size", world, f"larger than {strangers[0]}, the lowest rank that left a dump")
    return DumpFolder(
        dumps,
        {rank: broken for rank, broken in content.unreadable.items() if rank < world},
        (*content.notes, f"passed over, the job has {world} ranks: dumps of ranks {strangers[:32]}"),
    )


def _known_world(dumps: Iterable[FlightDump]) -> int:
    """Return the size of the default group in most dumps, in ranks; 0: no dump lists its members."""
    sizes = Counter(
        len(group.ranks)
        for dump in dumps
        for group in dump.groups
        if group.ranks and (group.desc == DEFAULT_GROUP_DESC or group.name == DEFAULT_GROUP_NAME)
    )
    return max(sizes, key=lambda size: (sizes[size], size)) if sizes else 0


def report(finding: HangFinding) -> dict[str, Any]:
    """Return the object that ``tocsin flight-recorder --json`` prints.

    Its keys and their order are a public contract.
    """
    return {
        "fault": "hang",
        "culprits": list(finding.culprits),
        "groups": [
            {
                "comm_id": group.comm_id,
                "kind": group.kind,
                "op_name": group.op_name,
                "op_seq": group.seq,
                "waiting": list(group.waiting),
                "waits_for": list(group.waits_for),
                "members_inferred": group.inferred,
            }
            for group in finding.blocked
        ],
        "reason": finding.reason,
        "missing_ranks": list(finding.missing_ranks),
        "evidence": list(finding.evidence),
    }


def hang_input(content: DumpFolder, world_size: int = 0) -> HangInput:
    """Return the input of the hang analysis.

    Args:
        content: the dumps of one job at one time.
        world_size: ranks in the job; 0: taken from the dumps.
    """
    names = DumpNames(content.dumps)
    heard = set(content.dumps)
    world = max(names.world, world_size)
    named = (names.ranks | set(content.unreadable)) - heard
    silent = named.union(unheard_ranks(world, heard | named))
    states = tuple(names.state_of(rank, dump) for rank, dump in sorted(content.dumps.items()))
    return HangInput(
        groups=names.groups(frozenset(heard | silent)),
        states=states,
        silent=frozenset(silent),
        world_size=len(heard | silent),
        unlisted_count=max(0, world - len(heard | silent)),
    )
