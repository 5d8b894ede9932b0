"""Both languages say everything."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from sre.actions import facts
from sre.actions.types import Message, RejectReason
from sre.breaker import blindness
from sre.breaker import records as breaker_records
from sre.notify import alert_decide, alert_later, alert_limits
from sre.notify.alert_messages import (
    alert_message,
    canary_message,
    ended_message,
    left_out_message,
    locked_out_message,
    once_message,
    silent_message,
)
from sre.notify.alert_records import AlertIncident, LeftOut
from sre.notify.alerts import Alert
from sre.notify.envelope import unreadable
from sre.notify.forms import Style, long_text, title
from sre.notify.languages import EN, LANGUAGES, WORDS, ZH, Words, said
from sre.notify.policy import Why
from sre.notify.samples import BLIND, HANG, RESOLVED
from sre.settings.notify import Language
from sre.wiring import chaos_watch, guard_webhook

CHINESE = re.compile(r"[\u4e00-\u9fff]")


def texts_of(words: Words) -> dict[str, str]:
    found = {}
    for field in dataclasses.fields(words):
        value = getattr(words, field.name)
        if isinstance(value, str):
            found[field.name] = value
        elif isinstance(value, Mapping):
            found |= {f"{field.name}.{name}": text for name, text in value.items()}
    return found


def test_every_language_of_the_settings_has_words() -> None:
    assert set(WORDS) == set(LANGUAGES) == {"en", "zh"}
    assert all(WORDS[language].language == language for language in LANGUAGES)


def test_both_languages_have_every_key_and_say_something() -> None:
    english, chinese = texts_of(EN), texts_of(ZH)
    assert set(english) <= set(chinese)
    # Reasons and names of facts are English already: what only Chinese has are names of these.
    assert {name.partition(".")[0] for name in set(chinese) - set(english)} == {"reasons", "fact_names"}
    assert all(text.strip() for text in (*english.values(), *chinese.values()))
    for name, text in chinese.items():
        assert name == "language" or CHINESE.search(text), f"{name} is not Chinese: {text}"
    for name, text in english.items():
        assert not CHINESE.search(text)
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", chinese[name])), name


def test_every_named_reason_and_fact_is_said_in_chinese() -> None:
    assert {reason.value for reason in RejectReason} <= set(ZH.reasons)
    assert {*facts.SHOWN_BY_NAME, *facts.LISTED} == set(ZH.fact_names)
    named = set(re.findall(r'reason="(\w+)"', inspect.getsource(breaker_records) + inspect.getsource(chaos_watch)))
    assert named <= set(ZH.reasons)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("why", [Why.STORM, Why.TOO_SLOW, Why.QUIET_HOURS_OVER])
def test_why_messages_came_as_one_is_said_in_words(why: Why, language: Language) -> None:
    digest = replace(HANG, event="digest", reason=why.value, facts=())
    text = title(digest, Style(language)) + long_text(digest, None, Style(language))
    assert WORDS[language].reasons[why.value] in text
    assert why.value not in text


PRODUCED = [
    ("sim-0 tripped: hang", "sim-0 熔断：引擎挂起"),
    ("sim-0 tripped: hang; NOT contained: the gateway does not answer", "未能隔离"),
    ("sim-0 needs a human: latched", "需要人工处理：锁定待处理"),
    ("sim-0 serves again after 41 s", "在 41 秒后恢复服务"),
    ("sim-0 left the configuration; the incident is closed unproven", "未验证恢复"),
    ("fault hang is not proven reverted (running)", "未证实已撤销"),
    ("not seen: gpu_temperature_celsius, error_ratio", "未观测到：gpu_temperature_celsius, error_ratio"),
    ("not seen", "未观测到"),
    ("new requests are refused, running streams go on", "拒绝新请求"),
    ("nothing: observe only", "仅观察模式"),
    ("a fault here would go unnoticed until this is seen again", "不会被发现"),
    ("find the cause, then: sre breaker reset sim-0", "再执行：sre breaker reset sim-0"),
    ("engine sim-0 (pool sim-7b)", "引擎sim-0(池sim-7b)"),
    ("A test message; nothing is wrong.", "一切正常"),
    ("seen again: engine steps", "已重新观测到：engine steps"),
    ("seen again, or not looked for any more: rule x", "或不再监测：rule x"),
    ("the guard's state can be written again; what goes on is told anew", "将重新通知"),
]


@pytest.mark.parametrize(("english", "chinese"), PRODUCED)
def test_sentences_of_ours_are_said_in_chinese(english: str, chinese: str) -> None:
    assert chinese in said(ZH, english)
    assert said(EN, english) == english


def test_what_the_guard_writes_is_what_is_translated() -> None:
    source = inspect.getsource(breaker_records) + inspect.getsource(blindness)
    for fragment in (
        " tripped: ",
        " needs a human: ",
        " serves again after ",
        "not seen: ",
        "new requests are refused, running streams go on",
        "nothing: observe only",
        "left the configuration; the incident is closed unproven",
        "a fault here would go unnoticed until this is seen again",
        "find the cause, then: ",
    ):
        assert fragment in source, f"the guard says it otherwise now; change sre.notify.languages: {fragment}"


def test_what_others_said_stays_as_it_is() -> None:
    assert said(ZH, "GPU memory of node-17 is 97 % full") == "GPU memory of node-17 is 97 % full"
    assert said(ZH, "{0} {name} %s") == "{0} {name} %s"
    assert said(ZH, "x{0} tripped: hang") == "x{0} 熔断：引擎挂起"


@pytest.mark.timeout(20)
def test_a_hostile_sentence_takes_no_time() -> None:
    for unit in ("; NOT contained: ", "engine x (pool ", "tripped: ", "a " * 8):
        said(ZH, (unit * 1000)[:1000])


@pytest.mark.parametrize("message", [HANG, RESOLVED, BLIND], ids=["hang", "resolved", "blind"])
def test_a_whole_message_holds_no_english_of_ours(message: Message) -> None:
    text = title(message, Style("zh")) + "\n" + long_text(message, HANG, Style("zh"))
    # What was measured, commands, names and the unit of time are the same in every language.
    names = r"\b(UTC|vllm-0|qwen-7b|gpu_temperature_celsius|inc-[\d-]+|blind-[\d-]+vllm-0|GPU|s|sre)\b"
    commands = r"sre (incident show|notify outbox list --incident|breaker explain|runbook show|doctor)( [\w-]+)?"
    measured = r"no engine step for 3\.1 s, 4 requests in flight|3 canaries in a row"
    kept = re.compile("|".join((commands, measured, names)), re.ASCII)
    assert re.findall(r"[A-Za-z]{2,}", kept.sub("", text)) == []


def test_a_message_of_an_older_sre_still_renders() -> None:
    old = replace(HANG, facts=(("in flight", "4"), ("next", "restart after 30 s")), event="open")
    for language in LANGUAGES:
        text = long_text(old, None, Style(language))
        assert "restart after 30 s" in text
        assert "in flight" in text


def test_what_the_outbox_says_of_itself_is_said_in_chinese_too() -> None:
    for sentence in (
        unreadable("inc-1", "page", 0.0).summary,
        "escalation fails again and again: no",
        "escalation works again",
        "read the guard's log",
        "outbox",
    ):
        assert said(WORDS["zh"], sentence) != sentence
    assert {"unreadable", "duty_failed"} <= set(WORDS["zh"].reasons)


INCIDENT = AlertIncident(
    id="inc-20270115-080000-a001", number=1, join_key="alertname=GpuHot,node=n1", name="GpuHot", severity="page",
    scope="node n1", route="all", summary="", opened_wall=1_800_000_000.0, members=3,
)  # fmt: skip
ALERT = Alert("f1", 1_800_000_000 * 10**9, True, {"alertname": "GpuHot", "node": "n1"})
NOW = 1_800_007_500.0


def left(count: int) -> list[LeftOut]:
    return [LeftOut("all", f"A{n}", "page", ("f", n), f"inc-{n}", True, True) for n in range(count)]


def alert_messages_of_ours() -> dict[str, Message]:
    """Every message that alerts lead to, in its longest form."""
    late = alert_message(
        "open", INCIDENT, ALERT, wall=NOW, max_age_seconds=60, done="nothing: no trip of e1 (last_engine)", truncated=7
    )
    early = alert_message(
        "escalate", INCIDENT, ALERT, wall=NOW - 90_000, max_age_seconds=60, done="nothing: the alert has no action"
    )
    carried_out = "the trip of e1 was carried out; no incident of it is open now"
    once = {
        "limit": (
            "its limit of 3 per hour is reached; further alerts are told together, within the hour",
            "raise max_per_hour of the route, or silence what storms",
        ),
        "refused": (
            "notifications are refused and lost: they are not posted to /api/v1/alerts",
            "mend it at Alertmanager; until then its alerts reach nobody through this webhook",
        ),
        "large": (
            "notifications are refused and lost: more than 9 bytes; raise webhook.max_body_bytes, or set max_alerts at"
            " Alertmanager",
            "look at the templates and versions of Alertmanager",
        ),
        "damaged": (
            "a stored record is damaged and was set aside: 7",
            "look at the disk and at the guard's log; nothing else was kept back",
        ),
        "certificate": (
            "webhook.tls_certificate cannot be renewed (7); the old one is used on",
            "put a certificate and its key there; they are taken without a restart",
        ),
        "truncated": (
            "7 alerts of a group (GpuHot) are left out of its notification; what is new may be among them",
            "look at that group in Alertmanager; raise max_alerts of its receiver, or group by more labels",
        ),
        "truncated to nothing": (
            "7 alerts of a group are left out of its notification; what is new may be among them",
            "look at that group in Alertmanager; raise max_alerts of its receiver, or group by more labels",
        ),
        "bad": ("3 alerts of a notification cannot be read and are lost: 7", "sre doctor"),
    }
    return {
        "late": late,
        "early": early,
        "tripped": alert_message("open", INCIDENT, ALERT, wall=NOW, max_age_seconds=1e9, done=carried_out),
        "ended": ended_message(INCIDENT, NOW),
        "forgotten": ended_message(INCIDENT, NOW, "not heard of for 48 h; taken for over, unproven"),
        "silent": silent_message(INCIDENT, NOW, 301.0, 300.0, guarded=True),
        "silent and locked out": silent_message(INCIDENT, NOW, 301.0, 300.0, guarded=True, turned_away=7),
        "locked out": locked_out_message(INCIDENT, NOW, 7, 301.0),
        "let in": ended_message(INCIDENT, NOW, "a post with good credentials came again"),
        "silent alone": silent_message(INCIDENT, NOW, 301.0, 300.0, guarded=False),
        "left out": left_out_message(INCIDENT, left(99), 4, 5, NOW, 6),
        "left out and over": left_out_message(INCIDENT, left(2), 0, 0, NOW, 0),
        "canary": canary_message("7", NOW),
    } | {
        name: once_message("alerts-refused", "page", "webhook route all", summary, NOW, following)
        for name, (summary, following) in once.items()
    }


@pytest.mark.parametrize("name", alert_messages_of_ours())
def test_what_alerts_lead_to_holds_no_english_of_ours(name: str) -> None:
    message = alert_messages_of_ours()[name]
    text = title(message, Style("zh")) + "\n" + long_text(message, None, Style("zh"))
    # Names that others gave, settings, commands and units of time are the same in every language.
    kept = re.compile(
        r"sre (incident (show|list)|notify outbox list --incident|notify test --end-to-end|doctor)"
        r"|(inc|canary|alerts-refused)-[\w-]*"
        r"|alertname=GpuHot,node=n1|node n1|GpuHot|A\d+|last_engine|e1|all|webhook[.\w]*|max_\w+|/api/v1/alerts"
        r"|sre\.yaml"
        r"|Prometheus|Alertmanager|\b(UTC|s|min|h|sre)\b",
        re.ASCII,
    )
    assert re.findall(r"[A-Za-z]{2,}", kept.sub("", text)) == [], text


def test_what_is_tested_is_what_alerts_say() -> None:
    """The sentences above are spelled as in the code that says them."""
    code = "".join(inspect.getsource(module) for module in (alert_decide, alert_limits, alert_later, guard_webhook))
    code = re.sub(r"\{[^}]*\}", "", re.sub(r'"\s+f?"', "", code))
    for message in alert_messages_of_ours().values():
        for sentence in (message.summary, dict(message.facts).get(facts.NEXT, "")) if message.event == "blind" else ():
            if sentence.startswith(("its limit", "raise", "mend", "a stored", "look", "webhook.tls", "put")):
                spelled = re.sub(r"\b(3|7)\b", "", sentence)
                assert spelled in code, sentence
