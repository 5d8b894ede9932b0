"""
Whether figures are those of the work that was asked for, and two sides did the same: a build that cuts prompts, answers
with fewer tokens, or has the prompts in its cache, is faster, and no better. One without text shows no first token.

Every class of a stage is asked, not only the one that is judged: they share the server, and what one of them is spared
is there for the others.

Only a PASS asks: who did more work and was not slower has nothing to explain, and a FAIL stays one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from sre.gate.cells import (
    CACHED_RATIO,
    EVENTS_PER_ANSWER,
    EVENTS_PER_TOKEN,
    FAILED_RATIO,
    PROMPT_TOKENS_PER_ANSWER,
    TOKENS_PER_ANSWER,
    WORDLESS_RATIO,
    MeasuredRun,
    collect,
    same_measurement,
)
from sre.gate.summary import ALL
from sre.gate.verdict import Cell

ANSWER_LENGTH = "answer_length"
CACHED_PROMPTS = "cached_prompts"
PROMPT_TOKENS = "prompt_tokens"
"""Their names in gate.baseline.may_differ."""
OTHER_PIECES = 2.0
"""
Times as many events per token, or as few, on one side: to be told. Never judged: a server may put several tokens into
one event, and under load does so more.
"""
FEW_EVENTS = 0.5
"""Of the reference's content events per answer: with fewer, answers of unknown length are not taken to be as long."""
MORE_UNSERVED = 0.05
"""Larger share of failed requests in a class beside the judged one: work that was not done. Convention."""
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


def copied(candidate: Sequence[MeasuredRun], reference: Sequence[MeasuredRun]) -> tuple[str, ...]:
    """A sentence where runs of the candidate are runs of the reference; empty: none is."""
    count = sum(any(same_measurement(one, other) for other in reference) for one in candidate)
    if not count:
        return ()
    return (
        f"{count} of the {len(candidate)} runs have the times of a run of the reference, to the last bit: the same "
        "measurement on both sides shows nothing of a new build",
    )


def unknown_length(
    candidate: Sequence[MeasuredRun],
    reference: Sequence[MeasuredRun],
    cells: Sequence[Cell],
    may_differ: Sequence[str],
) -> tuple[str, ...]:
    """Sentences, one per stage and class of ``cells`` whose prompts or answers may be longer on one side."""
    lengths = [
        (what, metric)
        for what, metric, declared in (
            ("prompts", PROMPT_TOKENS_PER_ANSWER, PROMPT_TOKENS), ("answers", TOKENS_PER_ANSWER, ANSWER_LENGTH),
        )
        if declared not in may_differ
    ]  # fmt: skip
    sides = {"the candidate": candidate, "the reference": reference}
    found = []
    for stage, kind in dict.fromkeys((cell.stage, cell.request_class) for cell in cells):
        # The share without text has a value where anything was answered; where nothing was, there is no length either.
        if all(_known(runs, Cell(stage, kind, WORDLESS_RATIO)) for runs in sides.values()):
            why = _no_lengths(sides, [(what, Cell(stage, kind, metric)) for what, metric in lengths])
            found += [f"{stage}/{kind}: {why}"] if why else []
    return tuple(found)


def _no_lengths(sides: Mapping[str, Sequence[MeasuredRun]], lengths: Sequence[tuple[str, Cell]]) -> str:
    """Which lengths are not known, of which side, and why; "": all are."""
    causes: dict[str, list[str]] = {}
    old: list[str] = []
    for what, cell in lengths:
        unknown = [whose for whose, runs in sides.items() if not _known(runs, cell)]
        kept = [whose for whose in unknown if _kept(sides[whose], cell)]
        older = [whose for whose in unknown if whose not in kept]
        if kept:
            causes.setdefault(f"not told by {' and '.join(kept)} (usage in tokens)", []).append(what)
        if older:
            causes.setdefault(f"not kept in {' and '.join(older)}, made by an older sre", []).append(what)
            old.append(what)
    if not causes:
        return ""
    each = "; ".join(f"the length of {' and '.join(whats)} is {cause}" for cause, whats in causes.items())
    remedy = f"; accept a new baseline to have {' and '.join(old)} compared" if old else ""
    return f"{each}: whether both did the same work is not known{remedy}"


def _known(runs: Sequence[MeasuredRun], cell: Cell) -> bool:
    return bool(collect(runs, cell).values)


