"""The controller of actions inside the embedded engine: its log, what follows it, and who may ask."""
