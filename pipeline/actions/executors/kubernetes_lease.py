"""The Lease by which one of several replicas of an executor is the active one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.pipeline.actions.executors.kubernetes_api import KubernetesApi
from tocsin.pipeline.actions.executors.kubernetes_text import time_of
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.schemas.errors import TargetAnswerError, TargetError, TargetRefusedError
from tocsin.schemas.records import NS_PER_SECOND

_LOG = logging.getLogger("tocsin.executor")
_KIND: Final = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Settings of a Lease.

    Attributes:
        namespace: its namespace.
        name: its name; replicas of one executor share it.
        holder: name of this replica, which no other process ever has.
        lease_seconds: how long it holds without being renewed.
        renew_seconds: time between two renewals.
        effect_seconds: longest time of one effect; with less left of the lease this replica begins none.
    """

    namespace: str
    name: str
    holder: str
    lease_seconds: int = 60
    renew_seconds: float = 10.0
    effect_seconds: float = 20.0


class KubernetesLease:
    """One replica's part in a Lease.

    No clocks are compared: a Lease of another replica is over when it has not changed for its own duration, as this
    replica's clock measures it from its first sight of that state. This replica's own time counts from before the call
    that renewed it.
    """

    def __init__(
        self,
        settings: LeaseSettings,
        api: KubernetesApi,
        clock_ns: Callable[[], int],
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Ask nothing yet.

        Args:
            settings: settings.
            api: calls the API server.
            clock_ns: returns a time that never goes back, from any begin.
            wall_ns: returns the present time, which is written into the Lease for people.
        """
        self._settings = settings
        self._api = api
        self._clock_ns = clock_ns
        self._wall_ns = wall_ns
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases"
        self._until_ns = 0
        """Until when this replica holds it."""
        self._asked_ns: int | None = None
        self._is_holder = False
        """Whether this replica held it, as far as the API server's last answer says."""
        self._seen: tuple[str, int] | None = None
        """Version of another replica's Lease, and when it was seen first."""
        self._was_mine = False

    def is_mine(self) -> bool:
        """Return whether this replica may begin an effect now; asks the API server when that is due."""
        now_ns = self._clock_ns()
        if self._asked_ns is None or now_ns - self._asked_ns >= self._settings.renew_seconds * NS_PER_SECOND:
            self._asked_ns = now_ns
            try:
                self._until_ns = self._renewed(now_ns)
                self._is_holder = bool(self._until_ns)
            except TargetError as error:
                self._is_holder = self._is_holder and error.reason != ExecutorReason.CHANGED_MEANWHILE
                _LOG.warning("the lease cannot be asked", extra={"reason": error.reason, "error": str(error)})
        is_mine = self._clock_ns() + self._settings.effect_seconds * NS_PER_SECOND <= self._until_ns
        if is_mine is not self._was_mine:
            self._was_mine = is_mine
            text = "this replica acts" if is_mine else "this replica stands by"
            _LOG.info(text, extra={"lease": self._settings.name, "replica": self._settings.holder})
        return is_mine

    def may_speak(self) -> bool:
        """Return whether this replica speaks for the executor: it acts, or was the last one to do so.

        While the API server is away nobody acts, and the last one says so.
        """
        return self.is_mine() or self._is_holder

    def give_up(self) -> None:
        """Let another replica begin at once; without an answer it begins when the time is over."""
        try:
            found = self._found()
            if found is not None and _spec_of(found).get("holderIdentity") == self._settings.holder:
                spec = {**_spec_of(found), "holderIdentity": "", "leaseDurationSeconds": 1}
                self._api.call("PUT", f"{self._path}/{self._settings.name}", {**found, "spec": spec})
        except TargetError as error:
            _LOG.warning("the lease was not given up", extra={"reason": error.reason, "error": str(error)})
        self._until_ns, self._is_holder = 0, False

    def _renewed(self, now_ns: int) -> int:
        """Take or renew it if that is possible; return until when this replica holds it, 0 = not.

        Raises:
            TargetError: the API server is away, or another replica was faster.
        """
        settings, found = self._settings, self._found()
        until_ns = now_ns + settings.lease_seconds * NS_PER_SECOND
        now = time_of(self._wall_ns(), is_micro=True)
        spec: dict[str, object] = {
            "holderIdentity": settings.holder,
            "leaseDurationSeconds": settings.lease_seconds,
            "renewTime": now,
        }
        if found is None:
            metadata = {"name": settings.name, "namespace": settings.namespace}
            taken = {"acquireTime": now, "leaseTransitions": 0}
            self._api.call("POST", self._path, {**_KIND, "metadata": metadata, "spec": spec | taken})
            return until_ns
        known = _spec_of(found)
        if known.get("holderIdentity") != settings.holder:
            if not self._is_free(found, now_ns):
                return 0
            spec |= {"acquireTime": now, "leaseTransitions": int(known.get("leaseTransitions") or 0) + 1}
        self._api.call("PUT", f"{self._path}/{settings.name}", {**found, "spec": {**known, **spec}})
        return until_ns

    def _is_free(self, found: Mapping[str, Any], now_ns: int) -> bool:
        """Return whether another replica gave up its Lease, or let its duration pass without a renewal."""
        version, known = str(found["metadata"]["resourceVersion"]), _spec_of(found)
        if not known.get("holderIdentity"):
            return True
        if self._seen is None or self._seen[0] != version:
            self._seen = version, now_ns
        seconds = int(known.get("leaseDurationSeconds") or self._settings.lease_seconds)
        return now_ns - self._seen[1] >= seconds * NS_PER_SECOND

    def _found(self) -> Mapping[str, Any] | None:
        try:
            return self._api.call("GET", f"{self._path}/{self._settings.name}")
        except TargetRefusedError as error:
            if error.reason == ExecutorReason.NOT_FOUND:
                return None
            raise


def _spec_of(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a Lease says.

    Raises:
        TargetAnswerError: it says nothing.
    """
    spec = found.get("spec")
    if not isinstance(spec, Mapping):
        raise TargetAnswerError("a Lease has no spec")
    return spec
