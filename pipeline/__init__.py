"""Operators, the runtimes that drive them, and the stores and buses around them."""
