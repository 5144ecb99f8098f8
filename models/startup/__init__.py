"""Start-up of a job: durations of stages, stragglers, shared services and cost, after Bootseer (ByteDance)."""
