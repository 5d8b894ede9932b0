"""Messages as they really come: what the user's templates are tried with at load."""

from __future__ import annotations

from sre.actions import facts
from sre.actions.types import Message
from sre.notify.gsm7 import to_gsm7, to_ucs2
from sre.notify.links import NOWHERE
from sre.notify.templates import Template, values_of
from sre.notify.view import view
from sre.settings.notify import Language

HANG = Message(
    incident_id="inc-20270115-080000-0001",
    event="open",
    severity="page",
    scope="engine vllm-0 (pool qwen-7b)",
    reason="hang",
    summary="vllm-0 tripped: hang",
    at_wall=1_800_000_000.0,
    facts=(
        (facts.SEEN, "no engine step for 3.1 s, 4 requests in flight"),
        (facts.POOL, "qwen-7b"),
        (facts.IN_FLIGHT, "4"),
        (facts.DONE, "new requests are refused, running streams go on"),
        (facts.CONTEXTS, "sre incident show inc-20270115-080000-0001"),
        (facts.NEXT, "sre breaker explain vllm-0"),
        (facts.SINCE, "1799999996.9"),
        (facts.VALUE, "3.1 s"),
    ),
)
RESOLVED = Message(
    incident_id=HANG.incident_id,
    event="resolve",
    severity="info",
    scope=HANG.scope,
    reason="hang",
    summary="vllm-0 serves again after 41 s",
    at_wall=1_800_000_041.0,
    facts=((facts.SEEN, "3 canaries in a row"), (facts.POOL, "qwen-7b"), (facts.OPENED_FOR, "hang")),
)
BLIND = Message(
    incident_id="blind-20270115-080000-vllm-0",
    event="blind",
    severity="ticket",
    scope=HANG.scope,
    reason="blind",
    summary="not seen: gpu_temperature_celsius",
    at_wall=1_800_000_000.0,
    facts=((facts.MEANING, "a fault here would go unnoticed until this is seen again"), (facts.NEXT, "sre doctor")),
)
ALERT = Message(
    incident_id="alert-20270115-080000-GpuMemoryNearlyFull-0001",
    event="escalate",
    severity="page",
    scope="gpu-node-17.cluster-a.example.org GPU 3",
    reason="GpuMemoryNearlyFull",
    summary="GPU memory of gpu-node-17, GPU 3 is 97.2 % full for 5 minutes",
    at_wall=1_800_000_000.0,
    facts=((facts.RULE, "GpuMemoryNearlyFull"), (facts.VALUE, "97.2 %")),
)
SAMPLES = {"hang": HANG, "resolved": RESOLVED, "blind": BLIND, "alert": ALERT}


def sms_problem(template: Template, language: Language, longest: int, where: str) -> str | None:
    """Return why ``template`` is too long for an SMS, with the sample that shows it; None if it fits."""
    spell = to_ucs2 if language == "zh" else to_gsm7
    for name, message in SAMPLES.items():
        line = spell(template.render(values_of(view(message, None, language, NOWHERE), "")))
        if len(line) > longest:
            return (
                f"{where}: an SMS in language {language} holds {longest} characters, with the sample {name!r} it has"
                f" {len(line)}; use fewer placeholders or words"
            )
    return None
