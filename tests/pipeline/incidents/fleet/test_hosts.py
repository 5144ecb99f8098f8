"""What the fleet view keeps of hosts' facts."""

from __future__ import annotations

from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.pipeline.incidents.fleet.intake import tell_records
from tocsin.pipeline.incidents.fleet.view import FleetView
from tocsin.schemas import events
from tocsin.schemas.action_events import MachineFacts
from tocsin.schemas.records import IDLE_JOB_ID, NS_PER_SECOND, Event, EventSource, JobKey, Severity

NOW_NS = 1_800_000_000 * NS_PER_SECOND


def facts(host: str, seconds: int, **payload: object) -> Event:
    at_ns = NOW_NS + seconds * NS_PER_SECOND
    job = JobKey("c", IDLE_JOB_ID)
    return Event(job, host, at_ns, -1, EventSource.KERNEL, events.HOST_FACTS, Severity.INFO, payload)


def told(*records: Event) -> FleetView:
    view = FleetView(FleetConfig(), "c")
    for record in records:
        tell_records(view, [record], record.ts_ns)
    return view


def test_an_idle_host_that_tells_its_facts_is_known_as_a_machine() -> None:
    view = told(facts("n1", 0, boot_id="a", booted_ns=5, driver="570", firmware="vbios 96", kernel="6.8"))
    assert list(view.hosts.machines("c")) == [
        MachineFacts("c", "n1", 0, boot_id="a", driver="570", firmware="vbios 96", booted_ns=5)
    ]


def test_what_an_event_leaves_out_stays_known_and_an_older_one_changes_nothing() -> None:
    view = told(
        facts("n1", 0, boot_id="a", booted_ns=5, driver="570"),
        facts("n1", 9, boot_id="b", booted_ns=70, driver=None),
        facts("n1", 12, boot_id="b", booted_ns=71),
        facts("n1", 3, boot_id="a", driver="550"),
    )
    [machine] = view.hosts.machines("c")
    assert (machine.boot_id, machine.booted_ns, machine.driver) == ("b", 70, "570")


def test_facts_are_part_of_the_view_s_state() -> None:
    view = told(facts("n1", 0, boot_id="a", booted_ns=5, driver="570"))
    again = FleetView(FleetConfig(), "c")
    again.restore(view.snapshot())
    assert list(again.hosts.machines("c")) == list(view.hosts.machines("c"))


def test_an_idle_host_s_minipod_is_known_and_stays_known_where_a_later_event_leaves_it_out() -> None:
    view = told(facts("n1", 0, boot_id="a", minipod="pod3"), facts("n1", 9, boot_id="a", driver="570"))
    again = FleetView(FleetConfig(), "c")
    again.restore(view.snapshot())
    assert [(one.host, one.minipod) for one in again.hosts.machines("c")] == [("n1", "pod3")]
