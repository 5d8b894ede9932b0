"""
The report's pictures as SVG, drawn by matplotlib (extra ``gate``), which is imported here only when one is drawn.

The same result gives the same bytes: ids are hashed with a fixed salt, no date is written. Colours are mid-tones that
read on white and on near-black; text takes the page's own colour. A time that is infinite is drawn as a mark at the
upper edge, named "failed", never left out.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sre.gate.long_tail import arm_title
from sre.gate.report import figures, stage_table
from sre.gate.result import GateResult, StageResult
from sre.gate.summary import ALL
from sre.gate.verdict import CellVerdict
from sre.printable import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#2f7ed8", "#d9822b", "#3d9a50", "#b0569e", "#8d8d2a", "#4aa3a3", "#c0504d", "#7a6fd0")
BAD = "#d64545"
INK = "#808080"
"""Axes and text are drawn in it; the page replaces it by its own colour of text."""

WIDTH_INCHES = 9
WIDTH_REM = 62
"""How wide a picture of that width is shown at most; a narrower one in proportion, so that letters have one size."""

MOST_STAGES = 16
MOST_CELLS = 12
MOST_ARMS = 6
LONGEST_NAME = 40


def draw(result: GateResult) -> dict[str, list[tuple[str, str]]]:
    """
    Section name → (caption, SVG element) of every picture this result has data for.

    ImportError without matplotlib.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.hashsalt": "sre-gate", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10,
        "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "text.color": INK,
        "axes.titlecolor": INK, "axes.grid": True, "grid.color": INK, "grid.alpha": 0.25, "legend.framealpha": 0,
        "legend.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False,
        "axes.titlesize": 11, "axes.titleweight": "bold",
    }  # fmt: skip
    found: dict[str, list[tuple[str, str]]] = {}
    pictures: tuple[tuple[str, str, Callable[[Figure, GateResult], bool]], ...] = (
        ("cells", "Each dot is one run; a line marks the median, dashes an objective.", _runs),
        ("stages", "Throughput and latency over the rate offered; medians over the runs.", _rates),
        ("stages", "Requests in flight over the stage, one line per run.", _in_flight),
        (
            "long_tail",
            "Share of the short requests answered within a time, alone and with long ones beside them.",
            _shares,
        ),
    )
    with matplotlib.rc_context(style):
        for index, (section, caption, paint) in enumerate(pictures):
            figure = Figure(figsize=(9, 3.6), layout="constrained")
            if paint(figure, result):
                found.setdefault(section, []).append((caption, _svg(figure, index)))
    return found


def _svg(figure: Figure, index: int) -> str:
    """The element alone, without declaration, date or metadata; its ids differ from those of the other pictures."""
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    share = figure.get_size_inches()[0] / WIDTH_INCHES
    text = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', rf'\1 style="max-width: {share * WIDTH_REM:.1f}rem"', text, count=1)
    text = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="', f'id="p{index}-', text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#p{index}-", text)
    return text.replace(INK, "currentColor")


def _named(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def _failed_at(axes: Axes, xs: Sequence[float], color: str) -> None:
    """Marks at the upper edge for what is infinite."""
    if xs:
        axes.plot(
            xs, [0.97] * len(xs), "x", color=color, markersize=9, markeredgewidth=2.2, clip_on=False,
            transform=axes.get_xaxis_transform(), zorder=5,
        )  # fmt: skip


def _legend(axes: Axes, **options: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, labels, fontsize=8.5, **options)


def _time_axis(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic where the values span more than a decade and a half; ticks in ms or s."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    positive = [value for value in values if 0 < value < math.inf]
    if positive and max(positive) / min(positive) > 30:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif positive:
        axes.set_ylim(0, max(positive) * 1.15)
    else:
        axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: figures.seconds(value)))


def _rates(figure: Figure, result: GateResult) -> bool:
    """Left: answered over offered. Right: TTFT percentiles, with the knee and what the objectives allow."""
    points: dict[str, list[tuple[float, list[StageResult]]]] = {}
    for (side, _, arm), results in stage_table.measured(result).items():
        ran = [stage for stage in results if stage.summary is not None]
        if ran and not arm and ran[0].plan.kind.value in ("staircase", "knee"):
            points.setdefault(side, []).append((ran[0].plan.rate_rps, ran))
    if not points:
        return False
    left, right = figure.subplots(1, 2)
    top = max(rate for series in points.values() for rate, _ in series)
    left.plot([0, top], [0, top], "--", color=INK, linewidth=1, label="all answered")
    times: list[float] = []
    for index, (side, series) in enumerate(sorted(points.items())):
        series.sort(key=lambda point: point[0])
        rates = [rate for rate, _ in series]
        label = "" if len(points) == 1 else f"{side} "
        done = [stage_table.over_runs(ran, lambda summary: summary.completed_rps) or 0 for _, ran in series]
        left.plot(rates, done, "o-", color=PALETTE[index], label=f"{label}answered", markersize=4.5)
        for offset, name in enumerate(("p50", "p95", "p99")):
            color = PALETTE[(offset + 3 * index) % len(PALETTE)]
            values = [_ttft(ran, name) for _, ran in series]
            times += _percentile(right, rates, values, color, f"{label}TTFT {name.upper()}")
    _knee(result, left, right)
    times += _objectives(result, right)
    left.set(
        xlabel="offered, requests/s",
        ylabel="answered, requests/s",
        title="Throughput",
        xlim=(0, 1.04 * top),
        ylim=(0, None),
    )
    right.set(xlabel="offered, requests/s", title="Time to first token", xlim=(0, 1.04 * top))
    _time_axis(right, times)
    _legend(left, loc="upper left")
    _legend(right, loc="best")
    return True


