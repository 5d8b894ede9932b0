"""Section ``guard``: signals, rules, breaker, recovery."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sre.settings.base import Settings
from sre.settings.stack import Name, Port, Positive

Ratio = Annotated[float, Field(ge=0, le=1)]


class RuleSettings(Settings):
    """One trip rule: the signal compared with the threshold for a duration."""

    name: Name
    signal: Literal[
        "gpu_memory_used_ratio",
        "gpu_temperature_celsius",
        "consecutive_failed_batches",
        "error_ratio",
        "kv_cache_usage_ratio",
        "requests_waiting",
    ]
    comparison: Literal[">", ">=", "<", "<="] = ">"
    threshold: float
    for_seconds: Annotated[float, Field(ge=0)] = 0.0
    """The condition must hold this long, without a gap longer than ``max_gap_seconds``."""
    recover_below: float | None = None
    """Hysteresis: the rule is over only on this side of this value; default: the threshold."""
    recover_for_seconds: Annotated[float, Field(ge=0)] = 10.0
    min_samples: Annotated[int, Field(ge=0)] = 0
    """Ratios only: fewer events in the window than this give no verdict (unknown)."""
    window_seconds: Positive = 10.0
    """Ratios only: the sliding window."""
    max_gap_seconds: Positive = 3.0
    """Older samples count as not seen."""
    on_missing: Literal["hold", "trip", "clear"] = "hold"
    """What not seeing the signal does to this rule."""
    blind_after_seconds: Positive = 30.0
    """Not seen for this long: a "blind" notification."""
    enabled: bool = True
    severity: Literal["page", "ticket"] = "page"


DEFAULT_RULES: tuple[RuleSettings, ...] = (
    RuleSettings(name="gpu-memory", signal="gpu_memory_used_ratio", threshold=0.95, for_seconds=10, recover_below=0.93),
    RuleSettings(name="gpu-temperature", signal="gpu_temperature_celsius", threshold=85, recover_below=80),
    RuleSettings(
        name="failed-batches", signal="consecutive_failed_batches", comparison=">=", threshold=3, recover_below=1,
        on_missing="hold",
    ),
    RuleSettings(name="error-ratio", signal="error_ratio", threshold=0.05, min_samples=20, recover_below=0.01),
)  # fmt: skip
"""Requirements B1 and B2 with their default numbers."""


class HangSettings(Settings):
    """Engine hang: requests in flight at the gateway and no engine step (requirement B6)."""

    hang_after_seconds: Positive = 3.0
    """No step for this long with requests in flight: refuse new requests."""
    step_multiple: Annotated[float, Field(ge=1)] = 4.0
    """hang_after is raised to this multiple of the longest legal step seen lately."""
    step_memory_seconds: Positive = 600.0
    """How far back "lately" reaches."""
    hang_after_max_seconds: Positive = 60.0
    """hang_after is never raised above this."""
    start_grace_seconds: Annotated[float, Field(ge=0)] = 20.0
    """For this long after an engine became ready, first-use compiles are expected."""
    hang_after_in_grace_seconds: Positive = 15.0
    """hang_after during the grace."""
    restart_after_seconds: Positive = 30.0
    """A hang this long is answered by a restart of the engine."""
    canary_interval_seconds: Positive = 10.0
    """An engine that took no step for this long is asked for one token."""
    canary_first_token_timeout_seconds: Positive = 5.0
    canary_timeout_seconds: Positive = 10.0
    canary_failures: Annotated[int, Field(ge=1)] = 2
    """Failed canaries in a row that count as a hang."""


class HalfOpenSettings(Settings):
    """How traffic comes back."""

    open_seconds: Positive = 30.0
    """First wait in state open; doubles with each opening."""
    max_open_seconds: Positive = 600.0
    jitter_ratio: Ratio = 0.1
    successes_to_ramp: Annotated[int, Field(ge=1)] = 3
    """Good canaries in a row before traffic is admitted."""
    probe_interval_seconds: Positive = 1.0
    ramp_percents: tuple[Annotated[int, Field(ge=1, le=100)], ...] = (10, 25, 50, 100)
    ramp_dwell_seconds: Positive = 10.0
    stable_after_seconds: Positive = 300.0
    """Closed this long: the open time starts over."""
    latch_after_openings: Annotated[int, Field(ge=1)] = 5
    """So many openings without a stable period: stay open until a person resets; one page."""

    @model_validator(mode="after")
    def _rising(self) -> HalfOpenSettings:
        if (
            not self.ramp_percents
            or list(self.ramp_percents) != sorted(set(self.ramp_percents))
            or self.ramp_percents[-1] != 100
        ):
            raise ValueError("ramp_percents must rise and end with 100, e.g. [10, 25, 50, 100]")
        return self


class BudgetSettings(Settings):
    """Limits on the guard's own expensive actions; they survive restarts."""

    restarts_per_engine_per_hour: Annotated[int, Field(ge=0)] = 4
    restarts_per_hour: Annotated[int, Field(ge=0)] = 8
    restart_cooldown_seconds: Annotated[float, Field(ge=0)] = 30.0


class GuardSettings(Settings):
    """The control loop."""

    mode: Literal["auto", "observe", "suggest", "act"] = "auto"
    """auto: act on what ``sre up`` started, only observe what is external."""
    tick_seconds: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    metrics_host: str = "127.0.0.1"
    metrics_port: Port = 9400
    """Where the guard's own /metrics listens."""
    rules: tuple[RuleSettings, ...] = DEFAULT_RULES
    hang: HangSettings = HangSettings()
    half_open: HalfOpenSettings = HalfOpenSettings()
    budgets: BudgetSettings = BudgetSettings()
    min_healthy_engines: Annotated[int, Field(ge=1)] = 1
    """Per pool: with fewer engines in rotation the pool opens."""
    max_evidence_age_seconds: Positive = 10.0
    """After a guard restart nothing acts on evidence older than this."""
    gpu_reader: Literal["auto", "nvml", "sim", "none"] = "auto"
    """auto: NVML where it loads, else the simulated GPU if an engine is simulated, else none."""
    gpu_deadline_seconds: Positive = 2.0
    """An NVML call that takes longer is given up; its process is replaced."""

    @model_validator(mode="after")
    def _unique(self) -> GuardSettings:
        names = [r.name for r in self.rules]
        for name in sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"two rules are named {name!r}; names must differ")
        return self
