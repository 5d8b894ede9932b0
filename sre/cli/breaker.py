"""``sre breaker``: see and steer the circuit breaker."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import click

from sre.cli.app import App, output_option, pass_app
from sre.cli.durations import DURATION
from sre.errors import ExitCode

owner_option = click.option("--owner", default=getpass.getuser, show_default="you", help="Who orders it.")
reason_option = click.option("--reason", default="by hand", show_default=True, help="Why: journal and page say it.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")


@click.group()
def breaker() -> None:
    """See, trip, reset, force and explain the circuit breaker. TARGET is an engine, or a pool (its served model)."""


@breaker.command()
@output_option
@pass_app
def status(app: App, output: str) -> int:
    """Show every breaker. Exit codes: 0 all closed · 3 one is not · 1 no guard answers"""
    from sre.wiring.guard_client import ask

    data = ask(app.paths().guard_socket, "GET", "/status")
    answer = {"pools": data["pools"], "engines": data["engines"]}
    app.emit(output, answer, lambda: "\n".join(_line(n, e) for n, e in data["engines"].items()) or "no engines seen")
    closed = all(e["state"] == "closed" for e in data["engines"].values())
    return ExitCode.OK if closed and data["engines"] else ExitCode.NO


def _line(name: str, engine: dict[str, Any]) -> str:
    parts = [f"{name}: {engine['state']} for {engine['since_seconds']:.0f} s"]
    if engine["latched"]:
        parts.append("LATCHED: sre breaker reset after the cause is gone")
    if engine["override"]:
        parts.append(f"by {engine['override']['owner']}: {engine['override']['reason']}")
    elif engine["reason"]:
        parts.append(f"{engine['reason']}: {engine['detail']}")
    if engine["open_for_seconds"]:
        parts.append(f"probes in {engine['open_for_seconds']:.0f} s at the earliest")
    if engine["ramp_percent"]:
        parts.append(f"{engine['ramp_percent']} % admitted")
    return "; ".join(parts)


@breaker.command()
@click.argument("engine")
@output_option
@pass_app
def explain(app: App, engine: str, output: str) -> None:
    """Show what the breaker of ENGINE rests on: rules, signals, their ages, canaries."""
    from urllib.parse import quote

    from sre.wiring.guard_client import ask

    data = ask(app.paths().guard_socket, "GET", f"/explain/{quote(engine, safe='')}")
    app.emit(output, data, lambda: _explain(engine, data))


def _explain(name: str, data: dict[str, Any]) -> str:
    lines = [_line(name, data)]
    lines.append(f"hang: {data['hang']} (judged after {data['hang_after_seconds']:g} s without a step)")
    for rule in data["rules"]:
        value = "not seen" if rule["value"] is None else f"{rule['value']:.4g}"
        blind = ", BLIND" if rule["blind"] else ""
        lines.append(f"rule {rule['rule']}: {rule['verdict']}{blind}; {value}; {rule['condition']}")
    for signal, reading in sorted(data["signals"].items()):
        value = reading["seen"] if reading["value"] is None else f"{reading['value']:.6g}"
        age = "" if reading["age_seconds"] is None else f", {reading['age_seconds']:.1f} s old"
        lines.append(f"signal {signal}: {value}{age}")
    canary = data["canary"]
    under_way = ", one under way" if canary["under_way"] else ""
    lines.append(f"canary: last {canary['last'] or 'none yet'} {canary['detail']}{under_way}".rstrip())
    return "\n".join(lines)


def _order(app: App, verb: str, target: str, owner: str, reason: str, seconds: float | None, dry_run: bool) -> None:
    from sre.wiring.guard_client import ask

    socket = app.paths().guard_socket
    if dry_run:
        data = ask(socket, "GET", "/status")
        hit = [n for n, e in data["engines"].items() if target in (n, e["pool"])]
        app.note(f"would {verb} {', '.join(hit) or 'nothing: no such engine or pool'} (owner {owner}, reason {reason})")
        return
    order = {"verb": verb, "target": target, "owner": owner, "reason": reason, "expires_seconds": seconds}
    answer = ask(socket, "POST", "/order", order)
    states = ", ".join(f"{n} {state}" for n, state in answer["engines"].items())
    done = "done" if answer["changed"] else "nothing to change"
    app.note(f"{verb}: {done} in {answer['milliseconds']:g} ms; {states}")


@breaker.command()
@click.argument("target")
@owner_option
@reason_option
@dry_run_option
@pass_app
def trip(app: App, target: str, owner: str, reason: str, dry_run: bool) -> None:
    """Refuse new requests now; running streams go on. Traffic comes back by itself through probes and the ramp."""
    _order(app, "trip", target, owner, reason, None, dry_run)


@breaker.command()
@click.argument("target")
@owner_option
@reason_option
@dry_run_option
@pass_app
def reset(app: App, target: str, owner: str, reason: str, dry_run: bool) -> None:
    """End latch, override and waiting: probe at once."""
    _order(app, "reset", target, owner, reason, None, dry_run)


@breaker.command()
@click.argument("target")
@click.argument("state", type=click.Choice(["open", "disabled", "auto"]))
@owner_option
@click.option("--reason", help="Why; needed for open and disabled.")
@click.option("--for", "duration", type=DURATION, help="Back to automatic after this time, e.g. 2h.")
@dry_run_option
@pass_app
def force(
    app: App, target: str, state: str, owner: str, reason: str | None, duration: float | None, dry_run: bool
) -> None:
    """Hold a breaker: open (refuse), disabled (never trip), or auto (take that back). Nothing automatic undoes it."""
    if state != "auto" and not reason:
        raise click.UsageError("an override needs --reason: whoever finds it must know why")
    verb = {"open": "force-open", "disabled": "disable", "auto": "auto"}[state]
    _order(app, verb, target, owner, reason or "override taken back", duration, dry_run)


@breaker.command()
@click.argument("trace", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@output_option
@pass_app
def replay(app: App, trace: Path, output: str) -> None:
    """
    Run recorded snapshots through the same decisions, with the rules of this configuration.

    TRACE is a file of sre guard run --record, or an incident's evidence/trace.jsonl.
    """
    from sre.breaker.policy import policy_of
    from sre.breaker.replay import replay as run_replay
    from sre.errors import ConfigError
    from sre.signals.codec import TraceError

    try:
        with trace.open("r", encoding="utf-8", errors="replace") as lines:
            events = run_replay(lines, policy_of(app.settings()))
    except TraceError as error:
        raise ConfigError([f"{trace}: {error}"]) from error
    except OSError as error:
        raise ConfigError([f"{trace}: {error.strerror}"]) from error
    app.emit(output, events, lambda: "\n".join(_event(e) for e in events) or "no transition")


def _event(event: dict[str, Any]) -> str:
    data = event["data"]
    what = " ".join(f"{k}={v}" for k, v in data.items())
    return f"{event['seconds']:9.3f} s  {event['kind']:<10} {event['target']:<12} {event['reason']:<16} {what}"
