"""The harness itself: it must see what differs, and be the same for the same seed."""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.kills import schedule
from tests.chaos.learned import Learned, add_learned_arguments, learned_of, shown_counts
from tests.chaos.outcome import embedded, line_difference, outcome, read_tables
from tests.chaos.page_site import first_as_changed_count, messages_of, page_difference, pages_of
from tests.chaos.plays import Play, as_job, both_orders, judged_with, merged, streams
from tests.chaos.recordings import SETS, several_faults, simulated
from tests.chaos.tables import difference
from tests.chaos.up import COMPONENTS
from tests.pipeline.alerts.adapters.receiver import Receiver, Reply, Request
from tocsin.pipeline.detect.learned.config import DetectorMode
from tocsin.pipeline.detect.learned.registry import LEARNED
from tocsin.pipeline.recording.replay import ReplayConfig, seconds_of
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.records import NS_PER_SECOND

ROW = {"verdict_id": "a", "state": "open"}


@pytest.mark.parametrize(
    ("found", "reported"),
    [
        ({"incidents": [ROW]}, ""),
        ({}, "incidents lacks 1 rows, first a"),
        ({"incidents": [ROW, {**ROW, "verdict_id": "b"}]}, "incidents has also 1 rows, first b"),
        ({"incidents": [ROW, ROW]}, "incidents: 2 rows, must be 1"),
        ({"incidents": [{**ROW, "state": "resolved"}]}, "incidents, a, state: 'resolved', must be 'open'"),
        ({"incidents": [ROW], "actions": [{**ROW, "target": "n1"}]}, "actions has also 1 rows, first an1"),
    ],
)
def test_what_differs_in_a_table_is_named(found: dict[str, list[dict[str, str]]], reported: str) -> None:
    assert difference({"incidents": [ROW]}, found) == reported


def test_the_tables_of_an_undisturbed_run_are_equal_to_themselves_and_a_lost_line_is_seen(tmp_path: Path) -> None:
    play = Play("play", as_job(simulated("nic_dropout", 5, seconds=300), "j"), ReplayConfig())
    verdicts = embedded([play], tmp_path)["j"]
    tables, lines = read_tables(tmp_path), [encode_verdict(verdict) for verdict in verdicts]
    said = outcome(play, verdicts, [*lines, lines[-1]], tables, tables)

    assert len(lines) > 2
    assert (said.line_count, said.repeated_count, said.differs) == (len(lines), 1, "")
    assert outcome(play, verdicts, lines[:-1], tables, tables).differs.startswith("1 lines missing, 0 too many")
    assert outcome(play, verdicts, lines[::-1], tables, tables).differs == "the lines stand in another order"
    assert "actions lacks" in outcome(play, verdicts, lines, tables, {"j": {**tables["j"], "actions": []}}).differs
    other = encode_verdict(replace(verdicts[-1], reason="other"))
    assert "was said in 2 ways" in line_difference(lines, [*lines, other])


def test_each_part_is_killed_as_often_and_the_same_seed_gives_the_same_times() -> None:
    plan = schedule(3, 2, (1.0, 2.0))

    assert plan == schedule(3, 2, (1.0, 2.0))
    assert plan != schedule(4, 2, (1.0, 2.0))
    assert Counter(kill.component for kill in plan) == dict.fromkeys(COMPONENTS, 2)
    assert all(1.0 <= kill.after_seconds <= 8.0 for kill in plan)


def test_plays_that_end_together_share_topics_and_have_one_tick_a_second() -> None:
    plays = both_orders("a", simulated("nic_dropout", 1, seconds=60), 1)
    plays += both_orders("b", simulated("healthy", 2, seconds=120), 1)
    first, second = streams(plays)
    ticks, records = zip(*merged(first), strict=True)

    assert [len(first), len(second)] == [2, 2]
    assert {after - before for before, after in itertools.pairwise(ticks)} == {NS_PER_SECOND}
    wanted = [sum(len(sent) for _, sent in seconds_of(play.recording, play.config)) for play in first]
    found = Counter(record.job.job_id for sent in records for record in sent)
    assert [found[play.job_id] for play in first] == wanted
    assert wanted[1] == 2 * wanted[0]


def test_plays_of_one_stream_are_judged_with_the_same_learned_detectors_and_models() -> None:
    plays = both_orders("a", simulated("healthy", 1, seconds=60), 1)
    learned = Learned(("bilstm=accuse",), {"bilstm": b"payload"})
    judged = judged_with(plays, learned)
    [announcement] = learned.announced_after(plays[0].recording.manifest.start_ns)

    assert [play.config.announcements for play in judged] == [(announcement,)] * 2
    assert {play.config.engine.job.learned.mode_of("bilstm") for play in judged} == {DetectorMode.ACCUSE}
    assert (judged[1].config.shuffle_seed, judged[1].in_order().shuffle_seed) == (1, None)
    assert judged[1].in_order().announcements == (announcement,)
    assert [play.config.engine for play in judged_with(plays, Learned())] == [play.config.engine for play in plays]


@pytest.mark.slow
def test_a_recording_of_a_slow_machine_shows_evidence_of_all_learned_detectors(tmp_path: Path) -> None:
    flags = [f"--detector={name}=evidence" for name in LEARNED]
    add_learned_arguments(parser := argparse.ArgumentParser())
    recording = next(found for name, found in SETS["outside"](tmp_path) if name == "slow")
    [play] = judged_with([Play("slow", recording, ReplayConfig())], learned_of(parser.parse_args(flags)))

    assert set(shown_counts(play.embedded())) == set(LEARNED)


def test_a_job_with_several_faults_has_several_truths() -> None:
    truth = several_faults(1, ["ecc_error", "power_cap", "loader_stall"]).truth
    assert truth is not None
    assert len(truth["faults"]) == 3


def receiver_of(*messages: tuple[str, str, str]) -> Receiver:
    """A receiver that was told these messages: key, incident, kind."""
    with Receiver(lambda _: Reply(204)) as made:
        words = ("delivery", "incident", "kind")
        made.asked = [Request("/", {}, json.dumps(dict(zip(words, one, strict=True))).encode()) for one in messages]
    return made


def test_pages_that_are_missing_doubled_or_first_told_as_changed_are_seen() -> None:
    calm = pages_of(receiver_of(("1", "v1", "firing"), ("2", "v1", "changed"), ("3", "v1", "resolved")))
    again = receiver_of(("1", "v1", "firing"), ("1", "v1", "firing"), ("3", "v1", "resolved"))
    changed = receiver_of(("2", "v1", "changed"), ("3", "v1", "resolved"))
    doubled = receiver_of(("1", "v1", "firing"), ("9", "v1", "firing"), ("3", "v1", "resolved"))

    assert page_difference(calm, pages_of(again)) == []
    assert (len(again.asked), len(messages_of(again))) == (3, 2)
    assert page_difference(calm, pages_of(changed)) == []
    assert [first_as_changed_count(one) for one in (again, changed)] == [0, 1]
    assert page_difference(calm, pages_of(doubled)) == ["incident v1, told: was told besides"]
    lost = pages_of(receiver_of(("1", "v1", "firing")))
    assert page_difference(calm, lost) == ["incident v1, resolved: was told in the undisturbed run only"]
