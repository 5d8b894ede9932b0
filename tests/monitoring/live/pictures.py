"""
Pictures of the dashboards for the README, from a stack that lives through a hang:

    python -m tests.monitoring.live.pictures [--output-dir FOLDER]

Starts two simulated engines, gateway, guard, Prometheus and Alertmanager, loads them for eleven minutes, stops the core
of one engine on the way, and draws what Prometheus has by then. The first five minutes are not shown: until then rates
over five minutes only rise. Takes twelve minutes; leaves nothing running.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.monitoring.dashboards import picture
from tests.monitoring.live.hang import Hang, hang
from tests.monitoring.live.world import World, short_folder, watched

ENGINES = [
    {"name": f"sim-{n}", "kind": "sim", "model": "sim-7b", "gpus": [0], "stop_timeout_seconds": 3} for n in range(2)
]
MAX_BYTES = 100_000
GROUP_WAIT_SECONDS = 10.0
PRELUDE_SECONDS = 300.0
BEFORE: tuple[tuple[int, int, float], ...] = ((3, 24, 60), (6, 48, 60), (12, 64, 60))
AFTER: tuple[tuple[int, int, float], ...] = ((6, 48, 60), (3, 24, 45))
"""Load in turn: clients, tokens of an answer, seconds."""
LOOK_SECONDS = 4.0
"""The overview ends so long after the page: what fires is still there."""


def live_through(world: World) -> tuple[float, Hang]:
    """Load that rises, a hang with everything the guard and the alerts do about it, load that falls; and its start."""
    for _ in range(3):
        _load(world, 3, 24, PRELUDE_SECONDS / 3)
    began = time.time()
    for clients, tokens, seconds in BEFORE:
        _load(world, clients, tokens, seconds)
    world.live.start_load(clients=8, max_tokens=48)
    _say("sim-0 hangs")
    seen = hang(world, "sim-0", hold="60s", group_wait=GROUP_WAIT_SECONDS, timeout=120)
    _say(f"told after {seen.delay.total:.0f} s, recovered")
    world.live.stop_load()
    for clients, tokens, seconds in AFTER:
        _load(world, clients, tokens, seconds)
    return began, seen


def _load(world: World, clients: int, tokens: int, seconds: float) -> None:
    _say(f"{clients} clients for {seconds:g} s")
    world.live.start_load(clients=clients, max_tokens=tokens, pause=0.1)
    time.sleep(seconds)
    world.live.stop_load()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}", file=sys.stderr, flush=True)


def draw(world: World, began: float, end: float, folder: Path, *uids: str) -> None:
    minutes = (end - began) / 60
    where = ["--url", world.prometheus.url, "--output-dir", str(folder)]
    picture.main([*where, "--minutes", f"{minutes:.3f}", "--end", f"{end:.3f}", *uids])


def main(argv: Sequence[str]) -> int:
    """0: drawn; 3: a picture is too large for the repository."""
    parser = argparse.ArgumentParser(description="Draw the dashboards of a stack that lives through a hang.")
    parser.add_argument("--output-dir", type=Path, default=picture.PICTURES)
    folder = parser.parse_args(argv).output_dir
    with short_folder() as short, watched(short, ENGINES) as world:
        began, seen = live_through(world)
        draw(world, began, time.time(), folder)
        draw(world, began, seen.told.at + LOOK_SECONDS, folder, "sre-overview")
    large = [file.name for file in folder.glob("*.svg") if file.stat().st_size > MAX_BYTES]
    if large:
        _say(f"larger than {MAX_BYTES} bytes: {', '.join(large)}")
    return 3 if large else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
