"""Options of a submitted Flink job, passed to it as JSON in an environment variable.

This module does not import Flink, so the submitting process need not load it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from tocsin.pipeline.detect.learned.registry import learned_config
from tocsin.pipeline.identity.signed import SignatureConfig
from tocsin.pipeline.runtime.flink.sql import TRANSACTION_SECONDS, StreamOptions
from tocsin.schemas.errors import ConfigError

OPTIONS_VARIABLE: Final = "TOCSIN_FLINK_JOB"
"""Environment variable with the options; arguments would be visible in ``ps``, and the options may hold a password."""

JARS_VARIABLE: Final = "TOCSIN_FLINK_JARS"
"""Environment variable with extra jars, separated by ``:``, because ``flink run`` takes only one.

It is empty where Flink's own folder holds them.
"""

PARAMETER: Final = "tocsin"
"""Name under which a running job shows its options, without passwords."""

_MIN_CHECKPOINT_SECONDS: Final = 0.1

_SLOW_CHECKPOINT_SECONDS: Final = 15.0
_SHORTEST_TIMEOUT_SECONDS: Final = 5.0
_RESTART_SECONDS: Final = 15.0
"""Time reserved for a restart before a transaction expires.

The job returns to the checkpoint before the failed one and commits its transactions; that took 5 to 14 s on two cores.
"""
LONGEST_INTERVAL_SECONDS: Final = (TRANSACTION_SECONDS - _RESTART_SECONDS - _SHORTEST_TIMEOUT_SECONDS) / 2
"""Maximum checkpoint interval of a job with transactions."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of a submitted job.

    Attributes:
        stream: the topics and brokers to read and write.
        name: name shown by the cluster.
        checkpoint_seconds: interval of checkpoints.
        slot_count: slots for the operators; each job's records are processed in one of them.
        snapshot_seconds: event time after which a snapshot replaces the journal.
        canary_seconds: interval at which each job gets a test verdict that measures the way to the tables, 0 = never.
        origin: how the job was submitted, to be restored by an upgrade.
        signatures: key files, on the TaskManagers' machines.
        detectors: modes of the learned detectors, NAME=MODE each.
    """

    stream: StreamOptions
    name: str = "tocsin"
    checkpoint_seconds: float = 10.0
    slot_count: int = 1
    snapshot_seconds: int = 60
    canary_seconds: int = 0
    origin: Mapping[str, str] | None = None
    signatures: SignatureConfig = field(default_factory=SignatureConfig)
    detectors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check options that would otherwise fail inside the cluster.

        Raises:
            ConfigError: an option is invalid; the error names it.
        """
        learned_config(self.detectors)
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
        """Time after which a hanging checkpoint fails the job, None = never.

        With transactions it must fail. The broker aborts transactions older than ``TRANSACTION_SECONDS``, and Kafka's
        connector then silently drops their verdicts. A job that fails in time publishes them again. The oldest
        transaction was opened two intervals before the hanging checkpoint.
        """
        if not self.stream.is_exactly_once:
            return None
        left = TRANSACTION_SECONDS - _RESTART_SECONDS - 2 * self.checkpoint_seconds
        return min(_SLOW_CHECKPOINT_SECONDS, left)

    def to_json(self) -> str:
        """Return all options as JSON, for the job only."""
        return json.dumps(asdict(self), sort_keys=True)

    def shown(self) -> str:
        """Return the options as JSON without the clients' properties, for everyone who can see the job."""
        return replace(self, stream=replace(self.stream, properties={})).to_json()


def options_from(text: str) -> JobOptions:
    """Parse the JSON that ``to_json`` or ``shown`` returned.

    Raises:
        ConfigError: the text is not that, or comes from another version of tocsin.
    """
    try:
        data: dict[str, Any] = json.loads(text)
        known, known_stream = ({one.name for one in fields(kind)} for kind in (JobOptions, StreamOptions))
        stream = data["stream"]
        unknown = sorted((data.keys() - known) | (stream.keys() - known_stream))
        if unknown:
            raise ConfigError(OPTIONS_VARIABLE, ", ".join(unknown), "settings that this version of tocsin knows")
        signatures = SignatureConfig(**data.get("signatures", {}))
        detectors = tuple(data.get("detectors", ()))
        own = {"stream": StreamOptions(**stream), "signatures": signatures, "detectors": detectors}
        return JobOptions(**{**data, **own})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(OPTIONS_VARIABLE, text[:200], "what 'tocsin flink submit' writes") from error
