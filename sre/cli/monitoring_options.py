"""What the commands on rules share: releases and prefix as options, before those of sre.yaml."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sre.cli.app import App
from sre.errors import ConfigError

if TYPE_CHECKING:
    from sre.settings.monitoring import MonitoringSettings

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--vllm-version", metavar="X.Y", help="Release of vLLM [default: monitoring.vllm_version, else any]."),
    click.option(
        "--dcgm-exporter-version",
        metavar="X.Y.Z",
        help="Release of dcgm-exporter [default: monitoring.dcgm_exporter_version, else any].",
    ),
    click.option(
        "--metric-prefix",
        metavar="PREFIX",
        help="What vLLM's metric names begin with; Ray: ray_vllm: or ray_vllm_ [default: monitoring.metric_prefix].",
    ),
)


def release_options(command: F) -> F:
    """``--vllm-version``, ``--dcgm-exporter-version`` and ``--metric-prefix``; see ``monitoring_settings``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def monitoring_settings(app: App, **given: str | None) -> MonitoringSettings:
    """
    Section ``monitoring`` with the options before it; all of it is held against the catalogue again. What is only
    guessed (a release newer than those that are known) is said on stderr.

    Raises:
        ConfigError: Every problem, at its option or its place in sre.yaml.
    """
    from sre.settings import monitoring_checks

    changed = {name: value for name, value in given.items() if value is not None}
    settings = app.settings().monitoring
    if changed:
        settings = _changed(settings, changed)
    for where, sentence in monitoring_checks.warnings(settings):
        app.note(f"warning: {_problem(where, sentence, changed)}")
    return settings


def _changed(settings: MonitoringSettings, changed: dict[str, str]) -> MonitoringSettings:
    from pydantic import ValidationError

    from sre.settings import monitoring_checks
    from sre.settings.monitoring import MonitoringSettings

    try:
        settings = MonitoringSettings.model_validate({**settings.model_dump(), **changed})
    except ValidationError as error:
        raise ConfigError(
            [_problem(one["loc"], str(one.get("ctx", {}).get("error", one["msg"])), changed) for one in error.errors()]
        ) from None
    problems = [_problem(where, sentence, changed) for where, sentence in monitoring_checks.errors(settings)]
    if problems:
        raise ConfigError(problems)
    return settings


def _problem(where: tuple[str | int, ...], sentence: str, given: dict[str, str]) -> str:
    name = str(where[0])
    place = f"--{name.replace('_', '-')}" if name in given else ".".join(["monitoring", *map(str, where)])
    return f"{place}: {sentence}"


@contextmanager
def rules_possible() -> Iterator[None]:
    """What the rules refuse, as a problem of the section."""
    try:
        yield
    except ValueError as error:  # ExpressionError is one
        raise ConfigError([f"monitoring: {error}"]) from error
