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
DEVICE = "device"
KIND = "kind"
XID = "xid"
DIRECTION = "direction"
SEVERITY = "severity"
ID = "id"


def _own(
    name: str,
    kind: Kind,
    text: str,
    labels: tuple[str, ...] = (),
    *,
    buckets: tuple[float, ...] = (),
    unit: Unit = Unit.ONE,
    optional: bool = False,
    needs: str = "",
    late: bool = False,
) -> Metric:
    """One metric of ours: counters end in ``_total``, units are base units."""
    return Metric(
        name, kind, text, labels, buckets, unit=unit, exporter=Exporter.SRE, optional=optional, needs=needs, late=late
    )


BUILD_INFO = _own("sre_build_info", Kind.GAUGE, "1; the version stands in the label.", (VERSION,), unit=Unit.STATE)

# The control loop.
GUARD_TICKS = _own("sre_guard_ticks_total", Kind.COUNTER, "Turns of the control loop.")
GUARD_TICK_SECONDS = _own(
    "sre_guard_tick_seconds", Kind.HISTOGRAM, "Duration of one turn: observe, decide, apply, record.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0), unit=Unit.SECONDS,
)  # fmt: skip
GUARD_LAST_TICK_TIMESTAMP = _own(
    "sre_guard_last_tick_timestamp_seconds", Kind.GAUGE, "Wall time of the last finished turn, seconds since 1970.",
    unit=Unit.TIMESTAMP_SECONDS,
)  # fmt: skip
GUARD_ERRORS = _own(
    "sre_guard_errors_total", Kind.COUNTER, "Turns or parts of turns that failed; the loop went on.", (BOUNDARY,)
)
GUARD_MODE = _own(
    "sre_guard_mode", Kind.GAUGE, "1 on the mode in force, 0 on the others: auto, observe, suggest, act.", (MODE,),
    unit=Unit.STATE,
)  # fmt: skip
GUARD_PAUSED = _own("sre_guard_paused", Kind.GAUGE, "1 while a person holds automation.", unit=Unit.STATE)
STATE_STORE_UP = _own(
    "sre_state_store_up", Kind.GAUGE, "0: state on disk cannot be trusted; the guard does not act.", unit=Unit.STATE
)

# Breaker and rules.
BREAKER_STATE = _own(
    "sre_breaker_state", Kind.GAUGE, "1 on the state that holds, 0 on the others.", (SCOPE, TARGET, STATE),
    unit=Unit.STATE,
)  # fmt: skip
BREAKER_OPENINGS = _own("sre_breaker_openings_total", Kind.COUNTER, "Times a breaker opened.", (SCOPE, TARGET, REASON))
BREAKER_ADMITTED_RATIO = _own(
    "sre_breaker_admitted_ratio", Kind.GAUGE, "Share of new requests let through, 0..1.", (SCOPE, TARGET),
    unit=Unit.RATIO,
)  # fmt: skip
RULE_STATE = _own(
    "sre_rule_state", Kind.GAUGE, "1 on what the rule says now: ok, pending, firing, recovering, unknown, disarmed.",
    (RULE, TARGET, STATE), unit=Unit.STATE,
)  # fmt: skip
RULE_ARMED = _own(
    "sre_rule_armed", Kind.GAUGE, "0: the rule would fire on the healthy steady state and is not used.", (RULE, TARGET),
    unit=Unit.STATE,
)  # fmt: skip
RULE_BLIND = _own(
    "sre_rule_blind", Kind.GAUGE, "1 while the rule's signal has not been seen for too long.", (RULE, TARGET),
    unit=Unit.STATE,
)  # fmt: skip

