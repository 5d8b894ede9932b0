"""
Per-request records of other load tools, as runs of ours: judged by the same rules.

``imported`` reads one file; ``run_results`` makes runs of several: usable for a baseline, a comparison, a verdict.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from sre.gate.fingerprint import Fingerprint
from sre.gate.importers import aiperf, guidellm, vllm_bench
from sre.gate.importers.common import ImportedRuns, ImportedStage, refuse
from sre.gate.result import RunResult, StageResult
from sre.gate.summary import summarize

__all__ = [
    "TOOLS",
    "ImportedRuns",
    "ImportedStage",
    "fingerprint",
    "imported",
    "require_distinct",
    "run_results",
    "unseen",
]

TOOLS = ("vllm", "aiperf", "guidellm")
"""Values of ``tool``."""

_EXPECTED = {"vllm": vllm_bench.EXPECTED, "aiperf": aiperf.EXPECTED, "guidellm": guidellm.EXPECTED}


def imported(
    text: str,
    tool: str | None = None,
    *,
    where: str = "file",
    request_class: str = "short",
    rate_rps: float | None = None,
) -> ImportedRuns:
    """
    Read one file of per-request records.

    Args:
        tool: One of ``TOOLS``; None: told by what is in the file.
        where: The file's name, for messages.
        request_class: What its requests are called; a gate's cells name a class.
        rate_rps: Asked for, where the format does not say (aiperf): names the stage, and is checked to have been sent.

    Raises:
        ConfigError: empty, cut off, of another tool, without single requests, of mixed or unknown versions.
    """
    if not text.strip():
        refuse(f"{where}: the file is empty; expected {', '.join(_EXPECTED.values())}")
    found = _tool_of(text)
    if found is None:
        wanted = _EXPECTED[tool] if tool is not None else "; or ".join(_EXPECTED.values())
        refuse(f"{where}: {_like(text)}; expected {wanted}")
    if tool is not None and found != tool:
        refuse(f"{where}: this is of {found}, not of {tool}; expected {_EXPECTED[tool]}")
    if found == "vllm":
        return vllm_bench.read(text, where, request_class)
    if found == "aiperf":
        return aiperf.read(text, where, request_class, rate_rps)
    return guidellm.read(text, where, request_class)


def run_results(files: Sequence[ImportedRuns], side: str = "candidate") -> tuple[RunResult, ...]:
    """
    Return runs: over all files in their order, the n-th stage of a name is of run n.

    Five files (or five documents in one) of the same rate are five runs; a sweep is the stages of one run.
    """
    runs: list[list[StageResult]] = []
    walls: list[float] = []
    seen: dict[str, int] = {}
    for file in files:
        for stage in file.stages:
            name = stage.load.plan.name
            number = seen.get(name, 0)
            seen[name] = number + 1
            if number == len(runs):
                runs.append([])
                walls.append(stage.load.wall_started_at)
            plan = dataclasses.replace(stage.load.plan, run=number, side=side)
            runs[number].append(StageResult(plan, summarize(stage.load), None, stage.checks))
    return tuple(RunResult(number, side, tuple(stages), walls[number]) for number, stages in enumerate(runs))


def require_distinct(files: Sequence[ImportedRuns], names: Sequence[str]) -> None:
    """
    Refuse one benchmark given twice, as a copy or under another name: its copies are runs that do not vary, and look
    like power.

    Args:
        names: Of the files, for the message.

    Raises:
        ConfigError: Two stages hold the same times of all their requests.
    """
    seen: dict[tuple[float, ...], str] = {}
    for file, name in zip(files, names, strict=True):
        for stage in file.stages:
            times = _times(stage)
            if times in seen:
                refuse(
                    f"{name}: its {stage.load.plan.name} holds the same requests as {seen[times]}, time by time: "
                    "one measurement is one run; give it once"
                )
            if times:
                seen[times] = name


def _times(stage: ImportedStage) -> tuple[float, ...]:
    """What no second benchmark has: how long each answer took. Empty: none was answered."""
    return tuple(sorted(one.e2e_seconds for one in stage.load.records if math.isfinite(one.e2e_seconds)))


def fingerprint(files: Sequence[ImportedRuns]) -> Fingerprint:
    """
    What must be equal for two imports to be compared: tool, model, stages, arrivals, how the load was made, and the
    mean prompt length, to two digits: other seeds draw a little differently. The rest no format tells.
    """
    plans = {stage.load.plan.name: stage.load.plan for file in files for stage in file.stages}
    records = [record for file in files for stage in file.stages for record in stage.load.records]
    conditions: dict[str, set[str]] = {}
    for name, value in (pair for file in files for pair in file.conditions):
        conditions.setdefault(name, set()).add(value)
    fields = {name: ", ".join(sorted(values)) for name, values in conditions.items()} | {
        "tool": ", ".join(sorted({file.tool for file in files})),
        "model": ", ".join(sorted({file.model for file in files})),
        "stages": ", ".join(sorted(plans)),
        "arrivals": ", ".join(sorted({plan.arrivals.value for plan in plans.values()})),
        "prompt_tokens": _about(record.prompt_tokens for record in records),
    }
    return Fingerprint(tuple(sorted(fields.items())))


def _about(counts: Iterable[int | None]) -> str:
    """Their mean to two digits, ``about 260``."""
    known = [count for count in counts if count is not None]
    return f"about {float(f'{statistics.fmean(known):.2g}'):g}" if known else "not told"


def unseen(files: Sequence[ImportedRuns]) -> str:
    """What no verdict on these files rests on; "" if nothing of that weight."""
    return "; ".join(dict.fromkeys(file.unseen for file in files if file.unseen))


def _tool_of(text: str) -> str | None:
    first = _first_document(text)
    if not isinstance(first, dict):
        return None
    if "benchmarks" in first:
        return "guidellm"
    if "metadata" in first and "metrics" in first:
        return "aiperf"
    if "metadata" in first and "error" in first:
        return "aiperf"
    if "start_times" in first or ("num_prompts" in first and "request_rate" in first):
        return "vllm"
    return None


def _first_document(text: str) -> Any:
    """The first JSON value of the file; one that is cut off: what its beginning says."""
    text = text.lstrip()
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        head = text[:4_000]
        names = ("benchmarks", "metadata", "metrics", "error", "start_times", "num_prompts", "request_rate")
        return {name: None for name in names if f'"{name}"' in head}


def _like(text: str) -> str:
    first = _first_document(text)
    if isinstance(first, dict) and isinstance(schema := first.get("schema"), str) and schema.startswith("sre/gate"):
        return "this is a file of sre itself, which needs no import"
    if isinstance(first, dict) and "input_config" in first:
        return "this is aiperf's summary, which holds no single requests"
    if not text.lstrip().startswith(("{", "[")):
        return "this is no JSON"
    return "this is no file of a load tool that is known here"
