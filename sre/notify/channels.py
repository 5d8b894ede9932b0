"""What is wrong with a channel before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlsplit

SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://.")


KINDS_OF_SCHEMES = {
    "email": frozenset({"mailto", "mailtos"}),
    "sms": frozenset({"twilio", "alisms", "tencentsms"}),
    "chat": frozenset({"slack", "dingtalk", "feishu", "lark", "wecombot"}),
    "pagerduty": frozenset({"pagerduty"}),
}
"""Kind of channel → schemes that are of no other kind; any other scheme may be of each kind but pagerduty."""


def scheme_of(url: str) -> str:
    """Return the URL's scheme in lower case; "" without one."""
    return url.partition("://")[0].lower() if SCHEME.match(url) else ""


def kind_problems(url: str, kind: str) -> Sequence[str]:
    """Return why a URL does not suit a channel's kind, which decides the form of its messages."""
    scheme = scheme_of(url)
    right = next((name for name, schemes in KINDS_OF_SCHEMES.items() if scheme in schemes), None)
    if scheme and right is None and kind == "pagerduty":
        return (f"{scheme}:// is not PagerDuty; write kind: webhook or chat",)
    if right is not None and right != kind:
        return (f"{scheme}:// takes messages of kind {right}, not {kind}; write kind: {right}",)
    return ()


def url_problems(url: str) -> Sequence[str]:
    """Return what an Apprise URL must not have here, one sentence each; they hold nothing of the URL."""
    problems = []
    if url != url.strip() or any(c.isspace() for c in url):
        problems.append("the URL holds white space; write it on one line and encode spaces as %20")
    if not SCHEME.match(url):
        return [*problems, "not a URL of the form scheme://…; see Apprise's list of services"]
    try:
        query = dict(parse_qsl(urlsplit(url).query))
    except ValueError:
        return [*problems, "the URL cannot be taken apart; encode special characters in it"]
    if query.get("retry", "0") != "0":
        problems.append("remove retry=: the outbox repeats what failed, and knows when to stop")
    return problems


def recipient_problems(targets: int) -> Sequence[str]:
    """Return what is wrong with the number of recipients a URL names."""
    if targets == 1:
        return ()
    if targets < 1:
        return ("the URL names no recipient",)
    return (
        f"the URL names {targets} recipients; make a channel for each: when one fails, all would get the message again",
    )
