import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tocsin.collectors.metrics_page import MetricsPage
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.prometheus_text import Family, Sample

FAMILY = Family("tocsin_things_total", "counter", "Things.", (Sample({"kind": 'a"b'}, 3.0),))


class State:
    health = (True, "ok")


@pytest.fixture
def page() -> Iterator[MetricsPage]:
    page = MetricsPage("127.0.0.1:0", lambda: [FAMILY], lambda: State.health)
    page.start()
    yield page
    page.close()


def get(page: MetricsPage, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_are_served(page: MetricsPage) -> None:
    status, text = get(page, "/metrics?x=1")

    assert status == 200
    assert 'tocsin_things_total{kind="a\\"b"} 3\n' in text


def test_health_says_what_is_wrong(page: MetricsPage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get(page, "/healthz") == (200, "ok\n")
    monkeypatch.setattr(State, "health", (False, "dead threads: x"))

    assert get(page, "/healthz") == (503, "dead threads: x\n")


def test_other_paths_and_methods_are_refused(page: MetricsPage) -> None:
    assert get(page, "/")[0] == 404
    request = urllib.request.Request(f"http://127.0.0.1:{page.port}/metrics", data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request, timeout=5)


def test_a_client_that_hangs_up_or_talks_nonsense_does_not_end_it(page: MetricsPage) -> None:
    for data in (b"", b"\0\xff\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", page.port)) as client:
            client.sendall(data)

    assert get(page, "/metrics")[0] == 200


@pytest.mark.parametrize("address", ["", "9100", "host:x", "127.0.0.1:99999999", "h:\u00b2", "h:" + "9" * 5000])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="metrics-listen"):
        MetricsPage(address, list, lambda: (True, "ok"))
