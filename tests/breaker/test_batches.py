"""Failed batches from the ends of requests."""

from __future__ import annotations

from sre.actions.types import FinishedRequest, Outcome
from sre.breaker.batches import BatchRun, observe_finished


def ended(at: float, outcome: Outcome) -> FinishedRequest:
    return FinishedRequest("r", "/v1/completions", "m", "e0", "c", at - 1.0, 1.0, 500, outcome, "x")


def test_requests_that_end_together_are_one_batch() -> None:
    run = observe_finished(BatchRun(), [ended(10.0 + n * 0.005, Outcome.FAILURE) for n in range(8)])
    assert run.consecutive_failed == 1


def test_a_busy_engine_that_fails_every_step_is_many_batches() -> None:
    """20 failures a second: steps must not chain into one batch without end."""
    run = BatchRun()
    for n in range(40):
        run = observe_finished(run, [ended(10.0 + n * 0.05, Outcome.FAILURE)])
    assert run.consecutive_failed >= 3


def test_one_success_ends_the_run_and_neutral_changes_nothing() -> None:
    run = observe_finished(BatchRun(), [ended(float(n), Outcome.FAILURE) for n in range(5)])
    assert run.consecutive_failed == 5
    assert observe_finished(run, [ended(9.0, Outcome.NEUTRAL)]) == run
    assert observe_finished(run, [ended(9.0, Outcome.SUCCESS)]).consecutive_failed == 0


def test_the_order_of_the_log_does_not_matter() -> None:
    requests = [ended(1.0, Outcome.FAILURE), ended(2.0, Outcome.SUCCESS), ended(3.0, Outcome.FAILURE)]
    assert observe_finished(BatchRun(), requests) == observe_finished(BatchRun(), list(reversed(requests)))
