"""
The process that reads GPUs: ``python -m sre.adapters.gpu.child PARENT_PID OPTIONS``.

It may hang in a GPU call for ever; its reader then kills it and starts another one. It ends with its reader: on the end
of its stdin, and, should it be in a call just then, by the kernel's parent-death signal.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from sre.adapters.gpu.backend import Backend, BackendFailed, NotHere
from sre.adapters.gpu.overlay import apply_overlay, hangs, load_overlay
from sre.adapters.gpu.protocol import SOURCE_NONE, ChildOptions, decode_options, encode_gpus
from sre.adapters.processes.parent import die_with
from sre.adapters.processes.proc import boot_id, identity_of

HANG_POLL_SECONDS = 0.05


def main(argv: list[str]) -> int:
    """Say hello, then answer reads until stdin ends."""
    die_with(int(argv[0]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = decode_options(argv[1])
    try:
        backend, remark = _open(options)
    except BackendFailed as error:
        _say(json.dumps({"hello": "sim" if options.backend == "sim" else "nvml", "problem": str(error)}))
        return 0
    if backend is None:
        _say(json.dumps({"hello": SOURCE_NONE, "problem": remark}))
        return 0
    _say(json.dumps({"hello": backend.source, "problem": None}))
    boot = boot_id()
    for line in sys.stdin:
        number = json.loads(line)["read"]
        try:
            gpus = backend.read()
        except BackendFailed as error:
            _say(json.dumps({"problem": str(error)}))
            return 0
        if options.overlay is not None:
            overlay = load_overlay(Path(options.overlay), boot_id=boot, now=time.monotonic())
            while hangs(gpus, overlay):
                time.sleep(HANG_POLL_SECONDS)
                overlay = load_overlay(Path(options.overlay), boot_id=boot, now=time.monotonic())
            gpus = apply_overlay(gpus, overlay, now=time.monotonic())
        _say(encode_gpus(number, gpus))
    return 0


def _open(options: ChildOptions) -> tuple[Backend | None, str | None]:
    """Return the backend, or None and why there is none. Raises BackendFailed when there is one that does not work."""
    remark = None
    if options.backend in {"auto", "nvml"}:
        from sre.adapters.gpu.nvml import NvmlBackend

        try:
            return NvmlBackend(time.monotonic), None
        except NotHere as error:
            if options.backend == "nvml":
                raise
            remark = str(error)
    if options.sim is None:
        return None, remark
    from sre.adapters.gpu.simulated import SimulatedBackend
    from sre.simulator.gpu import GpuModel

    sim = options.sim
    model = GpuModel(
        sim.memory_total_bytes, sim.memory_used_ratio, sim.idle_temperature_celsius, sim.load_temperature_celsius
    )
    backend = SimulatedBackend(
        Path(sim.folder),
        sim.count,
        model,
        boot_id=boot_id(),
        monotonic=time.monotonic,
        start_ticks=_start_ticks,
    )
    return backend, None


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _start_ticks(pid: int) -> int | None:
    identity = identity_of(pid)
    return None if identity is None else identity.start_ticks


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
