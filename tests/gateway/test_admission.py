"""Who gets in, what is refused, and how a refusal reads."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from sre.actions.types import PoolDesired, RejectReason
from sre.settings.stack import EngineSettings
from sre.stack.gateway_names import open_gateway
from tests.gateway.harness import Bench, engine_settings, running, until

pytestmark = pytest.mark.integration

TWO_POOLS = (EngineSettings(name="a", model="m"), EngineSettings(name="b", model="org/other"))


def error_code(text: str) -> str:
    """Code of an error in OpenAI's form; fails on any other form."""
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return str(error["code"])


async def raw(bench: Bench, request: bytes, timeout: float = 30.0) -> str:
    """Send bytes as they are; return the answer up to the end of the connection or of a short silence."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.envoy.stack.gateway.port)
    answer = b""
    try:
        writer.write(request)
        async with asyncio.timeout(timeout):
            while chunk := await reader.read(65536):
                answer += chunk
                head, _, body = answer.partition(b"\r\n\r\n")
                if b"content-length: %d\r\n" % len(body) in head + b"\r\n":
                    break
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return answer.decode("utf-8", "replace")


@pytest.mark.parametrize("reason", list(RejectReason))
async def test_refusal_names_its_reason_in_header_and_body(short_dir: Path, reason: RejectReason) -> None:
    async with running(short_dir) as bench:
        desired = replace(open_gateway(bench.envoy.stack), pools=(PoolDesired("m", 100, reason, 17),))
        assert await bench.gateway.apply(desired) is True
        status, headers, text = await bench.ask()
        assert status == 503
        assert headers["x-sre-reason"] == reason.value
        assert headers["x-sre-rejected"] == "1"
        assert headers["retry-after"] == "17"
        assert headers["content-type"] == "application/json"
        assert error_code(text) == ("circuit_half_open" if reason is RejectReason.RAMP else "circuit_open")
        assert bench.engines["a"].seen == []
        (ended,) = await bench.finished(1)
        assert (ended.detail, ended.engine, ended.model) == (reason.value, None, "m")


async def test_open_breaker_lets_information_through_and_only_its_own_pool_is_refused(short_dir: Path) -> None:
    async with running(short_dir, engines=TWO_POOLS) as bench:
        await bench.gateway.apply(
            replace(open_gateway(bench.envoy.stack), pools=(PoolDesired("m", 100, RejectReason.HANG),))
        )
        assert (await bench.ask(model="m"))[0] == 503
        assert (await bench.ask(model="org/other"))[0] == 200
        for path in ("/health", "/version", "/v1/models"):
            async with bench.http.get(bench.envoy.url + path) as response:
                assert response.status == 200


async def test_share_of_a_ramp_is_refused(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.gateway.apply(
            replace(open_gateway(bench.envoy.stack), pools=(PoolDesired("m", 75, RejectReason.RAMP),))
        )
        statuses = [(await bench.ask())[0] for _ in range(200)]
        assert 115 <= statuses.count(503) <= 182  # 75 % of 200, within 5 standard deviations
        assert set(statuses) == {200, 503}


async def test_offline_traffic_is_shed_alone(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        await bench.gateway.apply(replace(open_gateway(bench.envoy.stack), offline_shed_percent=100))
        status, headers, text = await bench.ask(headers={"x-request-type": "Offline"})
        assert (status, headers["x-sre-reason"], headers["retry-after"]) == (503, "shed_offline", "30")
        assert error_code(text) == "shed_offline"
        assert (await bench.ask("/v1/batch/completions"))[1]["x-sre-reason"] == "shed_offline"
        assert (await bench.ask())[0] == 200


async def test_batch_path_reaches_the_engine_as_its_own_route(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        assert (await bench.ask("/v1/batch/completions"))[0] == 200
        assert bench.engines["a"].seen[0][0] == "/v1/completions"
        (ended,) = await bench.finished(1)
        assert (ended.path, ended.detail) == ("/v1/batch/completions", "ok")


async def test_concurrency_limit_is_a_runtime_key_and_spares_running_requests(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        base = open_gateway(bench.envoy.stack)
        await bench.gateway.apply(replace(base, max_concurrent_requests=3))
        held = [asyncio.create_task(bench.ask(user="hang")) for _ in range(3)]
        await until(lambda: _open(bench, 3), "three requests at the engine")
        status, headers, text = await bench.ask()
        assert (status, headers["x-sre-reason"], headers["x-sre-rejected"]) == (503, "concurrency_limit", "1")
        assert headers["retry-after"] == "5"
        assert error_code(text) == "concurrency_limit"
        high = asyncio.create_task(bench.ask(headers={"x-priority": "high"}))
        assert (await high)[0] == 200  # an own lane
        await bench.gateway.apply(replace(base, max_concurrent_requests=1))
        bench.engines["a"].release.set()
        assert [answer[0] for answer in await asyncio.gather(*held)] == [200, 200, 200]
        (refused, *_) = await bench.finished(1)
        assert (refused.detail, refused.engine) == ("concurrency_limit", None)


async def test_token_bucket_refuses_with_429_and_can_be_switched_off(short_dir: Path) -> None:
    async with running(short_dir, rate_limit_requests_per_second=0.01, rate_limit_burst=3) as bench:
        answers = [await bench.ask() for _ in range(6)]
        assert [a[0] for a in answers] == [200, 200, 200, 429, 429, 429]
        assert answers[-1][1]["x-sre-reason"] == "rate_limited"
        assert answers[-1][1]["retry-after"] == "5"
        assert error_code(answers[-1][2]) == "rate_limited"
        ended = await bench.finished(6)
        assert [(r.detail, r.engine) for r in ended[3:]] == [("rate_limited", None)] * 3
        await bench.gateway.apply(replace(open_gateway(bench.envoy.stack), rate_limit_enforced=False))
        assert (await bench.ask())[0] == 200


async def test_refusals_take_no_token(short_dir: Path) -> None:
    async with running(short_dir, rate_limit_requests_per_second=0.01, rate_limit_burst=2) as bench:
        for _ in range(5):
            assert (await bench.ask(model="unknown"))[0] == 404
        assert [(await bench.ask())[0] for _ in range(3)] == [200, 200, 429]


async def test_body_model_chooses_the_pool(short_dir: Path) -> None:
    async with running(short_dir, engines=TWO_POOLS) as bench:
        assert (await bench.ask(model="org/other"))[0] == 200
        assert (await bench.ask(model="m"))[0] == 200
        assert [len(bench.engines[n].seen) for n in ("a", "b")] == [1, 1]
        for model in ("nobody", "M", "m ", 5, None, ["m"]):
            status, headers, text = await bench.ask(model=model)
            assert status == (400 if model is None or model == ["m"] else 404), model
            assert headers["x-sre-rejected"] == "1"
            assert error_code(text) in {"model_not_found", "model_required"}
        async with bench.http.post(bench.envoy.url + "/v1/completions", json={"prompt": "x"}) as response:
            assert (response.status, error_code(await response.text())) == (400, "model_required")
        async with bench.http.get(bench.envoy.url + "/v1/models") as response:
            assert [m["id"] for m in (await response.json())["data"]] == ["m", "org/other"]
        ended = await bench.finished(2)
        assert [(r.model, r.engine) for r in ended[:2]] == [("org/other", "b"), ("m", "a")]


async def test_with_one_pool_a_body_without_model_goes_to_it(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        async with bench.http.post(bench.envoy.url + "/v1/completions", json={"prompt": "x"}) as response:
            assert response.status == 200
        status, headers, text = await bench.ask(model="nobody")
        assert (status, headers["x-sre-reason"], error_code(text)) == (404, "model_not_found", "model_not_found")
        async with bench.http.get(bench.envoy.url + "/v1/models") as response:
            assert (await response.json())["data"] == [{"id": "from-engine"}]


@pytest.mark.parametrize(
    "path",
    [
        "/pause", "/collective_rpc", "/v1/completions/", "/v1/completionsx", "/V1/completions", "/metrics", "/",
        "/v1/models/../../pause", "/v1//completions/../load_lora_adapter", "/%70ause", "//pause", "/v1/./completions",
        "/v1/completions;x",
    ],
)  # fmt: skip
async def test_path_that_is_not_listed_never_reaches_an_engine(short_dir: Path, path: str) -> None:
    async with running(short_dir) as bench:
        answer = await raw(
            bench,
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
            + b"content-length: 2\r\n\r\n{}",
        )
        head, _, body = answer.partition("\r\n\r\n")
        assert "x-sre-reason: path_not_allowed" in head
        assert (head.split(" ")[1], error_code(body)) == ("404", "path_not_found")
        assert bench.engines["a"].seen == []


async def test_listed_path_passes_with_a_query(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        assert (await bench.ask("/v1/completions?api-version=1"))[0] == 200
        assert bench.engines["a"].seen[0][0] == "/v1/completions"


async def test_clients_cannot_set_what_steers_the_engine(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        sent = {
            "x-request-id": "mine", "X-Vllm-Priority": "-100", "X-data-parallel-rank": "3", "Accept-Encoding": "gzip",
            "x-priority": "low",
        }  # fmt: skip
        _, headers, _ = await bench.ask(headers=sent)
        _, seen, _ = bench.engines["a"].seen[0]
        assert seen["x-request-id"] == headers["x-request-id"] != "mine"
        assert len(seen["x-request-id"]) == 36
        assert not {"x-vllm-priority", "x-data-parallel-rank", "accept-encoding"} & set(seen)
        assert seen["x-priority"] == "low"


async def test_untrusted_clients_have_no_priority(short_dir: Path) -> None:
    async with running(short_dir, trust_client_priority=False) as bench:
        await bench.gateway.apply(replace(open_gateway(bench.envoy.stack), offline_shed_percent=100))
        assert (await bench.ask(headers={"x-priority": "high", "x-request-type": "offline"}))[0] == 200
        assert not {"x-priority", "x-request-type"} & set(bench.engines["a"].seen[0][1])


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b'{"model": "m"'),
        ("application/json", b"\x00\xff\xfe"),
        ("application/json", b"hello"),
        ("text/plain", b'{"model": "m"}'),
        ("application/x-www-form-urlencoded", b"model=m"),
    ],
)
async def test_body_that_is_not_json_is_refused_clearly(short_dir: Path, content_type: str, body: bytes) -> None:
    async with running(short_dir) as bench:
        url = bench.envoy.url + "/v1/completions"
        async with bench.http.post(url, data=body, headers={"content-type": content_type}) as response:
            text = await response.text()
            assert (response.status, response.headers["x-sre-reason"]) == (400, "invalid_json")
        assert error_code(text) == "invalid_json"
        assert bench.engines["a"].seen == []
        (ended,) = await bench.finished(1)
        assert (ended.detail, ended.engine) == ("invalid_json", None)


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/vnd.api+json", ""])
async def test_forms_of_json_content_type_pass(short_dir: Path, content_type: str) -> None:
    async with running(short_dir) as bench:
        request = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n"
            f"{'content-type: ' + content_type + chr(13) + chr(10) if content_type else ''}\r\n"
        )
        assert (await raw(bench, request.encode() + b'{"model": "m"}')).startswith("HTTP/1.1 200")


async def test_body_over_the_limit_is_413_and_under_it_passes(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        under = b'{"model": "m", "prompt": "' + b"x" * (7 << 20) + b'"}'
        over = b'{"model": "m", "prompt": "' + b"x" * (33 << 20) + b'"}'
        url, json_type = bench.envoy.url + "/v1/completions", {"content-type": "application/json"}
        async with bench.http.post(url, data=io.BytesIO(under), headers=json_type) as response:
            assert response.status == 200
        try:
            async with bench.http.post(url, data=io.BytesIO(over), headers=json_type) as response:
                text = await response.text()
                assert (response.status, response.headers["x-sre-reason"]) == (413, "body_too_large")
                assert error_code(text) == "body_too_large"
        except aiohttp.ClientConnectionError:
            pass  # the gateway answered and closed while we were still sending; the log says what it answered
        ended = await bench.finished(2)
        assert [(r.status, r.detail, r.engine) for r in ended] == [(200, "ok", "a"), (413, "body_too_large", None)]
        assert (await bench.ask())[0] == 200


async def test_small_limit_of_the_body_holds_too(short_dir: Path) -> None:
    async with running(short_dir, max_body_bytes=1024) as bench:
        assert (await bench.ask(prompt="x" * 800))[0] == 200
        status, headers, _ = await bench.ask(prompt="x" * 1100)
        assert (status, headers["x-sre-reason"]) == (413, "body_too_large")


async def test_too_many_and_too_large_headers_are_431(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
        many = await raw(bench, head + b"".join(b"x-%d: y\r\n" % n for n in range(10_000)) + b"\r\n")
        large = await raw(bench, head + b"x-large: " + b"y" * 100_000 + b"\r\n\r\n")
        for answer in (many, large):
            status, _, body = answer.partition("\r\n\r\n")
            assert status.startswith("HTTP/1.1 431")
            assert "x-sre-reason: headers_too_large" in status
            assert error_code(body) == "headers_too_large"
        assert (await bench.ask())[0] == 200


async def test_request_that_is_not_http_is_400(short_dir: Path) -> None:
    async with running(short_dir) as bench:
        assert (await raw(bench, b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n")).startswith("HTTP/1.1 400")
        assert (await bench.ask())[0] == 200


async def test_slow_clients_are_cut_and_others_are_served_meanwhile(short_dir: Path) -> None:
    async with running(short_dir, request_header_timeout_seconds=0.3, request_body_timeout_seconds=0.5) as bench:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n"
        slow_headers = asyncio.create_task(raw(bench, head))
        slow_body = asyncio.create_task(raw(bench, head + b'\r\n{"model"'))
        assert (await bench.ask())[0] == 200
        assert "x-sre-reason: request_timeout" in await slow_headers
        answer = await slow_body
        assert answer.startswith("HTTP/1.1 408")
        assert error_code(answer.partition("\r\n\r\n")[2]) == "request_timeout"
        assert len(bench.engines["a"].seen) == 1
        assert "request_timeout" in {r.detail for r in await bench.finished(2)}


async def test_failing_engine_is_ejected_and_the_last_one_is_not(short_dir: Path) -> None:
    async with running(short_dir, engines=engine_settings("a", "b"), retries=0) as bench:
        bench.engines["a"].mode = "500"
        for _ in range(60):
            await bench.ask()
        seen = len(bench.engines["a"].seen)
        assert 5 <= seen < 25
        bench.engines["b"].mode = "500"
        before = len(bench.engines["b"].seen)
        for _ in range(40):
            status, _, _ = await bench.ask()
            assert status == 500  # an answer of an engine: one is still in rotation
        assert len(bench.engines["b"].seen) > before + 5


async def _open(bench: Bench, count: int) -> bool:
    return bench.engines["a"].open >= count
