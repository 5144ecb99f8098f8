"""The tests: one folder a room, beside it the benches and the checkers that lint calls."""
