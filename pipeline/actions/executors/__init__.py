"""Executors: each does actions on one kind of system, and tells what came of them."""
