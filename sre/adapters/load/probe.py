"""First requests to a server: is it there, which model, how does it count tokens, does it stream."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import aiohttp
from yarl import URL

from sre.adapters.load.bodies import request_document
from sre.adapters.load.session import open_session
from sre.adapters.load.wire import Target
from sre.clock import Clock
from sre.errors import ConfigError, DependencyError, MalformedResponse, Rejected, SreError, Unreachable
from sre.gate.answer import Answer
from sre.gate.ending import Ending, moved_base, of_answer, of_status
from sre.gate.prompts import TOLERANCE_RATIO, PromptScale, prompt, scale_by_chars, scale_from
from sre.gate.records import Cause
from sre.gate.result import Smoke
from sre.gate.stages import RequestClass
from sre.printable import one_line

FEW_WORDS = 24
MANY_WORDS = 512
CHECK_WORDS = 2048
NONCES_COUNTED = 8
"""Of the prompts that are counted to learn how many tokens a word has."""
ROOM_RATIO = 0.5
"""Of the model's context that such a prompt may take."""
ANSWER_TOKENS = 8
PROMPTS_TRIED = 6
MOST_NAMES = 10
MOST_BODY_BYTES = 16 << 20
OPTIONAL_SECONDS = 10.0
"""For an answer without which a run can do."""


