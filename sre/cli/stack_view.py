"""``sre status`` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sre.printable import printable
from sre.signals.types import ProcessState

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from sre.stack.status import ProcessReport
    from sre.wiring.status import StackStatus

STATE_STYLES = {
    ProcessState.READY: "green",
    ProcessState.STARTING: "yellow",
    ProcessState.DRAINING: "yellow",
    ProcessState.CRASHED: "bold red",
    ProcessState.FAILED: "bold red",
    ProcessState.UNKNOWN: "red",
    ProcessState.STOPPED: "dim",
}
BREAKER_STYLES = {"closed": "green", "half_open": "yellow", "disabled": "yellow"}
NOT_SEEN = "not seen"


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 5 s``, ``2 h 4 min``, ``3 d 2 h``."""
    whole = int(seconds)
    for unit, size, smaller, smaller_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller_size} {smaller}"
    return f"{whole} s"


def render(status: StackStatus) -> list[RenderableType]:
    """Return what a console prints."""
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    stack = status.stack
    if stack is None:
        parts.append(Text(printable(f"{NOT_SEEN}: {status.stack_problem}"), style="red"))
        parts += [Text(f"  still running: {name} (pid {pid})") for name, pid in status.leftovers]
        if status.leftovers:
            parts.append(Text("take it over with: sre up, or stop it with: sre down"))
    else:
        active = NOT_SEEN if stack.requests_active is None else str(stack.requests_active)
        parts.append(
            Text(f"stack {stack.name}: {stack.phase}   gateway {stack.gateway_url}   requests active: {active}")
        )
        table = Table(box=None, pad_edge=False)
        for column in ("PROCESS", "KIND", "STATE", "PID", "UPTIME", "RESTARTS", "BREAKER", "LAST EXIT"):
            table.add_column(column, overflow="fold")
        for process in stack.processes:
            table.add_row(*_row(process, status.breakers, seen=status.guard is not None))
        parts.append(table)
        parts += [Text(printable(process.problem), style="red") for process in stack.processes if process.problem]
        parts += [Text(printable(f"note: {note}"), style="yellow") for note in stack.notes]
    if status.guard_problem is not None:
        parts.append(Text(printable(status.guard_problem), style="red"))
    return parts


def _row(process: ProcessReport, breakers: dict[str, dict[str, Any]], *, seen: bool) -> list[RenderableType]:
    from rich.text import Text

    state = Text(process.state.value, style=STATE_STYLES[process.state])
    if process.next_start_in_seconds is not None:
        state.append(f", next start in {process.next_start_in_seconds:.0f} s")
    if process.adopted:
        state.append(" (taken over)", style="dim")
    return [
        process.name,
        process.kind,
        state,
        "-" if process.identity is None else str(process.identity.pid),
        "-" if process.uptime_seconds is None else duration(process.uptime_seconds),
        str(process.restarts),
        _breaker(process, breakers, seen=seen),
        printable(process.last_exit or "-"),
    ]


def _breaker(process: ProcessReport, breakers: dict[str, dict[str, Any]], *, seen: bool) -> RenderableType:
    from rich.text import Text

    if process.role != "engine":
        return "-"
    breaker = breakers.get(process.name)
    if not seen or breaker is None:
        return Text(NOT_SEEN, style="red")
    state = printable(str(breaker.get("state")))
    text = Text(state, style=BREAKER_STYLES.get(state, "bold red"))
    if breaker.get("reason") and state != "closed":
        text.append(printable(f" ({breaker['reason']})"))
    return text


def console(*, stderr: bool = False) -> Console:
    """A console for stdout; wide and plain when it is no terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=200, no_color=True)
