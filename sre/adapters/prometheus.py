"""Reads what can be seen of metrics over HTTP: an exporter's page, or a Prometheus through its API."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from sre.errors import ConfigError, DependencyError, MalformedResponse, Rejected, Unreachable
from sre.metrics.exposition import ExpositionError, Series, parse_exposition
from sre.metrics.types import Kind
from sre.monitoring.seen import Down, Seen
from sre.settings.addresses import checked_url

TIMEOUT_SECONDS = 15.0
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Of one answer, unpacked. A vLLM page has 0.1 MB per rank; one name of a large fleet some MB."""
SAMPLED_SERIES = 500
"""Series that are looked at where a name has too many."""
CONCURRENT_QUERIES = 6

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_TEXT_FORMAT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
_KINDS = {kind.value: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Access:
    """
    How to be let in.

    Attributes:
        headers: Sent with every request; secrets among them, never shown.
        ca_file: Certificates to trust instead of the system's.
        timeout_seconds: For one answer as a whole.
        max_body_bytes: Of one answer, unpacked.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: Path | None = None
    timeout_seconds: float = TIMEOUT_SECONDS
    max_body_bytes: int = MAX_BODY_BYTES


class MetricsReader:
    """
    Looks at URLs; an async context manager.

    ``page`` and ``fleet`` raise Unreachable (nobody answers, or not in time), Rejected (the answer is no, or elsewhere)
    and MalformedResponse (it answers what is no metrics), each a sentence with the remedy.
    """

    def __init__(self, access: Access | None = None) -> None:
        """Raises ConfigError when ``ca_file`` cannot be used."""
        self._access = access or Access()
        self._tls = _tls(self._access.ca_file)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> MetricsReader:
        self._session = aiohttp.ClientSession(
            headers=dict(self._access.headers),
            timeout=aiohttp.ClientTimeout(total=self._access.timeout_seconds),
            connector=aiohttp.TCPConnector(ssl=self._tls, limit_per_host=CONCURRENT_QUERIES),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def look(self, url: str, wanted: Collection[str]) -> Seen:
        """
        What stands at ``url``, whichever it is: a Prometheus when it answers queries, else an exporter's page.

        ``wanted`` are the samples to ask a Prometheus for. A base URL of an exporter is tried with /metrics too.
        """
        base = checked_url(url, query=True)
        if urlsplit(base).path.endswith("/metrics"):
            return await self.page(base)
        try:
            await self._query(base, "vector(1)")
        except MalformedResponse:
            pass
        except Rejected as refusal:
            if isinstance(refusal, _Denied):
                raise
        else:
            return await self.fleet(base, wanted)
        try:
            return await self.page(base)
        except (Rejected, MalformedResponse) as here:
            if isinstance(here, _Denied):
                raise
            try:
                return await self.page(base + "/metrics")
            except (Rejected, MalformedResponse):
                problem = "is neither a Prometheus nor an exporter's page; give the URL of either"
                raise MalformedResponse(base, problem, retryable=False) from here

    async def page(self, url: str) -> Seen:
        """One exporter's /metrics."""
        body = await self._get(checked_url(url, query=True), {"Accept": _TEXT_FORMAT})
        try:
            found = await asyncio.to_thread(parse_exposition, body)
        except ExpositionError as error:
            raise MalformedResponse(url, str(error), retryable=False) from error
        return Seen(pages=found.samples, names=frozenset(found.samples), kinds=found.types)

    async def fleet(self, url: str, wanted: Collection[str]) -> Seen:
        """Everything a Prometheus knows of the names ``wanted``, which names there are, and which targets are down."""
        base = checked_url(url, query=True)
        names = _texts(await self._api(base, "label/__name__/values", {}), base)
        metadata = await self._api(base, "metadata", {})
        if not isinstance(metadata, dict):
            raise MalformedResponse(base, "its metadata is no object; is this a Prometheus?")
        kinds = {str(name): _one_kind(entries) for name, entries in metadata.items()}
        down = await self._down(base)
        asked = sorted(name for name in set(wanted) & set(names) if _NAME.fullmatch(name))
        gate = asyncio.Semaphore(CONCURRENT_QUERIES)
        sampled: set[str] = set()

        async def ask(name: str) -> tuple[Series, ...]:
            async with gate:
                try:
                    return await self._query(base, name)
                except _TooLarge:
                    sampled.add(name)
                    return await self._query(base, f"topk({SAMPLED_SERIES}, {name})")

        tasks = [asyncio.ensure_future(ask(name)) for name in asked]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        fleet = {name: series for name, series in zip(asked, answers, strict=True) if series}
        return Seen(
            fleet=fleet, names=frozenset(names), kinds=kinds, prometheus=True, down=down, sampled=frozenset(sampled)
        )

    async def _down(self, base: str) -> tuple[Down, ...]:
        """Targets that cannot be scraped; from ``up`` where the targets are not told."""
        try:
            data = await self._api(base, "targets", {"state": "active"})
            return tuple(_down_targets(data))
        except (Rejected, MalformedResponse, KeyError, TypeError, AttributeError):
            series = await self._query(base, "up == 0")
        return tuple(Down(one.labels.get("job", ""), one.labels.get("instance", "")) for one in series)

    async def _query(self, base: str, query: str) -> tuple[Series, ...]:
        data = await self._api(base, "query", {"query": query})
        try:
            return tuple(
                Series({str(k): str(v) for k, v in one["metric"].items() if k != "__name__"}, float(one["value"][1]))
                for one in data["result"]
                if "value" in one  # a native histogram has none
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise MalformedResponse(base, f"the answer to {query} cannot be read; is this a Prometheus?") from error

    async def _api(self, base: str, path: str, parameters: Mapping[str, str]) -> Any:
        """``data`` of an answer of the HTTP API."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        body = await self._get(f"{base}/api/v1/{path}{query}", {"Accept": "application/json"})
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MalformedResponse(base, f"its answer to /api/v1/{path} is no JSON; is this a Prometheus?") from error
        if not isinstance(answer, dict) or answer.get("status") != "success" or "data" not in answer:
            raise MalformedResponse(base, f"its answer to /api/v1/{path} is not that of a Prometheus")
        return answer["data"]

    async def _get(self, url: str, headers: Mapping[str, str]) -> bytes:
        if self._session is None:
            raise RuntimeError("use MetricsReader as an async context manager")
        where = url.split("?")[0]
        limit = self._access.max_body_bytes
        try:
            async with self._session.get(url, headers=dict(headers), allow_redirects=False) as response:
                if response.status != 200:
                    raise _refusal(where, response)
                return await _bounded(response, where, limit)
        except TimeoutError as error:
            raise Unreachable(where, f"no complete answer within {self._access.timeout_seconds:g} s") from error
        except aiohttp.ClientSSLError as error:
            raise Unreachable(where, _tls_problem(error)) from error
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
            raise MalformedResponse(where, f"broken answer ({_short(error)})") from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise ConfigError([f"--url {url}: is no URL; write it like http://host:9090"]) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(where, f"{_short(error)}; does it run, and is the address right?") from error
        except ValueError as error:  # aiohttp on headers and compressions it cannot read
            raise MalformedResponse(where, f"broken answer ({_short(error)})") from error


class _TooLarge(MalformedResponse):
    """The answer is larger than we are willing to read."""


class _Denied(Rejected):
    """It wants to know who asks."""


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, FileNotFoundError | PermissionError) else "holds no certificate"
        raise ConfigError([f"--ca-file {ca_file}: {reason}; give a file of PEM certificates"]) from error


def _tls_problem(error: aiohttp.ClientSSLError) -> str:
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({cause.verify_message}); give --ca-file"
    return "no TLS connection; does it speak http:// there?"


def _refusal(where: str, response: aiohttp.ClientResponse) -> DependencyError:
    status = response.status
    if 300 <= status < 400:
        target = response.headers.get("Location", "an address it does not name")
        return Rejected(where, f"sends us to {target[:200]}; give that address")
    if status in (401, 403):
        return _Denied(where, f"answers {status}: who asks? Give --token env:NAME or --header")
    if status == 404:
        return Rejected(where, "answers 404: no such page; is the path right?")
    if status >= 500:
        return Rejected(where, f"answers {status}; look into its log", retryable=True)
    return Rejected(where, f"answers {status}; is this the URL of a Prometheus or of /metrics?")


async def _bounded(response: aiohttp.ClientResponse, where: str, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await response.content.readany():
        size += len(part)
        if size > limit:
            response.close()
            raise _TooLarge(where, f"more than {limit / 1e6:g} MB; is this the right URL?", retryable=False)
        parts.append(part)
    return b"".join(parts)


def _down_targets(data: Any) -> Iterable[Down]:
    """The targets that are down. Raises KeyError, TypeError, AttributeError for what is no list of targets."""
    for target in data["activeTargets"]:
        if target.get("health") == "down":
            labels, error = target.get("labels") or {}, str(target.get("lastError", ""))[:200]
            yield Down(str(labels.get("job", "")), str(labels.get("instance", "")), error)


def _texts(data: Any, base: str) -> list[str]:
    if not isinstance(data, list) or not all(isinstance(one, str) for one in data):
        raise MalformedResponse(base, "its list of names cannot be read; is this a Prometheus?")
    return data


def _one_kind(entries: Any) -> Kind | None:
    """The type in a metric's metadata; None when targets do not agree, or state none."""
    try:
        found = {_KINDS.get(str(entry["type"])) for entry in entries}
    except (TypeError, KeyError):
        return None
    return found.pop() if len(found) == 1 else None


def _short(error: BaseException) -> str:
    cause = getattr(error, "os_error", None)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror[:200]
    text = str(error).splitlines()[0] if str(error).strip() else type(error).__name__
    return text[:200]
