"""Steps of the wall clock in a sender's life: waits, leases, ages and escalation count on."""

from __future__ import annotations

import pytest

from sre.actions.records import OutboxState
from sre.adapters.store import GuardStore
from sre.notify.escalation import Escalation
from sre.notify.policy import Dispatch
from sre.testing.clock import ManualClock
from tests.notify.sending import FAILED, SETTINGS, Provider, Until, count, running
from tests.store.samples import post

STEPS = pytest.mark.parametrize("jump", [3600.0, -3600.0])
ESCALATION = Escalation(after_seconds=900, repeat_seconds=300, max_levels=1, channels=("sms",))


@STEPS
async def test_a_failed_message_is_neither_late_nor_too_old(
    store: GuardStore, provider: Provider, clock: ManualClock, wait_until_async: Until, jump: float
) -> None:
    """An hour's step makes no message an hour old, which would be too old here."""
    settings = SETTINGS.model_copy(update={"max_age_seconds": 1800.0})
    async with running(store, provider, clock, settings) as delivery:
        for number, step in enumerate((jump, -jump, jump), start=1):
            provider.answers["mail"] = [FAILED]
            store.commit(state=None, outbox=[post(incident=f"i{number}")])
            delivery.wake()
            clock.jump_wall(step)
            await wait_until_async(lambda sent=number: count(store, OutboxState.SENT) == sent)
    assert count(store, OutboxState.DEAD) == 0
    assert len(provider.began) == 6


@STEPS
def test_a_lease_and_an_unanswered_page_wait_as_long(store: GuardStore, clock: ManualClock, jump: float) -> None:
    store.commit(state=None, outbox=[post()])
    assert len(store.lease(owner="me", seconds=50, channels=["mail"])) == 1
    clock.jump_wall(jump)
    clock.advance(49)
    assert not store.lease(owner="you", seconds=50, channels=["mail"], dispatch=Dispatch(max_age_seconds=1800))
    clock.advance(1)
    assert len(store.lease(owner="you", seconds=50, channels=["mail"], dispatch=Dispatch(max_age_seconds=1800))) == 1
    clock.advance(849)
    assert store.escalate(ESCALATION) == 0
    clock.advance(1)
    assert store.escalate(ESCALATION) == 1