def _ttft(ran: Sequence[StageResult], name: str) -> float | None:
    return stage_table.over_runs(
        ran, lambda summary: getattr(summary.classes[ALL].ttft, name) if ALL in summary.classes else None
    )


def _percentile(
    axes: Axes, rates: Sequence[float], values: Sequence[float | None], color: str, label: str
) -> list[float]:  # fmt: skip
    known = [(rate, value) for rate, value in zip(rates, values, strict=True) if value is not None]
    finite = [(rate, value) for rate, value in known if math.isfinite(value)]
    if finite:
        axes.plot(*zip(*finite, strict=True), "o-", color=color, label=label, markersize=4.5)
    failed = [rate for rate, value in known if math.isinf(value)]
    _failed_at(axes, failed, color)
    if failed:
        axes.plot([], [], "x", color=color, markeredgewidth=2.2, label=f"{label}: failed")
    return [value for _, value in finite]


def _knee(result: GateResult, *plots: Axes) -> None:
    knee = result.knee
    if knee is None or knee.estimate_rps is None:
        return
    for axes in plots:
        axes.axvline(knee.estimate_rps, color=BAD, linewidth=1.2, linestyle=":", label="knee")
        if knee.good_rps is not None and knee.saturated_rps is not None:
            axes.axvspan(knee.good_rps, knee.saturated_rps, color=BAD, alpha=0.1, linewidth=0)


def _objectives(result: GateResult, axes: Axes) -> list[float]:
    bounds: dict[tuple[str, float], None] = {}
    for cell in result.verdict.cells:
        if cell.bound is not None and cell.cell.metric.startswith("ttft_") and math.isfinite(cell.bound):
            bounds[(cell.cell.metric, cell.bound)] = None
    for metric, bound in bounds:
        axes.axhline(bound, color=BAD, linewidth=1.2, linestyle="--", label=f"objective {figures.metric(metric)}")
    return [bound for _, bound in bounds]


