"""
How a try of a delivery can end, what providers' answers mean, and what a person can do about it.

Imported by the delivery worker, which starts for each message: nothing here may import settings.
"""

from __future__ import annotations

import email.utils
import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Verdict(enum.Enum):
    """How a try ended. The value is the metric's label."""

    DELIVERED = "delivered"  # the provider accepted it
    FAILED = "failed"  # it did not, and may the next time
    REJECTED = "rejected"  # it did not, and will not until a person changes something: repeating cannot help
    UNKNOWN = "unknown"  # cut off before the answer: it may have arrived; the repetition carries the same incident id
    IMPOSSIBLE = "impossible"  # never asked: the URL is none, or the message is too old


class Cause(enum.Enum):
    """Why a try did not deliver."""

    NO_SECRET = "no_secret"
    BAD_URL = "bad_url"
    NO_ADDRESS = "no_address"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    CREDENTIALS = "credentials"
    RECIPIENT = "recipient"
    REFUSED = "refused"
    QUOTA = "quota"
    THROTTLED = "throttled"
    TRY_LATER = "try_later"
    OUTCOME_UNKNOWN = "outcome_unknown"
    LOCAL = "local"


VERDICTS: Mapping[Cause, Verdict] = {
    # It may be put right while the guard runs: a file written, a variable in the next start.
    Cause.NO_SECRET: Verdict.FAILED,
    Cause.BAD_URL: Verdict.IMPOSSIBLE,
    # "No such host" is also what a resolver says that has lost its own upstream.
    Cause.NO_ADDRESS: Verdict.FAILED,
    Cause.UNREACHABLE: Verdict.FAILED,
    # A certificate of another name, of an unknown issuer or out of date, or no TLS at all: minutes change nothing.
    Cause.TLS: Verdict.REJECTED,
    # The same password is refused again, and a provider that counts attempts locks the account.
    Cause.CREDENTIALS: Verdict.REJECTED,
    Cause.RECIPIENT: Verdict.REJECTED,
    Cause.REFUSED: Verdict.REJECTED,
    Cause.QUOTA: Verdict.REJECTED,
    Cause.THROTTLED: Verdict.FAILED,
    Cause.TRY_LATER: Verdict.FAILED,
    Cause.OUTCOME_UNKNOWN: Verdict.UNKNOWN,
    Cause.LOCAL: Verdict.FAILED,
}

