"""Renders records of the chain as JSON of the native namespace, with their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from rpc.methods.schema import NUMBER, STRING, Schema, array, nullable, obj, ref
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.records import Peer
from state.primitives.address import format_address
from state.primitives.errors import DecodeError
from state.primitives.heads import Head
from state.primitives.receipts import Event, EventType, Receipt
from state.primitives.transactions import Transaction

__all__ = [
    "ADDRESS_OUT",
    "AMOUNT_OUT",
    "AT",
    "BYTES_OUT",
    "COMPONENTS",
    "HASH_OUT",
    "address",
    "at",
    "block",
    "event",
    "hexed",
    "payload",
    "peer",
    "receipt",
    "transaction",
]

Json = Any

HASH_OUT: Final[Schema] = {"type": "string", "pattern": "^0x[0-9a-f]{64}$"}
BYTES_OUT: Final[Schema] = {"type": "string", "pattern": "^0x([0-9a-f]{2})*$"}
ADDRESS_OUT: Final[Schema] = {"type": "string", "pattern": "^0x[0-9a-fA-F]{40}$"}
AMOUNT_OUT: Final[Schema] = {"type": "string", "pattern": "^(0|[1-9][0-9]*)$"}
INTEGER_OUT: Final[Schema] = {"type": "string", "pattern": "^(0|-?[1-9][0-9]*)$"}
BOOLEAN_OUT: Final[Schema] = {"type": "boolean"}
AT: Final[Schema] = ref("BlockRef")

_HEADER: Final[dict[str, Schema]] = {
    "height": NUMBER,
    "hash": HASH_OUT,
    "parent_hash": HASH_OUT,
    "version": NUMBER,
    "epoch": NUMBER,
    "view": NUMBER,
    "proposer_seat": NUMBER,
    "time_ms": NUMBER,
    "transactions_root": HASH_OUT,
    "parent_receipt_root": HASH_OUT,
    "parent_state_root": HASH_OUT,
    "evidence_root": HASH_OUT,
    "committee_hash": HASH_OUT,
    "next_committee_hash": HASH_OUT,
    "voters_bitmap": BYTES_OUT,
    "base_fee": AMOUNT_OUT,
    "transactions_bytes": NUMBER,
    "transactions_count": NUMBER,
}

COMPONENTS: Final[dict[str, Schema]] = {
    "BlockRef": obj(
        {"height": NUMBER, "hash": HASH_OUT},
        description="The finalised block that the answer holds for.",
    ),
    "Header": obj(_HEADER),
    "Block": obj(
        _HEADER
        | {
            "size_bytes": NUMBER,
            "gas_used": NUMBER,
            "evidence_count": NUMBER,
            "certificate": BYTES_OUT,
            "transactions": {"anyOf": [array(HASH_OUT), array(ref("Transaction"))]},
            "events": array(ref("Event")),
        },
        description="A finalised block; `events` are those of the block itself (timeouts, matching), not of its "
        "transactions. `certificate` is the FINALIZE certificate in canonical CBOR.",
    ),
    "Payload": {
        "description": "A value of the payload: integers as decimal strings, bytes as 0x hex, text after "
        "`text:`, null, and arrays of these.",
        "anyOf": [STRING, {"type": "null"}, array(ref("Payload"))],
    },
    "Transaction": obj(
        {
            "hash": HASH_OUT,
            "form": NUMBER,
            "chain_id": NUMBER,
            "from": nullable(ADDRESS_OUT),
            "nonce": NUMBER,
            "kind": NUMBER,
            "kind_name": nullable(STRING),
            "payload": array(ref("Payload")),
            "gas_limit": NUMBER,
            "max_fee_per_gas": AMOUNT_OUT,
            "max_priority_fee_per_gas": AMOUNT_OUT,
            "signature": BYTES_OUT,
            "raw": BYTES_OUT,
            "block": nullable(ref("BlockPosition")),
        },
    ),
    "BlockPosition": obj({"height": NUMBER, "hash": HASH_OUT, "index": NUMBER, "time_ms": NUMBER}),
    "Event": obj(
        {
            "address": ADDRESS_OUT,
            "topics": array(HASH_OUT, maximum=4),
            "data": BYTES_OUT,
            "name": nullable(STRING),
            "values": nullable({"type": "object", "additionalProperties": STRING}),
        },
        description="A log entry in Solidity terms; `name` and `values` where the event is one of this version's.",
    ),
    "Receipt": obj(
        {
            "transaction_hash": HASH_OUT,
            "block": ref("BlockPosition"),
            "from": ADDRESS_OUT,
            "kind": NUMBER,
            "kind_name": nullable(STRING),
            "succeeded": BOOLEAN_OUT,
            "reason": nullable(STRING),
            "gas_used": NUMBER,
            "effective_gas_price": AMOUNT_OUT,
            "fee": AMOUNT_OUT,
            "events": array(ref("Event")),
        },
        description="What execution left: exactly `fee` left the sender beside what the kind moves; `reason` is "
        "the stable code of the refusal where it did not succeed.",
    ),
    "Peer": obj(
        {
            "address": ADDRESS_OUT,
            "endpoint": STRING,
            "inbound": BOOLEAN_OUT,
            "path": STRING,
            "roles": array(STRING),
            "latency_us": NUMBER,
            "version": STRING,
        }
    ),
}


def hexed(data: bytes) -> str:
    """Return ``data`` as 0x hex."""
    return "0x" + data.hex()


@lru_cache(maxsize=65536)
def address(value: bytes) -> str:
    """Return an address with its checksum; kept, because the checksum costs a hash."""
    return format_address(value)


class _Stamps:
    """The stamp of the newest head that was asked for, kept: thousands of answers have it."""

    def __init__(self) -> None:
        self.last: tuple[Head | None, Json] = (None, None)


_stamps: Final = _Stamps()


def at(head: Head) -> Json:
    """Return the stamp of an answer that holds for ``head``; it is everybody's, so nobody changes it."""
    known, stamp = _stamps.last
    if known is not head:
        stamp = {"height": head.height, "hash": hexed(head.hash)}
        _stamps.last = (head, stamp)
    return stamp


