"""Whether the sides of a join meet: labels followed through functions, aggregations and records."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sre.metrics.exposition import Series
from sre.metrics.types import Exporter
from sre.monitoring.evidence import Cause, Verdict
from sre.monitoring.promql import Selection
from sre.monitoring.seen import Down, Seen
from tests.monitoring.seen import causes, judged

TEMPERATURE, POWER = "DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_BOARD_POWER_WATTS"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
CARD = {"gpu": "0", "UUID": "GPU-1", "device": "nvidia0", "modelName": "H"}
ENGINE = {"model_name": "m", "engine": "0"}
NODE = """label_replace(label_join({}, "all", ";", "node", "instance"), "node", "$1", "all", ";([^:]*).*")"""
JOBS = Selection(jobs={Exporter.DCGM: "dcgm", Exporter.VLLM: "vllm"})


def seen(*, gpu: str = "g1", engine: str = "e1", sampled: str = "", down: str = "") -> Seen:
    card = {**CARD, "job": "dcgm", "instance": f"{gpu}:9400"}
    one = {**ENGINE, "job": "vllm", "instance": f"{engine}:8000"}
    fleet = {
        TEMPERATURE: (Series(card, 50.0), Series({**card, "gpu": "1", "UUID": "GPU-2"}, 50.0)),
        POWER: (Series(card, 50.0),),
        RUNNING: (Series(one, 1.0),),
        WAITING: (Series(one, 1.0),),
        "up": (Series({"job": "vllm", "instance": f"{engine}:8000"}, 1.0),),
    }
    targets = (Down(down, "x:1"),) if down else ()
    return Seen(fleet=fleet, names=frozenset(fleet), prometheus=True, down=targets, sampled=frozenset({sampled} - {""}))


def cause(text: str, what: Seen, records: Mapping[str, str] | None = None) -> list[Cause]:
    finding = judged(text, what, records, JOBS)
    assert (finding.outcome.verdict is Verdict.CAN_FIRE) is (not causes(finding))
    return causes(finding)


APART = [
    f"max by (node) ({NODE.format(TEMPERATURE)}) > 85 and on (node) max by (node) ({NODE.format(RUNNING)}) > 0",
    f"max by (node) ({NODE.format(TEMPERATURE)}) > max by (node) ({NODE.format(RUNNING)})",
    f"sum by (node) ({NODE.format(POWER)}) / sum by (node) ({NODE.format(RUNNING)}) > 1",
    f"{TEMPERATURE} * on (instance) group_left () max by (instance) ({RUNNING}) > 1",
    f"rate({TEMPERATURE}[5m]) > 1 and on (instance) {RUNNING} > 1",
    f"{TEMPERATURE}{{gpu='1'}} > 1 and on (UUID) {POWER} > 1",
    f"{TEMPERATURE} > 1 and on (gpu, instance) (topk(1, {RUNNING}) unless on (job) {WAITING})",
]


@pytest.mark.parametrize("text", APART)
def test_sides_of_other_places_never_meet(text: str) -> None:
    assert cause(text, seen()) == [Cause.APART]


@pytest.mark.parametrize("text", APART[:3])
def test_sides_of_one_place_meet(text: str) -> None:
    assert cause(text, seen(gpu="e1")) == []


@pytest.mark.parametrize(
    "text",
    [
        f"{TEMPERATURE} > 85 unless on (instance) {RUNNING}",
        f"{TEMPERATURE} > 85 or on (instance) {RUNNING} > 3",
        f"{TEMPERATURE} > 85 and on () {RUNNING} > 3",
        f"{TEMPERATURE} > 85 and on (pod) {RUNNING} > 3",  # both lack it
        f"{TEMPERATURE} > 85 and on (instance) (absent({RUNNING}) or {RUNNING} > 3)",
        f"sum({POWER}) / sum({RUNNING}) > 3",
        f"{TEMPERATURE} > 85 and on (UUID) {POWER} > 3",
        f"{RUNNING} > 1 and on (instance) up == 1",
        f"{TEMPERATURE} > 85 and on (instance) ({RUNNING} or {POWER}) > 3",
    ],
)
def test_what_meets_or_needs_not_is_left_alone(text: str) -> None:
    assert cause(text, seen()) == []


def test_records_are_followed() -> None:
    records = {
        "node:hot:max": f"max by (node) ({NODE.format(TEMPERATURE)})",
        "node:running:sum": f"sum by (node) ({NODE.format(RUNNING)})",
        "node:both:ratio": "node:hot:max / node:running:sum",
    }
    assert cause("node:hot:max > 85 and on (node) node:running:sum > 0", seen(), records) == [Cause.APART]
    assert cause("node:both:ratio > 1", seen(), records) == [Cause.APART]
    assert cause("node:both:ratio > 1", seen(gpu="e1"), records) == []
    assert cause("node:hot:max > 1 or node:both:ratio > 1", seen(), records) == []


@pytest.mark.parametrize("what", [seen(sampled=RUNNING), seen(down="vllm"), seen(down="dcgm")])
def test_what_is_not_seen_whole_is_not_judged(what: Seen) -> None:
    assert cause(APART[0], what) == []


def test_the_reason_names_both_sides_and_the_remedy() -> None:
    finding = judged(APART[0], seen(), None, JOBS)
    text = finding.outcome.reasons[0].text
    assert f"node g1 ({TEMPERATURE}) against node e1 ({RUNNING})" in text
    assert "relabel_configs" in text


def test_values_of_a_template_are_gos() -> None:
    named = f"""label_replace({TEMPERATURE}, "instance", "${{host}}:8000$$", "instance", "(?P<host>[^:]*):.*")"""
    assert cause(f"{named} > 1 and on (instance) {RUNNING}", seen(gpu="e1")) == [Cause.APART]
    named = named.replace("$$", "")
    assert cause(f"{named} > 1 and on (instance) {RUNNING}", seen(gpu="e1")) == []
