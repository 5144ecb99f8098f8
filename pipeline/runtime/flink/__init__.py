"""The distributed runtime: a Flink job that drives the same operators between Kafka topics."""
