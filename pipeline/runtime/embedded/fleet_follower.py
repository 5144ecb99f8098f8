"""The fleet view inside the embedded engine: it hears all hosts through a tap, and all verdicts as a follower."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.pipeline.incidents.fleet.intake import fleet_families, tell_records
from tocsin.pipeline.incidents.fleet.view import FleetView
from tocsin.pipeline.runtime.embedded.control_socket import Handler
from tocsin.pipeline.runtime.embedded.store_writer import Write
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.action_events import JobFacts, MachineFacts
from tocsin.schemas.covers import Cover, covers_between
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.formats.prometheus_text import Family
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.private_files import write_private
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict

if TYPE_CHECKING:
    from tocsin.pipeline.runtime.embedded.service import EngineService

_LOG = logging.getLogger("tocsin.fleet")
FILE_NAME: Final = "fleet-state"
_KEEP_NS: Final = 600 * NS_PER_SECOND
"""Distance of two writes of the fleet's own file."""
_FILE_PART: Final = "views"
_MAX_NOTES: Final = 10_000


class FleetFollower:
    """The fleet views of all clusters of one engine; attach it before what tells people.

    Its state is part of the engine's snapshots. The engine drops a state that is ten minutes old; the fleet's reaches
    back a month, so it has a file of its own, too, which is read where no snapshot is restored.

    Attributes:
        name: ``fleet``.
        views: cluster -> its view.
    """

    name = "fleet"

    def __init__(
        self,
        config: FleetConfig,
        path: Path | None,
        on_covers: Callable[[Sequence[Cover]], None] = lambda _covers: None,
    ) -> None:
        """Start without clusters.

        Args:
            config: settings of each view.
            path: the fleet's own file; None: it has none.
            on_covers: is given the verdicts for which a fleet incident stands from now on, or no more.
        """
        self._config = config
        self._path = path
        self._on_covers = on_covers
        self._covers: dict[str, dict[str, str]] = {}
        self._is_loaded = False
        self._kept_ns = 0
        self._bundles: list[SliceBundle] = []
        self._notes: deque[Feedback | Maintenance] = deque(maxlen=_MAX_NOTES)
        self.views: dict[str, FleetView] = {}

    def tap(self, bundle: SliceBundle) -> None:
        """Take a job's records of one second; add it to the engine's taps."""
        if bundle.fast.records:
            self._bundles.append(bundle)

    def live(self) -> list[Verdict]:
        """Return the fleet's own verdicts that stand."""
        return [one for view in list(self.views.values()) for one in view.live]

    def covering(self, cluster: str, verdict_id: str) -> str:
        """Return the id of the fleet incident that stands for a verdict, "": none does."""
        view = self.views.get(cluster)
        return "" if view is None else view.covering(verdict_id)

    def facts(self) -> Iterator[MachineFacts | JobFacts]:
        """Yield what agents and ranks told of machines and jobs, with time 0."""
        for view in list(self.views.values()):
            yield from view.facts()

    def take_note(self, note: Feedback | Maintenance) -> None:
        """Take a person's judgement of a verdict, or planned work, from any thread; it counts from the next tick."""
        self._notes.append(note)

    def on_verdicts(self, verdicts: Sequence[Verdict], now_ns: int) -> Sequence[Verdict]:
        """Take the lines and records of one tick; return the fleet's own lines."""
        self._load()
        bundles, self._bundles = self._bundles, []
        while self._notes:
            note = self._notes.popleft()
            if isinstance(note, Feedback):
                self._view(note.cluster).on_feedback(note, now_ns)
            else:
                self._view(note.cluster).on_maintenance(note)
        for bundle in bundles:
            tell_records(self._view(bundle.job.cluster), bundle.fast.records, now_ns)
        for cluster in sorted({one.job.cluster for one in verdicts}):
            own = [one for one in verdicts if one.job.cluster == cluster]
            self._view(cluster).on_verdicts(own, now_ns)
        lines = [line for view in self.views.values() for line in view.on_time(now_ns)]
        self._tell_covers(now_ns)
        if now_ns - self._kept_ns >= _KEEP_NS:
            self._kept_ns = now_ns
            self._keep()
        return lines

    def _tell_covers(self, now_ns: int) -> None:
        """Say for which verdicts a fleet incident stands from now on, or no more."""
        found = []
        for cluster, view in self.views.items():
            covers, before = view.covers(), self._covers.get(cluster, {})
            if covers != before:
                found += covers_between(cluster, before, covers, now_ns)
                self._covers[cluster] = covers
        if found:
            self._on_covers(found)

    def _view(self, cluster: str) -> FleetView:
        """Return a cluster's view; a new cluster gets one."""
        if cluster not in self.views:
            self.views[cluster] = FleetView(self._config, cluster)
        return self.views[cluster]

    def _load(self) -> None:
        """Read the fleet's own file, unless a state is there already."""
        if self._is_loaded:
            return
        self._is_loaded = True
        if self._path is None or not self._path.exists():
            return
        try:
            pairs = unpack_state({_FILE_PART: self._path.read_bytes()}, _FILE_PART)
            self._restore({name: text.encode("latin-1") for name, text in pairs})
        except (OSError, SnapshotError) as error:
            _LOG.error("the fleet's file cannot be used: it begins anew", extra={"error": str(error)})
            self.views = {}

    def _keep(self) -> None:
        """Write the fleet's own file."""
        if self._path is None:
            return
        try:
            fresh = self._path.with_name(f"{self._path.name}.new")
            pairs = [[name, data.decode("latin-1")] for name, data in self.snapshot().items()]
            write_private(fresh, pack_state(pairs))
            fresh.replace(self._path)
        except OSError as error:
            _LOG.error("the fleet's file cannot be written", extra={"error": str(error)})

    def start(self) -> None:
        """Read the fleet's own file where no snapshot was restored."""
        self._load()

    def close(self) -> None:
        """Write the fleet's own file."""
        self._keep()

    def threads(self) -> Sequence[SupervisedThread]:
        """Return no threads: the ticking thread does all."""
        return ()

    def status(self) -> Mapping[str, Any]:
        """Return numbers of hosts and incidents of each cluster."""
        return {"clusters": [view.status() for _, view in sorted(self.views.items())]}

    def families(self) -> Sequence[Family]:
        """Return the metrics: hosts and the fleet's own incidents, by cluster."""
        return fleet_families(self.views)

    def handlers(self) -> Mapping[str, Handler]:
        """Return no requests of the control socket."""
        return {}

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as one part for each cluster."""
        return {quote(cluster, safe=""): view.snapshot()["fleet"] for cluster, view in sorted(self.views.items())}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by a snapshot's; without one the fleet's own file is read at the next tick."""
        self._bundles, self.views, self._is_loaded = [], {}, bool(parts)
        self._restore(parts)

    def _restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace all views by those of a snapshot or file."""
        views = {}
        for name, data in parts.items():
            view = FleetView(self._config, unquote(name))
            view.restore({"fleet": data})
            views[view.cluster] = view
        self.views = views


def attach_fleet(service: EngineService, folder: Path, config: FleetConfig | None = None) -> FleetFollower:
    """Attach the fleet view to an engine that has not started, and return it.

    Args:
        service: the engine.
        folder: folder of the fleet's own file.
        config: settings; None: the defaults.
    """
    follower = FleetFollower(
        config or FleetConfig(), folder / FILE_NAME, lambda covers: service.writer.put(Write(covers=tuple(covers)))
    )
    service.engine.taps.append(follower.tap)
    service.engine.more_live.append(follower.live)
    service.attach(follower)
    service.followers.covered_by = lambda one: follower.covering(one.job.cluster, one.verdict_id)
    return follower
