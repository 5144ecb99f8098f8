"""Signals that many hosts give: one incident of the fleet, which stands for the verdicts about these hosts.

A verdict is covered if it is about hosts that gave the signal and rests on their own word. It is not covered if peers
saw the fault, a check failed, or its signal is another one: that is a real fault among the flood. A leaf switch that
fails is why its hosts' peers wait, so its incident covers verdicts with witnesses, too.

What a host gives while work on it is planned is counted apart, and is an incident of that work, which covers these
hosts alone and ends with the work. A fault that outlasts the work counts as given at the work's end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tocsin.pipeline.incidents.fleet.book import FleetBook, Opening
from tocsin.pipeline.incidents.fleet.coincidence import exceeding_window, faults_per_machine_day
from tocsin.pipeline.incidents.fleet.config import FleetConfig, FleetReason
from tocsin.pipeline.incidents.fleet.hosts import FleetHosts
from tocsin.pipeline.incidents.fleet.signals import LINK_SIGNALS, names_driver
from tocsin.pipeline.incidents.fleet.versions import common_version, exceeding_version, version_of
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, FaultKind, Verdict

SILENT: Final = "silent"
"""Signal of hosts whose agents are not heard any more."""
_MONITORING: Final = (SILENT, "collector:")
_PLANNED: Final = "planned/"
"""Begin of the name under which a signal of hosts under planned work stands."""
_EXAMPLES_COUNT: Final = 8


class Floods:
    """Signals by host, the fleet's incidents about them, and the verdicts that these stand for."""

    def __init__(self, config: FleetConfig, hosts: FleetHosts, book: FleetBook) -> None:
        """Start without signals."""
        self._config = config
        self._hosts = hosts
        self._book = book
        self._seen_ns: dict[str, dict[str, int]] = {}
        """Signal -> host -> when it gave the signal last."""
        self._causes: dict[str, str] = {}
        """Signal -> its most frequent cause: a port's may be the port or the cable."""
        self._members: dict[str, tuple[str, list[str], bool]] = {}
        """Live verdict -> its signal, its hosts, whether it rests on their own word."""
        self._covered: dict[str, str] = {}
        self._ended_ns: dict[str, int] = {}
        self._told_count: dict[str, int] = {}
        """Signal of a standing fleet incident -> how many hosts its last sentence told of."""

    @property
    def covered_count(self) -> int:
        """Number of live verdicts that an incident of the fleet stands for."""
        return sum(bool(self.covering(one)) for one in list(self._members))

    def saw(self, name: str, cause: str, host: str, ts_ns: int, now_ns: int) -> None:
        """Note that a host gives a signal; one from before the signal's last incident ended is left out."""
        if not cause or ts_ns <= self._ended_ns.get(name, 0) or now_ns - ts_ns > self._config.windows_ns[-1]:
            return
        by_host = self._seen_ns.setdefault(name, {})
        rates = {one: faults_per_machine_day(self._config, one) for one in (cause, self._causes.get(name, cause))}
        self._causes[name] = max(sorted(rates), key=rates.__getitem__)
        by_host[host] = max(ts_ns, by_host.get(host, 0))
        while len(by_host) > self._config.max_hosts_count:
            del by_host[next(iter(by_host))]
        while len(self._seen_ns) > self._config.max_signals_count:
            self._forget(min(self._seen_ns, key=lambda one: max(self._seen_ns[one].values(), default=0)))

    def _forget(self, name: str) -> None:
        """Forget a signal."""
        self._seen_ns.pop(name, None)
        self._causes.pop(name, None)

    def unsaw(self, name: str, host: str) -> None:
        """Forget a host's signal: it is over."""
        self._seen_ns.get(name, {}).pop(host, None)

    def last_ns(self, name: str, host: str) -> int:
        """Return when a host gave a signal last, 0: never."""
        return self._seen_ns.get(name, {}).get(host, 0)

    def add_member(self, verdict_id: str, name: str, hosts: Sequence[str], *, own_word: bool) -> None:
        """Remember a live verdict, and cover it where an incident of the fleet stands for it."""
        self._members.pop(verdict_id, None)
        self._members[verdict_id] = (name, list(hosts), own_word)
        while len(self._members) > self._config.max_covered_count:
            del self._members[next(iter(self._members))]
        self._cover(verdict_id)

    def forget_member(self, verdict_id: str) -> None:
        """Forget a verdict that has ended; it stays covered, so that its end is not told either."""
        self._members.pop(verdict_id, None)

    def covering(self, verdict_id: str) -> str:
        """Return the id of the fleet incident that stands for a verdict, "": none does."""
        return self._covered.get(verdict_id, "")

    def covers(self) -> dict[str, str]:
        """Return verdict -> the fleet incident that stands for it, of those that are remembered."""
        return dict(self._covered)

    def look(self, now_ns: int) -> None:
        """Open an incident for each signal that too many hosts give, those under planned work apart."""
        self._look_for_silence(now_ns)
        oldest_ns = now_ns - self._config.windows_ns[-1]
        for name, by_host in list(self._seen_ns.items()):
            for host in [host for host, ts_ns in by_host.items() if ts_ns < oldest_ns]:
                del by_host[host]
            if not by_host:
                self._forget(name)
                continue
            for one in (name, _PLANNED + name) if len(by_host) >= self._config.min_hosts_count - 1 else ():
                part = self._part(one)
                if f"fleet/{one}" in self._book.live:
                    self._grow(one, part, now_ns)
                elif len(part) >= self._config.min_hosts_count - 1:
                    self._judge(one, part, now_ns)

    def _part(self, name: str) -> dict[str, int]:
        """Return the hosts under planned work that give a signal, or the others, and when each gave it last.

        Args:
            name: the signal; with ``_PLANNED`` before it, the hosts under planned work are returned.
        """
        signal = name.removeprefix(_PLANNED)
        by_host = self._seen_ns.get(signal, {})
        if not self._hosts.has_works:
            return {} if name != signal else by_host
        ended_ns = self._ended_ns.get(name, 0)
        if name != signal:
            return {one: ts_ns for one, ts_ns in by_host.items() if ts_ns > ended_ns and self._is_planned(one, ts_ns)}
        found: dict[str, int] = {}
        outlasted: dict[str, int] = {}
        for host, ts_ns in by_host.items():
            work = self._hosts.work_on(host, ts_ns)
            if work is None:
                found[host] = ts_ns
            elif not self._is_planned(host, ts_ns):
                outlasted[host] = max(ts_ns, work.end_ns)
        for signal, hosts, _ in self._members.values() if outlasted else ():
            for host in hosts if signal == name else ():
                if outlasted.get(host, 0) > ended_ns:  # a verdict about it stands
                    found[host] = outlasted[host]
        return found

    def _is_planned(self, host: str, ts_ns: int) -> bool:
        """Return whether work was planned on a host when it gave a signal, and work on it goes on."""
        is_on = self._hosts.work_on(host, self._hosts.now_ns) is not None
        return is_on and self._hosts.work_on(host, ts_ns) is not None

    def gone(self, key: str, now_ns: int) -> FleetReason | None:
        """Return why a standing fleet incident is over, None: it is not."""
        name = key.removeprefix("fleet/")
        if name.startswith(_PLANNED) and not self._part(name):
            is_given = bool(self._seen_ns.get(name.removeprefix(_PLANNED)))
            return FleetReason.WORK_ENDED if is_given else FleetReason.SIGNAL_GONE
        return FleetReason.SIGNAL_GONE if not name.startswith(_PLANNED) and self._is_gone(key, now_ns) else None

    def _is_gone(self, key: str, now_ns: int) -> bool:
        """Return whether the signal of a standing fleet incident is gone.

        It is gone after a pause that chance hardly makes at its mean rate: P(pause > t) = exp(-t / mean distance).
        """
        name = key.removeprefix("fleet/")
        if name.startswith(_MONITORING) or name in LINK_SIGNALS:  # a host says, or shows, that it is over
            return len(self._part(name)) < self._config.min_hosts_count
        if not self._is_over(list(self._part(name).values()), self._book.live[key].onset_ns, now_ns):
            return False
        # an idle host's fault stands though it is not reported again; people were told of it by this incident alone
        return not any(one.startswith("host/") and one.split("/", 2)[2] == name for one in self._book.live)

    def _is_over(self, times: Sequence[int], onset_ns: int, now_ns: int) -> bool:
        """Return whether the pause since the last of some reports is longer than chance explains.

        Args:
            times: per host, when it gave the signal last.
            onset_ns: the first report.
            now_ns: the present time.
        """
        last_ns = max(times, default=onset_ns)
        usual_ns = (last_ns - onset_ns) // max(1, len(times) - 1)
        quiet_ns = min(
            self._config.most_quiet_ns,
            max(self._config.least_quiet_ns, round(-math.log(self._config.chance_ratio) * usual_ns)),
        )
        return now_ns - last_ns > quiet_ns

    def ended(self, key: str, now_ns: int, verdict_id: str) -> None:
        """Note that a fleet incident was closed: what was reported before opens none, and its members stand alone."""
        name = key.removeprefix("fleet/")
        self._told_count.pop(name, None)
        self._ended_ns.pop(name, None)
        self._ended_ns[name] = now_ns
        while len(self._ended_ns) > self._config.max_signals_count:
            del self._ended_ns[next(iter(self._ended_ns))]
        signal = name.removeprefix(_PLANNED)
        if name == signal:
            self._seen_ns[name] = self._part(_PLANNED + name)
        if not self._seen_ns.get(signal):
            self._forget(signal)
        for member in [one for one in self._members if self._covered.get(one) == verdict_id]:
            del self._covered[member]

    def _look_for_silence(self, now_ns: int) -> None:
        """Note the hosts that are silent, and forget those that are heard again."""
        for host in list(self._seen_ns.get(SILENT, ())):
            if self._hosts.is_heard(host, now_ns):
                self.unsaw(SILENT, host)
        silent = self._hosts.silent(now_ns)
        for host in silent if len(silent) >= self._config.min_hosts_count else ():
            self.saw(SILENT, "monitoring_fault", host, now_ns, now_ns)

    def _judge(self, name: str, by_host: Mapping[str, int], now_ns: int) -> None:
        """Open an incident about what a signal's hosts share, or about the fleet."""
        leaf, of_leaf = self._leaf(name, by_host, now_ns)
        if leaf is not None:
            self._open(name, {host: by_host[host] for host in of_leaf}, self._config.leaf_window_ns, leaf)
            return
        times, cause = list(by_host.values()), self._causes.get(name.removeprefix(_PLANNED), "")
        if self._is_over(times, min(times), now_ns):
            return  # old verdicts, read at a first start: what is over opens nothing
        window_ns, _ = exceeding_window(self._config, times, self._hosts.count, now_ns, cause)
        if not window_ns and not name.startswith(_MONITORING) and name not in LINK_SIGNALS:
            found, window_ns = exceeding_version(self._config, self._hosts, by_host, cause)
            if found is not None:
                by_host = {
                    one: by_host[one] for one in by_host if version_of(self._hosts, found.kind, one) == found.version
                }
        if window_ns and (not name.startswith(_MONITORING) or window_ns == self._config.windows_ns[0]):
            hosts = {host: ts_ns for host, ts_ns in by_host.items() if now_ns - ts_ns <= window_ns}
            self._open(name, hosts, window_ns, None)

    def _leaf(self, name: str, by_host: Mapping[str, int], now_ns: int) -> tuple[Component | None, list[str]]:
        """Return the leaf switch most of whose hosts, and hardly any others, lost links together, with these hosts."""
        if name.removeprefix(_PLANNED) not in LINK_SIGNALS:
            return None, []
        recent = [host for host, ts_ns in by_host.items() if now_ns - ts_ns <= self._config.leaf_window_ns]
        leaves = {self._hosts.leaf_of(host) for host in recent}
        if len(leaves) != 1 or not (leaf := leaves.pop()):
            return None, []
        enough = max(self._config.min_hosts_count - 1, self._config.leaf_share_ratio * self._hosts.behind(leaf))
        return (Component(ComponentKind.LEAF, leaf), recent) if len(recent) >= enough else (None, [])

    def _open(self, name: str, hosts: Mapping[str, int], window_ns: int, common: Component | None) -> None:
        """Open an incident of the fleet and cover the verdicts that it stands for.

        Args:
            name: the signal, with ``_PLANNED`` before it for hosts under planned work.
            hosts: host -> when it gave the signal last.
            window_ns: span that holds these times.
            common: what the hosts share, None: not known.
        """
        now_ns, signal = self._hosts.now_ns, name.removeprefix(_PLANNED)
        version = None if signal in LINK_SIGNALS else common_version(self._config, self._hosts, hosts)
        if name != signal:
            cause = "planned_work"
        elif name.startswith(_MONITORING):
            cause = "monitoring_fault"
        elif common is None and (names_driver(signal) or version is not None):
            cause = "common_driver"
        else:
            cause = "common_component"
        texts = [self._sentence(signal, hosts, window_ns)]
        texts += [f"all of them are behind {common.name}"] if common is not None else []
        texts += [version.text] if version is not None and cause == "common_driver" else []
        work = self._hosts.work_on(min(hosts), now_ns) if cause == "planned_work" else None
        texts += [f"planned work: {work.reason} ({work.actor})"] if work is not None else []
        onset_ns = min(hosts.values())
        why, action = FleetReason.MANY_HOSTS, ActionKind.NOTIFY
        opening = Opening(
            FLEET_JOB_ID, FaultKind.DEGRADED, cause, onset_ns, why, action, tuple(texts), signal, common=common
        )
        self._book.open(f"fleet/{name}", opening, now_ns)
        self._told_count[name] = len(hosts)
        for verdict_id in self._members:
            self._cover(verdict_id)

    def _sentence(self, signal: str, hosts: Collection[str], span_ns: int) -> str:
        """Return how many hosts gave a signal within which time, with some of their names."""
        shown = ", ".join(sorted(hosts)[:_EXAMPLES_COUNT]) + (", ..." if len(hosts) > _EXAMPLES_COUNT else "")
        span = f"within {max(1, span_ns // 60_000_000_000)} min"
        return f"{len(hosts)} of {self._hosts.count} hosts gave the signal {signal} {span}: {shown}"

    def _grow(self, name: str, part: Mapping[str, int], now_ns: int) -> None:
        """Tell again how many hosts give a signal, once they are twice as many as were told last.

        Doubling bounds the lines: a fleet of N hosts makes at most log2(N) of them.
        """
        verdict = self._book.live[f"fleet/{name}"]
        told_count = self._told_count.get(name, 0)
        if len(part) < 2 * max(told_count, self._config.min_hosts_count - 1) or verdict.common is not None:
            return
        self._told_count[name] = len(part)
        text = self._sentence(name.removeprefix(_PLANNED), part, max(part.values()) - min(part.values()))
        evidence = (replace(verdict.evidence[0], text=text, end_ns=now_ns), *verdict.evidence[1:])
        self._book.change(f"fleet/{name}", now_ns, FleetReason.MORE_HOSTS.value, evidence=evidence)

    def _cover(self, verdict_id: str) -> None:
        """Let a standing incident of the fleet stand for a verdict where the rule says so; else let it stand alone."""
        name, hosts, own_word = self._members[verdict_id]
        known = self._seen_ns.get(name, {})
        if not all(host in known for host in hosts):
            return
        are_planned = all(self._is_planned(host, known[host]) for host in hosts)
        fleet = self._book.live.get(f"fleet/{_PLANNED if are_planned else ''}{name}")
        if fleet is None:
            return
        if own_word or self._is_of_leaf(fleet, hosts):
            self._covered.pop(verdict_id, None)
            self._covered[verdict_id] = fleet.verdict_id
            while len(self._covered) > self._config.max_covered_count:
                del self._covered[next(iter(self._covered))]
        else:
            self._covered.pop(verdict_id, None)  # peers saw it since: it is a fault of its own

    def _is_of_leaf(self, fleet: Verdict, hosts: Sequence[str]) -> bool:
        """Return whether an incident is about the leaf switch of all these hosts."""
        return fleet.common is not None and all(self._hosts.leaf_of(host) == fleet.common.name for host in hosts)

    def to_state(self) -> dict[str, Any]:
        """Return the state as a JSON-able object."""
        return {
            "seen_ns": [[name, list(by_host.items())] for name, by_host in self._seen_ns.items()],
            "causes": list(self._causes.items()),
            "members": [[key, *member] for key, member in self._members.items()],
            "covered": list(self._covered.items()),
            "ended_ns": list(self._ended_ns.items()),
            "told_count": list(self._told_count.items()),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``to_state`` returned."""
        self._seen_ns = {name: dict(map(tuple, pairs)) for name, pairs in state["seen_ns"]}
        self._causes = dict(map(tuple, state.get("causes", ())))  # a state of before has none: the full rate counts
        self._members = {key: (name, list(hosts), own) for key, name, hosts, own in state["members"]}
        self._covered = dict(map(tuple, state["covered"]))
        self._ended_ns = dict(map(tuple, state["ended_ns"]))
        self._told_count = dict(map(tuple, state.get("told_count", ())))