# Signals.
SIGNAL_VALUE = _own(
    "sre_signal_value", Kind.GAUGE,
    "Last value of a signal, in the signal's own unit; no series while it is not seen.", (SIGNAL, TARGET),
)  # fmt: skip
SIGNAL_AGE_SECONDS = _own(
    "sre_signal_age_seconds", Kind.GAUGE, "Age of the signal's last sample, or of the last try to take one.",
    (SIGNAL, TARGET), unit=Unit.SECONDS,
)  # fmt: skip
SIGNAL_SEEN = _own(
    "sre_signal_seen", Kind.GAUGE, "1 on how the signal was seen: ok, absent, invalid, unreachable, never.",
    (SIGNAL, TARGET, SEEN), unit=Unit.STATE,
)  # fmt: skip

# Engines, as the guard sees them.
ENGINE_STATE = _own(
    "sre_engine_state", Kind.GAUGE,
    "1 on the state of the engine's process, 0 on the others: starting, ready, draining, stopped, crashed, failed, "
    "unknown.", (ENGINE, POOL, STATE), unit=Unit.STATE,
)  # fmt: skip
ENGINE_IN_FLIGHT = _own(
    "sre_engine_requests_in_flight", Kind.GAUGE,
    "Requests the gateway has open on the engine; canaries of the guard not counted.", (ENGINE, POOL),
    unit=Unit.REQUESTS,
)  # fmt: skip
ENGINE_STEP_AGE_SECONDS = _own(
    "sre_engine_step_age_seconds", Kind.GAUGE,
    "Time since an engine step was last seen, while requests are in flight; 0 without any.", (ENGINE, POOL),
    unit=Unit.SECONDS,
)  # fmt: skip
ENGINE_HANG_LIMIT_SECONDS = _own(
    "sre_engine_hang_limit_seconds", Kind.GAUGE,
    "Time without an engine step from which on the guard calls it a hang: its setting, raised by the longest steps seen"
    " lately and after a start.", (ENGINE, POOL), unit=Unit.SECONDS,
)  # fmt: skip
ENGINE_HUNG = _own(
    "sre_engine_hung", Kind.GAUGE,
    "1 while requests are in flight and no engine step was seen for longer than the limit of this engine.",
    (ENGINE, POOL), unit=Unit.STATE,
)  # fmt: skip
ENGINE_RESTARTS = _own(
    "sre_engine_restarts_total", Kind.COUNTER,
    "Times the engine's process was replaced by another one while the guard watched, whoever asked for it.",
    (ENGINE, POOL),
)  # fmt: skip
ENGINE_WEIGHT_RATIO = _own(
    "sre_engine_weight_ratio", Kind.GAUGE, "Share of its configured weight the engine gets, 0..1.", (ENGINE, POOL),
    unit=Unit.RATIO,
)  # fmt: skip
ENGINE_BATCH_SIZE = _own(
    "sre_engine_batch_size", Kind.HISTOGRAM,
    "Running requests, weighted by time: a bucket holds the seconds spent at that size or below (at 0: idle), _count "
    "the seconds observed, _sum request-seconds.", (ENGINE, POOL),
    buckets=(0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0), unit=Unit.REQUESTS,
)  # fmt: skip
ENGINE_BATCH_FORMATION_SECONDS = _own(
    "sre_engine_batch_formation_seconds", Kind.HISTOGRAM,
    "Time requests waited for a place in the batch: mean of those that ended in one tick, weighted by their number; "
    "the spread within a tick is not seen.", (ENGINE, POOL),
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
             30.0, 60.0),
    unit=Unit.SECONDS,
)  # fmt: skip
REQUESTS = _own(
    "sre_requests_total", Kind.COUNTER,
    "Requests that ended, by verdict on the engine: success, failure (a 200 that broke off included), neutral.",
    (ENGINE, POOL, OUTCOME), unit=Unit.REQUESTS,
)  # fmt: skip
CLIENT_ABORTS = _own(
    "sre_client_aborts_total", Kind.COUNTER, "Requests their client gave up.", (ENGINE, POOL), unit=Unit.REQUESTS
)
REFUSED_FOR_OUR_REASONS = (
    "concurrency_limit", "engine_dead", "error_ratio", "failed_batches", "gpu_memory", "gpu_temperature", "hang",
    "latched", "manual", "no_healthy_upstream", "no_route", "ramp", "rule",
)  # fmt: skip
"""Refusals that are no fault of the client and no agreed limit: to the user the service is down. Not among them: what
is wrong with the request, rate limits (429), and offline work that is shed on purpose."""
REJECTED = _own(
    "sre_requests_rejected_total", Kind.COUNTER, "New requests we refused.", (POOL, REASON), unit=Unit.REQUESTS
)
CANARIES = _own("sre_canaries_total", Kind.COUNTER, "Canary completions sent.", (ENGINE, POOL, VERDICT))
CANARY_FIRST_TOKEN_SECONDS = _own(
    "sre_canary_first_token_seconds", Kind.HISTOGRAM, "Time to the first token of a successful canary.", (ENGINE, POOL),
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0), unit=Unit.SECONDS,
)  # fmt: skip

