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
from sre.breaker import records as breaker_records
from sre.notify.envelope import unreadable
from sre.notify.forms import Style, long_text, title
from sre.notify.languages import EN, LANGUAGES, WORDS, ZH, Words, said
from sre.notify.samples import BLIND, HANG, RESOLVED
from sre.wiring import chaos_watch

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
]


@pytest.mark.parametrize(("english", "chinese"), PRODUCED)
def test_sentences_of_ours_are_said_in_chinese(english: str, chinese: str) -> None:
    assert chinese in said(ZH, english)
    assert said(EN, english) == english


def test_what_the_guard_writes_is_what_is_translated() -> None:
    source = inspect.getsource(breaker_records)
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
    commands = r"sre (incident show|breaker explain|runbook show|doctor)( [\w-]+)?"
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
