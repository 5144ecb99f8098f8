"""The rate at which a backlog is worked off, from when each slice's canary stood in the table."""

from __future__ import annotations

import pytest

from tests.bench.stream_backlog import worked_off
from tests.bench.stream_stages import Arrival


def test_the_second_half_counts() -> None:
    slow, fast = [(end, 100.0 + 10 * end) for end in range(10)], [(end, 190.0 + end / 4) for end in range(10, 20)]
    came = [Arrival(str(end), float(end), row - end) for end, row in (*slow, *fast)]

    assert worked_off(came) == pytest.approx(4.0)


def test_too_few_make_no_rate() -> None:
    with pytest.raises(RuntimeError, match="1 canaries came"):
        worked_off([Arrival("a", 1.0, 1.0)])
