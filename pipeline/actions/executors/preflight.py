"""Checks under load as what is done for an action of kind ``probe`` (docs/preflight.md).

Nothing is changed on a machine: it is loaded for about a minute. The hosts' answers are told to the controller as
results of checks, before the action is said to be done, so that whatever follows knows them. A host that gives no
answer has proved nothing: the action has failed then, and no result is told of that host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from tocsin.pipeline.actions.executors.check_runs import CheckRun, CheckRuns
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.action_events import ActionEvent, CheckResult
from tocsin.schemas.actions import Action
from tocsin.schemas.check_results import check_result_of, failures_of, is_silent
from tocsin.schemas.preflight import HostAnswer
from tocsin.schemas.preflight_limits import MOST_HOSTS
from tocsin.schemas.verdicts import ActionKind

_CHECK: Final = "check"
_MOST_TOLD: Final = 10_000
_MOST_NAMED: Final = 10
_DETAIL_CHARACTERS: Final = 800


@dataclass(frozen=True, slots=True)
class PreflightTargetConfig:
    """Settings of checks as a target.

    Attributes:
        node_of_host: host in verdicts -> its name in the system that reaches it, where the two differ.
    """

    node_of_host: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class PreflightTarget:
    """Machines that can be checked under load, as a target of actions.

    Attributes:
        kinds: kinds of actions that it can do.
    """

    kinds = frozenset({ActionKind.PROBE})

    def __init__(self, config: PreflightTargetConfig, runs: CheckRuns) -> None:
        """Check nothing yet.

        Args:
            config: settings.
            runs: starts the checks.
        """
        self._config = config
        self._runs = runs
        self._untold: OrderedDict[str, tuple[CheckResult, ...]] = OrderedDict()
        self._told: OrderedDict[str, None] = OrderedDict()
        self._running: dict[str, frozenset[str]] = {}
        """Action -> its machines, while its checks run."""

    def look(self, action: Action) -> Look:
        """See ``TargetSystem.look``. An action is done when its results were told, not before."""
        if action.kind not in self.kinds:
            return Look(Stage.REFUSED, ExecutorReason.KIND_NOT_DONE_HERE)
        if not action.target.machines:
            return Look(Stage.REFUSED, ExecutorReason.NO_MACHINE, detail="the action names no machine")
        if len(action.target.machines) > MOST_HOSTS:
            detail = f"{len(action.target.machines)} machines, at most {MOST_HOSTS} are checked together"
            return Look(Stage.REFUSED, ExecutorReason.TOO_MANY_MACHINES, detail=detail)
        run = self._runs.read(action.action_id)
        if run is None:
            return self._first(action)
        if run.is_running:
            self._running[action.action_id] = frozenset(action.target.hosts)
            return Look(Stage.WAITING, ExecutorReason.CHECKS_RUN)
        self._running.pop(action.action_id, None)
        if run.trouble:
            return Look(Stage.FAILED, ExecutorReason.CHECKS_WITHOUT_ANSWER, detail=run.trouble[:_DETAIL_CHARACTERS])
        answers = self._named(run, action)
        if action.action_id not in self._told:
            self._tell(action, answers, run.ended_ns)
            return Look(Stage.WAITING, ExecutorReason.CHECKS_RUN)
        return _outcome(answers)

    def look_back(self, action: Action) -> Look:
        """See ``TargetSystem.look_back``. Nothing was changed, and checks end by themselves."""
        del action
        return Look(Stage.DONE, ExecutorReason.NOTHING_TO_UNDO)

    def make(self, action: Action, look: Look) -> None:
        """See ``TargetSystem.make``."""
        del look
        self._running[action.action_id] = frozenset(action.target.hosts)
        self._runs.begin(action, [self._config.node_of_host.get(host, host) for host in action.target.hosts])

    def facts(self, cluster: str) -> Sequence[ActionEvent]:
        """See ``TellsFacts.facts``: the results of checks that ended."""
        found: list[ActionEvent] = []
        for name, results in list(self._untold.items()):
            if all(one.cluster == cluster for one in results):
                found += results
                del self._untold[name]
                self._told[name] = None
        while len(self._told) > _MOST_TOLD:
            self._told.popitem(last=False)
        return found

    def _first(self, action: Action) -> Look:
        """Return the look before the first effect: two checks at once would each find the other's load."""
        for name, hosts in list(self._running.items()):
            run = self._runs.read(name)
            if run is None or not run.is_running:
                del self._running[name]
            elif shared := sorted(hosts & set(action.target.hosts)):
                return Look(Stage.BLOCKED, ExecutorReason.CHECKED_FOR_OTHER, host=shared[0], detail=f"{name} checks it")
        return Look(Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE, _CHECK)

    def _tell(self, action: Action, answers: Sequence[HostAnswer], ended_ns: int) -> None:
        """Have the results of an action told; a host without an answer has none."""
        cluster = action.target.job.cluster
        heard = [one for one in answers if not is_silent(one)]
        results = tuple(check_result_of(one, cluster, action.verdict_id, ended_ns) for one in heard)
        if results:
            self._untold[action.action_id] = results
        else:
            self._told[action.action_id] = None

    def _named(self, run: CheckRun, action: Action) -> list[HostAnswer]:
        """Return the answers under the names that verdicts use, and only those of the action's machines."""
        hosts = {self._config.node_of_host.get(host, host): host for host in action.target.hosts}
        return [replace(one, host=hosts[one.host]) for one in run.answers if one.host in hosts]


def _outcome(answers: Sequence[HostAnswer]) -> Look:
    """Return the look of checks that ended and whose results were told."""
    silent = [one.host for one in answers if is_silent(one)]
    if silent or not answers:
        detail = f"no answer of {_listed(silent) or 'any machine'}"
        return Look(Stage.FAILED, ExecutorReason.CHECKS_WITHOUT_ANSWER, detail=detail)
    failed = [one for one in answers if one.is_failed]
    if failed:
        detail = "; ".join(f"{one.host} failed {failures_of(one)}" for one in failed)[:_DETAIL_CHARACTERS]
        return Look(Stage.DONE, ExecutorReason.CHECKS_FAILED, detail=detail)
    without = [one.host for one in answers if one.gpu_count < max(1, one.known_gpu_count)]
    gpus = f"; not with every GPU under load: {_listed(without)}" if without else ""
    detail = f"{_listed([one.host for one in answers])} passed{gpus}"
    return Look(Stage.DONE, ExecutorReason.CHECKS_PASSED, detail=detail)


def _listed(hosts: Sequence[str]) -> str:
    """Return some names, and how many more there are."""
    more = f" and {len(hosts) - _MOST_NAMED} more" if len(hosts) > _MOST_NAMED else ""
    return ", ".join(hosts[:_MOST_NAMED]) + more
