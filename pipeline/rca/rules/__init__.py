"""Rules that decide from evidence which machine or switch is at fault."""
