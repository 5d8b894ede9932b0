"""Engine core without processes: pauses, sleep, faults."""

from __future__ import annotations

import pytest

from sre.simulator.engine import Engine, PauseMode, Report
from sre.simulator.faults import NO_FAULTS, Faults, parse_faults
from sre.simulator.scheduler import Finish, Limits, Request


def make(time_scale: float = 1.0) -> Engine:
    return Engine(Limits(), time_scale=time_scale, jitter=False)


def step(engine: Engine, now: float = 0.0) -> Report | None:
    begun = engine.begin_step(now)
    return None if begun is None else engine.finish_step(begun[0], now + begun[1])


def ended(report: Report | None) -> list[tuple[int, Finish]]:
    assert report is not None
    return [(item.id, item.finish) for item in report.ended]


def test_a_step_reports_tokens_first_tokens_and_state() -> None:
    engine = make()
    engine.add(Request(1, 20, 2), 0.0)
    report = step(engine, 5.0)
    assert report is not None
    assert (report.tokens, report.first, report.running, report.waiting) == ([1], [(1, 5.0, 0)], 1, 0)
    assert report.kv_usage_ratio > 0
    assert ended(step(engine)) == [(1, Finish.LENGTH)]
    assert step(engine) is None
    assert engine.unfinished == 0


def test_time_scale_shortens_real_time() -> None:
    durations = []
    for scale in (1.0, 10.0):
        engine = make(scale)
        engine.add(Request(1, 20, 2), 0.0)
        begun = engine.begin_step(0.0)
        assert begun is not None
        durations.append(begun[1])
    assert durations[0] / durations[1] == pytest.approx(10)


def test_jitter_repeats_with_the_seed() -> None:
    def durations(seed: int) -> list[float]:
        engine = Engine(Limits(), seed=seed)
        engine.add(Request(1, 20, 20), 0.0)
        found = []
        while (begun := engine.begin_step(0.0)) is not None:
            found.append(begun[1])
            engine.finish_step(begun[0], 0.0)
        return found

    assert durations(1) == durations(1)
    assert durations(1) != durations(2)


def test_pause_abort_ends_all_and_holds_new_ones_until_resume() -> None:
    engine = make()
    engine.add(Request(1, 20, 50), 0.0)
    step(engine)
    assert ended(engine.pause(PauseMode.ABORT, 1.0)) == [(1, Finish.ABORT)]
    engine.add(Request(2, 20, 1), 1.0)
    assert step(engine) is None
    state = engine.state(1.0)
    assert (state.running, state.waiting) == (0, 0)  # as with vLLM, what is held is in no gauge
    engine.resume()
    assert ended(step(engine)) == [(2, Finish.LENGTH)]


def test_pause_keep_freezes_and_goes_on() -> None:
    engine = make()
    engine.add(Request(1, 20, 2), 0.0)
    step(engine)
    engine.pause(PauseMode.KEEP, 0.0)
    assert step(engine) is None
    engine.resume()
    assert ended(step(engine)) == [(1, Finish.LENGTH)]


def test_pause_wait_is_over_when_nothing_runs() -> None:
    engine = make()
    engine.add(Request(1, 20, 2), 0.0)
    step(engine)
    engine.pause(PauseMode.WAIT, 0.0)
    engine.add(Request(2, 20, 1), 0.0)
    assert engine.pausing
    assert ended(step(engine)) == [(1, Finish.LENGTH)]
    assert (engine.pausing, engine.paused) == (False, True)
    assert step(engine) is None
    engine.resume()
    assert ended(step(engine)) == [(2, Finish.LENGTH)]


def test_pause_wait_is_over_when_the_last_one_is_aborted() -> None:
    engine = make()
    engine.add(Request(1, 20, 50), 0.0)
    step(engine)
    engine.pause(PauseMode.WAIT, 0.0)
    engine.abort([1])
    assert step(engine) is None
    assert engine.paused


def test_sleep_and_wake_up() -> None:
    engine = make()
    engine.sleep(1)
    engine.add(Request(1, 20, 1), 0.0)
    assert step(engine) is None
    engine.wake_up()
    assert ended(step(engine)) == [(1, Finish.LENGTH)]


def test_waking_up_does_not_end_a_pause() -> None:
    engine = make()
    engine.pause(PauseMode.KEEP, 0.0)
    engine.sleep(1)
    engine.add(Request(1, 20, 1), 0.0)
    engine.wake_up()
    assert step(engine) is None


