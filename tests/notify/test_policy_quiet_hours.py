"""Quiet hours: local time, over midnight, through changes of the clock; a page never waits."""

from __future__ import annotations

from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.notify.policy import PAGE_RANK, quiet_ranks
from sre.notify.quiet_hours import QuietHours, quiet_hours_of
from sre.settings.notify import QuietHoursSettings

BERLIN = ZoneInfo("Europe/Berlin")
"""2027: clocks go forward on 28 March at 02:00, back on 31 October at 03:00."""
NIGHT = QuietHours(time(22), time(7), BERLIN, frozenset({"ticket", "info"}))
NOON = QuietHours(time(12), time(13, 30), ZoneInfo("Asia/Shanghai"), frozenset({"info"}))


def wall(text: str) -> float:
    """Unix time of a moment in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("moment", "ends"),
    [
        ("2027-01-15 20:59:59", None),  # 21:59:59 in Berlin
        ("2027-01-15 21:00:00", "2027-01-16 06:00:00"),
        ("2027-01-15 23:30:00", "2027-01-16 06:00:00"),
        ("2027-01-16 05:59:59", "2027-01-16 06:00:00"),
        ("2027-01-16 06:00:00", None),
        # The short night: 8 hours.
        ("2027-03-27 21:00:00", "2027-03-28 05:00:00"),
        ("2027-03-28 04:59:59", "2027-03-28 05:00:00"),
        ("2027-03-28 05:00:00", None),
        # The long night: 10 hours.
        ("2027-10-30 20:00:00", "2027-10-31 06:00:00"),
        ("2027-10-31 05:59:59", "2027-10-31 06:00:00"),
        ("2027-10-31 06:00:00", None),
    ],
)
def test_a_night_over_midnight_and_over_changes_of_the_clock(moment: str, ends: str | None) -> None:
    assert NIGHT.until(wall(moment)) == (None if ends is None else wall(ends))


def test_an_hour_that_comes_twice_does_not_begin_the_night_again() -> None:
    until_half_past_two = QuietHours(time(22), time(2, 30), BERLIN, frozenset({"info"}))
    assert until_half_past_two.until(wall("2027-10-31 00:29:59")) == wall("2027-10-31 00:30:00")
    assert until_half_past_two.until(wall("2027-10-31 01:15:00")) is None  # 02:15 for the second time
    from_half_past_two = QuietHours(time(2, 30), time(6), BERLIN, frozenset({"info"}))
    assert from_half_past_two.until(wall("2027-10-31 00:30:00")) == wall("2027-10-31 05:00:00")
    assert from_half_past_two.until(wall("2027-10-31 01:15:00")) == wall("2027-10-31 05:00:00")


def test_a_time_that_the_clock_leaves_out_is_no_error() -> None:
    hours = QuietHours(time(2, 30), time(6), BERLIN, frozenset({"info"}))
    assert hours.until(wall("2027-03-28 01:15:00")) is None  # 03:15 summer time
    assert hours.until(wall("2027-03-28 01:30:00")) == wall("2027-03-28 04:00:00")


def test_hours_within_a_day() -> None:
    assert NOON.until(wall("2027-01-15 03:59:59")) is None
    assert NOON.until(wall("2027-01-15 04:00:00")) == wall("2027-01-15 05:30:00")
    assert NOON.until(wall("2027-01-15 05:30:00")) is None


@given(
    st.floats(1.6e9, 2.2e9),
    st.times(),
    st.times(),
    st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kathmandu"]),
)
def test_they_end_within_a_day_and_are_over_then(now: float, start: time, end: time, zone: str) -> None:
    hours = QuietHours(start.replace(microsecond=0), end.replace(microsecond=0), ZoneInfo(zone), frozenset({"info"}))
    ends = hours.until(now)
    if start == end or ends is None:
        return
    assert now < ends <= now + 25 * 3600 + 60
    # Where nothing begins at that very moment, they are over.
    assert hours.until(ends) is None or abs(_minutes(start) - _minutes(end)) < 121


def _minutes(at: time) -> int:
    return at.hour * 60 + at.minute


@given(st.floats(allow_nan=False), st.frozensets(st.sampled_from(["page", "ticket", "info"])))
def test_a_page_never_waits(now: float, severities: frozenset[str]) -> None:
    hours = QuietHours(time(0), time(23, 59), UTC, severities)
    assert PAGE_RANK not in quiet_ranks(hours, now)


def test_which_messages_wait() -> None:
    assert quiet_ranks(NIGHT, wall("2027-01-15 23:00:00")) == {1, 2}
    assert quiet_ranks(NIGHT, wall("2027-01-15 12:00:00")) == frozenset()
    assert quiet_ranks(NOON, wall("2027-01-15 04:00:00")) == {2}
    assert quiet_ranks(None, 0.0) == frozenset()


def test_the_configuration_names_them() -> None:
    found = quiet_hours_of(QuietHoursSettings(start="23:15", end="06:00", timezone="Europe/Berlin"))
    assert found == QuietHours(time(23, 15), time(6), BERLIN, frozenset({"ticket", "info"}))
    assert quiet_hours_of(QuietHoursSettings()).zone is UTC, "UTC needs no data of zones"
