"""Comparison of machines by the durations of traced operations: runtime entropy, and a Bi-LSTM network."""
