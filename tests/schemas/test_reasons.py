"""Reasons carry their meaning, once."""

from __future__ import annotations

import inspect

import pytest

from tocsin.schemas import reasons
from tocsin.schemas.reasons import NamedReason, Reason

KINDS = [
    kind
    for _, kind in inspect.getmembers(reasons, inspect.isclass)
    if issubclass(kind, NamedReason) and kind is not NamedReason
]


@pytest.mark.parametrize("reason", [reason for kind in KINDS for reason in kind], ids=repr)
def test_a_reason_is_found_by_its_stored_word_and_says_what_it_means(reason: NamedReason) -> None:
    assert type(reason)(reason.value) is reason
    assert len(reason.meaning.split()) >= 3
    assert reason.meaning.endswith((".", "?"))


def test_no_two_reasons_of_one_kind_mean_the_same() -> None:
    for kind in KINDS:
        assert len({reason.meaning for reason in kind}) == len(kind)


def test_words_of_before_stay_readable() -> None:
    assert Reason("works_harder") is Reason.HIGHER_WORKLOAD
