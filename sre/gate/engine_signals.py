"""
What engines tell on their /metrics pages, as values, and the difference of two reads around a stage.

Names come from the catalogue, those of older releases included; Ray's prefixes are understood. Several ranks of one
page, and several engines, are summed; of KV usage the fullest counts. A counter that went down says that the engine was
started again: what it counts since then is all there is, and that is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sre.gate.stages import Resource, ResourceUse
from sre.metrics import vllm
from sre.metrics.catalogue import plain, variants
from sre.metrics.exposition import Exposition, Series
from sre.metrics.types import Kind, Metric

COUNTERS: Mapping[str, Metric] = {
    "preemptions": vllm.PREEMPTIONS,
    "generation_tokens": vllm.GENERATION_TOKENS,
    "prompt_tokens": vllm.PROMPT_TOKENS,
    "prefix_queries": vllm.PREFIX_CACHE_QUERIES,
    "prefix_hits": vllm.PREFIX_CACHE_HITS,
    "requests_finished": vllm.REQUEST_SUCCESS,
    "admission_rejections": vllm.ADMISSION_REJECTIONS,
    "flops_per_gpu": vllm.ESTIMATED_FLOPS,
    "read_bytes_per_gpu": vllm.ESTIMATED_READ_BYTES,
    "write_bytes_per_gpu": vllm.ESTIMATED_WRITE_BYTES,
    "steps": vllm.ITERATION_TOKENS,
}
"""Of a histogram the count."""
MEANS: Mapping[str, Metric] = {
    "queue_seconds_mean": vllm.REQUEST_QUEUE_TIME,
    "prefill_seconds_mean": vllm.REQUEST_PREFILL_TIME,
    "decode_seconds_mean": vllm.REQUEST_DECODE_TIME,
    "ttft_seconds_mean": vllm.TIME_TO_FIRST_TOKEN,
    "e2e_seconds_mean": vllm.E2E_REQUEST_LATENCY,
    "inter_token_seconds_mean": vllm.INTER_TOKEN_LATENCY,
}
GAUGES: Mapping[str, Metric] = {
    "running": vllm.REQUESTS_RUNNING,
    "waiting": vllm.REQUESTS_WAITING,
    "kv_usage": vllm.KV_CACHE_USAGE,
}
AVERAGED = frozenset({"flops_per_gpu", "read_bytes_per_gpu", "write_bytes_per_gpu"})
"""Per GPU already: of several engines the mean."""
NEEDED = ("running", "generation_tokens")
"""A page without these is no engine's."""
LEAST_MOMENTS = 6
STANDS_RATIO = 0.7
"""Of the moments in which requests wait: the batch is at its largest size. With other limits it swings."""
LARGEST_SWING = 0.05
"""Requests that end per step, of the batch, above which that cannot be told from other swings."""
FLOPS_HINT = "the engine does not estimate it; start it with --enable-mfu-metrics"


@dataclass(frozen=True, slots=True)
class EnginePage:
    """
    One page at one time.

    Attributes:
        counters, gauges: Name → value; what the page does not have is left out. Gauges that are no number, too.
        sums: Name → (sum, count) of a histogram.
        born: ``process_start_time_seconds`` where the page has it.
        config: Labels of ``vllm:cache_config_info`` that say how the engine was started.
    """

    counters: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    sums: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    born: float | None = None
    config: tuple[tuple[str, str], ...] = ()

    @property
    def is_engine(self) -> bool:
        return NEEDED[0] in self.gauges and NEEDED[1] in self.counters


def engine_page(exposition: Exposition) -> EnginePage:
    """Reduce a page."""
    samples: dict[str, tuple[Series, ...]] = {}
    for name, series in exposition.samples.items():
        samples[plain(name)] = series
    counters = {name: _sum(found) for name, metric in COUNTERS.items() if (found := _found(samples, metric))}
    gauges = {}
    for name, metric in GAUGES.items():
        values = [one.value for one in _found(samples, metric) if math.isfinite(one.value)]
        if values:
            gauges[name] = max(values) if metric is vllm.KV_CACHE_USAGE else math.fsum(values)
    sums = {}
    for name, metric in MEANS.items():
        for one in variants(metric, None):
            if f"{one.name}_sum" in samples and f"{one.name}_count" in samples:
                sums[name] = (_sum(samples[f"{one.name}_sum"]), _sum(samples[f"{one.name}_count"]))
                break
    born = samples.get("process_start_time_seconds", ())
    return EnginePage(
        {name: value for name, value in counters.items() if math.isfinite(value)},
        gauges,
        sums,
        born[0].value if born else None,
        _config(samples),
    )


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """
    One engine over a stage: differences of counters, means of histograms as (sum, count).

    Attributes:
        restarted: It was started again in between.
    """

    counters: Mapping[str, float]
    sums: Mapping[str, tuple[float, float]]
    restarted: bool


