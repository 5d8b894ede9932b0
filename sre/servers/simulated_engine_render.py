"""Answers of the simulated engine as bytes: completion objects and SSE chunks, fields in vLLM's order."""

from __future__ import annotations

import json
from typing import Any

from sre.servers.simulated_engine_client import Generation, Sequence
from sre.simulator.protocol import FINGERPRINT, ApiError, Call
from sre.simulator.text import answer

DONE = b"data: [DONE]\n\n"
_FINGERPRINT_FIELD = f',"system_fingerprint":"{FINGERPRINT}"'


def compact(value: Any) -> bytes:
    """JSON as vLLM writes it: no spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def text_of(sequence: Sequence, start: int, end: int) -> str:
    """The answer's tokens ``start`` to ``end`` as text."""
    return answer(sequence.offset, start, end - start)


def usage(generation: Generation) -> dict[str, Any]:
    completion = generation.completion_tokens
    return {
        "prompt_tokens": generation.prompt_tokens,
        "total_tokens": generation.prompt_tokens + completion,
        "completion_tokens": completion,
    }


def whole_answer(call: Call, generation: Generation, *, created: int, model: str) -> bytes:
    """The answer to a call without ``stream``."""
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    choices: list[dict[str, Any]] = []
    for sequence in generation.sequences:
        text = text_of(sequence, 0, sequence.tokens)
        finish = sequence.finish.value if sequence.finish else None
        choice: dict[str, Any] = {"index": sequence.index}
        if call.chat:
            choice["message"] = {
                "role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None,
                "function_call": None, "reasoning": None,
            }  # fmt: skip
            choice |= {"logprobs": None, "finish_reason": finish, "stop_reason": None, "token_ids": None}
        else:
            choice |= {"text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            choice |= {"token_ids": None, "prompt_logprobs": None, "prompt_token_ids": None}
        choice["routed_experts"] = None
        choices.append(choice)
    document: dict[str, Any] = {
        "id": generation.request_id,
        "object": "chat.completion" if call.chat else "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": usage(generation) | details,
    }
    if call.chat:
        document |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    return compact(document | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})


class Chunks:
    """SSE chunks of one streamed call."""

    def __init__(self, call: Call, generation: Generation, *, created: int, model: str) -> None:
        self._call = call
        self._generation = generation
        kind = "chat.completion.chunk" if call.chat else "text_completion"
        request_id, name = json.dumps(generation.request_id), json.dumps(model, ensure_ascii=False)
        self._head = f'data: {{"id":{request_id},"object":"{kind}","created":{created},"model":{name},"choices":['
        self._opened = not call.chat

    def news(self) -> bytes:
        """Chunks for what came since the last call: one per choice, however many tokens."""
        parts: list[str] = []
        sequences = self._generation.take()
        if not self._opened and sequences:
            self._opened = True
            parts.extend(self._role(sequence) for sequence in self._generation.sequences)
        for sequence in sequences:
            if sequence.tokens > sequence.sent or sequence.finish is not None:
                parts.append(self._chunk(sequence))
        return "".join(parts).encode()

    def last(self) -> bytes:
        """The usage chunk, if asked for, and the end mark."""
        if not self._call.include_usage:
            return DONE
        tail = compact(usage(self._generation)).decode()
        return f'{self._head}],"usage":{tail}{_FINGERPRINT_FIELD}}}\n\n'.encode() + DONE

    def _role(self, sequence: Sequence) -> str:
        return (
            f'{self._head}{{"index":{sequence.index},"delta":{{"role":"assistant","content":""}},"logprobs":null,'
            f'"finish_reason":null}}]{self._running_usage(0)},"prompt_token_ids":null,"prompt_text":null}}\n\n'
        )

    def _chunk(self, sequence: Sequence) -> str:
        text = text_of(sequence, sequence.sent, sequence.tokens)  # plain ASCII words: needs no escaping
        sequence.sent = sequence.tokens
        finish = f'"{sequence.finish.value}"' if sequence.finish else "null"
        tail = self._running_usage(sequence.tokens)
        if sequence.finish and not self._call.include_usage:
            tail = _FINGERPRINT_FIELD
        if self._call.chat:
            stop = '"stop_reason":null,' if sequence.finish else ""
            return (
                f'{self._head}{{"index":{sequence.index},"delta":{{"content":"{text}"}},"logprobs":null,'
                f'"finish_reason":{finish},{stop}"token_ids":null}}]{tail}}}\n\n'
            )
        return (
            f'{self._head}{{"index":{sequence.index},"text":"{text}","logprobs":null,"finish_reason":{finish},'
            f'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}}]{tail}}}\n\n'
        )

    def _running_usage(self, tokens: int) -> str:
        if not self._call.continuous_usage:
            return ""
        prompt = self._generation.prompt_tokens
        return (
            f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + tokens},"completion_tokens":{tokens},'
            '"completion_tokens_details":null}'
        )


def error_event(error: ApiError) -> bytes:
    """How an error reaches the client of a stream whose 200 was already sent."""
    return b"data: " + json.dumps(error.body).encode() + b"\n\n" + DONE
