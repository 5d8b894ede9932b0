"""Records of other load tools, made a run of ours on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from sre.adapters.clock import SystemClock
from sre.adapters.gate_files import GateFiles, regular_bytes
from sre.control.gate_world import rendered
from sre.errors import ConfigError
from sre.gate.baseline import IMPORTED, Baseline
from sre.gate.importers import fingerprint, imported, require_distinct, run_results, unseen
from sre.gate.judge import judge
from sre.gate.judging import JudgePolicy
from sre.gate.result import GateResult, RunResult
from sre.settings.gate import GateSettings

LARGEST_BYTES = 1 << 30


def take_in(
    files: Sequence[Path],
    results: GateFiles,
    settings: GateSettings,
    *,
    tool: str | None,
    request_class: str,
    rate: float | None,
    baseline: Baseline | None,
) -> tuple[Path, GateResult]:
    """
    Read, judge and keep; return folder and result.

    Raises:
        ConfigError: A file is none of these tools', or the baseline is of other conditions.
        StateError: The disk refuses.
    """
    read = [imported(_text(path), tool, where=str(path), request_class=request_class, rate_rps=rate) for path in files]
    require_distinct(read, [str(path) for path in files])
    models = sorted({one.model for one in read if one.model})
    if len(models) > 1:
        raise ConfigError([f"gate: these files are of {', '.join(models)}; import one model at a time"])
    runs = run_results(read)
    conditions = fingerprint(read)
    verdict = judge(runs, baseline, JudgePolicy.of(settings), fingerprint=conditions, remark=unseen(read))
    wall = SystemClock().wall()
    undated = any(not run.wall_started_at for run in runs)
    runs = tuple(run if run.wall_started_at else replace(run, wall_started_at=wall) for run in runs)
    folder = results.create(wall)
    why = "imported records do not tell"
    notes = dict.fromkeys(note for one in read for note in (*one.cannot_tell, *one.notes))
    if undated:
        notes["the records do not say when they were made: the date is that of the import"] = None
    result = GateResult(
        id=folder.id,
        url=f"{IMPORTED}{', '.join(sorted({one.tool for one in read}))}",
        model=models[0] if models else "",
        tool_version=version("sre"),
        wall_started_at=min((run.wall_started_at for run in runs), default=wall),
        wall_ended_at=max((run.wall_started_at + _seconds(run) for run in runs), default=wall),
        fingerprint=conditions,
        smoke=None,
        calibration=None,
        runs=runs,
        knee=None,
        long_tail=None,
        verdict=verdict,
        bottleneck=None,
        latency_budget=None,
        omitted={
            "smoke": why, "calibration": why, "knee": why, "long_tail": why, "bottleneck": why, "latency_budget": why,
        },
        notes=tuple(notes),
    )  # fmt: skip
    folder.save(result)
    for name, text in rendered(result):
        folder.save_report(name, text)
    return folder.path, result


def _seconds(run: RunResult) -> float:
    return sum(stage.summary.duration_seconds for stage in run.stages if stage.summary is not None)


def _text(path: Path) -> str:
    try:
        return regular_bytes(path, LARGEST_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: is not text; give the per-request records of a load tool"]) from None
    except ValueError as error:
        raise ConfigError([f"{path}: {error}; give the per-request records of a load tool"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}; check path and permissions"]) from None
