"""The sources that an agent can read: one entry each, in the order in which their collectors are made.

An entry says what the source is called, which settings it reads, and when it is wanted. The source's module makes the
collectors: its function ``from_settings`` takes ``SourceSettings`` and returns them. A module is imported only when its
source is wanted. Therefore a host pays no memory for a source that is switched off.

A new source is a module in this folder with ``from_settings``, and one line in ``SOURCES``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tocsin.collectors.sources.settings import SourceSettings

if TYPE_CHECKING:
    from tocsin.collectors.api import Collector
    from tocsin.collectors.clock import Clock
    from tocsin.collectors.sources.process import ProcessWatcher


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of the registry.

    Attributes:
        module: name of the source's module in this folder.
        settings: fields of ``SourceSettings`` that the source reads.
        is_wanted: whether the settings ask for this source. It must not need the source's module.
    """

    module: str
    settings: tuple[str, ...]
    is_wanted: Callable[[SourceSettings], bool]

    def make(self, settings: SourceSettings) -> list[Collector]:
        """Import the source's module and return its collectors; no collector has read anything yet.

        Raises:
            ConfigError: a setting of this source cannot be used.
        """
        found: list[Collector] = importlib.import_module(f"{__package__}.{self.module}").from_settings(settings)
        return found


def _is_real(settings: SourceSettings) -> bool:
    """Return whether the agent speaks for a real host.

    All hosts of a drill run on one machine and would show the same hardware, so they report only what was asked for.
    """
    return not settings.process_tree_pid


def _wants_gpus(settings: SourceSettings) -> bool:
    """Return whether GPUs are reported: simulated ones always, this machine's for a real host."""
    return settings.nvml.startswith("fake:") or (settings.nvml == "auto" and _is_real(settings))


SOURCES: Final = (
    Source("host", ("roots", "period_seconds"), _is_real),
    Source("process_tree", ("process_tree_pid", "roots", "period_seconds"), lambda s: not _is_real(s)),
    Source("disk", ("disk_path", "period_seconds"), lambda s: bool(s.disk_path)),
    Source("nvml", ("nvml", "period_seconds"), _wants_gpus),
    Source("host_facts", ("roots", "nvml"), _is_real),
    Source("rdma", ("roots", "period_seconds"), lambda s: s.rdma == "auto" and _is_real(s)),
    Source("kernel_log", ("kmsg_path",), lambda s: bool(s.kmsg_path) and _is_real(s)),
    Source(
        "prometheus",
        ("prometheus_urls", "prometheus_mapping_path", "prometheus_seconds"),
        lambda s: bool(s.prometheus_urls),
    ),
)
"""Every source but the ranks' processes, which ``process_watcher`` makes."""


def make_collectors(settings: SourceSettings) -> list[Collector]:
    """Return the collectors of all wanted sources, in the order of ``SOURCES``.

    Raises:
        ConfigError: a setting of a wanted source cannot be used.
    """
    return [collector for source in SOURCES if source.is_wanted(settings) for collector in source.make(settings)]


def process_watcher(settings: SourceSettings, clock: Clock) -> ProcessWatcher:
    """Return the collector of the ranks' processes.

    It is always wanted, and it stands apart from ``SOURCES`` because the agent's core also tells it whom to watch.
    """
    from tocsin.collectors.sources.process import ProcessWatcher

    return ProcessWatcher(clock, settings.roots)
