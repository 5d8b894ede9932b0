"""What every command has: options shared by all, settings on demand, one way to print."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sre.printable import printable

if TYPE_CHECKING:
    from sre.settings.models import Root
    from sre.settings.paths import StatePaths

F = TypeVar("F", bound=Callable[..., Any])

output_option = click.option(
    "--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the answer."
)
"""For every command that reads: ``--output text|json``."""


class App:
    """Shared context of a command run (``ctx.obj``)."""

    def __init__(self, config: Path | None, state_dir: Path | None, debug: bool) -> None:
        self.config = config
        self.state_dir_option = state_dir
        self.debug = debug
        self._settings: Root | None = None

    def settings(self) -> Root:
        """Load sre.yaml (or the defaults). Raises ConfigError with every problem."""
        if self._settings is None:
            from sre.settings.load import load_settings

            settings = load_settings(self.config)
            if _has_templates(settings):
                from sre.adapters.notifiers.templates import load_templates

                load_templates(settings.notify)
            self._settings = settings
        return self._settings

    def paths(self) -> StatePaths:
        """State folder of the configured stack; not created here."""
        from sre.settings.paths import state_paths

        return state_paths(self.settings().stack, self.state_dir_option, os.environ)

    def emit(self, output: str, data: Any, text: str | Callable[[], str]) -> None:
        """Print the answer on stdout: ``data`` as JSON, or ``text``, in which nothing steers the terminal."""
        if sys.stdout is None:  # nobody gets the answer: click would say nothing, and all would look well
            raise OSError(errno.EBADF, "the output cannot be written: stdout is closed")
        if output == "json":
            click.echo(json.dumps(data, indent=2, sort_keys=True, default=str))
        else:
            click.echo(printable(text() if callable(text) else text))

    def note(self, message: str) -> None:
        """Talk to the person, on stderr; nothing in ``message`` steers the terminal."""
        click.echo(printable(message), err=True)

    @property
    def interactive(self) -> bool:
        """Whether stderr is a terminal: progress may redraw."""
        return sys.stderr.isatty()


def _has_templates(settings: Root) -> bool:
    notify = settings.notify
    used = (notify.templates, *(channel.template for channel in notify.channels))
    return any(form is not None for templates in used for form in templates.model_dump().values())


pass_app = click.make_pass_decorator(App)