def _in_flight(figure: Figure, result: GateResult) -> bool:
    found = [
        (name, side, arm, [stage for stage in results if stage.summary is not None and stage.summary.in_flight])
        for (side, name, arm), results in stage_table.measured(result).items()
    ]
    found = [entry for entry in found if entry[3]]
    if not found:
        return False
    left_out = len(found) - MOST_STAGES
    found = found[:MOST_STAGES]
    columns = min(4, len(found))
    rows = math.ceil(len(found) / columns)
    figure.set_size_inches(9, 0.3 + 2.3 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for index, (name, side, arm, results) in enumerate(found):
        axes = grid[index // columns][index % columns]
        for number, stage in enumerate(results):
            if stage.summary is not None:
                xs, ys = zip(*_every(stage.summary.in_flight, 100), strict=True)
                axes.plot(xs, ys, linewidth=1.2, color=PALETTE[number % len(PALETTE)], alpha=0.85)
        schedule = max(stage.summary.duration_seconds for stage in results if stage.summary)
        axes.axvline(schedule, color=INK, linewidth=0.8, linestyle=":")
        axes.set_ylim(0, None)
        axes.set_title(_named(" · ".join(filter(None, (name, arm, "" if side == "candidate" else side)))), fontsize=9.5)
        axes.tick_params(labelsize=8)
        if index % columns == 0:
            axes.set_ylabel("in flight", fontsize=9)
        if index // columns == rows - 1 or index + columns >= len(found):
            axes.set_xlabel("seconds", fontsize=9)
    for index in range(len(found), rows * columns):
        grid[index // columns][index % columns].set_visible(False)
    if left_out > 0:
        figure.suptitle(f"the first {MOST_STAGES} of {MOST_STAGES + left_out} stages", fontsize=9)
    return True


def _every(points: Sequence[tuple[float, int]], most: int) -> Sequence[tuple[float, int]]:
    """At most about ``most`` of them; a peak between two survives."""
    step = math.ceil(len(points) / most)
    return [max(points[at : at + step], key=lambda point: point[1]) for at in range(0, len(points), step)]


def _shares(figure: Figure, result: GateResult) -> bool:
    """CDF per arm; a curve that ends below 1 shows how many failed."""
    if result.long_tail is None:
        return False
    arms = [
        arm
        for arm in result.long_tail.arms
        if not arm.skipped and (arm.samples_alone_seconds or arm.samples_mixed_seconds)
    ]
    arms = arms[:MOST_ARMS]
    if not arms:
        return False
    rows = math.ceil(len(arms) / 3)
    columns = min(3, len(arms))
    figure.set_size_inches(9 if columns > 1 else 5.5, 0.3 + 3.1 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for index, arm in enumerate(arms):
        axes = grid[index // columns][index % columns]
        for label, samples, color in (
            ("alone", arm.samples_alone_seconds, PALETTE[0]),
            ("with longs", arm.samples_mixed_seconds, PALETTE[1]),
        ):
            if samples:
                _cdf(axes, sorted(samples), color, label)
        axes.axhline(0.99, color=INK, linewidth=0.8, linestyle=":")
        axes.set_title(_named(arm_title(arm.policy)), fontsize=9.5)
        axes.set_xlabel("end to end, seconds", fontsize=9)
        axes.set_ylim(0, 1.03)
        if index % columns == 0:
            axes.set_ylabel("share answered", fontsize=9)
        _legend(axes, loc="lower right")
    for index in range(len(arms), rows * columns):
        grid[index // columns][index % columns].set_visible(False)
    return True


def _cdf(axes: Axes, samples: Sequence[float], color: str, label: str) -> None:
    finite = [value for value in samples if math.isfinite(value)]
    step = max(1, len(finite) // 300)
    at = [*range(0, len(finite), step)]
    if finite and at[-1] != len(finite) - 1:
        at.append(len(finite) - 1)
    xs, ys = [finite[index] for index in at], [(index + 1) / len(samples) for index in at]
    share = 1 - len(finite) / len(samples)
    failed = f", {figures.percent(share)} failed" if share else ""
    axes.plot(xs, ys, color=color, linewidth=1.6, label=f"{label}{failed}")
    if share and finite:
        axes.plot(xs[-1:], ys[-1:], "x", color=color, markersize=9, markeredgewidth=2.2)


def _runs(figure: Figure, result: GateResult) -> bool:
    """One small plot per figure compared: the runs as dots, so that noise is seen beside the difference."""
    judged = [
        cell
        for cell in result.verdict.cells
        if cell.candidate and (cell.baseline or cell.cell.metric.startswith("ttft"))
    ]
    judged.sort(key=lambda cell: (not cell.gated, not cell.baseline))
    judged = judged[:MOST_CELLS]
    if not judged:
        return False
    columns = min(4, len(judged))
    rows = math.ceil(len(judged) / columns)
    figure.set_size_inches(9 if columns > 2 else 4.5 * columns, 0.4 + 2.7 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for index in range(rows * columns):
        axes = grid[index // columns][index % columns]
        if index < len(judged):
            _dots(axes, judged[index])
        else:
            axes.set_visible(False)
    return True


def _dots(axes: Axes, cell: CellVerdict) -> None:
    from matplotlib.ticker import FuncFormatter

    sides: Mapping[str, Sequence[float]] = {"baseline": cell.baseline, "candidate": cell.candidate}
    sides = {name: values for name, values in sides.items() if values}
    for at, (name, values) in enumerate(sides.items()):
        color = PALETTE[0] if name == "baseline" else PALETTE[1]
        spread = [
            at + 0.18 * (2 * index / (len(values) - 1) - 1) if len(values) > 1 else at for index in range(len(values))
        ]
        finite = [(x, value) for x, value in zip(spread, values, strict=True) if math.isfinite(value)]
        if finite:
            axes.plot(*zip(*finite, strict=True), "o", color=color, markersize=5, alpha=0.85)
        failed = [x for x, value in zip(spread, values, strict=True) if not math.isfinite(value)]
        _failed_at(axes, failed, BAD)
        for x in failed[:1]:
            axes.annotate("failed", (x, 0.97), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
                          xytext=(8, -4), color=BAD, fontsize=8)  # fmt: skip
        middle = figures.median(values)
        if middle is not None and math.isfinite(middle):
            axes.plot([at - 0.28, at + 0.28], [middle, middle], color=color, linewidth=2)
    if cell.bound is not None and math.isfinite(cell.bound):
        axes.axhline(cell.bound, color=BAD, linestyle="--", linewidth=1.2)
    shown = [value for values in sides.values() for value in values if math.isfinite(value)]
    shown += [cell.bound] if cell.bound is not None and math.isfinite(cell.bound) else []
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    room = (high - low) or abs(high) or 1.0
    axes.set_ylim(max(0.0, low - 0.25 * room) if low >= 0 else low - 0.25 * room, high + 0.35 * room)
    axes.set_xlim(-0.6, len(sides) - 0.4)
    axes.set_xticks(range(len(sides)), list(sides), fontsize=9)
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="y", labelsize=8)
    scale, unit = _unit(cell.cell.metric, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * scale:.6g}{unit}"))
    axes.set_title(
        f"{figures.metric(cell.cell.metric)}\n{_named(f'{cell.cell.stage} {cell.cell.request_class}')}", fontsize=9
    )


def _unit(metric: str, high: float) -> tuple[float, str]:
    """One unit for the whole axis, with as many digits as its ticks need."""
    if metric.endswith("_seconds"):
        return (1000, " ms") if high < 1 else (1, " s")
    return (100, " %") if metric.endswith("_ratio") else (1, "")
