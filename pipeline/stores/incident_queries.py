"""The queries of ``tocsin incidents``; they have query slots of their own, so nobody else's query delays them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.verdicts import FaultKind, VerdictState

_SHOWN_INCIDENTS: Final = (
    "SELECT v.*, x.expires AS expires FROM tocsin.incidents_all AS v INNER JOIN"
    " (SELECT verdict_id AS id, expires, suspects, updated FROM tocsin.incidents FINAL) AS x ON x.id = v.verdict_id "
)
_STANDING: Final = "v.state IN ('open', 'confirmed') AND x.expires > now64(9, 'UTC')"
_LAPSED: Final = "(v.state = 'expired' OR (v.state IN ('open', 'confirmed') AND x.expires <= now64(9, 'UTC')))"
_ONLY_JOB: Final = "v.job = unhex('{}')"
_ONLY_ID: Final = "startsWith(v.verdict_id, unhex('{}'))"
_ONLY_HOST: Final = "has(x.suspects, unhex('{}'))"
_ONLY_FAULT: Final = "v.fault = unhex('{}')"
_ONLY_STATE: Final = "v.state = unhex('{}')"
_SINCE: Final = "v.detected >= fromUnixTimestamp64Nano(toInt64({}))"
_WRITTEN: Final = "x.updated >= now64(3, 'UTC') - INTERVAL {} SECOND"
_CONDITIONS: Final = (
    *(_STANDING, _LAPSED, _ONLY_JOB, _ONLY_ID, _ONLY_HOST, _ONLY_FAULT, _ONLY_STATE, _SINCE, _WRITTEN),
)
_INCIDENTS: Final = re.compile(
    re.escape(_SHOWN_INCIDENTS)
    + "(?:WHERE (?:(?:{}) AND )*(?:{}) )?".format(
        *["|".join(re.escape(one).replace(r"\{\}", "[0-9a-f]*") for one in _CONDITIONS)] * 2
    )
    + r"ORDER BY v\.since DESC, v\.verdict_id LIMIT \d{1,6}"
)

_PAGE: Final[Mapping[str, str]] = {
    "updates": (
        "SELECT update_number, state, reason, fault, cause, machine, action, confidence, evidence, evidence_ids,"
        " witnesses, detected FROM tocsin.incident_updates FINAL WHERE verdict_id = unhex('{}')"
        " ORDER BY update_number DESC LIMIT 500"
    ),
    "actions": (
        "SELECT update_number, kind, target, reason, issued, deadline, state, changed, detail, dry_run"
        " FROM tocsin.actions FINAL WHERE verdict_id = unhex('{}')"
        " ORDER BY changed DESC, kind, target LIMIT 500"
    ),
    "told": (
        "SELECT suspects_json, evidence_json, common FROM tocsin.incidents FINAL WHERE verdict_id = unhex('{}') LIMIT 1"
    ),
    "others": (
        "SELECT o.verdict_id AS verdict_id, o.machine AS machine, o.fault AS fault, o.cause AS cause,"
        " o.state AS state, o.reason AS reason, o.detected AS detected FROM tocsin.incidents AS o FINAL"
        " INNER JOIN (SELECT cluster, job_id, onset FROM tocsin.incidents FINAL WHERE verdict_id = unhex('{0}')) AS i"
        " ON o.cluster = i.cluster AND o.job_id = i.job_id WHERE o.verdict_id != unhex('{0}')"
        " AND o.state = 'cancelled' AND abs(dateDiff('second', o.onset, i.onset)) <= 900"
        " AND o.reason != 'canary' ORDER BY detected DESC LIMIT 500"
    ),
    "points": (
        "SELECT metric, component, ts, suspect_value, peer_median, peer_p05, peer_p95, peer_count"
        " FROM tocsin.incident_evidence FINAL WHERE verdict_id = unhex('{}')"
        " ORDER BY metric, component, ts DESC LIMIT 5000"
    ),
    "covers": (
        "SELECT o.verdict_id AS verdict_id, o.machine AS machine, o.job_id AS job, o.fault AS fault, o.cause AS cause,"
        " o.state AS state FROM tocsin.incidents AS o FINAL"
        " INNER JOIN (SELECT cluster, verdict_id FROM tocsin.fleet_covers FINAL WHERE incident_id = unhex('{}')) AS c"
        " ON o.cluster = c.cluster AND o.verdict_id = c.verdict_id ORDER BY machine, verdict_id LIMIT 5000"
    ),
    "covered_by": (
        "SELECT incident_id, ts FROM tocsin.fleet_covers FINAL WHERE verdict_id = unhex('{}') AND incident_id != ''"
        " LIMIT 1"
    ),
    "feedback": (
        "SELECT is_true, note, actor, ts FROM tocsin.feedback FINAL WHERE verdict_id = unhex('{}')"
        " ORDER BY ts DESC LIMIT 1"
    ),
}
_PAGES: Final = re.compile("|".join(re.sub(r"\\{0?\\}", "[0-9a-f]*", re.escape(one)) for one in _PAGE.values()))


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Conditions on the wanted incidents; every one that is set must hold.

    Attributes:
        host: one of the suspects has this name; None: any.
        fault: its fault; None: any.
        state: its state as it is shown: what was not renewed in time is expired; None: any.
        since_ns: its newest line is of then or later, Unix ns; 0: any.
        written_within_seconds: its newest line was written at most this long ago; 0: any.
    """

    host: str | None = None
    fault: FaultKind | None = None
    state: VerdictState | None = None
    since_ns: int = 0
    written_within_seconds: int = 0

    @property
    def is_of_the_past(self) -> bool:
        """Whether it asks for incidents that are over, too."""
        return self.state is not None or self.since_ns > 0 or self.written_within_seconds > 0

    def conditions(self) -> list[str]:
        """Return the conditions as SQL; texts are hexadecimal digits, which end no literal."""
        named = ((_ONLY_HOST, self.host), (_ONLY_FAULT, self.fault))
        found = [text.format(_hex(value)) for text, value in named if value is not None]
        if self.state is VerdictState.EXPIRED:
            found.append(_LAPSED)
        elif self.state is not None:
            found.append(_ONLY_STATE.format(_hex(self.state)))
            if self.state in (VerdictState.OPEN, VerdictState.CONFIRMED):
                found.append(_STANDING)
        if self.since_ns:
            found.append(_SINCE.format(int(self.since_ns)))
        if self.written_within_seconds:
            found.append(_WRITTEN.format(int(self.written_within_seconds)))
        return found


