"""Checks of rules and groups beside their expressions: names, labels, annotations, durations, order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sre.metrics.types import Version
from sre.monitoring.levels import LEVELS, SLO
from sre.monitoring.lint import template
from sre.monitoring.lint.labels import Labels
from sre.monitoring.lint.report import Report
from sre.monitoring.lint.rulefile import Group, Rule, Text
from sre.monitoring.lint.subject import Subject, brief
from sre.monitoring.lint.tree import Selector
from sre.monitoring.runbooks import parse as parse_runbook

LARGEST_GROUP = 20
LONGEST_INTERVAL_SECONDS = 300.0
"""Prometheus looks back five minutes for a sample."""
LONGEST_NAME = 40
LONGEST_FOR_SECONDS = 86_400.0
SEVERITIES = frozenset({"page", "ticket", "info", "critical", "warning", "none"})
HEADINGS = ("Meaning", "Impact", "Diagnosis", "Mitigation")
_CAMEL = re.compile(r"(?:[A-Z][a-z0-9]*)+")
_RECORD = re.compile(r"[a-z_][a-z0-9_]*:[a-z0-9_]+:[a-z0-9_]+")
_SOURCE_NAMES = re.compile(
    r"vllm_(gpu_utilization|gpu_memory_used_bytes|batch_size_(bucket|sum|count)|batch_formation_latency_seconds"
    r"|p99_latency_seconds|first_token_latency_seconds)"
)
"""Names that the requirements give; they are recorded as they are."""


@dataclass(slots=True)
class Seen:
    """What the rules of a run have said already: for duplicates, dependencies, order."""

    rules: dict[tuple[object, ...], str] = field(default_factory=dict)
    levels: frozenset[str] = frozenset()
    records: frozenset[str] = frozenset()
    absence_is_watched: bool = False


def check_group(group: Group, report: Report) -> None:
    """Size and interval."""
    what = f"group {group.name.value}"
    if len(group.rules) > LARGEST_GROUP:
        report.add("group/size", group.name.node, f"{what} has {len(group.rules)} rules, more than {LARGEST_GROUP}")
    if group.interval_seconds is not None and group.interval_seconds > LONGEST_INTERVAL_SECONDS:
        report.add(
            "group/interval",
            group.interval_node,
            f"{what}: interval of {group.interval_seconds:g}s is above five minutes",
        )


def check_rule(rule: Rule, report: Report, seen: Seen) -> None:
    """Names, labels, annotations, durations: whatever needs no expression."""
    what = rule.what
    _duplicate(rule, report, seen)
    for name, label in rule.labels.items():
        if name in report.options.external_labels:
            report.add("rule/external-label", label.node, f"{what} sets the external label {name}")
    if not rule.is_alert:
        _record_name(rule, report)
        return
    name = rule.name.value
    if name and (not _CAMEL.fullmatch(name) or len(name) > LONGEST_NAME):
        problem = "is no CamelCase" if not _CAMEL.fullmatch(name) else f"has {len(name)} characters"
        report.add("alert/name", rule.name.node, f"alert {name[:80]} {problem}")
    _severity(rule, report)
    _durations(rule, report)
    for check, annotation in (
        ("alert/summary", "summary"), ("alert/description", "description"), ("alert/runbook-url", "runbook_url"),
    ):  # fmt: skip
        if not rule.annotations.get(annotation, Text("", rule.node)).value.strip():
            report.add(check, rule.name.node, f"{what} has no {annotation}")


_HOUSE = {"alert/dimension": ("label", "dimension"), "alert/dashboard-url": ("annotation", "dashboard_url")}
"""What alerts may go without, unless most alerts of the file have it."""


def house_style(groups: Iterable[Group]) -> frozenset[str]:
    """Which of these checks hold in a file: those of what most of its alerts have."""
    alerts = [rule for group in groups for rule in group.rules if rule.is_alert]
    return frozenset(check for check in _HOUSE if sum(_follows(rule, check) for rule in alerts) * 2 > len(alerts))


def _follows(rule: Rule, check: str) -> bool:
    kind, name = _HOUSE[check]
    text = (rule.labels if kind == "label" else rule.annotations).get(name)
    return text is not None and bool(text.value.strip())


def check_house_style(rule: Rule, report: Report, house: frozenset[str]) -> None:
    """What most alerts of the file have, this one has as well."""
    for check in sorted(house) if rule.is_alert else ():
        if not _follows(rule, check):
            report.add(check, rule.name.node, f"{rule.what} has no {_HOUSE[check][1]}, as most alerts here have")


def _duplicate(rule: Rule, report: Report, seen: Seen) -> None:
    labels = tuple(sorted((name, label.value) for name, label in rule.labels.items()))
    key = (rule.is_alert, rule.name.value, labels)
    line, _ = report.source.place(rule.node.start_mark.line, 0)
    here = f"{report.path}:{line}"
    if key in seen.rules:
        report.add("rule/duplicate", rule.name.node, f"{rule.what} is also in {seen.rules[key]}, with the same labels")
    else:
        seen.rules[key] = here


def _record_name(rule: Rule, report: Report) -> None:
    name = rule.name.value
    if name and not _RECORD.fullmatch(name) and not _SOURCE_NAMES.fullmatch(name):
        colons = name.count(":")
        problem = f"has {colons} colon{'' if colons == 1 else 's'}" if colons != 2 else "has other than lower case"
        report.add(
            "rule/record-name", rule.name.node, f"record {name[:80]} is not level:metric:operation: it {problem}"
        )


def _severity(rule: Rule, report: Report) -> None:
    severity = rule.labels.get("severity")
    if severity is None:
        report.add("alert/severity", rule.name.node, f"{rule.what} has no severity")
    elif severity.value not in SEVERITIES and "{{" not in severity.value:
        hint = report.near(severity.value, SEVERITIES)
        report.add("alert/severity", severity.node, f"{rule.what}: unknown severity {brief(severity.value)!r}{hint}")


def _durations(rule: Rule, report: Report) -> None:
    if rule.for_node is None:
        report.add("alert/for-missing", rule.name.node, f"{rule.what} states no for")
        return
    if rule.for_seconds is None:
        return
    least = report.options.scrape_interval_seconds
    if 0 < rule.for_seconds < least:
        message = f"{rule.what}: for of {rule.for_seconds:g}s is below one scrape interval ({least:g}s)"
        report.add("alert/for-range", rule.for_node, message)
    elif rule.for_seconds > LONGEST_FOR_SECONDS:
        report.add("alert/for-range", rule.for_node, f"{rule.what}: for of {rule.for_seconds / 86400:g} days")


# ---- Templates ------------------------------------------------------------------------------------------------------


def check_templates(rule: Rule, labels: Labels | None, report: Report) -> None:
    """Labels and annotations: valid, with labels that survive. ``labels`` is None where the expression is no PromQL."""
    for kind, texts in (("label", rule.labels), ("annotation", rule.annotations)):
        for name, text in texts.items():
            if "{{" not in text.value and "}}" not in text.value:
                continue
            found = template.read(text.value)
            where = f"{rule.what}: {kind} {name}"
            for problem in found.problems:
                report.add("alert/template", text.node, f"{where}: {problem}")
            for function, since in found.newer:
                if report.options.prometheus_version < Version.parse(since):
                    report.add(
                        "expression/grammar", text.node, f"{where}: function {function} needs Prometheus {since}",
                        needle=function,
                    )  # fmt: skip
            if kind == "label" and found.uses_value:
                report.add("alert/value-in-label", text.node, f"{where} holds the value", needle="$value")
            elif found.raw_value and name in ("summary", "description", "message"):
                report.add("alert/humanize", text.node, f"{where} shows the raw value", needle="$value")
            if labels is not None and labels.may is not None and labels.closed:
                for label in found.labels:
                    if label not in labels.may:
                        has = ", ".join(sorted(labels.may)) or "none"
                        report.add(
                            "alert/label-lost", text.node,
                            f"{where} shows label {label}, which the expression does not keep (it keeps: {has})",
                            needle=label,
                        )  # fmt: skip


# ---- Runbooks -------------------------------------------------------------------------------------------------------


def check_runbook(rule: Rule, labels: Labels | None, report: Report) -> None:
    """The page behind runbook_url, where the pages are local; its anchor in any case."""
    url = rule.annotations.get("runbook_url")
    if url is None or not url.value.strip() or "{{" in url.value:
        return
    try:
        split = urlsplit(url.value.strip())
    except ValueError:
        report.add("alert/runbook-url", url.node, f"{rule.what}: {brief(url.value)} is no address")
        return
    if (
        split.fragment
        and split.fragment != rule.name.value.lower()
        and split.fragment.lower() == rule.name.value.lower()
    ):
        report.add(
            "alert/runbook-anchor", url.node, f"{rule.what}: the anchor is #{split.fragment}", needle=split.fragment,
            remedy=f"Write #{rule.name.value.lower()}.",
        )  # fmt: skip
    runbooks = report.options.runbooks
    if runbooks is None:
        return
    file = split.path.rsplit("/", 1)[-1]
    text = runbooks.get(file)
    if text is None:
        hint = report.near(file, runbooks)
        report.add("alert/runbook-file", url.node, f"{rule.what}: there is no runbook {file or url.value!r}{hint}")
        return
    page = parse_runbook(text)
    missing = [heading for heading in HEADINGS if heading not in page.sections]
    if missing:
        report.add("alert/runbook-file", url.node, f"{rule.what}: {file} has no heading {', '.join(missing)}")
    if labels is None or labels.may is None or not labels.closed:
        return
    carried = labels.may | rule.labels.keys() | {"alertname"}
    for label in page.labels:
        if label not in carried:
            report.add(
                "alert/runbook-labels", url.node,
                f"{rule.what}: {file} uses ${label}, which the alert does not carry "
                f"(it carries: {', '.join(sorted(carried - {'alertname'}))})",
            )  # fmt: skip


# ---- Records between rules ------------------------------------------------------------------------------------------


_SLO_METRICS = frozenset(
    {"errors", "events", "objective", "error_budget", "current_burn_rate", "period_burn_rate",
     "period_error_budget_remaining"}
)  # fmt: skip
"""What we record of objectives. Sloth has the level ``slo``, too, with some of these names and labels of its own."""


def _of_another_slo(level: str, metric: str, has: Iterable[str]) -> bool:
    return level == SLO and (metric not in _SLO_METRICS or any(label.startswith("sloth_") for label in has))


def check_level(rule: Rule, labels: Labels, report: Report) -> None:
    """A record's level against the labels of its expression."""
    name = rule.name.value
    if name.count(":") != 2 or labels.may is None or not labels.closed:
        return
    level, metric, _ = name.split(":")
    has = labels.may | rule.labels.keys()
    if _of_another_slo(level, metric, has):
        return
    expected = LEVELS.get(level)
    if not labels.may and rule.labels and not has & set(expected or ()):
        return  # what it is of stands in labels of its own: sloth's "slo"
    fits = (expected is not None and set(expected) <= has) or (level and _composed(level, has))
    if not fits:
        wanted = ", ".join(expected) if expected is not None else level
        report.add(
            "rule/record-level", rule.name.node,
            f"record {name}: its level says {wanted}, its expression has {', '.join(sorted(has)) or 'no label'}",
        )  # fmt: skip


