"""
Pictures of the dashboards, drawn from what a Prometheus answers to their queries:

    python -m tests.monitoring.dashboards.picture --url http://127.0.0.1:9090 [--minutes 15] [--end SECONDS] [UID …]

Writes dashboards/pictures/<uid>.svg and says which panels have no data. Grafana itself is in no package registry, so
this stands in for it: panels where it puts them, with its units, lines of thresholds, states, and texts for no data.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tests.monitoring.dashboards.panel_data import PanelData, Prometheus, Series, Window, all_data, events_of
from tests.monitoring.dashboards.reading import Json

ROOT = Path(__file__).resolve().parents[3]
DASHBOARDS = ROOT / "dashboards"
PICTURES = DASHBOARDS / "pictures"

COLUMN, LINE = 0.5, 0.36
"""Inches of a column and a line of Grafana's grid."""
COLORS = ("#3274d9", "#e0752d", "#56a64b", "#b877d9", "#e02f44", "#1f9e9e", "#b7a100", "#7f7f7f")
NAMED = {
    "green": "#56a64b", "yellow": "#f2cc0c", "orange": "#ff9830", "red": "#e02f44", "dark-red": "#ad0317",
    "purple": "#8f3bb8", "blue": "#3274d9", "gray": "#9fa7b3",
}  # fmt: skip
INK, FAINT = "#24292e", "#8a929c"
HEAD = 1.4
"""Lines above the panels, for the title."""
LEGEND_ROWS = 3
LETTERS = 8.0
"""Letters of a legend in a column of the grid."""
STYLE = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 6.5, "svg.fonttype": "none",
    "svg.hashsalt": "sre", "axes.linewidth": 0.4, "path.simplify": True, "path.simplify_threshold": 0.6,
}  # fmt: skip


def shown(value: float, unit: str) -> str:
    """A value with its unit, short."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if 0 < abs(value) < 1 else f"{value:.3g} s"
    if unit in ("bytes", "Bps"):
        for power, name in ((4, "T"), (3, "G"), (2, "M"), (1, "k")):
            if abs(value) >= 1000**power:
                return f"{value / 1000**power:.3g} {name}B{'/s' if unit == 'Bps' else ''}"
        return f"{value:.3g} B{'/s' if unit == 'Bps' else ''}"
    end = {"celsius": " °C", "watt": " W", "cps": "/s", "reqps": " req/s", "iops": " io/s", "pps": " p/s"}
    number = (
        f"{value / 1000:.3g} k" if abs(value) >= 10_000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"
    )
    return number + end.get(unit, unit.removeprefix("suffix:") if unit.startswith("suffix:") else "")


def draw(document: Json, data: dict[int, PanelData], window: Window, events: list[tuple[str, float, float]]) -> Figure:
    """The dashboard: rows and panels where Grafana puts them; collapsed rows are a line."""
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in document["panels"]) + HEAD
    figure = Figure(figsize=(24 * COLUMN, lines * LINE), facecolor="#f4f5f5")
    whole = figure.add_axes((0, 0, 1, 1))
    whole.set(xlim=(0, 24), ylim=(lines, 0))
    whole.axis("off")
    whole.text(0.2, HEAD / 2, document["title"], fontsize=11, color=INK, va="center", weight="bold")
    span = time.strftime("%H:%M:%S", time.gmtime(window.start)) + " – " + time.strftime(
        "%H:%M:%S UTC", time.gmtime(window.end))  # fmt: skip
    whole.text(23.8, HEAD / 2, span, color=FAINT, va="center", ha="right")
    for panel in document["panels"]:
        place = {**panel["gridPos"], "y": panel["gridPos"]["y"] + HEAD}
        if panel["type"] == "row":
            mark = f"▸ {panel['title']}  ({len(panel['panels'])} panels)" if panel["collapsed"] else panel["title"]
            whole.text(0.2, place["y"] + 0.5, mark, color=INK, va="center", fontsize=8, weight="bold")
            continue
        _frame(whole, place, panel["title"])
        _panel(figure, lines, place, data[panel["id"]], window, events)
    return figure


def _frame(whole: Axes, place: dict[str, float], title: str) -> None:
    gap = 0.06
    box = Rectangle(
        (place["x"] + gap, place["y"] + gap), place["w"] - 2 * gap, place["h"] - 2 * gap, facecolor="white",
        edgecolor="#d8dbe0", linewidth=0.5,
    )  # fmt: skip
    whole.add_patch(box)
    whole.text(place["x"] + 0.2, place["y"] + 0.55, title, color=INK, va="center", fontsize=7)


def _panel(
    figure: Figure, lines: int, place: dict[str, float], data: PanelData, window: Window,
    events: list[tuple[str, float, float]],
) -> None:  # fmt: skip
    kind = data.panel["type"]
    plain = kind in ("stat", "table")
    rows = 0 if plain or kind in ("state-timeline", "heatmap") else min(LEGEND_ROWS, len(data.series))
    left, below = (0.3, 0.2) if plain else (1.6 if kind == "timeseries" else 3.2, 0.9 + 0.45 * rows)
    if kind == "heatmap":
        left = 1.4
    bottom = lines - place["y"] - place["h"] + below
    box = ((place["x"] + left) / 24, bottom / lines, (place["w"] - left - 0.3) / 24, (place["h"] - below - 1.1) / lines)
    axes = figure.add_axes(box, frameon=kind != "stat" and not data.empty)
    axes.patch.set_visible(False)
    if data.empty:
        axes.axis("off")
        text = data.panel["fieldConfig"]["defaults"]["noValue"]
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=8)
        return
    _DRAWN[kind](axes, data, window)
    if not plain:
        _time_axis(axes, window)
    if kind == "timeseries":
        for color, begin, end in events:
            axes.axvspan(begin, max(end, begin + (window.end - window.start) / 300), color=NAMED.get(color, color),
                         alpha=0.15, linewidth=0)  # fmt: skip
        _legend(axes, data, rows, place["h"] - below - 1.1)


def merged(events: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Stretches of one colour that meet or overlap, as one: a shade says that something is, not how much of it."""
    found: list[tuple[str, float, float]] = []
    for color, begin, end in sorted(events):
        if found and found[-1][0] == color and begin <= found[-1][2]:
            found[-1] = (color, found[-1][1], max(found[-1][2], end))
        else:
            found.append((color, begin, end))
    return found


