"""Kafka clients: topics, ticks, verdicts, and recordings played into and taken from topics."""
