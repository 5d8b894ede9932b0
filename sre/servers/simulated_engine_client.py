"""The API server's side of its engine core: requests sent, tokens received, metrics kept, death noticed."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from sre.metrics import vllm
from sre.servers import simulated_engine_wire as wire
from sre.servers.simulated_engine_metrics import EngineMetrics
from sre.simulator.kv_cache import BLOCK_TOKENS
from sre.simulator.protocol import ApiError, Call, engine_dead, queue_full, shutting_down
from sre.simulator.scheduler import Finish
from sre.simulator.text import answer_tokens, block_hashes, count_tokens

CAPACITY, DEFERRED = vllm.REQUESTS_WAITING_BY_REASON.values
COMPUTED, CACHED, _ = vllm.PROMPT_TOKENS_BY_SOURCE.values
DEVICE = vllm.PROMPT_TOKENS_CACHED_BY_SOURCE.values[0]
QUEUED_REQUESTS, QUEUED_TOKENS = vllm.ADMISSION_REJECTIONS.values


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer being generated: one of the n of one prompt."""

    id: int
    index: int
    generation: Generation
    prompt_tokens: int
    max_tokens: int
    offset: int
    """Where its text begins in the cycle of words."""
    arrived_at: float
    tokens: int = 0
    sent: int = 0
    """Tokens already given to the client."""
    cached: int = 0
    scheduled_at: float | None = None
    first_at: float | None = None
    last_at: float = 0.0
    finish: Finish | None = None
    dirty: bool = False


@dataclass(slots=True, eq=False)
class Generation:
    """One completion call: all sequences of all its prompts."""

    request_id: str
    stream: bool
    n: int
    prompt_tokens: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    unfinished: int = 0
    dirty: list[Sequence] = field(default_factory=list)
    error: ApiError | None = None
    _waiter: asyncio.Future[None] | None = None

    @property
    def completion_tokens(self) -> int:
        return sum(sequence.tokens for sequence in self.sequences)

    @property
    def done(self) -> bool:
        return not self.unfinished or self.error is not None

    async def changed(self) -> None:
        """Return when there is something to send: news of a stream, the end of anything else."""
        if self.done or (self.stream and self.dirty):
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> list[Sequence]:
        """Sequences with news since the last call."""
        dirty, self.dirty = self.dirty, []
        for sequence in dirty:
            sequence.dirty = False
        return dirty

    def touch(self, sequence: Sequence) -> None:
        if self.stream and not sequence.dirty:
            sequence.dirty = True
            self.dirty.append(sequence)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done() and (self.done or (self.stream and self.dirty)):
            self._waiter.set_result(None)


