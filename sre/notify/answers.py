"""
What providers' answers mean: HTTP statuses, SMTP replies and the codes of each service, as causes.

Every table here answers one question per code: is it about this very message or recipient, so that the same message can
never arrive (REFUSED, RECIPIENT)? Everything else may pass, and a code that is in no table is taken for one that may:
the fallback is told at once all the same, and a repetition too many costs nothing, a page that is dead too early does.

Imported by the delivery worker, which starts for each message: nothing here may import settings.
"""

from __future__ import annotations

import email.utils
import re
from collections.abc import Mapping

from sre.notify.outcomes import Cause

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


# ---- HTTP

_ABOUT_THE_REQUEST = frozenset({400, 411, 413, 414, 415, 422, 431})
"""Malformed, too large, of a wrong type: whoever reads it says so again."""


def http_cause(status: int) -> Cause | None:
    """
    Return what an HTTP status means for a delivery; None for success (2xx).

    - 401, 403, 407: a token is renewed; a gateway that is being changed says 403 of what it does not know yet.
    - 404: of a webhook the URL is the recipient, but a front without anything behind it says that too.
    - 410: "gone, and for good" is what it means; nothing says it by mistake.
    - 3xx is not followed (a POST would become a GET and be lost); it is a log-in page or a page of maintenance as often
      as a new address. 405, 406, 409, 423, 451 and others: a state of the server, or another server in its place.
    """
    if 200 <= status < 300:
        return None
    if status in (401, 403, 407):
        return Cause.CREDENTIALS
    if status == 404:
        return Cause.NOT_FOUND
    if status == 410:
        return Cause.RECIPIENT
    if status == 402:
        return Cause.QUOTA
    if status == 429:
        return Cause.THROTTLED
    if status in (408, 425) or status >= 500:
        return Cause.TRY_LATER
    return Cause.REFUSED if status in _ABOUT_THE_REQUEST else Cause.TURNED_AWAY


# ---- SMTP

_ENHANCED = re.compile(r"\s*[245]\.([0-9]{1,3}\.[0-9]{1,3})\b")
"""RFC 3463: class, subject, detail; at the beginning of the words."""


def smtp_cause(code: int, step: str, words: str = "") -> Cause:
    """
    Return what the refusal ``code`` means at ``step`` of an SMTP session.

    - 530, 534, 535, 538, and any 5xx of a log-in: the password, which may be renewed.
    - 4xx: busy, grey-listed, out of space, in the server's own words for now.
    - 5xx before the mail has begun (connect, hello, sender): about this machine or the sender's address, as block lists
      and name servers see it now. Nothing was said of recipient or message.
    - 5xx of a recipient: it does not exist. But servers also tell here what they have against the client (5.7.x, or
      554, which says nothing of a recipient), and that a mailbox is full (552, 5.2.2).
    - 5xx of the data: the message itself; 552 may be the mailbox.

    Args:
        code: 400..599; anything else is taken for a refusal of the server's that may pass.
        step: connect | hello | starttls | login | sender | recipient | data.
        words: What the server said; an enhanced status code at its beginning tells more than ``code``.
    """
    if code in (530, 534, 535, 538) or (step == "login" and 500 <= code < 600):
        return Cause.CREDENTIALS
    if not 500 <= code < 600:
        return Cause.TRY_LATER
    if step == "starttls":
        return Cause.TLS
    found = _ENHANCED.match(words)
    detail = found[1] if found is not None else ""
    if step in ("recipient", "data") and (code == 552 or detail == "2.2"):
        return Cause.QUOTA
    if step == "recipient":
        about_us = detail.startswith("7.") or (code == 554 and not detail)
        return Cause.TURNED_AWAY if about_us else Cause.RECIPIENT
    return Cause.REFUSED if step == "data" else Cause.TURNED_AWAY


# ---- chats that answer 200 to what they refuse

