"""Answers of an engine and of an API server: bounded, decoded, and the text of their errors."""

from __future__ import annotations

from typing import Any, Final

import httpx
import orjson

from tasks.executor.containers.errors import EngineError

__all__ = ["AnswerTooLarge", "answer_json", "error_text", "read_answer"]

ANSWER_BYTES_MAX: Final = 16 << 20
_ERROR_SHOWN: Final = 400


class AnswerTooLarge(EngineError):
    """An answer has more than ``ANSWER_BYTES_MAX``."""


async def read_answer(answer: httpx.Response) -> bytes:
    """Return the body of an answer. Raises AnswerTooLarge for one of more than ``ANSWER_BYTES_MAX``."""
    found = bytearray()
    async for data in answer.aiter_raw():
        found += data
        if len(found) > ANSWER_BYTES_MAX:
            raise AnswerTooLarge(answer.status_code, f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    return bytes(found)


def answer_json(data: bytes) -> Any:
    """Return what an answer says. Raises EngineError for one that is not JSON."""
    try:
        return orjson.loads(data)
    except (ValueError, RecursionError):
        raise EngineError(200, "an answer that is not JSON") from None


def error_text(data: bytes) -> str:
    """Return the text of an answer that is an error: its ``message``, or the start of whatever it is."""
    try:
        text = str(orjson.loads(data)["message"])
    except (ValueError, RecursionError, KeyError, TypeError):
        text = data.decode("utf-8", "replace")
    return " ".join(text.split())[:_ERROR_SHOWN] or "no text"
