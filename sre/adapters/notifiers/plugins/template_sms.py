"""What the SMS services share that take a template id and parameters, no free text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import requests
from apprise.plugins.base import NotifyBase
from apprise.url import PrivacyMode

from sre.adapters.notifiers.handover import DESK
from sre.adapters.notifiers.plugins.endpoint import endpoint_of, refused
from sre.adapters.notifiers.witness import WITNESS
from sre.notify.answers import http_cause
from sre.notify.outcomes import Cause, Outcome

DEFAULT_PARAMETERS = "severity,scope,rule,id"
LONGEST_PARAMETER = 35
"""Characters that a provider takes in one variable of a notice; ?max= says otherwise."""

KNOWN = frozenset({"severity", "event", "scope", "reason", "rule", "value", "id", "summary", "at", "since"})
_PHONE = re.compile(r"\+?[0-9]{8,15}")
_CHINESE_MOBILE = re.compile(r"1[3-9][0-9]{9}")


class TemplateSms(NotifyBase):  # type: ignore[misc]
    """``scheme://ID:SECRET@…/PHONE?sign=SIGNATURE&params=severity,scope,rule,id``; see the subclasses."""

    service_url = ""
    setup_url = ""
    title_maxlen = 0
    body_maxlen = 1000
    service_name = "SMS"
    region_name = ""

    def __init__(
        self,
        key_id: str = "",
        secret: str = "",
        place: tuple[str, ...] = (),
        targets: tuple[str, ...] = (),
        sign: str = "",
        params: str = "",
        longest: str = "",
        region: str = "",
        endpoint: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.key_id, self.secret, self.place, self.sign = key_id, secret, place, sign
        self.region = region or self.region_name
        if not key_id or not secret:
            raise refused(self.logger, f"the URL names no key and secret; write {self.example()}")
        if not all(place):
            raise refused(self.logger, f"the URL names no template; write {self.example()}")
        self.parameters = self._parameters(params or DEFAULT_PARAMETERS)
        self.longest = self._longest(longest)
        self.endpoint = endpoint_of(endpoint, self.logger)
        self.targets = tuple(found for target in targets if (found := self._phone(target)) is not None)

    def example(self) -> str:
        """Return the form of the URL."""
        raise NotImplementedError

    def _parameters(self, text: str) -> tuple[tuple[str, str], ...]:
        """Return (name in the template, piece of the message) of ``a,b`` or ``name:a,other:b``."""
        pairs = []
        for item in text.split(","):
            name, _, piece = item.strip().partition(":")
            piece = piece or name
            if piece not in KNOWN:
                raise refused(self.logger, f"params= holds {piece[:30]!r}; known: {', '.join(sorted(KNOWN))}")
            pairs.append((name, piece))
        return tuple(pairs)

    def _longest(self, text: str) -> int:
        if not text:
            return LONGEST_PARAMETER
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 500:
            raise refused(self.logger, "max= is no number of characters from 1 to 500")
        return int(text)

    def _phone(self, target: str) -> str | None:
        """Return the number as +COUNTRY…; None, and a warning, for what is none."""
        number = re.sub(r"[\s()-]", "", target)
        if not _PHONE.fullmatch(number):
            self.logger.warning(f"{_masked(number)} is no phone number; write +, country code and number")
            return None
        if number.startswith("+"):
            return number
        if _CHINESE_MOBILE.fullmatch(number):
            return f"+86{number}"
        self.logger.warning(f"{_masked(number)} has no country code; write +, country code and number")
        return None

    def values(self) -> Mapping[str, str]:
        """Return the template's parameters; none is empty, none is too long."""
        pieces = DESK.task.parameters
        return {name: _fitting(pieces.get(piece, ""), self.longest) for name, piece in self.parameters}

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Mapping[str, Any] | None:
        """Return the provider's JSON answer; None, and WITNESS told, without one."""
        try:
            answer = requests.post(
                url,
                data=body,
                headers=dict(headers),
                timeout=self.request_timeout,
                verify=self.verify_certificate,
                allow_redirects=False,
            )
        except requests.RequestException:
            return None
        try:
            document = json.loads(answer.content)
        except ValueError:
            document = None
        if isinstance(document, dict):
            return document
        cause = http_cause(answer.status_code) or Cause.OUTCOME_UNKNOWN
        WITNESS.told = Outcome(cause, f"HTTP {answer.status_code}: {answer.text[:200]}", self._asked_to_wait())
        return None

    def refuse(self, cause: Cause, code: str, words: object) -> bool:
        """Tell WITNESS why it was refused; return False."""
        WITNESS.told = Outcome(cause, f"{code}: {words}", self._asked_to_wait())
        return False

    @staticmethod
    def _asked_to_wait() -> float | None:
        return WITNESS.answers[-1].retry_after_seconds if WITNESS.answers else None

    def url(self, privacy: bool = False, *args: Any, **kwargs: Any) -> str:
        key_id = self.pprint(self.key_id, privacy, mode=PrivacyMode.Outer, safe="")
        secret = self.pprint(self.secret, privacy, mode=PrivacyMode.Secret, safe="")
        place = "/".join(self.quote(part, safe="") for part in self.place)
        phones = "/".join(self.quote(_masked(phone) if privacy else phone, safe="") for phone in self.targets)
        query = self.urlencode({"sign": self.sign, "params": ",".join(":".join(pair) for pair in self.parameters)})
        return f"{self.secure_protocol}://{key_id}:{secret}@{place}/{phones}?{query}"

    def __len__(self) -> int:
        return len(self.targets)

    @classmethod
    def _parsed(cls, url: str, places: int) -> dict[str, Any] | None:
        """Return the arguments in ``url``, whose host and first path parts are the ``places`` of the template."""
        results: dict[str, Any] | None = NotifyBase.parse_url(url, verify_host=False)
        if not results:
            return results
        path = [cls.unquote(results["host"] or ""), *cls.split_path(results["fullpath"])]
        query = {name: cls.unquote(value) for name, value in results["qsd"].items()}
        results |= {
            "key_id": cls.unquote(results["user"] or ""),
            "secret": cls.unquote(results["password"] or ""),
            "place": tuple((path + [""] * places)[:places]),
            "targets": (*path[places:], *filter(None, query.get("to", "").split(","))),
            "sign": query.get("sign", ""),
            "params": query.get("params", ""),
            "longest": query.get("max", ""),
            "region": query.get("region", ""),
            "endpoint": query.get("endpoint"),
        }
        return results


def _fitting(value: str, longest: int) -> str:
    # Brackets of this kind stand around a signature; inside a variable they are refused.
    text = value.replace("【", "(").replace("】", ")").replace("\n", " ").strip() or "-"
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def _masked(number: str) -> str:
    return number if len(number) < 8 else f"{number[:-8]}****{number[-4:]}"
