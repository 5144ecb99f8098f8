"""What every adapter must do, whatever its receiver: a case names the adapter, its secrets and its receiver's words.

A test module subclasses ``Conformance`` and gives it a ``case``.
"""

from __future__ import annotations

import gc
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.alerts.adapters.notices import NOW, changed, notice
from tests.pipeline.alerts.adapters.receiver import Receiver, Reply, Request, receiving, refused_port
from tests.pipeline.stores.samples import SECOND
from tocsin.pipeline.alerts.adapters import ADAPTERS
from tocsin.pipeline.alerts.notice import MISCONFIGURED, RETRYABLE, Adapter, DeliveryReason, DeliveryResult, NoticeKind
from tocsin.schemas.records import JobKey

SECRET = "s3cr3t-Zx81kqPv-of-the-receiver!"
"""The secret of every case: 32 printable characters."""
R = DeliveryReason


@dataclass(frozen=True)
class Case:
    """One adapter under test.

    Attributes:
        kind: its word.
        settings: settings for a receiver at a URL, with the file of the secret.
        taken: what the receiver answers where it takes a message.
        identity: what of a request names the incident.
        delivery: what of a request names the message, stable when it is sent again.
        is_closing: whether a request ends its incident.
        garbage: how an answer 200 that the protocol does not know counts.
        secret_text: what the file of the secret holds, for a receiver at a URL; it contains ``SECRET``.
        is_named: whether messages name their incident and themselves.
        fast: settings with a short time limit.
    """

    kind: str
    settings: Callable[[str, Path], dict[str, object]]
    taken: Reply
    identity: Callable[[Request], object]
    delivery: Callable[[Request], object]
    is_closing: Callable[[Request], bool]
    garbage: DeliveryReason
    secret_text: Callable[[str], str] = lambda _url: SECRET
    is_named: bool = True
    fast: Mapping[str, object] = field(default_factory=lambda: {"timeout_seconds": 0.3})