# GPUs.
GPU_LABELS = (GPU, UUID, SOURCE, INJECTED)
"""``source`` is nvml or sim; ``injected`` is "true" while a chaos fault changes what is read."""
ALERTED_XIDS = (13, 31, 43, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 123, 136, 140, 145, 149, 154)
"""
XIDs of the application (13, 31, 43) and of the card; of others, which are tickets, those often met.

A counter born at 1 has no increase: they are born at 0.
"""
GPUS = _own(
    "sre_gpus", Kind.GAUGE, "GPUs that answered the last read; no series while the reader does not answer.",
    optional=True,
)  # fmt: skip
GPU_MEMORY_USED = _own(
    "sre_gpu_memory_used_ratio", Kind.GAUGE, "Memory taken, the driver's reserve included, 0..1.", GPU_LABELS,
    unit=Unit.RATIO, optional=True,
)  # fmt: skip
GPU_MEMORY_USED_BYTES = _own(
    "sre_gpu_memory_used_bytes", Kind.GAUGE, "Memory taken, the driver's reserve included.", GPU_LABELS,
    unit=Unit.BYTES, optional=True,
)  # fmt: skip
GPU_MEMORY_TOTAL_BYTES = _own(
    "sre_gpu_memory_total_bytes", Kind.GAUGE, "Memory of the GPU.", GPU_LABELS, unit=Unit.BYTES, optional=True
)
GPU_TEMPERATURE = _own(
    "sre_gpu_temperature_celsius", Kind.GAUGE, "Temperature of the core.", GPU_LABELS, unit=Unit.CELSIUS, optional=True
)
GPU_MEMORY_TEMPERATURE = _own(
    "sre_gpu_memory_temperature_celsius", Kind.GAUGE, "Temperature of the memory; many cards do not say.", GPU_LABELS,
    unit=Unit.CELSIUS, optional=True,
)  # fmt: skip
GPU_UTILIZATION = _own(
    "sre_gpu_utilization_ratio", Kind.GAUGE,
    "Share of time in which any kernel ran, 0..1; high with a single request too.", GPU_LABELS, unit=Unit.RATIO,
    optional=True,
)  # fmt: skip
GPU_POWER = _own(
    "sre_gpu_power_watts", Kind.GAUGE, "Power drawn.", GPU_LABELS, unit=Unit.WATTS, optional=True
)  # fmt: skip
GPU_XID_LAST = _own(
    "sre_gpu_xid_last", Kind.GAUGE,
    "Last XID since the guard began to listen, 0 for none; keeps its value for ever.", GPU_LABELS,
    optional=True,
)  # fmt: skip
GPU_XID_ERRORS = _own(
    "sre_gpu_xid_errors_total", Kind.COUNTER,
    "XID events since the guard began to listen. Those that alerts ask for are there from the start, at 0.",
    (*GPU_LABELS, XID), optional=True,
)  # fmt: skip
GPU_NVLINK_BYTES = _own(
    "sre_gpu_nvlink_bytes_total", Kind.COUNTER, "Data over all NVLinks of the GPU: rx or tx.",
    (*GPU_LABELS, DIRECTION), unit=Unit.BYTES, optional=True,
)  # fmt: skip
GPU_THROTTLED = _own(
    "sre_gpu_throttled", Kind.GAUGE,
    "1 while this holds the clocks down, 0 else: sw_power_cap (usual under full load), hw_slowdown, sync_boost, "
    "sw_thermal_slowdown, hw_thermal_slowdown, hw_power_brake.", (*GPU_LABELS, REASON), unit=Unit.STATE, optional=True,
)  # fmt: skip
GPU_ECC_UNCORRECTED = _own(
    "sre_gpu_ecc_uncorrected_errors_total", Kind.COUNTER,
    "Uncorrectable memory errors since the driver was loaded (volatile).", GPU_LABELS, optional=True,
)  # fmt: skip
GPU_ROW_REMAP_FAILED = _own(
    "sre_gpu_row_remap_failed", Kind.GAUGE, "1: a memory row could not be replaced; the card is to be exchanged.",
    GPU_LABELS, unit=Unit.STATE, optional=True,
)  # fmt: skip
GPU_READER_UP = _own(
    "sre_gpu_reader_up", Kind.GAUGE, "1 while the process that reads the GPUs answers in time.", unit=Unit.STATE,
    optional=True,
)  # fmt: skip
GPU_READER_REPLACED = _own(
    "sre_gpu_reader_replaced_total", Kind.COUNTER, "GPU reader processes given up: a call did not return, or failed.",
    optional=True,
)  # fmt: skip
GPU_READER_STUCK = _own(
    "sre_gpu_reader_stuck_processes", Kind.GAUGE, "Killed reader processes that the kernel cannot end yet (state D).",
    optional=True,
)  # fmt: skip