def test_aborts_are_silent_wherever_the_request_is() -> None:
    engine = make()
    engine.set_faults(Faults("r", 100.0, delay_seconds=5.0))
    engine.add(Request(1, 20, 5), 0.0)  # held back
    engine.set_faults(NO_FAULTS)
    engine.add(Request(2, 20, 5), 0.0)  # queued
    engine.add(Request(3, 20, 5), 0.0)
    step(engine)  # both run
    engine.add(Request(4, 20, 5), 0.0)  # queued
    engine.abort([1, 2, 4, 99])
    assert engine.unfinished == 1
    report = step(engine, 50.0)
    assert report is not None
    assert (report.tokens, report.ended) == ([3], [])


def test_batch_failures_fail_whole_batches_and_then_stop() -> None:
    engine = make()
    engine.set_faults(Faults("r", 100.0, batch_failures=2))
    for key in (1, 2):
        engine.add(Request(key, 20, 5), 0.0)
    assert ended(step(engine)) == [(1, Finish.ERROR), (2, Finish.ERROR)]
    engine.add(Request(3, 20, 1), 0.0)
    assert ended(step(engine)) == [(3, Finish.ERROR)]
    engine.add(Request(4, 20, 1), 0.0)
    assert ended(step(engine)) == [(4, Finish.LENGTH)]
    assert engine.kv_usage_ratio == 0


def test_the_same_file_again_does_not_start_the_failures_afresh() -> None:
    engine = make()
    engine.set_faults(Faults("r", 100.0, batch_failures=1))
    engine.add(Request(1, 20, 1), 0.0)
    step(engine)
    engine.set_faults(Faults("r", 200.0, batch_failures=1))  # the lease was renewed
    engine.add(Request(2, 20, 1), 0.0)
    assert ended(step(engine)) == [(2, Finish.LENGTH)]
    engine.set_faults(Faults("s", 200.0, batch_failures=1))
    engine.add(Request(3, 20, 1), 0.0)
    assert ended(step(engine)) == [(3, Finish.ERROR)]


@pytest.mark.parametrize(("now", "finish"), [(99.0, Finish.ERROR), (100.0, Finish.LENGTH)])
def test_faults_end_by_themselves(now: float, finish: Finish) -> None:
    engine = make()
    engine.set_faults(Faults("r", 100.0, batch_failures=-1))
    engine.add(Request(1, 20, 1), 0.0)
    begun = engine.begin_step(now)
    assert begun is not None
    assert ended(engine.finish_step(begun[0], now)) == [(1, finish)]


def test_error_ratio_hits_that_share() -> None:
    engine = make()
    engine.set_faults(Faults("r", 1e9, error_ratio=0.3))
    finishes = []
    for key in range(1000):
        engine.add(Request(key, 8, 1), 0.0)
        finishes += [finish for _, finish in ended(step(engine))]
    assert 0.25 < finishes.count(Finish.ERROR) / 1000 < 0.35


def test_delay_holds_each_request_back() -> None:
    engine = make()
    engine.set_faults(Faults("r", 100.0, delay_seconds=2.0))
    engine.add(Request(1, 20, 1), 10.0)
    assert step(engine, 11.9) is None
    assert engine.state(11.9).deferred == 1
    assert engine.next_due() == 12.0
    assert ended(step(engine, 12.0)) == [(1, Finish.LENGTH)]


FILE = (
    '{"boot_id": "b", "expires_monotonic": 50.5, "run_id": "r1", "faults": {"error_ratio": 0.3, "batch_failures": -1}}'
)


def test_a_fault_file_is_read() -> None:
    faults = parse_faults(FILE, "b")
    assert faults == Faults("r1", 50.5, 0.3, -1, 0.0)
    assert (faults.active(50.4), faults.active(50.5)) == (True, False)


def test_faults_of_another_boot_are_none() -> None:
    assert parse_faults(FILE, "c") == NO_FAULTS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"boot_id": "b", "faults": 3}',
        '{"boot_id": "b", "expires_monotonic": "soon"}',
        '{"boot_id": "b", "faults": {"error_ratio": 1.5}}',
        '{"boot_id": "b", "faults": {"error_ratio": NaN}}',
        '{"boot_id": "b", "faults": {"batch_failures": -2}}',
        '{"boot_id": "b", "faults": {"delay_seconds": -1}}',
    ],
)
def test_a_fault_file_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_faults(text, "b")