class Conformance:
    """The tests; a subclass sets ``case``."""

    case: Case

    @pytest.fixture
    def secret(self, tmp_path: Path) -> Path:
        path = tmp_path / "secret"
        path.touch()
        path.chmod(0o600)
        return path

    def adapter(self, url: str, secret: Path, **more: object) -> Adapter:
        secret.write_text(self.case.secret_text(url) + "\n")
        return ADAPTERS[self.case.kind].make({**self.case.settings(url, secret), **more}, "receivers.it")

    def sent(self, reply: Reply, secret: Path, **more: object) -> tuple[DeliveryResult, Receiver]:
        with receiving(lambda _request: reply) as server:
            one = self.adapter(server.url, secret, **more)
            result = one.send([notice()], NOW)
            one.close()
        return result, server

    def test_says_what_it_is(self, secret: Path) -> None:
        one = self.adapter("http://127.0.0.1:1", secret)

        assert one.kind == self.case.kind == ADAPTERS[self.case.kind].kind
        assert one.max_batch_count >= 1
        assert one.resend_seconds is None or one.resend_seconds > 0

    @pytest.mark.parametrize("kind", list(NoticeKind))
    def test_takes_every_kind_of_notice(self, kind: NoticeKind, secret: Path) -> None:
        with receiving(lambda _request: self.case.taken) as server:
            result = self.adapter(server.url, secret).send([notice(kind)], NOW)

        assert result.reason is R.DELIVERED
        assert len(result.references) == 1

    @pytest.mark.parametrize(
        ("status", "reason"),
        [
            (301, R.REDIRECTED),
            (400, R.REJECTED),
            (401, R.UNAUTHORISED),
            (403, R.UNAUTHORISED),
            (404, R.NOT_FOUND),
            (410, R.NOT_FOUND),
            (408, R.TIMED_OUT),
            (413, R.REJECTED),
            (429, R.RATE_LIMITED),
            (500, R.SERVER_ERROR),
            (502, R.SERVER_ERROR),
            (503, R.SERVER_ERROR),
        ],
    )
    def test_each_status_has_its_reason(self, status: int, reason: DeliveryReason, secret: Path) -> None:
        result, server = self.sent(Reply(status, b"no"), secret)

        assert result.reason is reason
        assert str(status) in result.detail
        assert result.references == ()
        assert len(server.asked) == 1  # whoever retries, it is not the adapter

    @pytest.mark.parametrize("status", [302, 401, 403, 404, 410])
    def test_what_a_person_must_mend_is_tried_again(self, status: int, secret: Path) -> None:
        result, _ = self.sent(Reply(status, b"no"), secret)

        assert result.is_retryable
        assert result.reason in MISCONFIGURED

    @pytest.mark.parametrize("status", [429, 503])
    @pytest.mark.parametrize(
        ("header", "seconds"), [("17", 17.0), ("Sat, 01 Nov 2025 00:02:50 GMT", 120.0), ("soon", None), ("-5", None)]
    )
    def test_waits_as_long_as_it_is_asked_to(
        self, status: int, header: str, seconds: float | None, secret: Path
    ) -> None:
        with receiving(lambda _request: Reply(status, headers={"Retry-After": header})) as server:
            result = self.adapter(server.url, secret).send([notice()], NOW)

        assert result.reason in RETRYABLE
        assert result.retry_after_seconds == seconds

    def test_follows_no_redirect(self, secret: Path) -> None:
        with receiving(lambda _request: self.case.taken) as target:
            for status in (301, 302, 303, 307, 308):
                reply = Reply(status, headers={"Location": f"{target.url}/elsewhere?{SECRET}"})
                result, server = self.sent(reply, secret)

                assert result.reason is R.REDIRECTED
                assert result.reason in MISCONFIGURED
                assert len(server.asked) == 1
            assert target.asked == []

    @pytest.mark.parametrize(
        "reply",
        [Reply(silent=True), Reply(200, b"x" * 10, head_only=True)],
        ids=["no answer", "a head without its body"],
    )
    def test_a_receiver_that_does_not_answer_is_waited_for_only_so_long(self, reply: Reply, secret: Path) -> None:
        result, _ = self.sent(reply, secret, **self.case.fast)

        assert result.reason is R.TIMED_OUT

    def test_an_answer_that_trickles_is_waited_for_only_so_long(self, secret: Path) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            one = self.adapter(url, secret, **self.case.fast)
            over = threading.Event()

            def trickle() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    try:
                        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
                        while not over.wait(0.05):
                            connection.sendall(b"x")
                    except OSError:
                        return

            thread = threading.Thread(target=trickle, daemon=True)
            thread.start()
            result = one.send([notice()], NOW)
            over.set()
            thread.join()

        assert result.reason is R.TIMED_OUT

    def test_nobody_listens(self, secret: Path) -> None:
        result = self.adapter(f"http://127.0.0.1:{refused_port()}", secret).send([notice()], NOW)

        assert result.reason is R.UNREACHABLE
        assert "refused" in result.detail

    def test_a_name_that_does_not_exist(self, secret: Path) -> None:
        assert self.adapter("http://no.such.host.invalid", secret).send([notice()], NOW).reason is R.UNREACHABLE

    def test_the_connection_ends_without_an_answer(self, secret: Path) -> None:
        assert self.sent(Reply(raw=b""), secret)[0].reason is R.UNREACHABLE

    @pytest.mark.parametrize("raw", [b"\x00\xff garbage\r\n\r\n", b"HTTP/1.1 9999 what\r\n\r\n", b"220 mail ESMTP\r\n"])
    def test_an_answer_that_is_no_http(self, raw: bytes, secret: Path) -> None:
        result, _ = self.sent(Reply(raw=raw), secret)

        assert result.reason is R.BAD_ANSWER

    @pytest.mark.parametrize("body", [b"<html>sign in</html>", b"\xff\xfe\x00", b"{", b"[]", b"[" * 60_000])
    def test_an_answer_that_the_protocol_does_not_know(self, body: bytes, secret: Path) -> None:
        result, _ = self.sent(Reply(200, body), secret)

        assert result.reason is self.case.garbage

    @pytest.mark.parametrize("status", [200, 500])
    def test_a_huge_answer_is_not_read_to_its_end(self, status: int, secret: Path) -> None:
        result, _ = self.sent(Reply(status, b"x" * 8_000_000), secret)

        assert result.reason is (self.case.garbage if status == 200 else R.SERVER_ERROR)
        assert len(result.detail) < 1000

    def test_an_ending_closes_what_the_first_notice_opened(self, secret: Path) -> None:
        for ending in (NoticeKind.RESOLVED, NoticeKind.TAKEN_BACK, NoticeKind.LAPSED):
            with receiving(lambda _request: self.case.taken) as server:
                one = self.adapter(server.url, secret)
                reference = one.send([notice()], NOW).references[0]
                other: dict[str, Any] = {"cause": "unknown", "fault": notice().verdict.fault, "suspects": ()}
                one.send([notice(ending, reference, **other)], NOW + 30 * SECOND)
            first, last = server.asked

            assert not self.case.is_closing(first)
            assert self.case.is_closing(last)
            if reference == "" or self.case.kind == "alertmanager":
                assert self.case.identity(first) == self.case.identity(last)

    def test_a_notice_sent_again_is_the_same_message(self, secret: Path) -> None:
        with receiving(lambda _request: self.case.taken) as server:
            self.adapter(server.url, secret).send([notice()], NOW)
            later = changed(notice(), made_ns=notice().made_ns + SECOND, told_ns=notice().told_ns + SECOND)
            self.adapter(server.url, secret).send([later], NOW + 90 * SECOND)  # after a restart
            self.adapter(server.url, secret).send([notice(NoticeKind.RESOLVED)], NOW + 90 * SECOND)
        first, again, other = server.asked

        if not self.case.is_named:
            assert first.body == again.body != other.body
            return
        assert self.case.identity(first) == self.case.identity(again)
        assert self.case.delivery(first) == self.case.delivery(again)
        assert self.case.delivery(first) != self.case.delivery(other) or self.case.kind == "alertmanager"

    def test_a_secret_is_read_at_each_send(self, secret: Path) -> None:
        with receiving(lambda _request: self.case.taken) as server:
            one = self.adapter(server.url, secret)
            one.send([notice()], NOW)
            secret.write_text(self.case.secret_text(server.url).replace(SECRET, "another-secret-of-32-characters!"))
            one.send([notice()], NOW)
            secret.unlink()
            missing = one.send([notice()], NOW)
            secret.write_text(self.case.secret_text(server.url))
            secret.chmod(0o644)
            opened = one.send([notice()], NOW)
        first, second = server.asked

        assert missing.reason is opened.reason is R.SECRET_MISSING
        assert missing.is_retryable
        assert str(secret) in missing.detail
        assert "chmod" in opened.detail
        assert (first.headers, first.body, first.path) != (second.headers, second.body, second.path)

    def test_shows_no_secret(self, secret: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        for name in [None, *(one for one in logging.root.manager.loggerDict if one.startswith(("urllib3", "tocsin")))]:
            caplog.set_level(logging.DEBUG, name)

        def echo(request: Request) -> Reply:
            told = f"{request.path} {dict(request.headers)} {request.body!r}".encode()
            return Reply(400, told, {"Set-Cookie": SECRET})

        details = [self.sent(self.case.taken, secret)[0].detail]
        with receiving(echo) as server:
            one = self.adapter(server.url, secret)
            details += [one.send([notice()], NOW).detail, repr(one), str(vars(one)), str(ADAPTERS[self.case.kind])]
        for reply in (Reply(401, SECRET.encode()), Reply(302, headers={"Location": f"http://h/{SECRET}"}), Reply(500)):
            details.append(self.sent(reply, secret)[0].detail)
        details.append(self.sent(Reply(raw=f"HTTP/1.1 {SECRET}\r\n\r\n".encode()), secret)[0].detail)
        details.append(self.adapter(f"http://127.0.0.1:{refused_port()}", secret).send([notice()], NOW).detail)
        details.append(self.sent(Reply(silent=True), secret, **self.case.fast)[0].detail)

        logged = "\n".join(f"{one.getMessage()} {one.exc_text} {one.args}" for one in caplog.records)
        for part in (SECRET, SECRET[4:14], "Zx81kqPv"):
            assert part not in logged
            assert all(part not in detail for detail in details)

    def test_threads_and_connections_end_with_it(self, secret: Path) -> None:
        with receiving(lambda _request: self.case.taken) as server:
            one = self.adapter(server.url, secret)
            for _ in range(3):
                one.send([notice()], NOW)
            one.close()
            assert one.send([notice()], NOW).is_delivered  # a closed adapter connects anew
            one.close()
        gc.collect()  # a socket that nobody closed warns here, and pytest makes it an error

    def test_what_others_wrote_does_no_harm(self, secret: Path) -> None:
        hostile = "\x1b[2J\u202e<!channel> {{ .X }} \ud800 " + "n" * 5000
        with receiving(lambda _request: self.case.taken) as server:
            one = self.adapter(server.url, secret)
            told = notice(cause=hostile, job=JobKey("c1", hostile, 0))
            result = one.send([told], NOW)

        assert result.is_delivered
        assert b"\x1b" not in server.asked[0].body
        assert server.asked[0].json is not None
