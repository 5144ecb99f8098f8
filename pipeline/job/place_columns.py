"""The places of a job's ranks as plain rows, in the state of a job that ``tocsin status`` and the controller read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tocsin.schemas.errors import FieldError
from tocsin.schemas.records import RankPlace
from tocsin.schemas.wire.validate import check_int, check_name

MOST_RANKS: Final = 16_384
"""Of larger jobs no places are told: a state is written every ten seconds."""
_INT16: Final = (1 << 15) - 1
_INT32: Final = (1 << 31) - 1


def rows_of_places(places: Mapping[int, RankPlace]) -> dict[str, list[list[Any]]]:
    """Return hosts as ``[name, leaf, minipod]`` and ranks as ``[rank, index of its host, dp, pp, tp]``.

    Args:
        places: rank -> its place.

    Returns:
        No rows where nothing is known, or the job has more than ``MOST_RANKS`` ranks.
    """
    if len(places) > MOST_RANKS:
        return {"hosts": [], "ranks": []}
    switches: dict[str, list[str]] = {}
    for place in places.values():
        known = switches.setdefault(place.host, ["", ""])
        switches[place.host] = [place.leaf or known[0], place.minipod or known[1]]
    hosts = sorted(switches)
    index = {host: at for at, host in enumerate(hosts)}
    ranks = [[rank, index[one.host], one.dp, one.pp, one.tp] for rank, one in sorted(places.items())]
    return {"hosts": [[host, *switches[host]] for host in hosts], "ranks": ranks}


def places_of_rows(told: object, field: str) -> dict[int, RankPlace]:
    """Return the places that ``rows_of_places`` turned into rows; none for a state of an older engine.

    Args:
        told: the rows, None: the state has none.
        field: name of the field, for errors.

    Raises:
        FieldError: it is something else.
    """
    if told is None:
        return {}
    if not isinstance(told, Mapping):
        raise FieldError(field, told, "an object with hosts and ranks")
    hosts = [_host(row, f"{field}.hosts[{at}]") for at, row in enumerate(_rows(told, "hosts", field))]
    found = {}
    for at, row in enumerate(_rows(told, "ranks", field)):
        where = f"{field}.ranks[{at}]"
        if not isinstance(row, list) or len(row) != 5:
            raise FieldError(where, row, "an array of rank, index of its host, dp, pp and tp")
        rank, host = check_int(row[0], where, 0, _INT32), check_int(row[1], where, 0, len(hosts) - 1)
        dp, pp, tp = (check_int(one, where, -1, _INT16) for one in row[2:])
        name, leaf, minipod = hosts[host]
        found[rank] = RankPlace(rank, name, dp=dp, pp=pp, tp=tp, leaf=leaf, minipod=minipod)
    return found


def _rows(told: Mapping[str, Any], name: str, field: str) -> list[Any]:
    """Return the rows of one kind."""
    rows = told.get(name)
    if not isinstance(rows, list) or len(rows) > MOST_RANKS:
        raise FieldError(f"{field}.{name}", rows if rows is None else type(rows).__name__, f"up to {MOST_RANKS} rows")
    return rows


def _host(row: object, field: str) -> tuple[str, str, str]:
    """Return name, leaf and minipod of a host."""
    if not isinstance(row, list) or len(row) != 3:
        raise FieldError(field, row, "an array of host, leaf and minipod")
    return check_name(row[0], field), check_name(row[1], field, empty=True), check_name(row[2], field, empty=True)
