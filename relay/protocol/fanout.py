"""Fan-out: a piece is published once and a relay copies it to many, without I/O (network.md 10.6).

A connection for fan-out begins with ``DKRF`` and a handshake that proves the client's address. Then follow
records, each a u16 length and an encrypted message; some are followed by a piece. Pieces are ciphertext of the
publisher, and receivers verify them. So the relay cannot read pieces, and need not encrypt each copy.

A client is a publisher, a subscriber or both. A subscriber receives only what it asked for: it names publishers,
and holds a reservation at the relay.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from p2p.base.errors import FrameInvalid
from p2p.secure.handshake import Session
from p2p.secure.noise import TAG_BYTES
from relay.protocol.errors import RelayProtocolError
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.token_bucket import TokenBucket

__all__ = [
    "FANOUT_PREAMBLE",
    "GROUPS_MAX",
    "MEMBERS_MAX",
    "PIECE_BYTES_MAX",
    "PUBLISHERS_MAX",
    "Copy",
    "Delivery",
    "FanoutChannel",
    "FanoutCore",
    "FanoutLimits",
    "FanoutMessage",
    "Group",
    "Ping",
    "Pong",
    "Publish",
    "Subscribe",
    "decode_fanout",
    "encode_fanout",
]

FANOUT_PREAMBLE: Final = b"DKRF"
GROUPS_MAX: Final = 16
"""Groups of one connection; a client sends a group again to change its members."""
MEMBERS_MAX: Final = 256
PUBLISHERS_MAX: Final = 512
PIECE_BYTES_MAX: Final = 66 * 1024
MESSAGE_BYTES_MAX: Final = 12 * 1024
"""Longest message before encryption: PUBLISHERS_MAX addresses."""
_LENGTH_BYTES: Final = 2
_NUMBER_LIMIT: Final = 2**32


@dataclass(frozen=True, slots=True)
class FanoutLimits:
    """Limits of fan-out at a relay."""

    connections_max: int = 4_096
    connections_per_host_max: int = 64
    messages_per_s: int = 2_000
    messages_burst: int = 8_000
    copied_bytes_per_s: int = 64 * 1024 * 1024
    """Rate for one publisher, every copy counted."""
    copied_bytes_burst: int = 1024 * 1024 * 1024
    copy_bytes_min: int = 4 * 1024
    """Minimum size that a copy counts as: a smaller piece costs the relay as much work as this size."""
    members_per_message: int = 16
    """A piece counts as one more message for every this many members of its group."""
    backlog_bytes_max: int = 8 * 1024 * 1024
    """Unsent bytes of one subscriber beyond which it is skipped; it gets those pieces from peers."""
    backlog_bytes_sum_max: int = 256 * 1024 * 1024
    idle_ms_max: int = 60_000


class Subscribe(NamedTuple):
    """Client: deliver the pieces of these publishers only; replaces the last subscription."""

    publishers: tuple[bytes, ...]


class Group(NamedTuple):
    """Client: set the members of its group of this number."""

    group: int
    members: tuple[bytes, ...]


class Publish(NamedTuple):
    """Client: deliver the piece of ``size_bytes`` that follows to a group."""

    group: int
    size_bytes: int


class Ping(NamedTuple):
    """Client: answer with a Pong of the same number."""

    number: int


class Delivery(NamedTuple):
    """Relay: a piece of ``size_bytes`` by ``publisher`` follows."""

    publisher: bytes
    size_bytes: int


class Pong(NamedTuple):
    """Relay: the answer to a Ping."""

    number: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Send the piece to these connections."""

    connections: tuple[int, ...]


FanoutMessage: TypeAlias = Subscribe | Group | Publish | Ping | Delivery | Pong


def encode_fanout(message: FanoutMessage) -> bytes:
    """Return the canonical bytes of ``message``."""
    value: Value
    match message:
        case Subscribe(publishers):
            value = [1, list(publishers)]
        case Group(group, members):
            value = [2, group, list(members)]
        case Publish(group, size_bytes):
            value = [3, group, size_bytes]
        case Ping(number):
            value = [4, number]
        case Delivery(publisher, size_bytes):
            value = [16, publisher, size_bytes]
        case Pong(number):
            value = [17, number]
    return encode(value)