_CHATS: Mapping[str, tuple[str, Mapping[str, Cause]]] = {
    # Scheme → the field that holds the code, and what codes mean. REFUSED: malformed, or words that are not allowed.
    "dingtalk": ("errcode", {
        "-1": Cause.TRY_LATER, "130101": Cause.THROTTLED, "410100": Cause.THROTTLED, "90018": Cause.THROTTLED,
        "90030": Cause.QUOTA, "40014": Cause.CREDENTIALS, "300001": Cause.CREDENTIALS,
        "400014": Cause.CREDENTIALS, "400101": Cause.CREDENTIALS,
        # Signature, time, address or keyword: all are settings of the robot, or this machine's clock.
        "310000": Cause.CREDENTIALS,
        "400013": Cause.RECIPIENT,  # the group was dissolved
        "400102": Cause.TURNED_AWAY, "400106": Cause.NOT_FOUND,  # a robot that is switched off, or not there
        "40035": Cause.REFUSED, "43004": Cause.REFUSED, "400105": Cause.REFUSED, "430101": Cause.REFUSED,
        "430102": Cause.REFUSED, "430103": Cause.REFUSED, "430104": Cause.REFUSED,
    }),
    "wecombot": ("errcode", {
        "-1": Cause.TRY_LATER, "45009": Cause.THROTTLED, "45033": Cause.THROTTLED, "93000": Cause.CREDENTIALS,
        "40001": Cause.CREDENTIALS, "60020": Cause.CREDENTIALS,
        "93004": Cause.TURNED_AWAY, "93008": Cause.TURNED_AWAY,  # switched off; not in the group (any more, yet)
        "40008": Cause.REFUSED, "40058": Cause.REFUSED, "44004": Cause.REFUSED, "45002": Cause.REFUSED,
    }),
    "feishu": ("code", {
        "11232": Cause.THROTTLED, "9499": Cause.TRY_LATER, "99991400": Cause.THROTTLED, "19001": Cause.CREDENTIALS,
        # Signature wrong, or more than an hour off: see _OF_THE_CLOCK.
        "19021": Cause.CREDENTIALS, "19022": Cause.CREDENTIALS,
        "19007": Cause.TURNED_AWAY, "19024": Cause.TURNED_AWAY,  # the bot is off; its keyword: settings of the bot
        "19002": Cause.REFUSED,
    }),
}  # fmt: skip
_SAME_API = {"lark": "feishu"}

_OF_THE_CLOCK = re.compile(r"time\s?stamp|signature (?:expired|not yet)|not within one hour", re.IGNORECASE)
"""Words in which a signature is refused for its time."""


def provider_code_field(scheme: str) -> str | None:
    """Return the field of the JSON answer that says in a 200 whether it was accepted; None where the status says it."""
    found = _CHATS.get(_SAME_API.get(scheme, scheme))
    return None if found is None else found[0]


def chat_cause(scheme: str, code: object, words: str = "") -> Cause | None:
    """
    Return what the code in the answer of a chat service means; None for accepted, or no code at all.

    Args:
        words: What it said with the code.
    """
    if code is None or str(code) == "0":
        return None
    found = _CHATS.get(_SAME_API.get(scheme, scheme))
    cause = Cause.TURNED_AWAY if found is None else found[1].get(str(code), Cause.TURNED_AWAY)
    return Cause.CLOCK if cause is Cause.CREDENTIALS and _OF_THE_CLOCK.search(words) else cause


# ---- SMS

