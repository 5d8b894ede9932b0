"""
Files of other load tools, recorded from their real programs against the simulated engine (one in seven answers fails).

``recorded/``: vllm bench serve 0.32 (two runs appended to one file, 40/s), aiperf 0.13 (4 warm-up requests, then 40 at
20/s), guidellm 0.8.1 (40 at 20/s, constant). Texts, ids, hosts and paths were replaced by the word SCRUBBED.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sre.errors import ConfigError
from sre.gate.importers import ImportedRuns, fingerprint, imported, require_distinct, run_results
from sre.gate.records import Cause, RequestRecord
from sre.gate.report import codec
from sre.gate.stages import Arrivals, StageKind

FOLDER = Path(__file__).with_name("recorded")
VLLM = (FOLDER / "vllm_bench.json").read_text()
AIPERF = (FOLDER / "aiperf.jsonl").read_text()
GUIDELLM = (FOLDER / "guidellm.json").read_text()
FILES = {"vllm": VLLM, "aiperf": AIPERF, "guidellm": GUIDELLM}


def records(found: ImportedRuns) -> list[RequestRecord]:
    return [record for stage in found.stages for record in stage.load.records]


def causes(found: ImportedRuns) -> dict[str, int]:
    counted: dict[str, int] = {}
    for record in records(found):
        counted[record.cause.value] = counted.get(record.cause.value, 0) + 1
    return counted


def vllm(change: Callable[[dict[str, Any]], None] | None = None, **fields: Any) -> str:
    """The first document of the recording, changed."""
    found = json.loads(VLLM.splitlines()[0]) | fields
    if change is not None:
        change(found)
    return json.dumps(found)


def guidellm(change: Callable[[dict[str, Any]], None]) -> str:
    found = json.loads(GUIDELLM)
    change(found)
    return json.dumps(found)


def aiperf(change: Callable[[list[dict[str, Any]]], None]) -> str:
    found = [json.loads(line) for line in AIPERF.splitlines()]
    change(found)
    return "".join(json.dumps(line) + "\n" for line in found)


@pytest.mark.parametrize("tool", FILES)
def test_recording_is_told_by_its_content_and_becomes_runs(tool: str) -> None:
    found = imported(FILES[tool])
    assert found.tool.startswith(tool)
    runs = run_results([found])
    for number, run in enumerate(runs):
        assert (run.number, run.side, [stage.plan.run for stage in run.stages]) == (number, "candidate", [number])
        stage = run.stages[0]
        assert stage.plan.kind is StageKind.STAIRCASE
        assert stage.summary is not None
        total = stage.summary.classes["short"]
        assert total.planned == total.ok + total.failed
        assert total.failed > 0
        assert total.ttft.p99 == math.inf
        assert 0 < (total.ttft.p50 or 0) < 1
        assert stage.summary.in_flight_max > 1


@pytest.mark.parametrize("tool", FILES)
def test_times_are_in_order(tool: str) -> None:
    for record in records(imported(FILES[tool])):
        stamps = [record.intended_at, record.sent_at, record.first_content_at, record.last_content_at, record.ended_at]
        known = [stamp for stamp in stamps if stamp is not None]
        assert all(math.isfinite(stamp) for stamp in known)
        assert known == pytest.approx(sorted(known), abs=2e-3)
        assert record.intended_at >= 0
        assert (record.lag_seconds or 0) >= 0


@pytest.mark.parametrize("tool", FILES)
def test_nothing_of_prompts_answers_paths_or_hosts_is_taken(tool: str) -> None:
    assert "SCRUBBED" in FILES[tool]
    found = imported(FILES[tool])
    told = repr(codec.encode(found)) + "".join(json.dumps(codec.encode(run)) for run in run_results([found]))
    assert "SCRUBBED" not in told


def test_vllm_bench_as_it_was_recorded() -> None:
    found = imported(VLLM, "vllm")
    assert (found.tool, found.model, len(found.stages)) == ("vllm bench", "tiny", 2)
    assert causes(found) == {"ok": 46, "no_content": 2}
    plan = found.stages[0].load.plan
    assert (plan.name, plan.rate_rps, plan.arrivals) == ("40qps", 40.0, Arrivals.POISSON)
    first = found.stages[0].load.records[0]
    raw = json.loads(VLLM.splitlines()[0])
    assert first.ttft_seconds == pytest.approx(raw["ttfts"][0] + raw["queue_times"][0])
    assert first.e2e_seconds == pytest.approx(raw["latencies"][0] + raw["queue_times"][0], abs=1e-3)
    assert (first.chunks, first.output_tokens, first.prompt_tokens) == (8, 8, 6)
    assert first.max_gap_seconds == pytest.approx(max(raw["itls"][0]))
    assert any("errors inside a stream are invisible" in sentence for sentence in found.cannot_tell)
    assert any("was due is not recorded" in sentence for sentence in found.cannot_tell)


def test_vllm_over_chat_counts_the_first_content_not_the_role_chunk() -> None:
    def chat(document: dict[str, Any]) -> None:
        document["backend"] = document["endpoint_type"] = "openai-chat"
        document["ttfts"][0], document["itls"][0] = 0.003, [0.3, *[0.01] * 7]
        document["latencies"][0] = 0.373

    found = imported(vllm(chat))
    first = found.stages[0].load.records[0]
    assert first.first_content_at is not None
    assert first.sent_at is not None
    assert first.first_content_at - first.sent_at == pytest.approx(0.303)
    assert first.first_chunk_at == pytest.approx(first.sent_at + 0.003)
    assert (first.chunks, first.max_gap_seconds) == (8, 0.01)
    assert any("role chunk" in sentence for sentence in found.cannot_tell)
    second = found.stages[0].load.records[1]  # one gap fewer than tokens: no role chunk was counted
    assert second.first_content_at == second.first_chunk_at


def test_vllm_closed_loop_and_no_rate_are_told() -> None:
    found = imported(vllm(max_concurrency=4, request_rate="inf"))
    assert found.stages[0].load.plan.name == "imported"
    assert found.stages[0].checks == ()
    assert any("closed loop" in sentence for sentence in found.cannot_tell)
    assert any("without --request-rate" in sentence for sentence in found.cannot_tell)


def test_wait_for_a_place_counts_as_latency_and_as_the_clients_lateness() -> None:
    found = imported(vllm(queue_times=[0.5] * 24, max_concurrency=4))
    run = run_results([found])[0].stages[0]
    assert run.summary is not None
    assert run.summary.lag_p99_seconds == pytest.approx(0.5)


def test_vllm_of_before_latencies_and_queue_times_is_read() -> None:
    def older(document: dict[str, Any]) -> None:
        del document["latencies"], document["queue_times"]

    first = imported(vllm(older)).stages[0].load.records[0]
    assert first.e2e_seconds == pytest.approx(imported(vllm()).stages[0].load.records[0].e2e_seconds, abs=2e-3)


def test_requests_without_a_record_and_a_rate_not_kept_are_checks_that_fail() -> None:
    def stretched(document: dict[str, Any]) -> None:
        document["start_times"] = [1000 + index * 0.1 for index in range(24)]

    checks = {check.name: check for check in imported(vllm(stretched, num_prompts=60)).stages[0].checks}
    assert checks["all_requests_recorded"].ok is False
    assert "24 of 60 requests left a record" in checks["all_requests_recorded"].detail
    assert checks["rate_kept"].ok is False
    assert checks["rate_kept"].detail == "40qps: asked for 40 requests per second, sent 10 (allowed: 61.2% less)"
    assert all(check.ok for check in imported(vllm()).stages[0].checks)


def test_aiperf_as_it_was_recorded() -> None:
    found = imported(AIPERF, rate_rps=20)
    assert causes(found) == {"ok": 30, "no_content": 10}
    assert found.notes == ("file: 4 requests of the warm-up are left out",)
    load = found.stages[0].load
    assert load.plan.name == "20qps"
    lines = [json.loads(line) for line in AIPERF.splitlines()]
    measured = [line for line in lines if line["metadata"]["benchmark_phase"] == "profiling"]
    raw = next(line for line in measured if "error" not in line)
    due = raw["metadata"]["credit_issued_ns"]
    first = load.records[0]
    lag = (raw["metadata"]["request_start_ns"] - due) / 1e9
    assert first.lag_seconds == pytest.approx(lag, abs=1e-7)
    assert first.ttft_seconds == pytest.approx(lag + raw["metrics"]["time_to_first_token"]["value"] / 1e3, abs=1e-7)
    assert (first.output_tokens, first.prompt_tokens, first.chunks) == (8, 8, 8)
    assert load.wall_started_at == pytest.approx(due / 1e9)
    assert imported(AIPERF).stages[0].load.plan.name == "imported"


def test_aiperf_answer_without_the_servers_count_broke_inside_its_stream() -> None:
    def broken(lines: list[dict[str, Any]]) -> None:
        good = [line for line in lines if "error" not in line and line["metadata"]["benchmark_phase"] == "profiling"]
        for line in good[:5]:
            del line["metrics"]["usage_completion_tokens"]

    found = imported(aiperf(broken))
    assert causes(found) == {"ok": 25, "no_content": 10, "error_event": 5}
    assert "5 answers ended without token counts and count as broken" in found.notes[1]


def test_aiperf_without_any_count_says_that_it_cannot_tell() -> None:
    def uncounted(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line["metrics"].pop("usage_completion_tokens", None)

    found = imported(aiperf(uncounted))
    assert causes(found) == {"ok": 30, "no_content": 10}
    assert any("errors inside a stream are invisible in this file" in sentence for sentence in found.cannot_tell)


def test_aiperf_cancelled_requests_are_neither_answered_nor_failed() -> None:
    def cancelled(lines: list[dict[str, Any]]) -> None:
        lines[-1]["metadata"]["was_cancelled"] = True
        lines[-1].pop("error", None)

    found = imported(aiperf(cancelled))
    assert causes(found)["cancelled"] == 1
    check = next(check for check in found.stages[0].checks if check.name == "all_requests_ended")
    assert check.ok is False  # one of 40 is more than the 1 % above a P99
    assert "1 of 40 requests were cancelled" in check.detail


def test_guidellm_as_it_was_recorded() -> None:
    found = imported(GUIDELLM)
    assert (found.model, causes(found)) == ("tiny", {"ok": 37, "error_event": 3})
    load = found.stages[0].load
    assert (load.plan.name, load.plan.arrivals, load.planned) == ("20qps", Arrivals.CONSTANT, 40)
    gaps = [b.intended_at - a.intended_at for a, b in zip(load.records, load.records[1:], strict=False)]
    assert gaps == pytest.approx([0.05] * 39, abs=1e-4)
    raw = json.loads(GUIDELLM)["benchmarks"][0]["requests"]["successful"]
    by_lag = sorted(request["request_dispatch_delay"] for request in raw)
    lags = [record.lag_seconds for record in load.records if record.cause is Cause.OK]
    # The dispatch delay ends a little before the request starts.
    assert sorted(lags) == pytest.approx(by_lag, abs=5e-3)  # type: ignore[type-var]
    assert all(check.ok for check in found.stages[0].checks)


def test_guidellm_leaves_warm_up_out_and_says_what_is_missing() -> None:
    def warmed(document: dict[str, Any]) -> None:
        benchmark = document["benchmarks"][0]
        benchmark["warmup_duration"] = 0.51 + min(
            request["info"]["timings"]["targeted_start"] for request in benchmark["requests"]["successful"]
        ) - benchmark["start_time"]  # fmt: skip
        benchmark["metrics"]["request_totals"]["total"] = 50

    found = imported(guidellm(warmed))
    assert len(records(found)) in (29, 30)
    assert "requests of warm-up and cool-down are left out" in found.notes[0]
    check = next(check for check in found.stages[0].checks if check.name == "all_requests_recorded")
    assert check.ok is False


def test_guidellm_asked_by_time_lacks_what_rate_and_time_say() -> None:
    def timed(document: dict[str, Any]) -> None:
        document["benchmarks"][0]["config"]["constraints"] = {"max_duration": {"args": {"seconds": 10}}}

    check = next(c for c in imported(guidellm(timed)).stages[0].checks if c.name == "all_requests_recorded")
    assert check.ok is False
    assert "40 of 157 requests left a record" in check.detail


def test_guidellm_closed_loop_has_no_rate() -> None:
    def closed(document: dict[str, Any]) -> None:
        document["benchmarks"][0]["config"]["strategy"] = {"type_": "concurrent", "streams": 4}

    found = imported(guidellm(closed))
    assert found.stages[0].load.plan.name == "imported"
    assert any("'concurrent', a closed loop" in sentence for sentence in found.cannot_tell)


def test_sweep_is_the_stages_of_one_run_and_repeats_are_runs() -> None:
    def sweep(document: dict[str, Any]) -> None:
        first = document["benchmarks"][0]
        second = copy.deepcopy(first)
        second["config"]["strategy"]["rate"] = 18.0
        document["benchmarks"] = [first, second, first]

    runs = run_results([imported(guidellm(sweep))])
    assert [[stage.plan.name for stage in run.stages] for run in runs] == [["20qps", "18qps"], ["20qps"]]
    several = run_results([imported(VLLM), imported(VLLM)], side="B")
    assert [(run.number, run.side) for run in several] == [(0, "B"), (1, "B"), (2, "B"), (3, "B")]
    assert dict(fingerprint([imported(VLLM)]).fields) == {
        "arrivals": "poisson", "backend": "openai", "max_concurrency": "none", "model": "tiny",
        "prompt_tokens": "about 11", "stages": "40qps", "tool": "vllm bench",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "cause", "status"),
    [
        ("Service Unavailable", Cause.SERVER_ERROR, 503),
        ("Too Many Requests", Cause.RATE_LIMITED, 429),
        ("Not Found", Cause.CLIENT_ERROR, 404),
        ("HTTPStatusError(\"Server error '500 Internal' for url http://host/x\") status 500", Cause.SERVER_ERROR, 500),
        ("Traceback …\nasyncio.exceptions.TimeoutError\n", Cause.TIMEOUT, None),
        ("aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host secret:1", Cause.CONNECT, None),
        ("ClientPayloadError: Response payload is not completed", Cause.TRUNCATED, None),
        ("ServerDisconnectedError: Server disconnected: my prompt was …", Cause.TRANSPORT, None),
    ],
)
def test_kinds_of_errors_are_told_apart_and_their_text_is_not_kept(
    error: str, cause: Cause, status: int | None
) -> None:
    def failed(document: dict[str, Any]) -> None:
        document["errors"][0] = error

    record = imported(vllm(failed)).stages[0].load.records[0]
    assert (record.cause, record.status) == (cause, status)
    assert record.failed
    assert record.ttft_seconds == math.inf
    assert not any(word in record.detail for word in ("secret", "prompt", "host", "url"))


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        del document[name]

    return change


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *parts, last = (int(part) if part.isdigit() else part for part in path.split("."))
        place: Any = document
        for part in parts:
            place = place[part]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("text", "tool", "said"),
    [
        ("", None, "the file is empty; expected the result of `vllm bench serve"),
        (" \n", "aiperf", "the file is empty"),
        ("hello", None, "this is no JSON; expected"),
        ("rate,ttft\n1,2\n", "guidellm", "this is no JSON; expected guidellm's JSON report"),
        ('{"a": 1}', None, "this is no file of a load tool that is known here; expected"),
        ('{"schema": "sre/gate-result"}', None, "this is a file of sre itself, which needs no import"),
        ('{"input_config": {}, "metrics": {}}', None, "this is aiperf's summary, which holds no single requests"),
        (AIPERF, "vllm", "this is of aiperf, not of vllm; expected the result of `vllm bench serve"),
        (VLLM, "guidellm", "this is of vllm, not of guidellm; expected guidellm's JSON report"),
        (VLLM[:3000], None, "document 1 is damaged or cut off: "),
        (VLLM[:-500], None, "document 2 is damaged or cut off (1 before it are whole): "),
        (vllm(drop("start_times")), None, "document 1: it holds no single requests; run vllm bench with --save-det"),
        (vllm(drop("errors")), None, "document 1: errors: is missing; expected the result of"),
        (vllm(put("ttfts.3", "x")), None, "document 1: ttfts[3]: 'x' is not a number"),
        (vllm(put("ttfts", [1.0])), None, "document 1: ttfts holds 1 entries, start_times 24; the file"),
        (vllm(put("latencies.0", "inf")), None, "document 1: a time that is no number"),
        (VLLM + vllm(model_id="other"), None, "document 3: model_id is 'other', of document 1 'tiny'; give"),
        (AIPERF[:-300], None, "a/b.json: line 44, column "),
        (AIPERF.replace('"credit_issued_ns"', '"x"', 1), None, "line 1: metadata: credit_issued_ns: is missing"),
        (AIPERF.replace('"profiling"', '"warmup"'), None, "44 requests, none of them measured"),
        (AIPERF.replace('"unit": "ms"', '"unit": "fortnights"'), None, "unit 'fortnights' is none of ns, us, ms, s"),
        (AIPERF + GUIDELLM, None, "line 45: metadata: credit_issued_ns: is missing; expected aiperf's"),
        (GUIDELLM[:-300], None, "line 1, column"),
        (guidellm(put("metadata.version", 1)), None, "format version 1, this release of sre reads 2; expected gui"),
        (guidellm(put("benchmarks", [])), None, "it holds no benchmark"),
        (guidellm(put("benchmarks.0.requests", {"errored": []})), None, "benchmarks[0]: it holds no single requests"),
        (guidellm(put("benchmarks.0.requests.successful.2.info", 5)), None,
         "benchmarks[0]: requests.successful[2].info: 5 is not an object; expected guidellm's"),
    ],
)  # fmt: skip
def test_bad_file_is_told_in_a_sentence_with_its_name_and_what_was_expected(
    text: str, tool: str | None, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        imported(text, tool, where="a/b.json")
    assert str(caught.value).startswith("a/b.json: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tool", FILES)
def test_file_cut_anywhere_raises_only_our_error(tool: str) -> None:
    text = FILES[tool]
    for at in range(0, len(text), max(1, len(text) // 60)):
        with contextlib.suppress(ConfigError):
            imported(text[:at])


@pytest.mark.parametrize("tool", FILES)
def test_one_measurement_given_twice_is_refused_under_any_name(tool: str) -> None:
    """Copies do not vary: three of them look like runs that show every regression."""
    found = imported(FILES[tool])
    require_distinct([found], ["a"])
    with pytest.raises(ConfigError, match=r"^copy: its .* holds the same requests as a, time by time"):
        require_distinct([found, imported(FILES[tool])], ["a", "copy"])
    respaced = json.dumps(json.loads(VLLM.splitlines()[0]), indent=1)
    with pytest.raises(ConfigError, match=r"^b: "):
        require_distinct([imported(VLLM), imported(respaced)], ["a", "b"])
    with pytest.raises(ConfigError, match=r"^one file: .* as one file"):
        require_distinct([imported(VLLM.splitlines()[0] + "\n" + VLLM.splitlines()[0] + "\n")], ["one file"])


def test_benchmarks_without_any_answer_are_not_copies_of_each_other() -> None:
    lost = imported(vllm(lambda document: document.update(errors=["gone"] * len(document["errors"]))))
    require_distinct([lost, lost], ["a", "b"])
