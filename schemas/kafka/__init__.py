"""Kafka: topic names, keys, connection settings and error messages."""
