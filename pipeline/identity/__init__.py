"""Authentication of peers and authorization of their records. Only ``peers`` reads from sockets."""
