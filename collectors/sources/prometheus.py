"""Collector of other exporters' pages in Prometheus' text format, converted to columns by a mapping."""

from __future__ import annotations

import functools
import http.client
import logging
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tocsin.collectors.api import Collector, CollectorError, HostEvent, Reading
from tocsin.collectors.sources._prometheus_columns import PrometheusColumns
from tocsin.collectors.sources.settings import SourceSettings
from tocsin.schemas import events
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.formats.pci import normal_pci
from tocsin.schemas.formats.prometheus_mapping import BUILTIN_MAPPING, PrometheusMapping, parse_mapping
from tocsin.schemas.formats.prometheus_page import PageParser, PageSample, is_blank
from tocsin.schemas.formats.xid import meaning_of_xid, severity_of
from tocsin.schemas.records import EventSource

log = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 1.5
MAX_PAGE_BYTES: Final = 16 << 20
PERIOD_SECONDS: Final = 5.0

Fetch = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class PrometheusConfig:
    """Settings of a Prometheus collector.

    Attributes:
        url: address of the page, http or https.
        mapping: mapping of metrics to columns.
        period_seconds: time between two scrapes.
        name: name under which success and duration are reported.
    """

    url: str
    mapping: PrometheusMapping = BUILTIN_MAPPING
    period_seconds: float = PERIOD_SECONDS
    name: str = "prometheus"


class PrometheusCollector:
    """Scrapes one page; a column needs a value in all its terms, and blanks, NaN and infinities are none.

    Attributes:
        skipped: skipped items by reason: ``malformed`` lines, ``out_of_range`` values.
    """

    def __init__(self, config: PrometheusConfig, fetch: Fetch | None = None) -> None:
        """Create the collector; nothing is fetched yet.

        Args:
            config: settings.
            fetch: function from URL to the page's bytes; None: over HTTP.

        Raises:
            ConfigError: the URL is not http or https.
        """
        check_url(config.url)
        self.name = config.name
        self.period_seconds = config.period_seconds
        self.skipped: Counter[str] = Counter()
        self._config = config
        self._fetch = fetch or _fetch
        self._parser = PageParser(config.mapping.names())
        self._columns = PrometheusColumns(config.mapping, self.skipped)
        self._xids: dict[str, int] = {}
        self._is_malformed_logged = False

    def collect(self, now_ns: int) -> Reading:
        """Return the page's columns and new XIDs now.

        Raises:
            CollectorError: the page cannot be fetched or is too large.
        """
        samples = self._page()
        by_name: dict[str, list[PageSample]] = defaultdict(list)
        for sample in samples:
            if not is_blank(sample) and "GPU_I_ID" not in sample.labels:  # a slice of a GPU is no GPU
                by_name[sample.name].append(sample)
        host, gpus = self._columns.read(by_name, now_ns)
        return Reading(host, gpus, tuple(self._new_xids(by_name)))

    def _page(self) -> tuple[PageSample, ...]:
        """Fetch and parse the page; malformed lines are counted, the first one is logged."""
        url = self._config.url
        try:
            data = self._fetch(url)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CollectorError(f"{url} cannot be scraped: {error}") from error
        if len(data) > MAX_PAGE_BYTES:
            raise CollectorError(f"{url} is larger than {MAX_PAGE_BYTES >> 20} MiB: name fewer metrics in the exporter")
        page = self._parser.parse(data.decode("utf-8", "replace"))
        if page.malformed:
            self.skipped["malformed"] += len(page.malformed)
            if not self._is_malformed_logged:
                self._is_malformed_logged = True
                number, line = page.malformed[0]
                log.warning("line skipped", extra={"collector": self.name, "url": url, "line": number, "text": line})
        return page.samples

    def _new_xids(self, by_name: dict[str, list[PageSample]]) -> list[HostEvent]:
        """Return events for XIDs that differ from the last ones.

        The gauge keeps the last XID for ever, so the first value is an old one. The same XID twice in a row does not
        show in it; NVML or the kernel's log reports each.
        """
        out: list[HostEvent] = []
        label = self._config.mapping.gpu_label
        for name in self._config.mapping.xid:
            for sample in by_name.get(name, ()):
                uuid = sample.labels.get(label, "")
                code = int(sample.value) if 0 <= sample.value < 1e6 else 0
                before = self._xids.get(uuid)
                self._xids[uuid] = code
                if before is not None and code and code != before:
                    out.append(_xid(code, uuid, sample.labels.get("pci_bus_id", "")))
        return out


def _xid(code: int, uuid: str, pci: str) -> HostEvent:
    """Build the event of an XID."""
    payload: dict[str, Any] = {"code": code, "pci": normal_pci(pci), "uuid": uuid, "via": "prometheus"}
    meaning = meaning_of_xid(code)
    return HostEvent(events.XID, EventSource.KERNEL, severity_of(meaning), payload)


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    """Return the HTTP opener, without a proxy."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _fetch(url: str) -> bytes:
    """Return a page's bytes; no proxy is used, because the exporter is on this host or near it."""
    request = urllib.request.Request(url, headers={"Accept": "text/plain;version=0.0.4"})  # noqa: S310  # http(s) only, see __init__
    with _opener().open(request, timeout=TIMEOUT_SECONDS) as response:
        data: bytes = response.read(MAX_PAGE_BYTES + 1)
        return data


def check_url(url: str) -> None:
    """Check the address of an exporter's page; nothing is fetched.

    Raises:
        ConfigError: it is no http or https URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError("prometheus", url, "a URL that begins with http:// or https://")


def from_settings(settings: SourceSettings) -> list[Collector]:
    """Return one collector for each exporter's page.

    Raises:
        ConfigError: the mapping file cannot be read or is not valid, or an address is no http or https URL.
    """
    mapping, path = BUILTIN_MAPPING, settings.prometheus_mapping_path
    if path:
        try:
            mapping = parse_mapping(Path(path).read_text(encoding="utf-8"), path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("prometheus-mapping", path, f"a JSON file that can be read ({error})") from error
    urls, period = settings.prometheus_urls, settings.prometheus_seconds
    names = ["prometheus", *(f"prometheus_{number}" for number in range(2, len(urls) + 1))]
    return [PrometheusCollector(PrometheusConfig(u, mapping, period, n)) for u, n in zip(urls, names, strict=True)]
