"""Doctor: GPUs, and whether the rules on them can be armed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sre.control.doctor_facts import Facts, Finding, GpuFacts, Level, NotSeen
from sre.metrics.signals import GPU_MEMORY_USED_RATIO, GPU_TEMPERATURE_CELSIUS
from sre.settings.stack import EngineSettings
from sre.signals.steady_state import Arming, ArmingReason, judge, judge_level
from sre.signals.types import GpuSeen, Seen

VLLM_MEMORY_UTILIZATION = 0.92
"""vLLM's default of --gpu-memory-utilization (0.32)."""
VLLM_MEMORY_BESIDES = 0.03
"""What the GPU holds beside that budget: CUDA context, graphs. Real servers rest at 92 to 97 %."""


def gpu_findings(facts: Facts) -> Iterator[Finding]:
    needed = any(e.kind == "vllm" and e.build == "gpu" for e in facts.engine_settings)
    gpu = facts.gpu
    if isinstance(gpu, NotSeen):
        yield Finding("gpu", Level.NOT_SEEN, gpu.why, "look at dmesg for Xid errors", essential=needed)
        return
    last = gpu.reads[-1] if gpu.reads else ()
    if gpu.problem is not None:
        remedy = "install the NVIDIA driver, or see what nvidia-smi says; guard.gpu_reader: none stops looking"
        if needed or any(g.source == "nvml" for g in last):
            yield Finding("gpu", Level.PROBLEM, f"GPUs cannot be read: {gpu.problem}", remedy)
        else:
            yield Finding("gpu", Level.OK, f"no GPU is read ({gpu.problem})")
    elif gpu.source == "none":
        level = Level.WARNING if needed else Level.OK
        yield Finding("gpu", level, "no GPU is read (guard.gpu_reader: none): rules on GPUs see nothing")
    yield from (_gpu(one) for one in last if gpu.problem is None)
    yield from _rules(facts, gpu)


def _gpu(gpu: GpuSeen) -> Finding:
    what = f"GPU {gpu.index} ({gpu.source}{', a fault is injected' if gpu.injected else ''})"
    memory, heat = gpu.memory_used_ratio, gpu.temperature_celsius
    if memory.seen is Seen.OK and memory.value is not None and heat.seen is Seen.OK:
        return Finding("gpu", Level.OK, f"{what}: memory {memory.value:.1%} in use, {heat.value:.0f} °C")
    if memory.seen is heat.seen is Seen.ABSENT and not gpu.uuid:
        return Finding(
            "gpu", Level.PROBLEM, f"{what}: an engine is to use it, and it is not there", "correct gpus: of the engine"
        )
    return Finding(
        "gpu", Level.WARNING, f"{what}: memory {memory.seen.value}, temperature {heat.seen.value}",
        "look at nvidia-smi and at dmesg for Xid errors",
    )  # fmt: skip


def _rules(facts: Facts, gpu: GpuFacts) -> Iterator[Finding]:
    """Each GPU rule on each GPU in use: judged by what is read while its engine serves, else by what is foreseen."""
    stack = facts.stack
    ready = frozenset[str]() if isinstance(stack, NotSeen) else stack.ready_engines
    for rule in facts.rules:
        if not rule.enabled or rule.signal not in {GPU_MEMORY_USED_RATIO, GPU_TEMPERATURE_CELSIUS}:
            continue
        for index in sorted({i for engine in facts.engine_settings for i in engine.gpus}):
            users = [e for e in facts.engine_settings if index in e.gpus]
            if all(engine.name in ready for engine in users):
                seen = [g for read in gpu.reads for g in read if g.index == index and not g.injected]
                memory = rule.signal == GPU_MEMORY_USED_RATIO
                arming = judge(rule, [g.memory_used_ratio if memory else g.temperature_celsius for g in seen])
                yield _arming(arming, f"GPU {index}")
            elif rule.signal == GPU_MEMORY_USED_RATIO:
                level = foreseen_memory_ratio(users, facts.sim_memory_ratio)
                if level is not None:
                    yield _arming(judge_level(rule, level), f"GPU {index}, foreseen from the settings")


def _arming(arming: Arming, where: str) -> Finding:
    if arming.reason is ArmingReason.NOT_SEEN:
        return Finding("rules", Level.NOT_SEEN, f"{where}: {arming.sentence}")
    return Finding(
        "rules", Level.OK if arming.reason is ArmingReason.CLEAR else Level.WARNING, f"{where}: {arming.sentence}",
        arming.remedy,
    )  # fmt: skip


def foreseen_memory_ratio(engines: Sequence[EngineSettings], sim_memory_ratio: float) -> float | None:
    """Share of a GPU's memory that ``engines`` will hold together once they serve; None when nobody can say."""
    total = 0.0
    for engine in engines:
        if engine.kind == "external" or (engine.kind == "vllm" and engine.build == "cpu"):
            return None
        if engine.kind == "vllm":
            total += _memory_utilization(engine.args) + VLLM_MEMORY_BESIDES
    if any(engine.kind == "sim" for engine in engines):
        total = max(total, sim_memory_ratio)
    return min(total, 1.0) if engines else None


def _memory_utilization(args: Sequence[str]) -> float:
    """vLLM's --gpu-memory-utilization in ``args``, the last one; its default without one, or with an odd one."""
    names = ("--gpu-memory-utilization", "--gpu_memory_utilization")
    found = VLLM_MEMORY_UTILIZATION
    for position, argument in enumerate(args):
        name, _, inline = argument.partition("=")
        if name in names:
            try:
                found = float(inline or "".join(args[position + 1 : position + 2]))
            except ValueError:
                continue
    return found
