"""The file that ``sre config init`` writes: valid as it is, every other setting as a comment with its default."""

from __future__ import annotations

from typing import Literal

EngineKind = Literal["sim", "vllm", "external"]

_HEAD = """\
# sre.yaml: what `sre up` runs and when the guard acts. Every setting has a default; what is commented out shows it.
# Check this file with `sre config validate`; see what is in force with `sre config show`.
# Secrets are never written here: write env:NAME or file:/path. Relative paths begin at the folder of this file.

stack:
  name: default                   # state, logs and incidents: ~/.local/state/sre/NAME
"""

_ENGINES: dict[EngineKind, str] = {
    "sim": """\
  engines:
    # A simulated engine: vLLM's processes, metrics and failures, no GPU. Never a silent substitute for the real one.
    - name: sim-0
      kind: sim
      model: sim-7b               # the name clients put in "model"; engines with one name form a pool
      gpus: [0]                   # simulated GPU; its temperature and memory are watched
      # sim:
      #   time_scale: 1.0         # simulated seconds per real second
      #   load_seconds: 0.5       # how long "loading the model" takes
""",
    "vllm": """\
  engines:
    - name: vllm-0
      kind: vllm
      model: ./model              # folder of the model, or its hub name
      served_model_name: my-model # the name clients put in "model"; engines with one name form a pool
      gpus: [0]                   # rules on these GPUs act on this engine
      build: gpu                  # cpu: the CPU build of vLLM
      # python: /opt/vllm/bin/python  # interpreter that has vLLM; default: the one running sre
      # args: [--max-model-len, "8192", --gpu-memory-utilization, "0.90"]
      # env: {VLLM_LOGGING_LEVEL: INFO}
      # api_key: env:VLLM_API_KEY
      # ready_timeout_seconds: 900.0
      # drain_timeout_seconds: 30.0 # running requests may finish before SIGTERM
      # stop_timeout_seconds: 15.0  # from SIGTERM to SIGKILL
""",
    "external": """\
  engines:
    # An engine that someone else runs: it is watched, and only acted on with guard.mode: act.
    - name: engine-0
      kind: external
      model: my-model             # the name it serves
      url: http://127.0.0.1:8000
      # api_key: env:VLLM_API_KEY
""",
}

