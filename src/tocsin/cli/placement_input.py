"""What ``tocsin placement`` reads: a recording, a running job, or a cluster's topology with a list of hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tocsin.cli.database import Ask
from tocsin.cli.status_table import read_status
from tocsin.models.placement.groups import (
    HostGroups,
    IntArray,
    RankCoordinates,
    block_coordinates,
    groups_of_coordinates,
    host_groups,
    indexed,
)
from tocsin.pipeline.job.place_columns import places_of_rows
from tocsin.pipeline.recording.job_places import JobPlaces, read_job_places
from tocsin.pipeline.recording.limits import ReadLimits
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient, EngineAbsentError, EngineRefusedError
from tocsin.schemas.errors import ConfigError, RecordingError
from tocsin.schemas.formats.cluster_topology import ClusterTopology, LeafLabels, SwitchPlace, read_topology
from tocsin.schemas.formats.host_list import expand_host_list
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.records import CommGroup, RankPlace

MAX_FILE_BYTES = 1 << 28
"""Largest topology file that is read; the labels of 10,000 nodes take some tens of megabytes."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller wants of the topology.

    Attributes:
        level: ``minipod`` or ``leaf``; None = minipod where all hosts have one, else leaf.
        spares: list of free hosts.
        labels: keys of node labels, None = those known.
    """

    level: str | None
    spares: str
    labels: LeafLabels | None


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job, its groups, and where its hosts stand.

    Attributes:
        name: the job's name.
        hosts: names of its hosts.
        ranks: number of its ranks.
        groups: kind -> groups of hosts.
        level: ``minipod`` or ``leaf``: what ``pods`` are.
        pods: names of the minipods (or leaves) of hosts and spares.
        pod: index of each host's minipod.
        spares: names of the free hosts.
        spare_pod: index of each spare's minipod.
    """

    name: str
    hosts: tuple[str, ...]
    ranks: int
    groups: Mapping[GroupKind, HostGroups]
    level: str
    pods: tuple[str, ...]
    pod: IntArray
    spares: tuple[str, ...]
    spare_pod: IntArray


