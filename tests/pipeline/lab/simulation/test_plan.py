import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.lab.simulation.plan import (
    Envelope,
    EnvelopeShape,
    Plan,
    Stall,
    Truth,
    merged,
)

SHAPES = st.sampled_from(["sudden", "linear", "exponential", "stairs", "flicker"])


@given(SHAPES, st.floats(0.0, 100.0), st.floats(1.0, 100.0), st.floats(0.1, 50.0), st.floats(0.0, 1.0))
def test_an_envelope_is_nothing_outside_its_span_and_never_above_one(
    shape: EnvelopeShape, onset: float, length: float, rise: float, duty: float
) -> None:
    envelope = Envelope(onset, onset + length, rise, shape, duty)
    seconds = np.linspace(-10.0, 250.0, 500)
    strength = envelope.at(seconds)

    assert ((strength >= 0) & (strength <= 1)).all()
    assert not strength[(seconds < onset) | (seconds >= onset + length)].any()
    if not envelope.touches(0.0, 50.0):
        assert not envelope.at(np.linspace(0.0, 50.0, 100)).any()


def test_sudden_is_there_at_once_and_linear_half_way() -> None:
    assert Envelope(10.0).at(np.array([9.9, 10.0])).tolist() == [0.0, 1.0]
    assert Envelope(10.0, rise_seconds=20.0, shape="linear").at(np.array([20.0, 40.0])).tolist() == [0.5, 1.0]


def test_merging_keeps_every_part_and_every_truth() -> None:
    stall = Stall((0,), 1.0, 2.0)
    truth = Truth("hang", "unknown", 0, 1.0)
    plan = merged([Plan((stall,), (), ("jitter",)), Plan((), (truth,))])

    assert plan.of(Stall) == [stall]
    assert plan.truths == (truth,)
    assert plan.benign_disturbances == ("jitter",)
