"""Where incidents are kept: one protocol, one module for each database."""
