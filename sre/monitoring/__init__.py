"""Rules, dashboards, runbooks and checks, generated from the catalogue in ``sre.metrics``."""
