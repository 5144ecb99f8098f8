"""Topic names, keys and settings of Kafka."""