def _kept(runs: Sequence[MeasuredRun], cell: Cell) -> bool:
    """Whether the metric has a place, be it an empty one. In a baseline of a version before the metric it has none."""
    stages = [stage for run in runs if (stage := run.stage(cell.stage)) is not None]
    classes = [kind for stage in stages if (kind := stage.classes.get(cell.request_class)) is not None]
    return any(cell.metric in kind.values for kind in classes)


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
        smallest_ratio: Prompts and answers shorter by no more than this are as long.
        regression_ratio: What a PASS rules out, and as much must be missing of the prompts' work to hide it.
        may_differ: Of PROMPT_TOKENS, ANSWER_LENGTH and CACHED_PROMPTS, what was declared to make no difference.
    """
    for kind in _classes(reference, cell):
        one = replace(cell, request_class=kind)
        why = (
            ("" if kind == cell.request_class else _unserved(candidate, reference, one))
            or ("" if PROMPT_TOKENS in may_differ else _shorter_prompts(candidate, reference, one, smallest_ratio))
            or ("" if ANSWER_LENGTH in may_differ else _shorter(candidate, reference, one, smallest_ratio))
            or ("" if CACHED_PROMPTS in may_differ else _cached(candidate, reference, one, regression_ratio))
        )
        if why:
            return why if kind == cell.request_class else f"class {kind}, of the same stage: {why}"
    return ""


def _classes(reference: Sequence[MeasuredRun], cell: Cell) -> list[str]:
    """Those of the cell's stage, its own first. The sum of them only where it is judged or there is nothing else."""
    stages = [stage for run in reference if (stage := run.stage(cell.stage)) is not None]
    names = dict.fromkeys(name for stage in stages for name in stage.classes if name not in (ALL, cell.request_class))
    return [cell.request_class, *names]


def _unserved(candidate: Sequence[MeasuredRun], reference: Sequence[MeasuredRun], cell: Cell) -> str:
    """More requests of a class beside the judged one failed: in its own class they are inside every figure."""
    failed = replace(cell, metric=FAILED_RATIO)
    theirs, ours = collect(reference, failed).values, collect(candidate, failed).values
    if not theirs or not ours or median(ours) <= median(theirs) + MORE_UNSERVED:
        return ""
    mine, yours = median(ours), median(theirs)
    return f"{mine:.0%} of its requests failed, of the reference's {yours:.0%}: less work; find out why"


def _shorter_prompts(
    candidate: Sequence[MeasuredRun], reference: Sequence[MeasuredRun], cell: Cell, smallest_ratio: float
) -> str:
    """The candidate read shorter prompts, by its own count. "" too where the reference does not tell of its own."""
    tokens = replace(cell, metric=PROMPT_TOKENS_PER_ANSWER)
    theirs, ours = collect(reference, tokens).values, collect(candidate, tokens).values
    if not theirs or (not ours and _unanswered(candidate, cell)):
        return ""
    remedy = f"find out why, or declare {PROMPT_TOKENS} in gate.baseline.may_differ"
    wanted = median(theirs)
    if not ours:
        return f"the reference's prompts had {_tokens(wanted)} tokens, of these none is told (no usage): {remedy}"
    if median(ours) >= wanted * (1 - smallest_ratio):
        return ""
    return (
        f"its prompts had {_tokens(median(ours))} tokens by its usage, those of the reference {_tokens(wanted)}: "
        f"cut short, or less work; {remedy}"
    )


def _shorter(
    candidate: Sequence[MeasuredRun], reference: Sequence[MeasuredRun], cell: Cell, smallest_ratio: float
) -> str:
    """Its answers were shorter: by tokens, or where the reference does not tell these, far shorter by events."""
    tokens = replace(cell, metric=TOKENS_PER_ANSWER)
    theirs, ours = collect(reference, tokens).values, collect(candidate, tokens).values
    remedy = f"find out why, or declare {ANSWER_LENGTH} in gate.baseline.may_differ"
    if not theirs or median(theirs) <= 0:
        return _fewer_events(candidate, reference, cell, remedy)
    wanted = median(theirs)
    if not ours:
        if _unanswered(candidate, cell):
            return ""
        return f"the reference's answers had {_tokens(wanted)} tokens, of these none is told (no usage): {remedy}"
    if median(ours) >= wanted * (1 - smallest_ratio):
        return ""
    return (
        f"its answers had {_tokens(median(ours))} tokens, those of the reference {_tokens(wanted)}: less work; {remedy}"
    )


def _fewer_events(
    candidate: Sequence[MeasuredRun], reference: Sequence[MeasuredRun], cell: Cell, remedy: str
) -> str:  # fmt: skip
    """
    Of answers without a count of tokens: far fewer events. A server may pack tokens together, so that a few less say
    nothing; where it packs twice as many the sides cannot be compared without a count.
    """
    events = replace(cell, metric=EVENTS_PER_ANSWER)
    theirs, ours = collect(reference, events).values, collect(candidate, events).values
    if not theirs or not ours or median(ours) >= FEW_EVENTS * median(theirs):
        return ""
    return (
        f"its answers had {median(ours):.3g} content events, those of the reference {median(theirs):.3g}, and how many "
        f"tokens is not told (no usage): less work, or packed together; make both send usage, {remedy}"
    )


def _tokens(count: float) -> str:
    return f"{count:.0f}" if count >= 1000 else f"{count:.4g}"


def _unanswered(runs: Sequence[MeasuredRun], cell: Cell) -> bool:
    """All requests of the class failed: of no answer a length is missing."""
    failed = collect(runs, replace(cell, metric=FAILED_RATIO)).values
    return bool(failed) and min(failed) >= 1


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
