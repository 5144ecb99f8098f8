"""A relay in user space that delays one rank's traffic; it runs as its own process.

Requests on its unix socket, one per line: ``open PORT`` listens on a new port, forwards each connection to PORT on
this machine and answers with the new port. ``delay SECONDS`` delays all traffic in both directions from now on and
answers ``ok``; it adds latency and does not reduce the throughput.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time

LOOPBACK = "127.0.0.1"
_CHUNK_BYTES = 1 << 18


class Relay:
    """Forwards bytes with a delay."""

    def __init__(self) -> None:
        """Start without a delay."""
        self._delay_seconds = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, control: str) -> None:
        """Answer requests on the control socket endlessly."""
        server = await asyncio.start_unix_server(self._answer, control)
        await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one control connection."""
        while line := await reader.readline():
            word, _, value = line.decode().strip().partition(" ")
            if word == "open":
                answer = str(await self._open(int(value)))
            else:
                self._delay_seconds = float(value)
                answer = "ok"
            writer.write(answer.encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _open(self, target_port: int) -> int:
        """Listen on a new port that forwards to ``target_port``, and return the new port."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, target_port)
            self._spawn(reader, far_writer)
            self._spawn(far_reader, writer)

        server = await asyncio.start_server(accept, LOOPBACK, 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def _spawn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Start to forward from a reader to a writer."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        for work in (self._read(reader, queue), self._write(queue, writer)):
            task = asyncio.create_task(work)
            self._tasks.add(task)  # the loop itself keeps no hold on it
            task.add_done_callback(self._tasks.discard)

    async def _read(self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        """Queue each chunk that is read, with the time when it is due; an empty chunk marks the end."""
        while chunk := await _next_chunk(reader):
            queue.put_nowait((time.monotonic() + self._delay_seconds, chunk))
        queue.put_nowait((0.0, b""))

    async def _write(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        """Write each queued chunk once it is due."""
        while True:
            due, chunk = await queue.get()
            if not chunk:
                writer.close()
                return
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            writer.write(chunk)


async def _next_chunk(reader: asyncio.StreamReader) -> bytes:
    """Return the next bytes of the stream, b"" at its end or after a connection error."""
    try:
        return await reader.read(_CHUNK_BYTES)
    except ConnectionError:
        return b""


def ask(control: str, request: str) -> str:
    """Send a request to a relay and return its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, line.makefile("rw") as file:
        line.connect(control)
        file.write(request + "\n")
        file.flush()
        return file.readline().strip()


if __name__ == "__main__":
    asyncio.run(Relay().serve(sys.argv[1]))
