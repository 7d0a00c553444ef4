"""What relays are paid (MARKET.md, section 6): a part of what those earn who let them carry their traffic.

A relay brings its payers' receipts on chain (``billing.relay``). What they promise is *due* until the payer is
paid for a window of work: of that pay the role RELAY takes its part by weight, split evenly among those to whom
something is due, each up to that. So a receipt moves money of nobody but its signer, and only a small part of the
earnings of the next 30 days: a stolen node key spends nothing that an account has, and what a payer signs to a
relay of its own, however much, takes no more than one equal part away from the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from billing.errors import ReceiptInvalid
from billing.prices import ROLE_WEIGHTS, Role, split
from billing.relay import CHANNEL_LIFE_MS, Receipt
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from state.primitives.receipts import EventType
from state.transition.calls import CallForm
from state.transition.rules import Context, Rule
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.errors import NothingDue, NotYours
from tasks.registry import REGISTRY_ADDRESS, NodeRole, NodeStatus, require_node

__all__ = ["CARRIAGE_EVENTS", "SETTLE_CARRIAGE", "carriage_rules", "dues_of", "pay_dues", "share_pay"]

SETTLE_CARRIAGE: Final = 0x2C
ACKNOWLEDGED: Final = EventType(
    REGISTRY_ADDRESS,
    "CarriageAcknowledged(address indexed relay, address indexed payer, uint256 size, uint256 due)",
)
CARRIAGE_EVENTS: Final = (ACKNOWLEDGED,)

RELAYS_PER_PAYER_MAX: Final = 16
CERTIFICATE_LIMIT_BYTES: Final = 256
RECORD_LIMIT_BYTES: Final = 256
DUE_LIMIT: Final = 1 << 126
DUE_LIFE_MS: Final = 30 * 24 * 3_600_000
"""What is due lapses so long after the payer's last word, so that no signature binds for ever."""
_CARRIAGE: Final = bytes([Table.CARRIAGE])

CertificateCheck = Callable[[bytes, bytes, int], tuple[bytes, bytes]]
"""(certificate, genesis hash, time in ms) -> (account, its node's signing address). Raises ProtocolError."""


class Evidence(NamedTuple):
    """A receipt and the certificate that says whose key has signed it."""

    receipt: Receipt
    certificate: bytes


class _Record(NamedTuple):
    """What a payer has acknowledged to a relay: the newest channel, what it came to, and what of all is due."""

    channel: bytes
    opened_ms: int
    sequence: int
    size_bytes: int
    amount: int
    due: int
    settled_ms: int
    """When its newest receipt was settled."""

    def due_at(self, now_ms: int) -> int:
        """Return what is due and has not lapsed."""
        return self.due if now_ms < self.settled_ms + DUE_LIFE_MS else 0

    def is_over(self, now_ms: int) -> bool:
        """Tell whether it may be forgotten: nothing is due, and no receipt that it settled can come again."""
        return not self.due_at(now_ms) and self.opened_ms <= now_ms - CHANNEL_LIFE_MS


_NOTHING: Final = _Record(b"", -1, 0, 0, 0, 0, 0)


def _record(data: bytes) -> _Record:
    return read_record(
        data,
        lambda value: _Record(*items_of(value, bytes, int, int, int, int, int, int)),
        what="what was carried",
        limit_bytes=RECORD_LIMIT_BYTES,
    )


def _load(state: Reader, payer: bytes, relay: bytes) -> _Record:
    data = state.get(_CARRIAGE + payer + relay)
    return _NOTHING if data is None else _record(data)


def _save(state: Overlay, payer: bytes, relay: bytes, record: _Record) -> None:
    state.put(_CARRIAGE + payer + relay, encode(list(record)))


def _scan(state: Reader, payer: bytes) -> list[tuple[bytes, _Record]]:
    prefix = _CARRIAGE + payer
    entries = state.scan(prefix, prefix + b"\xff" * (ADDRESS_BYTES + 1), RELAYS_PER_PAYER_MAX)
    return [(key[-ADDRESS_BYTES:], _record(value)) for key, value in entries]


def dues_of(state: Reader, payer: bytes, now_ms: int) -> dict[bytes, int]:
    """Return what ``payer`` owes to relays out of its earnings, by relay."""
    dues = {relay: record.due_at(now_ms) for relay, record in _scan(state, payer)}
    return {relay: due for relay, due in dues.items() if due}


