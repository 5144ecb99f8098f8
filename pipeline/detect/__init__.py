"""Detectors: plain classes from slices of records to anomalies, without access to Kafka, Flink, clocks or disks."""
