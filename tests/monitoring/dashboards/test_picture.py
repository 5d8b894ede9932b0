"""The picture script, against a Prometheus that is made up: it draws every kind of panel, and the texts for no data."""

from __future__ import annotations

import json
import math
import re
import threading
import xml.etree.ElementTree
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.monitoring.dashboards import picture
from tests.monitoring.dashboards.panel_data import Prometheus, Series, Window, filled, name_of

END = 1_700_000_000.0
LABELS = {
    "node": "gpu-1", "gpu": "0", "device": "nvme0n1", "instance": "10.0.0.1:8000", "model_name": "qwen",
    "finished_reason": "stop", "pool": "qwen", "slo": "ttft", "engine": "a", "scope": "engine", "target": "a",
    "alertname": "NodeDiskAwaitHigh", "severity": "ticket", "dimension": "resource", "component": "node",
}  # fmt: skip
SILENT = ("nvlink", "tensor")


def answer(path: str, query: dict[str, str]) -> dict[str, Any]:
    """Curves for everything but what ``SILENT`` names; buckets where there is a quantile to be had."""
    expression = query["query"]
    if any(word in expression for word in SILENT):
        return {"resultType": "matrix", "result": []}
    edges = ["1.0", "8.0", "64.0", "+Inf"] if "by (le)" in expression else [""]
    if path.endswith("/query"):
        return {"resultType": "vector", "result": [{"metric": LABELS, "value": [END, "0.4"]}]}
    start, end, step = (float(query[name]) for name in ("start", "end", "step"))
    result = []
    for number, edge in enumerate(edges):
        count = int((end - start) / step) + 1
        values = [[start + n * step, f"{(number + 1) * (1.5 + math.sin(n / 8)) / 4:.4f}"] for n in range(count)]
        if "state" in expression:
            values = [[at, str(n // 20 % 3)] for n, (at, _) in enumerate(values)]
        result.append({"metric": {**LABELS, **({"le": edge} if edge else {})}, "values": values})
    return {"resultType": "matrix", "result": result}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if "bad" in query["query"]:
            data = {"status": "error", "error": "parse error"}
        else:
            data = {"status": "success", "data": answer(parts.path, query)}
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing is printed."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def texts(file: Path) -> set[str]:
    root = xml.etree.ElementTree.parse(file).getroot()
    return {" ".join("".join(node.itertext()).split()) for node in root.iter() if node.tag.endswith("}text")}


def test_pictures_show_titles_units_and_what_has_no_data(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--url", url, "--end", str(END), "--output-dir", str(tmp_path)]
    assert picture.main([*argv, "sre-overview", "sre-batching", "sre-breaker"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"sre-overview: 16 panels with data, \d+ kB\n  no data: NVLink throughput\n", out)
    overview = texts(tmp_path / "sre-overview.svg")
    assert {"sre: overview", "Disk await", "no such device", "NodeDiskAwaitHigh", "▬"} <= overview
    assert {"gpu-1 nvme0n1: 478 ms", "gpu-1 nvme0n1: 0.478 p/s"} <= overview
    assert {"half open", "ready"} <= texts(tmp_path / "sre-breaker.svg")
    assert {"8", "∞"} <= texts(tmp_path / "sre-batching.svg")
    for file in tmp_path.glob("*.svg"):
        assert file.stat().st_size < 100_000, f"{file.name} is too large to be committed"
    before = (tmp_path / "sre-overview.svg").read_bytes()
    picture.main([*argv, "sre-overview"])
    assert (tmp_path / "sre-overview.svg").read_bytes() == before


def test_a_query_that_is_refused_ends_it(url: str) -> None:
    with pytest.raises(RuntimeError, match="parse error: bad"):
        Prometheus(url).instant("bad", END)


def test_ranges_are_what_grafana_makes_of_them() -> None:
    assert filled('rate(x{a=~"$a"}[$__rate_interval])', step=12.5, scrape=15) == 'rate(x{a=~".*"}[60s])'
    assert filled("rate(x[$__rate_interval])", step=120, scrape=15) == "rate(x[135s])"


def test_names_of_series() -> None:
    assert name_of("{{a}} GPU {{b}}", {"a": "x", "b": "1"}) == "x GPU 1"
    assert name_of("", {"a": "x", "b": "1"}) == "a=x, b=1"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9512, "percentunit", "95.1 %"), (0.25, "s", "250 ms"), (12.5, "s", "12.5 s"), (85.0, "celsius", "85 °C"),
        (1.5e9, "Bps", "1.5 GB/s"), (300.0, "watt", "300 W"), (14.4, "suffix:x", "14.4x"), (3.0, "short", "3"),
        (20.0, "suffix: tok/s", "20 tok/s"), (37_500.0, "iops", "37.5 k io/s"), (7.588, "reqps", "7.59 req/s"),
    ],
)  # fmt: skip
def test_values_have_their_units(value: float, unit: str, text: str) -> None:
    assert picture.shown(value, unit) == text


def test_a_gap_is_no_line() -> None:
    series = Series("", {}, ((0.0, 1.0), (10.0, 1.0), (50.0, 1.0)))
    times, values = picture._with_gaps(series, 10.0)
    assert (times, [math.isnan(value) for value in values]) == ([0, 10, 20, 50], [False, False, True, False])
    assert Window(0, 720).step(1.0) == 10.0


def test_stretches_of_one_colour_that_overlap_are_one() -> None:
    events = [("red", 5.0, 9.0), ("red", 1.0, 4.0), ("orange", 2.0, 3.0), ("red", 8.0, 12.0), ("red", 6.0, 7.0)]
    assert picture.merged(events) == [("orange", 2.0, 3.0), ("red", 1.0, 4.0), ("red", 5.0, 12.0)]


def test_turning_by_nothing_is_left_out() -> None:
    svg = '<svg><defs></defs><text x="1.25" y="2" transform="rotate(-0 1.25 2)">a</text>'
    assert 'transform="' not in picture.compact(svg)
    assert "rotate(-90 " in picture.compact(svg.replace("rotate(-0 ", "rotate(-90 "))


@pytest.mark.parametrize(
    ("path", "straight"),
    [
        ("M 0 5 L 1 5 L 2 5 L 3 5", "M 0 5 L 3 5"),
        ("M 0 5 L 1 5 L 2 4 L 3 4 L 4 4", "M 0 5 L 1 5 L 2 4 L 4 4"),
        ("M 0 5 L 1 5 M 2 5 L 3 5 L 4 5", "M 0 5 L 1 5 M 2 5 L 4 5"),
        ("M 0 0 L 9 0 L 9 9 L 0 9 z", "M 0 0 L 9 0 L 9 9 L 0 9 z"),
        ("M 0 0 C 1 1 2 2 3 3 L 4 3 L 5 3 z", "M 0 0 C 1 1 2 2 3 3 L 4 3 L 5 3 z"),
    ],
)
def test_points_within_a_flat_line_are_left_out(path: str, straight: str) -> None:
    assert f' d="{straight}"' in picture.compact(f'<svg><defs></defs><path d="{path}"/>')
