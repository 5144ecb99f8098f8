"""The one-class network: statements D1 to D3 and D6 of seed-systems-b.md 4.4, and the collapse it warns of."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.models.ocnn_cases import TRAINING, VOCABULARY, flat, normal_data, sequences
from tocsin.models.bilstm_ocnn import OcnnModel, collapse_of, read_model, refuse_collapsed, shuffled
from tocsin.models.op_features import Vocabulary
from tocsin.models.weights import read_weights, write_weights
from tocsin.schemas.errors import ConfigError, FieldError, ModelRefusedError
from tocsin.schemas.reasons import ModelRefusal

torch = pytest.importorskip("torch", reason="training needs tocsin[train]")

from tocsin.models.training.bilstm_ocnn_training import AlternationRound, OcnnNetwork, nu_quantile, train  # noqa: E402  # torch first

DATA = normal_data()
QUICK = replace(TRAINING, turn_count=4, turn_steps=5, encoder_steps=10)


@cache
def trained() -> tuple[OcnnModel, tuple[AlternationRound, ...]]:
    """One model for the whole module, and the turns that led to it."""
    torch.set_num_threads(1)
    turns: list[AlternationRound] = []
    return train(DATA, VOCABULARY, TRAINING, turns.append), tuple(turns)


def with_weights(model: OcnnModel, **changes: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> OcnnModel:
    return replace(model, weights={**model.weights, **changes})


class TestTraining:
    def test_d1_after_each_turn_the_share_below_r_is_nu(self) -> None:
        turns = trained()[1]

        assert [turn.index for turn in turns] == list(range(TRAINING.turn_count))
        for turn in turns:
            assert abs(turn.below_ratio - TRAINING.nu_ratio) <= 1 / len(DATA.training)

    @pytest.mark.parametrize("nu_ratio", [0.01, 0.05, 0.10, 0.5])
    @pytest.mark.parametrize("count", [100, 101, 997])
    def test_the_nu_quantile_leaves_nu_below_it(self, nu_ratio: float, count: int) -> None:
        values = np.random.default_rng(3).permutation(count).astype(float)

        assert abs(float((values < nu_quantile(values, nu_ratio)).mean()) - nu_ratio) <= 1 / count

    def test_d2_the_raw_alarm_rate_on_other_jobs_is_nu_within_chance(self) -> None:
        model, nu = trained()[0], TRAINING.nu_ratio
        rate = float((model.outputs(DATA.held_out) < model.quantile_score).mean())

        assert abs(rate - nu) <= 3 * np.sqrt(nu * (1 - nu) / DATA.independent_count)

    def test_no_normal_sequence_is_beyond_the_alarm_line(self) -> None:
        assert trained()[0].scores(DATA.held_out).max() < 1
        assert trained()[0].scores(flat(sequences(40, 7))).max() < 1

    @pytest.mark.parametrize("slow_factor", [1.2, 1.5, 2.0])
    def test_d4_the_slow_rank_is_beyond_it_and_its_waiting_peers_are_not(self, slow_factor: float) -> None:
        """Recall of the fault and specificity on its victims, per strength: never accuracy alone."""
        found = trained()[0].scores(flat(sequences(20, 3, slow_factor))).reshape(20, 8) >= 1

        assert found[:, 3].mean() >= 0.95
        assert np.delete(found, 3, axis=1).mean() <= 0.01

    def test_d6_a_change_of_the_workload_changes_no_score(self) -> None:
        usual, longer = flat(sequences(10, 9)), flat(sequences(10, 9, scale=3.0))

        assert trained()[0].scores(longer) == pytest.approx(trained()[0].scores(usual), abs=1e-3)

    def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(self) -> None:
        first, second = (train(DATA, VOCABULARY, QUICK, check=False).to_bytes() for _ in range(2))

        assert first == second
        assert train(DATA, VOCABULARY, replace(QUICK, seed=1), check=False).to_bytes() != first

    def test_training_leaves_the_callers_random_state_alone(self) -> None:
        torch.manual_seed(11)
        wanted = torch.rand(1)
        torch.manual_seed(11)
        train(DATA, VOCABULARY, QUICK, check=False)

        assert torch.equal(torch.rand(1), wanted)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"training": DATA.training[:5]}, "at least 20 sequences"),
            ({"held_out": DATA.held_out[:, :, :5]}, "held_out"),
            ({"held_out": DATA.held_out[:, :3]}, "held_out"),
            ({"training": np.where(DATA.training > 0.9, np.nan, DATA.training)}, "NaN"),
        ],
        ids=["few", "features", "windows", "nan"],
    )
    def test_data_that_cannot_be_trained_on_is_refused_by_name(self, changes: dict[str, object], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            train(replace(DATA, **changes), VOCABULARY, QUICK)  # type: ignore[arg-type]  # names are in the table above

    @pytest.mark.parametrize("nu_ratio", [0.0, 1.0, -0.1])
    def test_settings_that_cannot_be_are_refused(self, nu_ratio: float) -> None:
        with pytest.raises(ConfigError, match="nu_ratio"):
            replace(TRAINING, nu_ratio=nu_ratio)


class TestCollapse:
    def test_d3_the_guard_does_not_fire_for_the_sigmoid(self) -> None:
        assert collapse_of(trained()[0], DATA.held_out, DATA.independent_count) is None

    @pytest.mark.slow  # two trainings
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [({"bounded": False}, "collapsed_scores"), ({"anchor_weight": 0.0}, "collapsed_scores")],
        ids=["linear-g", "objective-as-published"],
    )
    def test_d3_the_guard_fires_for_the_linear_head_and_without_the_anchor(
        self, changes: dict[str, float], reason: str
    ) -> None:
        with pytest.raises(ModelRefusedError) as caught:
            train(DATA, VOCABULARY, replace(TRAINING, **changes))  # type: ignore[arg-type]  # the same

        assert caught.value.reason == reason

    def test_weights_that_went_to_zero_are_refused(self) -> None:
        model = with_weights(trained()[0], w=trained()[0].weights["w"] * np.float32(1e-5))

        assert _reason(replace(model, quantile_score=-1e-9, median_score=0.0)) == "collapsed_weights"

    def test_weights_that_grew_without_bound_are_refused(self) -> None:
        assert _reason(with_weights(trained()[0], w=trained()[0].weights["w"] * np.float32(1e3))) == "unbounded_weights"

    def test_a_network_that_maps_everything_to_one_point_is_refused(self) -> None:
        model = trained()[0]
        zero = {name: np.zeros_like(values) for name, values in model.weights.items() if "_input" in name}

        assert _reason(with_weights(model, **zero)) == "collapsed_features"

    def test_a_network_that_scores_all_normal_data_the_same_is_refused(self) -> None:
        model = trained()[0]

        assert _reason(replace(model, quantile_score=model.median_score - 1e-6)) == "collapsed_scores"

    def test_a_network_that_takes_nonsense_for_normal_is_refused(self) -> None:
        assert _reason(replace(trained()[0], line_factor=1e6)) == "blind_to_shuffled"

    def test_d2_a_network_that_alarms_on_other_normal_data_is_refused(self) -> None:
        model = trained()[0]
        y = np.sort(model.outputs(DATA.held_out))
        high = replace(
            model, quantile_score=float(y[len(y) * 4 // 10]), median_score=float(y.max()) + 0.1, line_factor=0.01
        )

        assert _reason(high) == "false_alarm_rate"

    def test_shuffled_data_holds_the_same_numbers(self) -> None:
        odd = shuffled(DATA.held_out, 0)

        assert np.array_equal(np.sort(odd, axis=2), np.sort(DATA.held_out, axis=2))
        assert np.array_equal(odd, shuffled(DATA.held_out, 0))


def _reason(model: OcnnModel) -> str:
    with pytest.raises(ModelRefusedError) as caught:
        refuse_collapsed(model, DATA.held_out, DATA.independent_count)
    return caught.value.reason


class TestNumpyAgainstTorch:
    def test_the_outputs_are_equal_to_1e_5(self) -> None:
        torch.manual_seed(0)
        network = OcnnNetwork(DATA.training.shape[2], DATA.training.shape[1], TRAINING)
        scale = {
            "mean": np.zeros(DATA.training.shape[2], np.float32),
            "deviation": np.ones(DATA.training.shape[2], np.float32),
        }
        model = replace(trained()[0], weights={**scale, **network.weights()})
        inputs = np.random.default_rng(1).random(DATA.training.shape, np.float32)
        inputs = np.multiply(10, inputs - 0.5, dtype=np.float32)

        with torch.no_grad():
            wanted = network(torch.from_numpy(inputs)).numpy()
            states = network.encode(torch.from_numpy(inputs)).numpy()

        assert np.abs(model.encode(inputs) - states).max() < 1e-5
        assert np.abs(model.outputs(inputs) - wanted).max() < 1e-5


class TestFile:
    def test_it_comes_back_and_has_kilobytes(self) -> None:
        payload = trained()[0].to_bytes()
        again = read_model(payload)

        assert np.array_equal(again.outputs(DATA.held_out), trained()[0].outputs(DATA.held_out))
        assert (again.vocabulary, again.line_factor) == (VOCABULARY, trained()[0].line_factor)
        assert len(payload) < 30_000

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"vocabulary": ["forward"]}, ModelRefusal.MODEL_UNDECODABLE),
            ({"vocabulary": ["a", "a", "b"]}, ModelRefusal.MODEL_UNDECODABLE),
            ({"vocabulary": []}, ModelRefusal.MODEL_UNDECODABLE),
            ({"sequence_count": 0}, ModelRefusal.OUT_OF_RANGE),
            ({"line_factor": -1.0}, ModelRefusal.OUT_OF_RANGE),
            ({"line_factor": "1"}, ModelRefusal.MODEL_UNDECODABLE),
            ({"median_score": -1e9}, ModelRefusal.OUT_OF_RANGE),
            ({"bounded": False}, ModelRefusal.UNBOUNDED_WEIGHTS),
        ],
    )
    def test_a_head_that_cannot_be_is_refused(self, changes: dict[str, object], reason: ModelRefusal) -> None:
        head, arrays = read_weights("bilstm_ocnn/1", trained()[0].to_bytes())

        with pytest.raises(ModelRefusedError) as caught:
            read_model(write_weights("bilstm_ocnn/1", {**head, **changes}, arrays))

        assert caught.value.reason == reason

    def test_arrays_of_other_shapes_are_refused(self) -> None:
        head, arrays = read_weights("bilstm_ocnn/1", trained()[0].to_bytes())

        for name in arrays:
            with pytest.raises(ModelRefusedError):
                read_model(write_weights("bilstm_ocnn/1", head, {**arrays, name: arrays[name][..., :-1]}))
            with pytest.raises(ModelRefusedError):
                read_model(write_weights("bilstm_ocnn/1", head, {n: v for n, v in arrays.items() if n != name}))

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_features_that_are_no_numbers_are_an_error(self, value: float) -> None:
        bad = DATA.held_out[:2].copy()
        bad[0, 0, 0] = value

        with pytest.raises(FieldError, match="sequences"):
            trained()[0].scores(bad)

    def test_features_of_other_operations_are_an_error(self) -> None:
        assert Vocabulary(("a",)).class_count == 2
        with pytest.raises(FieldError, match="sequences"):
            trained()[0].scores(DATA.held_out[:, :, :22])


def test_the_engine_imports_no_torch() -> None:
    engine = "tocsin.pipeline.detect.traces.detector, tocsin.pipeline.runtime.embedded.engine"
    code = f"import sys, {engine}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
