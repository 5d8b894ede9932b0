"""Checks of Grafana dashboards: data source, variables, panels and their queries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from sre.metrics.types import Exporter
from sre.monitoring.levels import INSTANCE, JOB, LEVELS, MODEL_NAME, NODE
from sre.monitoring.lint import on_conditions, on_grammar, on_labels, on_metrics, on_rules, on_values
from sre.monitoring.lint.documents import Document, get, items, text_of
from sre.monitoring.lint.report import Report
from sre.monitoring.lint.subject import Role, Subject, Tools, brief
from sre.monitoring.lint.syntax import VARIABLE, Problem
from sre.monitoring.lint.tree import Selector

MAX_PANELS = 5_000
MAX_PANEL_DEPTH = 10
WITHOUT_QUERY = frozenset({"row", "text", "news", "dashlist", "welcome", "alertlist", "annolist", "gettingstarted"})
WITH_UNIT = frozenset(
    {"timeseries", "stat", "gauge", "bargauge", "barchart", "heatmap", "histogram", "piechart", "xychart"}
)
_VALUE_OF = re.compile(r"\s*label_values\(\s*(?:(?P<metric>.+?)\s*,\s*)?(?P<label>[A-Za-z_]\w*)\s*\)\s*", re.DOTALL)
_RESULT_OF = re.compile(r"\s*query_result\((?P<expr>.+)\)\s*", re.DOTALL)
_RATE = re.compile(r"\b(?P<call>rate|irate|increase)\s*\(\s*[\w:.$]+\s*(?:\{[^}]*\})?\s*\[(?P<range>[^\]\[]+)\]")
_REFERENCE = re.compile(r"\$\{(\w+)(?:[:.][^}]*)?\}|\$(\w+)|\[\[(\w+)\]\]")
_BUILT_IN = ("grafana", "-- Grafana --", "-- Mixed --", "-- Dashboard --", "datasource")
_VARIABLE_OF = {JOB: ("job",), INSTANCE: ("instance",), MODEL_NAME: ("model", "model_name"), NODE: ("node", "host")}
"""Label → variables that choose it."""


@dataclass(slots=True)
class Board:
    """What the panels of one dashboard share."""

    document: Document
    report: Report
    tools: Tools
    seen: on_rules.Seen
    datasources: set[str] = field(default_factory=set)
    variables: dict[str, yaml.Node] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    read: list[Selector] = field(default_factory=list)

    def note(self, check: str, node: yaml.Node | None, message: str, needle: str = "", remedy: str = "") -> None:
        self.report.add(check, node or self.document.node, message, needle=needle, remedy=remedy)


def check(document: Document, report: Report, tools: Tools, seen: on_rules.Seen) -> None:
    """Everything about one dashboard."""
    board = Board(document, report, tools, seen)
    root = document.node
    what = f"dashboard {document.name or '(without title)'}"
    if not document.name:
        board.note("dashboard/title", root, "the dashboard has no title")
    if not text_of(get(root, "uid")) or _null(get(root, "uid")):
        board.note("dashboard/uid", get(root, "uid"), f"{what} has no uid")
    if text_of(get(root, "editable")) != "false":
        board.note("dashboard/editable", get(root, "editable"), f"{what} can be edited")
    if items(get(root, "__inputs")):
        board.note("dashboard/fixed-datasource", get(root, "__inputs"), f"{what} asks for its data source at import")
    variables = [node for node in items(get(get(root, "templating"), "list")) if isinstance(node, yaml.MappingNode)]
    for node in variables:
        name = text_of(get(node, "name"))
        if text_of(get(node, "type")) == "datasource":
            board.datasources.add(name)
        else:
            board.variables[name] = node
    for node in variables:
        _variable(board, node)
    ids: dict[str, str] = {}
    for panel in _panels(root):
        _panel(board, panel, ids)
    for annotation in items(get(get(root, "annotations"), "list")):
        _annotation(board, annotation)
    _choices(board, what)


def _null(node: yaml.Node | None) -> bool:
    return node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"))


def _panels(root: yaml.Node) -> Iterator[yaml.Node]:
    """Panels at the top, in rows, and in the ``rows`` of old dashboards; bounded, whatever the tree."""
    stack = [(node, 0) for node in reversed([*items(get(root, "panels")), *items(get(root, "rows"))])]
    count = 0
    while stack and count < MAX_PANELS:
        node, depth = stack.pop()
        if not isinstance(node, yaml.MappingNode):
            continue
        count += 1
        inner = items(get(node, "panels"))
        if not (inner and get(node, "type") is None):
            yield node
        if depth < MAX_PANEL_DEPTH:
            stack += [(one, depth + 1) for one in reversed(inner)]


# ---- Data sources and variables -------------------------------------------------------------------------------------


def _datasource(board: Board, node: yaml.Node | None, where: yaml.Node, what: str) -> bool:
    """Whether ``node`` names a Prometheus (or says nothing); reports a fixed one."""
    if node is None or _null(node):
        return True
    kind, uid = text_of(get(node, "type")), text_of(get(node, "uid"))
    if isinstance(node, yaml.ScalarNode):
        uid = text_of(node)
    if uid in _BUILT_IN or kind in _BUILT_IN:
        return False
    if kind not in ("", "prometheus"):
        return False
    match = _REFERENCE.fullmatch(uid)
    variable = next((group for group in match.groups() if group), "") if match else ""
    if not variable:
        board.note("dashboard/fixed-datasource", node, f"{what} has the fixed data source {brief(uid, 40)!r}")
    elif board.datasources and variable not in board.datasources:
        known = ", ".join(sorted(board.datasources))
        message = f"{what}: data source ${variable} is no variable of this dashboard (there are: {known})"
        board.note("dashboard/fixed-datasource", node, message)
    return True


def _variable(board: Board, node: yaml.Node) -> None:
    name = text_of(get(node, "name"))
    if text_of(get(node, "type")) != "query":
        return
    what = f"variable {name}"
    prometheus = _datasource(board, get(node, "datasource"), node, what)
    if text_of(get(node, "refresh")) != "2":
        board.note("dashboard/variable-refresh", get(node, "refresh") or node, f"{what}: refresh is not 2")
    query = get(node, "query")
    inner = query if isinstance(query, yaml.ScalarNode) else get(query, "query")
    if inner is None or not prometheus:
        return
    text = text_of(inner)
    board.used |= _references(text)
    values, result = _VALUE_OF.fullmatch(text), _RESULT_OF.fullmatch(text)
    if values is None and result is None:
        if text.strip() and not re.match(r"\s*(label_names|metrics|query_result)\b", text) and "(" in text:
            board.note("dashboard/variable-query", inner, f"{what}: {brief(text)} is no query of a variable")
        return
    expr = values["metric"] if values is not None else result["expr"] if result is not None else None
    if expr is None:
        return
    parsed = board.tools.parse(expr, variables=True)
    if isinstance(parsed, Problem):
        board.note("dashboard/variable-query", inner, f"{what}: {parsed.message}")
        return
    subject = Subject(parsed, inner, what, Role.PANEL, board.report, board.tools)
    on_metrics.check_names(subject)
    board.read += parsed.selectors()
    if values is not None:
        labels = board.tools.labels.of(parsed.root)
        if labels.lacks(values["label"]):
            board.note(
                "dashboard/variable-query", inner, f"{what}: {brief(expr)} has no label {values['label']}",
                needle=values["label"],
            )  # fmt: skip


def _references(text: str) -> set[str]:
    return {next(group for group in match.groups() if group) for match in _REFERENCE.finditer(text)}


def _choices(board: Board, what: str) -> None:
    """Are the variables there that the queries need, and does each do something?"""
    if board.read and not board.datasources:
        board.note("dashboard/datasource-variable", get(board.document.node, "templating"), f"{what} has none")
    levels = {selector.name.split(":")[0] for selector in board.read if selector.name.count(":") == 2}
    metrics = [board.tools.names.metric(selector.name) for selector in board.read]
    exporters = {metric.exporter for metric in metrics if metric is not None}
    levelled = {label for level in levels for label in LEVELS.get(level, ())}
    of_machines = any(NODE in LEVELS.get(level, ()) and MODEL_NAME not in LEVELS[level] for level in levels)
    wanted = []
    if Exporter.VLLM in exporters:
        wanted += [("model", "model_name"), ("instance",)]
    elif MODEL_NAME in levelled:
        wanted += [("model", "model_name")]
    if exporters & {Exporter.DCGM, Exporter.NODE} or of_machines:
        wanted += [("node", "instance", "host")]
    if any(
        metric is None and selector.name.count(":") != 2 for metric, selector in zip(metrics, board.read, strict=True)
    ):
        wanted += [("job", "instance")]
    templating = get(board.document.node, "templating")
    for names in wanted:
        if not any(name in board.variables for name in names):
            board.note("dashboard/variables", templating, f"{what} has no variable {' or '.join(names)}")
    for name, node in board.variables.items():
        if name not in board.used and text_of(get(node, "type")) in ("query", "custom", "interval", "textbox"):
            board.note("dashboard/unused-variable", get(node, "name") or node, f"variable {name} is used by no query")


# ---- Panels ---------------------------------------------------------------------------------------------------------


def _panel(board: Board, node: yaml.Node, ids: dict[str, str]) -> None:
    kind = text_of(get(node, "type"))
    title = text_of(get(node, "title"))
    number = text_of(get(node, "id"))
    what = f"panel {brief(title)!r}" if title.strip() else f"panel {number or '(without id)'}"
    if _null(get(node, "id")) or not number.isdigit():
        board.note("dashboard/panel-id", get(node, "id") or node, f"{what} has no id")
    elif number in ids:
        board.note("dashboard/panel-id", get(node, "id"), f"{what} has the id {number} of {ids[number]}")
    else:
        ids[number] = what
    board.used |= _references(text_of(get(node, "repeat")) and "$" + text_of(get(node, "repeat")))
    if kind in WITHOUT_QUERY or get(node, "libraryPanel") is not None:
        return
    if not title.strip():
        board.note("dashboard/title", get(node, "title") or node, f"{what} has no title")
    if not text_of(get(node, "description")).strip():
        board.note("dashboard/description", get(node, "title") or node, f"{what} has no description")
    datasource = get(node, "datasource")
    prometheus = _datasource(board, datasource, node, what)
    mixed = text_of(datasource) == "-- Mixed --" or text_of(get(datasource, "uid")) == "-- Mixed --"
    targets = [one for one in items(get(node, "targets")) if isinstance(one, yaml.MappingNode)]
    if not targets:
        if prometheus:
            board.note("dashboard/targets", get(node, "targets") or node, f"{what} has no query")
        return
    if not prometheus and not mixed:
        return
    _shown(board, node, kind, what)
    for target in targets:
        _target(board, target, datasource, what)


def _shown(board: Board, node: yaml.Node, kind: str, what: str) -> None:
    if kind not in WITH_UNIT:
        return
    defaults = get(get(node, "fieldConfig"), "defaults")
    overrides = [
        text_of(get(one, "id"))
        for override in items(get(get(node, "fieldConfig"), "overrides"))
        for one in items(get(override, "properties"))
    ]
    if not text_of(get(defaults, "unit")) and "unit" not in overrides:
        board.note("dashboard/unit", defaults or node, f"{what} has no unit")
    if not text_of(get(defaults, "noValue")):
        board.note("dashboard/no-value", defaults or node, f"{what} has no noValue")


def _target(board: Board, target: yaml.Node, of_panel: yaml.Node | None, what: str) -> None:
    own = get(target, "datasource")
    if not _datasource(board, own, target, f"{what}, query {text_of(get(target, 'refId'))}"):
        return
    if _null(own) and _null(of_panel):
        board.note("dashboard/fixed-datasource", target, f"{what} names no data source, so it takes Grafana's default")
    expr = get(target, "expr")
    if not text_of(expr).strip():
        board.note("dashboard/targets", expr or target, f"{what} has a query without an expression")
        return
    if expr is not None:
        _expression(board, expr, what, instant=text_of(get(target, "instant")) == "true")


def _expression(board: Board, node: yaml.Node, what: str, *, instant: bool) -> None:
    text = text_of(node)
    board.used |= _references(text)
    parsed = board.tools.parse(text, variables=True)
    if isinstance(parsed, Problem):
        board.note("expression/syntax", node, f"{what}: {parsed.message}")
        return
    subject = Subject(parsed, node, what, Role.PANEL, board.report, board.tools)
    for check_one in (on_grammar.check, on_metrics.check, on_labels.check, on_values.check, on_conditions.check):
        check_one(subject)
    on_rules.check_dependencies(subject, board.seen, {}, set())
    selectors = list(parsed.selectors())
    board.read += selectors
    if not instant:
        _rates(board, node, text, what)
    _matchers(board, node, selectors, what)


def _rates(board: Board, node: yaml.Node, text: str, what: str) -> None:
    for match in _RATE.finditer(text):
        window = match["range"].strip()
        fixed = not VARIABLE.search(window)
        if (fixed and match["call"] != "increase") or window in ("$__interval", "${__interval}"):
            board.note("dashboard/rate-interval", node, f"{what}: {match['call']}() over [{window}]", match["call"])


def _matchers(board: Board, node: yaml.Node, selectors: list[Selector], what: str) -> None:
    """A query none of whose selectors is cut to a choice, though one could be."""
    if any(VARIABLE.search(matcher.value) for selector in selectors for matcher in selector.matchers):
        return
    for selector in selectors:
        if VARIABLE.search(selector.name) or selector.name in ("stand_in", "ALERTS"):
            continue
        for label in _labels_of(board, selector):
            variable = next((name for name in _VARIABLE_OF[label] if name in board.variables), None)
            if variable is not None:
                board.note(
                    "dashboard/matchers", node, f"{what}: {selector.name or 'a selector'} does not use ${variable}",
                    selector.name, f'Add {label}=~"${variable}".',
                )  # fmt: skip
                return


def _labels_of(board: Board, selector: Selector) -> list[str]:
    """Labels of the selector for which there can be a variable, the most telling first."""
    names = board.tools.names
    if selector.name.count(":") == 2 and names.metric(selector.name) is None:
        recorded = board.tools.labels.of(selector)
        known = recorded.may if recorded.may is not None else frozenset(LEVELS.get(selector.name.split(":")[0], ()))
        return [label for label in (MODEL_NAME, NODE, INSTANCE) if label in known]
    metric = names.metric(selector.name)
    if metric is not None and names.owned(selector.name):
        if metric.exporter in (Exporter.SRE, Exporter.ENVOY, Exporter.PROMETHEUS):
            return []  # their instance is the guard or Envoy, which nobody picks
        return [label for label in (MODEL_NAME, INSTANCE, JOB) if label in metric.labels or label != MODEL_NAME]
    return [INSTANCE, JOB]


def _annotation(board: Board, node: yaml.Node) -> None:
    name = text_of(get(node, "name"))
    what = f"annotation {name!r}"
    if not _datasource(board, get(node, "datasource"), node, what):
        return
    expr = get(node, "expr") or get(get(node, "target"), "expr")
    if expr is None or not text_of(expr).strip():
        return
    board.used |= _references(text_of(expr))
    parsed = board.tools.parse(text_of(expr), variables=True)
    if isinstance(parsed, Problem):
        board.note("expression/syntax", expr, f"{what}: {parsed.message}")
        return
    on_metrics.check_names(Subject(parsed, expr, what, Role.PANEL, board.report, board.tools))
