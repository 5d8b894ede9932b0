"""What ``sre doctor`` looked at, and how it says what it found."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from sre.settings.guard import RuleSettings
from sre.settings.stack import EngineSettings
from sre.signals.types import GpuSeen


class Level(enum.Enum):
    """How bad."""

    OK = "ok"
    WARNING = "warning"  # it works, something is missing
    PROBLEM = "problem"  # it will not work
    NOT_SEEN = "not_seen"  # could not be looked at


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One result.

    Attributes:
        check: Name of the check.
        remedy: What to do; None when nothing needs to be done.
        essential: For NOT_SEEN: without this nobody can say whether the stack will run.
    """

    check: str
    level: Level
    sentence: str
    remedy: str | None = None
    essential: bool = False


@dataclass(frozen=True, slots=True)
class NotSeen:
    """A fact that could not be found out, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class EnvoyFacts:
    """The gateway's binary. ``problem`` says why there is none or why it does not run."""

    path: str | None
    version: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine. ``problems`` are sentences; ``answers`` is for external ones only."""

    name: str
    kind: str
    problems: tuple[str, ...] = ()
    answers: bool | None = None


@dataclass(frozen=True, slots=True)
class PortFacts:
    """Ports we need: those free or held by our own stack, and sentences on the others."""

    good: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateDirFacts:
    """The state folder, or the nearest folder above it that exists."""

    path: str
    exists: bool
    problem: str | None
    """Why nothing can be written there."""
    filesystem: str | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """The kernel and its limits."""

    python: tuple[int, int, int]
    pidfd: bool
    inotify_problem: str | None
    nofile_soft: int
    nofile_hard: int
    clock_synchronized: bool | None
    tools: Mapping[str, str | None]
    """Path by program: prometheus, alertmanager, promtool, amtool."""


@dataclass(frozen=True, slots=True)
class NotifyFacts:
    """Who would be told. ``problems`` are secrets that cannot be resolved, and URLs that take no message anywhere."""

    channels: tuple[str, ...]
    problems: tuple[str, ...]
    apprise: str | None
    """Its version; None where it cannot be imported."""
    unchecked: tuple[str, ...] = ()
    """Channels' settings that could not be looked at in time."""


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What runs already."""

    phase: str | None
    """None: no supervisor answers."""
    ready_engines: frozenset[str] = frozenset()
    leftovers: tuple[tuple[str, int], ...] = ()
    orphans: tuple[str, ...] = ()
    """Sentences on engine processes that nobody owns."""


@dataclass(frozen=True, slots=True)
class ChaosFacts:
    """Runs of fault injection that are not closed: (run id, fault, state)."""

    active: tuple[tuple[str, str], ...]
    left: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Several reads of all GPUs, the oldest first."""

    source: str
    """nvml, sim or none."""
    problem: str | None
    reads: tuple[tuple[GpuSeen, ...], ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was looked at."""

    system: SystemFacts | NotSeen
    envoy: EnvoyFacts | NotSeen
    engines: tuple[EngineFacts | NotSeen, ...]
    ports: PortFacts | NotSeen
    state_dir: StateDirFacts | NotSeen
    notify: NotifyFacts | NotSeen
    stack: StackFacts | NotSeen
    chaos: ChaosFacts | NotSeen
    gpu: GpuFacts | NotSeen
    engine_settings: tuple[EngineSettings, ...] = ()
    rules: tuple[RuleSettings, ...] = ()
    sim_memory_ratio: float = 0.0
    problems: tuple[str, ...] = ()
    """Further sentences, e.g. engine secrets that cannot be resolved."""
