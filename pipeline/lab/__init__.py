"""Offline work: simulation, backtests, the model registry, training, fakes for tests. No live code imports it."""