def payload(value: Any) -> Json:
    """Return a decoded codec value."""
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is bytes:
        return hexed(value)
    if kind is str:
        return "text:" + value
    if value is None:
        return None
    return [payload(item) for item in value]


def event(item: Event, types: Mapping[tuple[bytes, bytes], EventType]) -> Json:
    """Return an event, decoded where its type is known."""
    known = types.get((item.address, item.topics[0]))
    values: dict[str, str] | None = None
    if known is not None:
        try:
            decoded = known.decode(item)
        except DecodeError:  # declared otherwise in an earlier version
            known = None
        else:
            kinds = {name: kind for name, kind, _ in known.parameters}
            values = {name: _event_value(kinds[name], value) for name, value in decoded.items()}
    return {
        "address": address(item.address),
        "topics": [hexed(topic) for topic in item.topics],
        "data": hexed(item.data),
        "name": None if known is None else known.name,
        "values": values,
    }


def _event_value(kind: str, value: int | bytes) -> str:
    if isinstance(value, int):
        return str(value)
    return address(value) if kind == "address" else hexed(value)


def block_position(loaded: LoadedBlock, index: int) -> Json:
    """Return block and index of a transaction."""
    header = loaded.block.header
    return {"height": header.height, "hash": hexed(loaded.hash), "index": index, "time_ms": header.time_ms}


def transaction(item: Transaction, kinds: Mapping[int, str], where: Json | None) -> Json:
    """Return a transaction; ``where`` is None while it waits in the mempool."""
    return {
        "hash": hexed(item.hash),
        "form": item.form,
        "chain_id": item.chain_id,
        "from": address(item.sender) if item.sender else None,
        "nonce": item.nonce,
        "kind": item.kind,
        "kind_name": kinds.get(item.kind),
        "payload": payload(item.payload),
        "gas_limit": item.gas_limit,
        "max_fee_per_gas": str(item.max_fee_per_gas),
        "max_priority_fee_per_gas": str(item.max_priority_fee_per_gas),
        "signature": hexed(item.signature),
        "raw": hexed(item.raw),
        "block": where,
    }


def receipt(
    loaded: LoadedBlock, index: int, kinds: Mapping[int, str], types: Mapping[tuple[bytes, bytes], EventType]
) -> Json:
    """Return the receipt of the transaction at ``index``."""
    item = loaded.transaction(index)
    outcome = loaded.receipts[index]
    return {
        "transaction_hash": hexed(item.hash),
        "block": block_position(loaded, index),
        "from": address(item.sender),
        "kind": item.kind,
        "kind_name": kinds.get(item.kind),
    } | outcome_fields(outcome, types)


def outcome_fields(outcome: Receipt, types: Mapping[tuple[bytes, bytes], EventType]) -> dict[str, Json]:
    """Return the part of a receipt that a dry run has too."""
    return {
        "succeeded": outcome.status == 1,
        "reason": outcome.reason,
        "gas_used": outcome.gas_used,
        "effective_gas_price": str(outcome.effective_gas_price),
        "fee": str(outcome.gas_used * outcome.effective_gas_price),
        "events": [event(item, types) for item in outcome.events],
    }


def header(loaded: LoadedBlock) -> Json:
    """Return the header of a block."""
    item = loaded.block.header
    return {
        "height": item.height,
        "hash": hexed(loaded.hash),
        "parent_hash": hexed(item.parent_hash),
        "version": item.version,
        "epoch": item.epoch,
        "view": item.view,
        "proposer_seat": item.proposer_seat,
        "time_ms": item.time_ms,
        "transactions_root": hexed(item.tx_root),
        "parent_receipt_root": hexed(item.receipt_root),
        "parent_state_root": hexed(item.state_root),
        "evidence_root": hexed(item.evidence_root),
        "committee_hash": hexed(item.committee_hash),
        "next_committee_hash": hexed(item.next_committee_hash),
        "voters_bitmap": hexed(item.voters_bitmap),
        "base_fee": str(item.base_fee),
        "transactions_bytes": item.tx_bytes,
        "transactions_count": item.tx_count,
    }


def block(loaded: LoadedBlock, types: Mapping[tuple[bytes, bytes], EventType], transactions: Json = None) -> Json:
    """Return a block with ``transactions`` as they were rendered, or with the hashes of its own."""
    return header(loaded) | {
        "size_bytes": loaded.size_bytes,
        "gas_used": loaded.gas_used,
        "evidence_count": len(loaded.block.evidence),
        "certificate": hexed(loaded.certificate),
        "transactions": [hexed(item) for item in loaded.hashes] if transactions is None else transactions,
        "events": [event(item, types) for item in loaded.hooks.events] if loaded.hooks else [],
    }


def peer(item: Peer) -> Json:
    """Return a peer."""
    return {
        "address": address(item.address),
        "endpoint": item.endpoint,
        "inbound": bool(item.inbound),
        "path": item.path,
        "roles": list(item.roles),
        "latency_us": item.latency_us,
        "version": item.version,
    }
