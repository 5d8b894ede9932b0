"""What ``sre notify test --end-to-end`` prints."""

from __future__ import annotations

import asyncio
from typing import Any

from sre.cli.app import App
from sre.errors import ExitCode


def end_to_end(app: App, prometheus: str, alertmanager: str, wait_seconds: float, output: str) -> int:
    """Send a canary through and say how far it came."""
    from sre.control.notify_proof import Ended, proof_json
    from sre.settings.addresses import checked_url
    from sre.wiring.notify_proof import run_proof

    urls = (
        checked_url(prometheus, "--prometheus"),
        checked_url(alertmanager, "--alertmanager", example="http://host:9093"),
    )
    app.note(f"sending a canary; it is waited for {wait_seconds:g} s at the most")
    proof = asyncio.run(run_proof(app.settings(), app.paths(), *urls, wait_seconds=wait_seconds))
    data = proof_json(proof)
    app.emit(output, data, lambda: proof_text(data))
    return {Ended.ARRIVED: ExitCode.OK, Ended.STOPPED: ExitCode.NO, Ended.UNKNOWN: ExitCode.NO_ANSWER}[proof.ended]


def proof_text(data: dict[str, Any]) -> str:
    """Return what ``proof_json`` made, for people."""
    from sre.incidents.report import moment

    lines = [f"{'hop':<24}  {'when (UTC)':<19}  {'took':>9}"]
    for hop in data["hops"]:
        when = "not seen" if hop["wall"] is None else moment(hop["wall"])
        took = "" if hop["seconds"] is None else f"{hop['seconds']:7.2f} s"
        lines.append(f"{hop['hop']:<24}  {when:<19}  {took:>9}  {hop['problem']}".rstrip())
    if data["ended"] == "arrived":
        lines.append(f"arrived on every channel, {data['seconds']:.2f} s after it was exported")
    else:
        where = data["stopped_at"] if data["ended"] == "stopped" else f"{data['stopped_at']} or after it"
        lines.append(f"stopped at {where}: {data['why']}")
    return "\n".join(lines)
