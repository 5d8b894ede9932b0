"""Asks Prometheus and Alertmanager whether, and since when, they know a canary's alert."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

import aiohttp

from sre.errors import MalformedResponse, Rejected, Unreachable
from sre.notify.alert_decide import CANARY_ALERT, CANARY_LABEL
from sre.notify.alerts import NANOSECONDS, moment_ns

TIMEOUT_SECONDS = 5.0
MOST_BYTES = 16 * 1024 * 1024


class AlertPath:
    """
    An async context manager. Its methods raise Unreachable, Rejected and MalformedResponse.
    """

    def __init__(self, prometheus: str, alertmanager: str) -> None:
        self._prometheus, self._alertmanager = prometheus.rstrip("/"), alertmanager.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AlertPath:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def fired(self, identifier: str) -> float | None:
        """When Prometheus began to fire it; None: it does not."""
        system = f"prometheus {self._prometheus}"
        data = await self._get(system, f"{self._prometheus}/api/v1/alerts", {})
        try:
            found = [one for one in data["data"]["alerts"] if one["state"] == "firing" and _is(one, identifier)]
        except (KeyError, TypeError) as error:
            raise MalformedResponse(system, "its list of alerts cannot be read; is this a Prometheus?") from error
        return _wall(found[0].get("activeAt")) if found else None

    async def taken(self, identifier: str) -> float | None:
        """When Alertmanager was last told of it; None: it was not."""
        system = f"alertmanager {self._alertmanager}"
        query = {"filter": f'alertname="{CANARY_ALERT}"'}
        data = await self._get(system, f"{self._alertmanager}/api/v2/alerts", query)
        try:
            found = [one for one in data if _is(one, identifier)]
        except (KeyError, TypeError) as error:
            raise MalformedResponse(system, "its list of alerts cannot be read; is this an Alertmanager?") from error
        return _wall(found[0].get("updatedAt")) if found else None

    async def _get(self, system: str, url: str, query: dict[str, str]) -> Any:
        assert self._session is not None
        try:
            async with self._session.get(url, params=query, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise Rejected(system, f"answers {answer.status}; is the address right?")
                raw = await answer.content.read(MOST_BYTES)
        except TimeoutError as error:
            raise Unreachable(system, f"no answer in {TIMEOUT_SECONDS:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(system, "does not answer; does it run, and is the address right?") from error
        try:
            return json.loads(raw)
        except ValueError as error:
            raise MalformedResponse(system, "answers what is no JSON; is the address right?") from error


def _is(alert: Any, identifier: str) -> bool:
    labels = alert["labels"]
    return bool(labels.get("alertname") == CANARY_ALERT and labels.get(CANARY_LABEL) == identifier)


def _wall(text: object) -> float | None:
    moment = moment_ns(text)
    return None if moment is None else moment / NANOSECONDS
