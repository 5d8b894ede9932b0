"""
What Markdown and HTML both tell, in order, as plain text: titles, sentences, tables. Neither escapes here.

The verdict comes first; a part that is missing says why.
"""

from __future__ import annotations

from collections.abc import Sequence

from sre.gate.bottleneck import Demand
from sre.gate.long_tail import named
from sre.gate.plan import SIDE_B
from sre.gate.report import budget_table, figures
from sre.gate.report.layout import Section, Table
from sre.gate.report.stage_table import stages
from sre.gate.result import GateResult
from sre.gate.self_checks import Check
from sre.gate.verdict import CellVerdict, Verdict
from sre.printable import one_line

WORDS = {Verdict.PASS: "PASS", Verdict.FAIL: "FAIL", Verdict.INCONCLUSIVE: "INCONCLUSIVE"}


def sections(result: GateResult) -> list[Section]:
    """Everything after the headline; parts that say nothing are left out."""
    made = [
        cells(result), stages(result), knee(result), long_tail(result), bottleneck(result), latency_budget(result),
        checks(result), environment(result),
    ]  # fmt: skip
    return [section for section in made if section.text or section.tables]


def headline(result: GateResult) -> str:
    partial = " (partial)" if result.interrupted else ""
    return f"Gate: {WORDS[result.verdict.verdict]}{partial}"


def decided(result: GateResult) -> str:
    """What decided, in a few words: the first cell and its reason, or the beginning of the summary."""
    verdict = result.verdict
    decisive = [cell for cell in verdict.cells if cell.gated and cell.verdict is verdict.verdict]
    # A whole that is cut short, or in doubt, is so for a reason of its own.
    if verdict.verdict is not Verdict.PASS and decisive and verdict.summary.startswith(str(decisive[0].cell)):
        others = len(decisive) - 1
        return f"{decisive[0].cell}: {decisive[0].reason.value.replace('_', ' ')}" + (f" (+{others})" if others else "")
    return verdict.summary.partition("; ")[0]


def opening(result: GateResult) -> list[str]:
    """Sentences under the headline: what decided, and what the run was."""
    verdict = result.verdict
    told = [verdict.summary] if verdict.summary else []
    if result.interrupted:
        told.append(
            f"Interrupted: {result.interrupted}. What follows is what had been measured; such a run never passes."
        )
    told.append(f"Reasons: {', '.join(reason.value for reason in verdict.reasons) or 'none'}.")
    against = f"baseline {verdict.baseline_name}" if verdict.baseline_name else "no baseline: objectives alone"
    runs = figures.counted(len(result.runs), "run")
    if any(run.side == SIDE_B for run in result.runs):
        runs, against = f"{runs} of two servers in turn", "no baseline needed"
    length = figures.seconds(result.wall_ended_at - result.wall_started_at)
    told.append(
        f"Model {one_line(result.model) or '(not recorded)'} at {result.url}; {runs}, {against};"
        f" {figures.utc(result.wall_started_at)}, {length}; {result.id}, sre {result.tool_version}."
    )
    return told


def cells(result: GateResult) -> Section:
    gated = [cell for cell in result.verdict.cells if cell.gated]
    others = [cell for cell in result.verdict.cells if not cell.gated]
    tables = tuple(_cell_table(group) for group in (gated, others) if group)
    text = ("No figure was judged.",) if not tables else ()
    if gated and others:
        text = (f"First the {figures.counted(len(gated), 'figure')} that decide, then those only looked at.",)
    return Section("cells", "What was judged", text, tables)


_ORDER = {Verdict.FAIL: 0, Verdict.INCONCLUSIVE: 1, Verdict.PASS: 2}


def _cell_table(group: Sequence[CellVerdict]) -> Table:
    ranked = sorted(group, key=lambda cell: _ORDER[cell.verdict])
    return Table(
        (
            "Verdict",
            "Stage",
            "Class",
            "Figure",
            "Candidate",
            "Against",
            "Worse by",
            "p (Holm)",
            "Noise",
            "Power",
            "Why",
        ),
        tuple(_cell_row(cell) for cell in ranked),
        frozenset({4, 5, 6, 7, 8, 9}),
        tuple(cell.verdict.value for cell in ranked),
    )


