"""Runtimes that drive the operators: one job's pipeline, the embedded engine, the Flink job."""