# Host: what the kernel counts, since boot unless said otherwise. Virtual disks and network cards are left out.
HOST_READER_UP = _own(
    "sre_host_reader_up", Kind.GAUGE, "1 while /proc and /sys answer in time; 0: the sre_host values are old.",
    unit=Unit.STATE,
)  # fmt: skip
HOST_SAMPLE_AGE_SECONDS = _own(
    "sre_host_sample_age_seconds", Kind.GAUGE, "Age of the sre_host values.", unit=Unit.SECONDS
)
DISK_LABELS = (DEVICE,)


def _disk(name: str, text: str, unit: Unit) -> Metric:
    return _own(f"sre_host_disk_{name}", Kind.COUNTER, text, DISK_LABELS, unit=unit, optional=True)


HOST_DISK_READS = _disk("reads_completed_total", "Reads that ended.", Unit.OPERATIONS)
HOST_DISK_WRITES = _disk("writes_completed_total", "Writes that ended.", Unit.OPERATIONS)
HOST_DISK_READ_SECONDS = _disk(
    "read_seconds_total", "Time that reads took, summed over reads; by reads completed: await.", Unit.SECONDS
)
HOST_DISK_WRITE_SECONDS = _disk(
    "write_seconds_total", "Time that writes took, summed over writes; by writes completed: await.", Unit.SECONDS
)
HOST_DISK_READ_BYTES = _disk("read_bytes_total", "Data read.", Unit.BYTES)
HOST_DISK_WRITTEN_BYTES = _disk("written_bytes_total", "Data written.", Unit.BYTES)
HOST_DISK_IO_SECONDS = _disk(
    "io_seconds_total", "Time in which at least one request was under way; its rate is %util as a ratio.", Unit.SECONDS
)
HOST_DISK_WEIGHTED_IO_SECONDS = _disk(
    "weighted_io_seconds_total", "Time times requests under way; its rate is the mean queue length.", Unit.SECONDS
)


