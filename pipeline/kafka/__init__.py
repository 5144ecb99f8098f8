"""The way over Kafka: topics, ticks, recordings in and out. The Flink job and the consumers stand beside it."""
