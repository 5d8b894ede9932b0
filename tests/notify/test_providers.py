"""What each service is sent, and what each of its refusals means: real workers, real TLS, the providers' own hosts."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self
from urllib.parse import quote

import pytest

from sre.actions import facts
from sre.actions.types import Message
from sre.adapters.notifiers.process import AppriseSender
from sre.cli.main import run
from sre.notify.delivery import Cause, DeliveryResult, Verdict
from sre.notify.forms import ChannelKind, Style, render
from sre.notify.links import Links
from sre.notify.samples import HANG
from sre.servers.sinks import SmsSink
from sre.settings.notify import ChannelSettings
from tests.support.providers import Asked, Certificate, Providers, Reply

pytestmark = pytest.mark.integration

SECRETS = (
    "S3cretPassw0rd", "s3cr3tKey", "t0ken0123456789", "ap1key0123456789", "s3cret", "t3ncentS3cret", "SEC0123456789",
)  # fmt: skip
LINKED = Style("en", Links("https://runbooks.example.org", "https://grafana.example.org"))
ACCEPTED = {
    "hooks.slack.com": Reply(body="ok"),
    "api.twilio.com": Reply(201, '{"sid": "SM1", "status": "queued"}'),
    "sns.us-east-1.amazonaws.com": Reply(body="<PublishResponse><MessageId>1</MessageId></PublishResponse>"),
    "oapi.dingtalk.com": Reply(body='{"errcode": 0, "errmsg": "ok"}'),
    "open.feishu.cn": Reply(body='{"code": 0, "msg": "success"}'),
    "qyapi.weixin.qq.com": Reply(body='{"errcode": 0, "errmsg": "ok"}'),
    "dysmsapi.aliyuncs.com": Reply(body='{"Code": "OK", "Message": "OK", "BizId": "1"}'),
    "sms.tencentcloudapi.com": Reply(body='{"Response": {"SendStatusSet": [{"Code": "Ok"}], "RequestId": "1"}}'),
    "events.pagerduty.com": Reply(202, '{"status": "success", "dedup_key": "x"}'),
    "hooks.example.org": Reply(),
}
REFUSALS: dict[str, Reply] = {}
"""A mark somewhere in the request → how it is answered instead."""


def answer(asked: Asked) -> Reply:
    text = f"{asked.target} {asked.body.decode('utf-8', 'replace')}"
    return next((reply for mark, reply in REFUSALS.items() if mark in text), ACCEPTED[asked.host])


@pytest.fixture(scope="module")
def providers(certificate: Certificate) -> Iterator[Providers]:
    with Providers(certificate, answer) as started:
        yield started


class Sender:
    """A sender that takes the URL itself."""

    def __init__(self, **environ: str) -> None:
        self._environ = {**os.environ, **environ}
        self._sender = AppriseSender(self._environ)
        self._busy = asyncio.Semaphore(8)

    async def __aenter__(self) -> Self:
        await self._sender.__aenter__()
        return self

    async def __aexit__(self, *what: object) -> None:
        await self._sender.__aexit__(*what)

    def _channel(self, url: str, kind: ChannelKind, timeout: float) -> ChannelSettings:
        name = f"URL_{len(self._environ)}"
        self._environ[name] = url
        return ChannelSettings(name="x", kind=kind, url=f"env:{name}", timeout_seconds=timeout)

    async def __call__(
        self, url: str, kind: ChannelKind, message: Message = HANG, *, timeout: float = 40.0
    ) -> DeliveryResult:
        async with self._busy:
            return await self._sender(self._channel(url, kind, timeout), render(message, kind, None, LINKED))

    async def check(self, url: str, kind: ChannelKind) -> tuple[str, list[str]]:
        async with self._busy:
            found = await self._sender.check(self._channel(url, kind, 60.0))
        return found.shown, list(found.problems)


def hmac256(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


# ---- what is sent ---------------------------------------------------------------------------------------------------

SLACK = "slack://T1H9RESGL/B1H9RESGL/QfFTWrXGWYsGwLPNAAAAAAAA"
DINGTALK = "dingtalk://SEC0123456789abcdef@d1ng0token"
FEISHU = "feishu://f31shu-token-0001"
WECOM = "wecombot://w3c0m-key-0001"
WEBHOOK = "jsons://hooks.example.org/in?+X-Token=abc"
TWILIO = "twilio://AC0123456789abcdef0123456789abcdef:t0ken0123456789@15551230000/15551234567"
SNS = "sns://AKIAEXAMPLE0/s3cr3tKey/us-east-1/+15551234567"
PAGERDUTY = "pagerduty://r0utingkey0123456789@ap1key0123456789/host/component"
ALIYUN = "alisms://LTAIexample:ali%2Fs3cret@SMS_123456/13800138000?sign=%E6%B5%8B%E8%AF%95"
TENCENT = "tencentsms://AKIDexample:t3ncentS3cret@1400006666/1110/+8613800138000?sign=%E6%B5%8B%E8%AF%95"


async def test_each_service_is_asked_as_its_interface_wants(providers: Providers) -> None:
    channels: list[tuple[str, ChannelKind]] = [
        (SLACK, "chat"), (DINGTALK, "chat"), (FEISHU, "chat"), (WECOM, "chat"), (WEBHOOK, "webhook"), (TWILIO, "sms"),
        (SNS, "sms"), (PAGERDUTY, "pagerduty"), (ALIYUN, "sms"), (TENCENT, "sms"),
    ]  # fmt: skip
    async with Sender(**providers.environ) as send:
        results = await asyncio.gather(*(send(url, kind) for url, kind in channels))
    assert results == [DeliveryResult(Verdict.DELIVERED)] * len(channels)
    chat = render(HANG, "chat", None, LINKED)
    one_line = render(HANG, "sms").body
    check_chats(providers, f"{chat.title}\n{chat.body}")
    check_twilio(*providers.asked("api.twilio.com"), text=one_line)
    check_sns(*providers.asked("sns.us-east-1.amazonaws.com"), text=one_line)
    check_pagerduty(*providers.asked("events.pagerduty.com"))
    check_aliyun(*providers.asked("dysmsapi.aliyuncs.com"))
    check_tencent(*providers.asked("sms.tencentcloudapi.com"))
    (hook,) = providers.asked("hooks.example.org")
    assert json.loads(str(hook.json["message"]))["incident_id"] == HANG.incident_id
    assert hook.headers["x-token"] == "abc"


def check_chats(providers: Providers, text: str) -> None:
    (slack,) = providers.asked("hooks.slack.com")
    assert slack.path == "/services/T1H9RESGL/B1H9RESGL/QfFTWrXGWYsGwLPNAAAAAAAA"
    assert HANG.incident_id in str(slack.json)
    assert "restart" not in str(slack.json)
    (feishu,) = providers.asked("open.feishu.cn")
    assert feishu.path.rstrip("/") == "/open-apis/bot/v2/hook/f31shu-token-0001"
    assert feishu.json["msg_type"] == "text"
    assert str(feishu.json["content"]["text"]).replace("\r", "") == text  # type: ignore[index]
    (wecom,) = providers.asked("qyapi.weixin.qq.com")
    assert wecom.query == {"key": "w3c0m-key-0001"}
    content = wecom.json["text"]["content"]  # type: ignore[index]
    assert content.replace("\r", "") == text
    assert len(content.encode()) <= 2048
    (ding,) = providers.asked("oapi.dingtalk.com")
    assert ding.query["access_token"] == "d1ng0token"
    secret = "SEC0123456789abcdef"
    expected = base64.b64encode(hmac256(secret.encode(), f"{ding.query['timestamp']}\n{secret}")).decode()
    assert ding.query["sign"] == expected, "signed, and encoded once"


def check_twilio(asked: Asked, text: str) -> None:
    assert asked.path == "/2010-04-01/Accounts/AC0123456789abcdef0123456789abcdef/Messages.json"
    assert asked.form == {"From": "+15551230000", "To": "+15551234567", "Body": text}
    user = base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")).decode()
    assert user == "AC0123456789abcdef0123456789abcdef:t0ken0123456789"


def check_sns(asked: Asked, text: str) -> None:
    assert asked.form["Message"] == text
    assert asked.form["PhoneNumber"] == "+15551234567"
    head = asked.headers
    date = head["x-amz-date"]
    scope = f"{date[:8]}/us-east-1/sns/aws4_request"
    canonical = "\n".join(
        (
            "POST", "/", "", f"content-type:{head['content-type']}", f"host:{asked.host}", f"x-amz-date:{date}", "",
            "content-type;host;x-amz-date", hashlib.sha256(asked.body).hexdigest(),
        )
    )  # fmt: skip
    key = b"AWS4s3cr3tKey"
    for part in (date[:8], "us-east-1", "sns", "aws4_request"):
        key = hmac256(key, part)
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    expected = hmac256(key, f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashed}").hex()
    assert head["authorization"].endswith(f"Signature={expected}")


def check_pagerduty(asked: Asked) -> None:
    event = asked.json
    assert asked.path == "/v2/enqueue"
    assert event["routing_key"] == "r0utingkey0123456789"
    assert event["event_action"] == "trigger"
    assert event["dedup_key"] == HANG.incident_id
    payload = event["payload"]
    assert isinstance(payload, dict)
    assert payload["summary"].startswith("[page] OPEN engine vllm-0 (pool qwen-7b): hang; ")
    assert payload["severity"] == "critical"
    assert payload["source"] == "engine vllm-0 (pool qwen-7b)"
    assert payload["class"] == "hang"
    assert payload["custom_details"]["next"] == "sre breaker explain vllm-0"
    assert event["links"] == [
        {"href": "https://runbooks.example.org/VllmEngineHung.md#vllmenginehung", "text": "Runbook"},
        {"href": "https://grafana.example.org/d/sre-breaker", "text": "Dashboard"},
    ]


PIECES = {"severity": "page", "scope": "engine vllm-0 (pool qwen-7b)", "rule": "hang", "id": HANG.incident_id}


def check_aliyun(asked: Asked) -> None:
    query = asked.query
    assert query["PhoneNumbers"] == "13800138000"
    assert query["SignName"] == "测试"
    assert query["TemplateCode"] == "SMS_123456"
    assert json.loads(query["TemplateParam"]) == PIECES
    head = asked.headers
    assert head["x-acs-action"] == "SendSms"
    assert head["x-acs-version"] == "2017-05-25"
    assert head["x-acs-content-sha256"] == hashlib.sha256(asked.body).hexdigest()
    names = sorted(name for name in head if name == "host" or name.startswith("x-acs-"))
    raw = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
    lines = [f"{name}:{head[name]}" for name in names]
    canonical = "\n".join((asked.method, "/", raw, *lines, "", ";".join(names), hashlib.sha256(asked.body).hexdigest()))
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    expected = hmac256(b"ali/s3cret", f"ACS3-HMAC-SHA256\n{hashed}").hex()
    assert head["authorization"] == (
        f"ACS3-HMAC-SHA256 Credential=LTAIexample,SignedHeaders={';'.join(names)},Signature={expected}"
    )


def check_tencent(asked: Asked) -> None:
    assert asked.json == {
        "PhoneNumberSet": ["+8613800138000"],
        "SmsSdkAppId": "1400006666",
        "TemplateId": "1110",
        "SignName": "测试",
        "TemplateParamSet": list(PIECES.values()),
        "SessionContext": HANG.incident_id,
    }
    head = asked.headers
    assert (head["x-tc-action"], head["x-tc-version"], head["x-tc-region"]) == ("SendSms", "2021-01-11", "ap-guangzhou")
    day = datetime.datetime.fromtimestamp(int(head["x-tc-timestamp"]), datetime.UTC).date().isoformat()
    canonical = "\n".join(
        (
            "POST", "/", "", f"content-type:{head['content-type']}", "host:sms.tencentcloudapi.com", "",
            "content-type;host", hashlib.sha256(asked.body).hexdigest(),
        )
    )  # fmt: skip
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    key = hmac256(hmac256(hmac256(b"TC3t3ncentS3cret", day), "sms"), "tc3_request")
    to_sign = f"TC3-HMAC-SHA256\n{head['x-tc-timestamp']}\n{day}/sms/tc3_request\n{hashed}"
    expected = hmac256(key, to_sign).hex()
    assert head["authorization"].endswith(
        f"/{day}/sms/tc3_request, SignedHeaders=content-type;host, Signature={expected}"
    )


async def test_an_incident_is_one_incident_at_pagerduty_from_beginning_to_end(providers: Providers) -> None:
    message = replace(HANG, incident_id="inc-20270115-080000-0777")
    async with Sender(**providers.environ) as send:
        for event in ("open", "open", "escalate", "acknowledge", "resolve"):
            result = await send(PAGERDUTY, "pagerduty", replace(message, event=event))
            assert result.verdict is Verdict.DELIVERED
    events = [one.json for one in providers.asked("events.pagerduty.com") if message.incident_id in str(one.body)]
    assert [event["event_action"] for event in events] == ["trigger", "trigger", "trigger", "acknowledge", "resolve"]
    assert {event["dedup_key"] for event in events} == {message.incident_id}
    assert "payload" not in events[-1]


def test_a_test_at_pagerduty_leaves_no_incident_behind(
    providers: Providers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**providers.environ, "PAGER": PAGERDUTY}.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "sre.yaml"
    config.write_text("notify: {channels: [{name: pager, kind: pagerduty, url: 'env:PAGER'}]}\n")
    assert run(["--config", str(config), "notify", "test"]) == 0
    assert capsys.readouterr().out.startswith("pager            delivered in ")
    events = [one.json for one in providers.asked("events.pagerduty.com")][-2:]
    assert [event["event_action"] for event in events] == ["trigger", "resolve"]
    assert events[0]["dedup_key"] == events[1]["dedup_key"]


async def test_parameters_are_renamed_chosen_and_cut(providers: Providers) -> None:
    loud = replace(HANG, incident_id="inc-9", scope="节点【x】" + "y" * 80, facts=((facts.VALUE, ""),))
    options = "&params=level:severity,host:scope,value,id&max=20&endpoint=dysmsapi.aliyuncs.com:443"
    async with Sender(**providers.environ) as send:
        result = await send(ALIYUN + options, "sms", loud)
    assert result.verdict is Verdict.DELIVERED
    asked = providers.asked("dysmsapi.aliyuncs.com")[-1]
    assert json.loads(asked.query["TemplateParam"]) == {
        "level": "page", "host": "节点(x)yyyyyyyyyyyyyy…", "value": "-", "id": "inc-9",
    }  # fmt: skip


# ---- what a refusal means -------------------------------------------------------------------------------------------

HTTP = {
    "302": Cause.TURNED_AWAY, "400": Cause.REFUSED, "401": Cause.CREDENTIALS, "404": Cause.NOT_FOUND,
    "429": Cause.THROTTLED, "503": Cause.TRY_LATER,
}  # fmt: skip
"""Status → what it means, of any service that has nothing else to say; all of them are in test_outcomes.py."""
IN_A_200 = {
    DINGTALK: ("d1ng0", "errcode", {"310000": Cause.CREDENTIALS, "130101": Cause.THROTTLED, "-1": Cause.TRY_LATER,
                                    "400105": Cause.REFUSED, "400102": Cause.TURNED_AWAY}),
    WECOM: ("w3c0m", "errcode", {"45009": Cause.THROTTLED, "93000": Cause.CREDENTIALS, "45002": Cause.REFUSED}),
    FEISHU: ("f31shu", "code", {"11232": Cause.THROTTLED, "19021": Cause.CREDENTIALS, "19024": Cause.TURNED_AWAY}),
}  # fmt: skip
"""Chat services answer 200 to what they refuse."""
ALIYUN_CODES = {
    "isv.BUSINESS_LIMIT_CONTROL": Cause.THROTTLED, "Throttling.User": Cause.THROTTLED,
    "isv.MOBILE_NUMBER_ILLEGAL": Cause.RECIPIENT, "isv.AMOUNT_NOT_ENOUGH": Cause.QUOTA,
    "isv.SMS_TEMPLATE_ILLEGAL": Cause.TURNED_AWAY, "isp.SYSTEM_ERROR": Cause.TRY_LATER,
    "InvalidAccessKeyId.NotFound": Cause.CREDENTIALS, "InvalidTimeStamp.Expired": Cause.CLOCK,
}  # fmt: skip
TENCENT_CODES = {
    "LimitExceeded.PhoneNumberThirtySecondLimit": Cause.THROTTLED, "LimitExceeded.PhoneNumberDailyLimit": Cause.QUOTA,
    "InvalidParameterValue.IncorrectPhoneNumber": Cause.RECIPIENT, "InternalError.Timeout": Cause.TRY_LATER,
    "FailedOperation.InsufficientBalanceInSmsPackage": Cause.QUOTA,
    "FailedOperation.TemplateIncorrectOrUnapproved": Cause.TURNED_AWAY,
}  # fmt: skip

Case = tuple[str, ChannelKind, str, Reply, Cause]
"""Channel, its kind, a mark in its request, the answer, what it means."""


def cases() -> Iterator[Case]:
    wait = {"Retry-After": "17"}
    for status, cause in HTTP.items():
        headers = wait if status in ("429", "503") else {"Location": "/in"} if status == "302" else {}
        yield WEBHOOK.replace("/in", f"/m{status}"), "webhook", f"/m{status}", Reply(int(status), "no", headers), cause
        if status in ("404", "429"):
            yield SLACK.replace("QfFTWrX", f"slack{status}"), "chat", f"slack{status}", Reply(int(status)), cause
            yield PAGERDUTY.replace("r0u", f"pd{status}"), "pagerduty", f"pd{status}", Reply(int(status)), cause
    yield WEBHOOK.replace("/in", "/cut"), "webhook", "/cut", Reply(cut=True), Cause.OUTCOME_UNKNOWN
    for url, (token, name, codes) in IN_A_200.items():
        for code, cause in codes.items():
            mark = f"{token}{code.replace('-', 'x')}"
            yield url.replace(token, mark), "chat", mark, Reply(200, f'{{"{name}": {code}, "msg": "no"}}'), cause
    phone = 15551230000
    for status, code, cause in (
        (400, 21211, Cause.RECIPIENT), (400, 21606, Cause.TURNED_AWAY),
        (401, 20003, Cause.CREDENTIALS), (429, 20429, Cause.THROTTLED),
        (500, 20500, Cause.TRY_LATER),
    ):  # fmt: skip
        phone += 1
        reply = Reply(status, f'{{"code": {code}, "message": "no"}}')
        yield TWILIO.replace("15551234567", str(phone)), "sms", str(phone), reply, cause
    for status, word, cause in (
        (400, "Throttling", Cause.THROTTLED), (403, "SignatureDoesNotMatch", Cause.CREDENTIALS),
        (400, "InvalidParameter", Cause.REFUSED), (400, "RequestExpired", Cause.CLOCK),
        (500, "InternalFailure", Cause.TRY_LATER),
    ):  # fmt: skip
        phone += 1
        yield SNS.replace("15551234567", str(phone)), "sms", str(phone), Reply(status, f"<Code>{word}</Code>"), cause
    phone = 13800138001
    for word, cause in ALIYUN_CODES.items():
        phone += 1
        reply = Reply(400 if word[0].isupper() else 200, json.dumps({"Code": word, "Message": "no"}), wait)
        yield ALIYUN.replace("13800138000", str(phone)), "sms", str(phone), reply, cause
    yield ALIYUN.replace("13800138000", "13800139000"), "sms", "13800139000", Reply(503, "<html>"), Cause.TRY_LATER
    for word, cause in TENCENT_CODES.items():
        phone += 1
        reply = Reply(200, json.dumps({"Response": {"SendStatusSet": [{"Code": word, "Message": "no"}]}}))
        yield TENCENT.replace("13800138000", str(phone)), "sms", str(phone), reply, cause
    for body, cause in (
        ('{"Response": {"Error": {"Code": "AuthFailure.SignatureFailure", "Message": "no"}}}', Cause.CREDENTIALS),
        ("[]", Cause.OUTCOME_UNKNOWN),
    ):
        phone += 1
        yield TENCENT.replace("13800138000", str(phone)), "sms", str(phone), Reply(200, body), cause


async def test_each_refusal_has_its_class_and_is_asked_once(providers: Providers) -> None:
    every = list(cases())
    REFUSALS.update({mark: reply for _, _, mark, reply, _ in every})
    assert len(REFUSALS) >= len(every), "each case has its own mark"
    before = len(providers.asked())
    async with Sender(**providers.environ) as send:
        results = await asyncio.gather(*(send(url, kind) for url, kind, *_ in every))
    for (url, _, mark, reply, cause), result in zip(every, results, strict=True):
        assert result.cause is cause, f"{mark} {reply}: {result}"
        assert result.retry_after_seconds == (17.0 if reply.headers.get("Retry-After") else None), result
        assert result.detail
        assert not any(secret in result.detail for secret in SECRETS), url
    assert len(providers.asked()) - before == len(every), "the outbox repeats, nobody else"


async def test_silence_and_dripping_end_at_the_deadline_and_may_have_arrived(providers: Providers) -> None:
    REFUSALS["/silent"] = Reply(silent=True)
    REFUSALS["/drip"] = Reply(drip_seconds=0.2)
    urls = [WEBHOOK.replace("/in", path) for path in ("/silent", "/drip")]
    async with Sender(**providers.environ) as send:
        results = await asyncio.gather(*(send(url, "webhook", timeout=2) for url in urls))
    assert [result.verdict for result in results] == [Verdict.UNKNOWN] * 2


async def test_what_never_left_this_machine_is_known_not_to_have_arrived(
    providers: Providers, certificate_of_another: Certificate
) -> None:
    with Providers(certificate_of_another, answer) as stranger, SmsSink() as plain:
        trusted = stranger.environ
        untrusted = {**stranger.environ, "REQUESTS_CA_BUNDLE": providers.environ["REQUESTS_CA_BUNDLE"]}
        async with Sender(**trusted) as trusting, Sender(**untrusted) as other, Sender(HTTPS_PROXY="") as direct:
            mismatch, unknown_issuer, no_such_host, refused, no_tls = await asyncio.gather(
                trusting(WEBHOOK, "webhook"),
                other(WEBHOOK, "webhook"),
                direct("json://nowhere.invalid/x", "webhook"),
                direct("json://127.0.0.1:9/x", "webhook"),
                direct(f"jsons://127.0.0.1:{plain.port}/x", "webhook"),
            )
        assert stranger.asked() == []
    assert (mismatch.cause, mismatch.verdict) == (Cause.TLS, Verdict.REFUSED_NOW)
    assert "doesn't match" in mismatch.detail or "not valid for" in mismatch.detail
    assert unknown_issuer.cause is Cause.TLS
    assert (no_such_host.cause, no_such_host.verdict) == (Cause.NO_ADDRESS, Verdict.FAILED)
    assert (refused.cause, refused.verdict) == (Cause.UNREACHABLE, Verdict.FAILED)
    assert (no_tls.cause, no_tls.verdict) == (Cause.TLS, Verdict.REFUSED_NOW)


# ---- what is refused before anything is sent ------------------------------------------------------------------------

BAD_URLS: list[tuple[str, ChannelKind, str]] = [
    (TWILIO.replace("15551234567", "12"), "sms", "invalid phone"),
    (TWILIO.partition("/15551234567")[0], "sms", "names no recipient"),
    (SNS.replace("+15551234567", "12"), "sms", "12 is no phone number"),
    (TWILIO + "/15551234568", "sms", "2 recipients"),
    (ALIYUN.replace("13800138000", "+86x"), "sms", "no phone number"),
    (ALIYUN.replace("13800138000", "5551234567"), "sms", "no country code"),
    (ALIYUN.replace("13800138000", ""), "sms", "names no recipient"),
    (ALIYUN.replace("13800138000", "13800138000/13800138001"), "sms", "2 recipients"),
    (ALIYUN.partition("?")[0], "sms", "names no signature"),
    (ALIYUN + "&params=severity,sumary", "sms", "params= holds 'sumary'; known: at, event"),
    (ALIYUN + "&max=0", "sms", "max= is no number"),
    (ALIYUN + "&endpoint=http://x/y", "sms", "endpoint= is not HOST"),
    ("alisms://SMS_123456/13800138000", "sms", "names no key and secret"),
    (TENCENT.replace("/1110", ""), "sms", "names no recipient"),
    (PAGERDUTY + "?endpoint=a/b", "pagerduty", "endpoint= is not HOST"),
    ("pagerduty://onlyone", "pagerduty", "nvalid"),
    (DINGTALK + "/123", "chat", "invalid phone"),
    ("feishu://", "chat", ""),
    ("mailto://u:S3cretPassw0rd@mail.example.org?to=a@example.org&mode=insecure", "email", "be sent in clear"),
    ("mailtos://u:p@mail.example.org?to=a@example.org&cc=b@example.org", "email", "2 recipients"),
    ("smoke://signal", "chat", "no service smoke://"),
    (SLACK, "email", "write kind: chat"),
]  # fmt: skip
GOOD_URLS: list[tuple[str, ChannelKind]] = [
    (SLACK, "chat"), (DINGTALK, "chat"), (FEISHU, "chat"), (WECOM, "chat"), (WEBHOOK, "webhook"), (TWILIO, "sms"),
    (SNS, "sms"), (PAGERDUTY, "pagerduty"), (ALIYUN, "sms"), (TENCENT, "sms"), ("lark://abc-def-0123", "chat"),
    ("mailtos://u:S3cretPassw0rd@mail.example.org?to=a@example.org", "email"), ("ntfys://topic-of-mine", "chat"),
    ("https://hooks.slack.com/services/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", "chat"),
]  # fmt: skip
SECRETS = (
    "S3cretPassw0rd",
    "s3cr3tKey",
    "t0ken0123456789",
    "ap1key0123456789",
    "s3cret",
    "t3ncentS3cret",
    "SEC0123456789",
)


async def test_check_knows_every_service_and_refuses_what_would_fail() -> None:
    async with Sender() as sender:
        bad = await asyncio.gather(*(sender.check(url, kind) for url, kind, _ in BAD_URLS))
        good = await asyncio.gather(*(sender.check(url, kind) for url, kind in GOOD_URLS))
    for (url, _, wanted), (_, problems) in zip(BAD_URLS, bad, strict=True):
        assert problems, url
        assert any(wanted in problem for problem in problems), (url, problems)
    for (url, _), (shown, problems) in zip(GOOD_URLS, good, strict=True):
        assert problems == [], url
        assert shown
    for shown, problems in (*bad, *good):
        assert not any(secret in shown + str(problems) for secret in SECRETS), shown
