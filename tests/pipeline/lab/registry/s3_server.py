"""As much of S3 as pyarrow speaks to write, read and list small objects; on this machine, in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.serving import serving

_DATE = "Sat, 21 Nov 2026 10:00:00 GMT"


class Store:
    """What the server holds.

    Attributes:
        objects: "bucket/key" -> bytes; only what was uploaded to its end.
        failing: uploads are taken, and never become objects.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.failing = False

    def listed(self, bucket: str, prefix: str, delimiter: str) -> str:
        """The answer to ListObjectsV2."""
        folders, files = set(), []
        for name, data in sorted(self.objects.items()):
            key = name.removeprefix(f"{bucket}/")
            if name == key or not key.startswith(prefix):
                continue
            inner, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if found:
                folders.add(prefix + inner + delimiter)
            else:
                files.append(f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size></Contents>")
        inside = [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)]
        count = len(files) + len(inside)
        head = f"<KeyCount>{count}</KeyCount><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{head}{''.join(files + inside)}</ListBucketResult>"


class _Handler(BaseHTTPRequestHandler):
    store: Store
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return unquote(url.path).strip("/"), query, body

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), "Last-Modified": _DATE, **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        name, _, _ = self._asked()
        data = self.store.objects.get(name)
        if data is None and "/" in name:
            self._answer(404)
        else:
            self._answer(200, data or b"")

    def do_GET(self) -> None:
        name, query, _ = self._asked()
        if "list-type" in query:
            found = self.store.listed(name, query.get("prefix", ""), query.get("delimiter", ""))
            self._answer(200, found.encode(), Content_Type="application/xml")
        elif (data := self.store.objects.get(name)) is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            begin, _, end = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            last = min(int(end or len(data)), len(data) - 1)
            span = f"bytes {begin}-{last}/{len(data)}"
            self._answer(206, data[int(begin) : last + 1], Content_Range=span)

    def do_PUT(self) -> None:
        name, query, body = self._asked()
        if "partNumber" in query:
            self.store.parts[query["uploadId"]][int(query["partNumber"])] = body
        else:
            self.store.objects[name] = body
        self._answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def do_POST(self) -> None:
        name, query, _ = self._asked()
        if "uploads" in query:
            upload = quote(name, safe="") + str(len(self.store.parts))
            self.store.parts[upload] = {}
            reported = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        elif self.store.failing:
            self._answer(400, b"<Error><Code>EntityTooSmall</Code><Message>no</Message></Error>")
            return
        else:
            self.store.objects[name] = b"".join(data for _, data in sorted(self.store.parts[query["uploadId"]].items()))
            reported = '<CompleteMultipartUploadResult><ETag>"x"</ETag></CompleteMultipartUploadResult>'
        self._answer(200, reported.encode(), Content_Type="application/xml")

    def do_DELETE(self) -> None:
        self._asked()
        self._answer(204)


@contextmanager
def s3_server(store: Store) -> Iterator[str]:
    """Run it; gives HOST:PORT."""
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": store}))) as server:
        yield f"127.0.0.1:{server.server_address[1]}"
