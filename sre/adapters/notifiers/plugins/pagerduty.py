"""
PagerDuty, Events API v2: ``pagerduty://INTEGRATION_KEY@API_KEY/SOURCE?region=us|eu``.

Apprise's plugin has no key per incident of ours, no acknowledgement and no details. Here every message of an incident
carries its id as ``dedup_key``: repetitions join the incident, its end resolves it. ``?endpoint=HOST`` names another
server with the same interface.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import requests
from apprise.plugins.pagerduty import PAGERDUTY_API_LOOKUP, NotifyPagerDuty

from sre.adapters.notifiers.handover import DESK
from sre.adapters.notifiers.plugins.endpoint import endpoint_of

SEVERITIES = {"failure": "critical", "warning": "warning", "success": "info", "info": "info"}
LONGEST_DEDUP_KEY = 255
IN_DETAILS = ("severity", "event", "scope", "reason", "rule", "value", "id", "at", "since", "seen", "done", "next",
              "timeline", "details")  # fmt: skip
"""Pieces of the message that become custom details."""


class NotifyPager(NotifyPagerDuty):  # type: ignore[misc]
    """Triggers, acknowledges or resolves the incident whose key is the message's incident id."""

    def __init__(self, endpoint: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.endpoint = endpoint_of(endpoint, self.logger)

    @staticmethod
    def parse_url(url: str) -> dict[str, Any] | None:
        results: dict[str, Any] | None = NotifyPagerDuty.parse_url(url)
        if results:
            results["endpoint"] = results["qsd"].get("endpoint")
        return results

    def send(self, body: str, title: str = "", notify_type: Any = None, **kwargs: Any) -> bool:
        task = DESK.task
        event: dict[str, Any] = {
            "routing_key": self.integration_key,
            "event_action": task.act,
            "dedup_key": (task.key or "sre")[:LONGEST_DEDUP_KEY],
        }
        if task.act == "trigger":
            event |= self._trigger(body, getattr(notify_type, "value", str(notify_type)))
        url = PAGERDUTY_API_LOOKUP[self.region_name]
        if self.endpoint:
            url = f"https://{self.endpoint}/v2/enqueue"
        try:
            answer = requests.post(
                url,
                data=json.dumps(event),
                headers={"Content-Type": "application/json", "Authorization": f"Token token={self.apikey}"},
                timeout=self.request_timeout,
                verify=self.verify_certificate,
                allow_redirects=False,
            )
        except requests.RequestException:
            return False
        return 200 <= answer.status_code < 300

    def _trigger(self, body: str, tone: str) -> dict[str, Any]:
        parameters = DESK.task.parameters
        links = [
            {"href": parameters[name], "text": text}
            for name, text in (("runbook_url", "Runbook"), ("dashboard_url", "Dashboard"))
            if parameters.get(name, "").startswith(("http://", "https://"))
        ]
        return {
            "payload": {
                "summary": body[:1024],
                "severity": self.severity or SEVERITIES.get(tone, "warning"),
                "source": parameters.get("scope") or self.source,
                "component": self.component,
                "class": parameters.get("reason", ""),
                "timestamp": datetime.fromtimestamp(time.time(), UTC).isoformat(),
                "custom_details": {name: parameters[name] for name in IN_DETAILS if parameters.get(name)},
            },
            "client": "sre",
            "links": links,
        }
