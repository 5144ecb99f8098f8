"""The guards: each may hold, refuse or expire an action, or ask a person; a guard wins over the policy."""
