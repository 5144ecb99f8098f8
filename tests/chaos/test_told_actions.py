"""Actions among a job's records, as Flink hears them, and the same actions heard from the engine's own controller."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.embedded_rows import embedded_rows
from tests.chaos.told_actions import tables_with_actions, told_changes
from tests.pipeline.recording.kit import manifest, write_folder
from tests.pipeline.recording.outside import MOVE_SECONDS, arrow
from tests.pipeline.runtime.flink.test_job_times import driven, told_of
from tocsin.pipeline.recording.judged_range import in_span
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.runtime.embedded.engine import EngineConfig, played
from tocsin.pipeline.runtime.flink.driver import DriverConfig
from tocsin.pipeline.stores.attempt_times import TimePart
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.verdicts import ActionKind

SECONDS = MOVE_SECONDS + 20


def test_both_ways_account_for_the_same_wait_for_an_action(tmp_path: Path) -> None:
    recording = read_recording(
        write_folder(tmp_path, arrow(tables_with_actions()), reported=manifest(SECONDS, cluster="test"))
    )
    changes = told_changes(recording)
    assert len(changes) == 7

    newest = {one.job.attempt: one for one in embedded_rows(recording).write.attempt_times}
    [approved] = [one for one in changes if one.state is ActionState.APPROVED and one.action.kind is ActionKind.RESTART]
    assert newest[0].parts_ns[TimePart.SCHEDULING] == newest[1].began_ns - approved.changed_ns > 0
    assert TimePart.SCHEDULING not in newest[1].parts_ns

    records = list(in_span(records_of(recording), recording.manifest))
    outputs, _ = driven(records, DriverConfig(played(EngineConfig())), SECONDS + 2)
    assert {one.job.attempt: one for one in told_of(outputs)}[0] == newest[0]
