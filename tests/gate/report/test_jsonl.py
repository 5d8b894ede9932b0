"""The log of requests: a line each, read back; a last line cut off is passed over and told."""

from __future__ import annotations

import dataclasses
import json

import pytest

from sre.errors import StateError
from sre.gate.records import Cause, RequestRecord
from sre.gate.report import codec, jsonl
from sre.gate.stages import RequestClass
from tests.support import gate_samples

LOAD = gate_samples.load()
LINES = list(jsonl.lines(LOAD))


def shifted(record: RequestRecord) -> RequestRecord:
    """As it is read back: stamps from the start of the stage."""
    stamps = {name: getattr(record, name) for name in jsonl.STAMPS}
    moved = {name: None if at is None else pytest.approx(at - LOAD.started_at, abs=1e-6) for name, at in stamps.items()}
    return dataclasses.replace(record, **moved)  # type: ignore[arg-type]


def test_every_line_is_one_object() -> None:
    assert len(LINES) == 1 + len(LOAD.records)
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in LINES)
    header = json.loads(LINES[0])
    assert (header["schema"], header["schema_version"], header["plan"]["name"]) == (
        "sre/gate-requests",
        "1.1",
        "100qps",
    )


def test_requests_come_back() -> None:
    log = jsonl.parse(LINES)
    assert log.plan == LOAD.plan
    assert (log.planned, log.aborted, log.notes, log.wall_started_at) == (4, "", (), 1_790_000_000.0)
    for read, record in zip(log.records, LOAD.records, strict=True):
        wanted = shifted(record)
        assert dataclasses.replace(wanted, detail="") == dataclasses.replace(read, detail="")
    assert [record.cause for record in log.records] == [
        Cause.OK, Cause.SERVER_ERROR, Cause.SHED_BY_CLIENT, Cause.CANCELLED,
    ]  # fmt: skip
    assert log.records[0].ttft_seconds == pytest.approx(0.031)


def test_stamps_count_from_the_start_of_the_stage() -> None:
    assert json.loads(LINES[1])["intended_at"] == 0.0
    assert json.loads(LINES[1])["first_content_at"] == 0.031


def test_details_of_others_are_short_and_printable() -> None:
    detail = jsonl.parse(LINES).records[1].detail
    assert len(detail) == 200
    assert detail.isprintable()


def test_last_line_cut_off_is_left_out_and_told() -> None:
    log = jsonl.parse([*LINES[:-1], LINES[-1][:40]], "requests-0-100qps.jsonl")
    assert len(log.records) == 3
    assert log.notes == ("requests-0-100qps.jsonl: the last line is cut off and left out (3 requests are whole)",)


def test_last_line_that_is_whole_but_wrong_is_an_error() -> None:
    with pytest.raises(StateError, match=r"r\.jsonl: line 5: not JSON; the file is damaged"):
        jsonl.parse([*LINES[:-1], LINES[-1][:40] + "\n"], "r.jsonl")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "r.jsonl: the file is empty"),
        (["\n", "  \n"], "r.jsonl: the file is empty"),
        (LINES[1:], "r.jsonl: it names no schema, not 'sre/gate-requests'"),
        ([LINES[0][:30]], "r.jsonl: line 1, column"),
        ([LINES[0].replace('"1.1"', '"3.1"')], "r.jsonl: schema version 3.1 is of a newer release"),
        ([LINES[0].replace('"rate_rps"', '"rate"')], "r.jsonl: line 1: plan.rate_rps: is missing"),
        ([LINES[0], LINES[1].replace('"ok"', '"fine"'), LINES[2]], "r.jsonl: line 2: cause: 'fine' is none of ok"),
        ([LINES[0], "[]\n", LINES[2]], "r.jsonl: line 2: not an object"),
    ],
)
def test_damaged_file_is_told_with_its_line(lines: list[str], said: str) -> None:
    with pytest.raises(StateError) as caught:
        jsonl.parse(lines, "r.jsonl")
    assert said in str(caught.value)


def test_header_values_that_are_credentials_are_not_written() -> None:
    kind = RequestClass("short", 1, 1, 1, headers=(("authorization", "Bearer hush"),))
    load = dataclasses.replace(LOAD, plan=dataclasses.replace(LOAD.plan, classes=(kind,)))
    assert "hush" not in "".join(jsonl.lines(load))


def test_one_line_alone_is_read() -> None:
    assert jsonl.parse_request_line(LINES[3]).number == 2
    with pytest.raises(codec.Unreadable):
        jsonl.parse_request_line("{}")
