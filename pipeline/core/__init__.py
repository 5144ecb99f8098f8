"""Base of all operators: the operator protocol, array state, time slices and frame blocks."""