def decode_fanout(data: bytes) -> FanoutMessage:
    """Return the message of its canonical bytes. Raises DecodeError."""
    match decode(data, limit_bytes=MESSAGE_BYTES_MAX):
        case [1, list(publishers)] if len(publishers) <= PUBLISHERS_MAX and _are_addresses(publishers):
            return Subscribe(tuple(publishers))
        case [2, int(group), list(members)] if (
            0 <= group < GROUPS_MAX and len(members) <= MEMBERS_MAX and _are_addresses(members)
        ):
            return Group(group, tuple(members))
        case [3, int(group), int(size_bytes)] if 0 <= group < GROUPS_MAX and 0 < size_bytes <= PIECE_BYTES_MAX:
            return Publish(group, size_bytes)
        case [4, int(number)] if 0 <= number < _NUMBER_LIMIT:
            return Ping(number)
        case [16, bytes(publisher), int(size_bytes)] if (
            len(publisher) == ADDRESS_BYTES and 0 < size_bytes <= PIECE_BYTES_MAX
        ):
            return Delivery(publisher, size_bytes)
        case [17, int(number)] if 0 <= number < _NUMBER_LIMIT:
            return Pong(number)
        case _:
            raise DecodeError("not a fan-out message")


def _are_addresses(values: list[object]) -> bool:
    return all(isinstance(value, bytes) and len(value) == ADDRESS_BYTES for value in values)


class FanoutChannel:
    """The encrypted records of one connection after its handshake, and the pieces between them."""

    __slots__ = ("_buffer", "_pending", "_session", "address")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._buffer = bytearray(session.rest)
        self._pending: Publish | Delivery | None = None
        self.address = session.address
        """The address that the handshake proved for the other end."""

    def seal(self, message: FanoutMessage) -> bytes:
        """Return the bytes to send for ``message``; a piece that belongs to it must follow."""
        sealed = self._session.send.encrypt(encode_fanout(message))
        return len(sealed).to_bytes(_LENGTH_BYTES, "big") + sealed

    def receive(self, data: bytes) -> list[tuple[FanoutMessage, bytes]]:
        """Take bytes and return the messages that they complete, each with its piece or b"".

        Raises RelayProtocolError: nothing after it can be trusted, so drop the connection.
        """
        buffer = self._buffer
        buffer += data
        found: list[tuple[FanoutMessage, bytes]] = []
        at = 0
        while True:
            if self._pending is not None:
                end = at + self._pending.size_bytes
                if len(buffer) < end:
                    break
                found.append((self._pending, bytes(memoryview(buffer)[at:end])))
                self._pending = None
                at = end
                continue
            if len(buffer) - at < _LENGTH_BYTES:
                break
            size = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
            if not TAG_BYTES < size <= MESSAGE_BYTES_MAX + TAG_BYTES:
                raise RelayProtocolError(f"a record of {size} bytes")
            end = at + _LENGTH_BYTES + size
            if len(buffer) < end:
                break
            message = self._open(bytes(buffer[at + _LENGTH_BYTES : end]))
            at = end
            if isinstance(message, Publish | Delivery):
                self._pending = message
            else:
                found.append((message, b""))
        del buffer[:at]
        return found

    @property
    def lacking(self) -> int:
        """Missing bytes of the piece that is being received; 0 if there is none."""
        return 0 if self._pending is None else self._pending.size_bytes - len(self._buffer)

    def _open(self, sealed: bytes) -> FanoutMessage:
        try:
            return decode_fanout(self._session.receive.decrypt(sealed))
        except (FrameInvalid, DecodeError) as error:
            raise RelayProtocolError(str(error)) from None


@dataclass(slots=True, eq=False)
class _Client:
    address: bytes
    messages: TokenBucket
    heard_ms: int
    accepted: frozenset[bytes] = frozenset()
    groups: dict[int, tuple[bytes, ...]] = field(default_factory=dict)


