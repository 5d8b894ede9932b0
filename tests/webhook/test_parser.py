"""Any bytes are alerts or a named refusal; times, bounds, what is cut and what is left out."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sre.notify.alerts import (
    LONGEST_LABEL,
    MOST_LABELS,
    NANOSECONDS,
    PayloadError,
    Refusal,
    Unreadable,
    fingerprint_of,
    moment_ns,
    parse,
)
from tests.fuzz import alerts as fuzz
from tests.webhook.scenes import body, document, one

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)


@given(st.binary(max_size=300))
@example(b"\xef\xbb\xbf{}")
@example(b"9" * 5000)
@example(b'{"version":"4","alerts":[{"labels":{"a":"b"},"startsAt":"2024-01-01T00:00:00Z","status":"firing"}]}')
def test_any_bytes(raw: bytes) -> None:
    fuzz.check(raw)


@given(JSON, st.sampled_from(["version", "alerts", "status", "receiver", "truncatedAlerts", "groupKey"]))
def test_any_value_in_any_place_of_a_payload(value: Any, place: str) -> None:
    fuzz.check(json.dumps({**document(one()), place: value}).encode())


@given(JSON, st.sampled_from(["status", "labels", "annotations", "startsAt", "endsAt", "fingerprint", "generatorURL"]))
def test_any_value_in_any_place_of_an_alert(value: Any, place: str) -> None:
    raw = json.dumps(document({**one(), place: value}, one(node="healthy"))).encode()
    fuzz.check(raw)
    assert any(alert.labels.get("node") == "healthy" for alert in parse(raw).alerts), "costs the healthy one nothing"


def test_a_short_fuzz_with_a_fixed_seed() -> None:
    counts = fuzz.run(1.0, seed=7)
    assert counts["taken"] > 50
    assert len(counts) > 4


@given(
    st.datetimes(datetime(1700, 1, 1), datetime(2250, 1, 1)), st.integers(0, NANOSECONDS - 1), st.integers(-720, 720)
)
def test_a_moment_is_the_same_in_every_zone(moment: datetime, nanoseconds: int, minutes: int) -> None:
    whole = moment.replace(microsecond=0, tzinfo=UTC)
    wanted = int((whole - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * NANOSECONDS + nanoseconds
    local = whole + timedelta(minutes=minutes)
    sign, off = ("+" if minutes >= 0 else "-"), abs(minutes)
    text = f"{local:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + f".{nanoseconds:09d}{sign}{off // 60:02d}:{off % 60:02d}"
    assert moment_ns(text) == wanted
    assert moment_ns(f"{whole:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z") == wanted


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00Z", "NaN", "", "2024-01-01", "2024-13-01T00:00:00Z", "2024-02-30T00:00:00Z",
        "2024-01-01T24:00:00Z", "2024-01-01T00:00:61Z", "2024-01-01T00:00:00", "2024-01-01T00:00:00+24:00",
        "2024-01-01T00:00:00+0200", "9999-01-01T00:00:00Z", "1500-01-01T00:00:00Z", None, 5, True, [], "x" * 10_000,
        "２０２４-01-01T00:00:00Z",
    ],
)  # fmt: skip
def test_what_is_no_moment(text: object) -> None:
    assert moment_ns(text) is None


def test_a_leap_second_is_the_one_after() -> None:
    assert moment_ns("2016-12-31T23:59:60Z") == moment_ns("2017-01-01T00:00:00Z")


def test_an_end_counts_only_for_what_ended() -> None:
    firing, ended = parse(body(one(), one(status="resolved"))).alerts
    assert firing.ends_ns is None
    assert ended.ends_ns is not None


def test_unknown_fields_are_ignored() -> None:
    assert parse(body({**one(), "new": {"a": [1]}}, futureField=[{}])).alerts


def test_a_missing_status_is_the_groups() -> None:
    alert = one()
    del alert["status"]
    assert parse(body(alert, status="resolved")).alerts[0].firing is False


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"labels": {}}, Unreadable.NO_LABELS),
        ({"labels": None}, Unreadable.NO_LABELS),
        ({"labels": ["a"]}, Unreadable.NO_LABELS),
        ({"status": "pending"}, Unreadable.BAD_STATUS),
        ({"startsAt": "0001-01-01T00:00:00Z"}, Unreadable.BAD_STARTS_AT),
        ({"startsAt": None}, Unreadable.BAD_STARTS_AT),
    ],
)
def test_a_bad_alert_is_named_and_left_out(change: dict[str, Any], why: Unreadable) -> None:
    found = parse(body(one(node="good"), {**one(), **change}))
    assert len(found.alerts) == 1
    assert [(bad.index, bad.why) for bad in found.bad] == [(1, why)]


def test_labels_beyond_the_bounds_are_cut_and_what_tells_the_alert_stays() -> None:
    many = {f"a{n:04d}": "v" for n in range(1000)}
    (alert,) = parse(body(one("Z", long="x" * 5000, **many))).alerts
    assert alert.cut
    assert len(alert.labels) == MOST_LABELS
    assert alert.name == "Z"
    assert alert.labels["severity"] == "page"
    (short,) = parse(body(one(long="x" * 5000))).alerts
    assert len(short.labels["long"]) == LONGEST_LABEL


def test_an_alert_without_a_fingerprint_has_one_of_its_labels() -> None:
    alerts = parse(body(*({**one(node=node), "fingerprint": "no fingerprint!"} for node in ("a", "a", "b")))).alerts
    assert alerts[0].fingerprint == alerts[1].fingerprint == fingerprint_of(alerts[0].labels)
    assert alerts[2].fingerprint != alerts[0].fingerprint


@pytest.mark.parametrize("version", ["3", 4, None, "5", ["4"], "4 "])
def test_only_version_4_is_known(version: object) -> None:
    with pytest.raises(PayloadError) as caught:
        parse(body(one(), version=version))
    assert caught.value.refusal is Refusal.WRONG_VERSION
    assert "0.16" in str(caught.value)


@pytest.mark.parametrize("truncated", [-1, "7", None, True, 2**40, 1.5])
def test_an_odd_number_of_left_out_alerts_is_none(truncated: object) -> None:
    assert parse(body(one(), truncatedAlerts=truncated)).truncated == 0


def test_no_alerts_are_no_error() -> None:
    assert parse(body()).alerts == ()
