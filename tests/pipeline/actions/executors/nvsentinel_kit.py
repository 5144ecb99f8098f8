"""An action, the published messages of NVSentinel, and a connector that listens on a socket."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tocsin.pipeline.actions.executors.nvsentinel_messages import ConnectorMessages
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, Machine, action_id_of, check_action
from tocsin.schemas.formats.nvsentinel import HealthEvent
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind

PUBLISHED = """
syntax = "proto3";
package datamodels;

service PlatformConnector {
  rpc HealthEventOccurredV1(HealthEvents) returns (google.protobuf.Empty) {}
}

message HealthEvents {
  uint32 version = 1;
  repeated HealthEvent events = 2;
}

// What downstream modules do with an event.
enum ProcessingStrategy {
  UNSPECIFIED = 0;
  EXECUTE_REMEDIATION = 1;
  STORE_ONLY = 2;
}

enum RecommendedAction {
  NONE = 0;
  COMPONENT_RESET = 2;
  CONTACT_SUPPORT = 5;
  RUN_FIELDDIAG = 6;
  RESTART_VM = 15;
  RESTART_BM = 24;
  REPLACE_VM = 25;
  RUN_DCGMEUD = 26;
  RESTART_APP = 39;

  UNKNOWN = 99;
}

message Entity {
  string entityType = 1;
  string entityValue = 2;
}

message HealthEvent {
  uint32 version = 1;

  string agent = 2;
  string componentClass = 3;

  string checkName = 4;
  bool isFatal = 5;
  bool isHealthy = 6;
  string message = 7;
  RecommendedAction recommendedAction = 8;
  repeated string errorCode = 9;
  repeated Entity entitiesImpacted = 10;

  map<string, string> metadata = 11;
  google.protobuf.Timestamp generatedTimestamp = 12;
  string nodeName = 13;
  BehaviourOverrides quarantineOverrides = 14;
  BehaviourOverrides drainOverrides = 15;
  ProcessingStrategy processingStrategy = 16;
}

message BehaviourOverrides {
  bool force = 1;
  bool skip = 2;
}
"""
"""The interface as NVSentinel publishes it."""

ISSUED_NS = 1_700_000_000_123_456_789


def action_on(
    *hosts: str,
    kind: ActionKind = ActionKind.EVICT,
    component: Component | None = None,
    verdict_id: str = "v1",
    state: ActionState = ActionState.CLAIMED,
) -> Action:
    """Return an action on hosts; without a component it is about the first of them."""
    about = component or Component(ComponentKind.HOST, hosts[0])
    target = ActionTarget(JobKey("c1", "train", 2), about, tuple(Machine(host) for host in sorted(hosts)))
    action = Action(
        action_id=action_id_of(verdict_id, kind, target),
        verdict_id=verdict_id,
        verdict_update=3,
        kind=kind,
        target=target,
        cause="gpu_ecc",
        rule="machine_fault",
        budget_class="xid 95",
        issued_ns=ISSUED_NS,
        deadline_ns=ISSUED_NS + 60_000_000_000,
        state=state,
        reason="claimed",
        changed_ns=ISSUED_NS + 5,
    )
    return check_action(action)


class ListeningConnector:
    """A connector that keeps what it was sent, or answers with an error.

    Attributes:
        received: the events of each call, as bytes.
        answer: code with which it refuses, None = it takes them.
    """

    def __init__(self) -> None:
        """Take everything."""
        self.received: list[bytes] = []
        self.answer: grpc.StatusCode | None = None

    @property
    def events(self) -> list[HealthEvent]:
        """All events received, in order."""
        messages = ConnectorMessages()
        return [event for data in self.received for event in messages.decode(data)]

    def _take(self, data: bytes, context: Any) -> bytes:  # grpc's context has no type
        if self.answer is not None:
            context.abort(self.answer, "as the test wants")
        self.received.append(data)
        return b""

    @contextmanager
    def listening(self, path: Path) -> Iterator[str]:
        """Listen on a unix socket; the address is what a client connects to."""
        server = grpc.server(ThreadPoolExecutor(1))
        method = grpc.unary_unary_rpc_method_handler(self._take)
        handlers = {"HealthEventOccurredV1": method}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("datamodels.PlatformConnector", handlers),)
        )
        address = f"unix://{path}"
        server.add_insecure_port(address)
        server.start()
        try:
            yield address
        finally:
            server.stop(0).wait()
