"""Checks of settings that a command makes only when it starts, for ``tocsin config check``.

A flag's type is checked where the flag is read. What more its value must be, the part that uses it says; here each such
setting has the function of that part. Nothing is opened: neither the files that settings name nor their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from tocsin.schemas.errors import ConfigError

Check = Callable[[Any], object]
"""Function that raises ConfigError where the command that has the setting would refuse its value."""


def _listen(address: str) -> None:
    from tocsin.pipeline.runtime.embedded.listener.addresses import parse_address

    parse_address(address)


def _clickhouse(url: str) -> None:
    from tocsin.pipeline.stores.clickhouse_address import parse_address

    if url:
        parse_address(url)


def _detector(settings: Sequence[str]) -> None:
    from tocsin.pipeline.detect.learned.registry import learned_config

    learned_config(settings)


def _metrics_listen(addresses: str) -> None:
    from tocsin.collectors.metrics_page import addresses_in, split_page_address

    for address in addresses_in(addresses):
        split_page_address(address)


def _engine(address: str) -> None:
    from tocsin.collectors.transport.outbox import SinkConfig
    from tocsin.schemas.address import split_address

    SinkConfig(address, "").check()
    if not address.startswith("unix:"):
        split_address(address, "engine")


def _period_seconds(seconds: float) -> None:
    from tocsin.collectors.agent.slicer import metric_slice_ns

    metric_slice_ns(seconds)


def _prometheus(urls: Sequence[str]) -> None:
    from tocsin.collectors.sources.prometheus import check_url

    for url in urls:
        check_url(url)


def _kafka_compression(name: str) -> None:
    from tocsin.collectors.transport.kafka_client import COMPRESSIONS

    if name not in COMPRESSIONS:
        raise ConfigError("kafka-compression", name, f"one of {' '.join(COMPRESSIONS)}")


def _topic_prefix(prefix: str) -> None:
    from tocsin.schemas.kafka.topics import check_prefix

    check_prefix(prefix)


CHECKS: Final[Mapping[str, Mapping[str, Check]]] = MappingProxyType(
    {
        "serve": {
            "listen": _listen,
            "clickhouse": _clickhouse,
            "metrics-listen": _metrics_listen,
            "detector": _detector,
        },
        "agent": {
            "engine": _engine,
            "metrics-listen": _metrics_listen,
            "period-seconds": _period_seconds,
            "prometheus": _prometheus,
            "kafka-compression": _kafka_compression,
            "topic-prefix": _topic_prefix,
        },
    }
)
"""Command -> flag name without dashes -> check of its value."""
