"""Whose metric table counts."""

from __future__ import annotations

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.peers.metric_table import TableBook
from tocsin.schemas.metrics import BUILTIN_TABLE, FIRST_CUSTOM_TABLE_ID, Metric, MetricTable


def _table(name: str) -> MetricTable:
    own = (Metric(name, "host", 0.0, 1.0, "high"),)
    return MetricTable(FIRST_CUSTOM_TABLE_ID, BUILTIN_TABLE.gpu, BUILTIN_TABLE.host + own)


OURS, OTHER = _table("disk_latency_seconds"), _table("made_up_ratio")


def test_without_an_announcement_nothing_changes() -> None:
    assert TableBook().chosen(OURS, 8) is OURS


def test_two_hosts_are_enough_and_one_is_not() -> None:
    book = TableBook()
    book.take("a", OURS)
    assert book.chosen(BUILTIN_TABLE, 8) == BUILTIN_TABLE
    book.take("b", OURS)
    assert book.chosen(BUILTIN_TABLE, 8) == OURS


def test_half_of_a_small_job_is_enough() -> None:
    book = TableBook()
    book.take("a", OURS)
    assert book.chosen(BUILTIN_TABLE, 2) == OURS


def test_what_the_first_host_announced_before_the_others_were_there_does_not_stay() -> None:
    book = TableBook()
    book.take("evil", OTHER)
    assert book.chosen(BUILTIN_TABLE, 1) == OTHER
    assert book.chosen(OTHER, 8) == BUILTIN_TABLE


def test_one_host_that_changes_its_mind_each_second_changes_nothing() -> None:
    book = TableBook()
    for host in ("a", "b", "c"):
        book.take(host, OURS)
    for number in range(10):
        book.take("evil", _table(f"made_up_{number}"))
        assert book.chosen(OURS, 8) == OURS


def test_a_table_that_most_announce_anew_replaces_the_old_one() -> None:
    book = TableBook()
    hosts = ("a", "b", "c", "d")
    for host in hosts:
        book.take(host, OURS)
    in_use = OURS
    for host in hosts:
        book.take(host, OTHER)
        in_use = book.chosen(in_use, 8)
    assert in_use == OTHER


def test_a_player_speaks_for_all() -> None:
    book = TableBook(is_played=True)
    book.take("n0", OURS)
    assert book.chosen(BUILTIN_TABLE, 500) == OURS


def test_it_goes_on_from_its_state() -> None:
    book = TableBook()
    for host, table in (("a", OURS), ("b", OURS), ("evil", OTHER)):
        book.take(host, table)
    again = TableBook()
    again.load_state(unpack_state({"tables": pack_state(book.to_state())}, "tables"))
    again.take("evil", OURS)
    assert again.chosen(BUILTIN_TABLE, 8) == OURS
    assert again.to_state()[1] == [["a", 0], ["b", 0], ["evil", 0]]