_TAIL = """\
  gateway:
    host: 127.0.0.1               # anything else opens the gateway to the network
    port: 8080
    # max_body_bytes: 8388608
    # max_concurrent_requests: 1024
    # rate_limit_requests_per_second: 200.0
    # retries: 2                  # on another engine, only before the first byte
    # retry_after_seconds: 5

guard:
  mode: auto                      # act on what `sre up` started, only observe what is external
  # metrics_port: 9400
  # min_healthy_engines: 1        # per pool; with fewer the pool is closed to new requests
  # hang:
  #   hang_after_seconds: 3.0     # requests in flight and no step: refuse new requests (cheap, so fast)
  #   restart_after_seconds: 30.0 # still hanging: restart the engine (expensive, so slow)
  # half_open:
  #   open_seconds: 30.0
  #   ramp_percents: [10, 25, 50, 100]
  #   ramp_dwell_seconds: 10.0
  # budgets:
  #   restarts_per_engine_per_hour: 4
  # rules:                        # writing this key replaces all default rules; these are the defaults
  #   - {name: gpu-memory, signal: gpu_memory_used_ratio, threshold: 0.95, for_seconds: 10, recover_below: 0.93}
  #   - {name: gpu-temperature, signal: gpu_temperature_celsius, threshold: 85, for_seconds: 0, recover_below: 80}
  #   - {name: failed-batches, signal: consecutive_failed_batches, comparison: ">=", threshold: 3, recover_below: 1}
  #   - {name: error-ratio, signal: error_ratio, threshold: 0.05, min_samples: 20, recover_below: 0.01}

notify:
  # language: en                  # or zh; a channel may have its own
  # channels:                     # each url is a reference to an Apprise URL: mailtos://…, sms and chat services
  #   - {name: mail, kind: email, url: "env:SRE_MAIL_URL", severities: [page, ticket]}
  #   - {name: sms, kind: sms, url: "file:/etc/sre/sms-url", severities: [page], fallback: mail}
  #   - {name: pager, kind: pagerduty, url: "env:SRE_PAGERDUTY_URL"}
  # templates: {title: /etc/sre/title.txt}   # files with ${placeholders}: sms, title, text, html
  # fallback_after_attempts: 3    # what is refused goes to the channel's fallback at once
  # max_unknown_outcomes: 3       # then what may have arrived each time is dead; a page comes again ever more seldom
  # escalation: {after_seconds: 900, repeat_seconds: 900, max_levels: 3, channels: [pager]}   # until: sre incident ack
  # quiet_hours: {start: "22:00", end: "07:00", timezone: UTC, severities: [ticket, info]}    # a page never waits
  # storm: {max_messages: 20, window_seconds: 600}   # of one channel; what is more becomes one message
  # initial_backoff_seconds: 5.0

webhook:                          # where Alertmanager posts; `sre rules generate --format alertmanager` points there
  # enabled: false                # inside the guard; needs token, or basic_user and basic_password
  # port: 9401
  # token: "file:/etc/sre/webhook-token"
  # incident_by: [alertname, model_name, "node|instance"]   # alerts that agree in these are one incident
  # heartbeat: {alertnames: [SreWatchdog, Watchdog], timeout_seconds: 300}
  # routes:                       # the first that matches decides; writing this key replaces the default, which is
  #   - {name: page-and-ticket, severities: [page, ticket], actions: [{do: incident}, {do: notify}]}

monitoring:                       # what `sre rules generate` and `sre dashboards generate` write for
  # vllm_version: "0.32"          # default: any release, old and new names joined
  # dcgm_exporter_version: "4.9.0"
  # metric_prefix: "vllm:"        # "ray_vllm:" or "ray_vllm_" under Ray
  # jobs: {vllm: vllm, sre: sre, node: node, dcgm: dcgm}
  # matchers: {}                  # {cluster: a} where one Prometheus sees several clusters: rules for each of them
  # scrape_interval_seconds: 15.0
  # retention_days: 15.0          # what Prometheus keeps; no window may be longer
  # runbook_base_url: runbooks
  # slo:
  #   period_days: 30
  #   availability_objective: 0.999
  #   min_bad_events: 5           # fewer in a window fire nothing
  #   ttft: {objective: 0.99, threshold_seconds: 1.0}  # thresholds are bucket edges
  #   inter_token: {objective: 0.99, threshold_seconds: 0.1}
  #   e2e: {objective: 0.95, threshold_seconds: 30.0}
  # thresholds:
  #   gpu_temperature_celsius: 85.0
  #   gpu_memory_used_ratio: 0.95
  #   kv_cache_usage_ratio: 0.9
  #   error_ratio: 0.05
  #   e2e_seconds: 0.5            # P99; long answers need more
  #   engine_stuck_seconds: 15.0

chaos:
  # lease_seconds: 2.0            # without a sign of life from the injector for this long a fault is reverted
  # max_hold_seconds: 600.0

gate:                             # what `sre gate run` sends, and what must hold
  # target:
  #   url: http://127.0.0.1:8080  # any OpenAI-compatible server; default: the gateway above
  #   model: my-model             # default: the first that /v1/models lists
  #   api: completions            # or chat
  #   api_key: env:OPENAI_API_KEY
  # load:
  #   stages_qps: [100, 500, 1000]
  #   qps_scale: 1.0              # 0.1 gives 10, 50 and 100 qps
  #   stage_seconds: 30.0
  #   arrivals: poisson           # or constant
  #   seed: 1
  #   mix:                        # shares sum to 1
  #     - {name: short, share: 1.0, prompt_tokens: 256, max_tokens: 32}
  #   request_timeout_seconds: 60.0
  # knee: {enabled: true, resolution_ratio: 0.05, max_stages: 5}
  # long_tail: {enabled: false, long_share: 0.1, long_prompt_tokens: 32768, seconds: 30.0, runs: 5}
  # objectives:                   # writing this key replaces the default; failures count as infinitely slow
  #   - {failed_ratio: 0.01}      # e.g. {stage: 100qps, ttft_p99_seconds: 1.0, throughput_ratio: 0.97}
  # baseline:
  #   folder: gate-baselines      # meant to be committed
  #   name: default
  #   runs: 5                     # passes over the stages; fewer than five show nothing
  #   cells:                      # what is compared; each further cell costs power
  #     - {metric: ttft_p99_seconds}
  #     - {metric: e2e_p99_seconds}
  #     - {metric: throughput_rps}
  #   minimum_effect_ratio: 0.05
  #   regression_ratio: 0.2       # what must not be missed: too noisy to find it is inconclusive
  #   required: false             # true: without a baseline nothing passes (exit 2)
  #   may_differ: []              # conditions that need not equal the baseline's: [client_host] in moving CI jobs
  # budget: {network_seconds: 0.05, load_seconds: 0.03, compute_seconds: 0.1, serialization_seconds: 0.02}
  # capacity:                     # nominal, where it cannot be read
  #   compute_flops_per_second: 3.12e+14  # per GPU
  # deadline_seconds: 3600.0
  # inconclusive: fail            # or pass: exit 0 instead of 5
"""


def template(kind: EngineKind) -> str:
    """Text of a new sre.yaml with one engine of ``kind``."""
    return _HEAD + _ENGINES[kind] + _TAIL
