"""Section ``gate``: load, objectives and comparison of the deploy gate."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sre.settings.base import FilePath, SecretRef, Settings

Rate = Annotated[float, Field(gt=0, le=100_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


class RequestClassSettings(Settings):
    """One kind of request in the mix."""

    name: Name
    share: Share = 1.0
    """Of the arrivals. The shares of a mix sum to 1."""
    prompt_tokens: Tokens = 256
    max_tokens: Tokens = 32
    fixed_length: bool = True
    """Ask for exactly max_tokens (ignore_eos), so that the work repeats; off where the server refuses that field."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Further request headers, e.g. the priority class at the gateway."""


class TargetSettings(Settings):
    """What is loaded."""

    url: str | None = None
    """Base URL of an OpenAI-compatible server, http://host:port; null: the gateway of the stack in this file."""
    model: str | None = None
    """Served name; null: the first that /v1/models lists."""
    api: Literal["completions", "chat"] = "completions"
    api_key: SecretRef | None = None
    tls_ca_file: FilePath | None = None
    """Further certificate authority to trust."""
    metrics_urls: tuple[str, ...] = ()
    """/metrics pages of the engines; empty: those of the stack in this file, else URL/metrics if there is one."""


class LoadSettings(Settings):
    """The staircase."""

    stages_qps: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=50)] = (100.0, 500.0, 1000.0)
    qps_scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Factor on every stage: 0.1 gives 10, 50, 100 qps."""
    stage_seconds: Seconds = 30.0
    arrivals: Literal["poisson", "constant"] = "poisson"
    trace_file: FilePath | None = None
    """JSONL of arrivals to replay instead of the staircase; per line: offset_seconds, prompt_tokens, max_tokens."""
    mix: Annotated[tuple[RequestClassSettings, ...], Field(min_length=1, max_length=10)] = (
        RequestClassSettings(name="short"),
    )
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 1
    warm_up_requests: Annotated[int, Field(ge=0, le=100_000)] = 20
    warm_up_seconds: Annotated[float, Field(ge=0, le=3600)] = 2.0
    """Not measured, before the first stage, at no more than its rate."""
    request_timeout_seconds: Seconds = 60.0
    """From the intended send. Over it: failed."""
    drain_seconds: Seconds = 60.0
    """After a stage, requests in flight get this long; nothing is in flight when the next begins."""
    max_in_flight: Annotated[int, Field(ge=1, le=200_000)] = 10_000
    """The client's own limit. What is not sent because of it makes the gate inconclusive."""
    processes: Annotated[int, Field(ge=0, le=64)] = 0
    """Client processes; 0: as many as the rate needs."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(a >= b for a, b in itertools.pairwise(self.stages_qps)):
            raise ValueError("stages_qps must rise from stage to stage")
        if len({f"{rate * self.qps_scale:.6g}" for rate in self.stages_qps}) < len(self.stages_qps):
            raise ValueError("two of stages_qps are equal to six digits: the stages would have one name")
        names = [kind.name for kind in self.mix]
        if len(set(names)) != len(names):
            raise ValueError("two classes of mix have the same name")
        total = sum(kind.share for kind in self.mix)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares of mix sum to {total:g}; they must sum to 1")
        return self


class KneeSettings(Settings):
    """Search for the rate at which the service saturates."""

    enabled: bool = True
    resolution_ratio: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Bisect until the bracket is this narrow, of the knee."""
    max_stages: Annotated[int, Field(ge=0, le=20)] = 5


class PolicySettings(Settings):
    """A server that runs the same model with another scheduling policy."""

    name: Name
    url: str
    metrics_urls: tuple[str, ...] = ()


class LongTailSettings(Settings):
    """Shorts alone, then the same shorts with long prompts beside them."""

    enabled: bool = False
    qps: Rate | None = None
    """Of the shorts; null: the first stage's."""
    long_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Long prompts of all arrivals: 0.1 sends one long per nine shorts, the shorts' rate unchanged."""
    long_prompt_tokens: Tokens = 32_768
    long_max_tokens: Tokens = 16
    seconds: Seconds = 30.0
    runs: Annotated[int, Field(ge=1, le=50)] = 5
    policies: tuple[PolicySettings, ...] = ()
    """Servers with other scheduling policies, each an arm of its own; empty: the target alone."""


class ObjectiveSettings(Settings):
    """
    Bounds that hold without any baseline. Null: not judged.

    Percentiles count failures and timeouts as infinitely slow.
    """

    stage: str | None = None
    """Stage it holds at, e.g. 100qps; null: every stage up to max_qps."""
    max_qps: Rate | None = None
    """Stages above this rate are looked at, not judged; null: all are judged."""
    request_class: str | None = None
    ttft_p99_seconds: Seconds | None = None
    ttft_p95_seconds: Seconds | None = None
    tpot_p99_seconds: Seconds | None = None
    e2e_p99_seconds: Seconds | None = None
    e2e_p95_seconds: Seconds | None = None
    failed_ratio: Ratio | None = None
    throughput_ratio: Share | None = None
    """Answers per second over the rate offered, at least."""
    output_tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    """At least."""


