"""The forms of a message."""

from __future__ import annotations

import json
import random
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.actions import facts
from sre.actions.types import Message
from sre.notify.channels import kind_problems, recipient_problems, scheme_of, url_problems
from sre.notify.delivery import backoff_seconds
from sre.notify.envelope import message_from_json, message_to_json
from sre.notify.forms import (
    LONGEST_BODY,
    LONGEST_CHAT_BYTES,
    LONGEST_SUMMARY,
    SMS_LIMITS,
    Act,
    Style,
    Tone,
    render,
    sms,
)
from sre.notify.gsm7 import EXTENDED, SAFE, SINGLE_SMS, UCS2_SMS, septets, to_gsm7
from sre.notify.languages import LANGUAGES
from sre.notify.links import Links
from sre.notify.view import without_secrets
from sre.settings.notify import Language

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

texts = st.text(max_size=300) | st.text(
    alphabet="PAGE open <b>&\"'\u202e\U0001f525你好[]{}|~^€\n\t\ud800", max_size=300
)
languages = st.sampled_from(LANGUAGES)
known_facts = st.sampled_from([*facts.SHOWN_BY_NAME, *facts.LISTED])
messages = st.builds(
    Message,
    incident_id=texts,
    event=st.sampled_from(["open", "escalate", "resolve", "acknowledge", "blind", "digest", "test", "other"]),
    severity=st.sampled_from(["page", "ticket", "info"]) | texts,
    scope=texts | st.just("engine sim-0 (pool sim-7b)"),
    reason=texts | st.sampled_from(["hang", "engine_dead", "blind"]),
    summary=texts,
    at_wall=st.floats(0, 4e9),
    facts=st.lists(st.tuples(known_facts | texts, texts), max_size=4).map(tuple),
)

storable = messages.map(lambda message: replace(message, at_wall=float(message.at_wall)))
CHINESE = Style("zh")


def test_sms() -> None:
    assert sms(HANG) == (
        "PAGE OPEN engine sim-0 (pool sim-7b): hang inc-20270115-080000-00a1; no step for 3.1 s, 4 requests in flight"
    )
    resolved = replace(HANG, event="resolve", summary="closed after 41 s")
    assert sms(resolved) == (
        "PAGE RESOLVED engine sim-0 (pool sim-7b): hang inc-20270115-080000-00a1; closed after 41 s"
    )
    assert sms(resolved, HANG).endswith("inc-20270115-080000-00a1; began 08:00:00, closed after 41 s")


def test_sms_with_a_value_and_in_chinese() -> None:
    hot = replace(HANG, reason="gpu_temperature", facts=((facts.VALUE, "93 °C"),))
    assert sms(hot).startswith(
        "PAGE OPEN engine sim-0 (pool sim-7b): gpu_temperature 93 deg C inc-20270115-080000-00a1; "
    )
    line = sms(replace(HANG, summary="sim-0 tripped: hang", facts=((facts.VALUE, "3.1 s"),)), style=CHINESE)
    assert line == "紧急 触发 引擎sim-0(池sim-7b): 引擎挂起 3.1 s inc-20270115-080000-00a1"
    assert len(line) <= UCS2_SMS


@given(messages, st.none() | messages)
def test_an_sms_is_one_line_of_at_most_160_plain_characters(message: Message, opened: Message | None) -> None:
    rendered = render(message, "sms", opened)
    assert rendered.title == ""
    assert 0 < len(rendered.body) <= SINGLE_SMS
    assert set(rendered.body) <= SAFE
    assert septets(rendered.body) == len(rendered.body)


@given(messages, st.none() | messages)
def test_a_chinese_sms_is_one_line_of_at_most_67_characters_of_ucs2(message: Message, opened: Message | None) -> None:
    body = render(message, "sms", opened, CHINESE).body
    assert 0 < len(body) <= UCS2_SMS
    assert len(body.encode("utf-16-le")) == 2 * len(body)
    assert not any(c in "\n\r\t" or unicodedata.category(c).startswith("C") for c in body)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_stands_first_in_an_sms_always_fits(language: Language) -> None:
    limits = SMS_LIMITS[language]
    joints = len(" ") * 5 + len(":")
    parts = limits.severity + limits.event + limits.scope + limits.rule + limits.value + limits.id
    assert parts + joints == limits.whole


