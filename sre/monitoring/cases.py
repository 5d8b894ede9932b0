"""
Promtool cases for every alert, made of its scenario: it fires, stays quiet, survives no traffic, resolves; and of
machines, that it survives the end of all its series.

A firing phase of ``n`` steps has ``n + 1`` samples (one at time 0), a phase that follows another has one a step.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from sre.monitoring.model import Alert, Group, Input, Missing, Raw, Record, Rising, Scenario, Shape, Steady
from sre.monitoring.promql import ExpressionError, number, seconds
from sre.monitoring.render import alert_annotations, alert_labels
from sre.settings.monitoring import MonitoringSettings


class Gap(enum.Enum):
    """Where a series has no value at a step."""

    NOTHING = "_"
    STALE = "stale"
    """The series ended here."""


Sample = float | Gap
OF_MACHINES = frozenset({"gpu", "node"})
"""Components whose exporters run beside what they measure, and end with it."""


def cases(groups: Iterable[Group], settings: MonitoringSettings, rule_files: Iterable[str]) -> dict[str, str]:
    """
    promtool test files by the alerts' step, e.g. ``{"15s": …}``: evaluation has one step per file.

    Args:
        rule_files: Paths of the rule files that hold ``groups``, as seen from the test file.

    Raises:
        ExpressionError: A scenario does not fit its alert.
    """
    groups = tuple(groups)
    by_interval: dict[str, list[Alert]] = {}
    for alert in alerts_of(groups):
        by_interval.setdefault(alert.scenario.interval, []).append(alert)
    return {
        interval: _dump(
            {
                "rule_files": list(rule_files),
                "evaluation_interval": interval,
                # Without it promtool takes groups in any order, and an alert may see the records of the step before.
                "group_eval_order": [group.name for group in groups],
                "tests": [case for alert in alerts for case in alert_cases(alert, settings)],
            }
        )
        for interval, alerts in sorted(by_interval.items(), key=lambda item: seconds(item[0]))
    }


def alerts_of(groups: Iterable[Group]) -> list[Alert]:
    """Every alert, in order."""
    return [rule for group in groups for rule in group.rules if isinstance(rule, Alert)]


def needed(groups: Iterable[Group], alerts: Iterable[Alert]) -> tuple[Group, ...]:
    """``groups`` reduced to these alerts and the records they read, also through others; empty groups left out."""
    groups = tuple(groups)
    records: dict[str, list[Record]] = {}
    for group in groups:
        for rule in group.rules:
            if isinstance(rule, Record):
                records.setdefault(rule.name, []).append(rule)
    alerts = tuple(alerts)
    kept: set[str] = set()
    open_ = {name for alert in alerts for name in alert.uses}
    while open_:
        name = open_.pop()
        if name in records and name not in kept:
            kept.add(name)
            open_ |= {used for record in records[name] for used in record.expr.uses}
    names = {alert.name for alert in alerts}
    reduced = (
        Group(
            group.name,
            tuple(rule for rule in group.rules if rule.name in (kept if isinstance(rule, Record) else names)),
            group.interval,
        )
        for group in groups
    )
    return tuple(group for group in reduced if group.rules)


def alert_cases(alert: Alert, settings: MonitoringSettings) -> list[dict[str, Any]]:
    """The cases of one alert, as promtool's test groups: four, and "exporter gone" where it is about a machine."""
    scenario = alert.scenario
    fires = _steps(scenario.fires_after, scenario)
    resolves = _steps(scenario.resolves_after, scenario)
    fired = _time(fires, scenario)
    resolved = _time(fires + resolves, scenario)
    expected = [expected_alert(alert, settings)]

    def case(name: str, values: list[tuple[str, str]], *checks: tuple[str, list[dict[str, Any]]]) -> dict[str, Any]:
        return {
            "name": f"{alert.name}: {name}",
            "interval": scenario.interval,
            "input_series": [{"series": series, "values": text} for series, text in values if text],
            "alert_rule_test": [
                {"eval_time": time, "alertname": alert.name, **({"exp_alerts": alerts} if alerts else {})}
                for time, alerts in checks
            ],
        }

    def alone(shapes: list[tuple[Input, Shape]], steps: int) -> list[tuple[str, str]]:
        return [(source.series, _notation(_phase(alert, shape, steps + 1, Gap.NOTHING))) for source, shape in shapes]

    firing = [(source, source.firing) for source in scenario.inputs]
    quiet = [(source, source.quiet) for source in scenario.inputs]
    idle = [(source, _idle(source)) for source in scenario.inputs]
    made = [
        case("fires", alone(firing, fires), (fired, expected)),
        case("quiet", alone(quiet, fires + resolves), (fired, []), (resolved, [])),
        case("no traffic", alone(idle, fires + resolves), (fired, []), (resolved, [])),
        case(
            "resolves",
            [(source.series, _notation(_both_phases(alert, source, fires, resolves))) for source in scenario.inputs],
            (fired, expected),
            (resolved, []),
        ),
    ]
    if alert.component in OF_MACHINES:
        gone = [(source.series, _notation(_then_gone(alert, source, resolves, fires))) for source in scenario.inputs]
        made.append(case("exporter gone", gone, (resolved, [])))
    return made