def incidents_query(
    *,
    everything: bool = False,
    job_id: str | None = None,
    id_prefix: str | None = None,
    limit: int = 1000,
    wanted: IncidentFilter | None = None,
) -> str:
    """Return the query of ``tocsin incidents``, newest first: the columns of the views, and ``expires``.

    Args:
        everything: include closed and expired incidents.
        job_id: only incidents of this job, None = of all.
        id_prefix: only incidents whose id starts with this, None = all.
        limit: maximum number of rows.
        wanted: further conditions; one that asks for the past includes closed and expired incidents.
    """
    more = IncidentFilter() if wanted is None else wanted
    named = ((_ONLY_JOB, job_id), (_ONLY_ID, id_prefix))
    conditions = [text.format(_hex(value)) for text, value in named if value is not None]
    conditions += more.conditions()
    conditions = conditions if everything or more.is_of_the_past else [_STANDING, *conditions]
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    return f"{_SHOWN_INCIDENTS}{where}ORDER BY v.since DESC, v.verdict_id LIMIT {limit}"


def page_queries(verdict_id: str) -> dict[str, str]:
    """Return what an incident's page reads beside its row, name -> query.

    ``updates``: its history. ``actions``: what was asked for. ``told``: suspects and evidence as JSON. ``others``:
    cancelled incidents of the same job at the same time. ``points``: series of suspects and peers. ``covers``: the
    verdicts for which this incident of the fleet stands. ``covered_by``: the fleet incident that stands for this one.
    ``feedback``: the latest judgement of a person.
    """
    return {name: query.format(_hex(verdict_id)) for name, query in _PAGE.items()}


def is_incidents_query(sql: str) -> bool:
    """Return whether a query is one that this module builds; these have slots of their own."""
    return _INCIDENTS.fullmatch(sql) is not None or _PAGES.fullmatch(sql) is not None


def _hex(text: str) -> str:
    """Return a text as hexadecimal digits."""
    return text.encode("utf-8", "replace").hex()
