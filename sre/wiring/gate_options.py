"""Options over section ``gate``: one typed value of both, with every contradiction told before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sre.adapters.gate_baselines import BaselineFolder
from sre.errors import ConfigError
from sre.gate import baseline as baselines
from sre.gate import environment, fingerprint, plan
from sre.gate.arrivals import TraceEntry
from sre.gate.baseline import Baseline
from sre.gate.plan import Trace
from sre.settings.base import expanded
from sre.settings.gate import OF_CLASS, GateSettings
from sre.settings.models import Root
from sre.settings.paths import StatePaths
from sre.wiring.gate import Asked, baselines_folder, read_trace, servers_of

OPTIONS: dict[str, tuple[str, ...]] = {
    "url": ("target", "url"),
    "model": ("target", "model"),
    "api": ("target", "api"),
    "stages": ("load", "stages_qps"),
    "scale": ("load", "qps_scale"),
    "seconds": ("load", "stage_seconds"),
    "runs": ("baseline", "runs"),
    "seed": ("load", "seed"),
    "arrivals": ("load", "arrivals"),
    "trace": ("load", "trace_file"),
    "knee": ("knee", "enabled"),
    "long_tail": ("long_tail", "enabled"),
    "long_tokens": ("long_tail", "long_prompt_tokens"),
    "baseline": ("baseline", "name"),
    "require_baseline": ("baseline", "required"),
    "inconclusive": ("inconclusive",),
}
"""Option → setting it stands for."""

OF_STAGES = frozenset({"stages", "stage_seconds", "arrivals"})
"""Conditions of a staircase; a replay has ``trace`` instead."""


def asked_for(
    root: Root,
    paths: StatePaths,
    config: Path | None,
    options: Mapping[str, Any],
    *,
    against: str | None = None,
    output_dir: Path | None = None,
) -> Asked:
    """
    What one run is asked for.

    Args:
        options: By the names of ``OPTIONS``; None: not given.

    Raises:
        ConfigError: An option is wrong, a stage is named that there is not, a required baseline is missing.
        StateError: The baseline cannot be read.
    """
    settings = with_options(root.gate, options)
    given = {
        ".".join(("gate", *setting)): _option(name)
        for name, setting in OPTIONS.items()
        if options.get(name) is not None
    }
    trace: Trace | None = None
    entries: Sequence[TraceEntry] = ()
    if settings.load.trace_file is not None:
        trace, entries = read_trace(expanded(settings.load.trace_file))
    problems = list(_unknown_stages(settings, trace))
    if problems:
        raise ConfigError(problems)
    required = "gate.baseline.required"
    baseline = None if against is not None else stored_baseline(settings, config, given.get(required, ""))
    if baseline is not None:
        require_same_load(baseline, settings, trace)
    return Asked(
        root=root,
        settings=settings,
        servers=servers_of(root, settings, paths, against, given.get("gate.target.url", "gate.target.url")),
        paths=paths,
        output_dir=output_dir,
        tool_version=version("sre"),
        baseline=baseline,
        trace=trace,
        entries=entries,
        given=given,
    )


def require_same_load(baseline: Baseline, settings: GateSettings, trace: Trace | None) -> None:
    """
    Say before anything is sent, in a dry run too, that this load is not that of the baseline, and what to do.

    Raises:
        ConfigError: One side is a trace, the other is not; or one sentence per condition that differs.
    """
    may_differ = settings.baseline.may_differ
    conditions = dict(baseline.fingerprint.fields)
    theirs = "trace" in conditions
    declared = {"trace", *OF_STAGES} <= set(may_differ)
    if theirs == (trace is not None) or declared or not (theirs or "stages" in conditions):
        ours = environment.planned(settings, trace)
        told = OF_STAGES | {"trace"} | {name for name, _ in ours}
        known = [pair for pair in baseline.fingerprint.fields if pair[0] in told or pair[0].startswith(OF_CLASS)]
        fingerprint.require_equal(
            fingerprint.build(known), fingerprint.build(ours), f"baseline {baseline.name}", may_differ
        )
        return
    was, has = ("a replayed trace", "stages") if theirs else (f"stages {conditions['stages']}", "a trace")
    raise ConfigError(
        [f"baseline {baseline.name}: is of {was}, this run has {has}; compare with another baseline: --baseline OTHER "
         "(without one of that name the objectives alone judge; then: sre gate baseline accept --name OTHER)"]
    )  # fmt: skip


def stored_baseline(settings: GateSettings, config: Path | None, required_by: str = "") -> Baseline | None:
    """
    The baseline to compare with; None: there is none.

    Args:
        required_by: The option that requires one; "": the setting does.

    Raises:
        ConfigError: There is none, and one is required.
        StateError: It cannot be read.
    """
    found = BaselineFolder(baselines_folder(settings, config)).load(settings.baseline.name)
    if found is None and settings.baseline.required:
        raise baselines.none_there(f"baseline {settings.baseline.name}", required_by)
    return found


def with_options(settings: GateSettings, options: Mapping[str, Any]) -> GateSettings:
    """
    ``settings`` with the options that were given.

    Raises:
        ConfigError: A value is impossible; the sentence names the option.
    """
    document = settings.model_dump()
    for name, value in options.items():
        if value is None:
            continue
        place = document
        *sections, last = OPTIONS[name]
        for section in sections:
            place = place[section]
        place[last] = _rates(value) if name == "stages" else value
    try:
        return GateSettings.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        # pydantic calls a list too short when its entries were refused: those are told already.
        told = [one for one in problems if not (one["type"] == "too_short" and one["input"])]
        raise ConfigError([_sentence(one, options) for one in told or problems]) from None


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(math.isfinite(rate) for rate in rates):
        raise ConfigError([f"--stages: {text!r} is no list of rates; write 10,50,100"])
    return rates


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _sentence(problem: Any, options: Mapping[str, Any]) -> str:
    where = tuple(str(part) for part in problem["loc"])
    what = problem["msg"].removeprefix("Value error, ")
    option = next((_option(name) for name, setting in OPTIONS.items() if where[: len(setting)] == setting), None)
    if option is None:  # of a whole section: the option given for the field that the sentence begins with
        for name, setting in OPTIONS.items():
            if options.get(name) is not None and setting[:-1] == where and what.startswith(f"{setting[-1]} "):
                option, what = _option(name), what.removeprefix(f"{setting[-1]} ")
    bounds = {
        "greater_than": "write more than {gt:g}",
        "greater_than_equal": "write at least {ge:g}",
        "less_than": "write less than {lt:g}",
        "less_than_equal": "write at most {le:g}",
    }
    if problem["type"] in bounds:
        remedy = bounds[problem["type"]].format(**problem["ctx"])
        what = f"{problem['input']} is out of range; {remedy}"
    elif problem["type"] == "string_pattern_mismatch":
        what = f"{problem['input']!r} is not a name; write small letters, digits, - and _"
    return f"{option or '.'.join(('gate', *where))}: {what}"


def _unknown_stages(settings: GateSettings, trace: Trace | None) -> Iterator[str]:
    known = [stage.name for stage in plan.staircase(settings.load, 0, trace=trace)]
    classes = [kind.name for kind in settings.load.mix]
    named = [
        (f"gate.objectives[{index}]", one.stage, one.request_class) for index, one in enumerate(settings.objectives)
    ]
    named += [
        (f"gate.baseline.cells[{index}]", one.stage, one.request_class)
        for index, one in enumerate(settings.baseline.cells)
    ]
    for where, stage, request_class in named:
        if stage is not None and stage not in known:
            scale = settings.load.qps_scale
            scaled = (
                f" (every rate times {scale:g}: gate.load.qps_scale, --scale)" if scale != 1 and trace is None else ""
            )
            yield f"{where}.stage: no stage {stage!r} in this plan; its stages: {', '.join(known)}{scaled}"
        if request_class is not None and request_class not in (*classes, "all"):
            yield f"{where}.request_class: no class {request_class!r} in the mix; its classes: {', '.join(classes)}"
