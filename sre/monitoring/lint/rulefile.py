"""Rule files as values: groups and rules with the place of every part. What has the wrong form is reported here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from sre.metrics.types import Version
from sre.monitoring.lint.conversion import LEGACY_LABEL
from sre.monitoring.lint.documents import Document, Kind, get, items, pairs, text_of
from sre.monitoring.lint.report import Report

MAX_RULES = 100_000
"""Of one document."""
MAX_REPEATED = 1_000
"""Rules and groups that stand in a document as aliases: no alias bomb gets past it."""
_DURATION = re.compile(r"(?:(\d{1,9})(ms|y|w|d|h|m|s))+")
_PART = re.compile(r"(\d+)(ms|y|w|d|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}
_TOP_KEYS = frozenset({"groups"})
_GROUP_KEYS: Mapping[str, Version | None] = {
    "name": None, "interval": None, "limit": None, "rules": None, "source_tenants": None,
    "query_offset": Version(2, 53), "labels": Version(3, 0),
}  # fmt: skip
_OPERATOR_GROUP_KEYS = frozenset({"partial_response_strategy"})
_RULE_KEYS = frozenset({"record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations"})
_RECORD_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*", re.ASCII)
_NOT_TEXT = {"bool": "true or false", "int": "a number", "float": "a number", "null": "nothing", "timestamp": "a date"}


@dataclass(slots=True)
class Text:
    """A scalar and its place."""

    value: str
    node: yaml.Node


@dataclass(slots=True)
class Rule:
    """
    One rule.

    Attributes:
        is_alert: Alerting rule; otherwise recording.
        for_seconds, keep_firing_seconds: None where not stated (or not readable).
        line: In the file, from 1.
    """

    node: yaml.MappingNode
    is_alert: bool
    name: Text
    expr: Text
    labels: dict[str, Text]
    annotations: dict[str, Text]
    for_seconds: float | None = None
    for_node: yaml.Node | None = None
    keep_firing_seconds: float | None = None
    keep_firing_node: yaml.Node | None = None

    @property
    def what(self) -> str:
        """How messages call it."""
        return f"{'alert' if self.is_alert else 'record'} {self.name.value or '(without name)'}"


@dataclass(slots=True)
class Group:
    """A group. ``interval_seconds`` is None where not stated; ``labels`` (Prometheus 3) are also in its rules."""

    node: yaml.MappingNode
    name: Text
    labels: dict[str, Text] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    interval_seconds: float | None = None
    interval_node: yaml.Node | None = None


def duration_seconds(text: str) -> float | None:
    """Seconds of ``5m``, ``1h30m`` or ``0``; None for what is no duration."""
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        return None
    return float(sum(int(count) * _SECONDS[unit] for count, unit in _PART.findall(text)))


def read_groups(document: Document, report: Report) -> list[Group]:
    """Every group of a document; what cannot be read is reported and left out."""
    if document.kind is Kind.RULES:
        _unknown_keys(document.node, _TOP_KEYS, "a rule file", report)
    _duplicate_keys(document.node, "the document", report)
    listed = get(document.node, "groups")
    if not isinstance(listed, yaml.SequenceNode):
        report.add("file/structure", listed or document.node, "groups is no list", remedy="Write groups: and a list.")
        return []
    groups: list[Group] = []
    names: dict[str, yaml.Node] = {}
    count = repeated = 0
    known: set[int] = set()
    for node in listed.value:
        if not isinstance(node, yaml.MappingNode):
            report.add("file/structure", node, "a group is no mapping with name and rules")
            continue
        group = _group(node, document.kind, report)
        inside = items(get(node, "rules"))
        count += len(inside) + 1
        repeated += sum(1 for one in (node, *inside) if id(one) in known)
        known.update(id(one) for one in (node, *inside))
        if count > MAX_RULES or repeated > MAX_REPEATED:
            many = f"{MAX_RULES:,} rules" if count > MAX_RULES else f"{MAX_REPEATED:,} rules that are aliases"
            report.add("file/structure", node, f"more than {many}", remedy="Split the file, or write the rules out.")
            break
        for rule_node in inside:
            rule = _rule(rule_node, document.kind, report)
            if rule is not None:
                rule.labels = {**group.labels, **rule.labels}
                group.rules.append(rule)
        if group.name.value and group.name.value in names:
            first, _ = report.source.place(names[group.name.value].start_mark.line, 0)
            report.add(
                "group/duplicate", group.name.node, f"group {group.name.value} is also the name of that in line {first}"
            )
        names.setdefault(group.name.value, group.name.node)
        groups.append(group)
    return groups


def _group(node: yaml.MappingNode, kind: Kind, report: Report) -> Group:
    name = get(node, "name")
    group = Group(node, Text(text_of(name), name or node))
    what = f"group {group.name.value or '(without name)'}"
    _duplicate_keys(node, what, report)
    if not group.name.value:
        report.add("file/structure", name or node, "a group without a name")
    known = set(_GROUP_KEYS) | (_OPERATOR_GROUP_KEYS if kind is Kind.PROMETHEUS_RULE else set())
    _unknown_keys(node, known, what, report)
    for key, _ in pairs(node):
        since = _GROUP_KEYS.get(text_of(key))
        if since is not None and report.options.prometheus_version < since:
            report.add(
                "group/newer-key",
                key,
                f"{what}: {text_of(key)} is known since Prometheus {since}, "
                f"and {report.options.prometheus_version} must read the file",
            )
    interval = get(node, "interval")
    if interval is not None:
        group.interval_node = interval
        group.interval_seconds = _duration(interval, f"{what}: interval", report)
    group.labels = _texts(get(node, "labels"), f"{what}: labels", kind, report)
    rules = get(node, "rules")
    if not isinstance(rules, yaml.SequenceNode):
        report.add("file/structure", rules or node, f"{what} has no list of rules")
    return group


def _rule(node: yaml.Node, kind: Kind, report: Report) -> Rule | None:
    if not isinstance(node, yaml.MappingNode):
        report.add("file/structure", node, "a rule is no mapping with alert or record, and expr")
        return None
    fields = {text_of(key): value for key, value in pairs(node)}
    alert, record, expr = fields.get("alert"), fields.get("record"), fields.get("expr")
    named = alert if alert is not None else record
    rule = Rule(
        node, alert is not None, Text(text_of(named), named or node), Text(text_of(expr).strip(), expr or node), {}, {}
    )
    what = rule.what
    _duplicate_keys(node, what, report)
    _unknown_keys(node, _RULE_KEYS, what, report)
    if alert is not None and record is not None:
        report.add("file/structure", node, f"{what} is alert and record at once; write two rules")
    if named is None:
        report.add("file/structure", node, "a rule has neither alert nor record")
        return None
    if not rule.name.value:
        report.add("file/structure", named, "a rule has an empty name")
    _is_text(named, f"{what}: its name", kind, report)
    if not rule.expr.value:
        report.add("file/structure", expr or node, f"{what} has no expression")
        return None
    if not rule.is_alert:
        for key in ("for", "keep_firing_for", "annotations"):
            if key in fields:
                report.add("file/structure", fields[key], f"{what}: {key} belongs to alerts, not to records")
        if rule.name.value and not _RECORD_NAME.fullmatch(rule.name.value):
            utf8 = report.options.prometheus_version >= Version(3, 0)
            if not utf8:
                report.add("expression/grammar", named, f"{what}: such a name needs Prometheus 3.0")
    if "for" in fields:
        rule.for_node = fields["for"]
        rule.for_seconds = _duration(fields["for"], f"{what}: for", report)
    if "keep_firing_for" in fields:
        rule.keep_firing_node = fields["keep_firing_for"]
        rule.keep_firing_seconds = _duration(fields["keep_firing_for"], f"{what}: keep_firing_for", report)
    rule.labels = _texts(fields.get("labels"), f"{what}: labels", kind, report)
    rule.annotations = _texts(fields.get("annotations"), f"{what}: annotations", kind, report)
    return rule


def _texts(node: yaml.Node | None, what: str, kind: Kind, report: Report) -> dict[str, Text]:
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
        return {}
    if not isinstance(node, yaml.MappingNode):
        report.add("file/structure", node, f"{what} is no mapping of names to texts")
        return {}
    _duplicate_keys(node, what, report)
    found = {}
    for key, value in pairs(node):
        name = text_of(key)
        if not LEGACY_LABEL.fullmatch(name) and report.options.prometheus_version < Version(3, 0):
            report.add("file/structure", key, f"{what}: {name!r} is no label name; use letters, digits and _")
        if not isinstance(value, yaml.ScalarNode):
            report.add("file/structure", value, f"{what}.{name} is no text")
            continue
        _is_text(value, f"{what}.{name}", kind, report)
        found[name] = Text(text_of(value), value)
    return found


def _is_text(node: yaml.Node, what: str, kind: Kind, report: Report) -> None:
    """A value that YAML takes for something else than text."""
    tag = str(node.tag).rsplit(":", 1)[-1]
    if isinstance(node, yaml.ScalarNode) and tag in _NOT_TEXT:
        who = "Kubernetes refuses it" if kind is Kind.PROMETHEUS_RULE else "other readers take it for that"
        report.add("file/yaml-type", node, f"{what}: YAML reads {node.value or 'nothing'} as {_NOT_TEXT[tag]}; {who}")


def _duration(node: yaml.Node, what: str, report: Report) -> float | None:
    found = duration_seconds(text_of(node))
    if found is None:
        report.add(
            "file/structure",
            node,
            f"{what}: {text_of(node)[:40]!r} is no duration",
            remedy="Write it like 5m or 1h30m.",
        )
    return found


def _unknown_keys(node: yaml.MappingNode, known: frozenset[str] | set[str], what: str, report: Report) -> None:
    for key, _ in pairs(node):
        name = text_of(key)
        if name not in known:
            hint = report.near(name, known) or f"; known are {', '.join(sorted(known))}"
            report.add("file/unknown-key", key, f"{what}: unknown key {name[:60]!r}{hint}")


def _duplicate_keys(node: yaml.MappingNode, what: str, report: Report) -> None:
    if len(node.value) < 2 or len({key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}) == len(
        node.value
    ):
        return
    seen: set[str] = set()
    for key, _ in node.value:
        name = text_of(key)
        if not isinstance(key, yaml.ScalarNode):
            report.add("file/structure", key, f"{what}: a key is no text")
        elif name in seen and name != "<<":
            report.add("file/duplicate-key", key, f"{what}: key {name} stands there twice")
        seen.add(name)
