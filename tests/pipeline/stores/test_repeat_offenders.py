"""The view of repeat offenders: only faults of machines that a person or a check upheld."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clickhouse_fixtures import opened_store
from tests.pipeline.stores.test_views import CANCELLED, CONFIRMED, DAY, NOW, RESOLVED, SECOND, ask, queries, told
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.operator_notes import Feedback, Maintenance, OperatorNote
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Component, ComponentKind, Verdict, Witness, WitnessKind


@pytest.fixture(scope="module")
def offences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    """A store with two incidents of each host; the host's name says what became of them."""
    with opened_store("chdb", tmp_path_factory.mktemp("offences")) as opened:
        hosts = [f"by-person-{cause}" for cause in CAUSES]
        hosts += ["by-check", "by-others-check", "by-nobody", "wrong", "checked-wrong", "planned", "judged-offender"]
        hosts += ["cancelled", "checked-cancelled", "upheld-after-cancelled"]
        lines: list[Verdict] = []
        words: list[OperatorNote] = []
        for row, host in enumerate([*hosts, *hosts]):
            name = f"{host}-{row}"
            lines += told(
                name,
                5,
                CONFIRMED,
                CANCELLED if "cancelled" in host else RESOLVED,
                host=host,
                job=JobKey("c1", f"job-{row}", 0),
                cause=host.removeprefix("by-person-") if "person" in host else "ecc_error",
                witnesses=(Witness("n9" if "others" in host else host, WitnessKind.CHECK),) if "check" in host else (),
                reason="repeat_offender" if host == "judged-offender" else "hardware_event",
            )
            if host not in ("by-nobody", "by-check", "by-others-check", "checked-cancelled"):
                said_ns = lines[-2].detected_ns + SECOND if host == "cancelled" else NOW
                words.append(Feedback("c1", name, "wrong" not in host, "looked at it", "ann", said_ns))
        opened.write_verdicts(lines)
        target = Component(ComponentKind.HOST, "planned")
        opened.write_notes([*words, Maintenance("m1", "c1", target, NOW - 6 * DAY, NOW - 4 * DAY, "card", "ann", NOW)])
        yield opened


def test_repeat_offenders_are_those_whose_machine_faults_were_upheld(offences: SqlStore) -> None:
    found = {row["host"]: row for row in ask(offences, queries()["Which machines come back again and again"])}
    upheld = {f"by-person-{cause}" for cause, one in CAUSES.items() if one.blames == "machine"}
    assert set(found) == {*upheld, "by-check", "upheld-after-cancelled"}
    row = found["by-check"]
    assert (int(row["incidents"]), int(row["by_people"]), int(row["jobs"])) == (2, 0, 2)
    assert row["causes"] == ["ecc_error"]
    assert int(found["by-person-ecc_error"]["by_people"]) == 2
