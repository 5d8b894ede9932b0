"""
Whether figures are those of the work that was asked for, and two sides did the same: a build that answers with fewer
tokens, or has the prompts in its cache, is faster, and no better. One that sends no text shows no first token.

Only a PASS asks: who did more work and was not slower has nothing to explain, and a FAIL stays one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from sre.gate.cells import (
    CACHED_RATIO,
    EVENTS_PER_TOKEN,
    TOKENS_PER_ANSWER,
    WORDLESS_RATIO,
    MeasuredRun,
    collect,
)
from sre.gate.verdict import Cell

ANSWER_LENGTH = "answer_length"
CACHED_PROMPTS = "cached_prompts"
"""Their names in gate.baseline.may_differ."""
OTHER_PIECES = 2.0
"""
Times as many events per token, or as few, on one side: to be told. Never judged: a server may put several tokens into
one event, and under load does so more.
"""
MOST_WORDLESS = 0.5
"""Of the answers: with more, percentiles of TTFT are those of ends."""


def without_text(runs: Sequence[MeasuredRun], cell: Cell) -> str:
    """Why figures of ``cell`` are none of a stream: most answers had tokens and no text. "": they had text."""
    shares = collect(runs, replace(cell, metric=WORDLESS_RATIO)).values
    if not shares or fmean(shares) <= MOST_WORDLESS:
        return ""
    return (
        f"{fmean(shares):.0%} of the answers had tokens and no text: their first token was not seen, and their TTFT is "
        "their end; see what the server sends, or whether its tokens are special ones"
    )


def other_pieces(
    candidate: Sequence[MeasuredRun], reference: Sequence[MeasuredRun], cells: Sequence[Cell]
) -> tuple[str, ...]:
    """Sentences, one per stage and class of ``cells`` where one side sends far more events per token than the other."""
    found = []
    for stage, kind in dict.fromkeys((cell.stage, cell.request_class) for cell in cells):
        pieces = Cell(stage, kind, EVENTS_PER_TOKEN)
        ours, theirs = collect(candidate, pieces).values, collect(reference, pieces).values
        if not ours or not theirs:
            continue
        mine, yours = median(ours), median(theirs)
        if max(mine, yours) < OTHER_PIECES * min(mine, yours):
            continue
        found.append(
            f"{stage}/{kind}: {mine:.2g} content events per token of usage, in the reference {yours:.2g}: one of the "
            "two packs tokens together, sends text again, or counts tokens that it does not send; look at an answer of "
            "each before you compare their TTFT, TPOT and tokens per second"
        )
    return tuple(found)


def less_work(
    candidate: Sequence[MeasuredRun],
    reference: Sequence[MeasuredRun],
    cell: Cell,
    *,
    smallest_ratio: float,
    regression_ratio: float,
    may_differ: Sequence[str],
) -> str:
    """
    Why figures of ``cell`` that are no worse prove nothing. "": the work was no less, or nobody can tell.

    Args:
        smallest_ratio: Answers shorter by no more than this are as long.
        regression_ratio: What a PASS rules out, and as much must be missing of the prompts' work to hide it.
        may_differ: Of ANSWER_LENGTH and CACHED_PROMPTS, what was declared to make no difference.
    """
    why = "" if ANSWER_LENGTH in may_differ else _shorter(candidate, reference, cell, smallest_ratio)
    if why or CACHED_PROMPTS in may_differ:
        return why
    return _cached(candidate, reference, cell, regression_ratio)


def _shorter(
    candidate: Sequence[MeasuredRun], reference: Sequence[MeasuredRun], cell: Cell, smallest_ratio: float
) -> str:
    """The candidate's answers were shorter. "" too where the reference does not tell how long its own were."""
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


def _cached(
    candidate: Sequence[MeasuredRun], reference: Sequence[MeasuredRun], cell: Cell, regression_ratio: float
) -> str:
    """More of the candidate's prompts came from a cache. Where the reference does not tell, its own came from none."""
    share = replace(cell, metric=CACHED_RATIO)
    theirs, ours = collect(reference, share).values, collect(candidate, share).values
    if not ours:
        return ""
    mine, yours = median(ours), median(theirs) if theirs else 0.0
    if (1 - mine) * (1 + regression_ratio) > 1 - yours:
        return ""
    known = f"of the reference's {yours:.0%}" if theirs else "how much of the reference's is not told"
    return (
        f"{mine:.0%} of its prompts' tokens came from the server's cache, {known}: less work where "
        f"prompts are to differ; find out why, or declare {CACHED_PROMPTS} in gate.baseline.may_differ"
    )
