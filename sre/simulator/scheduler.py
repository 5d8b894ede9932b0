"""
Continuous batching, as vLLM's V1 scheduler does it: running requests first, then the queue, a token budget per step,
prompts in chunks, preemption by recomputation when the KV cache is full.

``begin_step`` decides what a step computes and how long it takes; ``finish_step`` gives its outcome. Time is passed in.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sre.simulator.cost import CostModel, Prefill
from sre.simulator.kv_cache import BLOCK_TOKENS, KvCache, blocks_for

UNLIMITED = 1 << 62


class Finish(enum.Enum):
    """Why a request ended: vLLM's finish_reason and label finished_reason."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's scheduler settings."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_cache_tokens: int = 400_000
    chunked_prefill: bool = True
    """False: a prompt is computed in one step, whatever its length."""
    prefix_caching: bool = True
    by_priority: bool = False
    """Lower ``priority`` first; otherwise first come, first served."""


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to generate."""

    id: int
    prompt_tokens: int
    output_tokens: int
    """Length of the answer, drawn beforehand."""
    finish: Finish = Finish.LENGTH
    """How it ends when it gets there."""
    priority: int = 0
    hashes: Sequence[int] = ()
    """One per full block of the prompt."""
    arrived_at: float = 0.0
    generated: int = field(default=0, init=False)
    computed: int = field(default=0, init=False)
    """Tokens in the KV cache."""
    cached: int = field(default=0, init=False)
    """Of the prompt: tokens that were found in the prefix cache."""
    scheduled_at: float | None = field(default=None, init=False)
    preemptions: int = field(default=0, init=False)
    shared: list[int] = field(default_factory=list, init=False)
    private: int = field(default=0, init=False)
    live: bool = field(default=True, init=False)
    entered: bool = field(default=False, init=False)
    """Handed to the scheduler."""

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""
        return self.prompt_tokens + self.generated


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes."""

    scheduled: Sequence[tuple[Request, int]]
    """Requests and their number of tokens."""
    seconds: float
    preempted: int


@dataclass(frozen=True, slots=True)
class Progress:
    """One new token of a request."""

    request: Request
    first: bool
    finished: Finish | None


