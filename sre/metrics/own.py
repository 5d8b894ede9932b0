"""Every metric the toolkit itself exports: name, kind, labels and help, each spelled once."""

from __future__ import annotations

from sre.metrics.types import Exporter, Kind, Metric, Unit

# Label names.
ENGINE = "engine"
POOL = "pool"
GPU = "gpu"
UUID = "uuid"
SOURCE = "source"
INJECTED = "injected"
SCOPE = "scope"
"""What a breaker, rule or action is about: ``engine`` or ``pool``; its name stands in label ``target``."""
TARGET = "target"
STATE = "state"
REASON = "reason"
RULE = "rule"
SIGNAL = "signal"
SEEN = "seen"
OUTCOME = "outcome"
VERDICT = "verdict"
ACTION = "action"
MODE = "mode"
CHANNEL = "channel"
BOUNDARY = "boundary"
FAULT = "fault"
VERSION = "version"


def _own(
    name: str,
    kind: Kind,
    text: str,
    labels: tuple[str, ...] = (),
    *,
    buckets: tuple[float, ...] = (),
    unit: Unit = Unit.ONE,
) -> Metric:
    """One metric of ours: counters end in ``_total``, units are base units."""
    return Metric(name, kind, text, labels, buckets, unit=unit, exporter=Exporter.SRE)


BUILD_INFO = _own("sre_build_info", Kind.GAUGE, "1; the version stands in the label.", (VERSION,))

