"""Where a message leads: the runbook and the dashboard that belong to its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from sre.notify.ack_token import ack_token

RUNBOOKS: Mapping[str, str] = {
    "hang": "VllmEngineHung",
    "engine_dead": "VllmEngineDown",
    "gpu_memory": "GpuMemoryNearlyFull",
    "gpu_temperature": "GpuTemperatureHigh",
    "failed_batches": "VllmErrorRatioHigh",
    "error_ratio": "VllmErrorRatioHigh",
    "rule": "SreBreakerOpen",
    "manual": "SreBreakerOverridden",
    "latched": "SreBreakerOpen",
    "blind": "SreRuleBlind",
    "fault_left": "SreChaosFaultLeft",
}
"""Named reason → the alert whose runbook treats it."""

DASHBOARDS: Mapping[str, str] = {
    "gpu_memory": "sre-resource",
    "gpu_temperature": "sre-resource",
    "failed_batches": "sre-batching",
    "error_ratio": "sre-request",
}
DEFAULT_DASHBOARD = "sre-breaker"
"""Where guard and breaker are seen."""

WEB_ADDRESS = re.compile(r"https?://[^\s<>\"'`\\]{1,2000}")


def is_web_address(text: str) -> bool:
    """Whether ``text`` may stand behind a link: http or https, nothing that breaks out of an attribute."""
    return WEB_ADDRESS.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class AckAddress:
    """Where an incident is acknowledged over the network; each link is signed, and good for ``seconds``."""

    public_url: str
    secret: bytes = field(repr=False)
    seconds: float

    def of(self, incident_id: str, at_wall: float) -> str:
        """Return the link of ``incident_id`` in a message of ``at_wall``."""
        token = ack_token(incident_id, at_wall + self.seconds, self.secret)
        # Not called a token: that is hidden wherever something is shown.
        return f"{self.public_url.rstrip('/')}/ack?incident={quote(incident_id, safe='')}&t={token}"


@dataclass(frozen=True, slots=True)
class Links:
    """
    Where runbooks and dashboards are, from ``settings.monitoring``.

    ``runbook_base_url`` may be a web address or a path; ``grafana_url`` is a web address, "" where there is none.
    """

    runbook_base_url: str = ""
    grafana_url: str = ""
    acknowledgement: AckAddress | None = None

    def acknowledge(self, incident_id: str, event: str, at_wall: float) -> str:
        """Return the link that acknowledges an incident; "" where there is none, or nothing to acknowledge."""
        if self.acknowledgement is None or event not in ("open", "escalate", "digest"):
            return ""
        return self.acknowledgement.of(incident_id, at_wall)

    def runbook(self, reason: str) -> str:
        """Return the runbook's address; where the base is none, the command that shows it; "" without a runbook."""
        alert = RUNBOOKS.get(reason)
        if alert is None:
            return ""
        base = self.runbook_base_url.rstrip("/")
        return f"{base}/{alert}.md#{alert.lower()}" if is_web_address(base) else f"sre runbook show {alert}"

    def dashboard(self, reason: str) -> str:
        """Return the dashboard's address; "" without a Grafana, or for a reason that is not ours."""
        base = self.grafana_url.rstrip("/")
        if reason not in RUNBOOKS or not is_web_address(base):
            return ""
        return f"{base}/d/{DASHBOARDS.get(reason, DEFAULT_DASHBOARD)}"


NOWHERE = Links()
"""Runbooks by command, no dashboards."""