def _network(name: str, text: str, unit: Unit = Unit.PACKETS) -> Metric:
    return _own(f"sre_host_network_{name}_total", Kind.COUNTER, text, (DEVICE,), unit=unit, optional=True)


HOST_NETWORK_RECEIVE_BYTES = _network("receive_bytes", "Data received.", Unit.BYTES)
HOST_NETWORK_TRANSMIT_BYTES = _network("transmit_bytes", "Data sent.", Unit.BYTES)
HOST_NETWORK_RECEIVE_PACKETS = _network("receive_packets", "Packets received.")
HOST_NETWORK_TRANSMIT_PACKETS = _network("transmit_packets", "Packets sent.")
HOST_NETWORK_RECEIVE_DISCARDS = _network(
    "receive_discards", "Good packets dropped on receipt for want of room or listener (rx_dropped)."
)
HOST_NETWORK_RECEIVE_MISSED = _network(
    "receive_missed_errors", "Packets the card dropped: the host did not fetch them in time (rx_missed_errors)."
)
HOST_NETWORK_RECEIVE_ERRORS = _network("receive_errors", "Bad packets received (rx_errors).")
HOST_NETWORK_TRANSMIT_DISCARDS = _network("transmit_discards", "Packets dropped instead of sent (tx_dropped).")
HOST_TCP_RETRANSMITTED = _own(
    "sre_host_tcp_retransmitted_segments_total", Kind.COUNTER, "TCP segments sent again (RetransSegs).",
    unit=Unit.SEGMENTS, optional=True,
)  # fmt: skip
HOST_TCP_OUT = _own(
    "sre_host_tcp_out_segments_total", Kind.COUNTER, "TCP segments sent, those sent again left out (OutSegs).",
    unit=Unit.SEGMENTS, optional=True,
)  # fmt: skip
HOST_CPU_SECONDS = _own(
    "sre_host_cpu_seconds_total", Kind.COUNTER,
    "CPU time, summed over CPUs: user, nice, system, idle, iowait, irq, softirq, steal.", (MODE,), unit=Unit.SECONDS,
    optional=True,
)  # fmt: skip
HOST_CPUS = _own("sre_host_cpus", Kind.GAUGE, "CPUs that sre_host_cpu_seconds_total is summed over.", optional=True)
HOST_PAGE_FAULTS = _own(
    "sre_host_page_faults_total", Kind.COUNTER, "Page faults: major (the page came from disk), minor (it did not).",
    (KIND,), unit=Unit.OPERATIONS, optional=True,
)  # fmt: skip
HOST_MEMORY_TOTAL = _own(
    "sre_host_memory_total_bytes", Kind.GAUGE, "Memory of the host.", unit=Unit.BYTES, optional=True
)
HOST_MEMORY_AVAILABLE = _own(
    "sre_host_memory_available_bytes", Kind.GAUGE, "Memory that new work can have without swapping.", unit=Unit.BYTES,
    optional=True,
)  # fmt: skip

# Gateway.
GATEWAY_UP = _own("sre_gateway_up", Kind.GAUGE, "1 while Envoy's admin socket answers.", unit=Unit.STATE)
GATEWAY_UPDATE_REJECTIONS = _own(
    "sre_gateway_update_rejections_total", Kind.COUNTER, "Files of ours that Envoy refused."
)
GATEWAY_LOG_ODD_LINES = _own("sre_gateway_log_odd_lines_total", Kind.COUNTER, "Access-log lines we could not read.")

