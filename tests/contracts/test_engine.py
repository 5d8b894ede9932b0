"""
The contract of an inference engine: the same assertions on the simulated engine and on the real vLLM (CPU build).

What the two are known to differ in is listed in DIFFERENCES.md beside this file; what is asserted here holds for both.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from sre.metrics import vllm
from sre.metrics.types import Kind, Metric
from tests.conftest import WaitUntil
from tests.support.engines import EngineProcess, Exchange
from tests.support.vllm import MAX_MODEL_LEN

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

STEPS = vllm.ITERATION_TOKENS.sample
ENDLESS = 15_000
"""Tokens of an answer that is broken off: tens of seconds on both engines."""
LONG = 3000
"""Tokens of an answer that is waited for: seconds, long enough to break into."""
PATIENCE_SECONDS = 90.0
"""A real engine on two cores that others use, too, takes its time; on quiet ones all of this takes seconds."""
MESSAGES = [{"role": "user", "content": "Hello there"}]


def events(text: str) -> list[Any]:
    """Payloads of an SSE body; the end mark as it is."""
    payloads = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in payloads]


class Stream:
    """A streamed completion read by a thread of its own."""

    def __init__(self, engine: EngineProcess, tokens: int, path: str = "/v1/completions", **fields: Any) -> None:
        body = {"model": engine.model, "max_tokens": tokens, "ignore_eos": True, "stream": True, **fields}
        body |= {"messages": MESSAGES} if "chat" in path else {"prompt": "Hello there"}
        self._connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=120)
        self._connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            for line in self._answer:
                if line.strip():
                    self.lines.append(line.decode().strip())

    def events(self) -> list[Any]:
        """All payloads, when the stream has ended."""
        self._finish(120)
        return [p if p == "[DONE]" else json.loads(p) for p in (line.removeprefix("data: ") for line in self.lines)]

    def finish_reason(self) -> str | None:
        """How the stream ended."""
        *_, last, done = self.events()
        assert done == "[DONE]"
        reason: str | None = last["choices"][0]["finish_reason"]
        return reason

    def _finish(self, timeout: float) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive()
        self._answer.close()
        self._connection.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


# routes and their answers


def test_health_ping_version_models_load(engine: EngineProcess) -> None:
    assert engine.get("/health").status_code == 200
    assert engine.get("/health").content == b""
    assert engine.get("/ping").status_code == 200
    assert engine.post("/ping").status_code == 200
    assert engine.get("/version").json()["version"].startswith("0.")
    assert engine.get("/load").json() == {"server_load": 0}
    models = engine.get("/v1/models").json()
    assert models["object"] == "list"
    assert [(item["id"], item["object"], item["max_model_len"]) for item in models["data"]] == [
        (engine.model, "model", MAX_MODEL_LEN)
    ]


def test_unknown_paths_and_methods(engine: EngineProcess) -> None:
    assert (engine.get("/nosuch").status_code, engine.get("/nosuch").json()) == (404, {"detail": "Not Found"})
    wrong = engine.get("/v1/completions")
    assert (wrong.status_code, wrong.json()) == (405, {"detail": "Method Not Allowed"})


COMPLETION_FIELDS = [
    "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage", "kv_transfer_params",
    "ec_transfer_params", "metrics",
]  # fmt: skip
CHAT_FIELDS = [
    *COMPLETION_FIELDS[:8], "prompt_logprobs", "prompt_token_ids", "prompt_text", *COMPLETION_FIELDS[8:],
]  # fmt: skip


def test_completion(engine: EngineProcess) -> None:
    answer = engine.complete(5, n=2)
    document = answer.json()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert b'"choices":[{"index":0,"text":' in answer.content
    assert list(document) == COMPLETION_FIELDS
    assert document["object"] == "text_completion"
    assert list(document["choices"][0]) == [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs",
        "prompt_token_ids", "routed_experts",
    ]  # fmt: skip
    assert [(choice["index"], choice["finish_reason"]) for choice in document["choices"]] == [
        (0, "length"),
        (1, "length"),
    ]
    usage = document["usage"]
    assert usage["completion_tokens"] == 10
    assert usage["total_tokens"] == usage["prompt_tokens"] + 10


def test_completion_defaults_to_16_tokens_and_takes_several_prompts(engine: EngineProcess) -> None:
    body = {"prompt": ["one", "two"], "ignore_eos": True}
    document = engine.post("/v1/completions", body).json()
    assert [choice["index"] for choice in document["choices"]] == [0, 1]
    assert document["usage"]["completion_tokens"] == 32


def test_chat_completion(engine: EngineProcess) -> None:
    body = {"model": engine.model, "messages": MESSAGES, "max_tokens": 4, "ignore_eos": True}
    document = engine.post("/v1/chat/completions", body).json()
    assert list(document) == CHAT_FIELDS
    assert document["object"] == "chat.completion"
    (choice,) = document["choices"]
    assert list(choice)[:2] == ["index", "message"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert document["usage"]["completion_tokens"] == 4


def test_completion_stream(engine: EngineProcess) -> None:
    answer = engine.complete(4, stream=True, stream_options={"include_usage": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.text.endswith("data: [DONE]\n\n")
    *chunks, usage, done = events(answer.text)
    assert done == "[DONE]"
    assert list(chunks[0]) == ["id", "object", "created", "model", "choices"]
    assert list(chunks[0]["choices"][0]) == [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids",
    ]  # fmt: skip
    assert all('"choices":[{"index":0,"text":' in line for line in answer.text.split("\n\n")[: len(chunks)])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert list(usage) == ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert {chunk["id"] for chunk in (*chunks, usage)} == {usage["id"]}


def test_chat_stream(engine: EngineProcess) -> None:
    body = {"model": engine.model, "messages": MESSAGES, "max_tokens": 3, "ignore_eos": True, "stream": True, "n": 2}
    answer = engine.post("/v1/chat/completions", body)
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks[:2]] == [{"role": "assistant", "content": ""}] * 2
    assert list(chunks[0]) == ["id", "object", "created", "model", "choices", "prompt_token_ids", "prompt_text"]
    content = [chunk for chunk in chunks[2:] if chunk["choices"][0]["finish_reason"] is None]
    ends = [chunk for chunk in chunks if chunk["choices"][0]["finish_reason"] is not None]
    assert all(list(c["choices"][0]) == ["index", "delta", "logprobs", "finish_reason", "token_ids"] for c in content)
    assert sorted(chunk["choices"][0]["index"] for chunk in ends) == [0, 1]
    for chunk in ends:
        assert list(chunk) == ["id", "object", "created", "model", "choices", "system_fingerprint"]
        assert list(chunk["choices"][0]) == [
            "index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids",
        ]  # fmt: skip


REFUSED: dict[str, tuple[dict[str, Any] | bytes, int, str, str | None]] = {
    "max_tokens 0": ({"prompt": "x", "max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
    "max_tokens too large": ({"prompt": "x", "max_tokens": 100_000}, 400, "BadRequestError", "max_tokens"),
    "prompt too long": ({"prompt": "x" * 70_000}, 400, "BadRequestError", "input_tokens"),
    "frequency_penalty": ({"prompt": "x", "frequency_penalty": 3}, 400, "BadRequestError", None),
    "presence_penalty": ({"prompt": "x", "presence_penalty": -2.5}, 400, "BadRequestError", None),
    "temperature": ({"prompt": "x", "temperature": -1}, 400, "BadRequestError", "temperature"),
    "n 0": ({"prompt": "x", "n": 0}, 400, "BadRequestError", None),
    "no prompt": ({}, 400, "BadRequestError", "prompt"),
    "not a number": ({"prompt": "x", "max_tokens": "abc"}, 400, "Bad Request", "body.max_tokens"),
    "options without stream": (
        {"prompt": "x", "stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options",
    ),
    "bad JSON": (b"{bad", 400, "Bad Request", "body.1"),
    "no object": (b"[1]", 400, "Bad Request", "body"),
    "unknown model": ({"model": "nope", "prompt": "x"}, 404, "NotFoundError", "model"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_requests(engine: EngineProcess, name: str) -> None:
    body, status, kind, param = REFUSED[name]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    answer = requests.post(engine.url + "/v1/completions", data=data, headers=headers, timeout=30)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"], error["code"]) == (status, kind, param, status)
    assert error["message"]


def test_chat_needs_messages_and_a_json_body(engine: EngineProcess) -> None:
    missing = engine.post("/v1/chat/completions", {"model": engine.model}).json()["error"]
    assert (missing["type"], missing["param"], missing["code"]) == ("Bad Request", "body.messages", 400)
    empty = engine.post("/v1/chat/completions", {"messages": []}).json()["error"]
    assert (empty["type"], empty["code"]) == ("BadRequestError", 400)
    text = requests.post(engine.url + "/v1/completions", data="{}", headers={"content-type": "text/plain"}, timeout=30)
    assert text.status_code == 400


def test_unknown_fields_and_priorities_are_accepted(engine: EngineProcess) -> None:
    answer = engine.complete(1, priority=5, nonsense={"a": 1})
    assert answer.status_code == 200
    body = {"prompt": "x", "max_tokens": 1}
    for priority in ("3", "abc"):
        assert engine.post("/v1/completions", body, headers={"X-Vllm-Priority": priority}).status_code == 200


def test_request_ids(engine: EngineProcess) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    answer = engine.post("/v1/completions", body, headers={"X-Request-Id": "gw-abc"})
    assert answer.json()["id"] == "cmpl-gw-abc"
    assert answer.headers["x-request-id"] == "gw-abc"
    chat = engine.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1})
    assert chat.json()["id"].startswith("chatcmpl-")
    assert len(chat.headers["x-request-id"]) == 32


def test_load_header(engine: EngineProcess) -> None:
    answer = engine.post(
        "/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"endpoint-load-metrics-format": "json"}
    )
    head, _, load = answer.headers["endpoint-load-metrics"].partition(" ")
    assert head == "JSON"
    assert json.loads(load)["named_metrics"].keys() == {"num_requests_waiting", "kv_cache_usage_perc"}


def test_tokenize_and_back(engine: EngineProcess) -> None:
    document = engine.post("/tokenize", {"model": engine.model, "prompt": "Hello there"}).json()
    assert list(document) == ["count", "max_model_len", "tokens", "token_strs"]
    assert document["count"] == len(document["tokens"])
    back = engine.post("/detokenize", {"model": engine.model, "tokens": document["tokens"]}).json()
    assert back == {"prompt": "Hello there"}


# metrics


def _labels(metric: Metric) -> set[str]:
    return set(metric.labels)


@pytest.fixture
def families(engine: EngineProcess) -> dict[str, Any]:
    assert engine.complete(2).status_code == 200
    found: dict[str, Any] = engine.families()
    return found


@pytest.mark.parametrize("metric", [*vllm.ENGINE_METRICS, *vllm.HTTP_METRICS], ids=lambda metric: metric.name)
def test_metric_has_the_type_labels_and_buckets_of_the_catalogue(families: dict[str, Any], metric: Metric) -> None:
    family = families[metric.name]
    assert family.type == metric.kind.value
    samples = [sample for sample in family.samples if sample.name == metric.sample]
    assert samples
    assert all(set(sample.labels) == _labels(metric) for sample in samples)
    if metric.values:
        assert {sample.labels[metric.labels[-1]] for sample in samples} == set(metric.values)
    if metric.kind is Kind.HISTOGRAM:
        bounds = {sample.labels["le"] for sample in family.samples if sample.name == metric.name + "_bucket"}
        assert bounds == {str(float(bound)) for bound in metric.bounds(MAX_MODEL_LEN)} | {"+Inf"}
    if metric.kind is not Kind.GAUGE:
        assert families[metric.name + "_created"].type == "gauge"


def test_no_metric_is_missing_in_the_catalogue(families: dict[str, Any]) -> None:
    known = {metric.name for metric in (*vllm.ENGINE_METRICS, vllm.CACHE_CONFIG_INFO)}
    known |= {vllm.SLEEP_OPERATION_DURATION.name, vllm.SLEEP_OPERATIONS_IN_FLIGHT.name}
    found = {name.removesuffix("_created") for name in families if name.startswith("vllm:")}
    assert found - known == set()


def test_cache_config_info(families: dict[str, Any]) -> None:
    (sample,) = families[vllm.CACHE_CONFIG_INFO.name].samples
    assert sample.value == 1
    assert _labels(vllm.CACHE_CONFIG_INFO) <= set(sample.labels)
    assert int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"]) > 0
    assert "model_name" not in sample.labels


def test_process_metrics_have_no_labels(families: dict[str, Any]) -> None:
    assert [sample.labels for sample in families["process_resident_memory_bytes"].samples] == [{}]


def test_a_finished_request_is_counted(engine: EngineProcess, wait_until: WaitUntil) -> None:
    counters = [
        vllm.GENERATION_TOKENS, vllm.PROMPT_TOKENS, vllm.TIME_TO_FIRST_TOKEN, vllm.INTER_TOKEN_LATENCY,
        vllm.E2E_REQUEST_LATENCY, vllm.REQUEST_QUEUE_TIME, vllm.REQUEST_PROMPT_TOKENS, vllm.ITERATION_TOKENS,
        vllm.REQUEST_PARAMS_N, vllm.REQUEST_MAX_NUM_GENERATION_TOKENS,
    ]  # fmt: skip
    before = {metric: engine.value(metric.sample) for metric in counters}
    length = engine.value("vllm:request_success_total", finished_reason="length")
    usage = engine.complete(6).json()["usage"]
    wait_until(lambda: engine.value("vllm:request_success_total", finished_reason="length") == length + 1)
    grown = {metric: engine.value(metric.sample) - before[metric] for metric in counters}
    assert grown == {
        vllm.GENERATION_TOKENS: 6,
        vllm.PROMPT_TOKENS: usage["prompt_tokens"],
        vllm.TIME_TO_FIRST_TOKEN: 1,
        vllm.INTER_TOKEN_LATENCY: 5,
        vllm.E2E_REQUEST_LATENCY: 1,
        vllm.REQUEST_QUEUE_TIME: 1,
        vllm.REQUEST_PROMPT_TOKENS: 1,
        vllm.ITERATION_TOKENS: 6,
        vllm.REQUEST_PARAMS_N: 1,
        vllm.REQUEST_MAX_NUM_GENERATION_TOKENS: 1,
    }


def test_prefix_cache_counts_tokens(engine: EngineProcess) -> None:
    def counts() -> tuple[float, float]:
        return engine.value("vllm:prefix_cache_queries_total"), engine.value("vllm:prefix_cache_hits_total")

    prompt = "a b c d e f g h " * 20
    queries, hits = counts()
    first = engine.complete(1, prompt=prompt).json()["usage"]["prompt_tokens"]
    engine.complete(1, prompt=prompt)
    assert counts()[0] - queries == 2 * first
    assert 0 < counts()[1] - hits < first


def test_http_metrics_group_the_status_and_leave_probes_out(engine: EngineProcess) -> None:
    engine.get("/nosuch")
    engine.post("/v1/completions", {"prompt": "x", "n": 0})
    labels = {
        (sample.labels["handler"], sample.labels["method"], sample.labels["status"])
        for sample in engine.families()["http_requests"].samples
    }
    assert {("/v1/completions", "POST", "2xx"), ("/v1/completions", "POST", "4xx"), ("none", "GET", "4xx")} <= labels
    assert not {handler for handler, _, _ in labels} & vllm.HTTP_NOT_COUNTED


# load, aborts, pauses


def test_a_client_that_goes_away_ends_its_requests_uncounted(engine: EngineProcess, wait_until: WaitUntil) -> None:
    aborted = engine.value("vllm:request_success_total", finished_reason="abort")
    exchange = Exchange(engine, ENDLESS, n=8)
    try:
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 8, PATIENCE_SECONDS)
        assert engine.get("/load").json() == {"server_load": 1}
    finally:
        exchange.close()
    assert exchange.received == b""
    wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 0, PATIENCE_SECONDS)
    wait_until(lambda: engine.get("/load").json() == {"server_load": 0}, PATIENCE_SECONDS)
    assert engine.value("vllm:request_success_total", finished_reason="abort") == aborted


def test_abort_requests_ends_with_200_and_finish_reason_abort(
    engine: EngineProcess, pool: ThreadPoolExecutor, wait_until: WaitUntil
) -> None:
    whole = pool.submit(engine.complete, ENDLESS)
    stream = _running_stream(engine, wait_until, ENDLESS, path="/v1/chat/completions")
    wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 2, PATIENCE_SECONDS)
    assert engine.post("/abort_requests", {}).json() == {"status": "aborted", "aborted": 2}
    answer = whole.result(PATIENCE_SECONDS)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["finish_reason"] == "abort"
    assert stream.finish_reason() == "abort"
    assert engine.post("/abort_requests", {"request_ids": ["x"]}).json() == {"status": "aborted", "aborted": 1}


def test_pause_abort_lets_new_requests_hang_until_resume(
    engine: EngineProcess, pool: ThreadPoolExecutor, wait_until: WaitUntil
) -> None:
    running = _running_stream(engine, wait_until, ENDLESS)
    assert engine.get("/is_paused").json() == {"is_paused": False}
    assert engine.post("/pause?mode=abort").json() == {"status": "paused"}
    try:
        assert running.finish_reason() == "abort"
        assert engine.get("/is_paused").json() == {"is_paused": True}
        held = pool.submit(engine.complete, 3)
        wait_until(lambda: engine.get("/load").json() == {"server_load": 1}, PATIENCE_SECONDS)
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 0, PATIENCE_SECONDS)
        assert engine.value(vllm.REQUESTS_WAITING.sample) == 0
        assert engine.get("/health").status_code == 200
        assert not held.done()
    finally:
        assert engine.post("/resume").json() == {"status": "resumed"}
    assert held.result(PATIENCE_SECONDS).json()["choices"][0]["finish_reason"] == "length"


def test_pause_keep_freezes_running_requests(engine: EngineProcess, wait_until: WaitUntil) -> None:
    exchange = Exchange(engine, ENDLESS)
    try:
        wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 1, PATIENCE_SECONDS)
        assert engine.post("/pause?mode=keep").json() == {"status": "paused"}
        try:
            wait_until(_flat(engine), PATIENCE_SECONDS)
            steps = engine.value(STEPS)
            assert engine.value(vllm.REQUESTS_RUNNING.sample) == 1
            assert exchange.received == b""
        finally:
            engine.post("/resume")
        wait_until(lambda: engine.value(STEPS) > steps, PATIENCE_SECONDS)
    finally:
        exchange.close()
    wait_until(lambda: engine.value(vllm.REQUESTS_RUNNING.sample) == 0, PATIENCE_SECONDS)


def test_pause_wait_returns_when_running_requests_have_finished(engine: EngineProcess, wait_until: WaitUntil) -> None:
    running = _running_stream(engine, wait_until, LONG)
    try:
        assert engine.post("/pause?mode=wait").json() == {"status": "paused"}
        assert running.finish_reason() == "length"
    finally:
        engine.post("/resume")
    wrong = engine.post("/pause?mode=bogus").json()["error"]
    assert (wrong["type"], wrong["param"], wrong["code"]) == ("Bad Request", "query.mode", 400)


def test_sleep_is_told_by_the_gauge(engine: EngineProcess) -> None:
    def state() -> dict[str, float]:
        samples = engine.families()[vllm.ENGINE_SLEEP_STATE.name].samples
        return {sample.labels["sleep_state"]: sample.value for sample in samples}

    assert state() == {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    assert engine.post("/sleep?level=1").json() == {"status": "sleeping", "level": 1}
    try:
        assert engine.get("/is_sleeping").json() == {"is_sleeping": True}
        assert state() == {"awake": 0, "weights_offloaded": 1, "discard_all": 0}
    finally:
        assert engine.post("/wake_up").json() == {"status": "awake", "tags": None}
    assert engine.get("/is_sleeping").json() == {"is_sleeping": False}
    families = engine.families()
    for metric in (vllm.SLEEP_OPERATION_DURATION, vllm.SLEEP_OPERATIONS_IN_FLIGHT):
        assert families[metric.name].type == metric.kind.value
    bounds = {s.labels["le"] for s in families[vllm.SLEEP_OPERATION_DURATION.name].samples if "le" in s.labels}
    assert bounds == {str(float(bound)) for bound in vllm.SLEEP_OPERATION} | {"+Inf"}


def test_reset_prefix_cache(engine: EngineProcess) -> None:
    assert engine.post("/reset_prefix_cache").json() == {"success": True}


# faults


def test_a_stopped_core_looks_healthy_and_stalls_and_loses_nothing(
    engine: EngineProcess, pool: ThreadPoolExecutor, wait_until: WaitUntil
) -> None:
    core, steps = engine.core_pid, engine.value(STEPS)
    os.kill(core, signal.SIGSTOP)
    try:
        whole = [pool.submit(engine.complete, 20) for _ in range(2)]
        stream = Stream(engine, 20)
        wait_until(lambda: engine.get("/load").json() == {"server_load": 3}, PATIENCE_SECONDS)
        for path in ("/health", "/ping", "/v1/models", "/metrics", "/version"):
            assert engine.get(path).status_code == 200
        with pytest.raises(requests.Timeout):
            engine.get("/is_paused", timeout=1.5)  # asks the core: the one thing that tells
        assert engine.value(STEPS) == steps
        assert engine.value(vllm.REQUESTS_RUNNING.sample) == 0  # the gauges are those of the last step
        assert engine.value(vllm.REQUESTS_WAITING.sample) == 0
        assert stream.lines == []
        assert not any(request.done() for request in whole)
    finally:
        os.kill(core, signal.SIGCONT)
    assert [request.result(PATIENCE_SECONDS).json()["usage"]["completion_tokens"] for request in whole] == [20, 20]
    assert stream.finish_reason() == "length"


def _running_stream(engine: EngineProcess, wait_until: WaitUntil, tokens: int, path: str = "/v1/completions") -> Stream:
    """A stream of ``tokens`` that has just begun."""
    stream = Stream(engine, tokens, path)
    wait_until(lambda: len(stream.lines) > 1, PATIENCE_SECONDS, interval=0.01)
    return stream


def _flat(engine: EngineProcess) -> Callable[[], bool]:
    """True once two looks, 0.5 s apart, saw the same number of steps and tokens."""

    def look() -> tuple[float, float]:
        families = engine.families()
        steps = next(s.value for s in families[vllm.ITERATION_TOKENS.name].samples if s.name == STEPS)
        tokens = next(
            s.value for s in families[vllm.GENERATION_TOKENS.name].samples if s.name == vllm.GENERATION_TOKENS.sample
        )
        return steps, tokens

    def flat() -> bool:
        before = look()
        time.sleep(0.5)  # flatness shows only over time
        return look() == before

    return flat
