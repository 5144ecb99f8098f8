"""Whose own time has grown beyond that of its peers."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.models.excess import FloatArray, growth_beyond_noise

HOSTS, BLOCKS = 12, 6


def _blocks(noise_seconds: float = 0.002, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    draw = np.random.default_rng(seed)
    usual = np.linspace(0.0, 0.05, HOSTS)  # some hosts always are a little slower
    return usual + noise_seconds * draw.standard_normal((BLOCKS, HOSTS)), usual + noise_seconds * draw.standard_normal(
        HOSTS
    )


@pytest.mark.parametrize(("grown_seconds", "found"), [(0.05, True), (0.005, False), (-0.05, False)])
def test_one_that_has_grown_beyond_noise_stands_out(grown_seconds: float, found: bool) -> None:
    before, now = _blocks()
    now[4] += grown_seconds
    growth = growth_beyond_noise(before, now)

    assert (growth > 0).nonzero()[0].tolist() == ([4] if found else [])
    assert growth[4] == pytest.approx(grown_seconds if found else 0.0, abs=0.008)


@pytest.mark.parametrize("seed", range(20))
def test_nobody_stands_out_by_chance(seed: int) -> None:
    assert not growth_beyond_noise(*_blocks(seed=seed)).any()


def test_who_always_was_slower_has_not_grown() -> None:
    before, now = _blocks()
    before[:, 4] += 0.3
    now[4] += 0.3

    assert not growth_beyond_noise(before, now).any()


def test_all_that_compute_longer_alike_have_the_same_to_do() -> None:
    before, now = _blocks()
    assert not growth_beyond_noise(before, now + 0.3).any()


def test_of_two_none_is_alone() -> None:
    before, now = _blocks()
    now[4] += 0.1
    now[7] += 0.06

    assert not growth_beyond_noise(before, now).any()


@pytest.mark.parametrize(("hosts", "blocks"), [(3, 6), (12, 1), (0, 0)])
def test_of_few_nobody_can_say_what_is_usual(hosts: int, blocks: int) -> None:
    before, now = _blocks()
    now[1] += 0.3

    assert not growth_beyond_noise(before[:blocks, :hosts], now[:hosts]).any()


def test_a_new_host_is_not_measured_and_hides_nobody() -> None:
    before, now = _blocks()
    before[:, 4], now[4] = np.nan, 0.3
    assert not growth_beyond_noise(before, now).any()

    now[7] += 0.1
    assert growth_beyond_noise(before, now)[7] == pytest.approx(0.1, abs=0.01)
