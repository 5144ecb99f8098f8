"""The distributed runtime: the same operators, driven by a Flink job between Kafka topics."""