class EngineClient(asyncio.Protocol):
    """
    Connection to the engine core.

    Args:
        max_queued_requests: vLLM's --max-num-queued-reqs: unfinished sequences at the most.
        max_queued_tokens: vLLM's --max-num-queued-tokens: prompt tokens before their first token at the most.
        seed: Answer lengths repeat with the same seed and the same order of requests.
    """

    def __init__(
        self,
        metrics: EngineMetrics,
        *,
        max_queued_requests: int | None = None,
        max_queued_tokens: int | None = None,
        seed: int = 0,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self._metrics = metrics
        self._max_requests = max_queued_requests
        self._max_tokens = max_queued_tokens
        self._chance = random.Random(seed)
        self._on_death = on_death
        self._ids = itertools.count(1)
        self._live: dict[int, Sequence] = {}
        self._generations: dict[str, Generation] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._unpacker = wire.Unpacker()
        self._outbox: list[wire.Message] = []
        self._transport: asyncio.WriteTransport | None = None
        self._queued_tokens = 0
        self.ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Pid of the core once it has loaded; EngineDead when it dies before."""
        self.dead = False
        self.stopping = False
        """SIGTERM came: new requests are refused."""
        self.expected_end = False
        self.totals = Totals()

    async def connect(self, ours: socket.socket) -> None:
        """Talk over ``ours``."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one without saying so

    def data_received(self, data: bytes) -> None:
        for message in self._unpacker.feed(data):
            kind = message[0]
            if kind == wire.REPORT:
                self._report(message)
            elif kind == wire.REPLY:
                waiting = self._calls.pop(message[1], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message[2])
            elif kind == wire.READY and not self.ready.done():
                self.ready.set_result(message[1])

    def connection_lost(self, exc: Exception | None) -> None:
        self.dead = True
        if not self.ready.done():
            self.ready.set_result(0)
        failure = engine_dead()
        for generation in set(self._generations.values()):
            generation.error = failure
            generation.wake()
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(failure)
        self._calls.clear()
        self._live.clear()
        if self._on_death is not None:
            self._on_death()

    # what the HTTP side does

    @property
    def unfinished(self) -> int:
        """Sequences that have not ended."""
        return len(self._live)

    def submit(self, call: Call, request_id: str) -> Generation:
        """
        Start generating.

        Raises:
            ApiError: Engine dead, shutting down, or queue full.
        """
        if self.stopping:
            raise shutting_down()
        if self.dead:
            raise engine_dead()
        self._check_admission(len(call.prompts) * call.n)
        generation = Generation(request_id, call.stream, call.n)
        now = time.monotonic()
        for prompt in call.prompts:
            hashes: tuple[int, ...] = ()
            if isinstance(prompt, int):
                tokens = prompt
            else:
                tokens, hashes = count_tokens(prompt), block_hashes(prompt, BLOCK_TOKENS)
            generation.prompt_tokens += tokens
            for _ in range(call.n):
                key = next(self._ids)
                length, stops = answer_tokens(call.max_tokens, ignore_eos=call.ignore_eos, chance=self._chance)
                sequence = Sequence(
                    key, len(generation.sequences), generation, tokens, call.max_tokens, offset=key * 7, arrived_at=now
                )
                generation.sequences.append(sequence)
                self._live[key] = sequence
                finish = Finish.STOP if stops else Finish.LENGTH
                self._send((wire.ADD, key, tokens, length, finish.value, call.priority, hashes, now))
                self._queued_tokens += tokens
        generation.unfinished = len(generation.sequences)
        self._generations[request_id] = generation
        return generation

    def drop(self, generation: Generation) -> None:
        """The client is gone, or has all: forget, and tell the core to stop what still runs. Nothing is counted."""
        running = [sequence for sequence in generation.sequences if sequence.finish is None]
        if running:
            self._forget(running)
            self._send((wire.ABORT, [sequence.id for sequence in running]))
        if self._generations.get(generation.request_id) is generation:
            del self._generations[generation.request_id]

    def abort(self, request_ids: list[str] | None) -> int:
        """End requests by id (None: all) with finish_reason abort; how many ids that was."""
        if request_ids is None:
            chosen = list(self._generations.values())
        else:
            chosen = [self._generations[key] for key in request_ids if key in self._generations]
        for generation in chosen:
            running = [sequence for sequence in generation.sequences if sequence.finish is None]
            self._forget(running)
            self._send((wire.ABORT, [sequence.id for sequence in running]))
            for sequence in running:
                sequence.finish = Finish.ABORT
                generation.touch(sequence)
            generation.unfinished = 0
            generation.wake()
        return len(chosen) if request_ids is None else len(request_ids)

    def call(self, name: str, argument: Any = None) -> Awaitable[Any]:
        """Ask the core something; answered between two steps, never while it hangs."""
        if self.dead:
            raise engine_dead()
        key = next(self._ids)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[key] = waiting
        waiting.add_done_callback(lambda _: self._calls.pop(key, None))
        self._send((wire.CALL, key, name, argument))
        return waiting

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _check_admission(self, sequences: int) -> None:
        if self._max_requests is not None and len(self._live) + sequences > self._max_requests:
            self._metrics.of(vllm.ADMISSION_REJECTIONS, QUEUED_REQUESTS).inc()
            raise queue_full()
        if self._max_tokens is not None and self._queued_tokens >= self._max_tokens:
            self._metrics.of(vllm.ADMISSION_REJECTIONS, QUEUED_TOKENS).inc()
            raise queue_full()

    def _send(self, message: wire.Message) -> None:
        if self.dead or self._transport is None:
            return
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(message)

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if self._transport is not None and not self.dead:
            self._transport.write(wire.pack(outbox))

    def _forget(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if self._live.pop(sequence.id, None) is not None and sequence.first_at is None:
                self._queued_tokens -= sequence.prompt_tokens

    # what the core says

    def _report(self, message: wire.Message) -> None:
        _, at, tokens, first, ended, preempted, state, queries, hits = message
        metrics, live, totals = self._metrics, self._live, self.totals
        prompt_tokens = cached_tokens = 0
        woken: dict[Generation, None] = {}
        for key, scheduled_at, cached in first:
            sequence = live.get(key)
            if sequence is not None:
                sequence.scheduled_at, sequence.cached = scheduled_at, cached
                prompt_tokens += sequence.prompt_tokens
                cached_tokens += cached
        made = 0
        for key in tokens:
            sequence = live.get(key)
            if sequence is not None:
                made += 1
                self._token(sequence, at)
                if sequence.generation.stream:
                    sequence.generation.touch(sequence)
                    woken[sequence.generation] = None
        for key, finish, with_token, preemptions in ended:
            sequence = live.get(key)
            if sequence is None:
                continue
            if with_token:
                made += 1
                self._token(sequence, at)
            sequence.finish = Finish(finish)
            sequence.generation.unfinished -= 1
            sequence.generation.touch(sequence)
            self._forget([sequence])
            self._finished(sequence, at, preemptions)
            woken[sequence.generation] = None
        if state is not None:
            running, waiting, deferred, usage = state
            metrics.of(vllm.REQUESTS_RUNNING).set(running)
            metrics.of(vllm.REQUESTS_WAITING).set(waiting + deferred)
            metrics.of(vllm.REQUESTS_WAITING_BY_REASON, CAPACITY).set(waiting)
            metrics.of(vllm.REQUESTS_WAITING_BY_REASON, DEFERRED).set(deferred)
            metrics.of(vllm.KV_CACHE_USAGE).set(usage)
            totals.running, totals.waiting, totals.kv_usage_ratio = running, waiting + deferred, usage
            if queries:
                metrics.of(vllm.PREFIX_CACHE_QUERIES).inc(queries)
                metrics.of(vllm.PREFIX_CACHE_HITS).inc(hits)
                metrics.of(vllm.PROMPT_TOKENS_CACHED_BY_SOURCE, DEVICE).inc(hits)
                totals.prefix_queries += queries
                totals.prefix_hits += hits
            if preempted:
                metrics.of(vllm.PREEMPTIONS).inc(preempted)
            # As in vLLM, a step that gave no request a token (a piece of a long prompt) is not counted here.
            if tokens or ended:
                metrics.of(vllm.ITERATION_TOKENS).observe(made + prompt_tokens - cached_tokens)
        if made:
            metrics.of(vllm.GENERATION_TOKENS).inc(made)
            totals.generation_tokens += made
        if prompt_tokens:
            totals.prompt_tokens += prompt_tokens
            metrics.of(vllm.PROMPT_TOKENS).inc(prompt_tokens)
            metrics.of(vllm.PROMPT_TOKENS_BY_SOURCE, COMPUTED).inc(prompt_tokens - cached_tokens)
            metrics.of(vllm.PROMPT_TOKENS_BY_SOURCE, CACHED).inc(cached_tokens)
            metrics.of(vllm.PROMPT_TOKENS_CACHED).inc(cached_tokens)
        for generation in woken:
            generation.wake()

    def _token(self, sequence: Sequence, at: float) -> None:
        sequence.tokens += 1
        if sequence.first_at is None:
            sequence.first_at = at
            self._queued_tokens -= sequence.prompt_tokens
            self._metrics.time_to_first_token.observe(at - sequence.arrived_at)
        else:
            self._metrics.inter_token_latency.observe(at - sequence.last_at)
        sequence.last_at = at

    def _finished(self, sequence: Sequence, at: float, preemptions: int) -> None:
        of = self._metrics.of
        finish = sequence.finish or Finish.ABORT
        generation = sequence.generation
        first = sequence.first_at if sequence.first_at is not None else at
        scheduled = sequence.scheduled_at if sequence.scheduled_at is not None else first
        of(vllm.REQUEST_SUCCESS, finish.value).inc()
        of(vllm.E2E_REQUEST_LATENCY).observe(at - sequence.arrived_at)
        of(vllm.REQUEST_QUEUE_TIME).observe(scheduled - sequence.arrived_at)
        of(vllm.REQUEST_PREFILL_TIME).observe(first - scheduled)
        of(vllm.REQUEST_DECODE_TIME).observe(at - first)
        of(vllm.REQUEST_INFERENCE_TIME).observe(at - scheduled)
        of(vllm.REQUEST_TIME_PER_OUTPUT_TOKEN).observe((at - first) / max(1, sequence.tokens - 1))
        of(vllm.REQUEST_PROMPT_TOKENS).observe(sequence.prompt_tokens)
        of(vllm.REQUEST_GENERATION_TOKENS).observe(sequence.tokens)
        of(vllm.REQUEST_PREFILL_KV_COMPUTED_TOKENS).observe(sequence.prompt_tokens - sequence.cached)
        of(vllm.REQUEST_NUM_PREEMPTIONS).observe(preemptions)
        of(vllm.REQUEST_PARAMS_MAX_TOKENS).observe(sequence.max_tokens)
        siblings = generation.sequences
        if sequence.index % generation.n == 0 or generation.n == 1:
            of(vllm.REQUEST_PARAMS_N).observe(generation.n)
        prompt = sequence.index // generation.n
        group = siblings[prompt * generation.n : (prompt + 1) * generation.n]
        if all(other.finish is not None for other in group):
            of(vllm.REQUEST_MAX_NUM_GENERATION_TOKENS).observe(max(other.tokens for other in group))


@dataclass(slots=True)
class Totals:
    """For the log line that vLLM writes every 10 s."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage_ratio: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
