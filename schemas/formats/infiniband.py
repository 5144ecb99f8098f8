"""Parsers of the text files below /sys/class/infiniband."""

from __future__ import annotations

from tocsin.schemas.errors import FieldError

MAX_COUNTER = 2**64 - 1


def parse_counter(name: str, text: str) -> int | None:
    """Return the value of a counter file; None where the port has no such counter (``N/A (no PMA)``).

    >>> parse_counter("port_rcv_data", "230539874932483"), parse_counter("port_rcv_data", "N/A (no PMA)")
    (230539874932483, None)

    Raises:
        FieldError: the text is no number of at most 64 bits.
    """
    word = text.strip()
    if word.startswith("N/A"):
        return None
    if not (word.isascii() and word.isdigit() and len(word) <= 20) or int(word) > MAX_COUNTER:
        raise FieldError(name, word[:80], "a counter of at most 64 bits")
    return int(word)


def parse_state(name: str, text: str) -> str:
    """Return the word of a ``state`` or ``phys_state`` file in lower case.

    >>> parse_state("state", "4: ACTIVE"), parse_state("phys_state", "5: LinkUp")
    ('active', 'linkup')

    Raises:
        FieldError: the text is no state.
    """
    number, colon, word = text.strip().partition(":")
    if not colon or not number.isdigit() or not word.strip():
        raise FieldError(name, text[:80], "a state like '4: ACTIVE'")
    return word.strip().lower()[:40]


def parse_rate_gbps(name: str, text: str) -> float:
    """Return the rate of a ``rate`` file, gigabits a second.

    >>> parse_rate_gbps("rate", "400 Gb/sec (4X NDR)"), parse_rate_gbps("rate", "2.5 Gb/sec (1X SDR)")
    (400.0, 2.5)

    Raises:
        FieldError: the text is no rate.
    """
    word, _, unit = text.strip().partition(" ")
    if not unit.startswith("Gb/sec") or not word.isascii() or not word.replace(".", "", 1).isdigit() or len(word) > 10:
        raise FieldError(name, text[:80], "a rate like '400 Gb/sec (4X NDR)'")
    return float(word)
