"""
Pictures of the dashboards for the README, from a stack that lives through a hang:

    python -m tests.monitoring.live.pictures [--output-dir FOLDER]

Starts two simulated engines, gateway, guard, Prometheus and Alertmanager, loads them for six minutes, stops the core of
one engine on the way, and draws what Prometheus has by then. Takes seven minutes; leaves nothing running.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.monitoring.dashboards import picture
from tests.monitoring.live.hang import hang
from tests.monitoring.live.world import World, short_folder, watched

ENGINES = [
    {"name": f"sim-{n}", "kind": "sim", "model": "sim-7b", "gpus": [0], "stop_timeout_seconds": 3} for n in range(2)
]
MAX_BYTES = 100_000
GROUP_WAIT_SECONDS = 10.0
BEFORE: tuple[tuple[int, int, float], ...] = ((2, 24, 60), (6, 48, 60), (12, 64, 60))
AFTER: tuple[tuple[int, int, float], ...] = ((6, 48, 45), (3, 24, 30))
"""Load in turn: clients, tokens of an answer, seconds."""


def live_through(world: World) -> None:
    """Load that rises, a hang with everything the guard and the alerts do about it, load that falls."""
    for clients, tokens, seconds in BEFORE:
        _load(world, clients, tokens, seconds)
    world.live.start_load(clients=8, max_tokens=48)
    _say("sim-0 hangs")
    seen = hang(world, "sim-0", hold="60s", group_wait=GROUP_WAIT_SECONDS, timeout=120)
    _say(f"told after {seen.delay.total:.0f} s, recovered")
    world.live.stop_load()
    for clients, tokens, seconds in AFTER:
        _load(world, clients, tokens, seconds)


def _load(world: World, clients: int, tokens: int, seconds: float) -> None:
    _say(f"{clients} clients for {seconds:g} s")
    world.live.start_load(clients=clients, max_tokens=tokens, pause=0.1)
    time.sleep(seconds)
    world.live.stop_load()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """0: drawn; 3: a picture is too large for the repository."""
    parser = argparse.ArgumentParser(description="Draw the dashboards of a stack that lives through a hang.")
    parser.add_argument("--output-dir", type=Path, default=picture.PICTURES)
    folder = parser.parse_args(argv).output_dir
    began = time.time()
    with short_folder() as short, watched(short, ENGINES) as world:
        live_through(world)
        minutes = (time.time() - began) / 60
        picture.main(["--url", world.prometheus.url, "--minutes", f"{minutes:.2f}", "--output-dir", str(folder)])
    large = [file.name for file in folder.glob("*.svg") if file.stat().st_size > MAX_BYTES]
    if large:
        _say(f"larger than {MAX_BYTES} bytes: {', '.join(large)}")
    return 3 if large else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