# Actions, incidents, notification, chaos.
ACTIONS = _own("sre_actions_total", Kind.COUNTER, "Actions of the guard, by what became of them.", (ACTION, OUTCOME))
ACTION_BUDGET = _own(
    "sre_action_budget_remaining", Kind.GAUGE, "Actions of this kind left now.", (ACTION, SCOPE, TARGET)
)
INCIDENTS_OPEN = _own("sre_incidents_open", Kind.GAUGE, "Incidents not resolved.")
INCIDENTS_UNACKNOWLEDGED = _own(
    "sre_incidents_unacknowledged", Kind.GAUGE,
    "Incidents that are neither resolved nor acknowledged, by the worst severity they had: page, ticket, info.",
    (SEVERITY,),
)  # fmt: skip
INCIDENTS = _own("sre_incidents_total", Kind.COUNTER, "Incidents opened.", (REASON,))
DELIVERIES = _own(
    "sre_notification_deliveries_total", Kind.COUNTER,
    "Delivery tries: delivered, failed, rejected (refused), unknown (cut off).", (CHANNEL, OUTCOME),
)  # fmt: skip
OUTBOX_MESSAGES = _own(
    "sre_outbox_messages", Kind.GAUGE,
    "Messages in the outbox: pending, dead, perhaps_told (given up; may have arrived, or another channel has it).",
    (CHANNEL, STATE),
)  # fmt: skip
OUTBOX_OLDEST_SECONDS = _own(
    "sre_outbox_oldest_seconds", Kind.GAUGE, "Age of the oldest pending message, 0 without any.", (CHANNEL,),
    unit=Unit.SECONDS,
)  # fmt: skip
# The webhook that Alertmanager posts to; no series where it is not enabled.
_WEBHOOK = "webhook.enabled: true in sre.yaml"
WEBHOOK_UP = _own(
    "sre_webhook_up", Kind.GAUGE, "1 while the webhook listens and can store what comes.", unit=Unit.STATE,
    optional=True, needs=_WEBHOOK,
)  # fmt: skip
WEBHOOK_REQUESTS = _own(
    "sre_webhook_requests_total", Kind.COUNTER,
    "Requests to the webhook: accepted (on disk), told to come again (busy, slow, unstored, too_many_connections, "
    "slow_headers, broken_off), or refused for good (unauthorized, too_large, encoded, refused, too_large_headers, "
    "malformed).",
    (OUTCOME,), optional=True, needs=_WEBHOOK,
)  # fmt: skip
WEBHOOK_ALERTS = _own(
    "sre_webhook_alerts_total", Kind.COUNTER, "Alerts taken in: firing or resolved, and what became of them.",
    (STATE, VERDICT), optional=True, needs=_WEBHOOK,
)  # fmt: skip
WEBHOOK_UNREADABLE = _own(
    "sre_webhook_unreadable_alerts_total", Kind.COUNTER, "Alerts of accepted notifications that cannot be read.",
    optional=True, needs=_WEBHOOK,
)  # fmt: skip
WEBHOOK_TRUNCATED = _own(
    "sre_webhook_truncated_alerts_total", Kind.COUNTER, "Alerts that Alertmanager left out of notifications.",
    optional=True, needs=_WEBHOOK,
)  # fmt: skip
WEBHOOK_COMMIT_SECONDS = _own(
    "sre_webhook_commit_seconds", Kind.HISTOGRAM, "From a whole notification to its being on disk.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0), unit=Unit.SECONDS, optional=True,
    needs=_WEBHOOK,
)  # fmt: skip
WEBHOOK_HEARTBEAT_TIMESTAMP = _own(
    "sre_webhook_last_heartbeat_timestamp_seconds", Kind.GAUGE,
    "Wall time at which the watchdog alert was last heard, seconds since 1970.", unit=Unit.TIMESTAMP_SECONDS,
    optional=True, needs=_WEBHOOK,
)  # fmt: skip
CANARY_ALERT = _own(
    "sre_canary_alert", Kind.GAUGE, "1 while a canary of sre notify test --end-to-end is on its way.", (ID,),
    unit=Unit.STATE, late=True,
)  # fmt: skip
FAULTS_ACTIVE = _own("sre_chaos_faults_active", Kind.GAUGE, "Injected faults in force.", (FAULT,))

OWN_METRICS: dict[str, Metric] = {value.name: value for value in list(globals().values()) if isinstance(value, Metric)}
"""Every metric of ours by name."""
