import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tocsin.collectors.metrics_page import MAX_CLIENTS, MetricsPage, Pages
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.formats.prometheus_text import Family, Sample

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


def test_silent_clients_delay_nobody_and_are_bounded(page: MetricsPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there may be, and more: the probe is answered, and who came first and says nothing goes."""
    monkeypatch.setattr("tocsin.collectors.metrics_page.REQUEST_SECONDS", 60.0)  # nobody goes for being slow
    silent = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(MAX_CLIENTS + 20)]
    for client in silent[::2]:
        client.sendall(b"GET /metr")  # and nothing more
    assert get(page, "/healthz") == (200, "ok\n")
    gone = 0
    for client in silent:
        client.setblocking(False)
        try:
            gone += not client.recv(1)
        except BlockingIOError:
            continue
        except ConnectionError:
            gone += 1

    assert 20 <= gone < len(silent), "only who came first had to go"
    for client in silent:
        client.close()


def test_metrics_that_take_long_do_not_hold_up_the_probes() -> None:
    """They wait for a lock that a long tick holds; /healthz needs none."""
    go = threading.Event()

    def families() -> list[Family]:
        go.wait(60)
        return [FAMILY]

    page = MetricsPage("127.0.0.1:0", families, lambda: (True, "ok"), lambda: (False, "the database is away"))
    page.start()
    asking = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(3)]
    for client in asking:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert get(page, "/healthz") == (200, "ok\n")
    assert get(page, "/readyz") == (503, "the database is away\n")
    go.set()
    for client in asking:
        client.settimeout(60)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        client.close()
    page.close()


def test_metrics_or_health_that_raise_are_an_answer() -> None:
    def broken() -> list[Family]:
        raise RuntimeError("unforeseen")

    page = MetricsPage("127.0.0.1:0", broken, lambda: (True, "ok"))
    page.start()
    assert get(page, "/metrics")[0] == 500
    assert get(page, "/healthz")[0] == 200
    page.close()


def test_a_request_that_never_ends_is_cut(page: MetricsPage) -> None:
    with socket.create_connection(("127.0.0.1", page.port)) as client:
        client.settimeout(60)
        with pytest.raises(ConnectionError):
            client.sendall(b"X" * 50_000_000)
    assert get(page, "/healthz")[0] == 200


def test_several_addresses_and_one_that_is_taken() -> None:
    first = MetricsPage("127.0.0.1:0", list, lambda: (True, "ok"))
    addresses = f"127.0.0.1:{first.port}, 127.0.0.1:0"
    pages = Pages(addresses, list, lambda: (True, "ok"), lambda: (True, "ok"))
    pages.start()

    assert pages.words[0].startswith("none: metrics-listen")
    assert urllib.request.urlopen(f"http://{pages.words[1]}/healthz", timeout=5).status == 200
    pages.close()
    first.close()