def _cell_row(judged: CellVerdict) -> tuple[str, ...]:
    name = judged.cell.metric
    if judged.bound is not None:
        least = name.startswith(("throughput", "output_tokens"))
        against = f"{'at least' if least else 'at most'} {figures.of_metric(name, judged.bound)}"
    else:
        against = figures.of_metric(name, figures.median(judged.baseline))
    return (
        WORDS[judged.verdict],
        judged.cell.stage,
        judged.cell.request_class,
        figures.metric(name),
        figures.of_metric(name, figures.median(judged.candidate)),
        against,
        figures.percent(judged.effect_ratio, signed=True),
        figures.probability(judged.p_value if judged.p_adjusted is None else judged.p_adjusted),
        figures.percent(judged.variation_ratio),
        figures.percent(judged.power_ratio),
        f"{judged.reason.value}: {judged.detail}" if judged.detail else judged.reason.value,
    )


def knee(result: GateResult) -> Section:
    found = result.knee
    if found is None:
        return _omitted(result, "knee", "Knee")
    rate = figures.number
    if found.estimate_rps is not None:
        said = (
            f"The service saturates at about {rate(found.estimate_rps)} requests/s (± {rate(found.resolution_rps)}):"
            f" it held {rate(found.good_rps)}/s and saturated at {rate(found.saturated_rps)}/s ({found.reason})."
        )
    elif found.good_rps is not None:
        said = f"No knee up to {rate(found.good_rps)} requests/s, the highest rate held ({found.reason})."
    elif found.saturated_rps is not None:
        said = f"Saturated at {rate(found.saturated_rps)} requests/s already; no rate tried was held ({found.reason})."
    else:
        said = f"No rate could be judged ({found.reason})."
    if found.reason == "client_limited":
        said += " The client was the limit of this search: what it saw may be its own knee."
    rows = tuple(
        (rate(probe.rate_rps), figures.yes_no(probe.saturated), probe.sign)
        for probe in sorted(found.probes, key=lambda probe: probe.rate_rps)
    )
    tables = (Table(("Requests/s", "Saturated", "Sign"), rows, frozenset({0})),) if rows else ()
    return Section("knee", "Knee", (said,), tables)


def long_tail(result: GateResult) -> Section:
    found = result.long_tail
    if found is None:
        return _omitted(result, "long_tail", "Long prompts beside short ones")
    rows = []
    for arm in found.arms:
        name = named(arm.policy).removeprefix("the ")
        if arm.skipped:
            rows.append((name, *[figures.NOTHING] * 9, f"skipped: {arm.skipped}"))
            continue
        pairs = (
            (arm.ttft_p99_alone_seconds, arm.ttft_p99_mixed_seconds),
            (arm.e2e_p99_alone_seconds, arm.e2e_p99_mixed_seconds),
            (arm.tpot_p99_alone_seconds, arm.tpot_p99_mixed_seconds),
        )
        times = [figures.seconds(figures.median(values)) for pair in pairs for values in pair]
        longs = (
            f"{arm.long_requests:,} longs of {figures.number(arm.long_prompt_tokens)} tokens, {arm.long_failed} failed"
        )
        rows.append((
            name, str(len(arm.ttft_p99_alone_seconds)), *times, figures.percent(arm.effect_ratio, signed=True),
            figures.probability(arm.p_value), longs,
        ))  # fmt: skip
    heading = (
        "Policy", "Runs", "TTFT P99 alone", "with longs", "End to end P99 alone", "with longs", "TPOT P99 alone",
        "with longs", "TTFT worse by", "p", "Longs",
    )  # fmt: skip
    best = f"Best policy for the short ones: {named(found.best_policy)}." if found.best_policy is not None else ""
    said = (
        f"Short prompts at {figures.number(found.qps)}/s, alone and with {figures.percent(found.long_share)} long ones"
        f" beside them. {sentence(found.detail)} {best}"
    ).strip()
    return Section(
        "long_tail", "Long prompts beside short ones", (said,), (Table(heading, tuple(rows), frozenset(range(1, 10))),)
    )  # fmt: skip


