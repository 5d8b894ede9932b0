"""Documents: what a file may be, where findings stand, what comments disable, and that no text is too much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sre.monitoring.lint import CHECKS, File, LintOptions, NotRules, lint, lint_files
from tests.monitoring.lint.support import ALERT, checks

EXAMPLES = Path(__file__).with_name("examples")
RULES = ALERT.format(expr="          up == 2", for_="5m", summary='"x"')
DASHBOARD = (EXAMPLES / "dashboard/unit/fail.json").read_text("utf-8")


def places(text: str, options: LintOptions | None = None) -> list[tuple[int, int, str]]:
    return [(one.line, one.column, one.check) for one in lint(text, "file", options)]


def wrapped(kind: str, name: str, text: str) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}, "data": {name: text}})


# ---- What a file may be ---------------------------------------------------------------------------------------------


def test_a_rule_file_says_line_and_column_of_the_piece() -> None:
    assert places(RULES) == [(6, 17, "expression/impossible")]


def test_a_prometheus_rule_among_other_objects() -> None:
    groups = "\n".join("  " + line for line in RULES.splitlines())
    text = (
        "apiVersion: v1\nkind: Service\nmetadata: {name: x}\n---\n"
        f"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {{name: x}}\nspec:\n{groups}\n"
    )
    assert places(text) == [(14, 19, "expression/impossible")]


def test_a_list_of_prometheus_rules() -> None:
    rule = {"kind": "PrometheusRule", "spec": yaml.safe_load(RULES)}
    text = yaml.safe_dump({"kind": "PrometheusRuleList", "items": [rule, rule]})
    assert checks(lint(text, "x")).count("expression/impossible") == 2


def test_rules_in_a_config_map_keep_their_places() -> None:
    body = "\n".join("    " + line for line in RULES.splitlines())
    text = f"apiVersion: v1\nkind: ConfigMap\ndata:\n  other: text\n  rules.yml: |\n{body}\n"
    assert places(text) == [(11, 21, "expression/impossible")]


def test_a_dashboard_in_a_config_map() -> None:
    body = "\n".join("    " + line for line in DASHBOARD.splitlines())
    text = f"apiVersion: v1\nkind: ConfigMap\ndata:\n  board.json: |\n{body}\n"
    plain = places(DASHBOARD)
    assert [(line + 4, column + 4, check) for line, column, check in plain] == places(text)
    assert set(checks(lint(wrapped("ConfigMap", "a.json", DASHBOARD), "x"))) == {"dashboard/unit"}


def test_a_dashboard_as_grafanas_api_gives_it() -> None:
    text = json.dumps({"meta": {"slug": "x"}, "dashboard": json.loads(DASHBOARD)})
    assert checks(lint(text, "x")) == ["dashboard/unit"]


def test_json_may_hold_what_yaml_refuses() -> None:
    board = json.loads(DASHBOARD)
    board["title"] = "tab\tand \U0001f600"
    assert checks(lint(json.dumps(board, indent="\t"), "x")) == ["dashboard/unit"]


def test_a_byte_order_mark_and_windows_line_ends() -> None:
    assert places("\ufeff" + RULES.replace("\n", "\r\n")) == [(6, 17, "expression/impossible")]


@pytest.mark.parametrize(
    "text",
    ["", "# nothing", "hello", "a: 1", "[1, 2]", "{}", "null", "kind: Service", "groups_: []", '{"a": 1}', "\x00\x01",
     "kind: ConfigMap\ndata: {a: b}", "---\n---\n", "5"],
)  # fmt: skip
def test_what_is_no_rules_is_said_to_be_none(text: str) -> None:
    with pytest.raises(NotRules, match=r"^file: .*(holds no rules|is binary)"):
        lint(text, "file")


def test_too_much_text_is_refused() -> None:
    with pytest.raises(NotRules, match="more than 16,777,216"):
        lint("#" * (16 * 1024 * 1024 + 1), "file")


@pytest.mark.parametrize(
    ("text", "line"),
    [("groups:\n  - name: a\n   rules: []\n", 3), ("groups: [\n", 2), ('{"panels": [}', 1),
     ("groups:\n\t- name: a\n", 2),
     ('{"panels": [1,\n 2', 2), ("groups: *nothing\n", 1), ("groups: a\x07\n", 1)],
)  # fmt: skip
def test_broken_text_is_a_finding_with_its_place(text: str, line: int) -> None:
    found = lint(text, "file")
    assert [(one.check, one.line) for one in found] == [("file/syntax", line)]


@pytest.mark.parametrize(
    "text",
    ["groups: 5", "groups: {}", "groups: [5]", "groups: [{}]", "groups: [{name: a, rules: {}}]",
     "groups: [{name: a, rules: [5, {}, {alert: A}, {expr: up}, {alert: [], expr: {}}]}]",
     "groups: [{name: a, rules: [{alert: A, record: b, expr: up}]}]",
     "groups: [{name: a, rules: [{record: b, expr: up, for: 5m, annotations: {a: b}}]}]",
     "groups: [{name: a, rules: [{alert: A, expr: up == 0, labels: [a], annotations: 5}]}]",
     "groups: [{name: a, rules: [{alert: A, expr: up == 0, labels: {a-b: c, d: {e: f}}}]}]",
     "groups: [{name: a, interval: soon, rules: [{alert: A, expr: up == 0, for: '1'}]}]",
     "groups: [{name: [], rules: []}]", "groups:\n? [a]\n: b\n"],
)  # fmt: skip
def test_wrong_forms_are_findings(text: str) -> None:
    assert {"file/structure", "file/unknown-key"} & set(checks(lint(text, "file")))


def test_an_unknown_key_names_the_nearest() -> None:
    found = lint(RULES.replace("for: 5m", "fro: 5m"), "file")
    assert "did you mean for?" in next(one.message for one in found if one.check == "file/unknown-key")


# ---- Bombs ----------------------------------------------------------------------------------------------------------


def test_aliases_are_not_expanded_without_bound() -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12))
    with pytest.raises(NotRules):
        lint(f"l0: &l0 [x]\n{levels}\n", "file")
    rules = "r: &r {alert: A, expr: up == 0}\nl: &l [" + ", ".join(["*r"] * 1000) + "]\n"
    found = lint(rules + "groups: [" + ", ".join(["{name: a, rules: *l}"] * 1000) + "]\n", "file")
    assert any("more than 1,000 rules" in one.message for one in found)


def test_an_alias_to_itself() -> None:
    lint("groups: &g [{name: a, rules: *g}]", "file")
    lint("a: &a {panels: [*a], title: x}\npanels: [*a, &b {panels: [*b]}]\ntemplating: *a", "file")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", '{"a":', '{"panels":['])
def test_deep_nesting(opening: str) -> None:
    try:
        found = lint(opening * 100_000, "file")
    except NotRules:
        return
    assert checks(found) == ["file/syntax"]


@pytest.mark.parametrize(
    "expr",
    ["(" * 20_000 + "up" + ")" * 20_000, "up" + " or up" * 5_000, "-" * 500 + "up", "abs(" * 200 + "up" + ")" * 200,
     "up{a='" + "x" * 100_000 + "'}", "up" + " + up" * 300, "((((", "up{{{", "up[", "'"],
)  # fmt: skip
def test_expressions_that_are_too_much(expr: str) -> None:
    found = lint(ALERT.format(expr=" " * 10 + expr, for_="5m", summary='"x"'), "file")
    assert "expression/syntax" in checks(found)


def test_many_findings_are_cut_off_and_say_so() -> None:
    rule = "      - {alert: a b, expr: up ==}\n"
    found = lint("groups:\n  - name: a\n    rules:\n" + rule * 3_000, "file")
    assert len(found) == 10_000
    assert any("only the first 10,000" in one.message for one in found)


@pytest.mark.parametrize("url", ["http://[::1", "//]", "[", "#", "runbooks/"])
def test_any_address_of_a_runbook(url: str) -> None:
    text = RULES.replace("https://example.org/ExampleAlert.md", repr(url))
    assert {"alert/runbook-url", "alert/runbook-file"} & set(checks(lint(text, "file", LintOptions(runbooks={}))))


# ---- Any text -------------------------------------------------------------------------------------------------------

WORDS = [
    "groups:", "- name: a", "rules:", "- alert: A", "- record: a:b:c", "expr:", "up == 0", "for: 5m",
    "labels:", "{", "}", "[", "]", '"', "'", "|", ">", "&a", "*a", "<<: *a", "{{ $labels.x }}", "{{",
    "sum by (a) (rate(x[5m]))", ",", ":", "annotations:", "\n", "\n  ", "\n    ", "\n      ",
    "kind: PrometheusRule", "spec:", "---\n", "# sre-lint: disable=x", "panels:", '"panels": [', '"targets"',
    '"expr": "up"', "templating:", "null", "5", "kind: ConfigMap", "data:",
]  # fmt: skip


def no_surprise(text: str) -> None:
    try:
        found = lint(text, "file", LintOptions(runbooks={}))
    except NotRules:
        return
    assert all(one.line >= 1 and one.column >= 1 and one.check in CHECKS for one in found)


@given(st.text())
def test_any_text_is_answered(text: str) -> None:
    no_surprise(text)


@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join))
def test_any_words_of_rules_are_answered(text: str) -> None:
    no_surprise(text)


@given(st.binary().map(lambda data: data.decode("utf-8", "replace")))
def test_any_bytes_are_answered(text: str) -> None:
    no_surprise(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=30)  # trees are slow to draw
@given(
    st.dictionaries(
        st.sampled_from(
            ["panels", "templating", "title", "uid", "rows", "groups", "annotations", "kind", "spec", "list"]
        ),
        json_values
        | st.lists(st.fixed_dictionaries({"type": st.just("stat"), "targets": json_values, "id": json_values})),
    ),
    st.booleans(),
)
def test_any_tree_is_answered(tree: dict[str, Any], as_json: bool) -> None:
    no_surprise(json.dumps(tree) if as_json else yaml.safe_dump(tree))


@given(st.text(alphabet="up{}[]()'\"`\\=~!<>+-*/%^@ ,.:orandbyxm15_$#\n", max_size=60))
def test_any_expression_is_answered(expr: str) -> None:
    rule = {"alert": "A", "expr": expr, "annotations": {"summary": "{{" + expr + "}}"}}
    no_surprise(json.dumps({"groups": [{"name": "a", "rules": [rule]}]}))
    no_surprise(json.dumps({"panels": [{"id": 1, "type": "stat", "targets": [{"expr": expr}]}]}))


# ---- Comments -------------------------------------------------------------------------------------------------------

TWO = """\
groups:
  - name: a
    rules:
{first}      - alert: First
        expr: up == 2
{second}      - alert: Second
        expr: up == 2
