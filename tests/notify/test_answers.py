"""What providers' answers mean: the tables, and that nothing falls outside them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sre.notify.answers import (
    LONGEST_RETRY_AFTER_SECONDS,
    aliyun_cause,
    aws_cause,
    chat_cause,
    http_cause,
    provider_code_field,
    retry_after,
    smtp_cause,
    tencent_cause,
    twilio_cause,
)
from sre.notify.outcomes import VERDICTS, Cause, Verdict


@pytest.mark.parametrize(
    ("statuses", "cause"),
    [
        ((200, 201, 202, 204, 299), None),
        ((400, 411, 413, 414, 415, 422, 431), Cause.REFUSED),
        ((301, 302, 303, 307, 308, 405, 406, 409, 421, 423, 426, 428, 451), Cause.TURNED_AWAY),
        ((401, 403, 407), Cause.CREDENTIALS),
        ((402,), Cause.QUOTA),
        ((404,), Cause.NOT_FOUND),
        ((410,), Cause.RECIPIENT),
        ((408, 425), Cause.TRY_LATER),
        ((429,), Cause.THROTTLED),
        ((500, 501, 502, 503, 504, 520, 529, 599), Cause.TRY_LATER),
    ],
)
def test_http(statuses: tuple[int, ...], cause: Cause | None) -> None:
    for status in statuses:
        assert http_cause(status) is cause, status


@pytest.mark.parametrize("status", [301, 302, 401, 403, 404, 405, 407, 409, 421, 429, 500, 502, 503])
def test_what_a_service_says_while_it_is_rolled_out_makes_no_page_dead(status: int) -> None:
    cause = http_cause(status)
    assert cause is not None
    assert VERDICTS[cause] in (Verdict.REFUSED_NOW, Verdict.FAILED)


@pytest.mark.parametrize(
    ("code", "step", "words", "cause"),
    [
        (421, "connect", "", Cause.TRY_LATER),
        (554, "connect", "5.7.1 no service for you", Cause.TURNED_AWAY),
        (521, "connect", "", Cause.TURNED_AWAY),
        (550, "hello", "5.7.1 bad helo", Cause.TURNED_AWAY),
        (502, "hello", "", Cause.TURNED_AWAY),
        (454, "starttls", "", Cause.TRY_LATER),
        (502, "starttls", "", Cause.TLS),
        (454, "login", "", Cause.TRY_LATER),
        (504, "login", "", Cause.CREDENTIALS),
        (535, "login", "5.7.8 bad", Cause.CREDENTIALS),
        (530, "sender", "", Cause.CREDENTIALS),
        (550, "sender", "5.1.8 domain not found", Cause.TURNED_AWAY),
        (450, "recipient", "", Cause.TRY_LATER),
        (452, "recipient", "", Cause.TRY_LATER),
        (550, "recipient", "", Cause.RECIPIENT),
        (550, "recipient", "5.1.1 no such user", Cause.RECIPIENT),
        (550, "recipient", "5.2.1 mailbox disabled", Cause.RECIPIENT),
        (553, "recipient", "", Cause.RECIPIENT),
        # What a server has against the client, told only when it hears for whom the mail is.
        (554, "recipient", "5.7.1 blocked using a list", Cause.TURNED_AWAY),
        (550, "recipient", "5.7.1 relaying denied", Cause.TURNED_AWAY),
        (554, "recipient", "transaction failed", Cause.TURNED_AWAY),
        (552, "recipient", "", Cause.QUOTA),
        (550, "recipient", "5.2.2 mailbox full", Cause.QUOTA),
        (451, "data", "", Cause.TRY_LATER),
        (552, "data", "", Cause.QUOTA),
        (554, "data", "5.7.1 looks like spam", Cause.REFUSED),
        (550, "data", "", Cause.REFUSED),
        (-1, "data", "", Cause.TRY_LATER),
    ],
)
def test_smtp(code: int, step: str, words: str, cause: Cause) -> None:
    assert smtp_cause(code, step, words) is cause


STEPS = st.sampled_from(["connect", "hello", "starttls", "login", "sender", "recipient", "data"])


@given(st.integers(400, 599), STEPS, st.text(max_size=20))
def test_only_a_recipient_or_the_message_itself_is_refused_for_good_by_mail(code: int, step: str, words: str) -> None:
    verdict = VERDICTS[smtp_cause(code, step, words)]
    if code < 500:
        assert verdict is Verdict.FAILED
    elif step not in ("recipient", "data"):
        assert verdict is Verdict.REFUSED_NOW


def test_codes_in_an_answer_of_200() -> None:
    assert provider_code_field("dingtalk") == provider_code_field("wecombot") == "errcode"
    assert provider_code_field("feishu") == provider_code_field("lark") == "code"
    assert provider_code_field("slack") is None
    for scheme in ("dingtalk", "wecombot", "feishu", "lark"):
        assert chat_cause(scheme, 0) is chat_cause(scheme, "0") is chat_cause(scheme, None) is None
        assert chat_cause(scheme, 987654) is Cause.TURNED_AWAY, "one that we do not know may pass"
    assert chat_cause("lark", 11232) is Cause.THROTTLED
    assert chat_cause("wecombot", -1) is Cause.TRY_LATER
    assert chat_cause("dingtalk", 400013) is Cause.RECIPIENT
    assert chat_cause("dingtalk", 310000, "sign not match") is Cause.CREDENTIALS
    assert chat_cause("dingtalk", 310000, "invalid timestamp") is Cause.CLOCK
    assert chat_cause("feishu", 19021, "sign match fail or timestamp is not within one hour") is Cause.CLOCK


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (aliyun_cause("InvalidTimeStamp.Expired"), Cause.CLOCK),
        (aliyun_cause("InvalidTimeStamp.Format"), Cause.CLOCK),
        (aliyun_cause("IllegalTimestamp"), Cause.CLOCK),
        (tencent_cause("AuthFailure.SignatureExpire"), Cause.CLOCK),
        (tencent_cause("InternalError.RequestTimeException"), Cause.CLOCK),
        (aws_cause(400, "RequestExpired"), Cause.CLOCK),
        (aws_cause(403, "RequestTimeTooSkewed"), Cause.CLOCK),
        (aws_cause(403, "SignatureDoesNotMatch", "Signature expired: 20270115T0800Z is now earlier"), Cause.CLOCK),
        (aws_cause(403, "SignatureDoesNotMatch", "Signature not yet current: …"), Cause.CLOCK),
        (aws_cause(403, "SignatureDoesNotMatch", "does not match the signature you provided"), Cause.CREDENTIALS),
    ],
)
def test_a_clock_that_is_off_is_known_as_that(found: Cause | None, cause: Cause) -> None:
    assert found is cause
    assert VERDICTS[Cause.CLOCK] is Verdict.REFUSED_NOW


def test_sms_codes() -> None:
    assert aliyun_cause("OK") is None
    assert aliyun_cause("Throttling.Api") is Cause.THROTTLED
    assert aliyun_cause("isp.ANYTHING") is Cause.TRY_LATER
    assert aliyun_cause("isv.SOMETHING_NEW") is Cause.TURNED_AWAY
    assert aliyun_cause("isv.SMS_TEMPLATE_ILLEGAL") is Cause.TURNED_AWAY, "it may be approved in an hour"
    assert aliyun_cause("isv.MOBILE_NUMBER_ILLEGAL") is Cause.RECIPIENT
    assert tencent_cause("Ok") is None
    assert tencent_cause("LimitExceeded.SomethingNew") is Cause.THROTTLED
    assert tencent_cause("AuthFailure.SecretIdNotFound") is Cause.CREDENTIALS
    assert tencent_cause("FailedOperation.SomethingNew") is Cause.TURNED_AWAY
    assert tencent_cause("InvalidParameterValue.TemplateParameterLengthLimit") is Cause.REFUSED
    assert tencent_cause("InvalidParameterValue.IncorrectPhoneNumber") is Cause.RECIPIENT


@pytest.mark.parametrize(
    ("status", "code", "cause"),
    [
        (200, "", None),
        (400, "Throttling", Cause.THROTTLED),
        (400, "ThrottlingException", Cause.THROTTLED),
        (400, "KMSThrottling", Cause.THROTTLED),
        (400, "ServiceUnavailable", Cause.TRY_LATER),
        (400, "InvalidParameter", Cause.REFUSED),
        (400, "OptedOut", Cause.RECIPIENT),
        (400, "SomethingNew", Cause.TURNED_AWAY),
        (403, "SomethingNew", Cause.CREDENTIALS),
        (404, "NotFound", Cause.NOT_FOUND),
        (503, "", Cause.TRY_LATER),
    ],
)
def test_aws(status: int, code: str, cause: Cause | None) -> None:
    assert aws_cause(status, code) is cause


@pytest.mark.parametrize(
    ("status", "code", "cause"),
    [
        (201, "", None),
        (400, "21211", Cause.RECIPIENT),
        (400, "21610", Cause.RECIPIENT),
        (400, "21617", Cause.REFUSED),
        (400, "21408", Cause.TURNED_AWAY),
        (400, "21606", Cause.TURNED_AWAY),
        (400, "", Cause.REFUSED),
        (429, "21611", Cause.THROTTLED),
        (429, "63038", Cause.QUOTA),
        (404, "20404", Cause.NOT_FOUND),
        (401, "20003", Cause.CREDENTIALS),
        (500, "20500", Cause.TRY_LATER),
    ],
)
def test_twilio(status: int, code: str, cause: Cause | None) -> None:
    assert twilio_cause(status, code) is cause


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
