"""Align, detect, diagnose, decide: plain classes that know neither Kafka nor Flink nor a clock."""
