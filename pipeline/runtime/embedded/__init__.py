"""The engine as a single process, without a stream server."""
