"""Checkers that ``make lint`` calls, and their own tests."""