SUBJECT = frozenset({"server", "server_version", "engine_version"})
"""What is under test: it may differ."""
CONDITIONS = (
    "method", "model", "api", "streaming", "prompt_sizing", "seed", "warm_up", "request_timeout_seconds", "stages",
    "stage_seconds", "arrivals", "trace", "answer_length", "cached_prompts", "max_model_len", "engines",
    "engine.block_size", "engine.cache_dtype", "engine.enable_prefix_caching", "engine.gpu_memory_utilization", "gpus",
    "client_cpu", "client_cores", "client_host", "tool", "prompt_tokens", "strategy", "backend", "max_concurrency",
)  # fmt: skip
"""
What must be equal, by name; the last five are told by imported files, prompt_tokens by every server's usage. Each class
of the mix adds one of its own.
"""
OF_CLASS = "mix."
"""Begins the condition of a class: ``mix.short``."""


Metric = Literal[
    "ttft_p99_seconds", "ttft_p95_seconds", "ttft_p50_seconds", "e2e_p99_seconds", "e2e_p95_seconds", "e2e_p50_seconds",
    "tpot_p99_seconds", "tpot_p50_seconds", "failed_ratio", "throughput_rps", "output_tokens_per_second",
]  # fmt: skip


class GatedCellSettings(Settings):
    """A figure that is compared with the baseline."""

    stage: str | None = None
    """E.g. 100qps; null: the highest stage that the baseline held without saturating."""
    request_class: str | None = None
    """Null: the first of the mix."""
    metric: Metric = "ttft_p99_seconds"


class BaselineSettings(Settings):
    """Comparison with an accepted baseline."""

    folder: str = "gate-baselines"
    """From the folder of this file, the default, too. Meant to be committed."""
    name: Name = "default"
    runs: Annotated[int, Field(ge=1, le=100)] = 5
    """Passes over the staircase. Five against five is the least that can show anything (p .004)."""
    cells: Annotated[tuple[GatedCellSettings, ...], Field(max_length=12)] = (
        GatedCellSettings(metric="ttft_p99_seconds"),
        GatedCellSettings(metric="e2e_p99_seconds"),
        GatedCellSettings(metric="throughput_rps"),
    )
    """Few: each one more costs power (Holm)."""
    significance: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    minimum_effect_ratio: Annotated[float, Field(ge=0, le=10)] = 0.05
    """A smaller difference of the medians is no regression, however significant."""
    regression_ratio: Annotated[float, Field(gt=0, le=10)] = 0.2
    """A regression of this size must not be missed: where the runs vary too much to find it, inconclusive."""
    power_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Least chance to find it, by the variation between the runs."""
    required: bool = False
    """Without a baseline: exit 2 instead of judging by the objectives alone."""
    may_differ: tuple[str, ...] = ()
    """Conditions that need not equal the baseline's, by their names in baseline show: client_host where every CI job
    gets a machine of its own. What then differs is said beside the verdict."""


class BudgetSettings(Settings):
    """Latency budget per request, in seconds (requirement F2)."""

    network_seconds: Seconds = 0.05
    load_seconds: Seconds = 0.03
    """Waiting for a place in the batch."""
    compute_seconds: Seconds = 0.1
    serialization_seconds: Seconds = 0.02


class CapacitySettings(Settings):
    """Nominal capacities of the machine, where they cannot be read. Null: not judged."""

    storage_bytes_per_second: Annotated[float, Field(gt=0)] | None = None
    network_bits_per_second: Annotated[float, Field(gt=0)] | None = None
    compute_flops_per_second: Annotated[float, Field(gt=0)] | None = None
    """Per GPU."""
    gpu_memory_bytes_per_second: Annotated[float, Field(gt=0)] | None = None


class GateSettings(Settings):
    """The deploy gate."""

    target: TargetSettings = TargetSettings()
    load: LoadSettings = LoadSettings()
    knee: KneeSettings = KneeSettings()
    long_tail: LongTailSettings = LongTailSettings()
    objectives: tuple[ObjectiveSettings, ...] = (ObjectiveSettings(failed_ratio=0.01),)
    baseline: BaselineSettings = BaselineSettings()
    budget: BudgetSettings = BudgetSettings()
    capacity: CapacitySettings = CapacitySettings()
    client_lag_p99_seconds: Seconds = 0.02
    """The client's own lateness, or share in TTFT, above which it counts as the limit: inconclusive."""
    deadline_seconds: Annotated[float, Field(gt=0, le=604_800)] = 3600.0
    """The whole run is given up after this long; what was measured is kept."""
    inconclusive: Literal["fail", "pass"] = "fail"
    """"pass" makes exit code 5 a 0, visibly."""