"""
ONLY = LintOptions(only=frozenset({"expression/impossible", "file/disable-comment"}))
COMMENT = "# sre-lint: disable=expression/impossible a test of the guard\n"


def found_in(text: str) -> list[tuple[int, str]]:
    return [(one.line, one.check) for one in lint(text, "file", ONLY)]


def test_a_comment_is_about_the_rule_below_it() -> None:
    above_first = TWO.format(first="      " + COMMENT, second="")
    assert found_in(above_first) == [(8, "expression/impossible")]
    above_second = TWO.format(first="", second="      " + COMMENT)
    assert found_in(above_second) == [(5, "expression/impossible")]


def test_a_comment_inside_a_rule_is_about_that_rule() -> None:
    inside = TWO.format(first="", second="        " + COMMENT)
    assert found_in(inside) == [(8, "expression/impossible")]
    at_its_end = TWO.format(first="", second="").replace("up == 2\n", "up == 2  " + COMMENT, 1)
    assert found_in(at_its_end) == [(7, "expression/impossible")]


def test_a_comment_above_a_group_is_about_all_of_it() -> None:
    assert found_in(TWO.format(first="", second="").replace("  - name", "  " + COMMENT + "  - name")) == []


def test_other_checks_go_on() -> None:
    other = COMMENT.replace("impossible", "unit")
    assert [check for _, check in found_in(TWO.format(first="      " + other, second=""))] == [
        "expression/impossible"
    ] * 2


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        ("# sre-lint: disable=expression/impossible", "gives no reason"),
        ("# sre-lint: disable=expression/imposible because", "did you mean expression/impossible?"),
        ("# sre-lint: disable= because", "names no check"),
        ("# sre-lint: ignore everything", "is no order to the lint"),
    ],
)
def test_a_wrong_comment_is_a_finding_and_disables_nothing(comment: str, problem: str) -> None:
    found = lint(TWO.format(first=f"      {comment}\n", second=""), "file", ONLY)
    assert [one.check for one in found] == ["file/disable-comment", "expression/impossible", "expression/impossible"]
    assert problem in found[0].message


def test_a_comment_above_nothing_is_a_finding() -> None:
    assert found_in(TWO.format(first="", second="") + COMMENT)[-1] == (8, "file/disable-comment")


# ---- Several files --------------------------------------------------------------------------------------------------


def test_files_know_each_others_records() -> None:
    records = "groups: [{name: a, rules: [{record: 'job:errors:rate5m', expr: 'sum by (job) (rate(x_total[5m]))'}]}]"
    alerts = "groups: [{name: b, rules: [{alert: A, expr: 'job:errors:rate5m > 1 and job:error:rate5m > 1'}]}]"
    only = LintOptions(only=frozenset({"rule/dependency"}))
    assert lint(alerts, "b", only) == []  # the level job is nobody's here: another file defines it
    first, second = lint_files([File("a", records), File("b", alerts)], only)
    assert not isinstance(first, NotRules)
    assert not isinstance(second, NotRules)
    assert first == []
    assert "did you mean job:errors:rate5m?" in second[0].message


def test_one_bad_file_does_not_hide_the_others() -> None:
    first, second = lint_files([File("a", "nothing"), File("b", RULES)], LintOptions())
    assert isinstance(first, NotRules)
    assert not isinstance(second, NotRules)
    assert checks(second) == ["expression/impossible"]


def test_duplicates_are_found_across_files() -> None:
    first, second = lint_files([File("a", RULES), File("b", RULES)], LintOptions(only=frozenset({"rule/duplicate"})))
    assert first == []
    assert not isinstance(second, NotRules)
    assert "a:4" in second[0].message


def test_what_few_alerts_of_a_file_have_no_other_needs() -> None:
    rule = {"expr": "up == 0", "for": "5m", "labels": {"severity": "page"}}
    board = {"annotations": {"dashboard_url": "/d/x"}}
    only = LintOptions(only=frozenset({"alert/dimension", "alert/dashboard-url"}))

    def found(*alerts: dict[str, Any]) -> list[str]:
        rules = [{"alert": f"A{index}", **one} for index, one in enumerate(alerts)]
        return checks(lint(yaml.safe_dump({"groups": [{"name": "a", "rules": rules}]}), "x", only))

    assert found(rule, rule) == []
    assert found(rule, rule | board) == []
    assert found(rule, rule | board, rule | board) == ["alert/dashboard-url"]
