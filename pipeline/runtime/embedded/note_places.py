"""What an engine knows by name: hosts, leaf switches, jobs and verdicts, for people who name them to it."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from tocsin.pipeline.incidents.maintenance import MaintenanceReason
from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.embedded.fleet_follower import FleetFollower
from tocsin.pipeline.stores.incident_queries import incidents_query
from tocsin.schemas.errors import FieldError, StoreError
from tocsin.schemas.job_key import FLEET_JOB_ID, IDLE_JOB_ID, JobKey
from tocsin.schemas.operator_notes import TARGET_KINDS, check_target
from tocsin.schemas.verdicts import Component, ComponentKind, Verdict
from tocsin.schemas.wire.validate import check_name

MAX_NAMED_COUNT: Final = 8
_KEPT_VERDICTS: Final = 2000
Query = Callable[[str, str], bytes]
"""``Store.query`` of the engine's store."""


class KnownPlaces:
    """The hosts, leaf switches and jobs of an engine, each with its cluster."""

    def __init__(self, engine: EmbeddedEngine, fleet: FleetFollower) -> None:
        """Ask an engine and its fleet view."""
        self._engine = engine
        self._fleet = fleet

    def leaf_of(self, job: JobKey, host: str) -> str:
        """Return the leaf switch of a host, "" if neither its job nor the fleet view knows it."""
        pipeline = self._engine.pipeline(job)
        leaf = "" if pipeline is None else pipeline.graph.placement.switches_of_hosts().get(host, ("", ""))[0]
        view = self._fleet.views.get(job.cluster)
        return leaf or ("" if view is None else view.hosts.leaf_of(host))

    def all(self) -> set[tuple[str, Component]]:
        """Return each known host, leaf switch and job with its cluster."""
        found = set()
        for job in self._engine.jobs():
            if job.job_id not in (IDLE_JOB_ID, FLEET_JOB_ID):
                found.add((job.cluster, Component(ComponentKind.JOB, job.job_id)))
            pipeline = self._engine.pipeline(job)
            for place in [] if pipeline is None else list(pipeline.graph.placement.places.values()):
                found |= placed(job.cluster, place.host, place.leaf)
        for cluster, view in list(self._fleet.views.items()):
            for host, leaf in view.hosts.leaves().items():
                found |= placed(cluster, host, leaf)
        return found

    def target(self, kind: object, name: object, cluster: object) -> tuple[str, Component]:
        """Return cluster and component that a person means.

        Args:
            kind: a kind; None: the one kind of thing that has this name. With a kind the name may be a new one.
            name: name of the host, leaf switch or job.
            cluster: its cluster; None: the one that has it, or the only one that is known.

        Raises:
            EngineRefusedError: nothing or several things have this name.
            FieldError: a value is none.
        """
        return target_of(self.all(), kind, name, cluster)


