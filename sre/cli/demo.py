"""sre demo: watch a stack survive a GPU hang."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ConfigError, ExitCode
from sre.printable import printable

if TYPE_CHECKING:
    from sre.control.demo import Mark
    from sre.wiring.demo import DemoReport, Options
    from sre.wiring.demo_stack import DemoEngine

STYLES = {
    "EFFECTIVE": "bold red", "DETECTED": "bold yellow", "REFUSED": "bold yellow", "RESTARTED": "bold cyan",
    "ANSWERED": "bold green", "CLOSED": "bold green",
}  # fmt: skip
"""How the turning points look on a terminal, by name of the event."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option(
    "--engine", "kind", type=click.Choice(["sim", "vllm"]), default="sim", show_default=True,
    help="sim: simulated engine and GPU. vllm: the real vLLM on this machine's CPU.",
)  # fmt: skip
@click.option("--python", help="vllm: interpreter with the CPU build of vLLM [env SRE_VLLM_PYTHON].", metavar="PATH",
              envvar="SRE_VLLM_PYTHON")  # fmt: skip
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="PATH",
              help="vllm: folder of a small model; default: a tiny random one, made on the spot.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep configuration, logs and incident folder, and say where.")
@output_option
@pass_app
def demo(app: App, kind: str, python: str | None, model: Path | None, keep: bool, output: str) -> int:
    """
    Watch a stack survive a GPU hang, in under 90 seconds.

    Starts a stack of its own (no GPU, no network), puts load on it, stops the engine core as a hanging GPU would, and
    shows what happens when. Exit code 3 when something took longer than promised. Ctrl-C leaves nothing behind.
    """
    from sre.wiring.demo import Options

    if importlib.util.find_spec("aiosmtpd") is None:
        raise ConfigError(["sre demo: aiosmtpd is missing; pip install 'sre[gateway,demo]'"])
    display = Display(app)
    display.headline(kind)
    report = _drive(Options(_engine(kind, python, model), keep), display)
    app.emit(output, report.document(), lambda: table(report))
    return ExitCode.OK if report.passed else ExitCode.NO


def _engine(kind: str, python: str | None, model: Path | None) -> DemoEngine:
    from sre.settings.base import expanded
    from sre.wiring.demo_stack import DemoEngine

    if kind == "sim":
        if model is not None:
            raise ConfigError(["sre demo: --model is for --engine vllm; leave it out"])
        return DemoEngine("sim")
    default = Path(".venv-vllm/bin/python")
    chosen = python or (str(default.absolute()) if default.exists() else None)
    if chosen is None:
        raise ConfigError(["sre demo: which Python has the CPU build of vLLM? Say --python PATH, or run make setup"])
    if "/" in chosen:  # the demo's sre.yaml stands elsewhere, and paths in it begin there
        chosen = str(expanded(chosen).absolute())
    return DemoEngine("vllm", chosen, None if model is None else model.absolute())


def _drive(options: Options, display: Display) -> DemoReport:
    """Run the demo; the first signal ends it, the second ends it at once. Raises Aborted."""
    import asyncio

    from sre.wiring.demo import run_demo

    async def main() -> DemoReport:
        stop, hurry = asyncio.Event(), asyncio.Event()

        def on_signal() -> None:
            (hurry if stop.is_set() else stop).set()

        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, on_signal)
        return await run_demo(options, say=display.say, on_mark=display.mark, stop=stop, hurry=hurry)

    return asyncio.run(main())


class Display:
    """The timeline on stderr: a line per event, in colour on a terminal. Times are seconds after the fault's effect."""

    def __init__(self, app: App) -> None:
        self._write: Callable[[str, str], None] = lambda line, _: app.note(line)
        self._zero: float | None = None
        self._waiting: list[Mark] = []
        if app.interactive:
            from rich.console import Console

            console = Console(stderr=True, highlight=False, soft_wrap=True)
            self._write = lambda line, style: console.print(printable(line), style=style, markup=False)

    def headline(self, kind: str) -> None:
        """What is shown, and which waits were cut."""
        from sre.wiring.demo_stack import shortened

        self.say(
            "a SIMULATED engine and GPU: no GPU is touched"
            if kind == "sim"
            else "the real vLLM on the CPU; the hang is a stopped engine core"
        )
        self.say("a hang is seen by the default settings; later waits are cut:")
        for name, value, default in shortened("vllm" if kind == "vllm" else "sim"):
            self._write(f"        {name}: {value:g} s (default {default:g} s)", "dim")

    def say(self, line: str) -> None:
        """What the demo is doing."""
        self._write(f"demo: {line}", "dim")

    def mark(self, mark: Mark) -> None:
        """One event. Those before the effect wait for it: it is their zero."""
        from sre.control.demo import Event

        self._waiting.append(mark)
        if mark.event is Event.EFFECTIVE:
            self._zero = mark.at
        if self._zero is None:
            return
        for waiting in sorted(self._waiting, key=lambda m: m.at):
            detail = f": {waiting.detail}" if waiting.detail else ""
            line = f"  {waiting.at - self._zero:+7.2f} s  {waiting.event.value}{detail}  [{waiting.source}]"
            self._write(line, STYLES.get(waiting.event.name, ""))
        self._waiting.clear()


def table(report: DemoReport) -> str:
    """The verdict: what was measured, what was promised."""
    rows = [("", "measured", "promised", "")]
    rows += [(c.name, c.measured, c.wanted, "PASS" if c.passed else "FAIL") for c in report.checks]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    kept = f"; kept in {report.folder}" if report.folder else ""
    lines.append(
        f"{'PASS' if report.passed else 'FAIL'}: {report.engine} engine, {report.requests} requests, ready in"
        f" {report.ready_seconds:.1f} s, {report.total_seconds:.0f} s in all{kept}"
    )
    return "\n".join(lines)
