"""Root cause: joins anomalies, waits, exits and silence on the job's dependency graph."""

from tocsin.pipeline.rca.diagnose_config import DiagnoseConfig
from tocsin.pipeline.rca.operator import Diagnose, Diagnosis

__all__ = ["Diagnose", "DiagnoseConfig", "Diagnosis"]
