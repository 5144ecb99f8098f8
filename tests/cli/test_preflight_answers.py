"""The answers of a group's hosts survive the way through srun, which tears long lines and mixes those of tasks."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tocsin.cli.preflight_answers import answer_lines, answers_in
from tocsin.schemas.preflight import CheckName, CheckReason, HostAnswer, failed

SLURM_BYTES = 1024
"""MAX_MSG_LEN of slurmstepd: at most so much of a task's line is passed on at once."""
ANSWERS = st.builds(
    lambda host, details: HostAnswer(
        host, tuple(failed(CheckName.DISK_WRITE_BANDWIDTH, CheckReason.NO_ANSWER, text) for text in details)
    ),
    st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True),
    st.lists(st.text(max_size=900), max_size=4),
)


@given(st.dictionaries(st.integers(0, 1023), ANSWERS, max_size=5), st.randoms(use_true_random=False))
def test_answers_that_srun_mixes_come_back_whole(answers: dict[int, HostAnswer], chance: random.Random) -> None:
    waiting = {rank: "\n".join(answer_lines(rank, answer)) + "\n" for rank, answer in answers.items()}
    output = ""
    while waiting:
        rank = chance.choice(sorted(waiting))
        text = waiting.pop(rank)
        end = text.find("\n", 0, SLURM_BYTES) + 1 or SLURM_BYTES
        output += text[:end]
        if text[end:]:
            waiting[rank] = text[end:]

    assert answers_in(output) == answers


def test_an_answer_with_a_missing_piece_is_no_answer() -> None:
    long = HostAnswer("n0", (failed(CheckName.ANSWER, CheckReason.NO_ANSWER, "x" * 3000),))
    lines = answer_lines(7, long)

    assert len(lines) > 3
    assert answers_in("\n".join(lines)) == {7: long}
    for gone in range(len(lines)):
        assert answers_in("\n".join(lines[:gone] + lines[gone + 1 :])) == {}
