"""
A gate run as JUnit XML: a suite per stage, a case per figure that decides.

A case that could not be judged is *skipped*, never passed. Suite ``gate`` holds one case, the whole verdict, so that a
run which failed for a reason no figure has (a stage given up, a self-check) is red in every viewer.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from sre.gate.abort import explain
from sre.gate.report import figures, stage_table, tables
from sre.gate.result import GateResult
from sre.gate.verdict import CellVerdict, Verdict
from sre.printable import one_line


def junit(result: GateResult) -> str:
    """The document, UTF-8, with its declaration."""
    root = ET.Element("testsuites", name="sre gate")
    root.append(_whole(result))
    for stage in _stages(result):
        suite = _suite(result, stage)
        if suite.get("tests") != "0":
            root.append(suite)
    for count in ("tests", "failures", "skipped", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    root.set("time", f"{max(result.wall_ended_at - result.wall_started_at, 0):.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _stages(result: GateResult) -> list[str]:
    planned = [name for _, name, _ in stage_table.measured(result)]
    return list(dict.fromkeys([*planned, *(cell.cell.stage for cell in result.verdict.cells)]))


def _whole(result: GateResult) -> ET.Element:
    suite = ET.Element("testsuite", name="gate")
    properties = ET.SubElement(suite, "properties")
    told = dict((*result.fingerprint.subject, *result.fingerprint.fields))
    told |= {
        "id": result.id, "model": result.model, "url": result.url, "sre": result.tool_version,
        "baseline": result.verdict.baseline_name or "none",
    }  # fmt: skip
    for name, value in told.items():
        ET.SubElement(properties, "property", name=_text(name), value=_text(value))
    case = ET.SubElement(suite, "testcase", classname="gate", name="verdict")
    case.set("time", f"{max(result.wall_ended_at - result.wall_started_at, 0):.3f}")
    reasons = ", ".join(reason.value for reason in result.verdict.reasons)
    message = f"{tables.headline(result)}: {result.verdict.summary} ({reasons})"
    _judge(case, result.verdict.verdict, reasons, message, "\n".join(map(_text, tables.opening(result))))
    return _counted(suite)


def _suite(result: GateResult, stage: str) -> ET.Element:
    suite = ET.Element("testsuite", name=_text(stage))
    for why in _not_held(result, stage):
        case = ET.SubElement(suite, "testcase", classname=f"gate.{_text(stage)}", name="stage", time="0")
        ET.SubElement(case, "skipped", message=_text(why))
    judged = [cell for cell in result.verdict.cells if cell.cell.stage == stage]
    for cell in judged:
        if cell.gated:
            name = f"{cell.cell.request_class} {cell.cell.metric} ({cell.kind})"
            case = ET.SubElement(suite, "testcase", classname=f"gate.{_text(stage)}", name=_text(name), time="0")
            _judge(case, cell.verdict, cell.reason.value, _message(cell), _numbers(cell))
    looked_at = [cell for cell in judged if not cell.gated]
    if looked_at and len(suite):
        text = "\n".join(
            f"not gated: {_text(str(cell.cell))}: {cell.verdict.value}: {_message(cell)}" for cell in looked_at
        )
        ET.SubElement(suite, "system-out").text = text
    return _counted(suite)


def _not_held(result: GateResult, stage: str) -> list[str]:
    """Why the stage was skipped or given up, over all runs, in one sentence; none if it ran to its end."""
    said: dict[str, list[int]] = {}
    for run in result.runs:
        for each in run.stages:
            why = (
                f"skipped: {each.skipped}"
                if each.skipped
                else f"given up: {explain(each.aborted)}"
                if each.aborted
                else ""
            )
            if why and each.plan.name == stage:
                said.setdefault(why, []).append(run.number + 1)
    told = "; ".join(f"run {', '.join(map(str, runs))}: {why}" for why, runs in said.items())
    return [told] if told else []


def _judge(case: ET.Element, verdict: Verdict, kind: str, message: str, text: str) -> None:
    if verdict is Verdict.FAIL:
        ET.SubElement(case, "failure", message=_text(message), type=_text(kind)).text = text
    elif verdict is Verdict.INCONCLUSIVE:
        ET.SubElement(case, "skipped", message=_text(message))
        ET.SubElement(case, "system-out").text = text
    else:
        ET.SubElement(case, "system-out").text = text


def _message(cell: CellVerdict) -> str:
    return _text(f"{cell.reason.value}: {cell.detail}" if cell.detail else cell.reason.value)


def _numbers(cell: CellVerdict) -> str:
    name = cell.cell.metric
    lines = [f"candidate: {_values(name, cell.candidate) if cell.candidate else 'not measured'}"]
    if cell.baseline:
        lines.append(f"baseline: {_values(name, cell.baseline)}")
    if cell.bound is not None:
        lines.append(f"bound: {figures.of_metric(name, cell.bound)}")
    if cell.effect_ratio is not None:
        lines.append(f"worse by: {figures.percent(cell.effect_ratio, signed=True)}")
    if cell.p_value is not None:
        lines.append(f"p: {figures.probability(cell.p_value)}, after Holm: {figures.probability(cell.p_adjusted)}")
    return "\n".join(lines)


def _values(metric: str, values: Sequence[float]) -> str:
    each = ", ".join(figures.of_metric(metric, value) for value in values)
    return (
        f"median {figures.of_metric(metric, figures.median(values))} of {figures.counted(len(values), 'run')} ({each})"
    )


def _counted(suite: ET.Element) -> ET.Element:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.set("errors", "0")
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")
    return suite


def _text(value: str) -> str:
    """On one line, without what XML 1.0 cannot hold."""
    return one_line(value)
