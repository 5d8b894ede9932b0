"""The lint itself: texts in, findings out. Pure; never raises for the content of a text but ``NotRules``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sre.monitoring.lint import (
    on_conditions,
    on_dashboards,
    on_gpus,
    on_grammar,
    on_labels,
    on_metrics,
    on_rules,
    on_values,
)
from sre.monitoring.lint.documents import Document, Kind, Mark, Source, TreeError, documents
from sre.monitoring.lint.findings import Finding, LintOptions, NotRules
from sre.monitoring.lint.known import Definition, Names, Recorded
from sre.monitoring.lint.labels import LabelInference, Labels
from sre.monitoring.lint.quantities import QuantityInference
from sre.monitoring.lint.report import Comment, Report, Span, comments, silenced_by
from sre.monitoring.lint.rulefile import Group, Rule, read_groups
from sre.monitoring.lint.subject import Role, Subject, Tools
from sre.monitoring.lint.syntax import Parsed, Problem, parse

_ABSENT_UP = re.compile(r"\babsent(_over_time)?\s*\(\s*up\b")


@dataclass(frozen=True, slots=True)
class File:
    """A text to lint and the name it goes by in findings."""

    path: str
    text: str


@dataclass(slots=True)
class _Read:
    """A document, its groups, and what has been reported while reading it."""

    document: Document
    report: Report
    groups: list[Group]
    silenced: dict[int, frozenset[str]]


def lint(text: str, path: str, options: LintOptions | None = None) -> list[Finding]:
    """
    Every finding of one text, by place.

    Raises:
        NotRules: It is neither rules nor a dashboard.
    """
    results = lint_files([File(path, text)], options or LintOptions())
    found = results[0]
    if isinstance(found, NotRules):
        raise found
    return found


def lint_files(files: Sequence[File], options: LintOptions) -> list[list[Finding] | NotRules]:
    """
    Findings per file, in the given order; NotRules for a file that is none.

    Files are read together: a record defined in one is known in the others.
    """
    reports: list[Report | NotRules] = []
    read: list[_Read] = []
    for file in files:
        report = Report(file.path, options)
        try:
            read += _read(file, report)
        except NotRules as problem:
            reports.append(problem)
            continue
        reports.append(report)
    seen = _seen(read)
    tools = _tools(read, options)
    for one in read:
        one.report.source = one.document.source
        if one.document.kind is Kind.DASHBOARD:
            on_dashboards.check(one.document, one.report, tools, seen)
        else:
            _rules(one, tools, seen)
    return [sorted(report.findings) if isinstance(report, Report) else report for report in reports]


def _read(file: File, report: Report) -> list[_Read]:
    try:
        found = documents(file.text, file.path)
    except TreeError as error:
        report.source = Source(file.text)
        report.add("file/syntax", Mark(0, error.line, error.column), error.problem)
        return []
    result = []
    noted: dict[str, list[Comment]] = {}
    by_text: dict[str, list[_Read]] = {}
    for document in found:
        report.source = document.source
        groups = read_groups(document, report) if document.kind is not Kind.DASHBOARD else []
        one = _Read(document, report, groups, {})
        result.append(one)
        if document.kind is not Kind.DASHBOARD:
            by_text.setdefault(document.source.text, []).append(one)
            noted.setdefault(document.source.text, comments(document.source.text))
    for text, together in by_text.items():
        _apply_comments(noted[text], together, report)
    return result


def _apply_comments(found: list[Comment], together: list[_Read], report: Report) -> None:
    spans = []
    members: dict[int, list[int]] = {}
    for one in together:
        for group in one.groups:
            spans.append(Span(group.node, False))
            members[id(group.node)] = [id(rule.node) for rule in group.rules]
            spans += [Span(rule.node, True) for rule in group.rules]
    silenced, idle = silenced_by(found, spans)
    for group_id, rules in members.items():
        # A comment above a group is about all of it.
        for rule in rules:
            if group_id in silenced:
                silenced[rule] = silenced.get(rule, frozenset()) | silenced[group_id]
    for one in together:
        one.silenced = silenced
    report.source = together[0].document.source
    for comment in found:
        if comment.problem:
            report.add("file/disable-comment", Mark(0, comment.line, comment.column), f"comment {comment.problem}")
    for comment in idle:
        report.add("file/disable-comment", Mark(0, comment.line, comment.column), "comment stands above no rule")


def _records(read: Iterable[_Read]) -> list[Rule]:
    return [rule for one in read for group in one.groups for rule in group.rules if not rule.is_alert]


def _seen(read: Iterable[_Read]) -> on_rules.Seen:
    names = frozenset(rule.name.value for rule in _records(read))
    levels = frozenset(name.split(":", 1)[0] for name in names if name.count(":") == 2)
    watched = any(_ABSENT_UP.search(rule.expr.value) for one in read for group in one.groups for rule in group.rules)
    return on_rules.Seen(levels=levels, records=names, absence_is_watched=watched)


def _tools(read: list[_Read], options: LintOptions) -> Tools:
    parsed: dict[tuple[str, bool], Parsed | Problem] = {}
    definitions: dict[str, list[Definition]] = {}
    for rule in _records(read):
        key = (rule.expr.value, False)
        if key not in parsed:
            parsed[key] = parse(rule.expr.value)
        found = parsed[key]
        if isinstance(found, Parsed):
            definitions.setdefault(rule.name.value, []).append(Definition(found.root, frozenset(rule.labels)))
    names = Names(options, {name: Recorded(name, tuple(several)) for name, several in definitions.items()})
    return Tools(names, LabelInference(names), QuantityInference(names), parsed)


def _rules(one: _Read, tools: Tools, seen: on_rules.Seen) -> None:
    report = one.report
    house = on_rules.house_style(one.groups)
    for group in one.groups:
        report.silenced = one.silenced.get(id(group.node), frozenset())
        on_rules.check_group(group, report)
        later: dict[str, int] = {}
        for rule in group.rules:
            if not rule.is_alert:
                later.setdefault(rule.name.value, report.source.place(rule.node.start_mark.line, 0)[0])
        done: set[str] = set()
        for rule in group.rules:
            report.silenced = one.silenced.get(id(rule.node), frozenset())
            on_rules.check_rule(rule, report, seen)
            on_rules.check_house_style(rule, report, house)
            subject = _subject(rule, report, tools, seen)
            labels: Labels | None = None
            if subject is not None:
                expressions(subject)
                on_rules.check_dependencies(subject, seen, later, done)
                labels = tools.labels.of(subject.parsed.root)
                if not rule.is_alert:
                    on_rules.check_level(rule, labels, report)
            on_rules.check_templates(rule, labels, report)
            if rule.is_alert:
                on_rules.check_runbook(rule, labels, report)
            else:
                done.add(rule.name.value)
    report.silenced = frozenset()


def _subject(rule: Rule, report: Report, tools: Tools, seen: on_rules.Seen) -> Subject | None:
    found = tools.parse(rule.expr.value)
    if isinstance(found, Problem):
        report.add("expression/syntax", rule.expr.node, f"{rule.what}: {found.message}")
        return None
    role = Role.ALERT if rule.is_alert else Role.RECORD
    return Subject(
        found,
        rule.expr.node,
        rule.what,
        role,
        report,
        tools,
        rule.for_seconds,
        rule.keep_firing_seconds,
        seen.absence_is_watched,
    )


def expressions(subject: Subject) -> None:
    """Every check of an expression, wherever it stands."""
    on_grammar.check(subject)
    on_metrics.check(subject)
    on_gpus.check(subject)
    on_labels.check(subject)
    on_values.check(subject)
    on_conditions.check(subject)
