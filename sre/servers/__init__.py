"""Where we are called: simulated engine, exporter, API sockets."""
