"""
Grafana's HTTP API: dashboards and the folder they live in.

Saving without ``folderUid`` moves a dashboard to the top level, so the folder it is in is sent along. Without
``overwrite`` the sent ``version`` must be the stored one, else the answer is 412. A redirect would carry the token
elsewhere, so none is followed.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from sre.errors import ConfigError, DependencyError, MalformedResponse, Rejected, Unreachable
from sre.printable import one_line
from sre.settings.addresses import checked_url

TIMEOUT_SECONDS = 15.0
TRIES = 3
TRANSIENT = frozenset({429, 502, 503, 504})
"""Answers of something in front of Grafana, or of one that starts; 500 is Grafana's own and stays."""
MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_UID = 40
_NOT_OURS = ("id", "version")
"""Keys that Grafana sets itself."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """A dashboard as Grafana has it."""

    document: Document
    version: int
    folder_uid: str

    def equals(self, document: Document) -> bool:
        """Whether saving ``document`` would change nothing."""
        ours, theirs = (
            {key: value for key, value in source.items() if key not in _NOT_OURS}
            for source in (document, self.document)
        )
        return ours == theirs


@dataclass(frozen=True, slots=True)
class Pushed:
    """
    What became of one dashboard.

    Attributes:
        outcome: created, updated, unchanged, failed or not_tried; in a dry run what would become of it.
        detail: Address of the dashboard, or what went wrong.
    """

    uid: str
    outcome: str
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.outcome in ("created", "updated", "unchanged")


class NotLetIn(Rejected):
    """The token is not accepted at all."""


class Grafana:
    """
    One Grafana. Use it as an asynchronous context manager.

    Every method raises Unreachable when there is no answer, Rejected when the answer is no, MalformedResponse when it
    is none of Grafana's. GET, and saving with ``overwrite``, are tried again when the failure passes by itself; saving
    without it is not: a first try that did arrive would make the second one fail.

    Raises:
        ConfigError: The address or the token cannot be used.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.base = checked_url(url, example="http://host:3000")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(["--token: the token has characters that no token has; is the reference the right one?"])
        self.system = f"grafana {self.base}"
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._timeout_seconds = timeout_seconds
        self._pause = pause
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Grafana:
        # aiohttp's own context is older than this call, and would not know SSL_CERT_FILE.
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context())
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    # ---- What it can do ---------------------------------------------------------------------------------------------

    async def find(self, uid: str) -> Stored | None:
        """The stored dashboard, or None."""
        status, data = await self._call("GET", f"/api/dashboards/uid/{quote(uid, safe='')}")
        if status == 404:
            # A wrong address answers 404 as well, but not with Grafana's message.
            if not isinstance(data.get("message"), str):
                raise self._no_grafana()
            return None
        self._check(status, data, f"reading dashboard {uid}")
        try:
            document, meta = data["dashboard"], data["meta"]
            return Stored(dict(document), int(document.get("version") or 0), str(meta.get("folderUid") or ""))
        except (KeyError, TypeError, ValueError) as error:
            raise self._no_grafana() from error

    async def has_folder(self, uid: str) -> bool:
        """Whether there is a folder with this uid."""
        status, data = await self._call("GET", f"/api/folders/{quote(uid, safe='')}")
        if status == 404:
            if not isinstance(data.get("message"), str):
                raise self._no_grafana()
            return False
        self._check(status, data, f"reading folder {uid}")
        return True

    async def create_folder(self, uid: str, title: str) -> None:
        """Make a folder; one that somebody else made at the same moment is as good."""
        status, data = await self._call("POST", "/api/folders", {"uid": uid, "title": title}, again=False)
        if status in (409, 412) and await self.has_folder(uid):
            return
        self._check(status, data, f"creating folder {uid}")

    async def save(self, document: Document, *, folder_uid: str, overwrite: bool, version: int = 0) -> str:
        """
        Create or replace a dashboard; return the path of its page.

        Args:
            folder_uid: "" is the top level.
            overwrite: Replace whatever is stored. Otherwise ``version`` must be the stored one.
        """
        body: dict[str, Any] = {
            "dashboard": {**document, "id": None, **({} if overwrite else {"version": version})},
            "folderUid": folder_uid,
            "message": "sre dashboards push",
            "overwrite": overwrite,
        }
        what = f"saving dashboard {document['uid']}"
        status, data = await self._call("POST", "/api/dashboards/db", body, again=overwrite)
        self._check(status, data, what, overwrite=overwrite)
        url = data.get("url")
        if not isinstance(url, str) or data.get("uid") != document["uid"]:
            raise self._no_grafana()
        return url

    async def push(
        self,
        documents: Sequence[Document],
        *,
        folder: str | None = None,
        folder_title: str = "",
        overwrite: bool = True,
        dry_run: bool = False,
    ) -> list[Pushed]:
        """
        Save all dashboards; one that fails does not keep the others from being tried, unless all would.

        Args:
            folder: uid, made where it is missing; None: each stays where it is, new ones go to the top level.
            overwrite: Otherwise a dashboard that exists and differs is left alone, and reported as failed.
            dry_run: Only read, and say what would be done.
        """
        if folder is not None and not await self.has_folder(folder) and not dry_run:
            await self.create_folder(folder, folder_title or folder)
        done: list[Pushed] = []
        lost: DependencyError | None = None
        for document in documents:
            uid = str(document["uid"])
            if lost is not None:
                done.append(Pushed(uid, "not_tried"))
                continue
            try:
                done.append(await self._push_one(document, folder, overwrite, dry_run))
            except (Unreachable, MalformedResponse, NotLetIn) as error:
                lost = error
                done.append(Pushed(uid, "failed", str(error)))
            except DependencyError as error:
                done.append(Pushed(uid, "failed", str(error)))
        return done

    async def _push_one(self, document: Document, folder: str | None, overwrite: bool, dry_run: bool) -> Pushed:
        uid = str(document["uid"])
        stored = await self.find(uid)
        if stored is not None and stored.equals(document) and folder in (None, stored.folder_uid):
            return Pushed(uid, "unchanged")
        if stored is not None and not overwrite:
            raise Rejected(self.system, f"dashboard {uid} exists and differs; push with --overwrite to replace it")
        outcome = "created" if stored is None else "updated"
        if dry_run:
            return Pushed(uid, outcome)
        where = folder if folder is not None else (stored.folder_uid if stored is not None else "")
        path = await self.save(document, folder_uid=where, overwrite=overwrite)
        root = urlsplit(self.base)
        return Pushed(uid, outcome, f"{root.scheme}://{root.netloc}{path}" if path.startswith("/") else path)

    # ---- Calls ------------------------------------------------------------------------------------------------------

    async def _call(
        self, method: str, path: str, body: Document | None = None, *, again: bool = True
    ) -> tuple[int, Any]:
        """Status and JSON object; after the last try the failure as it is."""
        for left in reversed(range(TRIES if again else 1)):
            try:
                status, data = await self._once(method, path, body)
            except Unreachable as error:
                if not left or not error.retryable:
                    raise
            else:
                if status not in TRANSIENT or not left:
                    return status, data
            await self._pause(0.5 * (TRIES - left))
        raise AssertionError("the last try returns or raises")

    async def _once(self, method: str, path: str, body: Document | None) -> tuple[int, Any]:
        if self._session is None:
            raise RuntimeError("Grafana is used outside of its context")
        try:
            async with self._session.request(method, self.base + path, json=body, allow_redirects=False) as response:
                status, target = response.status, response.headers.get("Location", "")
                raw = bytearray()
                async for chunk in response.content.iter_chunked(65_536):
                    raw += chunk
                    if len(raw) > MAX_ANSWER_BYTES:
                        raise self._no_grafana()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        if 300 <= status < 400:
            raise MalformedResponse(
                self.system,
                f"{path} is answered with a redirect to {_shown(target)}; it is not followed, since the token would go"
                " with it; give the final address of Grafana as --url",
                retryable=False,
            )
        if status in TRANSIENT:
            return status, {}
        try:
            data = json.loads(raw)
        except ValueError as error:
            if status >= 400:
                return status, {}
            raise self._no_grafana() from error
        if not isinstance(data, dict):
            raise self._no_grafana()
        return status, data

    def _check(self, status: int, data: Document, what: str, *, overwrite: bool = False) -> None:
        """Raise what a status that is not good means."""
        if status < 300:
            return
        said = data.get("message")
        said = f": {_shown(said)}" if isinstance(said, str) and said else ""
        if status in TRANSIENT:
            raise Unreachable(self.system, f"{what}: answers {status}, {TRIES} times or more; try again later")
        if status >= 500:
            raise Unreachable(self.system, f"{what}: fails inside ({status}){said}; see Grafana's log")
        kind = NotLetIn if status == 401 else Rejected
        raise kind(self.system, f"{what}{said}; {self._remedy(status, data, overwrite)}")

    @staticmethod
    def _remedy(status: int, data: Document, overwrite: bool) -> str:
        if status == 401:
            return "the token is not accepted: it may be expired, revoked, or belong to another Grafana (401)"
        if status == 403:
            return "the token may not do that: its service account needs the role Editor, or dashboards:create, "\
                   "dashboards:write and folders:read (403)"  # fmt: skip
        if status == 412:
            kind = data.get("status")
            if kind == "version-mismatch":
                if overwrite:
                    return "Grafana keeps its own, though it was told to overwrite it; push again, or delete it there "\
                           "first (412)"  # fmt: skip
                return "somebody changed it meanwhile; push with --overwrite to replace that (412)"
            if kind == "name-exists":
                return "the folder holds another dashboard of that name; rename that, or push to another folder (412)"
            if kind == "plugin-dashboard":
                if overwrite:
                    return "it belongs to a plugin, and Grafana keeps it, though it was told to overwrite it; remove "\
                           "the plugin's dashboard there (412)"  # fmt: skip
                return "it belongs to a plugin; push with --overwrite to replace it (412)"
            return "something is in its way (412)"
        if status == 404:
            return "there is no such folder, or --url is not the base address of Grafana (404)"
        if status == 400 and "provisioned" in str(data.get("message", "")).lower():
            return "it comes from a file in Grafana's provisioning; change that file, or set allowUiUpdates there (400)"
        return f"Grafana refused it ({status})"

    def _unreachable(self, error: BaseException) -> Unreachable:
        if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
            return Unreachable(
                self.system,
                "its TLS certificate is not trusted; name the file of its CA in SSL_CERT_FILE",
                retryable=False,
            )
        if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
            return Unreachable(self.system, "no TLS there; is it http:// instead of https://?", retryable=False)
        if isinstance(error, TimeoutError):
            return Unreachable(self.system, f"no answer within {self._timeout_seconds:g} s; is it overloaded?")
        if isinstance(error, aiohttp.ClientConnectorError):
            number = error.os_error.errno
            why = (
                os.strerror(number)
                if number is not None and number > 0
                else str(error.os_error.strerror or "no answer")
            )
            return Unreachable(self.system, f"{_shown(why)}; is it running, and is --url right?")
        return Unreachable(self.system, f"the connection broke ({type(error).__name__}); is it Grafana's HTTP address?")

    def _no_grafana(self) -> MalformedResponse:
        return MalformedResponse(
            self.system,
            "what answers there is not Grafana's API; give its base address, sub-path included, as --url",
            retryable=False,
        )


def checked_uid(uid: str, where: str) -> None:
    """Raises ConfigError: Grafana takes no such uid."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", uid) or len(uid) > MAX_UID:
        raise ConfigError([f"{where}: {_shown(uid)!r} is no uid; a-z, 0-9, - and _, {MAX_UID} characters at the most"])


def _shown(text: str) -> str:
    """Foreign text for one line of a message."""
    clean = one_line(text)
    return clean if len(clean) <= 200 else clean[:200] + "…"
