"""The gauge of standing incidents: who is shown, what leaves it, and that it is bounded."""

from dataclasses import replace

from tests.pipeline.stores.samples import ONSET, SECOND, verdict
from tocsin.pipeline.incidents.standing import StandingIncidents, incident_families
from tocsin.schemas.formats.prometheus_text import render
from tocsin.schemas.verdicts import Component, ComponentKind, FaultKind, Suspect, VerdictState

NOW = ONSET + 10 * SECOND


def hosts(*names: str) -> tuple[Suspect, ...]:
    return tuple(Suspect(Component(ComponentKind.HOST, name)) for name in names)


def test_labels_are_escaped_and_canaries_and_ended_ones_are_not_shown() -> None:
    odd = replace(verdict("a"), suspects=hosts('n"3\n'))
    page = render(incident_families([odd, verdict("b", reason="canary"), verdict("c", state=VerdictState.RESOLVED)]))

    assert (
        'tocsin_incident{cause="process_frozen",cluster="c1",fault="hang",host="n\\"3\\n",job="job-1",state="open"} 1'
        in page.split("# ")[2]
    )
    assert page.count("tocsin_incident{") == 1
    assert "tocsin_incidents_not_shown 0" in page


def test_what_nobody_is_told_of_says_why() -> None:
    lines = [replace(verdict(name), suspects=hosts(name)) for name in ("a", "b")]
    reasons = {"a": "under_maintenance", "b": ""}
    gauge, _ = incident_families(lines, silence=lambda one: reasons[one.verdict_id])

    assert [(one.labels["host"], one.labels.get("silenced")) for one in gauge.samples] == [
        ("a", "under_maintenance"),
        ("b", None),
    ]


def test_beyond_the_bound_confirmed_ones_stay_and_the_rest_is_counted() -> None:
    flood = [replace(verdict(f"f{i}"), suspects=hosts(f"x{i}"), fault=FaultKind.DEGRADED) for i in range(9)]
    wide = verdict("w", suspects=hosts(*(f"n{i}" for i in range(20))))
    real = verdict("r", suspects=hosts("bad"), state=VerdictState.CONFIRMED, onset_ns=ONSET + SECOND)
    gauge, left_out = incident_families([*flood, wide, real], dropped_count=2, max_count=10)

    shown = [sample.labels["host"] for sample in gauge.samples]
    assert shown[0] == "bad"
    assert len(shown) == 10
    assert left_out.samples[0].value == 30 - 10 + 2


def test_an_incident_leaves_when_it_ends_expires_or_another_reader_has_its_partition() -> None:
    standing = StandingIncidents()
    standing.take([verdict("a", 1), verdict("b"), verdict("c")], NOW, partition_index=2)
    standing.take([verdict("a", 0), verdict("b", 1, state=VerdictState.RESOLVED)], NOW, partition_index=2)
    standing.take([verdict("d")], NOW, partition_index=3)

    assert [(one.verdict_id, one.update) for one in standing.verdicts(NOW)] == [("a", 1), ("c", 0), ("d", 0)]
    assert standing.verdicts(ONSET + 600 * SECOND) == []
    standing.keep_partitions({3})
    assert [one.verdict_id for one in standing.verdicts(NOW)] == ["d"]


def test_the_memory_is_bounded_and_keeps_what_is_confirmed() -> None:
    standing = StandingIncidents(max_count=100)
    real = verdict("real", state=VerdictState.CONFIRMED)
    standing.take([real, *(verdict(f"f{i}") for i in range(1_000))], NOW)

    kept = standing.verdicts(NOW)
    assert len(kept) <= 100
    assert real in kept
    assert standing.dropped_count == 1_001 - len(kept)
