"""JUnit: what every viewer needs, and no way to look green that is none."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from sre.gate.report.junit import junit
from sre.gate.result import GateResult
from sre.gate.verdict import Reason, Verdict
from tests.support import gate_samples

CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase", "system-out"},
    "testcase": {"failure", "skipped", "system-out"},
    "properties": {"property"},
}
NEEDED = {
    "testsuites": {"name", "tests", "failures", "skipped", "errors", "time"},
    "testsuite": {"name", "tests", "failures", "skipped", "errors", "time"},
    "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"},
    "skipped": {"message"},
    "property": {"name", "value"},
}
ORDER = ("property", "properties", "testcase", "skipped", "failure", "system-out")


def check(element: ET.Element) -> None:
    """The rules of the usual JUnit schema: elements, attributes, order, at most one outcome."""
    tags = [child.tag for child in element]
    assert set(tags) <= CHILDREN.get(element.tag, set())
    assert NEEDED.get(element.tag, set()) <= set(element.keys())
    assert tags == sorted(tags, key=ORDER.index if element.tag != "testsuites" else lambda tag: 0)
    assert sum(tag in ("failure", "skipped") for tag in tags) <= 1
    for child in element:
        check(child)


def parsed(result: GateResult) -> ET.Element:
    root = ET.fromstring(junit(result))
    check(root)
    return root


@pytest.mark.parametrize("result", [gate_samples.rich(name=gate_samples.HOSTILE), gate_samples.passed()])
def test_structure_is_what_viewers_read(result: GateResult) -> None:
    root = parsed(result)
    for count, tag in (("failures", "failure"), ("skipped", "skipped")):
        assert int(root.get(count, "")) == len(root.findall(f".//{tag}"))
        for suite in root:
            assert int(suite.get(count, "")) == len(suite.findall(f"testcase/{tag}"))
    assert int(root.get("tests", "")) == len(root.findall(".//testcase"))


def test_regression_is_a_failure_with_both_sides_difference_and_p() -> None:
    failure = parsed(gate_samples.rich()).find("testsuite[@name='100qps']/testcase/failure")
    assert failure is not None
    assert failure.get("type") == "regression"
    assert (failure.text or "").splitlines() == [
        "candidate: median 45 ms of 5 runs (42 ms, 44 ms, 45 ms, 46 ms, failed)",
        "baseline: median 32 ms of 5 runs (30 ms, 31 ms, 32 ms, 33 ms, 34 ms)",
        "worse by: +40.6 %",
        "p: 0.0040, after Holm: 0.0119",
    ]


def test_inconclusive_and_given_up_are_skipped_never_passed() -> None:
    root = parsed(gate_samples.rich())
    noisy = root.find("testsuite[@name='500qps']/testcase/skipped")
    assert noisy is not None
    assert (noisy.get("message") or "").startswith("noisy: ")
    messages = [each.get("message") for each in root.findall("testsuite[@name='1000qps']/testcase/skipped")]
    assert messages[0] == "run 1, 2: given up: hopeless; run 3: skipped: 500qps was given up: <error_share>"
    assert messages[1] == "not_measured: the stage was skipped"


def test_a_verdict_without_a_failed_figure_is_red_too() -> None:
    verdict = dataclasses.replace(
        gate_samples.passed().verdict, verdict=Verdict.FAIL, reasons=(Reason.STAGE_GIVEN_UP,), cells=()
    )
    root = parsed(dataclasses.replace(gate_samples.passed(), verdict=verdict))
    assert root.get("failures") == "1"
    unsure = dataclasses.replace(verdict, verdict=Verdict.INCONCLUSIVE)
    root = parsed(dataclasses.replace(gate_samples.passed(), verdict=unsure))
    assert (root.get("failures"), root.get("skipped"), root.get("tests")) == ("0", "1", "1")


def test_figures_only_looked_at_are_output_not_cases() -> None:
    suite = parsed(gate_samples.rich()).find("testsuite[@name='500qps']")
    assert suite is not None
    assert suite.get("tests") == "1"
    assert (suite.findtext("system-out") or "").startswith("not gated: 500qps/short/tpot_p99_seconds: pass")


def test_no_character_of_a_name_breaks_the_document() -> None:
    name = "".join(map(chr, range(0x250))) + "\ufffe\uffff\ud800]]>"
    root = parsed(gate_samples.rich(name=name))
    value = next(each.get("value") for each in root.iter("property") if each.get("name") == "model")
    assert value is not None
    assert "\"#$%&'()*+,-./0" in value
    junit(gate_samples.rich(name=name)).encode()
