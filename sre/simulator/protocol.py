"""
vLLM's OpenAI protocol as the simulated engine speaks it: request bodies checked, errors and answers rendered.

Field names and their order are vLLM's: gateways and clients look for ``"choices":[{"index":``. Pure: time and ids are
passed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sre.simulator.text import count_tokens

FINGERPRINT = "sre-simulated-engine"
"""system_fingerprint of every answer: nobody shall take it for a model."""
DEFAULT_COMPLETION_TOKENS = 16
MAX_N = 16384

BAD_REQUEST = "BadRequestError"  # a value that vLLM's own checks refuse
INVALID = "Bad Request"  # a body that does not have the shape
NOT_FOUND = "NotFoundError"
INTERNAL = "InternalServerError"
BUSY = "Service Unavailable"


class ApiError(Exception):
    """An answer in vLLM's error form."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def engine_dead() -> ApiError:
    """What vLLM answers when its engine core has died."""
    return ApiError(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", INTERNAL)


def generation_failed() -> ApiError:
    """What vLLM answers when a request ended with finish_reason error."""
    return ApiError(500, "Internal server error", INTERNAL)


def shutting_down() -> ApiError:
    """What vLLM answers to new completions after SIGTERM."""
    return ApiError(500, "cannot schedule new futures after shutdown", INTERNAL)


def queue_full() -> ApiError:
    """vLLM's answer above --max-num-queued-reqs; it sends no Retry-After."""
    return ApiError(
        503,
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance.",
        BUSY,
    )


@dataclass(frozen=True, slots=True)
class Call:
    """A checked completion request. ``prompts`` are encoded texts, or numbers of tokens for prompts given as tokens."""

    chat: bool
    prompts: Sequence[bytes | int]
    max_tokens: int
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    ignore_eos: bool
    priority: int


def parse_json(text: bytes) -> dict[str, Any]:
    """
    The JSON object in a body.

    Raises:
        ApiError: 400, in the form of vLLM's validation errors.
    """
    try:
        body = json.loads(text)
    except ValueError as error:
        position = getattr(error, "pos", 0)
        detail = {"type": "json_invalid", "loc": f"body.{position}", "msg": "JSON decode error"}
        raise _invalid(detail, f"body.{position}") from error
    except RecursionError as error:
        raise _invalid({"type": "json_invalid", "loc": "body", "msg": "JSON decode error"}, "body") from error
    if not isinstance(body, dict):
        detail = {"type": "model_attributes_type", "loc": "body", "msg": "Input should be a valid dictionary"}
        raise _invalid(detail, "body")
    return body


def parse_call(body: Mapping[str, Any], *, chat: bool, model: str, max_model_len: int, priority: str | None) -> Call:
    """
    Check a completion request as vLLM does; fields that are not known are ignored.

    Args:
        model: The served model name.
        priority: Header X-Vllm-Priority; wins over the body unless it is no number.

    Raises:
        ApiError: 400 or 404.
    """
    _check_types(body, chat)
    asked_model = body.get("model")
    if asked_model and asked_model != model:
        raise ApiError(404, f"The model `{asked_model}` does not exist. Valid aliases: {model}.", NOT_FOUND, "model")
    options = body.get("stream_options")
    if options and not body.get("stream"):
        raise _bad(
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)", "stream_options"
        )
    prompts = _chat_prompts(body) if chat else _prompts(body)
    n = _n(body)
    _check_sampling(body)
    longest = max(_tokens(prompt) for prompt in prompts)
    limit = _max_tokens(body, chat, longest, max_model_len)
    return Call(
        chat=chat,
        prompts=prompts,
        max_tokens=limit,
        n=n,
        stream=bool(body.get("stream")),
        include_usage=bool(options and options.get("include_usage")),
        continuous_usage=bool(options and options.get("include_usage") and options.get("continuous_usage_stats")),
        ignore_eos=bool(body.get("ignore_eos")),
        priority=_priority(priority, body.get("priority")),
    )


def chat_text(messages: Sequence[Any]) -> str:
    """The prompt that a conversation becomes."""
    lines = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        lines.append(f"{message.get('role', 'user')}: {content or ''}\n")
    return "".join([*lines, "assistant: "])


def _tokens(prompt: bytes | int) -> int:
    return prompt if isinstance(prompt, int) else count_tokens(prompt)


def _bad(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, BAD_REQUEST, param)


def _invalid(detail: Mapping[str, str], param: str | None) -> ApiError:
    return ApiError(400, f"1 validation error:\n  {dict(detail)}", INVALID, param)


