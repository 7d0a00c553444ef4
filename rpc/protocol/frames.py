"""Frames between the node and its gateway: a length and the canonical bytes of one array.

A request is ``[id, method, params]`` with id > 0, its answer ``[id, None, value]`` or
``[id, code, message, [[name, value], ...]]``; a pushed message (a new head) is ``[0, topic, value]``.
Requests are pipelined: answers may come in any order.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from state.primitives.codec import INTEGER_BITS_MAX, Value, decode, encode
from state.primitives.errors import DecodeError, DekubeError

__all__ = [
    "ANSWER_LIMIT_BYTES",
    "REQUEST_LIMIT_BYTES",
    "Answer",
    "Failure",
    "FrameBuffer",
    "Push",
    "Request",
    "Unreadable",
    "encode_answer",
    "encode_failure",
    "encode_push",
    "encode_request",
    "failure_value",
    "read_answer",
    "read_failure",
    "read_request",
]

REQUEST_LIMIT_BYTES: Final = 1024 * 1024 + 64 * 1024
"""Room for a piece of a blob."""
ANSWER_LIMIT_BYTES: Final = 48 * 1024 * 1024
"""Room for the largest block with its receipts."""
IDENTIFIER_MAX: Final = 2**53
METHOD_LIMIT_CHARACTERS: Final = 64
MESSAGE_LIMIT_CHARACTERS: Final = 1024
FIELDS_MAX: Final = 16
_LENGTH_BYTES: Final = 4


class Request(NamedTuple):
    """A request of the gateway."""

    identifier: int
    method: str
    params: list[Any]


class Answer(NamedTuple):
    """A successful answer of the node."""

    identifier: int
    value: Any


class Failure(NamedTuple):
    """A failed request: the stable code of the error, its text and its values."""

    identifier: int
    code: str
    message: str
    fields: tuple[tuple[str, int | str], ...]


class Push(NamedTuple):
    """A message that the node pushes to the gateway."""

    topic: str
    value: Any


class Unreadable(NamedTuple):
    """A malformed frame of which only the request's number can be read."""

    identifier: int
    reason: str


Reply: TypeAlias = Answer | Failure | Push


class FrameBuffer:
    """Cuts a stream of bytes into decoded arrays. One buffer reads one direction of one connection."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Return the values completed by ``data``, ``Unreadable`` for malformed frames whose number can be read.

        Raises DecodeError when the other side does not speak the protocol; the connection is then useless.
        """
        buffer = self._data
        buffer += data
        values: list[Any] = []
        start = 0
        while len(buffer) - start >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[start : start + _LENGTH_BYTES], "big")
            if length > self._limit_bytes:
                raise DecodeError(f"a frame of {length} bytes, limit {self._limit_bytes}")
            end = start + _LENGTH_BYTES + length
            if len(buffer) < end:
                break
            body = bytes(buffer[start + _LENGTH_BYTES : end])
            try:
                # Between a node and its own gateway: answers may be dense, and nobody else can send here.
                values.append(decode(body, limit_bytes=self._limit_bytes, limit_items=length))
            except DecodeError as error:
                # One request of many on this connection: the others must not fail with it.
                identifier = _identifier_of(body)
                if not identifier:
                    raise
                values.append(Unreadable(identifier, str(error)))
            start = end
        del buffer[:start]
        return values


def _identifier_of(body: bytes) -> int:
    """Return the number at the start of a frame, 0 if there is none."""
    if len(body) < 2 or not 0x82 <= body[0] < 0x98 or body[1] > 0x1B:  # an array of 2 to 23; a natural number
        return 0
    width = 0 if body[1] < 24 else 1 << body[1] - 24
    found = int.from_bytes(body[2 : 2 + width], "big") if width else body[1]
    return found if found < IDENTIFIER_MAX and len(body) >= 2 + width else 0


def _frame(value: Value) -> bytes:
    body = encode(value)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def encode_request(identifier: int, method: str, params: list[Value]) -> bytes:
    """Return the frame of a request."""
    return _frame([identifier, method, params])


def encode_answer(identifier: int, value: Value) -> bytes:
    """Return the frame of an answer."""
    return _frame([identifier, None, value])


def encode_failure(identifier: int, error: DekubeError) -> bytes:
    """Return the frame that carries ``error``: its code, text and public values."""
    return _frame([identifier, *failure_value(error)])


def failure_value(error: DekubeError) -> list[Value]:
    """Return code, text and public values of ``error``, as they stand in a frame."""
    fields: list[Value] = []
    for name, value in vars(error).items():
        if name.startswith("_") or len(fields) == FIELDS_MAX:
            continue
        if type(value) is str:
            fields.append([name, value[:MESSAGE_LIMIT_CHARACTERS]])
        elif type(value) is int and value.bit_length() <= INTEGER_BITS_MAX:
            fields.append([name, value])
    return [error.code, str(error)[:MESSAGE_LIMIT_CHARACTERS], fields]


def encode_push(topic: str, value: Value) -> bytes:
    """Return the frame of a pushed message."""
    return _frame([0, topic, value])


def read_request(value: Any) -> Request:
    """Return the request of a decoded array. Raises DecodeError."""
    match value:
        case [int(identifier), str(method), list(params)] if (
            0 < identifier < IDENTIFIER_MAX and len(method) <= METHOD_LIMIT_CHARACTERS
        ):
            return Request(identifier, method, params)
        case _:
            raise DecodeError("not a request")


def read_answer(value: Any) -> Reply:
    """Return the message of the node that a decoded array contains. Raises DecodeError."""
    match value:
        case [int(identifier), None, result] if 0 < identifier < IDENTIFIER_MAX:
            return Answer(identifier, result)
        case [0, str(topic), result]:
            return Push(topic, result)
        case Unreadable(identifier, _):
            return Failure(identifier, "internal_error", "the node's answer cannot be read", ())
        case [int(identifier), *failure] if 0 < identifier < IDENTIFIER_MAX:
            return read_failure(identifier, failure)
        case _:
            raise DecodeError("not an answer")


def read_failure(identifier: int, value: Any) -> Failure:
    """Return the failure that ``failure_value`` encoded. Raises DecodeError."""
    match value:
        case [str(code), str(message), list(fields)] if len(fields) <= FIELDS_MAX:
            return Failure(identifier, code, message, tuple(_field(field) for field in fields))
        case _:
            raise DecodeError("not an answer")


def _field(value: Any) -> tuple[str, int | str]:
    match value:
        case [str(name), (int() | str()) as content]:
            return name, content
        case _:
            raise DecodeError("not a field of a failure")
