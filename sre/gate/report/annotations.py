"""Workflow commands that GitHub shows beside a job: the verdict, and the worst figures."""

from sre.gate.report import tables
from sre.gate.result import GateResult
from sre.gate.verdict import CellVerdict, Verdict
from sre.printable import one_line

MOST = 9
"""GitHub shows ten of a kind per step; one is the whole verdict."""

LONGEST = 1_000
_LEVELS = {Verdict.PASS: "notice", Verdict.FAIL: "error", Verdict.INCONCLUSIVE: "warning"}


def annotations(result: GateResult) -> list[str]:
    """One line each, the verdict first; names of others cannot end a line or begin a command."""
    lines = [_command(result.verdict.verdict, tables.headline(result), result.verdict.summary)]
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        found = [cell for cell in result.verdict.cells if cell.gated and cell.verdict is verdict]
        lines += [_command(verdict, str(cell.cell), _said(cell)) for cell in found[:MOST]]
    return lines


def _said(cell: CellVerdict) -> str:
    return f"{cell.reason.value}: {cell.detail}" if cell.detail else cell.reason.value


def _command(verdict: Verdict, title: str, message: str) -> str:
    return f"::{_LEVELS[verdict]} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return one_line(text)[:LONGEST].replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
