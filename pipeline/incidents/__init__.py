"""Turn findings into verdicts: life cycle, flapping, proposed actions."""
