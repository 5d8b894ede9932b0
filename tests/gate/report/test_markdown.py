"""The step summary: verdict first, nothing of others obeyed, never so long that it is dropped."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sre.gate.report import figures, layout, markdown, stage_table, tables
from sre.gate.report.annotations import annotations
from sre.gate.result import GateResult
from sre.gate.verdict import Verdict
from tests.support import gate_samples

RENDERER = MarkdownIt("commonmark").enable("table")


def noted(*notes: str) -> GateResult:
    return dataclasses.replace(gate_samples.passed(), notes=notes)


def test_verdict_comes_first() -> None:
    assert markdown.markdown(gate_samples.rich()).startswith(
        "## ❌ Gate: FAIL (partial)\n\nTTFT P99 of short at 100qps"
    )
    assert markdown.markdown(gate_samples.passed()).startswith("## ✅ Gate: PASS\n\nAll objectives held")
    unsure = dataclasses.replace(gate_samples.passed().verdict, verdict=Verdict.INCONCLUSIVE)
    text = markdown.markdown(dataclasses.replace(gate_samples.passed(), verdict=unsure))
    assert text.startswith("## ❔ Gate: INCONCLUSIVE\n")


def test_hostile_names_stay_text() -> None:
    page = RENDERER.render(markdown.markdown(gate_samples.rich(name=gate_samples.HOSTILE)))
    assert "<script" not in page
    assert "<a " not in page
    assert "<img" not in page
    assert "qwen|`x`&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_model_cannot_write_a_line_of_the_answer() -> None:
    """A name is whatever the server says, line feeds too."""
    forged = dataclasses.replace(gate_samples.rich(), model="qwen\nGate: PASS\n")
    assert any("Model qwen Gate: PASS at " in line for line in tables.opening(forged))


def test_what_is_not_confirmed_is_not_said_to_bind() -> None:
    found = gate_samples.rich().bottleneck
    assert found is not None
    assert found.binding is not None
    assert tables.bottleneck(gate_samples.rich()).text[0].startswith(f"{found.binding.value} binds (confirmed")
    unsure = dataclasses.replace(gate_samples.rich(), bottleneck=dataclasses.replace(found, confirmed=False))
    text = tables.bottleneck(unsure).text[0]
    assert text.startswith(f"Nothing is shown to bind; {found.binding.value} is the nearest")


def test_every_row_has_as_many_cells_as_its_heading() -> None:
    widths: list[int] = []
    for line in markdown.markdown(gate_samples.rich(name=gate_samples.HOSTILE)).splitlines():
        if line.startswith("|"):
            widths.append(len(re.findall(r"(?<!\\)\|", line)))
        else:
            assert len(set(widths)) <= 1
            widths = []


@given(st.text(max_size=60))
def test_any_text_is_shown_as_itself(text: str) -> None:
    shown = RENDERER.render(f"x {markdown.escape(text)} x")
    assert re.sub(r"</?p>", "", shown).count("<") == 0
    assert markdown.escape(text).count("\n") == 0


def test_links_and_calls_of_others_are_broken() -> None:
    text = markdown.escape("see https://bad.example, www.bad.example and @everyone ![x](y) [x](y)")
    assert "://" not in text
    assert "www." not in text
    assert "@" not in text
    assert "![" not in text
    assert "\\[x\\](y)" in text


def test_too_long_a_summary_is_cut_visibly_at_the_end_of_a_line() -> None:
    text = markdown.markdown(noted(*(f"note {number} " + "ü" * 1_000 for number in range(1_200))))
    assert len(text.encode()) <= markdown.LIMIT_BYTES
    assert text.startswith("## ✅ Gate: PASS")
    assert "**Cut off here**: the summary would be 2,4" in text.splitlines()[-1]
    assert "\n\n**Cut off" in text


def test_one_long_name_does_not_fill_the_page() -> None:
    assert len(markdown.markdown(noted("x" * 1_000_000))) < 10_000


def test_more_rows_than_a_table_shows_are_counted() -> None:
    table = layout.Table(("a",), tuple((str(n),) for n in range(markdown.MOST_ROWS + 3)))
    assert markdown._table(table)[-1] == "*3 further rows are in gate.json.*"


def test_parts_that_were_left_out_say_why() -> None:
    text = markdown.markdown(gate_samples.passed())
    assert "### Knee\n\nLeft out: switched off." in text
    assert "### Latency budget" not in text


def test_failures_are_shown_as_failed_never_dropped() -> None:
    text = markdown.markdown(gate_samples.rich())
    row = next(line for line in text.splitlines() if line.startswith("| 1000qps | short"))
    assert row.count("| failed ") == 3


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"), (math.nan, "–"), (math.inf, "failed"), (0, "0 ms"), (0.0000321, "32.1 µs"), (0.0452, "45.2 ms"),
        (0.9996, "1,000 ms"), (1.0, "1 s"), (1.237, "1.24 s"), (75.3, "75.3 s"), (321.5, "322 s"), (12_345, "12,345 s"),
    ],
)  # fmt: skip
def test_seconds(value: float | None, said: str) -> None:
    assert figures.seconds(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (0.00012, "0.00012"),
        (1e-9, "1e-09"),
        (99.96, "100"),
        (687.5, "688"),
        (12345.6, "12,346"),
        (math.inf, "∞"),
    ],
)
def test_numbers(value: float, said: str) -> None:
    assert figures.number(value) == said


def test_ratios_and_probabilities() -> None:
    assert figures.percent(0.40625, signed=True) == "+40.6 %"
    assert figures.percent(-0.031, signed=True) == "-3.1 %"
    assert figures.percent(math.inf, signed=True) == "∞"
    assert figures.probability(0.0004) == "< 0.001"
    assert figures.probability(0.0119) == "0.0119"
    assert figures.of_metric("throughput_rps", 99.94) == "99.9"
    assert figures.utc(1e300) == "1e+300"


def test_annotations_cannot_be_forged() -> None:
    result = gate_samples.rich()
    cell = dataclasses.replace(
        result.verdict.cells[0],
        cell=dataclasses.replace(result.verdict.cells[0].cell, stage="a,b::c\n::error::forged"),
        detail="100% bad\r\n::stop-commands::x",
    )
    verdict = dataclasses.replace(result.verdict, cells=(cell,) * 30)
    lines = annotations(dataclasses.replace(result, verdict=verdict))
    assert len(lines) == 10
    assert all(re.fullmatch(r"::(error|warning|notice) title=[^:,\n\r]*::[^\n\r]*", line) for line in lines)
    assert lines[1] == (
        "::error title=a%2Cb%3A%3Ac %3A%3Aerror%3A%3Aforged/short/ttft_p99_seconds"
        "::regression: 100%25 bad ::stop-commands::x"
    )


def test_a_pass_is_a_notice() -> None:
    assert annotations(gate_samples.passed()) == [
        "::notice title=Gate%3A PASS::All objectives held; there is no baseline."
    ]


def test_a_row_of_a_class_shows_the_rates_and_failures_of_that_class() -> None:
    """Not those of the whole stage; and what was cancelled is no request that did not fail."""
    result = gate_samples.rich()
    stage = result.runs[0].stages[0]
    assert stage.summary is not None
    short = stage.summary.classes["short"]
    kinds = {
        "short": dataclasses.replace(short, planned=90, ok=80, failed=0),
        "long": dataclasses.replace(short, request_class="long", planned=10, ok=4, failed=4),
        "all": dataclasses.replace(short, request_class="all", planned=100, ok=84, failed=4),
    }
    seen = dataclasses.replace(stage.summary, classes=kinds, offered_rps=50.0, completed_rps=42.0)
    run = dataclasses.replace(result.runs[0], stages=(dataclasses.replace(stage, summary=seen),))
    table = stage_table.stages(dataclasses.replace(result, runs=(run,), knee_stages=())).tables[0]
    failed = table.heading.index("Failed")
    assert [(row[1], row[3], row[4], row[failed]) for row in table.rows] == [
        ("short", "45", "40", "0 %"),
        ("long", "5", "2", "50 %"),
        ("all", "50", "42", "4.55 %"),
    ]


def test_a_p_value_below_five_per_cent_is_never_shown_as_five() -> None:
    assert figures.probability(0.0498) == "0.0498"
    assert figures.probability(0.42) == "0.420"
    assert figures.probability(0.0002) == "< 0.001"
