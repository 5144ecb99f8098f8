"""The fleet view in the embedded engine: idle hosts are judged, live and over restarts, and the state is kept."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.runtime.embedded.restarts import Life
from tests.pipeline.waiting import until
from tocsin.pipeline.alerts.notice import AlertSeverity, NoticeKind
from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.routes import Route, RouteConfig
from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.pipeline.incidents.maintenance import MaintenanceBook
from tocsin.pipeline.lab.testing.alerts import FakeAdapter
from tocsin.pipeline.runtime.embedded.alert_follower import AlertFollower, AlertHooks
from tocsin.pipeline.runtime.embedded.fleet_follower import FILE_NAME, FleetFollower, attach_fleet
from tocsin.pipeline.runtime.embedded.service_metrics import families_of
from tocsin.schemas import events
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.records import IDLE_JOB_ID, Event, EventSource, HostStatus, JobKey, Severity
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, VerdictState
from tocsin.schemas.wire.codec import encode

IDLE = JobKey("test", IDLE_JOB_ID)


class FleetLife(Life):
    """An engine's life with the fleet view, beside a job an idle host."""

    def attached(self) -> None:
        self.fleet = attach_fleet(self.service, self.folder)

    def say(self, name: str, **payload: object) -> None:
        """Let the idle host report an event, and that it is there."""
        now_ns = self.job.now_ns
        reported = Event(IDLE, "spare", now_ns, -1, EventSource.KERNEL, name, Severity.FATAL, payload)
        for record in (reported, HostStatus(IDLE, "spare", now_ns, 0, 0, (), False, 0, 0)):
            data = encode(record)
            if self.is_up:
                self.service.engine.take(data)
            else:
                self.kept.append(data)

    def xid_79(self, at_second: int, second: int) -> None:
        if second == at_second:
            self.say(events.XID, code=79, pci="0000:c1:00.0")


def test_an_idle_host_that_loses_a_gpu_is_an_incident_of_its_own(tmp_path: Path) -> None:
    life = FleetLife(tmp_path)
    life.run(20, lambda second: life.xid_79(10, second))
    until(lambda: bool(life.incidents()))

    [found] = life.incidents().values()
    assert [one.component.name for one in found.suspects] == ["spare"]
    assert (found.job.job_id, found.cause) == (IDLE_JOB_ID, "gpu_card_drop")
    [fleet] = life.client.call("status")["fleet"]["clusters"]
    assert (fleet["hosts_known"], fleet["hosts_idle"], fleet["host_incidents"]) == (9, 1, 1)
    life.end()


def test_a_person_s_no_takes_it_back_and_planned_work_proposes_nothing(tmp_path: Path) -> None:
    life = FleetLife(tmp_path)
    life.run(20, lambda second: life.xid_79(10, second))
    [found] = life.fleet.views["test"].live
    now_ns = life.job.now_ns
    life.fleet.take_note(Feedback("test", found.verdict_id, False, "it was reseated", "uid:1", now_ns))
    spare = Component(ComponentKind.HOST, "spare")
    life.fleet.take_note(Maintenance("0" * 16, "test", spare, now_ns, 2 * now_ns, "a new GPU", "uid:1", now_ns))
    life.run(2)
    assert not life.fleet.views["test"].live
    life.say(events.GPU_LOST)
    life.run(5)
    assert [one.action for one in life.fleet.views["test"].live] == [ActionKind.NONE]
    until(lambda: len(life.incidents()) == 2)
    assert life.incidents()[found.verdict_id].state is VerdictState.CANCELLED
    life.end()


def test_incidents_of_idle_hosts_and_of_the_fleet_are_closed_as_all_others(tmp_path: Path) -> None:
    life = FleetLife(tmp_path)
    life.run(12)
    for row in range(8):
        reported = Event(
            IDLE, f"spare{row}", life.job.now_ns, -1, EventSource.KERNEL, events.GPU_LOST, Severity.FATAL, {}
        )
        life.service.engine.take(encode(reported))
    life.run(5)
    standing = {one.job.job_id: one for one in life.fleet.views["test"].live}
    assert set(standing) == {IDLE_JOB_ID, FLEET_JOB_ID}
    for one in standing.values():
        assert life.client.call("incident_close", id=one.verdict_id, note="known")["verdict_id"] == one.verdict_id
    life.run(5)
    still = {one.verdict_id for one in life.fleet.views["test"].live}
    assert not still & {one.verdict_id for one in standing.values()}
    assert {job.job_id for job in life.service.engine.jobs()} == {"job", IDLE_JOB_ID}
    life.end()


