"""Offline work: simulation, backtests, the model registry, training, fakes for tests. Nothing live imports it."""
