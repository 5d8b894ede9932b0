"""Ways for a request to end, as scripts of the stub, and what each must be called."""

from __future__ import annotations

from sre.gate.records import Cause, Outcome
from tests.support.sse_stub import Exchange, good


async def error_event(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.words(3)
    await exchange.event({"error": {"message": "out of memory", "type": "InternalServerError"}}, "error")
    await exchange.usage(3)
    await exchange.done()
    await exchange.end()


async def no_done(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.words(4)
    await exchange.end()


async def early_close(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text()
    exchange.cut()


async def early_close_without_length(exchange: Exchange) -> None:
    await exchange.head(chunked=False)
    await exchange.text()


async def no_tokens(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text("", finish="stop")
    await exchange.usage(0)
    await exchange.done()
    await exchange.end()


async def no_finish(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text()
    await exchange.done()
    await exchange.end()


async def abort(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.text(finish="abort")
    await exchange.done()
    await exchange.end()


async def busy(exchange: Exchange) -> None:
    await exchange.whole(503, {"error": {"message": "overloaded", "code": 503}})


async def queue_full(exchange: Exchange) -> None:
    message = "The engine is currently busy. Please try again later or on a different instance."
    await exchange.whole(503, {"error": {"message": message}})


async def gateway(exchange: Exchange) -> None:
    await exchange.whole(503, {"error": {"message": "refused"}}, x_sre_reason="hang")


async def limited(exchange: Exchange) -> None:
    await exchange.whole(429, {"error": {"message": "slow down"}})


async def wrong(exchange: Exchange) -> None:
    await exchange.whole(400, {"object": "error", "message": "bad prompt"})


async def redirect(exchange: Exchange) -> None:
    await exchange.whole(307, b"", location="/elsewhere")


async def html(exchange: Exchange) -> None:
    await exchange.whole(200, b"<html><body>Sign in</body></html>", content_type="text/html")


async def no_head(exchange: Exchange) -> None:
    exchange.cut()


async def not_http(exchange: Exchange) -> None:
    await exchange.raw(b"SSH-2.0-OpenSSH_9.2\r\n")
    exchange.cut()


ENDINGS = {
    good: (Cause.OK, Outcome.SUCCESS),
    error_event: (Cause.ERROR_EVENT, Outcome.FAILURE),
    no_done: (Cause.TRUNCATED, Outcome.FAILURE),
    early_close: (Cause.TRUNCATED, Outcome.FAILURE),
    early_close_without_length: (Cause.TRUNCATED, Outcome.FAILURE),
    no_tokens: (Cause.NO_CONTENT, Outcome.FAILURE),
    no_finish: (Cause.NO_FINISH, Outcome.FAILURE),
    abort: (Cause.NO_FINISH, Outcome.FAILURE),
    busy: (Cause.SERVER_ERROR, Outcome.FAILURE),
    queue_full: (Cause.REFUSED, Outcome.NEUTRAL),
    gateway: (Cause.REFUSED, Outcome.NEUTRAL),
    limited: (Cause.RATE_LIMITED, Outcome.NEUTRAL),
    wrong: (Cause.CLIENT_ERROR, Outcome.NEUTRAL),
    redirect: (Cause.REDIRECT, Outcome.NEUTRAL),
    html: (Cause.MALFORMED, Outcome.FAILURE),
    no_head: (Cause.TRANSPORT, Outcome.FAILURE),
    not_http: (Cause.MALFORMED, Outcome.FAILURE),
}
