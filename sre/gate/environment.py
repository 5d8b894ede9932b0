"""Under which conditions a gate run measures: what must be equal for its numbers to be compared with others."""

from __future__ import annotations

from collections.abc import Iterable

from sre.gate.fingerprint import Fingerprint, build
from sre.gate.plan import Trace, rates, stage_name
from sre.gate.report.document import shown_header
from sre.gate.result import Smoke
from sre.settings.gate import OF_CLASS, SUBJECT, GateSettings

METHOD = "1"
"""Of measuring. Raised when the tool's numbers are no longer comparable with those it gave before."""


def fingerprint(
    settings: GateSettings, smoke: Smoke, described: Iterable[tuple[str, str]], trace: Trace | None = None
) -> Fingerprint:
    """
    The fingerprint of a run.

    Args:
        described: What the server and the client's machine tell of themselves.
    """
    fields = [
        *planned(settings, trace),
        ("model", smoke.model),
        ("streaming", "yes" if smoke.streaming else "no"),
        ("prompt_sizing", smoke.prompt_sizing),
    ]
    subject = [("server", smoke.server)]
    for name, value in described:
        if name in SUBJECT:
            if name != "server":
                subject.append((name, value))
        else:
            fields.append((name, value))
    return build(fields, subject)


def planned(settings: GateSettings, trace: Trace | None = None) -> list[tuple[str, str]]:
    """Those conditions that are known before the server is asked."""
    load = settings.load
    fields = [
        ("method", METHOD),
        ("api", settings.target.api),
        ("seed", str(load.seed)),
        ("warm_up", f"{load.warm_up_requests} requests, {load.warm_up_seconds:g} s"),
        ("request_timeout_seconds", f"{load.request_timeout_seconds:g}"),
    ]
    if settings.target.model is not None:
        fields.append(("model", settings.target.model))
    if trace is None:
        fields += [
            ("stages", ", ".join(stage_name(rate) for rate in rates(load))),
            ("stage_seconds", f"{load.stage_seconds:g}"),
            ("arrivals", load.arrivals),
        ]
    else:
        fields += [("trace", f"{trace.requests} requests in {trace.seconds:g} s, sha256 {trace.digest[:16]}")]
    for kind in load.mix:
        length = "exactly" if kind.fixed_length else "at most"
        headers = ", ".join(sorted(f"{name}: {shown_header(name, value)}" for name, value in kind.headers.items()))
        fields.append(
            (
                f"{OF_CLASS}{kind.name}",
                f"{kind.share:g} of arrivals, prompt {kind.prompt_tokens}, {length} {kind.max_tokens} tokens"
                + (f", headers {headers}" if headers else ""),
            )
        )
    return fields
