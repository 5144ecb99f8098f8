"""The agent of a host: it runs the collectors, receives the hooks' datagrams, and answers probes."""
