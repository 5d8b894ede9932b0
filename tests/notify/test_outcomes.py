"""What providers' answers mean: the table, and that nothing falls outside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.notify import outcomes
from sre.notify.outcomes import (
    LONGEST_RETRY_AFTER_SECONDS,
    REMEDIES,
    VERDICTS,
    Cause,
    Outcome,
    Verdict,
    aliyun_cause,
    chat_cause,
    http_cause,
    provider_code_field,
    retry_after,
    smtp_cause,
    tencent_cause,
)


def test_every_cause_has_a_verdict_and_a_remedy() -> None:
    assert set(VERDICTS) == set(REMEDIES) == set(Cause)
    assert Verdict.DELIVERED not in VERDICTS.values()
    assert all("\n" not in remedy and not remedy.endswith(".") for remedy in REMEDIES.values())
    assert Outcome(Cause.TLS).verdict is Verdict.REJECTED


@pytest.mark.parametrize(
    ("statuses", "cause"),
    [
        ((200, 201, 202, 204, 299), None),
        ((301, 302, 303, 307, 308), Cause.REFUSED),
        ((400, 405, 406, 409, 411, 413, 414, 415, 422, 431), Cause.REFUSED),
        ((401, 403, 407), Cause.CREDENTIALS),
        ((402,), Cause.QUOTA),
        ((404, 410), Cause.RECIPIENT),
        ((408, 425), Cause.TRY_LATER),
        ((429,), Cause.THROTTLED),
        ((500, 501, 502, 503, 504, 520, 529, 599), Cause.TRY_LATER),
    ],
)
def test_http(statuses: tuple[int, ...], cause: Cause | None) -> None:
    for status in statuses:
        assert http_cause(status) is cause, status


@pytest.mark.parametrize(
    ("code", "step", "cause"),
    [
        (421, "connect", Cause.TRY_LATER),
        (554, "connect", Cause.REFUSED),
        (454, "starttls", Cause.TRY_LATER),
        (502, "starttls", Cause.TLS),
        (454, "login", Cause.TRY_LATER),
        (504, "login", Cause.CREDENTIALS),
        (535, "login", Cause.CREDENTIALS),
        (530, "sender", Cause.CREDENTIALS),
        (550, "sender", Cause.REFUSED),
        (450, "recipient", Cause.TRY_LATER),
        (452, "recipient", Cause.TRY_LATER),
        (550, "recipient", Cause.RECIPIENT),
        (553, "recipient", Cause.RECIPIENT),
        (451, "data", Cause.TRY_LATER),
        (552, "data", Cause.REFUSED),
        (554, "data", Cause.REFUSED),
        (-1, "data", Cause.TRY_LATER),
    ],
)
def test_smtp(code: int, step: str, cause: Cause) -> None:
    assert smtp_cause(code, step) is cause


@given(st.integers(400, 599), st.sampled_from(["connect", "starttls", "login", "sender", "recipient", "data"]))
def test_smtp_4xx_may_pass_and_5xx_never_does(code: int, step: str) -> None:
    assert VERDICTS[smtp_cause(code, step)] is (Verdict.FAILED if code < 500 else Verdict.REJECTED)


def test_codes_in_an_answer_of_200() -> None:
    assert provider_code_field("dingtalk") == provider_code_field("wecombot") == "errcode"
    assert provider_code_field("feishu") == provider_code_field("lark") == "code"
    assert provider_code_field("slack") is None
    for scheme in ("dingtalk", "wecombot", "feishu", "lark"):
        assert chat_cause(scheme, 0) is chat_cause(scheme, "0") is chat_cause(scheme, None) is None
        assert chat_cause(scheme, 987654) is Cause.REFUSED
    assert chat_cause("lark", 11232) is Cause.THROTTLED
    assert chat_cause("wecombot", -1) is Cause.TRY_LATER


def test_sms_codes() -> None:
    assert aliyun_cause("OK") is None
    assert aliyun_cause("Throttling.Api") is Cause.THROTTLED
    assert aliyun_cause("isv.SOMETHING_NEW") is Cause.REFUSED
    assert tencent_cause("Ok") is None
    assert tencent_cause("LimitExceeded.SomethingNew") is Cause.THROTTLED
    assert tencent_cause("AuthFailure.SecretIdNotFound") is Cause.CREDENTIALS
    assert tencent_cause("FailedOperation.SomethingNew") is Cause.REFUSED
    assert outcomes.aws_cause("Throttling") is Cause.THROTTLED
    assert outcomes.aws_cause("InvalidParameter") is None, "the status says it"


NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("17", 17.0),
        (" 1.5 ", 1.5),
        ("-5", None),
        ("0", 0.0),
        ("99999999", LONGEST_RETRY_AFTER_SECONDS),
        ("1" * 400, LONGEST_RETRY_AFTER_SECONDS),
        ("Fri, 15 Jan 2027 08:01:30 GMT", 90.0),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0.0),
        ("Fri, 15 Jan 2037 07:00:00 GMT", LONGEST_RETRY_AFTER_SECONDS),
        ("nan", None),
        ("inf", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


@given(st.text(max_size=60))
def test_any_retry_after_is_a_bounded_wait_or_none(value: str) -> None:
    wait = retry_after(value, NOW)
    assert wait is None or 0 <= wait <= LONGEST_RETRY_AFTER_SECONDS
