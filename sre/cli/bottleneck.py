"""sre analyze bottleneck: what binds, over storage, network, compute and what lies beside them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.errors import ExitCode

if TYPE_CHECKING:
    from sre.gate.bottleneck import Attribution, Demand
    from sre.gate.result import GateResult


@click.command("bottleneck")
@click.argument("result", default="last")
@click.option(
    "--output-dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the runs. [default: gate in the state folder]",
)
@output_option
@pass_app
def bottleneck(app: App, result: str, folder: Path | None, output: str) -> int:
    """
    Name what binds in a gate run: storage, network, compute and beside them, by how much, and what that rests on.

    RESULT is a run's id, its folder or gate.json; default: the last run.

    Exit codes: 0 named, and confirmed by the knee · 5 not named or not confirmed, and why
    """
    from sre.wiring.gate import results

    found = results(app.paths(), folder).read(result)
    app.emit(output, document(found), lambda: text(found))
    answer = found.bottleneck
    return ExitCode.OK if answer is not None and answer.binding and answer.confirmed else ExitCode.NO_ANSWER


def document(result: GateResult) -> dict[str, Any]:
    """The answer as JSON."""
    answer = result.bottleneck
    if answer is None:
        why = result.omitted.get("bottleneck", "the run did not get that far")
        return {"id": result.id, "url": result.url, "binding": None, "confirmed": False, "detail": why, "axes": []}
    return {
        "id": result.id,
        "url": result.url,
        "binding": answer.binding.value if answer.binding else None,
        "confirmed": answer.confirmed,
        "knee_rps": answer.knee_rps,
        "margin_ratio": answer.margin_ratio,
        "client_ruled_out": answer.client_ruled_out,
        "detail": answer.detail,
        "axes": [
            {
                "resource": name,
                "highest_utilization": None if one is None else one.highest,
                "stage": None if one is None else one.stage,
                "amount": None if one is None else one.amount,
                "capacity": None if one is None else one.capacity,
                "unit": None if one is None else one.unit or None,
                "seconds_per_request": None if one is None else one.seconds_per_request,
                "ceiling_rps": None if one is None or not math.isfinite(one.ceiling_rps) else one.ceiling_rps,
                "counts": one is not None and one.counts,
                "note": note,
            }
            for name, one, note in _axes(answer)
        ],
        "limits": [
            {"resource": one.resource.value, "highest": one.highest, "stage": one.stage, "source": one.source}
            for one in answer.limits
        ],
        "unseen": list(answer.unseen),
    }


def text(result: GateResult) -> str:
    """The answer for people: what binds, then the axes, limits, and what was not seen."""
    from sre.cli.gate_view import aligned
    from sre.gate.report import figures

    lines = [f"run {result.id}, {result.url}"]
    answer = result.bottleneck
    if answer is None:
        return "\n".join([*lines, result.omitted.get("bottleneck", "the run did not get that far")])
    if answer.binding is None:
        named = "nothing watched is shown to bind"
    elif answer.confirmed:
        named = f"{answer.binding.value} binds, confirmed by the knee"
    else:
        named = f"nothing is shown to bind; {answer.binding.value} is the nearest"
    lines += [named, answer.detail, ""]
    rows = [
        (
            name,
            "–" if one is None else figures.percent(one.highest),
            _amount(one),
            "–" if one is None else figures.seconds(one.seconds_per_request),
            "–" if one is None or not math.isfinite(one.ceiling_rps) else figures.number(one.ceiling_rps),
            note,
        )
        for name, one, note in _axes(answer)
    ]
    lines += aligned(("axis", "highest", "amount", "per request", "ceiling/s", "rests on"), rows, frozenset({1, 3, 4}))
    for limit in answer.limits:
        lasting = "" if limit.lasting else ", for moments"
        lines.append(
            f"limit reached: {limit.resource.value} {figures.percent(limit.highest)} at {limit.stage}{lasting}, "
            f"by {limit.source}"
        )
    lines.append("the client is ruled out" if answer.client_ruled_out else "the client is not ruled out")
    shown = {name for name, one, _ in _axes(answer) if one is None}
    lines += [f"not seen: {entry}" for entry in answer.unseen if entry.partition(":")[0] not in shown]
    return "\n".join(lines)


def _axes(answer: Attribution) -> list[tuple[str, Demand | None, str]]:
    """The three axes of F1 first, seen or not; then whatever else was seen."""
    from sre.gate.stages import Resource

    seen = {one.resource: one for one in answer.demands}
    why = dict(entry.split(": ", 1) for entry in answer.unseen if ": " in entry)
    rows: list[tuple[str, Demand | None, str]] = []
    for axis in (Resource.STORAGE, Resource.NETWORK, Resource.COMPUTE):
        one = seen.pop(axis, None)
        rows.append((axis.value, one, _note(one) if one else f"not seen: {why.get(axis.value, 'nobody reads it')}"))
    return rows + [(resource.value, one, _note(one)) for resource, one in seen.items()]


def _note(one: Demand) -> str:
    return one.source if one.counts else f"{one.source}; does not count: {one.why}"


def _amount(one: Demand | None) -> str:
    if one is None or one.amount is None or one.capacity is None:
        return "–"
    return f"{one.amount:.4g} of {one.capacity:.4g} {one.unit}"
