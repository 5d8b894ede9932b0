"""The guard as alerts see it: its engines, its open incidents, and a trip by the way a person's order takes."""

from __future__ import annotations

from collections.abc import Mapping

from sre.breaker.machine import EngineBreaker
from sre.breaker.manual import Command
from sre.breaker.policy import Policy
from sre.control.guard import Guard
from sre.control.observe import EngineConfig
from sre.notify.alert_records import EngineNow, GuardNow

OWNER = "alertmanager"
"""Who ordered it, in the journal and on the page."""


class GuardHands:
    """
    ``Hands`` of a guard.

    Args:
        addresses: Engine → ``host:port`` of its own interface.
    """

    def __init__(self, guard: Guard, engines: list[EngineConfig], addresses: Mapping[str, str], policy: Policy) -> None:
        self._guard, self._engines, self._addresses, self._policy = guard, engines, addresses, policy

    def now(self) -> GuardNow:
        state = self._guard.state
        return GuardNow(
            engines={
                one.name: EngineNow(
                    pool=one.pool,
                    address=self._addresses.get(one.name, ""),
                    state=state.breakers.get(one.name, EngineBreaker()).effective.value,
                    acting=self._policy.acts_on(one.managed),
                )
                for one in self._engines
            },
            incidents={name: incident.id for name, incident in state.incidents.items()},
            paused=state.pause is not None,
        )

    async def trip(self, target: str, reason: str) -> None:
        await self._guard.order(Command("trip", target, OWNER, reason))