_ALIYUN: Mapping[str, Cause] = {
    # One number takes one message a minute, five an hour: it passes.
    "isv.BUSINESS_LIMIT_CONTROL": Cause.THROTTLED, "isv.DAY_LIMIT_CONTROL": Cause.QUOTA,
    "isv.MONTH_LIMIT_CONTROL": Cause.QUOTA, "isv.AMOUNT_NOT_ENOUGH": Cause.QUOTA, "isv.OUT_OF_SERVICE": Cause.QUOTA,
    "isv.MOBILE_NUMBER_ILLEGAL": Cause.RECIPIENT, "isv.MOBILE_COUNT_OVER_LIMIT": Cause.RECIPIENT,
    "isv.ACCOUNT_NOT_EXISTS": Cause.CREDENTIALS, "isv.ACCOUNT_ABNORMAL": Cause.CREDENTIALS,
    "isp.RAM_PERMISSION_DENY": Cause.CREDENTIALS, "InvalidAccessKeyId.NotFound": Cause.CREDENTIALS,
    "InvalidAccessKeyId.Inactive": Cause.CREDENTIALS, "SignatureDoesNotMatch": Cause.CREDENTIALS,
    "IncompleteSignature": Cause.CREDENTIALS, "InvalidSecurityToken.Expired": Cause.CREDENTIALS,
    "NoPermission": Cause.CREDENTIALS, "Forbidden.RAM": Cause.CREDENTIALS,
    "ServiceUnavailable": Cause.TRY_LATER, "InternalError": Cause.TRY_LATER, "SignatureNonceUsed": Cause.TRY_LATER,
    # What the message holds, or how it is written. A template or signature that is not approved yet is not here.
    "isv.INVALID_PARAMETERS": Cause.REFUSED, "isv.INVALID_JSON_PARAM": Cause.REFUSED,
    "isv.TEMPLATE_MISSING_PARAMETERS": Cause.REFUSED, "isv.TEMPLATE_PARAMS_ILLEGAL": Cause.REFUSED,
    "isv.PARAM_LENGTH_LIMIT": Cause.REFUSED, "isv.PARAM_NOT_SUPPORT_URL": Cause.REFUSED,
    "isv.BLACK_KEY_CONTROL_LIMIT": Cause.REFUSED,
}  # fmt: skip


def aliyun_cause(code: str) -> Cause | None:
    """Return what ``Code`` in an answer of Aliyun means; None for OK. ``isp.…`` is trouble of the provider's own."""
    if code == "OK":
        return None
    if code in _ALIYUN:
        return _ALIYUN[code]
    if code.startswith(("InvalidTimeStamp", "IllegalTimestamp")):
        return Cause.CLOCK
    if code.startswith("Throttling"):
        return Cause.THROTTLED
    return Cause.TRY_LATER if code.startswith("isp.") else Cause.TURNED_AWAY


_TENCENT: Mapping[str, Cause] = {
    "LimitExceeded.PhoneNumberDailyLimit": Cause.QUOTA, "LimitExceeded.PhoneNumberSameContentDailyLimit": Cause.QUOTA,
    "LimitExceeded.DailyLimit": Cause.QUOTA, "LimitExceeded.AppDailyLimit": Cause.QUOTA,
    "LimitExceeded.PhoneNumberCountLimit": Cause.REFUSED,
    "FailedOperation.InsufficientBalanceInSmsPackage": Cause.QUOTA,
    "UnauthorizedOperation.SerivceSuspendDueToArrears": Cause.QUOTA,
    "FailedOperation.PhoneNumberInBlacklist": Cause.RECIPIENT,
    "InvalidParameterValue.IncorrectPhoneNumber": Cause.RECIPIENT,
    "UnsupportedOperation.ContainDomesticAndInternationalPhoneNumber": Cause.RECIPIENT,
    "InvalidParameterValue.SdkAppIdNotExist": Cause.CREDENTIALS,
    # A signature is good for five minutes, a request for ten.
    "AuthFailure.SignatureExpire": Cause.CLOCK, "InternalError.RequestTimeException": Cause.CLOCK,
    "FailedOperation.FailResolvePacket": Cause.TRY_LATER, "FailedOperation.OtherError": Cause.TRY_LATER,
    # What the message holds. A template or signature that is not approved yet is not here.
    "FailedOperation.ContainSensitiveWord": Cause.REFUSED, "FailedOperation.MarketingSendTimeConstraint": Cause.QUOTA,
    "FailedOperation.TemplateParamSetNotMatchApprovedTemplate": Cause.REFUSED,
}  # fmt: skip
_TENCENT_FAMILIES: Mapping[str, Cause] = {
    "AuthFailure": Cause.CREDENTIALS, "UnauthorizedOperation": Cause.CREDENTIALS,
    "RequestLimitExceeded": Cause.THROTTLED, "LimitExceeded": Cause.THROTTLED,
    "InternalError": Cause.TRY_LATER, "ServiceUnavailable": Cause.TRY_LATER,
    "InvalidParameter": Cause.REFUSED, "InvalidParameterValue": Cause.REFUSED, "MissingParameter": Cause.REFUSED,
}  # fmt: skip


