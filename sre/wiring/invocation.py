"""How ``sre`` was called, and what a stack that became ready says. Imports nothing heavy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from sre.settings.models import Root
from sre.settings.stack import StackSettings

SUPERVISOR_LOG = "supervisor.log"


@dataclass(frozen=True, slots=True)
class Invocation:
    """How ``sre`` was called: its guard and its background process are called the same way."""

    config: Path | None
    state_dir: Path
    with_guard: bool = True
    late_secrets: bool = False
    """Secrets of channels and webhook may come after the start."""

    def argv(self, *arguments: str) -> list[str]:
        """Command line of another ``sre`` with the same configuration and state folder."""
        argv = [sys.executable, "-m", "sre"]
        if self.config is not None:
            argv += ["--config", str(self.config)]
        return [*argv, "--state-dir", str(self.state_dir), *arguments]


@dataclass(frozen=True, slots=True)
class Ready:
    """Where a stack that became ready is."""

    gateway_url: str
    metrics_url: str | None
    state_dir: Path


def gateway_url(stack: StackSettings) -> str:
    """Base URL for clients."""
    host = f"[{stack.gateway.host}]" if ":" in stack.gateway.host else stack.gateway.host
    return f"http://{host}:{stack.gateway.port}"


def metrics_url(root: Root, *, with_guard: bool) -> str | None:
    """URL of the guard's own metrics; None without a guard."""
    return f"http://{root.guard.metrics_host}:{root.guard.metrics_port}/metrics" if with_guard else None