class AlertedFleetLife(FleetLife):
    """The same with a pager that outlives the engine."""

    def __init__(self, folder: Path) -> None:
        self.pager = FakeAdapter()
        super().__init__(folder)

    def attached(self) -> None:
        super().attached()
        queue = AlertQueue(self.folder / "alerts.db", self.job.now_ns)
        hooks = AlertHooks(covered_by=lambda one: self.fleet.covering(one.job.cluster, one.verdict_id))
        routes, adapters = RouteConfig({}, (Route("all", "pager"),)), {"pager": self.pager}
        self.alerts = AlertFollower(routes, adapters, queue, hooks, clock_ns=lambda: self.job.now_ns, has_threads=False)
        self.service.attach(self.alerts)


def test_many_hosts_that_fail_alike_are_one_page_about_the_fleet(tmp_path: Path) -> None:
    life = AlertedFleetLife(tmp_path)
    life.run(12)
    for row in range(8):
        lost = Event(IDLE, f"spare{row}", life.job.now_ns, -1, EventSource.KERNEL, events.GPU_LOST, Severity.FATAL, {})
        life.service.engine.take(encode(lost))
    life.run(5)
    life.alerts.sender.run_once(life.job.now_ns)

    [page] = life.pager.sent
    assert (page.kind, page.severity, page.verdict.job.job_id) == (
        NoticeKind.FIRING,
        AlertSeverity.PAGE,
        FLEET_JOB_ID,
    )
    assert len(life.fleet.views["test"].live) == 9
    assert set(_silenced(life).values()) == {"", "covered_by_fleet"}
    assert _silenced(life)[FLEET_JOB_ID, ""] == ""
    fleet_id = page.verdict.verdict_id
    life.service.writer.stop()
    covers = {one.verdict_id: one.incident_id for one in life.store.covers}
    assert covers == {one.verdict_id: fleet_id for one in life.fleet.views["test"].live if one.verdict_id != fleet_id}
    book = MaintenanceBook(lambda _job, _host: "")
    spare = Component(ComponentKind.HOST, "spare3")
    book.take(Maintenance("0" * 16, "test", spare, 1, 2 * life.job.now_ns, "a new GPU", "uid:1", 1))
    life.service.memory.proposals.maintenance = book
    assert _silenced(life)[IDLE_JOB_ID, "spare3"] == "under_maintenance"
    assert _silenced(life)[IDLE_JOB_ID, "spare4"] == "covered_by_fleet"
    life.end()


def _silenced(life: FleetLife) -> dict[tuple[str, str], str]:
    """Return job and host of each incident on the gauge -> why nobody is told of it."""
    [gauge] = [one for one in families_of(life.service) if one.name == "tocsin_incident"]
    return {(one.labels["job"], one.labels["host"]): one.labels.get("silenced", "") for one in gauge.samples}


def test_what_an_idle_host_said_is_known_after_a_kill_and_told_once(tmp_path: Path) -> None:
    life = FleetLife(tmp_path)
    life.run(20, lambda second: life.xid_79(16, second))
    until(lambda: bool(life.incidents()))
    before = life.incidents()
    life.kill()
    life.start()
    life.run(10)
    until(lambda: bool(life.incidents()))

    assert life.incidents() == before != {}
    assert [one.update for one in life.incidents().values()] == [0]
    assert len(life.fleet.views["test"].live) == 1
    life.end()


def test_a_report_that_is_in_the_journal_only_opens_after_the_restart(tmp_path: Path) -> None:
    life = FleetLife(tmp_path)
    life.run(19)
    life.say(events.XID, code=79)
    life.service.recovery.ledger.commit()  # type: ignore[union-attr]  # it was made with one
    life.kill()
    life.start()
    life.run(5)
    until(lambda: bool(life.incidents()))

    assert [one.cause for one in life.incidents().values()] == ["gpu_card_drop"]
    life.end()


def test_the_fleet_s_file_outlives_the_engine_s_state(tmp_path: Path) -> None:
    life = FleetLife(tmp_path)
    life.run(20, lambda second: life.xid_79(10, second))
    reported = life.fleet.views["test"].live
    life.end()
    follower = FleetFollower(FleetConfig(), tmp_path / FILE_NAME)
    follower.start()
    assert follower.views["test"].live == reported

    (tmp_path / FILE_NAME).write_bytes(b"damaged")
    anew = FleetFollower(FleetConfig(), tmp_path / FILE_NAME)
    anew.start()
    assert anew.views == {}
