"""
E-mail: Apprise's URL, our message and our reading of the server's answers.

Apprise makes the text part out of the HTML part and reports every failure as the same "no". Here both parts are
written for their readers, and the SMTP step and code at which it ended are told.
"""

from __future__ import annotations

import contextlib
import hashlib
import smtplib
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any

from apprise.plugins.email.base import NotifyEmail

from sre.adapters.notifiers.handover import DESK
from sre.adapters.notifiers.witness import WITNESS, connection_cause
from sre.notify.answers import smtp_cause
from sre.notify.outcomes import Cause, Outcome

POLICY = SMTP.clone(cte_type="7bit")
"""Every server takes it, also one without 8BITMIME."""

GOODBYE_SECONDS = 1.0


@dataclass(slots=True)
class _Session:
    step: str = "connect"
    server: smtplib.SMTP | None = None

    def enter(self, step: str) -> None:
        """Begin a step; a silence in it lasts at most to the plugin's end."""
        self.step = step
        if self.server is not None and self.server.sock is not None:
            self.server.sock.settimeout(left_seconds())

    def end(self) -> None:
        """Say good-bye, briefly; how the server takes it changes nothing."""
        if self.server is None:
            return
        with contextlib.suppress(OSError, smtplib.SMTPException):
            if self.server.sock is not None:
                self.server.sock.settimeout(GOODBYE_SECONDS)
                self.server.quit()
        self.server.close()


def left_seconds() -> float:
    """Return the time a silence of the server may last now."""
    return max(0.2, DESK.ends_monotonic - time.monotonic())


class NotifyMail(NotifyEmail):  # type: ignore[misc]
    """``mailto://`` (plain, or what ?mode= says) and ``mailtos://`` (STARTTLS, or ?mode=ssl)."""

    def __len__(self) -> int:
        """Every address that a refusal could come from: copies count."""
        return len(self.targets) + len(self.cc) + len(self.bcc)

    def send(self, body: str, title: str = "", body_format: Any = None, **kwargs: Any) -> bool:
        if self.pgp_mode != "no":
            # Signing and encrypting is Apprise's; there it makes the text part too.
            html = DESK.task.html
            return bool(super().send(html or body, title, body_format="html" if html else body_format, **kwargs))
        session = _Session()
        try:
            self._deliver(session, self._message(body, title))
        except (OSError, smtplib.SMTPException, UnicodeError) as error:
            WITNESS.told = smtp_outcome(error, session.step)
            return False
        finally:
            session.end()
        return True

    def _deliver(self, session: _Session, message: EmailMessage) -> None:
        """Hand ``message`` over, to all its recipients or to none; when this returns, the server has accepted it."""
        server = session.server = self._connected()
        session.enter("hello")
        server.ehlo_or_helo_if_needed()
        if self.secure_mode == "starttls":
            session.enter("starttls")
            server.starttls(context=self._trust())
            session.enter("hello")
            server.ehlo_or_helo_if_needed()  # anew: what was said in the clear does not count
        if self.user and self.password:
            session.enter("login")
            server.login(self.user, self.password)
        session.enter("sender")
        _accepted(server.mail(self.from_addr[1]))
        session.enter("recipient")
        for recipient in [*(address for _, address in self.targets), *self.cc, *self.bcc]:
            _accepted(server.rcpt(recipient))
        session.enter("data")
        _accepted(server.data(message.as_bytes()))

    def _connected(self) -> smtplib.SMTP:
        """Return an open session."""
        limit = min(self.socket_connect_timeout, left_seconds())
        if self.secure_mode == "ssl":
            return smtplib.SMTP_SSL(self.smtp_host, self.port, timeout=limit, context=self._trust())
        return smtplib.SMTP(self.smtp_host, self.port, timeout=limit)

    def _trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if not self.verify_certificate:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _message(self, body: str, title: str) -> EmailMessage:
        message = EmailMessage(policy=POLICY)
        message["Subject"] = title
        message["From"] = _address(self.from_addr[1], self.from_addr[0])
        message["To"] = tuple(_address(address, name) for name, address in self.targets)
        if self.cc:
            message["Cc"] = tuple(_address(address, self.names.get(address)) for address in sorted(self.cc))
        if self.reply_to:
            message["Reply-To"] = tuple(_address(address, self.names.get(address)) for address in sorted(self.reply_to))
        message["Date"] = format_datetime(datetime.fromtimestamp(time.time(), UTC))
        # The same for each repetition: a mailbox that got it twice shows it once.
        same = hashlib.sha256("\0".join((DESK.task.key, title, body)).encode()).hexdigest()[:32]
        message["Message-ID"] = f"<{same}@{self.from_addr[1].rpartition('@')[2] or 'localhost'}>"
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no out-of-office reply, please
        if DESK.task.key:
            # Repetitions and the end of an incident stand in one thread with its beginning.
            message["References"] = f"<{_token(DESK.task.key)}@incident.sre>"
            message["X-Sre-Incident"] = _token(DESK.task.key)
        for name, value in self.headers.items():
            if name not in message:
                message[name] = value
        message.set_content(body)
        wanted = self._format_override
        if DESK.task.html and getattr(wanted, "value", wanted) != "text":
            message.add_alternative(DESK.task.html, subtype="html")
        return message


def smtp_outcome(error: Exception, step: str) -> Outcome:
    """Return what ended an SMTP session at ``step``, before the server had accepted the message."""
    if isinstance(error, smtplib.SMTPResponseException):
        words = error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
        return Outcome(smtp_cause(error.smtp_code, step, words), f"SMTP {error.smtp_code} at {step}: {words}")
    if isinstance(error, UnicodeError):
        cause = Cause.CREDENTIALS if step == "login" else Cause.REFUSED
        return Outcome(cause, f"SMTP at {step}: a character that this server's SMTP cannot carry")
    if isinstance(error, smtplib.SMTPNotSupportedError):
        cause = Cause.TLS if step == "starttls" else Cause.CREDENTIALS if step == "login" else Cause.REFUSED
        return Outcome(cause, f"SMTP at {step}: {error}")
    found = connection_cause(error)
    if found is not None:
        return Outcome(found, f"SMTP at {step}: {error}")
    if step == "data":
        return Outcome(Cause.OUTCOME_UNKNOWN, f"SMTP cut off after the message was sent, it may have arrived: {error}")
    return Outcome(Cause.UNREACHABLE, f"SMTP at {step}, not sent: {error}")


def _accepted(reply: tuple[int, bytes]) -> None:
    code, words = reply
    if not 200 <= code < 300:
        raise smtplib.SMTPResponseException(code, words)


def _address(address: str, name: object) -> Address:
    user, _, domain = address.rpartition("@")
    return Address(str(name) if name else "", user, domain)


def _token(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)[:200]