def _time_axis(axes: Axes, window: Window) -> None:
    axes.set_xlim(window.start, window.end)
    quarter = (window.end - window.start) / 4
    axes.set_xticks([window.start + quarter * n for n in (0.5, 2, 3.5)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: time.strftime("%H:%M:%S", time.gmtime(at))))
    axes.tick_params(length=0, colors=FAINT, labelsize=5.5, pad=1.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#c7ccd1")


def _lines(axes: Axes, data: PanelData, window: Window) -> None:
    defaults = data.panel["fieldConfig"]["defaults"]
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    total: dict[float, float] = {}
    for number, one in enumerate(data.series):
        color = COLORS[number % len(COLORS)]
        times, values = _with_gaps(one, window.step(1.0))
        if stacked:
            for at, value in one.points:
                total[at] = total.get(at, 0.0) + value
            values = [total.get(at, value) for at, value in zip(times, values, strict=True)]
        axes.plot(times, values, color=color, linewidth=0.9)
        if len(one.points) == 1:
            axes.plot(*zip(*one.points, strict=True), marker=".", color=color, markersize=2)
    low, high = axes.get_ylim()
    for step in defaults["thresholds"]["steps"]:
        value = step["value"]
        # Far off lines would flatten the curve: Grafana shows them only where the axis reaches.
        if value is not None and value <= 4 * max(high, 1e-9):
            axes.axhline(value, color=NAMED["red"], linewidth=0.7, dashes=(4, 3))
            high = max(high, value * 1.1)
    bottom, top = defaults.get("min", low), defaults.get("max", high * 1.05)
    axes.set_ylim(bottom, top if top > bottom else bottom + 1)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, defaults["unit"])))
    axes.grid(axis="y", linewidth=0.3, color="#e6e8eb")


def _with_gaps(one: Series, step: float) -> tuple[list[float], list[float]]:
    times: list[float] = []
    values: list[float] = []
    for at, value in one.points:
        if times and at - times[-1] > 1.5 * step:
            times.append(times[-1] + step)
            values.append(float("nan"))
        times.append(at)
        values.append(value)
    return times, values


def cut(text: str, letters: int) -> str:
    """A text that may be too long for its place."""
    return text if len(text) <= letters else text[: max(1, letters - 1)] + "…"