class FanoutCore:
    """The fan-out connections of a relay, their groups and subscriptions, and who gets a copy of each piece.

    ``is_reserved`` says whether an address holds a reservation now, ``backlog`` how many bytes wait unsent on a
    connection, ``is_served`` whether the relay still carries for a publisher. The shell numbers the connections.
    """

    def __init__(
        self,
        limits: FanoutLimits,
        *,
        is_reserved: Callable[[bytes], bool],
        backlog: Callable[[int], int],
        is_served: Callable[[bytes], bool] = lambda _publisher: True,
    ) -> None:
        self.limits = limits
        self.counters: Counter[str] = Counter()
        """Pieces and bytes by outcome."""
        self.carried: Counter[bytes] = Counter()
        """Bytes delivered for each connected publisher, every copy counted."""
        self._is_reserved = is_reserved
        self._backlog = backlog
        self._is_served = is_served
        self._clients: dict[int, _Client] = {}
        self._by_address: dict[bytes, int] = {}
        self._allowances: OrderedDict[bytes, TokenBucket] = OrderedDict()
        """They outlive connections, so a publisher gains nothing by reconnecting."""

    @property
    def connections(self) -> int:
        """Connections for fan-out."""
        return len(self._clients)

    def opened(self, connection: int, address: bytes, now_ms: int) -> int | None:
        """Take a connection that proved ``address``; return an older one of the same address, to be dropped.

        Raises RelayProtocolError when there are too many: drop this one.
        """
        if len(self._clients) >= self.limits.connections_max:
            raise RelayProtocolError("too many connections for fan-out")
        old = self._by_address.get(address)
        limits = self.limits
        messages = TokenBucket(limits.messages_per_s, limits.messages_burst, now_ms)
        self._clients[connection] = _Client(address, messages, now_ms)
        self._by_address[address] = connection
        return old

    def closed(self, connection: int) -> None:
        """Forget a connection."""
        client = self._clients.pop(connection, None)
        if client is not None and self._by_address.get(client.address) == connection:
            del self._by_address[client.address]
            self.carried.pop(client.address, None)

    def message(self, connection: int, message: FanoutMessage, now_ms: int) -> Pong | Copy | None:
        """Take a client's message; return an answer, or the connections that get a copy of its piece, or None.

        Raises RelayProtocolError for a message that a client may not send: then drop the connection.
        """
        client = self._clients[connection]
        client.heard_ms = now_ms
        if not client.messages.take(now_ms):
            raise RelayProtocolError("more messages than a client may send")
        match message:
            case Subscribe(publishers):
                client.accepted = frozenset(publishers)
            case Group(group, members):
                client.groups[group] = members
            case Publish(group, size_bytes):
                members = client.groups.get(group, ())
                if not client.messages.take(now_ms, len(members) // self.limits.members_per_message):
                    raise RelayProtocolError("more pieces to more members than a client may send")
                return self._copy(client, members, size_bytes, now_ms)
            case Ping(number):
                return Pong(number)
            case _:
                raise RelayProtocolError("a relay's message from a client")
        return None

    def _copy(self, publisher: _Client, members: tuple[bytes, ...], size_bytes: int, now_ms: int) -> Copy | None:
        self.counters["pieces_in"] += 1
        self.counters["bytes_in"] += size_bytes
        if not self._is_served(publisher.address):
            self.counters["refused_unpaid"] += 1
            return None
        found: list[int] = []
        for address in dict.fromkeys(members):
            connection = self._by_address.get(address)
            if connection is None or publisher.address not in self._clients[connection].accepted:
                self.counters["passed_over_absent"] += 1
            elif address == publisher.address or not self._is_reserved(address):
                self.counters["passed_over_unreserved"] += 1
            elif self._backlog(connection) + size_bytes > self.limits.backlog_bytes_max:
                self.counters["passed_over_slow"] += 1
            else:
                found.append(connection)
        copied = size_bytes * len(found)
        cost = max(size_bytes, self.limits.copy_bytes_min) * len(found)
        if cost and not self._allowance(publisher.address, now_ms).take(now_ms, cost):
            self.counters["refused_quota"] += 1
            return None
        self.counters["pieces_out"] += len(found)
        self.counters["bytes_out"] += copied
        self.carried[publisher.address] += copied
        return Copy(tuple(found))

    def _allowance(self, address: bytes, now_ms: int) -> TokenBucket:
        found = self._allowances.pop(address, None)
        if found is None:
            found = TokenBucket(self.limits.copied_bytes_per_s, self.limits.copied_bytes_burst, now_ms)
        self._allowances[address] = found
        if len(self._allowances) > 4 * self.limits.connections_max:
            self._allowances.popitem(last=False)
        return found

    def idle(self, now_ms: int) -> list[int]:
        """Return the connections that were silent for too long, to be dropped."""
        limit_ms = self.limits.idle_ms_max
        return [number for number, client in self._clients.items() if now_ms - client.heard_ms >= limit_ms]
