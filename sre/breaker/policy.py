"""What the decisions are made by: settings, reduced to what the breaker needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sre.actions.types import Message
from sre.settings.guard import BudgetSettings, HalfOpenSettings, HangSettings, RuleSettings
from sre.settings.models import Root


@dataclass(frozen=True, slots=True)
class Policy:
    """Frozen for the life of a guard."""

    mode: str
    rules: tuple[RuleSettings, ...]
    hang: HangSettings
    half_open: HalfOpenSettings
    budgets: BudgetSettings
    min_healthy_engines: int
    max_evidence_age_seconds: float
    retry_after_seconds: int
    channels: tuple[str, ...]
    """Names of the notification channels."""
    hold_for_contexts_seconds: float
    severities: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Channel → severities it wants; one that is not here wants all."""

    def listeners(self, message: Message) -> Sequence[str]:
        """
        Return the channels that are told ``message``.

        Who hears of a beginning must hear of the end, whose own severity is "info": severity chooses only among
        messages that begin or worsen something. The outbox keeps the end from who was not told of the beginning.
        """
        if message.event not in ("open", "escalate", "blind"):
            return self.channels
        return [name for name in self.channels if message.severity in self.severities.get(name, (message.severity,))]

    def acts_on(self, managed: bool) -> bool:
        """Whether the guard changes anything for an engine that ``sre up`` started (or did not)."""
        return self.mode == "act" or (self.mode == "auto" and managed)


def policy_of(root: Root) -> Policy:
    """Return the policy that ``root`` sets."""
    guard = root.guard
    return Policy(
        mode=guard.mode,
        rules=guard.rules,
        hang=guard.hang,
        half_open=guard.half_open,
        budgets=guard.budgets,
        min_healthy_engines=guard.min_healthy_engines,
        max_evidence_age_seconds=guard.max_evidence_age_seconds,
        retry_after_seconds=root.stack.gateway.retry_after_seconds,
        channels=tuple(c.name for c in root.notify.channels),
        hold_for_contexts_seconds=root.notify.hold_for_contexts_seconds,
        severities={c.name: c.severities for c in root.notify.channels},
    )
