"""Who speaks to the engine's own listener, and what they may say. No sockets but in ``peers`` and ``tls``."""