def tencent_cause(code: str) -> Cause | None:
    """Return what a code of Tencent Cloud's SMS means, of the call or of one number; None for Ok."""
    if code == "Ok":
        return None
    if code in _TENCENT:
        return _TENCENT[code]
    return _TENCENT_FAMILIES.get(code.partition(".")[0], Cause.TURNED_AWAY)


_AWS: Mapping[str, Cause] = {
    # Most of these come with a status of 400, which says nothing of the kind.
    "Throttling": Cause.THROTTLED, "ThrottlingException": Cause.THROTTLED, "ThrottledException": Cause.THROTTLED,
    "Throttled": Cause.THROTTLED, "RequestLimitExceeded": Cause.THROTTLED, "RequestThrottled": Cause.THROTTLED,
    "TooManyRequestsException": Cause.THROTTLED, "KMSThrottling": Cause.THROTTLED, "SlowDown": Cause.THROTTLED,
    "RequestExpired": Cause.CLOCK, "RequestTimeTooSkewed": Cause.CLOCK,
    "ServiceUnavailable": Cause.TRY_LATER, "InternalFailure": Cause.TRY_LATER, "InternalError": Cause.TRY_LATER,
    "RequestTimeout": Cause.TRY_LATER,
    "ExpiredToken": Cause.CREDENTIALS, "ExpiredTokenException": Cause.CREDENTIALS,
    "SignatureDoesNotMatch": Cause.CREDENTIALS, "IncompleteSignature": Cause.CREDENTIALS,
    "InvalidClientTokenId": Cause.CREDENTIALS, "MissingAuthenticationToken": Cause.CREDENTIALS,
    "AuthorizationError": Cause.CREDENTIALS, "AccessDenied": Cause.CREDENTIALS,
    "AccessDeniedException": Cause.CREDENTIALS, "NotAuthorized": Cause.CREDENTIALS, "OptInRequired": Cause.CREDENTIALS,
    "OptedOut": Cause.RECIPIENT, "OptedOutException": Cause.RECIPIENT,
    "InvalidParameter": Cause.REFUSED, "InvalidParameterValue": Cause.REFUSED, "ParameterValueInvalid": Cause.REFUSED,
    "ValidationError": Cause.REFUSED, "ValidationException": Cause.REFUSED, "MissingParameter": Cause.REFUSED,
    "InvalidAction": Cause.REFUSED, "MissingAction": Cause.REFUSED, "MalformedQueryString": Cause.REFUSED,
}  # fmt: skip


def aws_cause(status: int, code: str, words: str = "") -> Cause | None:
    """
    Return what an error ``code`` of AWS means that came with an HTTP status; None for success.

    A signature that is refused for its time has the code of one that is wrong; its ``words`` tell them apart.
    """
    by_status = http_cause(status)
    if by_status is None:
        return None
    cause = _AWS.get(code, Cause.TURNED_AWAY if by_status is Cause.REFUSED else by_status)
    return Cause.CLOCK if cause is Cause.CREDENTIALS and _OF_THE_CLOCK.search(words) else cause


_TWILIO: Mapping[str, Cause] = {
    # No such number, no mobile phone, or its owner said STOP.
    "21211": Cause.RECIPIENT, "21217": Cause.RECIPIENT, "21610": Cause.RECIPIENT, "21614": Cause.RECIPIENT,
    "21602": Cause.REFUSED, "21605": Cause.REFUSED, "21617": Cause.REFUSED,
    "14107": Cause.THROTTLED, "20429": Cause.THROTTLED, "21611": Cause.THROTTLED, "30001": Cause.THROTTLED,
    "63038": Cause.QUOTA, "30002": Cause.QUOTA,
    "20003": Cause.CREDENTIALS, "20005": Cause.CREDENTIALS, "20008": Cause.CREDENTIALS,
}  # fmt: skip


def twilio_cause(status: int, code: str) -> Cause | None:
    """
    Return what an error ``code`` of Twilio means that came with an HTTP status; None for success.

    Most of the others that come with 400 are about the account: a sender that is not its own, a country not enabled.
    """
    by_status = http_cause(status)
    if by_status is None:
        return None
    return _TWILIO.get(code, Cause.TURNED_AWAY if code and by_status is Cause.REFUSED else by_status)
