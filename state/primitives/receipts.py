"""Receipts and events: the results of execution, in the terms of Ethereum wallets (address, topics, data).

See chain.md 8.2, 8.3.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import keccak

__all__ = [
    "EVENTS_MAX",
    "EVENT_DATA_LIMIT_BYTES",
    "RECEIPT_LIMIT_BYTES",
    "Event",
    "EventType",
    "Receipt",
    "decode_receipt",
    "encode_receipt",
    "event_from_value",
    "event_to_value",
]

EVENTS_MAX: Final = 8192
_ADDRESS_HEAD: Final = bytes(12)
EVENT_DATA_LIMIT_BYTES: Final = 4096
RECEIPT_LIMIT_BYTES: Final = 8 * 1024 * 1024


class Event(NamedTuple):
    """One log entry: ``address`` of the system contract, 1 to 4 ``topics`` of 32 bytes, ABI-encoded ``data``."""

    address: bytes
    topics: tuple[bytes, ...]
    data: bytes


class Receipt(NamedTuple):
    """The outcome of one transaction.

    ``status`` 1 succeeded, 0 was refused by its rule (only the fee was taken); ``reason`` is then the stable
    code of the error. Exactly ``gas_used * effective_gas_price`` left the sender as fee.
    """

    status: int
    gas_used: int
    effective_gas_price: int
    reason: str | None
    events: tuple[Event, ...]


class EventType:
    """An event declared as in Solidity, with static parameter types only (uint256, bytes32, address, bool).

    ``EventType(address, "Accepted(bytes32 indexed task, address indexed worker, uint256 price)")`` makes a
    factory: calling it with the values in order returns the Event.
    """

    def __init__(self, address: bytes, declaration: str) -> None:
        name, _, rest = declaration.partition("(")
        self.address = address
        self.name = name
        self.parameters: tuple[tuple[str, str, bool], ...] = tuple(
            (words[-1], words[0], "indexed" in words)
            for words in (part.split() for part in rest.rstrip(")").split(","))
            if words
        )
        self.signature = f"{name}({','.join(kind for _, kind, _ in self.parameters)})"
        self.topic = keccak(self.signature.encode())
        if sum(indexed for *_, indexed in self.parameters) > 3:
            raise AssertionError(f"more than three indexed parameters: {declaration}")

    def __call__(self, *values: int | bytes) -> Event:
        """Return the event with ``values`` in the order of the declaration."""
        topics: list[bytes] = [self.topic]
        data: list[bytes] = []
        for (_, kind, indexed), value in zip(self.parameters, values, strict=True):
            if kind == "bytes32" and type(value) is bytes and len(value) == 32:  # most words, without a call
                word = value
            elif kind == "address" and type(value) is bytes and len(value) == ADDRESS_BYTES:
                word = _ADDRESS_HEAD + value
            else:
                word = _word(kind, value)
            (topics if indexed else data).append(word)
        return Event(self.address, tuple(topics), b"".join(data))

    def decode(self, event: Event) -> dict[str, int | bytes]:
        """Return the values of ``event`` by parameter name. Raises DecodeError when it is of another type."""
        words = list(event.topics[1:]), [event.data[i : i + 32] for i in range(0, len(event.data), 32)]
        indexed_count = sum(indexed for *_, indexed in self.parameters)
        plain_count = len(self.parameters) - indexed_count
        if (
            event.address != self.address
            or event.topics[:1] != (self.topic,)
            or (len(words[0]), len(event.data)) != (indexed_count, plain_count * 32)
        ):
            raise DecodeError(f"not an event {self.name}")
        values: dict[str, int | bytes] = {}
        for name, kind, indexed in self.parameters:
            word = words[0 if indexed else 1].pop(0)
            values[name] = (
                word if kind == "bytes32" else word[12:] if kind == "address" else int.from_bytes(word, "big")
            )
        return values


def _word(kind: str, value: int | bytes) -> bytes:
    match kind, value:
        case "bytes32", bytes() if len(value) == 32:
            return value
        case "address", bytes() if len(value) == ADDRESS_BYTES:
            return bytes(12) + value
        case (("uint256" | "bool"), int()):
            return value.to_bytes(32, "big")
        case _:
            raise AssertionError(f"{value!r} is not a {kind}")


def event_to_value(event: Event) -> Value:
    """Return ``event`` as a codec value."""
    return [event.address, list(event.topics), event.data]


def event_from_value(value: Any) -> Event:
    """Return the event of a decoded codec value. Raises DecodeError."""
    match value:
        case [bytes(address), list(topics), bytes(data)] if (
            len(address) == ADDRESS_BYTES
            and 1 <= len(topics) <= 4
            and all(type(topic) is bytes and len(topic) == 32 for topic in topics)
            and len(data) <= EVENT_DATA_LIMIT_BYTES
        ):
            return Event(address, tuple(topics), data)
    raise DecodeError("not an event")


def encode_receipt(receipt: Receipt) -> bytes:
    """Return the canonical bytes of ``receipt``, which are the leaf under ``receipt_root``."""
    return encode(
        [
            receipt.status,
            receipt.gas_used,
            receipt.effective_gas_price,
            receipt.reason,
            [event_to_value(event) for event in receipt.events],
        ]
    )


def decode_receipt(data: bytes) -> Receipt:
    """Return the receipt of ``data``. Raises DecodeError."""
    match decode(data, limit_bytes=RECEIPT_LIMIT_BYTES):
        case [(0 | 1) as status, int(gas_used), int(price), (None | str()) as reason, list(events)] if (
            gas_used >= 0 and price >= 0 and len(events) <= EVENTS_MAX and (reason is None) == (status == 1)
        ):
            return Receipt(status, gas_used, price, reason, tuple(event_from_value(event) for event in events))
    raise DecodeError("not a receipt")
