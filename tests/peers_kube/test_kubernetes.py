"""The cases of the Kubernetes executor on a real API server."""

from __future__ import annotations

from tests.pipeline.actions.executors.kube_cases import KubeCases
from tests.pipeline.actions.executors.kube_device_cases import DeviceCases
from tests.pipeline.actions.executors.kube_harm_cases import HarmCases, NameCases
from tests.pipeline.actions.executors.kube_lease_cases import LeaseCases
from tests.pipeline.actions.executors.kube_watch_cases import WatchCases


class TestRealKubernetes(KubeCases):
    """The cases on a real API server."""


class TestRealHarm(HarmCases):
    """What must not happen, on a real API server."""


class TestRealNames(NameCases):
    """Names of nodes on a real API server."""


class TestRealWatch(WatchCases):
    """Facts on a real API server."""


class TestRealLease(LeaseCases):
    """Replicas on a real API server."""


class TestRealDevices(DeviceCases):
    """Rules on a real API server."""