class KnownVerdicts:
    """The verdicts that an engine has told, with their clusters; older ones are looked up in the database."""

    def __init__(self, live: Callable[[], Sequence[Verdict]], query: Query) -> None:
        """Start without verdicts.

        Args:
            live: returns the verdicts that stand.
            query: queries the database.
        """
        self._live = live
        self._query = query
        self._told: OrderedDict[str, str] = OrderedDict()

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Remember verdicts that are told."""
        for one in verdicts:
            self._told[one.verdict_id] = one.job.cluster
            self._told.move_to_end(one.verdict_id)
        while len(self._told) > _KEPT_VERDICTS:
            self._told.popitem(last=False)

    def to_state(self) -> list[list[str]]:
        """Return the remembered verdicts as JSON-able values."""
        return [[name, cluster] for name, cluster in self._told.items()]

    def load_state(self, state: Iterable[Sequence[str]]) -> None:
        """Replace the remembered verdicts by what ``to_state`` returned."""
        self._told = OrderedDict((name, cluster) for name, cluster in state)

    def find(self, wanted: str) -> tuple[str, str]:
        """Return id and cluster of the verdict with this id, or of the only one whose id begins so.

        Raises:
            EngineRefusedError: there is none, or there are several.
            StoreError: this engine has not told it, and the database cannot be asked.
        """
        known = {**dict(list(self._told.items())), **{one.verdict_id: one.job.cluster for one in self._live()}}
        if wanted in known:
            return wanted, known[wanted]
        found = {name: cluster for name, cluster in known.items() if name.startswith(wanted)}
        try:
            found |= self._stored(wanted)
        except StoreError:
            if not found:
                raise
        name = one_id_of(found, wanted)
        return name, found[name]

    def _stored(self, wanted: str) -> Mapping[str, str]:
        """Return verdict id -> cluster of the stored incidents whose ids begin so."""
        sql = incidents_query(everything=True, id_prefix=wanted, limit=MAX_NAMED_COUNT + 1)
        rows = [json.loads(line) for line in self._query(sql, "JSONEachRow").splitlines()]
        return {str(row["verdict_id"]): str(row["cluster"]) for row in rows}


def target_of(
    known: Iterable[tuple[str, Component]], kind: object, name: object, cluster: object
) -> tuple[str, Component]:
    """Return cluster and component that a person means.

    Args:
        known: each known host, leaf switch and job with its cluster.
        kind: a kind; None: the one kind of thing that has this name. With a kind the name may be a new one.
        name: name of the host, leaf switch or job.
        cluster: its cluster; None: the one that has it, or the only one that is known.

    Raises:
        EngineRefusedError: nothing or several things have this name.
        FieldError: a value is none.
    """
    wanted = check_name(name, "target")
    if cluster is not None:
        cluster = check_name(cluster, "cluster")
    if wanted in (IDLE_JOB_ID, FLEET_JOB_ID) and kind == ComponentKind.JOB.value:
        raise FieldError("target", wanted, "a job: these names mean no single one")
    kinds = TARGET_KINDS if kind is None else (check_target(kind, wanted).kind,)
    known = set(known)
    named = [
        (at, one)
        for at, one in known
        if one.name == wanted and one.kind in kinds and (cluster is None or at == cluster)
    ]
    if not named and kind is not None:
        clusters = {at for at, _ in known} if cluster is None else {str(cluster)}
        named = [(at, Component(kinds[0], wanted)) for at in clusters]
    if not named and kind is not None:
        text = f"no cluster was ever heard of: name that of {wanted[:80]!r} with --cluster"
        raise EngineRefusedError(text, MaintenanceReason.UNKNOWN_TARGET.value)
    if not named:
        text = f"{wanted[:80]!r}: {MaintenanceReason.UNKNOWN_TARGET.meaning} (--kind host, leaf or job, --cluster)"
        raise EngineRefusedError(text, MaintenanceReason.UNKNOWN_TARGET.value)
    if len(named) > 1:
        several = _listed(f"{one.kind.value} {one.name} of {at}" for at, one in named)
        text = f"{wanted[:80]!r} means several things: name --kind or --cluster ({several})"
        raise EngineRefusedError(text, MaintenanceReason.AMBIGUOUS.value)
    return named[0]


def one_id_of(found: Collection[str], wanted: str) -> str:
    """Return the one id that a beginning means.

    Args:
        found: the ids that begin so.
        wanted: the beginning, or a whole id.

    Raises:
        EngineRefusedError: there is none, or there are several.
    """
    if wanted in found or len(found) == 1:
        return wanted if wanted in found else next(iter(found))
    if not found:
        text = f"no incident's id begins with {wanted[:80]!r} (tocsin incidents --all lists them)"
        raise EngineRefusedError(text, MaintenanceReason.NOT_FOUND.value)
    text = f"{wanted[:80]!r} begins several incidents: {_listed(found)}"
    raise EngineRefusedError(text, MaintenanceReason.AMBIGUOUS.value)


def placed(cluster: str, host: str, leaf: str) -> set[tuple[str, Component]]:
    """Return a host, and its leaf switch if it is known."""
    named = ((ComponentKind.HOST, host), (ComponentKind.LEAF, leaf))
    return {(cluster, Component(kind, name)) for kind, name in named if name}


def _listed(names: Iterable[str]) -> str:
    """Return names in order, the first few of them."""
    return ", ".join(sorted(names)[:MAX_NAMED_COUNT])