def share_pay(pay: int, dues: dict[bytes, int]) -> list[tuple[bytes, int]]:
    """Return what each relay gets of ``pay``: of the role's part by weight as much as the others, up to its due.

    Not by the dues themselves: they are the payer's own word, and one huge promise to a relay of its own would
    leave nothing for those who carried. What the smaller dues leave goes to the larger ones.
    """
    _, left = split(pay, [ROLE_WEIGHTS[Role.COMPUTE], ROLE_WEIGHTS[Role.RELAY]])
    parts: dict[bytes, int] = {}
    for at, relay in enumerate(sorted(dues, key=lambda relay: (dues[relay], relay))):
        parts[relay] = min(dues[relay], left // (len(dues) - at))
        left -= parts[relay]
    return [(relay, parts[relay]) for relay in sorted(parts) if parts[relay]]


def pay_dues(state: Overlay, payer: bytes, relay: bytes, amount: int) -> None:
    """Note that ``amount`` of what is due was paid."""
    record = _load(state, payer, relay)
    if record.due < amount:
        raise AssertionError(f"{amount} paid to a relay to which {record.due} is due")
    _save(state, payer, relay, record._replace(due=record.due - amount))


def _decode(payload: list[Any]) -> Evidence:
    match payload:
        case [bytes(receipt), bytes(certificate)] if len(certificate) <= CERTIFICATE_LIMIT_BYTES:
            return Evidence(Receipt.decode(receipt), certificate)
        case _:
            raise DecodeError("[receipt, certificate] expected")


def carriage_rules(check_certificate: CertificateCheck) -> tuple[Rule[Any], ...]:
    """Return the relays' kind of transaction; ``check_certificate`` knows node certificates."""

    def settle(state: Overlay, evidence: Evidence, context: Context) -> None:
        receipt, block = evidence.receipt, context.block
        if receipt.relay != context.sender:
            raise NotYours(context.sender.hex())
        node = require_node(state, context.sender)
        if node.status != NodeStatus.ACTIVE or not node.profile.roles & NodeRole.RELAY:
            raise NotYours("not a registered relay")
        payer, signer = check_certificate(evidence.certificate, block.genesis_hash, block.time_ms)
        receipt.check(
            genesis_hash=block.genesis_hash, relay=context.sender, payer=payer, signer=signer, now_ms=block.time_ms
        )
        now_ms = block.time_ms
        record = _load(state, payer, receipt.relay)
        forgotten: bytes | None = None
        if receipt.channel != record.channel:
            if receipt.opened_ms <= record.opened_ms:
                raise NothingDue("a channel older than one that was settled")
            if record is _NOTHING and len(known := _scan(state, payer)) >= RELAYS_PER_PAYER_MAX:
                forgotten = next((relay for relay, other in known if other.is_over(now_ms)), None)
                if forgotten is None:
                    raise ReceiptInvalid(f"its payer owes {RELAYS_PER_PAYER_MAX} relays already")
            record = record._replace(
                channel=receipt.channel, opened_ms=receipt.opened_ms, sequence=0, size_bytes=0, amount=0
            )
        elif receipt.opened_ms != record.opened_ms:
            raise ReceiptInvalid("a channel that began at another time")
        new = receipt.amount - record.amount
        if receipt.sequence <= record.sequence or receipt.size_bytes <= record.size_bytes or new <= 0:
            raise NothingDue("no more than was settled before")
        due = record.due_at(now_ms) + new
        if due >= DUE_LIMIT:
            raise ReceiptInvalid("more than anybody can owe")
        size_bytes = receipt.size_bytes - record.size_bytes
        if forgotten is not None:
            state.delete(_CARRIAGE + payer + forgotten)
        _save(
            state, payer, receipt.relay,
            record._replace(
                sequence=receipt.sequence, size_bytes=receipt.size_bytes, amount=receipt.amount, due=due,
                settled_ms=now_ms,
            ),
        )  # fmt: skip
        context.emit(ACKNOWLEDGED(receipt.relay, payer, size_bytes, due))

    call = CallForm(REGISTRY_ADDRESS, "settleCarriage(bytes receipt, bytes certificate)")
    return (
        Rule(
            SETTLE_CARRIAGE, "settle_carriage", 150_000, _decode, lambda _: 0, settle, checks_first=True,
            touches=lambda evidence: (evidence.receipt.payer,), call=call,
        ),
    )  # fmt: skip