def _legend(axes: Axes, data: PanelData, rows: int, height: float) -> None:
    unit = data.panel["fieldConfig"]["defaults"]["unit"]
    for row in range(rows):
        more = f"   and {len(data.series) - rows} more" if row == rows - 1 and len(data.series) > rows else ""
        end = f": {shown(data.series[row].last, unit)}{more}"
        text = cut(data.series[row].name, int(LETTERS * data.panel["gridPos"]["w"]) - len(end)) + end
        y = -(0.75 + 0.45 * (row + 0.5)) / height
        axes.text(0, y, "▬ ", transform=axes.transAxes, color=COLORS[row % len(COLORS)], va="center", ha="right")
        axes.text(0, y, text, transform=axes.transAxes, color=INK, va="center", fontsize=6)


def _stat(axes: Axes, data: PanelData, window: Window) -> None:
    axes.axis("off")
    defaults = data.panel["fieldConfig"]["defaults"]
    names = {key: one for m in defaults["mappings"] if m["type"] == "value" for key, one in m["options"].items()}
    count = min(4, len(data.series))
    for number, one in enumerate(data.series[:count]):
        mapped = names.get(f"{one.last:g}")
        text = mapped["text"] if mapped else shown(one.last, defaults["unit"])
        color = mapped["color"] if mapped else _step_color(defaults["thresholds"]["steps"], one.last)
        axes.add_patch(Rectangle((number / count, 0), 1 / count - 0.01, 1, color=NAMED.get(color, color), alpha=0.85,
                                 transform=axes.transAxes, linewidth=0))  # fmt: skip
        middle = (number + 0.5) / count
        lone = count == 1
        axes.text(middle, 0.5 if lone else 0.62, text, transform=axes.transAxes, ha="center", va="center",
                  color="white", fontsize=11 if lone else 9, weight="bold")  # fmt: skip
        if not lone:
            axes.text(middle, 0.2, one.name, transform=axes.transAxes, ha="center", va="center", color="white",
                      fontsize=5.5)  # fmt: skip


def _step_color(steps: Sequence[Any], value: float) -> str:
    color = steps[0]["color"]
    for step in steps[1:]:
        if value >= step["value"]:
            color = step["color"]
    return str(color)


def _states(axes: Axes, data: PanelData, window: Window) -> None:
    mappings = data.panel["fieldConfig"]["defaults"]["mappings"]
    names = {key: one for m in mappings if m["type"] == "value" for key, one in m["options"].items()}
    step = window.step(1.0)
    for row, one in enumerate(data.series):
        for begin, end, value in _stretches(one, step):
            state = names.get(f"{value:g}", {"text": f"{value:g}", "color": "gray"})
            axes.broken_barh([(begin, end - begin)], (row - 0.4, 0.8), color=NAMED.get(state["color"], state["color"]),
                             linewidth=0)  # fmt: skip
            if end - begin > (window.end - window.start) / 8:
                axes.text((begin + end) / 2, row, state["text"], ha="center", va="center", color="white", fontsize=5.5)
    axes.set_ylim(len(data.series) - 0.5, -0.5)
    axes.set_yticks(range(len(data.series)), [cut(one.name, 22) for one in data.series])


def _stretches(one: Series, step: float) -> list[tuple[float, float, float]]:
    """Begin, end and value of runs of one value."""
    found: list[list[float]] = []
    for at, value in one.points:
        if found and found[-1][2] == value and at - found[-1][1] <= 1.5 * step:
            found[-1][1] = at
        else:
            if found and at - found[-1][1] <= 1.5 * step:
                found[-1][1] = at
            found.append([at, at, value])
    return [(begin, max(end, begin + step), value) for begin, end, value in found]