def difference(before: EnginePage, after: EnginePage) -> EngineDelta:
    """What happened in between."""
    restarted = any(after.counters[name] < value for name, value in before.counters.items() if name in after.counters)
    restarted |= any(after.sums[name][1] < count for name, (_, count) in before.sums.items() if name in after.sums)
    # Front ends differ by some ms in how they compute it; a restart takes seconds.
    restarted |= before.born is not None and after.born is not None and after.born > before.born + 1
    if restarted:
        return EngineDelta(after.counters, after.sums, True)
    # A counter without labels' values appears with its first event: it was zero before.
    counters = {name: value - before.counters.get(name, 0.0) for name, value in after.counters.items()}
    sums = {}
    for name, (total, count) in after.sums.items():
        earlier = before.sums.get(name, (0.0, 0.0))
        sums[name] = (total - earlier[0], count - earlier[1])
    return EngineDelta(counters, sums, False)


def combine(deltas: Sequence[EngineDelta], samples: Sequence[Sequence[EnginePage]]) -> dict[str, float]:
    """
    ``StageSignals.engine`` of all engines together.

    Args:
        samples: Gauges during the stage: one sequence per moment, one page per engine in it.
    """
    found: dict[str, float] = {}
    for name in COUNTERS:
        values = [delta.counters[name] for delta in deltas if name in delta.counters]
        if values:
            found[name] = math.fsum(values) / (len(values) if name in AVERAGED else 1)
    for name in MEANS:
        total = math.fsum(delta.sums[name][0] for delta in deltas if name in delta.sums)
        count = math.fsum(delta.sums[name][1] for delta in deltas if name in delta.sums)
        if count > 0:
            found[name] = total / count
    for name, means in (("running", "running_mean"), ("waiting", "waiting_mean"), ("kv_usage", "kv_usage_mean")):
        moments = [[page.gauges[name] for page in pages if name in page.gauges] for pages in samples]
        whole = [(max(values) if name == "kv_usage" else math.fsum(values)) for values in moments if values]
        if whole:
            found[means] = math.fsum(whole) / len(whole)
            if name == "kv_usage":
                found["kv_usage_max"] = max(whole)
    ending = math.fsum(
        delta.counters["requests_finished"] / delta.counters["steps"]
        for delta in deltas
        if delta.counters.get("steps", 0) > 0 and "requests_finished" in delta.counters
    )
    if ending > 0:
        found["ending_per_step"] = ending
    return found | _plateau(samples, ending)


def _plateau(samples: Sequence[Sequence[EnginePage]], ending: float) -> dict[str, float]:
    """
    How the batch stands while requests wait: at one number where slots are what they wait for.

    The gauge is taken when a step has ended, without the requests that ended with it: so much it swings.
    """
    moments = [
        math.fsum(page.gauges.get("running", 0.0) for page in pages)
        for pages in samples
        if math.fsum(page.gauges.get("waiting", 0.0) for page in pages) > 0
    ]
    if not moments:
        return {}
    most = max(moments)
    found = {
        "waiting_moments": float(len(moments)),
        "waiting_moments_ratio": len(moments) / len(samples),
        "running_while_waiting_mean": math.fsum(moments) / len(moments),
    }
    if ending <= LARGEST_SWING * most:
        found["running_max"] = most
        least = most - max(1.0, 2 * ending)
        found["running_at_max_ratio"] = sum(1 for running in moments if running >= least) / len(moments)
    return found