class Probe:
    """
    Asks ``target``; afterwards ``target`` has the model's name, and ``scale`` how long prompts become.

    Args:
        classes: What will be sent; ``smoke`` asks for one of each, and hangs up when it is taken.

    Raises:
        Unreachable, Rejected, MalformedResponse: As ``LoadGenerator.smoke`` says.
        ConfigError: The URL is none.
    """

    def __init__(
        self, target: Target, clock: Clock, timeout_seconds: float, classes: Sequence[RequestClass] = ()
    ) -> None:
        self.target = target
        self.scale: PromptScale = scale_by_chars()
        self._clock, self._timeout_seconds, self._classes = clock, timeout_seconds, tuple(classes)
        self._session: aiohttp.ClientSession | None = None
        self._salt = f"sre-gate-{os.urandom(4).hex()}-0"
        self._asked = 0
        self._max_model_len: int | None = None
        self._location = ""
        """Where the last redirect of a completion pointed."""
        self._silent: dict[str, str] = {}
        """Optional path that was not answered → why."""
        try:
            url = URL(target.url)
            shown = str(url.with_user(None)) if url.host else ""
        except ValueError:
            shown = ""
        if not shown or url.scheme not in ("http", "https"):
            raise ConfigError([f"gate.target.url: {target.url!r} is no URL; write http://host:port"])
        self._system = f"target {shown}"

    async def __aenter__(self) -> Self:
        self._session = open_session(self.target)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not answered, and could be done without."""
        return tuple(f"{path} was left out: {why}" for path, why in self._silent.items())

    async def learn(self) -> None:
        """The model's name, and how it counts."""
        await self._find_model()
        await self._find_scale()

    async def smoke(self) -> Smoke:
        """See ``sre.control.gate_ports.LoadGenerator.smoke``."""
        await self.learn()
        server = await self._server()
        _, ending = await self._ask(stream=False)
        self._refuse_broken(ending, "a completion")
        streamed, streamed_ending = await self._ask(stream=True)
        if streamed_ending.cause is Cause.CLIENT_ERROR and "stream_options" in streamed_ending.detail:
            self.target = replace(self.target, usage=False)
            streamed, streamed_ending = await self._ask(stream=True)
        self._refuse_broken(streamed_ending, "a streamed completion")
        problems = [
            f"{what}: {one.cause.value}, {one.detail}"
            for what, one in (("whole answer", ending), ("streamed answer", streamed_ending))
            if one.cause is not Cause.OK
        ]
        for kind in self._classes if not problems else ():
            await self._try(kind)
        return Smoke(
            ok=not problems,
            detail="; ".join(problems),
            model=self.target.model,
            max_model_len=self._max_model_len,
            streaming=streamed_ending.cause is Cause.OK and streamed.first_event_at is not None,
            usage_reported=streamed.output_tokens is not None,
            prompt_sizing=self.scale.method,
            server=server,
        )

    # ---- model -----------------------------------------------------------------------------------------------------

    async def _find_model(self) -> None:
        status, body, headers = await self._request("GET", "/v1/models")
        if status in (404, 405) and self.target.model:
            return  # some servers list no models
        if status in (401, 403):
            raise Rejected(
                self._system, f"refuses the API key (HTTP {status}); set gate.target.api_key, e.g. env:OPENAI_API_KEY"
            )
        if status != 200:
            location = headers.get("Location", "")
            moved = moved_base(f"{self.target.url}/v1/models", self.target.url, location)
            remedy = f"write {moved}" if moved else "it must be the base URL of an OpenAI-compatible server"
            raise Rejected(
                self._system,
                f"{of_status(status, None, body, location).detail} for /v1/models; correct gate.target.url: {remedy}",
            )
        found = _json(body)
        data = found.get("data") if isinstance(found, dict) else None
        if not isinstance(data, list) or not all(isinstance(one, dict) and "id" in one for one in data):
            raise MalformedResponse(
                self._system, "/v1/models is no list of models; gate.target.url must be an OpenAI-compatible server"
            )
        models = {str(one["id"]): one for one in data}
        if not models:
            raise Rejected(self._system, "serves no model; load one first")
        if not self.target.model:
            self.target = replace(self.target, model=next(iter(models)))
        if self.target.model not in models:
            names = ", ".join(list(models)[:MOST_NAMES])
            raise Rejected(
                self._system, one_line(f"serves no model {self.target.model}; it serves {names}: set gate.target.model")
            )
        length = models[self.target.model].get("max_model_len")
        self._max_model_len = length if isinstance(length, int) and length > 0 else None

    async def _server(self) -> str:
        status, body, headers = await self._optional("GET", "/version")
        found = _json(body) if status == 200 else None
        if isinstance(found, dict) and isinstance(found.get("version"), str):
            return one_line(f"vllm {found['version']}"[:80])
        return one_line(headers.get("Server", "unknown")[:80])

    # ---- prompt length ---------------------------------------------------------------------------------------------

    async def _find_scale(self) -> None:
        for method, count in (("tokenize", self._tokenized), ("usage", self._used)):
            counted = await count(FEW_WORDS)
            if counted is None:
                continue
            first = float(counted)
            if method == "tokenize":
                # Cheap, so several: where a tokenizer knows few words, nonces differ in length.
                more = [await count(FEW_WORDS) for _ in range(NONCES_COUNTED - 1)]
                first = sum([first, *(one or first for one in more)]) / NONCES_COUNTED
            second_words = self._many(MANY_WORDS, FEW_WORDS, first)
            second = await count(second_words)
            if second is None:
                continue
            try:
                scale = scale_from((FEW_WORDS, first), (second_words, second), method)
            except ValueError:
                continue
            check_words = self._many(CHECK_WORDS, FEW_WORDS, first)
            check = await count(check_words) if method == "tokenize" and check_words > second_words else None
            if check is not None and abs(scale.tokens(check_words) / check - 1) > TOLERANCE_RATIO:
                scale = scale_from((FEW_WORDS, first), (check_words, check), method)
            self.scale = scale
            return
        self.scale = scale_by_chars()

    def _many(self, wanted: int, few: int, few_tokens: float) -> int:
        """``wanted`` words, or what has room in the model's context."""
        if self._max_model_len is None:
            return wanted
        return max(few + 1, min(wanted, int(self._max_model_len * ROOM_RATIO * few / max(1, few_tokens))))

    async def _tokenized(self, words: int) -> int | None:
        text = self._prompt(words)
        body: dict[str, Any] = {"model": self.target.model}
        body |= {"messages": [{"role": "user", "content": text}]} if self.target.api == "chat" else {"prompt": text}
        status, answer, _ = await self._optional("POST", "/tokenize", body)
        found = _json(answer) if status == 200 else None
        count = found.get("count") if isinstance(found, dict) else None
        return count if isinstance(count, int) and count > 0 else None

    async def _used(self, words: int) -> int | None:
        body = request_document(self.target, self._prompt(words), max_tokens=1, stream=False, fixed_length=False)
        status, answer, _ = await self._request("POST", self.target.path_url.removeprefix(self.target.url), body)
        if status != 200:
            return None
        found = Answer()
        found.feed(answer, 0.0)
        found.end(0.0)
        return found.prompt_tokens or None

    def _prompt(self, words: int) -> str:
        self._asked += 1
        return prompt(self._salt, "probe", self._asked, words)

    # ---- requests --------------------------------------------------------------------------------------------------

    async def _ask(self, *, stream: bool) -> tuple[Answer, Ending]:
        """One answer; what a prompt without sense is answered with may be without text, so others are tried."""
        for _ in range(PROMPTS_TRIED):
            answer, ending = await self._ask_once(stream=stream)
            if ending.cause is not Cause.NO_CONTENT:
                break
        return answer, ending

    async def _ask_once(self, *, stream: bool) -> tuple[Answer, Ending]:
        document = request_document(
            self.target, self._prompt(FEW_WORDS), max_tokens=ANSWER_TOKENS, stream=stream, fixed_length=False
        )
        path = self.target.path_url.removeprefix(self.target.url)
        status, body, headers = await self._request("POST", path, document)
        answer = Answer()
        if status != 200:
            self._location = headers.get("Location", "")
            return answer, of_status(status, headers.get("x-sre-reason"), body, self._location)
        at = self._clock.monotonic()
        answer.feed(body, at)
        answer.end(at)
        content_type = headers.get("Content-Type", "")
        return answer, of_answer(answer, cut=None, max_tokens=ANSWER_TOKENS, content_type=content_type)

    async def _try(self, kind: RequestClass) -> None:
        """
        Whether a request as the stages will send it is taken: what the server refuses would else be counted as its
        failure. Anything but a refusal of the request itself is for the stages to see.
        """
        ending = await self._head(kind, fixed_length=kind.fixed_length)
        if ending is None or ending.cause is not Cause.CLIENT_ERROR:
            return
        remedy = "change prompt_tokens, max_tokens or headers of that class in gate.load.mix"
        if kind.fixed_length and await self._head(kind, fixed_length=False) is None:
            remedy = "it takes one without ignore_eos: set fixed_length: false for that class in gate.load.mix"
        room = "" if self._max_model_len is None else f" (the model takes {self._max_model_len} with the answer)"
        raise Rejected(
            self._system,
            f"refuses a request of class {kind.name}, {kind.prompt_tokens} prompt tokens and {kind.max_tokens} of "
            f"answer{room}: {ending.detail}; {remedy}",
        )

    async def _head(self, kind: RequestClass, *, fixed_length: bool) -> Ending | None:
        """How a request of ``kind`` ends before its body; None: it is taken, or not answered in time."""
        assert self._session is not None
        document = request_document(
            self.target,
            self._prompt(self.scale.words(kind.prompt_tokens)),
            max_tokens=kind.max_tokens,
            stream=True,
            fixed_length=fixed_length,
        )
        path = self.target.path_url.removeprefix(self.target.url)
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                self._session.post(
                    self.target.url + path,
                    data=json.dumps(document).encode(),
                    headers=dict(kind.headers),
                    allow_redirects=False,
                ) as response,
            ):
                if response.status == 200:
                    response.close()
                    return None
                body = await response.content.read(MOST_BODY_BYTES)
                found = response.headers
                return of_status(response.status, found.get("x-sre-reason"), body, found.get("Location"))
        except TimeoutError:
            return None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Others were answered a moment ago: this kind of request is what the server breaks off at.
            return Ending(Cause.TRANSPORT, str(self._failed(error, path)))

    def _refuse_broken(self, ending: Ending, what: str) -> None:
        if ending.cause is Cause.MALFORMED:
            raise MalformedResponse(self._system, f"{what} cannot be read: {ending.detail}; is it OpenAI-compatible?")
        if ending.cause is Cause.REDIRECT:
            moved = moved_base(self.target.path_url, self.target.url, self._location)
            remedy = f"write {moved}" if moved else "it must be the base URL of an OpenAI-compatible server"
            raise Rejected(
                self._system,
                f"redirects {what}: {ending.detail}; redirects are not followed: correct gate.target.url: {remedy}",
            )
        if ending.cause is Cause.CLIENT_ERROR:
            raise Rejected(self._system, f"refuses {what}: {ending.detail}; check gate.target (url, model, api)")

    async def _optional(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """As ``_request``; status 0 where nothing that can be read comes, and from then on without asking again."""
        if path in self._silent:
            return 0, b"", {}
        seconds = min(self._timeout_seconds, OPTIONAL_SECONDS)
        try:
            return await self._request(method, path, body, seconds)
        except (Unreachable, MalformedResponse) as error:
            slow = isinstance(error.__cause__, TimeoutError)
            self._silent[path] = f"no answer within {seconds:g} s" if slow else _said_of(error)
            return 0, b"", {}

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float | None = None
    ) -> tuple[int, bytes, Mapping[str, str]]:
        assert self._session is not None
        data = None if body is None else json.dumps(body).encode()
        try:
            async with (
                asyncio.timeout(self._timeout_seconds if seconds is None else seconds),
                self._session.request(method, self.target.url + path, data=data, allow_redirects=False) as response,
            ):
                raw = await response.content.read(MOST_BODY_BYTES)
                while len(raw) < MOST_BODY_BYTES and (more := await response.content.read(MOST_BODY_BYTES)):
                    raw += more
                return response.status, raw, response.headers
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise self._failed(error, path) from error

    def _failed(self, error: Exception, path: str) -> SreError:
        text = one_line(_said(error))
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return Unreachable(
                self._system,
                f"its TLS certificate is not trusted: {text}; name its authority in gate.target.tls_ca_file",
                retryable=False,
            )
        if isinstance(error, aiohttp.ClientConnectorSSLError | aiohttp.ServerFingerprintMismatch):
            return Unreachable(self._system, f"TLS failed: {text}; is it http:// instead?", retryable=False)
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return Unreachable(self._system, f"its name has no address: {text}; check --url, or gate.target.url")
        if isinstance(error, TimeoutError):
            return Unreachable(self._system, f"no answer to {path} within {self._timeout_seconds:g} s; is it loaded?")
        if isinstance(error, aiohttp.ClientConnectorError):
            return Unreachable(self._system, f"no connection: {text}; start it, or check --url, or gate.target.url")
        if isinstance(error, aiohttp.ClientResponseError | ValueError) or type(error) is aiohttp.ClientPayloadError:
            return MalformedResponse(self._system, f"what answers {path} is no HTTP server we can read: {text}")
        instead = ", or https:// instead" if self.target.url.startswith("http://") else ""
        return Unreachable(self._system, f"the connection broke at {path}: {text}; is it up{instead}?")


def _said_of(error: DependencyError) -> str:
    """The sentence without whom it is of, and without what to do."""
    return str(error).removeprefix(f"{error.system}: ").partition(";")[0]


def _said(error: Exception) -> str:
    """What went wrong, without what aiohttp wraps around it."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        if isinstance(cause, ssl.SSLError):
            return cause.reason or str(cause)
        # "Connect call failed ('127.0.0.1', 1)" says less than its number.
        return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror or str(cause)
    return str(error) or type(error).__name__


def _json(body: bytes) -> Any:
    """The JSON in ``body``; None: it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
