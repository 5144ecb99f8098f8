"""The operators: plain classes that never see Kafka, Flink, a clock or a disk."""