# The control loop.
GUARD_TICKS = _own("sre_guard_ticks_total", Kind.COUNTER, "Turns of the control loop.")
GUARD_TICK_SECONDS = _own(
    "sre_guard_tick_seconds", Kind.HISTOGRAM, "Duration of one turn: observe, decide, apply, record.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)  # fmt: skip
GUARD_LAST_TICK_TIMESTAMP = _own(
    "sre_guard_last_tick_timestamp_seconds", Kind.GAUGE, "Wall time of the last finished turn, seconds since 1970."
)
GUARD_ERRORS = _own(
    "sre_guard_errors_total", Kind.COUNTER, "Turns or parts of turns that failed; the loop went on.", (BOUNDARY,)
)
GUARD_MODE = _own("sre_guard_mode", Kind.GAUGE, "1 on the mode in force: observe, suggest or act.", (MODE,))
GUARD_PAUSED = _own("sre_guard_paused", Kind.GAUGE, "1 while a person holds automation.")
STATE_STORE_UP = _own("sre_state_store_up", Kind.GAUGE, "0: state on disk cannot be trusted; the guard does not act.")

# Breaker and rules.
BREAKER_STATE = _own(
    "sre_breaker_state", Kind.GAUGE, "1 on the state that holds, 0 on the others.", (SCOPE, TARGET, STATE)
)
BREAKER_OPENINGS = _own("sre_breaker_openings_total", Kind.COUNTER, "Times a breaker opened.", (SCOPE, TARGET, REASON))
BREAKER_ADMITTED_RATIO = _own(
    "sre_breaker_admitted_ratio", Kind.GAUGE, "Share of new requests let through, 0..1.", (SCOPE, TARGET)
)
RULE_STATE = _own(
    "sre_rule_state", Kind.GAUGE, "1 on what the rule says now: ok, pending, firing, recovering, unknown, disarmed.",
    (RULE, TARGET, STATE),
)  # fmt: skip
RULE_ARMED = _own(
    "sre_rule_armed", Kind.GAUGE, "0: the rule would fire on the healthy steady state and is not used.", (RULE, TARGET)
)
RULE_BLIND = _own(
    "sre_rule_blind", Kind.GAUGE, "1 while the rule's signal has not been seen for too long.", (RULE, TARGET)
)

# Signals.
SIGNAL_VALUE = _own(
    "sre_signal_value", Kind.GAUGE, "Last value of a signal; no series while it is not seen.", (SIGNAL, TARGET)
)
SIGNAL_AGE_SECONDS = _own("sre_signal_age_seconds", Kind.GAUGE, "Age of the last sample.", (SIGNAL, TARGET))
SIGNAL_SEEN = _own(
    "sre_signal_seen", Kind.GAUGE, "1 on how the signal was seen: ok, absent, invalid, unreachable, never.",
    (SIGNAL, TARGET, SEEN),
)  # fmt: skip

# Engines, as the guard sees them.
ENGINE_STATE = _own("sre_engine_state", Kind.GAUGE, "1 on the state of the engine's process.", (ENGINE, POOL, STATE))
ENGINE_IN_FLIGHT = _own("sre_engine_requests_in_flight", Kind.GAUGE, "Requests open at the gateway.", (ENGINE, POOL))
ENGINE_STEP_AGE_SECONDS = _own(
    "sre_engine_step_age_seconds", Kind.GAUGE, "Time since an engine step was last seen, while requests are in flight.",
    (ENGINE, POOL),
)  # fmt: skip
ENGINE_RESTARTS = _own(
    "sre_engine_restarts_total", Kind.COUNTER, "Restarts of an engine, whoever asked for them.", (ENGINE, POOL)
)
ENGINE_WEIGHT_RATIO = _own(
    "sre_engine_weight_ratio", Kind.GAUGE, "Share of its configured weight the engine gets, 0..1.", (ENGINE, POOL)
)
REQUESTS = _own(
    "sre_requests_total", Kind.COUNTER,
    "Requests that ended, by verdict on the engine: success, failure (a 200 that broke off included), neutral.",
    (ENGINE, POOL, OUTCOME),
)  # fmt: skip
CLIENT_ABORTS = _own("sre_client_aborts_total", Kind.COUNTER, "Requests their client gave up.", (ENGINE, POOL))
REJECTED = _own("sre_requests_rejected_total", Kind.COUNTER, "New requests we refused.", (POOL, REASON))
CANARIES = _own("sre_canaries_total", Kind.COUNTER, "Canary completions sent.", (ENGINE, POOL, VERDICT))
CANARY_FIRST_TOKEN_SECONDS = _own(
    "sre_canary_first_token_seconds", Kind.HISTOGRAM, "Time to the first token of a successful canary.", (ENGINE, POOL),
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)  # fmt: skip

# GPUs.
GPU_LABELS = (GPU, UUID, SOURCE, INJECTED)
"""``source`` is nvml or sim; ``injected`` is "true" while a chaos fault changes what is read."""
GPU_MEMORY_USED = _own("sre_gpu_memory_used_ratio", Kind.GAUGE, "Memory taken, 0..1.", GPU_LABELS)
GPU_TEMPERATURE = _own("sre_gpu_temperature_celsius", Kind.GAUGE, "Temperature of the core.", GPU_LABELS)
GPU_UTILIZATION = _own("sre_gpu_utilization_ratio", Kind.GAUGE, "Share of time a kernel ran, 0..1.", GPU_LABELS)
GPU_POWER = _own("sre_gpu_power_watts", Kind.GAUGE, "Power drawn.", GPU_LABELS)
GPU_READER_UP = _own("sre_gpu_reader_up", Kind.GAUGE, "1 while the process that reads the GPUs answers in time.")
GPU_READER_REPLACED = _own(
    "sre_gpu_reader_replaced_total", Kind.COUNTER, "GPU reader processes given up: a call did not return, or failed."
)
GPU_READER_STUCK = _own(
    "sre_gpu_reader_stuck_processes", Kind.GAUGE, "Killed reader processes that the kernel cannot end yet (state D)."
)

# Gateway.
GATEWAY_UP = _own("sre_gateway_up", Kind.GAUGE, "1 while Envoy's admin socket answers.")
GATEWAY_UPDATE_REJECTIONS = _own(
    "sre_gateway_update_rejections_total", Kind.COUNTER, "Files of ours that Envoy refused."
)
GATEWAY_LOG_ODD_LINES = _own("sre_gateway_log_odd_lines_total", Kind.COUNTER, "Access-log lines we could not read.")

# Actions, incidents, notification, chaos.
ACTIONS = _own("sre_actions_total", Kind.COUNTER, "Actions of the guard, by what became of them.", (ACTION, OUTCOME))
ACTION_BUDGET = _own("sre_action_budget_remaining", Kind.GAUGE, "Actions left in this hour.", (ACTION, SCOPE, TARGET))
INCIDENTS_OPEN = _own("sre_incidents_open", Kind.GAUGE, "Incidents not resolved.")
INCIDENTS = _own("sre_incidents_total", Kind.COUNTER, "Incidents opened.", (REASON,))
DELIVERIES = _own(
    "sre_notification_deliveries_total", Kind.COUNTER, "Delivery tries: delivered, failed, unknown (cut off).",
    (CHANNEL, OUTCOME),
)  # fmt: skip
OUTBOX_MESSAGES = _own("sre_outbox_messages", Kind.GAUGE, "Messages in the outbox: pending, dead.", (CHANNEL, STATE))
OUTBOX_OLDEST_SECONDS = _own("sre_outbox_oldest_seconds", Kind.GAUGE, "Age of the oldest pending message.", (CHANNEL,))
FAULTS_ACTIVE = _own("sre_chaos_faults_active", Kind.GAUGE, "Injected faults in force.", (FAULT,))

OWN_METRICS: dict[str, Metric] = {value.name: value for value in list(globals().values()) if isinstance(value, Metric)}
"""Every metric of ours by name."""
