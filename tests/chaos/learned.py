"""Learned detectors in parity and chaos: which of them judge, and the models that are announced meanwhile."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.pipeline.detect.learned.test_traces import network
from tocsin.models.bilstm_file import encode_bilstm
from tocsin.pipeline.detect.learned.config import DetectorMode
from tocsin.pipeline.detect.learned.registry import LEARNED, learned_config
from tocsin.pipeline.runtime.embedded.engine import EngineConfig
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.schemas.model_announcement import ModelAnnouncement, boundary_after, content_hash
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict

ANNOUNCED_SECONDS: Final = 20
"""Seconds after a job's begin at which models are announced."""
_BILSTM: Final = "bilstm"


@dataclass(frozen=True)
class Learned:
    """Which learned detectors judge, and with which models.

    Attributes:
        settings: ``NAME=MODE`` each, as for ``--detector``.
        models: detector -> payload that is announced; the others judge with what ships.
    """

    settings: tuple[str, ...] = ()
    models: dict[str, bytes] = field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        """The flags of ``tocsin serve``, ``flink submit`` and ``cluster up``."""
        return [f"--detector={setting}" for setting in self.settings]

    def of(self, config: EngineConfig) -> EngineConfig:
        """The same settings with these detectors."""
        return replace(config, job=replace(config.job, learned=self.job.learned))

    @property
    def job(self) -> JobConfig:
        """Settings of a job with these detectors."""
        return JobConfig(learned=learned_config(self.settings))

    def announced(self, ts_ns: int) -> tuple[ModelAnnouncement, ...]:
        """The models, announced at this time."""
        return tuple(
            ModelAnnouncement(ts_ns, name, "chaos", f"{name}/1", content_hash(payload), payload, boundary_after(ts_ns))
            for name, payload in self.models.items()
        )

    def announced_after(self, begin_ns: int) -> tuple[ModelAnnouncement, ...]:
        """The models, announced ``ANNOUNCED_SECONDS`` after this time."""
        return self.announced(begin_ns + ANNOUNCED_SECONDS * NS_PER_SECOND)


def add_learned_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--detector`` and ``--model``."""
    text = "a learned detector that judges, too, with off, evidence or accuse; may be repeated"
    parser.add_argument("--detector", metavar="NAME=MODE", action="append", default=[], help=text)
    text = (
        "announce this file's model; without one it judges with what ships (bilstm: with a network that nobody trained)"
    )
    parser.add_argument("--model", metavar="NAME=FILE", action="append", default=[], help=text)


def learned_of(args: argparse.Namespace) -> Learned:
    """What the flags say."""
    modes = learned_config(args.detector)
    named = [setting.partition("=") for setting in args.model]
    models = {name: Path(file).read_bytes() for name, _, file in named}
    if modes.mode_of(_BILSTM) is not DetectorMode.OFF and _BILSTM not in models:
        models[_BILSTM] = encode_bilstm({"phases": network()})
    return Learned(tuple(args.detector), models)


def shown_counts(verdicts: Sequence[Verdict]) -> Counter[str]:
    """Learned detector -> number of these lines with its evidence."""
    return Counter(name for one in verdicts for name in {shown.detector for shown in one.evidence} & LEARNED.keys())
