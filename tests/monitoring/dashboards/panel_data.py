"""What a Prometheus answers to the queries of a dashboard, as Grafana would ask them; nothing chosen, so everything."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests

from tests.monitoring.dashboards.reading import Json, panels

POINTS = 72
"""Samples per series: a picture's panel is about 300 pixels wide."""
TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Window:
    """Time range of a picture, seconds since 1970."""

    start: float
    end: float

    def step(self, least: float) -> float:
        """Seconds between samples."""
        return max(least, round((self.end - self.start) / POINTS, 3))


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name, and (time, value) where there is one."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        return self.points[-1][1]


@dataclass(frozen=True, slots=True)
class PanelData:
    """A panel with what its queries returned."""

    panel: Json
    series: tuple[Series, ...]

    @property
    def empty(self) -> bool:
        return not self.series


class Prometheus:
    """
    Query API of a Prometheus.

    Raises:
        RuntimeError: It does not answer, or refuses the query; with the query.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def _get(self, path: str, **parameters: Any) -> list[Any]:
        try:
            answer = requests.get(self._url + path, params=parameters, timeout=TIMEOUT_SECONDS)
            data = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise RuntimeError(f"{self._url}: {error}") from error
        if data.get("status") != "success":
            raise RuntimeError(f"{self._url}: {data.get('error')}: {parameters['query']}")
        result: list[Any] = data["data"]["result"]
        return result

    def range(self, expression: str, window: Window, step: float) -> list[Series]:
        """Series over the window."""
        found = self._get(
            "/api/v1/query_range", query=expression, start=f"{window.start:.3f}", end=f"{window.end:.3f}", step=step
        )
        return [_series(one["metric"], one["values"]) for one in found]

    def instant(self, expression: str, at: float) -> list[Series]:
        """Series at one moment."""
        return [_series(one["metric"], [one["value"]]) for one in self._get(
            "/api/v1/query", query=expression, time=f"{at:.3f}")]  # fmt: skip


def _series(labels: Mapping[str, str], values: list[list[Any]]) -> Series:
    points = tuple((float(at), float(value)) for at, value in values)
    return Series("", labels, tuple(point for point in points if not math.isnan(point[1])))


def filled(expression: str, step: float, scrape: float) -> str:
    """Ranges as Grafana computes them, variables at All."""
    ranges = {"__rate_interval": max(step + scrape, 4 * scrape), "__interval": step}
    text = re.sub(r"\$(__rate_interval|__interval)", lambda m: f"{math.ceil(ranges[m[1]])}s", expression)
    return re.sub(r"\$\w+", ".*", text)


def name_of(legend: str, labels: Mapping[str, str]) -> str:
    """A legend with its labels filled in; without a legend, the labels."""
    text = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), legend)
    return " ".join(text.split()) or ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def data_of(panel: Json, prometheus: Prometheus, window: Window) -> PanelData:
    """Run a panel's queries."""
    scrape = float(str(panel["interval"]).removesuffix("s"))
    step = window.step(1.0)
    found: list[Series] = []
    for target in panel["targets"]:
        expression = filled(target["expr"], step, scrape)
        asked = (
            prometheus.instant(expression, window.end)
            if target["instant"]
            else prometheus.range(expression, window, step)
        )
        found += [
            Series(name_of(target["legendFormat"], one.labels), one.labels, one.points) for one in asked if one.points
        ]
    return PanelData(panel, tuple(sorted(found, key=lambda one: one.name)))


def events_of(document: Json, prometheus: Prometheus, window: Window) -> list[tuple[str, float, float]]:
    """Colour, begin and end of the stretches that annotations draw from the start."""
    step = window.step(1.0)
    found = []
    for annotation in document["annotations"]["list"]:
        if not annotation["enable"] or "target" not in annotation:
            continue
        for one in prometheus.range(filled(annotation["target"]["expr"], step, step), window, step):
            begin = last = None
            for at, value in (*one.points, (math.inf, 1.0)):
                if value <= 0:
                    continue
                if last is not None and begin is not None and at - last > 1.5 * step:
                    found.append((annotation["iconColor"], begin, last))
                    begin = at
                begin, last = (at if begin is None else begin), at
    return sorted(found)


def all_data(document: Json, prometheus: Prometheus, window: Window) -> dict[int, PanelData]:
    """Panel id → data, of every panel, those of collapsed rows included."""
    return {panel["id"]: data_of(panel, prometheus, window) for panel in panels(document)}
