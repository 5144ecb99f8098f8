"""The engine in one process, without a server."""
