"""C4, H5: who holds no rank claims all of them as the job, or an attempt of it, begins."""

from __future__ import annotations

from tests.attacks.registry import Outcome, attack
from tests.attacks.strangers import FAULTS, judged, named


@attack("C4", "a stranger claims all ranks as the job begins")
def claims_early() -> Outcome:
    return _outcome(reserves=False)


@attack("C4", "a stranger reserves all ranks of the next attempt")
def claims_before() -> Outcome:
    return _outcome(reserves=True)


def _outcome(*, reserves: bool) -> Outcome:
    found = {fault: named(judged(fault, reserves=reserves)) for fault in FAULTS}
    wrong = {fault: sorted(hosts) for fault, hosts in found.items() if hosts != {"n05"}}
    return Outcome(len(found), f"named otherwise than n05 alone: {wrong}", not wrong)