def read_cluster(path: Path, labels: LeafLabels | None) -> ClusterTopology:
    """Read a cluster's topology.

    Raises:
        FieldError: the content is wrong; names file, line and value.
        RecordingError: the file cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise RecordingError(str(path), f"cannot be read ({error.strerror})") from error
    if len(data) > MAX_FILE_BYTES:
        raise RecordingError(path.name, f"has more than {MAX_FILE_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RecordingError(path.name, f"is no text: byte {error.start} is not UTF-8") from error
    return read_topology(text, path.name, labels)


def read_job(folder: Path, topology: Path | None, wanted: Wanted, limits: ReadLimits) -> PlacedJob:
    """Read a recorded job; switches that the recording does not name are taken from the topology.

    Raises:
        FieldError: the topology is wrong.
        ConfigError: a spare is unknown or in use.
        RecordingError: the recording is wrong, or a host's switch is not known.
    """
    text = "names no data-parallel rank, and there is no groups.parquet: the groups are not known"
    unknown = RecordingError(f"{folder.name}/topology.parquet", text, column="dp")
    return _job(read_job_places(folder, limits), (str(folder), unknown), topology, wanted)


def read_running_job(name: str, socket: Path, topology: Path | None, wanted: Wanted) -> PlacedJob | None:
    """Ask the running engine where a job stands; switches that its agents do not tell are taken from the topology.

    Returns:
        None: no engine runs.

    Raises:
        FieldError: the topology is wrong.
        ConfigError: the engine does not know the job, or a spare is unknown or in use.
        RecordingError: no place is known yet, or a host's switch is not known.
    """
    try:
        told = ControlClient(socket).call("places", job_id=name)
    except EngineAbsentError:
        return None
    except EngineRefusedError as error:
        raise ConfigError("FILE", name, f"a file, a recording, or a job of the running engine ({error})") from error
    places = {place.rank: place for place in (RankPlace(**one) for one in told["places"])}
    if not places:
        raise RecordingError(f"job {name}", "no place is known yet: agents tell them every 30 s")
    groups = tuple(CommGroup(one["comm_id"], GroupKind(one["kind"]), tuple(one["ranks"])) for one in told["groups"])
    text = "its ranks tell no data-parallel coordinate, and no group is known"
    source = f"job {name}", RecordingError(f"job {name}", text)
    return _job(JobPlaces(told["job_id"], told["attempt"], places, groups), source, topology, wanted)


def read_told_job(name: str, ask: Ask, topology: Path | None, wanted: Wanted) -> PlacedJob:
    """Read where a job stands from the states that a distributed engine writes to its database.

    Args:
        name: the job.
        ask: queries the database.
        topology: file that names switches that the agents do not tell, None = no file.
        wanted: what is wanted of the topology.

    Raises:
        FieldError: the topology, or the state, is wrong.
        ConfigError: no state of the job is known, or a spare is unknown or in use.
        RecordingError: no place is known, or a host's switch is not known.
        StoreError: the database cannot be read.
    """
    found = read_status(ask, name)["jobs"]
    if not found:
        raise ConfigError("FILE", name, "a file, a recording, or a job whose state is in the database")
    state = max(found, key=lambda one: int(one["attempt"]))
    places = places_of_rows(state.get("places"), "places")
    if not places:
        text = "its state tells no places: the job is too large for it, or the engine is of an older version"
        raise RecordingError(f"job {name}", text)
    unknown = RecordingError(f"job {name}", "its ranks tell no data-parallel coordinate")
    return _job(JobPlaces(name, int(state["attempt"]), places, ()), (f"job {name}", unknown), topology, wanted)


def _job(recorded: JobPlaces, source: tuple[str, RecordingError], topology: Path | None, wanted: Wanted) -> PlacedJob:
    """Join the places of a job with the switches of a topology.

    Args:
        recorded: the places.
        source: what says them, and the error for a job whose groups are not known.
        topology: file that names switches, None = no file.
        wanted: what is wanted of the topology.
    """
    known = {} if topology is None else dict(read_cluster(topology, wanted.labels).places)
    for place in recorded.places.values():
        if place.leaf or place.minipod:
            known[place.host] = SwitchPlace(place.leaf, place.minipod)
    hosts = tuple(dict.fromkeys(recorded.places[rank].host for rank in sorted(recorded.places)))
    name = f"{recorded.job_id} attempt {recorded.attempt}" if recorded.attempt else recorded.job_id
    groups = _groups(recorded, hosts)
    if not groups:
        raise source[1]
    return _placed(name, (hosts, len(recorded.places)), groups, known, (wanted, str(topology or source[0])))


def read_listed_job(path: Path, listed: str, sizes: tuple[int, int, int], wanted: Wanted) -> PlacedJob:
    """Lay a job on listed hosts of a topology, in the order of Megatron-LM's ranks.

    Args:
        path: the topology.
        listed: list of hosts in the order of ranks.
        sizes: GPUs of a host, tensor-parallel size, pipeline stages.
        wanted: what is wanted of the topology.

    Raises:
        FieldError: the topology or list is wrong.
        ConfigError: sizes do not divide the ranks, or a spare is unknown or in use.
        RecordingError: the file cannot be read, or a host's switch is not known.
    """
    gpus, tp, pp = sizes
    hosts = expand_host_list(listed, "--hosts")
    if len(set(hosts)) < len(hosts):
        raise ConfigError("--hosts", listed, "hosts that are named once")
    if len(hosts) * gpus % (tp * pp):
        raise ConfigError("--tp, --pp", f"{tp}, {pp}", f"sizes that divide {len(hosts)} hosts x {gpus} GPUs")
    groups = groups_of_coordinates(block_coordinates(len(hosts), gpus, tp, pp))
    known = read_cluster(path, wanted.labels).places
    return _placed(path.name, (hosts, len(hosts) * gpus), groups, known, (wanted, str(path)))


def _groups(recorded: JobPlaces, hosts: Sequence[str]) -> dict[GroupKind, HostGroups]:
    """Return the recorded groups, and of the kinds that were not recorded those that the coordinates mean."""
    index = {host: at for at, host in enumerate(hosts)}
    host_of = {rank: index[place.host] for rank, place in recorded.places.items()}
    places = [recorded.places[rank] for rank in sorted(recorded.places)]
    found: dict[GroupKind, HostGroups] = {}
    if all(place.dp >= 0 for place in places):
        columns = ([getattr(place, name) for place in places] for name in ("dp", "pp", "tp"))
        of_hosts = np.array([index[place.host] for place in places], np.int64)
        found = groups_of_coordinates(RankCoordinates(of_hosts, *(np.array(column, np.int64) for column in columns)))
    for kind in dict.fromkeys(group.kind for group in recorded.groups):
        named = [
            (group.comm_id, [host_of[rank] for rank in group.ranks if rank in host_of])
            for group in recorded.groups
            if group.kind is kind
        ]
        made = host_groups((name, members) for name, members in named if members)
        if made.names:
            found[kind] = made
    return found


def _placed(
    name: str,
    members: tuple[tuple[str, ...], int],
    groups: Mapping[GroupKind, HostGroups],
    known: Mapping[str, SwitchPlace],
    source: tuple[Wanted, str],
) -> PlacedJob:
    """Join a job's hosts and spares with their switches.

    Args:
        name: the job.
        members: its hosts, and its number of ranks.
        groups: its groups.
        known: host -> its switches.
        source: what is wanted, and the file that should name the switches.
    """
    wanted, file = source
    hosts, ranks = members
    spares = expand_host_list(wanted.spares, "--spare")
    taken = set(hosts)
    for spare in spares:
        if spare in taken:
            raise ConfigError("--spare", spare, "a host that carries no rank of the job, named once")
        taken.add(spare)
    has_pods = all(known.get(host, SwitchPlace()).minipod for host in (*hosts, *spares))
    level = wanted.level or ("minipod" if has_pods else "leaf")
    above = [getattr(known.get(host, SwitchPlace()), level) for host in (*hosts, *spares)]
    if "" in above:
        missing = [host for host, pod in zip((*hosts, *spares), above, strict=True) if not pod]
        count = f"{len(missing)} of {len(above)} hosts"
        text = f"the {level} of {missing[0]!r} is not known ({count}); --topology FILE names it"
        raise RecordingError(file, text)
    pods, index = indexed(above)
    return PlacedJob(name, hosts, ranks, groups, level, pods, index[: len(hosts)], spares, index[len(hosts) :])
