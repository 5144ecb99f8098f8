"""Which GPUs are lost, and which were replaced."""

from __future__ import annotations

from tests.pipeline.states import through_bytes
from tocsin.pipeline.detect.peers.gpu_inventory import GpuInventory


def _restored(cards: GpuInventory) -> GpuInventory:
    other = GpuInventory()
    other.load_state({"more": 1, **through_bytes(cards.to_state())})
    return other


def test_a_card_that_tells_nothing_is_still_in_use_and_one_that_was_replaced_is_not() -> None:
    cards = GpuInventory()
    cards.know("n0", {("n0", "a"), ("n0", "b")})
    cards.know("n0", {("n0", "a")})
    assert _restored(cards).are_in_use([("n0", "a"), ("n0", "b")]).tolist() == [True, True]

    cards.know("n0", {("n0", "a"), ("n0", "c")})
    assert _restored(cards).are_in_use(cards.rows()).tolist() == [True, False, True]


def test_a_card_that_comes_back_is_in_use_again() -> None:
    cards = GpuInventory()
    for reported in ({("n0", "a")}, {("n0", "b")}, {("n0", "a"), ("n0", "b")}):
        cards.know("n0", reported)

    assert cards.are_in_use(cards.rows()).all()


def test_hosts_that_left_are_forgotten() -> None:
    cards = GpuInventory()
    cards.know("n1", {("n1", "b")})
    cards.know("n0", {("n0", "a")})
    cards.forget({"n1"})

    assert _restored(cards).rows() == [("n0", "a")]
