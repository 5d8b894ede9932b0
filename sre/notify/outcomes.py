"""
How a try of a delivery can end, and what a person can do about it. What answers mean is in ``sre.notify.answers``.

Imported by the delivery worker, which starts for each message: nothing here may import settings.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Verdict(enum.Enum):
    """How a try ended. The value is the metric's label."""

    DELIVERED = "delivered"  # the provider accepted it
    FAILED = "failed"  # it did not, and may the next time
    REFUSED_NOW = "refused_now"  # it said no, and that may pass: the fallback is told at once, and it is repeated
    REJECTED = "rejected"  # it said no to this message or recipient for good: repeating cannot help
    UNKNOWN = "unknown"  # cut off before the answer: it may have arrived; the repetition carries the same incident id
    IMPOSSIBLE = "impossible"  # never asked: the URL is none now, or the message is too old


class Cause(enum.Enum):
    """Why a try did not deliver. The comment at ``VERDICTS`` says why each is of its class."""

    NO_SECRET = "no_secret"
    BAD_URL = "bad_url"
    NO_ADDRESS = "no_address"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    CREDENTIALS = "credentials"
    RECIPIENT = "recipient"
    REFUSED = "refused"
    NOT_FOUND = "not_found"
    TURNED_AWAY = "turned_away"
    CLOCK = "clock"
    QUOTA = "quota"
    THROTTLED = "throttled"
    TRY_LATER = "try_later"
    OUTCOME_UNKNOWN = "outcome_unknown"
    LOCAL = "local"


VERDICTS: Mapping[Cause, Verdict] = {
    # Nobody was asked, and it may be put right while the guard runs: a file written, a variable in the next start.
    Cause.NO_SECRET: Verdict.FAILED,
    # The same: the file was read while it was written. It is looked up anew for each try.
    Cause.BAD_URL: Verdict.IMPOSSIBLE,
    # "No such host" is also what a resolver says that has lost its own upstream.
    Cause.NO_ADDRESS: Verdict.FAILED,
    Cause.UNREACHABLE: Verdict.FAILED,
    # A certificate of another name, of an unknown issuer or out of date, or no TLS at all: not over in minutes, but a
    # certificate is renewed, a clock is set, and a proxy shows its own while what is behind it is rolled out.
    Cause.TLS: Verdict.REFUSED_NOW,
    # A password is renewed, and its file is read anew for each try; a directory that is down says the same.
    Cause.CREDENTIALS: Verdict.REFUSED_NOW,
    # The provider knows of no such recipient: of all refusals the one that is about what cannot change by itself.
    Cause.RECIPIENT: Verdict.REJECTED,
    # About this very message: malformed, too long, a forbidden word. It never changes.
    Cause.REFUSED: Verdict.REJECTED,
    # Of a URL, not of a person: while a service is rolled out, what stands before it says that too.
    Cause.NOT_FOUND: Verdict.REFUSED_NOW,
    # A "no" that is not about message or recipient, or one we do not know: somebody may change it.
    Cause.TURNED_AWAY: Verdict.REFUSED_NOW,
    # This machine's clock is set right by itself, or by a person.
    Cause.CLOCK: Verdict.REFUSED_NOW,
    # A day ends, an account is topped up, a mailbox is emptied.
    Cause.QUOTA: Verdict.REFUSED_NOW,
    Cause.THROTTLED: Verdict.FAILED,
    Cause.TRY_LATER: Verdict.FAILED,
    Cause.OUTCOME_UNKNOWN: Verdict.UNKNOWN,
    Cause.LOCAL: Verdict.FAILED,
}
"""
How bad each cause is. The question is: could the same message arrive at the same recipient later, if nobody touched it?
Only where that is a certain no is it REJECTED; a page that could have arrived must not be dead after one try.
"""

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
    Cause.NOT_FOUND: "check the path in the channel's URL; right after a change at the provider it may pass",
    Cause.TURNED_AWAY: "read the provider's words: it takes nothing from here now, as it is set up; it is repeated",
    Cause.CLOCK: "set this machine's clock (chronyc tracking): a signature of another time is refused",
    Cause.QUOTA: "the account or mailbox is full, out of credit or over its limit; top it up or raise the limit",
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
