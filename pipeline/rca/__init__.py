"""Root cause: joins anomalies, waits, exits and silence on the job's dependency graph."""

from tocsin.pipeline.rca.operator import Diagnose, DiagnoseConfig, Diagnosis

__all__ = ["Diagnose", "DiagnoseConfig", "Diagnosis"]
