"""
What a batch of a given size does to GPU memory, disk, network and CPU: requirement G5 (8 x A100-80G, batch 16 to 128).

Only the two ends are given; between them each figure is interpolated by the logarithm of the batch, except the disk
latency, which grows 30-fold and is taken as exponential in it. Outside 16..128 the ends hold. GPU memory is what the
simulated engine writes for the simulated GPU; the others are for whoever simulates hosts.

"KV hit - 18 %" is read as a factor on the hit ratio. "Network saturates 8 Gbit/s" fixes the value at 128 only: below
it is taken as proportional to the throughput.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LOW_BATCH = 16
HIGH_BATCH = 128
BYTES_PER_GB = 10**9


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Figures at one batch size."""

    gpu_memory_bytes: int
    """Per GPU."""
    disk_latency_seconds: float
    weight_load_share: float
    """Of the time, 0..1."""
    network_bits_per_second: float
    kv_hit_factor: float
    """On the prefix-cache hit ratio, relative to batch 16."""
    softirq_factor: float
    """On the CPU time in softirq, relative to batch 16."""


def host_load(batch: int) -> HostLoad:
    """Load at ``batch`` running requests; an idle engine holds as much memory as one at batch 16."""
    inside = min(max(batch, LOW_BATCH), HIGH_BATCH)
    share = math.log(inside / LOW_BATCH) / math.log(HIGH_BATCH / LOW_BATCH)
    return HostLoad(
        gpu_memory_bytes=round((48 + (68 - 48) * share) * BYTES_PER_GB),
        disk_latency_seconds=0.003 * (89 / 3) ** share,
        weight_load_share=0.05 + (0.35 - 0.05) * share,
        network_bits_per_second=8e9 * (0.25 + 0.75 * share),
        kv_hit_factor=1 - 0.18 * share,
        softirq_factor=1 + 2.10 * share,
    )
