"""The protocol between a relay and its clients, without I/O (network.md 10.2).

A client's connection begins with four bytes that state its purpose:

- ``DKRC``: *control*. A Noise handshake of purpose relay control proves both addresses. Then follow records, each
  a u16 length and an encrypted message of this module.
- ``DKRD``: *data*, one end of one circuit. A one-time token from the control channel follows. The relay answers
  with one status byte: 0 when the circuit is joined, else a Refusal, and then it closes. After a 0 both ends of
  the circuit form one byte stream, in which the two nodes run their own handshake. A client may *park* a data
  connection in advance for the next circuit, with a token that it chose and sent over the control channel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from billing.relay import PRICE_LIMIT, RECEIPT_BYTES_MAX
from p2p.base.endpoint import ENDPOINT_CHARACTERS_MAX
from p2p.base.errors import FrameInvalid
from p2p.secure.handshake import Session
from p2p.secure.identity import Identity, NodeCertificate
from p2p.secure.noise import TAG_BYTES
from relay.protocol.errors import Refusal, RelayProtocolError
from relay.protocol.link_state import LINK_STATE_BYTES_MAX
from relay.protocol.route import ROUTE_BYTES_MAX
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.hashing import digest
from state.primitives.keys import SIGNATURE_BYTES, recover_address

__all__ = [
    "ALTERNATIVES_MAX",
    "CONTROL_PREAMBLE",
    "DATA_PREAMBLE",
    "DATA_PREAMBLE_BYTES",
    "JOINED",
    "MESSAGE_BYTES_MAX",
    "PREAMBLE_BYTES",
    "TOKEN_BYTES",
    "AskLinkState",
    "Charged",
    "Connect",
    "ControlChannel",
    "Decline",
    "Extend",
    "Incoming",
    "LinkStateReply",
    "Message",
    "Offered",
    "Park",
    "Pay",
    "Ping",
    "Pong",
    "Refused",
    "Release",
    "Reserve",
    "Reserved",
    "Restarting",
    "Terms",
    "Voucher",
    "decode_message",
    "encode_message",
]

CONTROL_PREAMBLE: Final = b"DKRC"
DATA_PREAMBLE: Final = b"DKRD"
PREAMBLE_BYTES: Final = 4
TOKEN_BYTES: Final = 32
DATA_PREAMBLE_BYTES: Final = PREAMBLE_BYTES + TOKEN_BYTES
JOINED: Final = 0
MESSAGE_BYTES_MAX: Final = 2_048
"""Longest control message before encryption."""
VOUCHER_BYTES_MAX: Final = 256
ALTERNATIVES_MAX: Final = 4
"""Other relays named in one refusal."""
NUMBER_LIMIT: Final = 2**32
"""Request numbers and durations stay below."""
TIME_LIMIT_MS: Final = 2**53
SIZE_LIMIT: Final = 2**63
OBSERVED_CHARACTERS_MAX: Final = 64

_VOUCHER_KIND: Final = b"relay voucher"
_LENGTH_BYTES: Final = 2
_PARKED: Final = (0, TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Voucher:
    """A relay's signed promise to carry circuits to ``client`` until ``not_after_ms`` (wall-clock time).

    It is signed with the key of the relay's certificate, so anybody with that certificate can check it. A client
    may show it to others as proof that it can be reached there.
    """

    genesis_hash: bytes
    relay: bytes
    client: bytes
    not_after_ms: int
    signature: bytes = bytes(SIGNATURE_BYTES)

    @classmethod
    def issue(cls, relay: Identity, *, client: bytes, not_after_ms: int) -> Voucher:
        """Return the voucher that ``relay`` signs for ``client``."""
        unsigned = cls(relay.genesis_hash, relay.address, client, not_after_ms)
        return replace(unsigned, signature=relay.signer.sign(unsigned.signing_digest()))

    def signing_digest(self) -> bytes:
        """Return what the relay signs: everything but the signature."""
        return digest(_VOUCHER_KIND, encode([self.genesis_hash, self.relay, self.client, self.not_after_ms]))

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return encode([self.genesis_hash, self.relay, self.client, self.not_after_ms, self.signature])

    @classmethod
    def decode(cls, data: bytes) -> Voucher:
        """Return the voucher of its canonical bytes. Raises DecodeError; the signature is not checked here."""
        match decode(data, limit_bytes=VOUCHER_BYTES_MAX):
            case [bytes(genesis_hash), bytes(relay), bytes(client), int(not_after_ms), bytes(signature)] if (
                len(genesis_hash) == 32
                and len(relay) == len(client) == ADDRESS_BYTES
                and 0 <= not_after_ms < TIME_LIMIT_MS
                and len(signature) == SIGNATURE_BYTES
            ):
                return cls(genesis_hash, relay, client, not_after_ms, signature)
            case _:
                raise DecodeError("not a relay voucher")

    def check(
        self, relay: bytes, certificate: NodeCertificate, *, client: bytes, now_ms: int | None = None
    ) -> None:
        """Check that ``relay`` issued this for ``client``. Raises RelayProtocolError.

        ``certificate`` is the relay's, its own signature checked already. ``now_ms``: refuse an expired voucher.
        """
        if (self.genesis_hash, self.relay, self.client) != (certificate.genesis_hash, relay, client):
            raise RelayProtocolError("the voucher is for another chain, relay or client")
        if now_ms is not None and self.not_after_ms <= now_ms:
            raise RelayProtocolError("the voucher has expired")
        try:
            signer = recover_address(self.signing_digest(), self.signature)
        except SignatureInvalid:
            raise RelayProtocolError("the voucher's signature is bad") from None
        if signer != certificate.signer:
            raise RelayProtocolError("the voucher is signed by another than the relay")


@dataclass(frozen=True, slots=True)
class Reserve:
    """Client: reserve or renew; carry circuits to this client for ``life_s``."""

    request: int
    life_s: int


@dataclass(frozen=True, slots=True)
class Release:
    """Client: end the reservation."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Client: open a circuit to ``target``; ``parked`` names a parked data connection to use, or is empty."""

    request: int
    target: bytes
    parked: bytes = b""


