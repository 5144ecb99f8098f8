"""The ledger of effective training time in the embedded engine: rows each minute, over kills, and its own file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.runtime.embedded.restarts import Life
from tests.pipeline.waiting import until
from tocsin.pipeline.incidents.ettr.ledger import EttrConfig
from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError
from tocsin.pipeline.runtime.embedded.ettr_follower import FILE_NAME, EttrFollower, attach_ettr, ettr_answerer
from tocsin.pipeline.runtime.embedded.store_writer import Write
from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.schemas.records import NS_PER_SECOND, JobKey


class EttrLife(Life):
    """An engine's life with the ledger."""

    def attached(self) -> None:
        self.ettr = attach_ettr(self.service, self.store, self.folder)

    def newest(self) -> AttemptTime:
        until(lambda: self.service.writer.waiting_count == 0)
        return max(self.store.attempt_times, key=lambda one: one.told_ns)


def test_a_row_is_written_each_minute_and_at_the_end_and_shown_as_a_metric(tmp_path: Path) -> None:
    life = EttrLife(tmp_path)
    life.run(130)
    until(lambda: len(life.store.attempt_times) >= 3)
    minutes = [one.told_ns // (60 * NS_PER_SECOND) for one in life.store.attempt_times]
    assert len(set(minutes)) == len(minutes)
    [shown] = life.client.call("status")["ettr"]["attempts"]
    assert shown["job_id"] == "job"
    assert shown["ettr_ratio"] > 0.8
    [family] = life.ettr.families()
    assert {sample.labels["part"] for sample in family.samples} == {"productive", "unattributed"}

    life.job.end()
    life.run(5)
    last = life.newest()
    assert last.is_over
    assert last.parts_ns[TimePart.PRODUCTIVE] == pytest.approx(130 * NS_PER_SECOND, rel=0.01)
    life.end()


def test_a_kill_counts_no_step_twice_and_loses_none(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    lives = [EttrLife(folder) for folder in folders]
    for life in lives:
        life.run(70)
    lives[1].kill()
    lives[1].start()
    for life in lives:
        life.run(60)
        life.job.end()
        life.run(5)
    whole, killed = (life.newest() for life in lives)
    assert killed == replace(whole, told_ns=killed.told_ns)
    assert killed.recomputed_steps_count == 0
    for life in lives:
        life.end()


def test_the_ledger_s_file_outlives_the_engine_s_state(tmp_path: Path) -> None:
    life = EttrLife(tmp_path)
    life.run(70)
    told = life.ettr.ledger.accounts(life.job.now_ns)
    life.end()
    assert life.store.attempt_times[-1].until_ns == life.job.now_ns
    anew = EttrFollower(EttrConfig(), tmp_path / FILE_NAME, lambda _: None)
    anew.start()
    assert anew.ledger.accounts(life.job.now_ns) == told != []

    (tmp_path / FILE_NAME).write_bytes(b"damaged")
    anew = EttrFollower(EttrConfig(), tmp_path / FILE_NAME, lambda _: None)
    anew.start()
    assert anew.ledger.accounts(life.job.now_ns) == []


def test_readers_may_ask_for_one_job(tmp_path: Path) -> None:
    life = EttrLife(tmp_path)
    assert "ettr" in life.service.server.readers.answerers
    life.end()
    answer = ettr_answerer(lambda sql, fmt: b'{"attempt": 0}\n' if "WHERE job_id" in sql else b"")
    assert answer({"job_id": "j"}) == {"rows": [{"attempt": 0}]}
    assert answer({}) == {"rows": []}
    with pytest.raises(EngineRefusedError, match="job_id"):
        answer({"job_id": 5})


def test_accounts_of_queued_writes_are_merged_in_their_order() -> None:
    first = AttemptTime(JobKey("c", "j"), 0, 1, 1, is_over=False)
    writes = [Write(attempt_times=(first,)), Write(), Write(attempt_times=(replace(first, told_ns=2),))]
    merged = writes[0] + writes[1] + writes[2]
    assert [len(one) for one in (*writes, merged)] == [1, 0, 1, 2]
    assert [one.told_ns for one in merged.attempt_times] == [1, 2]
