"""Answers to the engine's probes: a rank's Flight Recorder dump, the ring of raw collectives.

An empty payload means that there is no answer (no hook, no dump in time, too large).

A dump's file is named by the training process, which any user may run. It is read only below the agent's own
dump folder, without following links, and only if it is a regular file of the sender. So no hook can make the agent
reveal its own or others' files. The user check alone is not enough: root in a container is the host's root.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from tocsin.collectors.agent.beneath import DumpFolders
from tocsin.collectors.agent.core import AgentCore
from tocsin.collectors.agent.job_state import JobState
from tocsin.collectors.agent.messages import Datagram, DumpWritten
from tocsin.collectors.clock import Now
from tocsin.collectors.transport.sink import Probe
from tocsin.schemas.errors import FieldError
from tocsin.schemas.kinds import STUCK_DUMP
from tocsin.schemas.records import JobKey, ProbeAnswer
from tocsin.schemas.wire.codec import encode

log = logging.getLogger(__name__)

ProbeKind = Literal["stacks", "flight_recorder", "ring", "fast_metrics"]
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
ANSWER_NS: Final = 10_000_000_000
MAX_PENDING: Final = 64


@dataclass(frozen=True, slots=True)
class _Asked:
    """A dump requested from a hook."""

    job: JobKey
    rank: int
    request_id: str
    until_mono_ns: int


@dataclass(frozen=True, slots=True)
class _FromDisk:
    """The content of a dump, or an empty answer."""

    job: JobKey
    rank: int
    request_id: str
    payload: bytes


class ProbeHandler:
    """Turns probes and dumps into ``ProbeAnswer`` records; used by the agent's main thread."""

    def __init__(self, core: AgentCore, wake: Callable[[], None], dump_folder: str = "") -> None:
        """Prepare to read dumps below ``dump_folder`` only ("": only requested ones).

        Args:
            core: the agent's jobs.
            wake: wakes the main thread when a dump was read.
            dump_folder: folder of dumps that hooks write without a request.
        """
        self._core = core
        self._wake = wake
        self._folders = DumpFolders(dump_folder)
        self._folders.prepare()
        self._asked: list[_Asked] = []
        self._read: deque[_FromDisk] = deque()
        self._out: list[ProbeAnswer] = []
        self._readers = 0

    def take(self) -> list[ProbeAnswer]:
        """Remove and return the answers that are ready."""
        out, self._out = self._out, []
        return out

    def on_probe(self, probe: Probe, now: Now) -> None:
        """Process a probe of the engine: answer it, or ask the hooks concerned for a dump."""
        if probe.probe not in get_args(ProbeKind):
            log.warning("unknown probe", extra={"probe": probe.probe, "request_id": probe.request_id})
            return
        states = [state for state in self._core.jobs.values() if _meant(state, probe)]
        if not states:
            log.warning("probe for nobody here", extra={"request_id": probe.request_id, "rank": probe.rank})
        for state in states:
            if probe.probe == "ring":
                self._answer_ring(state, probe, now)
            elif probe.probe == "flight_recorder":
                self._ask_hooks(state, probe, now)
            else:
                self._answer(_FromDisk(state.job, probe.rank, probe.request_id, b""), probe.probe, now)

    def on_dump(self, datagram: Datagram, dump: DumpWritten, uid: int) -> None:
        """Process a hook's message about a dump on disk; it is read in a thread, because a disk may hang."""
        request_id = STUCK_DUMP
        if dump.why == "probe":
            request_id = dump.request_id
            found = [item for item in self._asked if _is_answer(item, datagram, request_id)]
            if not found:
                log.warning("dump that nobody asked for", extra={"path": dump.path})
                return
            self._asked.remove(found[0])
        if self._readers >= MAX_PENDING:
            log.error("dumps hang", extra={"path": dump.path})
            return
        self._readers += 1
        entry = (datagram, dump, request_id, uid)
        threading.Thread(target=self._read_dump, args=entry, name="read-dump", daemon=True).start()

    def on_time(self, now: Now) -> None:
        """Queue answers for dumps that were read, and empty ones for requests that timed out."""
        while self._read:
            self._readers -= 1
            self._answer(self._read.popleft(), "flight_recorder", now)
        late = [item for item in self._asked if item.until_mono_ns < now.mono_ns]
        for item in late:
            self._asked.remove(item)
            self._answer(_FromDisk(item.job, item.rank, item.request_id, b""), "flight_recorder", now)

    def close(self) -> None:
        """Remove the folder for requested dumps if it is empty."""
        self._folders.close()

    def _answer_ring(self, state: JobState, probe: Probe, now: Now) -> None:
        """Queue the answer with a job's ring of collectives."""
        try:
            payload = encode(state.ring_batch(probe.rank, now))
        except FieldError as error:
            log.error("ring cannot be encoded", extra={"error": str(error)})  # noqa: TRY400  # the text is all
            payload = b""
        self._answer(_FromDisk(state.job, probe.rank, probe.request_id, payload), "ring", now)

    def _ask_hooks(self, state: JobState, probe: Probe, now: Now) -> None:
        """Ask the hooks of the probed ranks for a dump; queue empty answers for those that cannot be asked."""
        for number, rank in state.ranks.items():
            if probe.rank not in {-1, number}:
                continue
            reply = rank.hello.reply if rank.hello and not rank.ended else ""
            if len(self._asked) < MAX_PENDING and reply and self._ask(reply, probe.request_id):
                self._asked.append(_Asked(state.job, number, probe.request_id, now.mono_ns + ANSWER_NS))
            else:
                self._answer(_FromDisk(state.job, number, probe.request_id, b""), "flight_recorder", now)

    def _ask(self, reply: str, request_id: str) -> bool:
        """Send a dump request to a hook's socket; return whether it was accepted."""
        try:
            folder = self._folders.asked()
        except OSError as error:
            log.warning("no folder for dumps", extra={"error": str(error)})
            return False
        message = {"v": 1, "t": "dump", "request_id": request_id, "dir": folder}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            try:
                way.sendto(json.dumps(message).encode(), reply)
            except OSError as error:
                log.warning("hook does not answer", extra={"reply": reply, "error": str(error)})
                return False
        return True

    def _read_dump(self, datagram: Datagram, dump: DumpWritten, request_id: str, uid: int) -> None:
        """Read a dump and hand it to the main thread; runs in a thread of its own."""
        payload = b""
        try:
            payload = self._folders.read(dump.path, uid, MAX_ANSWER_BYTES)
            if dump.why == "probe":
                self._folders.remove(dump.path)
        except (OSError, ValueError) as error:
            log.warning("dump not read", extra={"path": dump.path, "error": str(error)})
        self._read.append(_FromDisk(datagram.job, datagram.rank, request_id, payload))
        self._wake()

    def _answer(self, found: _FromDisk, kind: ProbeKind | str, now: Now) -> None:
        """Queue an answer; one that is too large becomes empty."""
        payload = found.payload
        if len(payload) > MAX_ANSWER_BYTES:
            log.warning("answer too large", extra={"probe": kind, "size_bytes": len(payload)})
            payload = b""
        for known in get_args(ProbeKind):
            if known == kind:
                host = self._core.config.place.host
                answer = ProbeAnswer(found.job, host, now.stamp_ns, found.rank, found.request_id, known, payload)
                self._out.append(answer)


def _meant(state: JobState, probe: Probe) -> bool:
    """Return whether a probe concerns this job and one of its ranks."""
    if probe.job is not None and probe.job != (state.job.cluster, state.job.job_id, state.job.attempt):
        return False
    return probe.rank == -1 or probe.rank in state.ranks


def _is_answer(asked: _Asked, datagram: Datagram, request_id: str) -> bool:
    """Return whether a dump message answers this request."""
    return asked.job == datagram.job and asked.rank == datagram.rank and asked.request_id == request_id