def engine_uses(
    engine: Mapping[str, float],
    seconds: float,
    *,
    batch_slots: int | None,
    flops_per_second: float | None,
    memory_bytes_per_second: float | None,
) -> tuple[list[ResourceUse], dict[str, str]]:
    """
    Use of what the engine tells of, and what it does not tell with the reason.

    Args:
        batch_slots: max_num_seqs of all engines together; no page has it.
        flops_per_second, memory_bytes_per_second: Peak of one GPU.
    """
    uses: list[ResourceUse] = []
    unseen: dict[str, str] = {}
    if "kv_usage_mean" in engine:
        uses.append(ResourceUse(Resource.KV_CACHE, engine["kv_usage_mean"], True, vllm.KV_CACHE_USAGE.name))
    else:
        unseen["kv_cache"] = "no such gauge on the engines' pages"
    if "running_mean" not in engine:
        unseen["batch_slots"] = "no such gauge on the engines' pages"
    elif batch_slots is None and not _stands(engine):
        unseen["batch_slots"] = "max_num_seqs stands on no page; it is known for engines in sre.yaml only"
    else:
        source = f"{vllm.REQUESTS_RUNNING.name} of max_num_seqs"
        slots = float(batch_slots or engine["running_max"])
        if batch_slots is None:
            source = f"{vllm.REQUESTS_RUNNING.name} stands at {slots:.0f} while others wait; max_num_seqs is not told"
        running = min(slots, _in_batch(engine))
        uses.append(ResourceUse(Resource.BATCH_SLOTS, running / slots, True, source, running, "requests", slots))
    moved = engine.get("read_bytes_per_gpu", 0.0) + engine.get("write_bytes_per_gpu", 0.0)
    for resource, amount, capacity, scale, unit, metric, setting in (
        (
            Resource.COMPUTE, engine.get("flops_per_gpu", 0.0), flops_per_second, 1e12, "TFLOP/s",
            vllm.ESTIMATED_FLOPS.sample, "gate.capacity.compute_flops_per_second",
        ),
        (
            Resource.GPU_MEMORY_BANDWIDTH, moved, memory_bytes_per_second, 1e9, "GB/s",
            f"{vllm.ESTIMATED_READ_BYTES.sample} and {vllm.ESTIMATED_WRITE_BYTES.sample}",
            "gate.capacity.gpu_memory_bytes_per_second",
        ),
    ):  # fmt: skip
        if amount <= 0 or seconds <= 0:
            unseen[resource.value] = FLOPS_HINT
        elif capacity is None:
            unseen[resource.value] = (
                f"{amount / seconds / scale:.4g} {unit} per GPU, and no peak to compare with; set {setting}"
            )
        else:
            rate = amount / seconds
            uses.append(ResourceUse(resource, rate / capacity, False, metric, rate / scale, unit, capacity / scale))
    return uses, unseen


def _in_batch(engine: Mapping[str, float]) -> float:
    """
    Requests in the batch while a step ran, mean: those that ended with it are no longer in the gauge.

    Where requests waited in most of the moments, only these count: the drain after the stage is not load.
    """
    mostly = engine.get("waiting_moments_ratio", 0.0) >= 0.5
    seen = engine["running_while_waiting_mean"] if mostly else engine["running_mean"]
    return seen + engine.get("ending_per_step", 0.0)


def _stands(engine: Mapping[str, float]) -> bool:
    moments, share = engine.get("waiting_moments", 0.0), engine.get("running_at_max_ratio", 0.0)
    return moments >= LEAST_MOMENTS and share >= STANDS_RATIO and engine.get("running_max", 0.0) > 0


def _found(samples: Mapping[str, tuple[Series, ...]], metric: Metric) -> tuple[Series, ...]:
    """Series of the newest name that the page has."""
    for one in variants(metric, None):
        name = f"{one.name}_count" if one.kind is Kind.HISTOGRAM else one.sample
        if samples.get(name):
            return samples[name]
    return ()


def _config(samples: Mapping[str, tuple[Series, ...]]) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for series in samples.get(vllm.CACHE_CONFIG_INFO.name, ()):
        for label in vllm.CACHE_CONFIG_INFO.labels:
            if label != vllm.ENGINE and label in series.labels:
                found.setdefault(label, series.labels[label])
    return tuple(sorted(found.items()))


def _sum(series: Iterable[Series]) -> float:
    return math.fsum(one.value for one in series)