@given(st.text(alphabet=sorted(SAFE), min_size=300, max_size=400), languages)
def test_no_length_of_anything_pushes_a_real_incident_id_out_of_an_sms(noise: str, language: Language) -> None:
    line = sms(
        replace(HANG, summary=noise, scope=noise, reason=noise, facts=((facts.VALUE, noise),)),
        style=Style(language),
    )
    assert "inc-20270115-080000-00a1" in line


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


def test_what_belongs_to_no_incident_is_looked_up_in_the_outbox() -> None:
    told = replace(HANG, incident_id="alerts-refused-wrong_path-20270115-08", event="blind")
    assert "sre notify outbox list --incident alerts-refused-wrong_path-20270115-08" in render(told, "email").body
    assert "sre incident show" not in render(told, "email").body


def test_email() -> None:
    rendered = render(HANG, "email")
    assert rendered.title == "[page] OPEN engine sim-0 (pool sim-7b): hang"
    assert rendered.tone is Tone.FAILURE
    assert rendered.key == HANG.incident_id
    assert rendered.body == (
        "no step for 3.1 s, 4 requests in flight\n"
        "\n"
        "since:              2027-01-15 08:00:00 UTC\n"
        "done automatically: nothing\n"
        "next:               restart after 30 s\n"
        "runbook:            sre runbook show VllmEngineHung\n"
        "\n"
        "incident: inc-20270115-080000-00a1\n"
        "event:    open\n"
        "severity: page\n"
        "scope:    engine sim-0 (pool sim-7b)\n"
        "reason:   hang\n"
        "at:       2027-01-15 08:00:00 UTC\n"
        "\n"
        "in flight: 4\n"
        "\n"
        "timeline:\n"
        "  2027-01-15 08:00:00 UTC no step for 3.1 s, 4 requests in flight\n"
        "\n"
        "More: sre incident show inc-20270115-080000-00a1"
    )


def test_email_in_chinese_with_links() -> None:
    message = replace(
        HANG,
        summary="sim-0 tripped: hang",
        facts=(
            (facts.SINCE, "1799999997"),
            (facts.DONE, "new requests are refused, running streams go on"),
            (facts.POOL, "sim-7b"),
        ),
    )
    style = Style("zh", Links("https://runbooks.example.org/sre/", "https://grafana.example.org"))
    rendered = render(message, "email", style=style)
    assert rendered.title == "[紧急] 触发 引擎sim-0(池sim-7b): 引擎挂起"
    assert rendered.body == (
        "sim-0 熔断：引擎挂起\n"
        "\n"
        "开始时间:  2027-01-15 07:59:57 UTC\n"
        "已自动执行: 拒绝新请求，进行中的流继续\n"
        "下一步:   sre incident show inc-20270115-080000-00a1\n"
        "处置手册:  https://runbooks.example.org/sre/VllmEngineHung.md#vllmenginehung\n"
        "监控面板:  https://grafana.example.org/d/sre-breaker\n"
        "\n"
        "事件编号: inc-20270115-080000-00a1\n"
        "类型:   触发\n"
        "级别:   紧急\n"
        "范围:   引擎sim-0(池sim-7b)\n"
        "原因:   引擎挂起\n"
        "时间:   2027-01-15 08:00:00 UTC\n"
        "\n"
        "池: sim-7b\n"
        "\n"
        "时间线:\n"
        "  2027-01-15 08:00:00 UTC sim-0 熔断：引擎挂起\n"
        "\n"
        "更多：sre incident show inc-20270115-080000-00a1"
    )


def test_an_email_about_the_end_tells_a_beginning_nobody_heard_of() -> None:
    rendered = render(replace(HANG, event="resolve", summary="closed", facts=()), "email", HANG)
    assert rendered.tone is Tone.SUCCESS
    assert "began and ended before a first message could be sent; it began 2027-01-15 08:00:00 UTC" in rendered.body
    assert "no step for 3.1 s" in rendered.body
    assert "in flight: 4" in rendered.body


KINDS = ["email", "sms", "webhook", "chat", "pagerduty"]


