"""Fakes of a training host's devices, for the tests of this project and of others."""
