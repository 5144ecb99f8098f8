"""The listener that agents connect to in the embedded engine."""
