"""A model at the deaf end of all its bounds: what it may hide, and what it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model_announcements import announced
from tocsin.models.bilstm_file import decode_bilstm, encode_bilstm
from tocsin.models.documents import PEERS_SECTIONS, STEPS_SECTIONS, Numbers, Sections
from tocsin.models.lstm_vae import Limits
from tocsin.models.minder_file import decode_minder, encode_minder
from tocsin.models.model_formats import accept
from tocsin.pipeline.detect.learned.shipped import shipped_model
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.model_announcement import ModelAnnouncement, boundary_after, content_hash
from tocsin.schemas.reasons import ModelRefusal
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.codec import encode

KEENER_WHEN_HIGH = {
    "max_sigmas",
    "limit_ratio",
    "suspicious_sigmas",
    "suspicious_rate_ratio",
    "lone_gpu_ratio",
    "standing_share_ratio",
    "lone_standing_share_ratio",
    "max_suspect_ratio",
    "early_ratio",
    "max_volatility_ratio",
    "max_host_ratio",
}
"""Numbers with which a detector hears more when they are high; the others: when they are low."""


def deafest(sections: Sections) -> dict[str, dict[str, float]]:
    """Every number at the end at which least is heard."""
    return {
        section: {
            name: bounds.low if name in KEENER_WHEN_HIGH else bounds.high for name, bounds in sections[section].items()
        }
        for section in sections
    }


STEPS = deafest(STEPS_SECTIONS)
PEERS = deafest(PEERS_SECTIONS)
for _section in ("working", "standing"):
    # the end that these three may reach together (more is out of range)
    PEERS[_section] |= {"alarm_sum": 20.0, "drift_sigmas": 4.5, "max_sigmas": 7.5}


@pytest.mark.parametrize("rank_count", [4, 8, 16])
@pytest.mark.parametrize("numbers", [{}, STEPS], ids=["own", "deafest"])
def test_a_rank_that_doubles_the_step_time_is_named(rank_count: int, numbers: Numbers) -> None:
    job = FakeJob(JobShape(rank_count))
    engine = EmbeddedEngine(EngineConfig(history=None))
    start_ns = job.shape.start_ns
    engine.take(encode(announced(start_ns, 0, 10, numbers, name="steps")))
    named: set[str] = set()
    for second in range(180):
        if second == 60:
            job.slow(2, "forward", 3.0)
        for record in job.second():
            engine.take(encode(record))
        for verdict in engine.tick(job.now_ns).verdicts:
            named |= {suspect.component.name for suspect in verdict.suspects}
    assert named == {"n02"}


@pytest.mark.parametrize("seed", [5, 10])
def test_a_machine_with_capped_power_is_named(seed: int) -> None:
    """Later than by the program's own numbers; a weak cap (seed 3) may be hidden by a model."""
    recording = draw_case(seed, 4, "power_cap", duration_seconds=300.0).recording()
    assert recording.truth is not None
    (fault,) = recording.truth["faults"]
    model = announced(recording.manifest.start_ns, 0, 10, PEERS)
    found = replay(recording, ReplayConfig(announcements=(model,)))
    named = {suspect.component.name for verdict in found for suspect in verdict.suspects}
    assert named == {suspect["name"] for suspect in fault["suspects"]}


def shipped(detector: str) -> bytes:
    payload = shipped_model(detector)
    assert payload is not None
    return payload


def of_payload(detector: str, payload: bytes) -> ModelAnnouncement:
    ts_ns = 1_800_000_000 * NS_PER_SECOND
    times = ts_ns, boundary_after(ts_ns)
    return ModelAnnouncement(times[0], detector, "new", f"{detector}/1", content_hash(payload), payload, times[1])


@pytest.mark.parametrize("detector", ["bilstm", "minder"])
def test_what_ships_may_be_announced(detector: str) -> None:
    assert accept(of_payload(detector, shipped(detector))).version == "new"


@pytest.mark.parametrize("line_factor", [5e-324, 1e-300, 60.0, 1e300])
def test_networks_that_hear_nothing_are_refused_before_they_are_in_use(line_factor: float) -> None:
    networks = decode_bilstm(shipped("bilstm"))
    deaf = encode_bilstm({name: replace(one, line_factor=line_factor) for name, one in networks.items()})
    engine = EmbeddedEngine(EngineConfig(history=None))

    with pytest.raises(ModelRefusedError, match=r"phases\.line_factor = ") as caught:
        engine.take(encode(of_payload("bilstm", deaf)))

    assert caught.value.reason in {ModelRefusal.OUT_OF_RANGE, ModelRefusal.BLIND_TO_SHUFFLED}


@pytest.mark.parametrize("ends", [Limits(0.0, 5e-324), Limits(1e9, 1e10)])
def test_limits_that_leave_a_metric_nothing_to_say_are_refused(ends: Limits) -> None:
    whole = decode_minder(shipped("minder"))
    name = whole.priority[0]
    single = {**whole.single, name: replace(whole.single[name], limits=(ends,))}
    model = replace(whole, limits={**whole.limits, name: ends}, single=single, integrated=None)

    with pytest.raises(ModelRefusedError, match=f"limits of {name} = ") as caught:
        accept(of_payload("minder", encode_minder(model)))

    assert caught.value.reason == ModelRefusal.OUT_OF_RANGE
