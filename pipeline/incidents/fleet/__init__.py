"""The fleet view: faults of idle machines, faults that many machines share, and machines that fail again."""
