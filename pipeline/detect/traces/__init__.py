"""Machines judged by the durations of traced operations: runtime entropy, Bi-LSTM."""
