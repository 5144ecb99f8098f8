"""How an agent's records reach the engine or Kafka: sinks, spool, sessions."""
