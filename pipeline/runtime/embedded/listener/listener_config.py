"""Settings of the agents' listener."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.pipeline.identity.gate import OWN_USER_ONLY, GateConfig
from tocsin.pipeline.runtime.embedded.listener.limits import ServerLimits
from tocsin.pipeline.runtime.embedded.listener.peer_limits import IntakeLimits
from tocsin.schemas.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Bounds of the listener, and whom it lets in.

    Attributes:
        limits: of connections, bytes and time.
        intake: of what peers may make the engine remember.
        gate: who may sign in.
        tls: certificates, None: no TLS.
    """

    limits: ServerLimits = field(default_factory=ServerLimits)
    intake: IntakeLimits = field(default_factory=IntakeLimits)
    gate: GateConfig = OWN_USER_ONLY
    tls: TlsFiles | None = None
