"""Transport of an agent's records to the engine or Kafka: sinks, spool, sessions."""
