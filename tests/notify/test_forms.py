"""The forms of a message."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.actions.types import Message
from sre.notify.channels import recipient_problems, url_problems
from sre.notify.delivery import backoff_seconds
from sre.notify.envelope import message_from_json, message_to_json
from sre.notify.forms import LONGEST_BODY, Tone, render, sms
from sre.notify.gsm7 import EXTENDED, SAFE, SINGLE_SMS, septets, to_gsm7

HANG = Message(
    incident_id="inc-20270115-080000-00a1",
    event="open",
    severity="page",
    scope="engine sim-0 (pool sim-7b)",
    reason="hang",
    summary="no step for 3.1 s, 4 requests in flight",
    at_wall=1_800_000_000.0,
    facts=(("in flight", "4"), ("next", "restart after 30 s")),
)
# The default alphabet of GSM 03.38 without its extension table, from the standard's table; ours must lie inside.
GSM_DEFAULT = set(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)

texts = st.text(max_size=300)
messages = st.builds(
    Message,
    incident_id=texts,
    event=st.sampled_from(["open", "escalate", "resolve", "blind", "test", "other"]),
    severity=st.one_of(st.just("page"), texts),
    scope=texts,
    reason=texts,
    summary=texts,
    at_wall=st.floats(0, 4e9),
    facts=st.lists(st.tuples(texts, texts), max_size=4).map(tuple),
)


def test_sms() -> None:
    assert sms(HANG) == (
        "PAGE OPEN engine sim-0 (pool sim-7b): hang inc-20270115-080000-00a1; no step for 3.1 s, 4 requests in flight"
    )
    resolved = replace(HANG, event="resolve", summary="closed after 41 s")
    assert sms(resolved) == (
        "PAGE RESOLVED engine sim-0 (pool sim-7b): hang inc-20270115-080000-00a1; closed after 41 s"
    )
    assert sms(resolved, HANG).endswith("inc-20270115-080000-00a1; began 08:00:00, closed after 41 s")


@given(messages, st.none() | messages)
def test_an_sms_is_one_line_of_at_most_160_plain_characters(message: Message, opened: Message | None) -> None:
    rendered = render(message, "sms", opened)
    assert rendered.title == ""
    assert 0 < len(rendered.body) <= SINGLE_SMS
    assert set(rendered.body) <= SAFE
    assert septets(rendered.body) == len(rendered.body)


@given(st.text(alphabet=sorted(SAFE), min_size=300, max_size=400))
def test_a_long_text_never_pushes_the_incident_out_of_an_sms(noise: str) -> None:
    line = sms(replace(HANG, summary=noise, scope=noise))
    assert line.startswith("PAGE OPEN ")
    assert "hang inc-20270115-080000-00a1" in line


@given(texts)
def test_the_sms_alphabet_is_plain_and_stable(text: str) -> None:
    plain = to_gsm7(text)
    assert plain.isascii()
    assert set(plain) <= GSM_DEFAULT
    assert to_gsm7(plain) == plain


def test_the_sms_alphabet_spells_what_it_can() -> None:
    assert to_gsm7("“Zürich” – naïve…\n\t{95 °C} ≥ 5€ [x|y] 你`\x1b") == (
        '"Zurich" - naive... (95 deg C) >= 5EUR (x/y) ?\''
    )
    assert SAFE | set(EXTENDED) - {"€"} >= {chr(c) for c in range(32, 127)} - {"`"}
    assert septets("a{}€") == 7
    with pytest.raises(ValueError, match="not a character we send"):
        septets("你")


def test_email() -> None:
    rendered = render(HANG, "email")
    assert rendered.title == "[page] OPEN engine sim-0 (pool sim-7b): hang"
    assert rendered.tone is Tone.FAILURE
    assert rendered.body == (
        "no step for 3.1 s, 4 requests in flight\n"
        "\n"
        "incident: inc-20270115-080000-00a1\n"
        "event:    open\n"
        "severity: page\n"
        "scope:    engine sim-0 (pool sim-7b)\n"
        "reason:   hang\n"
        "at:       2027-01-15 08:00:00 UTC\n"
        "\n"
        "in flight: 4\n"
        "next:      restart after 30 s\n"
        "\n"
        "More: sre incident show inc-20270115-080000-00a1"
    )


def test_an_email_about_the_end_tells_a_beginning_nobody_heard_of() -> None:
    rendered = render(replace(HANG, event="resolve", summary="closed", facts=()), "email", HANG)
    assert rendered.tone is Tone.SUCCESS
    assert "began and ended before a first message could be sent; it began 2027-01-15 08:00:00 UTC" in rendered.body
    assert "no step for 3.1 s" in rendered.body
    assert "in flight: 4" in rendered.body


@given(messages, st.none() | messages, st.sampled_from(["email", "sms", "webhook", "chat"]))
def test_no_message_is_ever_empty_or_endless(message: Message, opened: Message | None, kind: str) -> None:
    rendered = render(message, kind, opened)  # type: ignore[arg-type]
    assert rendered.body.strip()
    assert "\n" not in rendered.title
    assert len(rendered.title) <= 140
    if kind in ("email", "chat"):
        assert len(rendered.body) <= LONGEST_BODY
        assert message.event in rendered.body


@given(messages)
def test_a_webhook_gets_json_that_reads_back(message: Message) -> None:
    document = json.loads(render(message, "webhook").body)
    assert document["version"] == 1
    assert message_from_json(document) == message


@given(messages)
def test_a_message_survives_its_envelope(message: Message) -> None:
    assert message_from_json(json.loads(json.dumps(message_to_json(message)))) == message


@pytest.mark.parametrize("document", [{}, {"incident_id": 1}, {**message_to_json(HANG), "facts": 7}])
def test_what_is_no_message_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        message_from_json(document)


@given(st.integers(1, 10**6), st.floats(0.1, 60), st.floats(60, 3600), st.integers())
def test_backoff_doubles_up_to_its_cap_less_a_fifth(attempts: int, initial: float, cap: float, seed: int) -> None:
    wait = backoff_seconds(attempts, initial_seconds=initial, max_seconds=cap, rng=random.Random(seed))
    full = min(cap, initial * 2.0 ** min(attempts - 1, 60))
    assert 0.8 * full <= wait <= full
    again = backoff_seconds(attempts, initial_seconds=initial, max_seconds=cap, rng=random.Random(seed))
    assert again == wait


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mailto://host?to=a@b.org", None),
        ("json://127.0.0.1:1/x", None),
        ("mailto://host?retry=3", "remove retry="),
        ("mailto://host ?to=a", "white space"),
        ("smtp-host", "not a URL"),
        ("", "not a URL"),
        ("mailto://[::1", "cannot be taken apart"),
    ],
)
def test_url_problems(url: str, problem: str | None) -> None:
    found = url_problems(url)
    if problem is None:
        assert found == []
    else:
        assert any(problem in sentence for sentence in found)


@given(st.text())
def test_any_url_text_is_judged_without_an_exception(url: str) -> None:
    for sentence in url_problems(url):
        assert "\n" not in sentence


def test_one_recipient_per_channel() -> None:
    assert recipient_problems(1) == ()
    assert "no recipient" in recipient_problems(0)[0]
    assert "3 recipients; make a channel for each" in recipient_problems(3)[0]
