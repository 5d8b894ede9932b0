"""Levels of recorded series: the first part of a record's name says exactly which labels it has."""

from __future__ import annotations

from collections.abc import Mapping

NODE = "node"
INSTANCE = "instance"
DEVICE = "device"
GPU = "gpu"
UUID = "UUID"
XID = "xid"
MODEL_NAME = "model_name"
POOL = "pool"
SLO = "slo"
FINISHED_REASON = "finished_reason"
JOB = "job"

LEVELS: Mapping[str, tuple[str, ...]] = {
    "gpu": (NODE, GPU, UUID),
    "gpu_xid": (NODE, GPU, UUID, XID),
    "node": (NODE,),
    "instance": (NODE, INSTANCE),
    "instance_device": (NODE, INSTANCE, DEVICE),
    "engine": (NODE, INSTANCE, MODEL_NAME),
    "engine_reason": (NODE, INSTANCE, MODEL_NAME, FINISHED_REASON),
    "model": (MODEL_NAME,),
    "pool": (POOL,),
    "slo": (SLO, MODEL_NAME),
}
"""Level → labels, in the order in which ``by`` lists them."""

TARGET_LABELS: frozenset[str] = frozenset({JOB, INSTANCE, NODE})
"""What a scrape adds to every series; ``node`` only where the scrape configuration sets it."""
