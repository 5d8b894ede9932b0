"""The gate's load generator on engines: what it asks for is understood, and what comes back is counted right."""

from __future__ import annotations

import statistics

import pytest

from sre.adapters.clock import SystemClock
from sre.adapters.load import HttpLoad
from sre.gate.records import Cause
from sre.gate.stages import Arrivals, RequestClass, StageKind, StagePlan
from tests.support.engines import EngineProcess

pytestmark = pytest.mark.integration

PROMPT_TOKENS, MAX_TOKENS = 150, 12


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_a_stage_is_sent_in_full_and_tokens_are_what_was_asked_for(engine: EngineProcess, api: str) -> None:
    if api == "chat" and engine.is_vllm:
        pytest.skip("the tiny model has no chat template")
    kind = RequestClass("short", 1.0, PROMPT_TOKENS, MAX_TOKENS)
    plan = StagePlan("8qps", StageKind.STAIRCASE, 8.0, 1.0, (kind,), seed=3, arrivals=Arrivals.CONSTANT)
    async with HttpLoad(engine.url, model=None, api=api, clock=SystemClock()) as load:
        smoke = await load.smoke()
        assert (smoke.ok, smoke.detail, smoke.model) == (True, "", engine.model)
        assert (smoke.streaming, smoke.usage_reported, smoke.prompt_sizing) == (True, True, "tokenize")
        assert smoke.server.startswith("vllm 0.")
        result = await load.run(plan, watch=lambda _: None, drain_seconds=60)
    assert [(one.cause, one.detail) for one in result.records] == [(Cause.OK, "")] * 8
    mean = statistics.mean(one.prompt_tokens or 0 for one in result.records)
    # The tiny model's tokenizer knows few words: its nonces have 39 tokens, give or take 3, instead of always ten.
    assert mean == pytest.approx(PROMPT_TOKENS, rel=0.05 if engine.is_vllm else 0.02)
    for one in result.records:
        assert one.prompt_tokens == pytest.approx(PROMPT_TOKENS, rel=0.12 if engine.is_vllm else 0.02)
        assert one.output_tokens == MAX_TOKENS
        # The tiny model's tokens may have no text; one that must go on after its end says the end again and again.
        assert (0 if engine.is_vllm else 1) <= one.chunks <= MAX_TOKENS
        assert one.ttft_seconds < 60
        assert one.finish_reason == "length"
        assert not one.cached_tokens
