"""
Every error the toolkit raises on purpose.

::

    SreError
    ├── ConfigError               sre.yaml (or an option) is wrong; exit 2
    ├── DependencyError           a system we talk to did not do its part; exit 1
    │   ├── Unreachable           no answer: refused, timed out, reset
    │   ├── Rejected              it answered "no"
    │   └── MalformedResponse     it answered something we cannot read
    ├── ProcessError              a process we run did not do its part; exit 1
    │   ├── BinaryNotFound
    │   ├── ExitedEarly
    │   └── NotReady
    ├── StateError                our own state on disk cannot be trusted or written; exit 1
    ├── Refused                   a safety rule of ours forbids the request; exit 3
    ├── LeftChanged               something we changed is not proven reverted; exit 4
    └── Aborted                   a person or signal stopped the run; exit 6

A message reads *where: what is wrong; what to do instead* and fits on one line.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path


class ExitCode(enum.IntEnum):
    """Exit codes of every ``sre`` command."""

    OK = 0
    COULD_NOT_RUN = 1
    USAGE = 2
    NO = 3  # ran, and the answer is no
    LEFT_CHANGED = 4  # a change of ours is not proven reverted
    NO_ANSWER = 5  # ran, no answer: inconclusive, invalid
    ABORTED = 6


class SreError(Exception):
    """Base of all errors an operator is meant to read."""

    exit_code: ExitCode = ExitCode.COULD_NOT_RUN


class ConfigError(SreError):
    """The configuration is wrong. ``problems`` holds every problem found, one sentence each."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class SecretMissing(ConfigError):
    """A secret is not there, and may come: nothing that is there is wrong."""


class DependencyError(SreError):
    """
    A system we depend on failed us.

    Args:
        system: What and where, as an operator names it: ``envoy admin run/admin.sock``.
        problem: What happened and what to do.
        retryable: Whether the same call may succeed later.
    """

    retryable_default = True

    def __init__(self, system: str, problem: str, *, retryable: bool | None = None) -> None:
        self.system = system
        self.retryable = self.retryable_default if retryable is None else retryable
        super().__init__(f"{system}: {problem}")


class Unreachable(DependencyError):
    """No answer: connection refused, reset, timed out."""


class Rejected(DependencyError):
    """It answered, and the answer is no."""

    retryable_default = False


class MalformedResponse(DependencyError):
    """It answered something that cannot be read."""


class ProcessError(SreError):
    """A process we run failed us."""

    def __init__(self, message: str, *, argv: Sequence[str] = (), log_path: Path | None = None) -> None:
        self.argv = tuple(argv)
        self.log_path = log_path
        super().__init__(message if log_path is None else f"{message}; log: {log_path}")


class BinaryNotFound(ProcessError):
    """The program is not installed where we look."""


class ExitedEarly(ProcessError):
    """The process ended before it was ready."""


class NotReady(ProcessError):
    """The process runs but was not ready in time."""


class StateError(SreError):
    """Our state on disk is corrupt, foreign, locked or cannot be written."""


class Refused(SreError):
    """A safety rule forbids what was asked."""

    exit_code = ExitCode.NO


class LeftChanged(SreError):
    """A change of ours could not be proven reverted."""

    exit_code = ExitCode.LEFT_CHANGED


class Aborted(SreError):
    """A person or a signal stopped the run."""

    exit_code = ExitCode.ABORTED