@dataclass(frozen=True, slots=True)
class Extend:
    """Client, or the previous relay: open a circuit along this signed ``route``.

    The relay answers as to Connect; a refusal by a later relay arrives as the status of the data connection.
    """

    request: int
    route: bytes
    parked: bytes = b""


@dataclass(frozen=True, slots=True)
class Park:
    """Client: a data connection with this token will arrive; park it for a circuit of this client."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Pay:
    """Client: a signed receipt (``billing.relay.Receipt``) for what the relay carried."""

    receipt: bytes


@dataclass(frozen=True, slots=True)
class AskLinkState:
    """Client: send the relay's link state."""

    request: int


@dataclass(frozen=True, slots=True)
class Decline:
    """Client: decline the circuit that the Incoming with this token announced."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    """Either side: answer with a Pong of the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Either side: the answer to a Ping."""

    number: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """Relay: reserved for ``life_s`` from now; ``observed`` is the client's host and port as the relay sees it."""

    request: int
    life_s: int
    voucher: bytes
    observed: str


@dataclass(frozen=True, slots=True)
class Offered:
    """Relay: open the data connection with this token within ``wait_ms``; the target was told."""

    request: int
    token: bytes
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Incoming:
    """Relay: ``source`` requests a circuit to this client; open a data connection with ``token`` in ``wait_ms``.

    ``source`` is a hint of the relay: the handshake inside the circuit proves who it is.
    """

    token: bytes
    source: bytes
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Relay: the request of this number is refused; a retry before ``retry_ms`` will fail too.

    ``load_percent`` is the load of the relay; ``alternatives`` are endpoints of other relays, as text.
    """

    request: int
    refusal: Refusal
    retry_ms: int
    load_percent: int = 0
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """Relay, as its first message: the price, the free tier, and how much it carries without payment.

    A circuit is free for its first ``free_bytes``, which it may use in its first ``free_ms``.
    """

    price_per_gib: int
    free_bytes: int
    free_ms: int
    unpaid_bytes_max: int


@dataclass(frozen=True, slots=True)
class Charged:
    """Relay: the bytes carried on this channel beyond the free tier; it stops carrying if they are not paid."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Restarting:
    """Relay: it shuts down in ``left_ms`` at the latest; clients should move to other relays."""

    left_ms: int


