"""From sre.yaml to what runs: Envoy documents, engine commands, restart policy. Pure."""
