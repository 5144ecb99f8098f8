"""The agent of a host: it runs the collectors, hears the hooks, and answers probes."""
