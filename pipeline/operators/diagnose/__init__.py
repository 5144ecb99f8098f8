"""Root cause: joins anomalies, waits, exits and silence on the job's dependency graph."""

from tocsin.pipeline.operators.diagnose.operator import Diagnose, DiagnoseConfig, Diagnosis

__all__ = ["Diagnose", "DiagnoseConfig", "Diagnosis"]
