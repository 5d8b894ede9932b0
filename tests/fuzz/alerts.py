"""
Fuzzing of what Alertmanager's posts go through: ``python -m tests.fuzz.alerts --seconds 60`` (``make fuzz``).

Real payloads are changed byte by byte, piece by piece and value by value. Whatever comes of it must be alerts or a
named refusal, in bounded time and size, and what is decided about alerts must be writable. Prints the seed and the
input of a failure; the same seed gives the same run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from sre.notify.alert_decide import Decision, Intake
from sre.notify.alert_draft import Moment
from sre.notify.alert_records import GuardNow, Known
from sre.notify.alert_routes import Routes
from sre.notify.alerts import (
    LONGEST_ANNOTATION,
    LONGEST_FINGERPRINT,
    LONGEST_LABEL,
    LONGEST_NAME,
    MOST_LABELS,
    Payload,
    PayloadError,
    parse,
)
from sre.settings.webhook import ActionSettings, RouteSettings, WebhookSettings

SLOWEST_SECONDS = 2.0
"""Of one input, on a busy machine."""
SETTINGS = WebhookSettings(
    routes=(
        RouteSettings(
            name="all",
            match_re={"alertname": ".*[A-Za-z]{2}.*|", "node": "n[0-9]+|.*"},
            actions=(
                ActionSettings(do="trip"),
                ActionSettings(do="incident", max_per_hour=3),
                ActionSettings(do="notify"),
            ),
        ),
    )
)
INTAKE = Intake(SETTINGS, Routes(SETTINGS), lambda _: ("mail",))

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1e308, 2**70, "", "NaN", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z",
    "2024-02-30T00:00:00Z", "2024-01-01T00:00:00+99:99", "2024-06-30T23:59:60Z", "x" * 5000, "\ud800", "\0", "é漢🔥",
    [], {}, [[]], {"a": {"b": []}}, {"alertname": None}, {str(n): "v" for n in range(300)}, "firing", "resolved", "4",
    "SreWatchdog", "SreCanary", "critical", "a,b=c%2C", "${jndi:ldap://x}", "\u202e", "-" * 70,
)  # fmt: skip


def seeds() -> list[dict[str, Any]]:
    """Payloads as Alertmanager sends them."""
    alert = {
        "status": "firing",
        "labels": {"alertname": "VllmEngineHung", "severity": "page", "engine": "e1", "model_name": "m", "node": "n1"},
        "annotations": {"summary": "It hangs.", "description": "d" * 200, "runbook_url": "runbooks/A.md#a"},
        "startsAt": "2026-12-01T00:00:00.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://p/graph",
        "fingerprint": "0123456789abcdef",
    }
    ended = {**alert, "status": "resolved", "endsAt": "2026-12-01T00:05:00+02:00"}
    base = {"version": "4", "groupKey": "{}:{}", "truncatedAlerts": 0, "status": "firing", "receiver": "r"}
    common = {"groupLabels": {}, "commonLabels": {}, "commonAnnotations": {}, "externalURL": "http://a"}
    return [
        {**base, **common, "alerts": [alert]},
        {**base, **common, "alerts": [alert, ended, {**alert, "fingerprint": "fedcba9876543210"}]},
        {**base, **common, "alerts": [{**alert, "labels": {"alertname": f"A{n}"}} for n in range(20)]},
        {"version": "3", "alerts": [alert]},
    ]


def mutated_value(value: Any, rng: random.Random, depth: int = 0) -> Any:
    """``value`` with one place changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85 and depth < 8:
        key = rng.choice(list(value))
        made = dict(value)
        roll = rng.random()
        if roll < 0.1:
            del made[key]
        elif roll < 0.2:
            made[rng.choice(("startsAt", "labels", "status", "x" * 300, "\ud800", ""))] = rng.choice(VALUES)
        else:
            made[key] = mutated_value(value[key], rng, depth + 1)
        return made
    if isinstance(value, list) and value and rng.random() < 0.85 and depth < 8:
        made_list = list(value)
        index = rng.randrange(len(made_list))
        roll = rng.random()
        if roll < 0.1:
            del made_list[index]
        elif roll < 0.2:
            made_list.insert(index, rng.choice(VALUES))
        else:
            made_list[index] = mutated_value(made_list[index], rng, depth + 1)
        return made_list
    return rng.choice(VALUES)


