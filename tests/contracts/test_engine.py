"""
The contract of an inference engine: the same assertions on the simulated engine and on the real vLLM (CPU build).

Here its routes and their answers; metrics, orders and ends in the files beside. What the two are known to differ in is
listed in DIFFERENCES.md; what is asserted here holds for both.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from tests.contracts.streams import MESSAGES
from tests.support.engines import EngineProcess
from tests.support.vllm import MAX_MODEL_LEN

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def events(text: str) -> list[Any]:
    """Payloads of an SSE body; the end mark as it is."""
    payloads = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in payloads]


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
