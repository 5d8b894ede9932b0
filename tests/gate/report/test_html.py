"""The page: whole, alone, deterministic; names are text; what is infinite is drawn."""

from __future__ import annotations

import dataclasses
import math
import re
from html.parser import HTMLParser

import pytest

from sre.gate.report import html as page
from sre.gate.report import plots, stage_table
from sre.gate.result import GateResult
from tests.support import gate_samples

VOID = {"meta", "br", "hr", "img", "link", "input"}
DANGEROUS = {"script", "iframe", "object", "embed", "link", "img", "form", "base", "foreignobject", "image", "audio"}


class Reader(HTMLParser):
    """Tags in balance, and what a page could reach out with."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.references: set[str] = set()
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.look(tag, attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.look(tag, attributes)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def look(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in DANGEROUS:
            self.problems.append(f"<{tag}>")
        for name, value in attributes:
            value = value or ""
            if name.startswith("on"):
                self.problems.append(f"{name} of <{tag}>")
            if name == "id":
                self.ids.append(value)
            self.references |= set(re.findall(r"url\(#([^)]+)\)", value))
            if name in ("href", "xlink:href"):
                if not value.startswith("#"):
                    self.problems.append(f"{name}={value}")
                self.references.add(value[1:])
            elif "//" in value and not name.startswith("xmlns"):
                self.problems.append(f"{name}={value}")
            elif name == "src":
                self.problems.append(f"src={value}")


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    assert not reader.problems
    return reader


@pytest.fixture(scope="module")
def hostile() -> str:
    return page.html(gate_samples.rich(name=gate_samples.HOSTILE))


def test_page_is_whole_and_needs_nothing_else(hostile: str) -> None:
    reader = read(hostile)
    assert len(reader.ids) == len(set(reader.ids))
    assert reader.references <= set(reader.ids)
    assert reader.tags.count("svg") == 4
    style = hostile[hostile.index("<style>") : hostile.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style
    assert hostile.isascii() or 'charset="utf-8"' in hostile


def test_names_of_others_are_text(hostile: str) -> None:
    assert "<script" not in hostile
    assert "\x1b" not in hostile
    assert any("qwen|`x`<script>alert(1)</script>&" in part for part in read(hostile).text)


def test_same_result_gives_the_same_bytes(hostile: str) -> None:
    again = page.html(gate_samples.rich.__wrapped__(name=gate_samples.HOSTILE))
    assert again == hostile
    assert re.search(r"20\d\d-\d\d-\d\dT", hostile) is None


def test_page_is_small(hostile: str) -> None:
    assert len(hostile.encode()) < 500_000


def test_what_failed_is_drawn_and_said(hostile: str) -> None:
    drawn = " ".join(read(hostile).text)
    assert "TTFT P99: failed" in drawn
    assert "with longs, 1.5 % failed" in drawn
    assert "knee" in drawn


def test_without_matplotlib_the_page_has_its_tables_and_says_what_to_install() -> None:
    def missing(result: GateResult) -> dict[str, list[tuple[str, str]]]:
        raise ImportError("No module named 'matplotlib'")

    text = page.html(gate_samples.rich(), missing)
    reader = read(text)
    assert reader.tags.count("svg") == 0
    assert reader.tags.count("table") >= 8
    assert "pip install -e &#x27;.[gate]&#x27;" in text


def test_pictures_too_large_for_the_page_are_left_out_and_told() -> None:
    text = page.html(gate_samples.rich(), lambda _: {"stages": [("huge", "<svg>" + " " * 800_000 + "</svg>")]})
    assert read(text).tags.count("svg") == 0
    assert "The plots are left out: they would take 800,011 bytes" in text


def test_least_result_has_a_page() -> None:
    reader = read(page.html(gate_samples.passed()))
    assert "Gate: PASS" in " ".join(reader.text)


def test_everything_infinite_or_empty_is_drawn_without_complaint() -> None:
    rich = gate_samples.rich()
    assert rich.long_tail is not None
    lost = dataclasses.replace(rich.long_tail.arms[0], samples_alone_seconds=(math.inf,) * 5, samples_mixed_seconds=())
    cell = dataclasses.replace(rich.verdict.cells[0], candidate=(math.inf,) * 5, baseline=(math.inf,), bound=math.inf)
    summary = rich.runs[0].stages[2].summary
    assert summary is not None
    whole = dataclasses.replace(
        summary.classes["all"],
        ttft=dataclasses.replace(summary.classes["all"].ttft, p50=math.inf, p95=None, p99=math.inf),
    )
    stage = dataclasses.replace(
        rich.runs[0].stages[2], summary=dataclasses.replace(summary, classes={"all": whole}, in_flight=((0.0, 0),))
    )
    result = dataclasses.replace(
        rich,
        long_tail=dataclasses.replace(rich.long_tail, arms=(lost,)),
        verdict=dataclasses.replace(rich.verdict, cells=(cell,)),
        runs=(dataclasses.replace(rich.runs[0], stages=(stage,)),),
        knee_stages=(),
        knee=None,
    )
    assert read(page.html(result)).tags.count("svg") == 4


def test_many_stages_are_bounded() -> None:
    rich = gate_samples.rich()
    stage = rich.runs[0].stages[0]
    many = tuple(
        dataclasses.replace(stage, plan=dataclasses.replace(stage.plan, name=f"{n}qps", rate_rps=n))
        for n in range(1, 41)
    )
    text = page.html(dataclasses.replace(rich, runs=(dataclasses.replace(rich.runs[0], stages=many),), knee_stages=()))
    assert f"the first {plots.MOST_STAGES} of 40 stages" in text
    assert len(text.encode()) < page.LIMIT_BYTES


def test_the_other_side_of_a_comparison_is_not_called_a_policy() -> None:
    rich = gate_samples.rich()
    assert rich.long_tail is not None
    arm = next(one for one in rich.long_tail.arms if not one.skipped)
    arms = tuple(dataclasses.replace(arm, policy=name) for name in ("", "B", "fcfs"))
    result = dataclasses.replace(rich, long_tail=dataclasses.replace(rich.long_tail, arms=arms))
    text = " ".join(read(page.html(result)).text)
    assert "policy B" not in text
    assert "side B" in text
    assert "policy fcfs" in text


def test_two_sides_are_drawn_apart() -> None:
    rich = gate_samples.rich()
    runs = tuple(dataclasses.replace(run, side=side) for run, side in zip(rich.runs, "ABA", strict=True))
    result = dataclasses.replace(rich, runs=runs, knee_stages=())
    assert {side for side, _, _ in stage_table.measured(result)} == {"A", "B"}
    text = " ".join(read(page.html(result)).text)
    assert "A answered" in text
    assert "B TTFT P99" in text
