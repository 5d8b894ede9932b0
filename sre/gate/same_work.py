"""
Whether two sides did the same work: a build that answers with fewer tokens is faster, and no better.

Only a PASS asks: who did more work and was not slower has nothing to explain, and a FAIL stays one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from sre.gate.cells import TOKENS_PER_ANSWER, MeasuredRun, collect
from sre.gate.verdict import Cell

ANSWER_LENGTH = "answer_length"
"""Its name in gate.baseline.may_differ."""


def less_work(
    candidate: Sequence[MeasuredRun], reference: Sequence[MeasuredRun], cell: Cell, smallest_ratio: float
) -> str:
    """
    Why figures of ``cell`` that are no worse prove nothing: the candidate's answers were shorter. "": they were not, or
    the reference does not tell how long its own were.

    Args:
        smallest_ratio: A smaller difference is none.
    """
    tokens = replace(cell, metric=TOKENS_PER_ANSWER)
    theirs, ours = collect(reference, tokens).values, collect(candidate, tokens).values
    if not theirs or median(theirs) <= 0:
        return ""
    wanted = median(theirs)
    remedy = f"find out why, or declare {ANSWER_LENGTH} in gate.baseline.may_differ"
    if not ours:
        return f"the reference's answers had {wanted:.4g} tokens, how long these were is not told (no usage): {remedy}"
    if median(ours) >= wanted * (1 - smallest_ratio):
        return ""
    return f"its answers had {median(ours):.4g} tokens, those of the reference {wanted:.4g}: less work; {remedy}"
