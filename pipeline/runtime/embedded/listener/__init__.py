"""Where agents connect to the embedded engine."""
