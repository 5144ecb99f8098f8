"""Plays side by side in one set of topics."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.plays import both_orders, merged
from tests.pipeline.recording.kit import manifest, write_folder
from tests.pipeline.recording.outside import Job, arrow
from tocsin.pipeline.recording.reader import read_recording
from tocsin.schemas.kafka.topics import timestamp_ms

_LATENESS_MS = 1000


def test_no_play_makes_another_ones_records_late(tmp_path: Path) -> None:
    job = Job(hosts=("h0", "h1", "h2"), gpus=1, seconds=20)
    recording = read_recording(write_folder(tmp_path, arrow(job.tables()), reported=manifest(20)))
    newest_ms = count = 0
    for tick_ns, records in merged(both_orders("two", recording, 1)):
        for record in records:
            stamp_ms = timestamp_ms(record)
            newest_ms = max(newest_ms, stamp_ms)
            window_ms = stamp_ms // 1000 * 1000 + 999  # the newest stamp of the record's second
            assert newest_ms - _LATENESS_MS < window_ms
            count += 1
        newest_ms = max(newest_ms, tick_ns // 1_000_000)
    assert count > 100
