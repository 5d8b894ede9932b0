"""Engines of kind external: someone else runs them, we ask for their health."""

from __future__ import annotations

from urllib.parse import urlsplit

from sre.settings.stack import EngineSettings
from sre.stack.processes import ProcessSpec, Readiness, Role


def process(engine: EngineSettings) -> ProcessSpec:
    """Return what is known of ``engine``: no command."""
    parts = urlsplit(engine.url or "")
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    return ProcessSpec(
        name=engine.name,
        role=Role.ENGINE,
        kind=engine.kind,
        command=None,
        readiness=Readiness("/health", host, port),
        host=host,
        port=port,
        pool=engine.served_name,
        gpus=engine.gpus,
    )