@dataclass(frozen=True, slots=True)
class LinkStateReply:
    """Relay: its signed link state (``relay.protocol.link_state.LinkState``)."""

    request: int
    state: bytes


Message: TypeAlias = (
    Reserve | Release | Connect | Decline | Ping | Pong | Extend | Park | Pay | AskLinkState
    | Reserved | Offered | Incoming | Refused | Terms | Restarting | Charged | LinkStateReply
)  # fmt: skip
"""Messages of a client are numbered below 16, those of a relay from 16; each side refuses its own kind."""


def encode_message(message: Message) -> bytes:
    """Return the canonical bytes of ``message``."""
    value: Value
    match message:
        case Reserve(request, life_s):
            value = [1, request, life_s]
        case Release():
            value = [2]
        case Connect(request, target, parked):
            value = [3, request, target, parked]
        case Decline(token):
            value = [4, token]
        case Ping(number):
            value = [5, number]
        case Pong(number):
            value = [6, number]
        case Extend(request, route, parked):
            value = [7, request, route, parked]
        case Park(token):
            value = [8, token]
        case Pay(receipt):
            value = [9, receipt]
        case AskLinkState(request):
            value = [10, request]
        case Reserved(request, life_s, voucher, observed):
            value = [16, request, life_s, voucher, observed]
        case Offered(request, token, wait_ms):
            value = [17, request, token, wait_ms]
        case Incoming(token, source, wait_ms):
            value = [18, token, source, wait_ms]
        case Refused(request, refusal, retry_ms, load_percent, alternatives):
            value = [19, request, int(refusal), retry_ms, load_percent, list(alternatives)]
        case Terms(price_per_gib, free_bytes, free_ms, unpaid_bytes_max):
            value = [20, price_per_gib, free_bytes, free_ms, unpaid_bytes_max]
        case Restarting(left_ms):
            value = [21, left_ms]
        case Charged(size_bytes):
            value = [22, size_bytes]
        case LinkStateReply(request, state):
            value = [23, request, state]
    return encode(value)


