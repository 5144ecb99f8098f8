"""What a submission of the job chooses; goes to the job as JSON, through the environment.

Knows nothing of Flink: whoever submits need not load it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from tocsin.pipeline.identity.signed import SignatureConfig
from tocsin.pipeline.runtime.flink.sql import TRANSACTION_SECONDS, StreamOptions
from tocsin.schemas.errors import ConfigError

OPTIONS_VARIABLE: Final = "TOCSIN_FLINK_JOB"
"""Not an argument: the clients' properties may hold a password, and arguments stand in ``ps``."""

JARS_VARIABLE: Final = "TOCSIN_FLINK_JARS"
"""More jars for the job, ``:`` between them: ``flink run`` takes one. Empty where Flink's own folder holds them."""

PARAMETER: Final = "tocsin"
"""Name under which a running job shows its options, its passwords left out."""

_MIN_CHECKPOINT_SECONDS: Final = 0.1

_SLOW_CHECKPOINT_SECONDS: Final = 15.0
_SHORTEST_TIMEOUT_SECONDS: Final = 5.0
_RESTART_SECONDS: Final = 15.0
"""What is left of a transaction's time after two intervals and the checkpoint that failed: the job comes back from
the checkpoint before it, and commits what that one closed (seen: 5 to 14 s on two cores)."""
LONGEST_INTERVAL_SECONDS: Final = (TRANSACTION_SECONDS - _RESTART_SECONDS - _SHORTEST_TIMEOUT_SECONDS) / 2
"""Between two checkpoints of a job with transactions."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a submission chooses.

    Attributes:
        stream: where it reads and writes.
        name: shown by the cluster.
        checkpoint_seconds: between two checkpoints.
        slot_count: slots for the operators; one job's records meet in one of them.
        snapshot_seconds: stream time after which a snapshot takes the journal's place.
        canary_seconds: every so often each job gets a verdict that only measures the way to the tables, 0: never.
        origin: how it was submitted: what an upgrade goes back to.
        signatures: files with keys, on the TaskManagers' machines.
    """

    stream: StreamOptions
    name: str = "tocsin"
    checkpoint_seconds: float = 10.0
    slot_count: int = 1
    snapshot_seconds: int = 60
    canary_seconds: int = 0
    origin: Mapping[str, str] | None = None
    signatures: SignatureConfig = field(default_factory=SignatureConfig)

    def __post_init__(self) -> None:
        """Check what would else fail inside the cluster.

        Raises:
            ConfigError: names the setting.
        """
        if not self.name.strip():
            raise ConfigError("name", self.name, "not empty")
        if not self.checkpoint_seconds >= _MIN_CHECKPOINT_SECONDS:
            raise ConfigError("checkpoint-seconds", self.checkpoint_seconds, f"at least {_MIN_CHECKPOINT_SECONDS}")
        if self.stream.is_exactly_once and self.checkpoint_seconds > LONGEST_INTERVAL_SECONDS:
            must = f"at most {LONGEST_INTERVAL_SECONDS:g} with --exactly-once (a transaction has {TRANSACTION_SECONDS})"
            raise ConfigError("checkpoint-seconds", self.checkpoint_seconds, must)
        if not 1 <= self.slot_count <= 128:
            raise ConfigError("parallelism", self.slot_count, "from 1 to 128")
        if self.snapshot_seconds < 1:
            raise ConfigError("snapshot-seconds", self.snapshot_seconds, "at least 1")
        if self.canary_seconds < 0:
            raise ConfigError("canary-seconds", self.canary_seconds, "0 (never) or more")

    @property
    def checkpoint_timeout_seconds(self) -> float | None:
        """After which a checkpoint fails the job, None: no failed checkpoint does.

        With transactions it must: the broker aborts one that is older than ``TRANSACTION_SECONDS``, Kafka's connector
        drops its commit with no more than a line in a log, and its verdicts would be said to nobody. A job that fails
        in time says them again. The oldest transaction was opened two intervals before the checkpoint that hangs.
        """
        if not self.stream.is_exactly_once:
            return None
        left = TRANSACTION_SECONDS - _RESTART_SECONDS - 2 * self.checkpoint_seconds
        return min(_SLOW_CHECKPOINT_SECONDS, left)

    def to_json(self) -> str:
        """Return them in full, for the job alone."""
        return json.dumps(asdict(self), sort_keys=True)

    def shown(self) -> str:
        """Return them without the clients' properties, for everybody who can see the job."""
        return replace(self, stream=replace(self.stream, properties={})).to_json()


def options_from(text: str) -> JobOptions:
    """Read what ``to_json`` or ``shown`` wrote.

    Raises:
        ConfigError: it is not that, or of another version of tocsin.
    """
    try:
        data: dict[str, Any] = json.loads(text)
        known, known_stream = ({one.name for one in fields(kind)} for kind in (JobOptions, StreamOptions))
        stream = data["stream"]
        unknown = sorted((data.keys() - known) | (stream.keys() - known_stream))
        if unknown:
            raise ConfigError(OPTIONS_VARIABLE, ", ".join(unknown), "settings that this version of tocsin knows")
        signatures = SignatureConfig(**data.get("signatures", {}))
        return JobOptions(**{**data, "stream": StreamOptions(**stream), "signatures": signatures})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(OPTIONS_VARIABLE, text[:200], "what 'tocsin flink submit' writes") from error
