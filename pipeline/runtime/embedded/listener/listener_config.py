"""Settings of the listener that agents connect to."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.pipeline.identity.gate import OWN_USER_ONLY, GateConfig
from tocsin.pipeline.runtime.embedded.listener.limits import ServerLimits
from tocsin.pipeline.runtime.embedded.listener.peer_limits import IntakeLimits
from tocsin.schemas.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Limits of the listener, and which peers may sign in.

    Attributes:
        limits: limits on connections, bytes and time.
        intake: limits on the names that peers may introduce.
        gate: which peers may sign in.
        tls: certificates, None = no TLS.
    """

    limits: ServerLimits = field(default_factory=ServerLimits)
    intake: IntakeLimits = field(default_factory=IntakeLimits)
    gate: GateConfig = OWN_USER_ONLY
    tls: TlsFiles | None = None
