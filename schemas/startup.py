"""Words of start-up stages, and the mark that a stage of one node begins or ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class StartupStage(StrEnum):
    """Start-up stages that have a fixed name; other names are kept as they are."""

    IMAGE_LOAD = "image_load"
    ENV_SETUP = "env_setup"
    DEPENDENCIES = "dependencies"
    MODEL_INIT = "model_init"
    CHECKPOINT_RESUME = "checkpoint_resume"
    COMPILE = "compile"
    FIRST_STEP = "first_step"


class Edge(StrEnum):
    """End of an interval that a mark stands for."""

    BEGIN = "begin"
    END = "end"


class StartKind(StrEnum):
    """How a job starts."""

    FULL = "full"
    """Everything runs, from the image on."""
    HOT = "hot"
    """The containers stay: a hot update."""


SHARED_SERVICES: Final = {
    StartupStage.IMAGE_LOAD: "the image registry or its peers",
    StartupStage.ENV_SETUP: "the package mirror, the code service or DNS",
    StartupStage.DEPENDENCIES: "the package mirror or the code service",
    StartupStage.MODEL_INIT: "the storage of the model or the bootstrap of the communicator",
    StartupStage.CHECKPOINT_RESUME: "the storage of the checkpoint",
    StartupStage.COMPILE: "the shared compile cache",
    StartupStage.FIRST_STEP: "the storage of the data",
}
"""StartupStage -> what all nodes share in it, named where all of them are slow."""


@dataclass(frozen=True, slots=True)
class StageMark:
    """A stage begins or ends in one process.

    Attributes:
        ts_ns: when, Unix nanoseconds.
        stage: name of the stage.
        edge: begin or end.
        node: what is compared with its peers: a host, or a rank where no host is known; "" if unknown.
        member: the process on the node; a node's stage lasts from its first begin to its last end.
        start_kind: how the job starts.
        attempt: restarts of the job before this start, from 0.
    """

    ts_ns: int
    stage: str
    edge: Edge
    node: str = ""
    member: str = ""
    start_kind: str = StartKind.FULL
    attempt: int = 0