class Scheduler:
    """State of one engine core."""

    def __init__(self, limits: Limits, cost: CostModel) -> None:
        self._limits = limits
        self._cost = cost
        self.cache = KvCache(limits.kv_cache_tokens, keep_prefixes=limits.prefix_caching)
        self.running: list[Request] = []
        self._queue: list[tuple[int, float, int, Request]] = []  # heap: priority, arrival, id
        self._queued = 0
        self.prefix_queries = 0
        """Tokens looked up since the start."""
        self.prefix_hits = 0

    @property
    def waiting(self) -> int:
        """Requests not yet scheduled, or preempted."""
        return self._queued

    @property
    def idle(self) -> bool:
        return not self.running and not self._queued

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.entered = True
        self._push(request)

    def abort(self, request: Request) -> bool:
        """Take a request out; False if it had ended."""
        if not request.live:
            return False
        request.live = False
        if request in self.running:
            self.running.remove(request)
            self._free(request)
        else:
            self._queued -= 1  # its heap entry is skipped when it comes up
            if len(self._queue) > 2 * self._queued + 64:
                self._queue = [entry for entry in self._queue if entry[-1].live]
                heapq.heapify(self._queue)
        return True

    def everything(self) -> Iterable[Request]:
        """All live requests, running ones first."""
        return [*self.running, *(entry[-1] for entry in sorted(self._queue) if entry[-1].live)]

    def begin_step(self, now: float) -> Step | None:
        """
        Decide the next step; None when there is nothing to compute.

        Args:
            now: Simulated or real seconds, only recorded in ``scheduled_at``.
        """
        budget = self._limits.max_num_batched_tokens if self._limits.chunked_prefill else UNLIMITED
        scheduled: list[tuple[Request, int]] = []
        preempted: set[Request] = set()
        for request in tuple(self.running):
            if budget <= 0:
                break
            if request in preempted:
                continue
            wanted = min(request.tokens - request.computed, budget)
            while not self._grow(request, request.computed + wanted):
                victim = self._victim()
                self._preempt(victim)
                preempted.add(victim)
                if victim is request:
                    break
            if request not in preempted:
                budget -= wanted
                scheduled.append((request, wanted))
        if preempted:
            scheduled = [pair for pair in scheduled if pair[0] not in preempted]
        while self._queued and budget > 0 and len(self.running) < self._limits.max_num_seqs and not preempted:
            taken = self._admit(now, budget)
            if taken is None:
                break
            budget -= taken[1]
            scheduled.append(taken)
        if not scheduled:
            return None
        decoding = context = 0
        prefills: list[Prefill] = []
        for request, tokens in scheduled:
            if request.generated and tokens == 1:
                decoding += 1
                context += request.computed
            else:
                prefills.append(Prefill(tokens, request.computed))
        return Step(scheduled, self._cost.step_seconds(decoding, context, prefills), len(preempted))

    def finish_step(self, step: Step) -> list[Progress]:
        """Take the step's tokens into account; requests aborted meanwhile are left out."""
        progress: list[Progress] = []
        ended = False
        for request, tokens in step.scheduled:
            if not request.live:
                continue
            before = request.computed
            request.computed = before + tokens
            if before < request.prompt_tokens:
                self._share_prompt(request)
            if request.computed < request.tokens:
                continue  # the prompt is not through yet
            request.generated += 1
            finished = None
            if request.generated >= request.output_tokens:
                finished = request.finish
                request.live = False
                self._free(request)
                ended = True
            progress.append(Progress(request, request.generated == 1, finished))
        if ended:
            self.running = [request for request in self.running if request.live]
        return progress

    def _admit(self, now: float, budget: int) -> tuple[Request, int] | None:
        """Schedule the first of the queue; None, and it stays, when the KV cache has no room."""
        request = self._first()
        hits = self._look_up(request)
        wanted = min(request.tokens - hits * BLOCK_TOKENS, budget)
        fresh = blocks_for(hits * BLOCK_TOKENS + wanted) - hits
        cached = request.hashes[:hits]
        if not self.cache.take(cached, fresh):
            return None
        heapq.heappop(self._queue)
        self._queued -= 1
        self.prefix_queries += request.prompt_tokens
        self.prefix_hits += hits * BLOCK_TOKENS
        if request.scheduled_at is None:
            request.scheduled_at = now
            request.cached = hits * BLOCK_TOKENS
        request.shared = list(cached)
        request.private = fresh
        request.computed = hits * BLOCK_TOKENS
        self.running.append(request)
        return request, wanted

    def _grow(self, request: Request, tokens: int) -> bool:
        more = blocks_for(tokens) - len(request.shared) - request.private
        if more > 0:
            if not self.cache.take((), more):
                return False
            request.private += more
        return True

    def _victim(self) -> Request:
        """The request to preempt: the lowest priority, of those the latest."""
        if self._limits.by_priority:
            return max(self.running, key=lambda r: (r.priority, r.arrived_at, r.id))
        return self.running[-1]

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._free(request)
        request.computed = 0
        request.preemptions += 1
        self._push(request)

    def _free(self, request: Request) -> None:
        self.cache.release(request.shared, request.private)
        request.shared = []
        request.private = 0

    def _share_prompt(self, request: Request) -> None:
        """Blocks of the prompt that are full now can be found by later prompts."""
        known = len(request.shared)
        full = min(min(request.computed, request.prompt_tokens) // BLOCK_TOKENS, len(request.hashes))
        for value in request.hashes[known:full]:
            if not self.cache.share(value):
                break  # the same content is there already; ours stays private
            request.shared.append(value)
            request.private -= 1

    def _look_up(self, request: Request) -> int:
        """Leading blocks of the prompt that need no computing; at least one token is always computed."""
        most = (request.tokens - 1) // BLOCK_TOKENS
        return self.cache.cached_blocks(request.hashes[:most])

    def _push(self, request: Request) -> None:
        priority = request.priority if self._limits.by_priority else 0
        # A preempted request goes back to its old place: before all that arrived later.
        heapq.heappush(self._queue, (priority, request.arrived_at, request.id, request))
        self._queued += 1

    def _first(self) -> Request:
        while not self._queue[0][-1].live:
            heapq.heappop(self._queue)
        return self._queue[0][-1]
