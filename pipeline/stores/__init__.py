"""Storage of incidents: one protocol, and one module for each database."""
