"""Expressions over labels: as Python's where both know them, linear where Python's are not."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.settings.label_expression import LONGEST_EXPRESSION, ExpressionError, LabelExpression

ATOMS = st.sampled_from(["a", "b", "1", "-", ".", "[a-c]", "[^b1]", r"\d", r"\w", r"\S", r"\.", "[]a]", r"[\w-]", "é"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map("|".join)
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}"])).map(lambda p: f"({p[0]}){p[1]}")
        | inner.map(lambda text: f"(?:{text})")
    )


PATTERNS = st.recursive(ATOMS, _grown, max_leaves=6)


@given(PATTERNS, st.text(alphabet="ab1-.cé \n", max_size=8))
def test_matches_what_pythons_match(pattern: str, value: str) -> None:
    assert LabelExpression(pattern).matches(value) == (re.fullmatch(pattern, value, re.ASCII) is not None)


@given(st.text(max_size=30))
def test_any_text_is_an_expression_or_a_sentence(text: str) -> None:
    try:
        LabelExpression(text).matches("value")
    except ExpressionError:
        return


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|aa)+b", "(a|a?)+b", "(.*)(.*)(.*)(.*)(.*)b", "(a{0,20}){0,5}b"])
def test_what_explodes_elsewhere_takes_no_time_here(pattern: str) -> None:
    try:
        expression = LabelExpression(pattern)
    except ExpressionError:
        return
    began = time.monotonic()
    assert not expression.matches("a" * 1000)
    assert time.monotonic() - began < 20, "elsewhere: years"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "without its )"), (")", "too many"), ("a**", "repeats"), ("*a", "nothing before"),
        ("(?i)a", "only plain"), (r"\1", "not known"), ("[a", "without its ]"), ("[z-a]", "range"),
        ("a{3,2}", "less than"), ("a\\", "backslash"), ("a^b", "inside"), ("a{0}", "nothing"),
        ("[[:alpha:]]", "write the characters"), ("(" * 30 + ")" * 30, "in one"),
        ("x" * (LONGEST_EXPRESSION + 1), "longer"), ("(abc){500}", "states"),
    ],
)  # fmt: skip
def test_what_is_refused_is_said(pattern: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(said)):
        LabelExpression(pattern)


def test_the_whole_value_must_match_with_or_without_anchors() -> None:
    for pattern in ("n1", "^n1$", "^n1", "n1$"):
        assert LabelExpression(pattern).matches("n1")
        assert not LabelExpression(pattern).matches("n12")
    assert LabelExpression(r"n1\$").matches("n1$")
    assert LabelExpression("").matches("")
    assert not LabelExpression("").matches("a")
