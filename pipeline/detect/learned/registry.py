"""All learned detectors of this program, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tocsin.pipeline.detect.learned.config import DetectorMode, LearnedConfig
from tocsin.pipeline.detect.learned.minder import StreamingMinder, StreamingMinderConfig
from tocsin.pipeline.detect.learned.operator import LearnedOperator
from tocsin.pipeline.detect.learned.traces import StreamingBilstm, StreamingEntropy
from tocsin.pipeline.detect.traces.detector import TracesConfig
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.errors import ConfigError

Make = Callable[[JobGraph], LearnedOperator]
"""Function from a job's graph to a new operator with its default settings."""

LEARNED: Final[Mapping[str, Make]] = {
    "entropy": lambda graph: StreamingEntropy(TracesConfig(), graph),
    "bilstm": lambda graph: StreamingBilstm(TracesConfig(), graph),
    "minder": lambda graph: StreamingMinder(StreamingMinderConfig(), graph),
}
"""Detector name -> how its operator is made. The order is the order in which they judge."""


def learned_config(settings: Iterable[str]) -> LearnedConfig:
    """Return the modes that settings of the form ``NAME=MODE`` name.

    Raises:
        ConfigError: a setting has another form, an unknown name or mode, or a name occurs twice.
    """
    modes: dict[str, DetectorMode] = {}
    for setting in settings:
        name, separator, mode = setting.partition("=")
        if not separator or mode not in set(DetectorMode):
            raise ConfigError("--detector", setting, f"NAME=MODE with one of {', '.join(DetectorMode)}")
        if name not in LEARNED:
            raise ConfigError("--detector", setting, f"one of {', '.join(sorted(LEARNED))}, then =MODE")
        if name in modes:
            raise ConfigError("--detector", setting, f"given once for {name}")
        modes[name] = DetectorMode(mode)
    return LearnedConfig(modes)
