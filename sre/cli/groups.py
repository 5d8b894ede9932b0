"""Groups of commands that load only the modules that are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class PartlyElsewhere(click.Group):
    """
    Group some of whose commands live in modules of their own.

    Args:
        elsewhere: Command → (module, attribute); imported when the command is called, or its help is shown.
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self._elsewhere]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._elsewhere:
            return super().get_command(ctx, cmd_name)
        module, attribute = self._elsewhere[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command