REMEDIES: Mapping[Cause, str] = {
    Cause.NO_SECRET: "set the variable or write the file that the channel's url names",
    Cause.BAD_URL: "correct the channel's URL; sre notify check says what is wrong with it",
    Cause.NO_ADDRESS: "check the host in the channel's URL, and this machine's name resolution",
    Cause.UNREACHABLE: "check host and port in the channel's URL, firewall and proxy; is the server up?",
    Cause.TLS: "use the host name that is in the server's certificate, its port for this kind of TLS, and a certificate"
    " that this machine trusts and that is not out of date",
    Cause.CREDENTIALS: "renew user, password or token behind the channel's url; then sre notify outbox retry",
    Cause.RECIPIENT: "correct the recipient in the channel's URL; the provider does not know it or may not reach it",
    Cause.REFUSED: "read the provider's words; the same message will be refused again",
    Cause.QUOTA: "the account is out of credit or over its limit for the day; top it up or raise the limit",
    Cause.THROTTLED: "too many messages for this provider; it is repeated when the provider allows it",
    Cause.TRY_LATER: "the provider has trouble of its own; it is repeated",
    Cause.OUTCOME_UNKNOWN: "look whether it arrived; raise the channel's timeout_seconds if the provider is slow",
    Cause.LOCAL: "the delivery process failed on this machine; look at memory, and at what it said",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    Why a try did not deliver. ``detail`` is in the provider's words; it may hold secrets until it is redacted.

    ``retry_after_seconds``: what the provider asks to wait; None where it asks nothing.
    """

    cause: Cause
    detail: str = ""
    retry_after_seconds: float | None = None

    @property
    def verdict(self) -> Verdict:
        return VERDICTS[self.cause]


LONGEST_RETRY_AFTER_SECONDS = 3600.0
"""A provider that asks for more is asked again after this: it may have meant another unit."""


def retry_after(value: str | None, now_wall: float) -> float | None:
    """
    Return what a Retry-After header asks for, in seconds from ``now_wall``, within 0..LONGEST_RETRY_AFTER_SECONDS.

    None for no header and for one that is neither seconds nor a date.
    """
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text) if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit() else None
        if seconds is None:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - now_wall
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_SECONDS)


def http_cause(status: int) -> Cause | None:
    """Return what an HTTP status means for a delivery; None for success (2xx)."""
    if 200 <= status < 300:
        return None
    if status in (401, 403, 407):
        return Cause.CREDENTIALS
    if status in (404, 410):
        return Cause.RECIPIENT  # of a webhook the URL is the recipient
    if status == 402:
        return Cause.QUOTA
    if status == 429:
        return Cause.THROTTLED
    if status in (408, 425) or status >= 500:
        return Cause.TRY_LATER
    return Cause.REFUSED  # 4xx: our request; 3xx: not followed, a POST would become a GET and be lost


def smtp_cause(code: int, step: str) -> Cause:
    """
    Return what the refusal ``code`` means at ``step`` of an SMTP session.

    Args:
        code: 400..599; anything else is taken for a refusal of the server's that may pass.
        step: connect | starttls | login | sender | recipient | data.
    """
    if code in (530, 534, 535, 538) or (step == "login" and 500 <= code < 600):
        return Cause.CREDENTIALS
    if not 500 <= code < 600:
        return Cause.TRY_LATER  # 421, 450, 451, 452, 454: busy, grey-listed, out of space
    if step == "starttls":
        return Cause.TLS
    if step == "recipient":
        return Cause.RECIPIENT
    return Cause.REFUSED


_PROVIDER_CODES: Mapping[str, tuple[str, Mapping[str, Cause]]] = {
    # These answer 200 to what they refuse: the field that holds the code, and the codes that are no plain refusal.
    "dingtalk": ("errcode", {
        "-1": Cause.TRY_LATER, "130101": Cause.THROTTLED, "410100": Cause.THROTTLED, "90018": Cause.THROTTLED,
        "90030": Cause.QUOTA, "300001": Cause.CREDENTIALS, "310000": Cause.CREDENTIALS, "40014": Cause.CREDENTIALS,
        "400013": Cause.RECIPIENT, "400014": Cause.CREDENTIALS,
    }),
    "wecombot": ("errcode", {
        "-1": Cause.TRY_LATER, "45009": Cause.THROTTLED, "45033": Cause.THROTTLED, "93000": Cause.CREDENTIALS,
        "40001": Cause.CREDENTIALS, "93004": Cause.RECIPIENT, "93008": Cause.RECIPIENT,
    }),
    "feishu": ("code", {
        "11232": Cause.THROTTLED, "9499": Cause.TRY_LATER, "19001": Cause.CREDENTIALS, "19021": Cause.CREDENTIALS,
        "19022": Cause.CREDENTIALS, "19007": Cause.RECIPIENT, "99991400": Cause.THROTTLED,
    }),
}  # fmt: skip
_SAME_API = {"lark": "feishu"}

_ALIYUN: Mapping[str, Cause] = {
    # One number takes one message a minute, five an hour: it passes.
    "isv.BUSINESS_LIMIT_CONTROL": Cause.THROTTLED, "isv.DAY_LIMIT_CONTROL": Cause.QUOTA,
    "isv.MONTH_LIMIT_CONTROL": Cause.QUOTA, "isv.AMOUNT_NOT_ENOUGH": Cause.QUOTA, "isv.OUT_OF_SERVICE": Cause.QUOTA,
    "isv.MOBILE_NUMBER_ILLEGAL": Cause.RECIPIENT, "isv.MOBILE_COUNT_OVER_LIMIT": Cause.RECIPIENT,
    "isv.ACCOUNT_NOT_EXISTS": Cause.CREDENTIALS, "isv.ACCOUNT_ABNORMAL": Cause.CREDENTIALS,
    "isp.RAM_PERMISSION_DENY": Cause.CREDENTIALS, "InvalidAccessKeyId.NotFound": Cause.CREDENTIALS,
    "InvalidAccessKeyId.Inactive": Cause.CREDENTIALS, "SignatureDoesNotMatch": Cause.CREDENTIALS,
    "IncompleteSignature": Cause.CREDENTIALS, "InvalidSecurityToken.Expired": Cause.CREDENTIALS,
    "InvalidTimeStamp.Expired": Cause.CREDENTIALS, "NoPermission": Cause.CREDENTIALS,
    "Forbidden.RAM": Cause.CREDENTIALS,
    "isp.SYSTEM_ERROR": Cause.TRY_LATER, "isp.GATEWAY_ERROR": Cause.TRY_LATER, "ServiceUnavailable": Cause.TRY_LATER,
    "InternalError": Cause.TRY_LATER, "SignatureNonceUsed": Cause.TRY_LATER,
}  # fmt: skip

_TENCENT: Mapping[str, Cause] = {
    "LimitExceeded.PhoneNumberDailyLimit": Cause.QUOTA, "LimitExceeded.PhoneNumberSameContentDailyLimit": Cause.QUOTA,
    "LimitExceeded.DailyLimit": Cause.QUOTA, "LimitExceeded.AppDailyLimit": Cause.QUOTA,
    "FailedOperation.InsufficientBalanceInSmsPackage": Cause.QUOTA,
    "FailedOperation.PhoneNumberInBlacklist": Cause.RECIPIENT,
    "InvalidParameterValue.IncorrectPhoneNumber": Cause.RECIPIENT,
    "UnsupportedOperation.ContainDomesticAndInternationalPhoneNumber": Cause.RECIPIENT,
    "InvalidParameterValue.SdkAppIdNotExist": Cause.CREDENTIALS,
    "FailedOperation.FailResolvePacket": Cause.TRY_LATER, "FailedOperation.OtherError": Cause.TRY_LATER,
}  # fmt: skip

_AWS: Mapping[str, Cause] = {
    "Throttling": Cause.THROTTLED, "ThrottlingException": Cause.THROTTLED, "ThrottledException": Cause.THROTTLED,
    "Throttled": Cause.THROTTLED, "RequestLimitExceeded": Cause.THROTTLED, "ExpiredToken": Cause.CREDENTIALS,
    "OptedOut": Cause.RECIPIENT, "OptedOutException": Cause.RECIPIENT,
}  # fmt: skip


def provider_code_field(scheme: str) -> str | None:
    """Return the field of the JSON answer that says in a 200 whether it was accepted; None where the status says it."""
    found = _PROVIDER_CODES.get(_SAME_API.get(scheme, scheme))
    return None if found is None else found[0]


def chat_cause(scheme: str, code: object) -> Cause | None:
    """Return what the code in the answer of a chat service means; None for accepted, or no code at all."""
    if code is None or str(code) == "0":
        return None
    found = _PROVIDER_CODES.get(_SAME_API.get(scheme, scheme))
    return Cause.REFUSED if found is None else found[1].get(str(code), Cause.REFUSED)


def aliyun_cause(code: str) -> Cause | None:
    """Return what ``Code`` in an answer of Aliyun means; None for OK."""
    if code == "OK":
        return None
    if code.startswith("Throttling"):
        return Cause.THROTTLED
    return _ALIYUN.get(code, Cause.REFUSED)


def tencent_cause(code: str) -> Cause | None:
    """Return what a code of Tencent Cloud's SMS means, of the call or of one number; None for Ok."""
    if code == "Ok":
        return None
    if code in _TENCENT:
        return _TENCENT[code]
    family = code.partition(".")[0]
    return {
        "AuthFailure": Cause.CREDENTIALS,
        "UnauthorizedOperation": Cause.CREDENTIALS,
        "RequestLimitExceeded": Cause.THROTTLED,
        "LimitExceeded": Cause.THROTTLED,
        "InternalError": Cause.TRY_LATER,
        "ServiceUnavailable": Cause.TRY_LATER,
    }.get(family, Cause.REFUSED)


def aws_cause(code: str) -> Cause | None:
    """Return what an error code of AWS means where the HTTP status does not say it; None where it does."""
    return _AWS.get(code)