@given(messages, st.none() | messages, st.sampled_from(KINDS), languages)
def test_no_message_is_ever_empty_or_endless(
    message: Message, opened: Message | None, kind: str, language: Language
) -> None:
    rendered = render(message, kind, opened, Style(language))  # type: ignore[arg-type]
    assert rendered.body.strip()
    assert "\n" not in rendered.title
    assert len(rendered.title) <= 140
    assert len(rendered.key) <= 255
    for text in (rendered.title, rendered.body, rendered.html, *rendered.parameters.values()):
        text.encode()  # no lone surrogate ever gets here
    if kind == "email":
        assert len(rendered.body) <= LONGEST_BODY
    if kind == "chat":
        assert len(f"{rendered.title}\n\n{rendered.body}".encode()) <= LONGEST_CHAT_BYTES
        assert not set("<>") & set(rendered.body)
    if kind == "pagerduty":
        assert len(rendered.body) <= LONGEST_SUMMARY


def test_the_longest_message_is_cut_where_it_says_least() -> None:
    endless = replace(HANG, facts=tuple((f"fact {n}", "x" * 5_000) for n in range(100)))
    text = render(endless, "email").body
    assert len(text) <= LONGEST_BODY
    assert text.endswith("... (cut off)")
    chat = render(endless, "chat").body
    assert chat.startswith(HANG.summary)
    assert "incident: inc-20270115-080000-00a1" in chat


def test_what_an_alert_says_rings_nobody_by_itself() -> None:
    loud = replace(HANG, summary="<!channel> <at user_id=all> @everyone <@U1|x>", scope="@all")
    rendered = render(loud, "chat")
    assert "<" not in rendered.body
    assert "@everyone" not in rendered.body
    assert "@all" not in rendered.title


def test_secrets_and_what_users_write_are_in_no_form() -> None:
    leaky = replace(
        HANG,
        summary="login with password=Hunter2000 at https://me:Hunter2000@db/x",
        facts=(
            ("prompt", "tell me about my illness"),
            ("Messages", "tell me about my illness"),
            (facts.SEEN, "Authorization: Bearer Hunter2000Hunter2000"),
        ),
    )
    for kind in KINDS:
        for language in LANGUAGES:
            rendered = render(leaky, kind, leaky, Style(language))  # type: ignore[arg-type]
            said = str(rendered)
            assert "Hunter2000" not in said
            assert "illness" not in said


def test_what_a_message_does_to_the_incident_of_a_paging_service() -> None:
    assert render(HANG, "pagerduty").act is Act.TRIGGER
    assert render(replace(HANG, event="escalate"), "pagerduty").act is Act.TRIGGER
    assert render(replace(HANG, event="acknowledge"), "pagerduty").act is Act.ACKNOWLEDGE
    assert render(replace(HANG, event="resolve"), "pagerduty").act is Act.RESOLVE


@given(storable)
def test_a_webhook_gets_json_that_reads_back(message: Message) -> None:
    document = json.loads(render(message, "webhook").body)
    assert document["version"] == 1
    assert message_from_json(document) == without_secrets(message)


def test_a_webhook_gets_the_whole_message_where_nothing_is_to_hide() -> None:
    assert message_from_json(json.loads(render(HANG, "webhook").body)) == HANG


@given(storable)
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


@pytest.mark.parametrize(
    ("url", "kind", "problem"),
    [
        ("mailto://h?to=a@b.org", "email", None),
        ("json://h/x", "sms", None),
        ("json://h/x", "webhook", None),
        ("sns://a/b/us-east-1/+15551234567", "sms", None),
        ("twilio://AC1:t@15551234567/15551234568", "sms", None),
        ("TWILIO://AC1:t@15551234567/15551234568", "chat", "write kind: sms"),
        ("pagerduty://a@b", "pagerduty", None),
        ("pagerduty://a@b", "chat", "write kind: pagerduty"),
        ("json://h", "pagerduty", "is not PagerDuty"),
        ("slack://a/b/c", "email", "write kind: chat"),
    ],
)
def test_a_url_suits_its_kind(url: str, kind: str, problem: str | None) -> None:
    found = kind_problems(url, kind)
    assert (not found) if problem is None else problem in found[0]
    assert scheme_of(url).islower()


def test_one_recipient_per_channel() -> None:
    assert recipient_problems(1) == ()
    assert "no recipient" in recipient_problems(0)[0]
    assert "3 recipients; make a channel for each" in recipient_problems(3)[0]