def _heatmap(axes: Axes, data: PanelData, window: Window) -> None:
    """Buckets are cumulative: what lies in one is the difference to the one below."""
    edges = sorted(data.series, key=lambda one: float(one.labels["le"]))
    times = sorted({at for one in edges for at, _ in one.points})
    table = np.array([[dict(one.points).get(at, 0.0) for at in times] for one in edges])
    cells = np.maximum(np.diff(table, axis=0, prepend=0.0), 0.0)
    extent = (times[0], times[-1] + window.step(1.0), 0, len(edges))
    axes.imshow(
        np.sqrt(cells), origin="lower", aspect="auto", extent=extent, cmap="Oranges", interpolation="nearest",
    )  # fmt: skip
    unit = data.panel["fieldConfig"]["defaults"]["unit"]
    ticks = range(0, len(edges), max(1, len(edges) // 6))
    axes.set_yticks([n + 1 for n in ticks], [_edge(edges[n].labels["le"], unit) for n in ticks])


def _edge(text: str, unit: str) -> str:
    return "∞" if text == "+Inf" else shown(float(text), unit)


def _table(axes: Axes, data: PanelData, window: Window) -> None:
    axes.axis("off")
    columns = data.panel["transformations"][0]["options"]["indexByName"]
    order = sorted(columns, key=lambda column: columns[column])
    lefts = (0, 0.5, 0.68, 0.85)
    for x, column in zip(lefts, order, strict=True):
        axes.text(x, 1, column, transform=axes.transAxes, color=FAINT, va="top", fontsize=6)
    for row, one in enumerate(data.series[:9]):
        for x, column in zip(lefts, order, strict=True):
            axes.text(x, 0.88 - 0.1 * row, one.labels.get(column, ""), transform=axes.transAxes, color=INK, va="top")


_DRAWN: dict[str, Callable[[Axes, PanelData, Window], None]] = {
    "timeseries": _lines,
    "stat": _stat,
    "state-timeline": _states,
    "heatmap": _heatmap,
    "table": _table,
}


def _straight(path: str) -> str:
    """The path without the points that lie between two of the same height: a flat line has two ends."""
    points = re.split(r"\s(?=[A-Za-z])", " ".join(path.split()))
    heights = [re.fullmatch(r"[ML] \S+ (\S+)", point) for point in points]
    kept = [
        point
        for number, point in enumerate(points)
        if not 0 < number < len(points) - 1
        or not (point.startswith("L") and points[number + 1].startswith("L"))
        or len({height[1] if height else None for height in heights[number - 1 : number + 2]}) > 1
    ]
    return " ".join(kept)


def compact(svg: str) -> str:
    """The same picture in half the bytes: no comments or idle points, tenths of a point, styles once, no idle ids."""
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r" transform=\"rotate\(-?0(?: [^)]*)?\)\"", "", svg)
    places = re.compile(r" (?:d|x|y|transform|width|height)=\"[^\"]*\"")
    number = re.compile(r"-?\d+\.\d{2,}")
    svg = places.sub(lambda found: number.sub(lambda one: f"{float(one[0]):.1f}", found[0]), svg)
    svg = re.sub(r" d=\"([^\"]*)\"", lambda path: f' d="{_straight(path[1])}"', svg)
    used = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r" id=\"([\w.-]+)\"", lambda given: given[0] if given[1] in used else "", svg)
    classes: dict[str, str] = {}
    svg = re.sub(r" style=\"([^\"]*)\"", lambda m: f' class="{classes.setdefault(m[1], f"c{len(classes)}")}"', svg)
    rules = "".join(f".{name}{{{style}}}" for style, name in classes.items())
    svg = svg.replace("<defs>", f"<style>{rules}</style>\n<defs>", 1)
    return re.sub(r"\n\s*", "\n", svg)


def write(file: Path, prometheus: Prometheus, window: Window, folder: Path) -> dict[str, list[str]]:
    """Draw one dashboard; return the titles of its panels with and without data."""
    document = json.loads(file.read_text("utf-8"))
    data = all_data(document, prometheus, window)
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        figure = draw(document, data, window, merged(events_of(document, prometheus, window)))
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    (folder / f"{document['uid']}.svg").write_text(compact(drawn.getvalue()), "utf-8")
    titles: dict[str, list[str]] = {"data": [], "empty": []}
    for one in data.values():
        titles["empty" if one.empty else "data"].append(one.panel["title"])
    return titles


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Draw dashboards from a live Prometheus.")
    parser.add_argument("--url", required=True, help="Prometheus, e.g. http://127.0.0.1:9090")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--end", type=float, default=None, help="seconds since 1970; default: now")
    parser.add_argument("--output-dir", type=Path, default=PICTURES)
    parser.add_argument("uids", nargs="*", help="default: all")
    given = parser.parse_args(argv)
    end = time.time() if given.end is None else given.end
    window = Window(end - given.minutes * 60, end)
    files = [DASHBOARDS / f"{uid}.json" for uid in given.uids] or sorted(DASHBOARDS.glob("*.json"))
    for file in files:
        titles = write(file, Prometheus(given.url), window, given.output_dir)
        size = (given.output_dir / f"{file.stem}.svg").stat().st_size
        print(f"{file.stem}: {len(titles['data'])} panels with data, {size // 1000} kB")
        for title in titles["empty"]:
            print(f"  no data: {title}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