def expected_alert(alert: Alert, settings: MonitoringSettings) -> dict[str, Any]:
    """The alert as promtool must see it, annotations expanded."""
    labels = {**alert.scenario.labels, **alert_labels(alert)}
    return {
        "exp_labels": labels,
        "exp_annotations": {
            name: expand(text, labels, alert.scenario.value)
            for name, text in alert_annotations(alert, settings).items()
        },
    }


def expand(text: str, labels: Mapping[str, str], value: str) -> str:
    """
    An annotation as Prometheus shows it.

    Args:
        value: Stands for ``{{ $value … }}``, formatted.

    Raises:
        ExpressionError: A template that this does not know.
    """

    def replaced(match: re.Match[str]) -> str:
        inside = match[1].strip()
        if found := re.fullmatch(r"\$labels\.(\w+)", inside):
            return labels.get(found[1], "")
        if re.fullmatch(r"\$value(?: \| (?:humanize\w*|printf \"[^\"]+\"))?", inside):
            return value
        raise ExpressionError(f"annotation template {{{{ {inside} }}}} is none of $labels.NAME, $value | humanize…")

    known = re.sub(
        r"\{\{ if \$labels\.(\w+) \}\}(.*?)\{\{ end \}\}", lambda match: match[2] if labels.get(match[1]) else "", text
    )
    return re.sub(r"\{\{(.*?)\}\}", replaced, known)


# ---- Samples --------------------------------------------------------------------------------------------------------


def _steps(duration: str, scenario: Scenario) -> int:
    return math.ceil(seconds(duration) / seconds(scenario.interval))


def _time(steps: int, scenario: Scenario) -> str:
    """promtool wants a duration; whole seconds in all scenarios."""
    return number(steps * seconds(scenario.interval)) + "s"


def _idle(source: Input) -> Shape:
    if source.idle is not None:
        return source.idle
    return Rising(0) if isinstance(source.quiet, Rising) else source.quiet


def _phase(alert: Alert, shape: Shape, count: int, before: Sample) -> list[Sample]:
    """``count`` samples of ``shape``, after ``before``."""
    match shape:
        case Steady(value):
            return [value] * count
        case Rising(per_step):
            first = 0.0 if isinstance(before, Gap) else before + per_step
            return [first + per_step * step for step in range(count)]
        case Missing():
            return [Gap.NOTHING if isinstance(before, Gap) else Gap.STALE, *[Gap.NOTHING] * (count - 1)]
        case Raw(text):
            samples = samples_of(text)
            if len(samples) != count:
                raise ExpressionError(
                    f"alert {alert.name}: {text!r} has {len(samples)} samples, its phase {count}; fill it exactly"
                )
            return samples


def _both_phases(alert: Alert, source: Input, fires: int, resolves: int) -> list[Sample]:
    first = _phase(alert, source.firing, fires + 1, Gap.NOTHING)
    return first + _phase(alert, source.quiet, resolves, first[-1])


def _then_gone(alert: Alert, source: Input, healthy: int, gone: int) -> list[Sample]:
    """All well, then nothing: what an exporter leaves behind that is scraped no more."""
    first = _phase(alert, source.quiet, healthy + 1, Gap.NOTHING)
    return first + _phase(alert, Missing(), gone, first[-1])


def samples_of(text: str) -> list[Sample]:
    """
    Samples of promtool's notation: ``3``, ``3x9`` (ten samples), ``0+2x9``, ``9-1x9``, ``_``, ``_x5``, ``stale``.

    Raises:
        ExpressionError: It is none of these.
    """
    samples: list[Sample] = []
    for token in text.split():
        if token == "stale":
            samples.append(Gap.STALE)
        elif found := re.fullmatch(r"_(?:x(\d+))?", token):
            samples += [Gap.NOTHING] * int(found[1] or 1)
        elif found := re.fullmatch(r"(-?[\d.]+)(?:([+-][\d.]+)?x(\d+))?", token):
            start, step = float(found[1]), float(found[2] or 0)
            samples += [start + step * index for index in range(int(found[3] or 0) + 1)]
        else:
            raise ExpressionError(f"{token!r} in {text!r} is no notation of samples")
    return samples


def _notation(samples: list[Sample]) -> str:
    """The shortest of promtool's notations; "" where there is no sample at all."""
    if all(sample is Gap.NOTHING for sample in samples):
        return ""
    parts: list[str] = []
    index = 0
    while index < len(samples):
        sample = samples[index]
        end = index + 1
        if sample is Gap.STALE:
            parts.append("stale")
        elif sample is Gap.NOTHING:
            while end < len(samples) and samples[end] is Gap.NOTHING:
                end += 1
            parts.append(f"_x{end - index}" if end - index > 1 else "_")
        else:
            step = _difference(samples, index)
            while end < len(samples) and step is not None and _difference(samples, end - 1) == step:
                end += 1
            count = end - index - 1
            change = f"{'-' if step < 0 else '+'}{number(abs(step))}" if step else ""
            parts.append(number(sample) + (f"{change}x{count}" if count else ""))
        index = end
    return " ".join(parts)


def _difference(samples: list[Sample], index: int) -> float | None:
    """Step from one sample to the next; None where one of them is none."""
    here, there = samples[index], samples[index + 1] if index + 1 < len(samples) else Gap.NOTHING
    return None if isinstance(here, Gap) or isinstance(there, Gap) else there - here


class _Dumper(yaml.SafeDumper):
    """No anchors: every case can be read alone."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump(document: Mapping[str, Any]) -> str:
    return yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=4096, allow_unicode=True)
