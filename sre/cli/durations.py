"""Durations as command-line values."""

from __future__ import annotations

import click


class DurationType(click.ParamType[float]):
    """``500ms``, ``30s``, ``2m``, ``1.5h`` → seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from sre.chaos.durations import parse_duration

        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = DurationType()