def decode_message(data: bytes) -> Message:
    """Return the message of its canonical bytes. Raises DecodeError."""
    match decode(data, limit_bytes=MESSAGE_BYTES_MAX):
        case [1, int(request), int(life_s)] if _is_number(request, life_s):
            return Reserve(request, life_s)
        case [2]:
            return Release()
        case [3, int(request), bytes(target), bytes(parked)] if (
            _is_number(request) and len(target) == ADDRESS_BYTES and len(parked) in _PARKED
        ):
            return Connect(request, target, parked)
        case [4, bytes(token)] if len(token) == TOKEN_BYTES:
            return Decline(token)
        case [5, int(number)] if _is_number(number):
            return Ping(number)
        case [6, int(number)] if _is_number(number):
            return Pong(number)
        case [7, int(request), bytes(route), bytes(parked)] if (
            _is_number(request) and len(route) <= ROUTE_BYTES_MAX and len(parked) in _PARKED
        ):
            return Extend(request, route, parked)
        case [8, bytes(token)] if len(token) == TOKEN_BYTES:
            return Park(token)
        case [9, bytes(receipt)] if len(receipt) <= RECEIPT_BYTES_MAX:
            return Pay(receipt)
        case [10, int(request)] if _is_number(request):
            return AskLinkState(request)
        case [16, int(request), int(life_s), bytes(voucher), str(observed)] if (
            _is_number(request, life_s)
            and len(voucher) <= VOUCHER_BYTES_MAX
            and len(observed) <= OBSERVED_CHARACTERS_MAX
        ):
            return Reserved(request, life_s, voucher, observed)
        case [17, int(request), bytes(token), int(wait_ms)] if (
            _is_number(request, wait_ms) and len(token) == TOKEN_BYTES
        ):
            return Offered(request, token, wait_ms)
        case [18, bytes(token), bytes(source), int(wait_ms)] if _is_number(wait_ms) and (
            len(token),
            len(source),
        ) == (TOKEN_BYTES, ADDRESS_BYTES):
            return Incoming(token, source, wait_ms)
        case [19, int(request), int(refusal), int(retry_ms), int(load_percent), list(texts)] if (
            _is_number(request, retry_ms)
            and 0 <= load_percent <= 100
            and len(texts) <= ALTERNATIVES_MAX
            and all(type(text) is str and len(text) <= ENDPOINT_CHARACTERS_MAX for text in texts)
        ):
            try:
                return Refused(request, Refusal(refusal), retry_ms, load_percent, tuple(texts))
            except ValueError:
                raise DecodeError("an unknown refusal") from None
        case [20, int(price_per_gib), int(free_bytes), int(free_ms), int(unpaid_bytes_max)] if (
            0 <= price_per_gib < PRICE_LIMIT
            and _is_number(free_ms)
            and 0 <= free_bytes < SIZE_LIMIT
            and 0 <= unpaid_bytes_max < SIZE_LIMIT
        ):
            return Terms(price_per_gib, free_bytes, free_ms, unpaid_bytes_max)
        case [21, int(left_ms)] if _is_number(left_ms):
            return Restarting(left_ms)
        case [22, int(size_bytes)] if 0 <= size_bytes < SIZE_LIMIT:
            return Charged(size_bytes)
        case [23, int(request), bytes(state)] if _is_number(request) and len(state) <= LINK_STATE_BYTES_MAX:
            return LinkStateReply(request, state)
        case _:
            raise DecodeError("not a relay message")


def _is_number(*values: int) -> bool:
    return all(0 <= value < NUMBER_LIMIT for value in values)


class ControlChannel:
    """The encrypted records of one control connection, after its handshake."""

    __slots__ = ("_buffer", "_session", "address", "certificate", "channel")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._buffer = bytearray(session.rest)
        self.address = session.address
        """The address that the handshake proved for the other end."""
        self.certificate = session.certificate
        self.channel = session.channel_binding
        """The channel binding, unique for each connection; receipts name it."""

    def seal(self, message: Message) -> bytes:
        """Return the bytes to send for ``message``."""
        sealed = self._session.send.encrypt(encode_message(message))
        return len(sealed).to_bytes(_LENGTH_BYTES, "big") + sealed

    def receive(self, data: bytes) -> list[Message]:
        """Take bytes from the other side and return the messages that they complete.

        Raises RelayProtocolError: nothing after it can be trusted, so drop the connection.
        """
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        at = 0
        while len(buffer) - at >= _LENGTH_BYTES:
            size = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
            if not TAG_BYTES < size <= MESSAGE_BYTES_MAX + TAG_BYTES:
                raise RelayProtocolError(f"a record of {size} bytes")
            end = at + _LENGTH_BYTES + size
            if len(buffer) < end:
                break
            try:
                opened = self._session.receive.decrypt(bytes(buffer[at + _LENGTH_BYTES : end]))
                messages.append(decode_message(opened))
            except (FrameInvalid, DecodeError) as error:
                raise RelayProtocolError(str(error)) from None
            at = end
        del buffer[:at]
        return messages
