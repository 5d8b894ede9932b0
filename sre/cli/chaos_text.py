"""What ``sre chaos`` prints for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sre.chaos.catalogue import Fault
from sre.chaos.durations import format_duration
from sre.chaos.report import Report, Stamp, Verdict
from sre.control.chaos_start import describe_left
from sre.control.chaos_status import RunState, RunStatus
from sre.watchdog.recover import Recovered


def faults_text(faults: Iterable[Fault]) -> str:
    blocks = []
    for fault in faults:
        value = "" if fault.value is None else f", --value {fault.value.default:g} {fault.value.unit}"
        hold = format_duration(fault.default_hold_seconds)
        blocks.append(
            "\n".join(
                (
                    f"{fault.name}: {fault.summary}",
                    f"  does: {fault.deed_summary}",
                    f"  proof: {fault.effect_proof}",
                    f"  defaults: --for {hold}{value}",
                    *(f"  like the real thing: {line}" for line in fault.fidelity.reproduces),
                    *(f"  unlike it: {line}" for line in fault.fidelity.does_not_reproduce),
                )
            )
        )
    return "\n\n".join(blocks)


def stamp_text(stamp: Stamp, first: Stamp) -> str:
    detail = f": {stamp.detail}" if stamp.detail else ""
    return f"{stamp.name:<13} {stamp.monotonic - first.monotonic:+8.3f} s  {stamp.source}{detail}"


def report_text(report: Report) -> str:
    lines = [f"{report.verdict.value} {report.fault} on engine {report.engine} (run {report.run_id})"]
    if report.problem is not None:
        lines.append(f"  {'left changed' if report.verdict is Verdict.DIRTY else 'because'}: {report.problem}")
    lines += [f"  {stamp_text(stamp, report.stamps[0])}" for stamp in report.stamps]
    for step in report.steps:
        detail = f" ({step.detail})" if step.detail else ""
        lines.append(f"  {step.name}: {step.result}{detail}{'' if step.proven else ' - NOT PROVEN'}")
    lines.append(f"  ended by: {report.ending.value}")
    if report.after is not None:
        lines.append(f"  afterwards: {report.after.detail}")
    lines += [f"  not shown: {line}" for line in report.fidelity.does_not_reproduce]
    lines.append(f"  journal: {report.journal}")
    return "\n".join(lines)


def status_text(found: Sequence[RunStatus]) -> str:
    if not found:
        return "no fault in force, no run left open"
    active = [s for s in found if s.state is RunState.ACTIVE or s.state.left]
    lines = [] if active else ["no fault in force, no run left open"]
    for run in found:
        value = "" if run.value is None else f" value {run.value:g}"
        hold = "" if run.hold_seconds is None else f" for {format_duration(run.hold_seconds)}"
        detail = f": {run.detail}" if run.detail else ""
        lines.append(f"{run.state.value:<14} {run.run_id}  {run.fault} on {run.engine}{value}{hold}{detail}")
    if any(s.state is RunState.ACTIVE for s in active):
        lines.append("end it with: sre chaos revert")
    if any(s.state.left for s in active):
        lines.append("set it right with: sre chaos recover")
    return "\n".join(lines)


def recovered_document(item: Recovered) -> dict[str, Any]:
    steps = () if item.outcome is None else item.outcome.outcomes
    return {
        "run_id": item.run_id,
        "clean": item.clean,
        "problem": None if item.clean else describe_left(item),
        "steps": [
            {"name": o.step.name, "result": o.result.value, "detail": o.detail, "proven": o.proven} for o in steps
        ],
    }


def recovered_text(items: Sequence[Recovered]) -> str:
    if not items:
        return "nothing was left open"
    lines = []
    for item in items:
        if not item.clean:
            lines.append(f"LEFT CHANGED {describe_left(item)}")
            continue
        lines.append(f"closed {item.run_id}")
        if item.outcome is not None:
            lines += [f"  {o.step.name}: {o.result.value}" for o in item.outcome.outcomes]
    return "\n".join(lines)