_TYPES: Mapping[str, tuple[tuple[type, ...], str, str]] = {
    "model": ((str,), "string_type", "Input should be a valid string"),
    "max_tokens": ((int,), "int_parsing", "Input should be a valid integer"),
    "max_completion_tokens": ((int,), "int_parsing", "Input should be a valid integer"),
    "n": ((int,), "int_parsing", "Input should be a valid integer"),
    "priority": ((int,), "int_parsing", "Input should be a valid integer"),
    "stream": ((bool,), "bool_parsing", "Input should be a valid boolean"),
    "ignore_eos": ((bool,), "bool_parsing", "Input should be a valid boolean"),
    "stream_options": ((dict,), "model_attributes_type", "Input should be a valid dictionary"),
    "frequency_penalty": ((int, float), "float_parsing", "Input should be a valid number"),
    "presence_penalty": ((int, float), "float_parsing", "Input should be a valid number"),
    "temperature": ((int, float), "float_parsing", "Input should be a valid number"),
    "top_p": ((int, float), "float_parsing", "Input should be a valid number"),
}


def _check_types(body: Mapping[str, Any], chat: bool) -> None:
    if chat and "messages" not in body:
        raise _invalid({"type": "missing", "loc": "body.messages", "msg": "Field required"}, "body.messages")
    for name, (types, kind, text) in _TYPES.items():
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise _invalid({"type": kind, "loc": f"body.{name}", "msg": text}, f"body.{name}")
    messages = body.get("messages")
    if chat and not (isinstance(messages, list) and all(isinstance(item, dict) for item in messages)):
        detail = {"type": "list_type", "loc": "body.messages", "msg": "Input should be a valid list"}
        raise _invalid(detail, "body.messages")


def _prompts(body: Mapping[str, Any]) -> list[bytes | int]:
    prompt = body.get("prompt")
    if prompt is None or prompt == "" or prompt == []:
        raise _bad("Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt")
    if isinstance(prompt, str):
        return [prompt.encode(errors="replace")]
    if isinstance(prompt, list):
        if all(isinstance(item, str) for item in prompt):
            return [item.encode(errors="replace") or b" " for item in prompt]
        if _is_tokens(prompt):
            return [len(prompt)]
        if all(isinstance(item, list) and item and _is_tokens(item) for item in prompt):
            return [len(item) for item in prompt]
    raise _invalid(
        {"type": "string_type", "loc": "body.prompt", "msg": "Input should be a valid string"}, "body.prompt"
    )


def _is_tokens(items: Sequence[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in items)


def _chat_prompts(body: Mapping[str, Any]) -> list[bytes | int]:
    if not body["messages"]:
        raise _bad("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return [chat_text(body["messages"]).encode(errors="replace")]


def _n(body: Mapping[str, Any]) -> int:
    n = body.get("n")
    n = 1 if n is None else n
    if n < 1:
        raise _bad(f"n must be at least 1, got {n}.")
    if n > MAX_N:
        raise _bad(f"n must be at most {MAX_N}, got {n}.")
    assert isinstance(n, int)
    return n


def _check_sampling(body: Mapping[str, Any]) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        value = body.get(name)
        if value is not None and not -2 <= value <= 2:
            raise _bad(f"{name} must be in [-2, 2], got {float(value)}.")
    temperature = body.get("temperature")
    if temperature is not None and not temperature >= 0:
        text = f"temperature must be non-negative, got {float(temperature)}."
        raise _bad(f"{text} (parameter=temperature, value={float(temperature)})", "temperature")
    top_p = body.get("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise _bad(f"top_p must be in (0, 1], got {float(top_p)}. (parameter=top_p, value={float(top_p)})", "top_p")


def _max_tokens(body: Mapping[str, Any], chat: bool, longest: int, max_model_len: int) -> int:
    asked = body.get("max_completion_tokens") if chat else None
    if asked is None:
        asked = body.get("max_tokens")
    if asked is None and not chat:
        asked = DEFAULT_COMPLETION_TOKENS
    if asked is not None and asked > max_model_len:
        raise _bad(
            f"max_tokens={asked} cannot be greater than max_model_len={max_model_len}. Please request fewer output "
            f"tokens. (parameter=max_tokens, value={asked})",
            "max_tokens",
        )
    if longest > max_model_len or (longest == max_model_len and asked is None):
        raise _bad(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least "
            f"{longest} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
            f"length of the input prompt. (parameter=input_tokens, value={longest})",
            "input_tokens",
        )
    if asked is not None and asked < 1:
        raise _bad(f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})", "max_tokens")
    if asked is not None and longest + asked > max_model_len:
        raise _bad(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {asked} output "
            f"tokens and your prompt contains at least {longest} input tokens, for a total of at least "
            f"{longest + asked} tokens. Please reduce the length of the input prompt or the number of requested output "
            f"tokens. (parameter=input_tokens, value={longest})",
            "input_tokens",
        )
    return max_model_len - longest if asked is None else int(asked)


def _priority(header: str | None, body: Any) -> int:
    if header is not None:
        try:
            return int(header)
        except ValueError:
            pass
    return body if isinstance(body, int) else 0