def mutated_bytes(raw: bytes, rng: random.Random) -> bytes:
    """``raw`` with some bytes changed, cut, doubled or moved."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not data:
            return bytes(data)
        begin = rng.randrange(len(data))
        end = min(len(data), begin + rng.choice((1, 2, 8, 64)))
        roll = rng.randrange(6)
        if roll == 0:
            del data[begin:end]
        elif roll == 1:
            data[begin:end] = data[begin:end] * rng.choice((2, 3, 200))
        elif roll == 2:
            data[begin] ^= 1 << rng.randrange(8)
        elif roll == 3:
            data[begin:begin] = rng.choice((b"[", b"{", b'"', b"\\", b"\xff", b"\x00", b"NaN", b"\\ud800", b'"a":1,'))
        elif roll == 4:
            data[begin:end] = rng.randbytes(end - begin)
        else:
            del data[begin:]
    return bytes(data)


def one_input(rng: random.Random) -> bytes:
    document: Any = rng.choice(seeds())
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        document = mutated_value(document, rng)
    raw = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return mutated_bytes(raw, rng) if rng.random() < 0.5 else raw


def check(raw: bytes) -> str:
    """Return what became of ``raw``. Raises AssertionError, or whatever should never have left."""
    began = time.monotonic()
    error: PayloadError | None
    try:
        payload = parse(raw)
    except PayloadError as refused:
        error = refused
    else:
        error = None
    if error is not None:
        assert 0 < len(str(error).encode()) < 1000
        return error.refusal.value
    _check_payload(payload)
    decision = Decision(INTAKE, Known(), GuardNow(), Moment(1_796_083_200.0, 1.0))
    decision.take(payload)
    changes = decision.changes()
    assert len(changes.verdicts) == len(payload.alerts)
    for item in changes.outbox:
        item.message.summary.encode()
        for name, value in item.message.facts:
            f"{name}{value}".encode()
    for episode in changes.episodes:
        json.dumps(dict(episode.labels)).encode()
        assert abs(episode.starts_ns) < 2**63
    assert time.monotonic() - began < SLOWEST_SECONDS, "too slow"
    return "taken"


def _check_payload(payload: Payload) -> None:
    for alert in payload.alerts:
        assert 1 <= len(alert.fingerprint) <= LONGEST_FINGERPRINT
        assert abs(alert.starts_ns) < 2**63
        for texts, longest in ((alert.labels, LONGEST_LABEL), (alert.annotations, LONGEST_ANNOTATION)):
            assert len(texts) <= MOST_LABELS
            for name, value in texts.items():
                assert 1 <= len(name) <= LONGEST_NAME
                assert len(value) <= longest
                f"{name}{value}".encode()
                assert "\0" not in value
    assert 0 <= payload.truncated < 2**31


def run(seconds: float, seed: int) -> Counter[str]:
    """Fuzz for so long; return how often what became of an input. Raises on the first failure."""
    rng = random.Random(seed)
    ends = time.monotonic() + seconds
    counts: Counter[str] = Counter()
    while time.monotonic() < ends:
        raw = one_input(rng)
        try:
            counts[check(raw)] += 1
        except BaseException:
            print(f"seed {seed}, input {counts.total() + 1}: {raw!r}", file=sys.stderr)
            raise
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}")
    counts = run(chosen.seconds, seed)
    print(f"{counts.total()} inputs: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))


if __name__ == "__main__":
    main()