def bottleneck(result: GateResult) -> Section:
    found = result.bottleneck
    if found is None:
        return _omitted(result, "bottleneck", "Bottleneck")
    if found.binding is None:
        said = f"Nothing watched is shown to bind. {sentence(found.detail)}"
    else:
        margin = ""
        if found.margin_ratio is not None:
            margin = f"; the next resource would bind at {figures.number(1 + found.margin_ratio)} times that rate"
        if found.confirmed:
            said = f"{found.binding.value} binds (confirmed by the knee{margin}). {sentence(found.detail)}"
        else:
            said = f"Nothing is shown to bind; {found.binding.value} is the nearest{margin}. {sentence(found.detail)}"
    client = "The client is ruled out." if found.client_ruled_out else "The client is not ruled out."
    tables = []
    if found.demands:
        demands = tuple(
            (demand.resource.value, figures.seconds(demand.seconds_per_request), figures.number(demand.ceiling_rps),
             figures.percent(demand.fit_error_ratio), _highest(demand), demand.source,
             "yes" if demand.counts else f"no: {demand.why}")
            for demand in sorted(found.demands, key=lambda demand: (not demand.counts, demand.ceiling_rps))
        )  # fmt: skip
        heading = ("Resource", "Demand per request", "Ceiling/s", "Misfit", "Highest use", "Rests on", "May bind")
        tables.append(Table(heading, demands, frozenset({1, 2, 3, 4})))
    if found.limits:
        rows = tuple(
            (limit.resource.value, figures.percent(limit.highest), limit.stage, limit.source) for limit in found.limits
        )
        tables.append(Table(("Limit reached", "Highest", "Stage", "Rests on"), rows, frozenset({1})))
    unseen = (f"Not seen: {'; '.join(found.unseen)}.",) if found.unseen else ()
    return Section("bottleneck", "Bottleneck", (said.strip(), client, *unseen), tuple(tables))


def _highest(demand: Demand) -> str:
    """``91 % (812 of 3,500 MB/s)``"""
    share = figures.percent(demand.highest) if demand.highest else figures.NOTHING
    if demand.amount is None or demand.capacity is None:
        return share
    return f"{share} ({figures.number(demand.amount)} of {figures.number(demand.capacity)} {demand.unit})"


def latency_budget(result: GateResult) -> Section:
    found = result.latency_budget
    if found is None:
        return _omitted(result, "latency_budget", "Latency budget")
    return budget_table.latency_budget(found.stages)


def checks(result: GateResult) -> Section:
    """Those of the whole, then of stages those that do not hold, or could not be made: each once, with its places."""
    places: dict[Check, list[str]] = {check: [] for check in result.checks}
    for run in result.runs:
        for stage in run.stages:
            for check in stage.checks:
                if check.ok is not True:
                    places.setdefault(check, []).append(f"{stage.plan.name} (run {run.number + 1})")
    ranked = sorted(places.items(), key=lambda item: item[0].ok is not False)
    rows = tuple(
        (check.name, _places(where), figures.yes_no(check.ok, unknown="not made"), check.detail)
        for check, where in ranked
    )
    marks = tuple("fail" if check.ok is False else "" for check, _ in ranked)
    tables = (Table(("Check", "Where", "Holds", "Numbers"), rows, marks=marks),) if rows else ()
    return Section("checks", "Self-checks and notes", (*result.notes, *result.verdict.remarks), tables)


def _places(where: Sequence[str]) -> str:
    shown = ", ".join(where[:4])
    return f"{shown} and {len(where) - 4} more" if len(where) > 4 else shown or "the whole run"


def sentence(text: str) -> str:
    """``text`` as one: with a capital and an end."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?…" else ".")


def environment(result: GateResult) -> Section:
    rows = [*result.fingerprint.subject, *result.fingerprint.fields]
    if result.smoke is not None:
        smoke = result.smoke
        rows += [
            ("prompts sized by", smoke.prompt_sizing),
            ("token counts from the server", figures.yes_no(smoke.usage_reported)),
            ("longest prompt and answer", figures.number(smoke.max_model_len)),
        ]
    if result.calibration is not None:
        own = result.calibration
        limited = f"; the client is the limit: {own.reason}" if own.client_limited else ""
        rows.append((
            "client, calibrated",
            f"{figures.number(own.rate_rps)}/s: send lag P99 {figures.seconds(own.lag_p99_seconds)}, own TTFT P99"
            f" {figures.seconds(own.ttft_floor_p99_seconds)}, {own.cpu_seconds_per_1000_requests:.2f} CPU s per 1,000"
            f" requests{limited}",
        ))  # fmt: skip
    shown = {"knee", "long_tail", "bottleneck", "latency_budget"}
    rows += [(f"left out: {part}", why) for part, why in result.omitted.items() if part not in shown]
    return Section("environment", "Environment", (), (Table(("What", "Value"), tuple(rows)),) if rows else ())


def _omitted(result: GateResult, name: str, title: str) -> Section:
    why = result.omitted.get(name)
    return Section(name, title, (f"Left out: {why}.",) if why else ())