def _composed(level: str, labels: Iterable[str]) -> bool:
    """Whether the level is label names joined by ``_``."""
    known = {label.lower() for label in labels}
    reachable = {0}
    parts = level.split("_")
    for start in range(len(parts)):
        if start in reachable:
            reachable |= {end for end in range(start + 1, len(parts) + 1) if "_".join(parts[start:end]) in known}
    return len(parts) in reachable


def check_dependencies(subject: Subject, seen: Seen, later: Mapping[str, int], done: set[str]) -> None:
    """
    Records that are used: defined somewhere, and above their use within a group.

    Args:
        later: Records of the rule's group, by name, with the line of their rule.
        done: Those that stand above.
    """
    for selector in subject.parsed.selectors():
        name = selector.name
        if name in later and name not in done:
            subject.note("rule/order", f"uses {name}, which is recorded below it in line {later[name]}", name)
        elif name.count(":") == 2 and name not in seen.records and subject.tools.names.metric(name) is None:
            if subject.tools.names.vllm_name(name).startswith("vllm:") or name.split(":", 1)[0] not in seen.levels:
                continue
            hint = subject.report.near(name, seen.records, 0.8)
            subject.note("rule/dependency", f"no linted file records {brief(name)}{hint}", name)


def records_used(selectors: Iterable[Selector]) -> set[str]:
    return {selector.name for selector in selectors if selector.name.count(":") == 2}
