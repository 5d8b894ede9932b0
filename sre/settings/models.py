"""The root of sre.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sre.settings.base import Settings
from sre.settings.gate import GateSettings
from sre.settings.guard import GuardSettings
from sre.settings.monitoring import MonitoringSettings
from sre.settings.notify import NotifySettings
from sre.settings.stack import Positive, StackSettings
from sre.settings.webhook import WebhookSettings


class ChaosSettings(Settings):
    """Fault injection."""

    lease_seconds: Positive = 2.0
    """Without a sign of life from the injector for this long, the watchdog reverts."""
    max_hold_seconds: Annotated[float, Field(gt=0, le=3600)] = 600.0
    """No fault is held longer than this."""


class Root(Settings):
    """All of sre.yaml. Without a file every default applies."""

    stack: StackSettings = StackSettings()
    guard: GuardSettings = GuardSettings()
    notify: NotifySettings = NotifySettings()
    webhook: WebhookSettings = WebhookSettings()
    monitoring: MonitoringSettings = MonitoringSettings()
    chaos: ChaosSettings = ChaosSettings()
    gate: GateSettings = GateSettings()
