"""Decoders of the chain, its records, its database and its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from node.chain.runtime import make_runtime
from p2p.blob.store import Manifest
from state.primitives.address import format_address, parse_address
from state.primitives.blocks import decode_block, decode_header, encode_block, encode_header
from state.primitives.codec import decode, encode
from state.primitives.committee import Committee
from state.primitives.crc32c import masked_crc32c
from state.primitives.errors import (
    ConfigError,
    DecodeError,
    InvalidTransaction,
    KeystoreError,
    RecordDamaged,
    SignatureInvalid,
)
from state.primitives.ethereum import decode_dynamic, decode_legacy
from state.primitives.genesis import genesis_from_json, genesis_hash, genesis_to_json
from state.primitives.keystore import decrypt_keystore, keystore_address
from state.primitives.receipts import (
    Event,
    EventType,
    Receipt,
    decode_receipt,
    encode_receipt,
    event_from_value,
    event_to_value,
)
from state.primitives.transactions import CHAIN_ID_MAX, decode_transaction
from state.primitives.typed_data import parse_typed_data
from state.primitives.vrf import VrfKey, vrf_output, vrf_verify
from state.store.errors import StoreDamaged
from state.store.log_tail import torn_at
from state.store.nodes import decode_flushed, encode_flushed
from state.store.records import (
    Bounds,
    Span,
    Tip,
    Undo,
    decode_bounds,
    decode_epoch,
    decode_index,
    decode_position,
    decode_receipts,
    decode_span,
    decode_tip,
    encode_bounds,
    encode_epoch,
    encode_index,
    encode_position,
    encode_receipts,
    encode_span,
    encode_tip,
)
from state.transition.calls import SYSTEM_PREFIX
from state.transition.evidence import Evidence, decode_evidence
from state.transition.staking import STAKE_KIND
from state.trie import (
    RangeInvalid,
    RangeOfMap,
    decode_range,
    encode_range,
    entry_of,
    prove,
    prove_range,
    verify_proof,
    verify_range,
)
from state.trie.proof import decode_proof
from state.trie.trie import NO_NODES, NodeLayer, Trie
from tasks.ledger import transitions
from tasks.proofs import opening_to_value
from tasks.spec import encode_spec
from tests.consensus.test_wire import BLOCK
from tests.fuzz.state_records import state_records
from tests.fuzz.targets.base import Raises, Target, canonical, of_text, of_value
from tests.fuzz.targets.samples import (
    BLOCKS,
    COMMITTEE,
    EVIDENCE,
    FINDINGS,
    JOB,
    KEY,
    KEYSTORE,
    PAYLOADS,
    PROFILE,
    PROOF,
    RUNTIME,
)
from tests.state.primitives.test_abi import STAKE as STAKE_CALL
from tests.state.primitives.test_ethereum import VECTORS as ETHEREUM_VECTORS
from tests.state.primitives.test_objects import FOUNDED as FILE
from tests.state.transition.chain import genesis as small_genesis
from tests.tasks.test_codecs import JOB as CALL_JOB
from tests.tasks.test_codecs import OPENING as CALL_OPENING
from tests.tasks.test_codecs import PROFILE as CALL_PROFILE


def read_ethereum(data: bytes) -> None:
    """Either form; what is read is within the limits that every transaction has."""
    transaction = decode_dynamic(data) if data[:1] == b"\x02" else decode_legacy(data)
    assert transaction.raw == data and 0 < transaction.chain_id <= CHAIN_ID_MAX


def check_call(data: bytes) -> None:
    """The first byte picks the contract, the value is what the kind moves where that can be told."""
    contract, data = SYSTEM_PREFIX + bytes((data[0] % 5 if data else 0,)), data[1:]
    rule = RUNTIME.rule_of_call(contract, 0, data)
    assert rule.call is not None and rule.call.contract == contract
    try:
        payload = rule.call.payload_of(0, data)
    except DecodeError:
        return
    assert rule.call.call_of(payload, 0) == (0, data), "a second spelling"


def read_vrf(data: bytes) -> None:
    """A changed proof never verifies, and no bytes break the library."""
    if vrf_verify(VRF.public, b"alpha", data) is not None and data != VRF.prove(b"alpha"):
        raise AssertionError("a second proof")
    vrf_output(data)


CALL_PAYLOADS: tuple[tuple[int, list[Any]], ...] = (
    (STAKE_KIND, [0, bytes(32), b"p" * 64, bytes(32), b"v" * 80]),
    (transitions.REGISTER_NODE, transitions.node_payload(CALL_PROFILE, 0)),
    (transitions.CREATE_TASK, [encode_spec(CALL_JOB)]),
    (transitions.OPEN_WINDOW, [bytes(32), 1, [opening_to_value(CALL_OPENING)]]),
)
CALLS = tuple(
    form.contract[-1:] + form.call_of(payload, 0)[1]
    for kind, payload in CALL_PAYLOADS
    if (form := RUNTIME.rules[kind].call) is not None
)
ETHEREUM = tuple(bytes.fromhex(vector["raw"]) for vector in ETHEREUM_VECTORS[:12])
VRF = VrfKey(b"v" * 32)
MOVED = EventType(b"\x01" * 20, "Moved(bytes32 indexed task, address indexed to, uint256 value)")
RECEIPTS = (Receipt(1, 21_000, 10**9, None, (MOVED(b"t" * 32, b"w" * 20, 5),)), Receipt(0, 1, 1, "no", ()))
UNDO = Undo([b"\x01a", b"\x01b"], [None, b"v"])
TIP = Tip(7, b"h" * 32, b"s" * 32, b"r" * 32, 10**9, 1_700_000_000_000, encode_header(BLOCK.header))


@cache
def trie() -> Trie:
    """A trie of three levels."""
    update = Trie(bytes(32), NO_NODES).update({b"key %d" % n: b"value" for n in range(700)})
    made = Trie(update.root, NodeLayer(NO_NODES, update.nodes))
    assert verify_proof(made.root, b"key 1", b"value", prove(made, b"key 1"))
    return made


LOW, HIGH = b"\x40".ljust(32, b"\0"), b"\x48".ljust(32, b"\0")


@cache
def whole_range() -> bytes:
    """Return the one range of the trie between two places that proves itself."""
    known = trie()
    items = sorted(((b"key %d" % n, b"value") for n in range(700)), key=lambda item: entry_of(*item))
    within = tuple(item for item in items if LOW <= entry_of(*item)[:32] < HIGH)
    return encode_range(RangeOfMap(within, prove_range(known, LOW, HIGH)))


def check_range(data: bytes) -> None:
    """Take a range in as a node that restores a state does; no other bytes than the right ones pass."""
    content = decode_range(data)
    verify_range(trie().root, LOW, HIGH, [entry_of(*item) for item in content.items], content.nodes)
    assert data == whole_range()


def check_proof(data: bytes) -> None:
    """Verify a proof of the state: no other bytes than the right ones pass."""
    assert verify_proof(trie().root, b"key 1", b"value", data) == (data == prove(trie(), b"key 1"))
    assert verify_proof(trie().root, b"absent", None, data) == (data == prove(trie(), b"absent"))


def log_record(body: bytes) -> bytes:
    """Return a whole piece of the database's log."""
    kind = b"\1" + body
    return masked_crc32c(kind).to_bytes(4, "little") + len(body).to_bytes(2, "little") + kind


def read_log(data: bytes) -> None:
    """Look for the end of what was written to a log."""
    at = torn_at(data)
    assert at is None or 0 <= at < len(data)


def execute_payload(data: bytes) -> None:
    """Read the payload of any kind as the rules do."""
    transaction = decode_transaction(data)
    transaction.sender = KEY.address
    RUNTIME.check(transaction)


def read_transaction(data: bytes) -> None:
    """Read a transaction and recover its sender."""
    transaction = decode_transaction(data)
    assert transaction.raw == data
    assert len(transaction.recover_sender()) == 20


def read_genesis(text: str) -> None:
    """Read a genesis; whatever is accepted must be usable."""
    genesis = genesis_from_json(text)
    assert len(genesis_hash(genesis)) == 32
    assert genesis_from_json(genesis_to_json(genesis)) == genesis
    make_runtime(genesis)


def read_keys(text: str) -> None:
    """Open a keystore."""
    try:
        keystore_address(text)
    finally:
        decrypt_keystore(text, "passphrase")


TYPED_DATA = tuple(
    json.dumps(
        {
            "types": {"Person": [{"name": "name", "type": "string"}, {"name": "n", "type": kind}]},
            "primaryType": "Person", "domain": {"name": "d", "chainId": 1},
            "message": {"name": "Cow", "n": value},
        }
    ).encode()
    for kind, value in (("uint8", 5), ("bytes4[2]", ["0x01020304"] * 2), ("address[]", []), ("Person[]", []))
)  # fmt: skip


def targets() -> Iterator[tuple[str, Target]]:
    yield (
        "codec",
        Target(
            canonical(lambda data: decode(data, limit_bytes=1 << 16), encode),
            (encode([1, -1, 2**200, b"bytes", "text", None, [[], [0]]]), *BLOCKS),
            ("state.primitives.codec:decode",),
        ),
    )
    yield "transaction", Target(
        read_transaction, PAYLOADS,
        ("state.primitives.transactions:decode_transaction", "state.primitives.transactions:_decode_native"),
        (DecodeError, SignatureInvalid),
    )  # fmt: skip
    yield "ethereum transaction", Target(
        read_ethereum, ETHEREUM,
        ("state.primitives.ethereum:decode_dynamic", "state.primitives.ethereum:decode_legacy"),
    )  # fmt: skip
    yield (
        "call data",
        Target(
            canonical(STAKE_CALL.decode, lambda values: STAKE_CALL.encode(*values)),
            (STAKE_CALL.encode(5, bytes(32), b"p" * 64, "note", 1),),
            ("state.primitives.abi:Function.decode", "state.primitives.abi:decode_values"),
        ),
    )
    yield "call", Target(check_call, CALLS, ("state.transition.calls:CallForm.payload_of",), (InvalidTransaction,))
    yield "payload", Target(
        execute_payload, PAYLOADS,
        (
            *(
                f"tasks.ledger.dispute_transitions:_decode_{name}"
                for name in ("move", "seal", "open", "resume", "show")
            ),
            *(
                f"tasks.ledger.custody_transitions:_decode_{name}"
                for name in (
                    "ask", "take", "output", "receive", "demand", "answer", "garbage", "mismatch", "input",
                    "claimed", "keyed", "plain",
                )
            ),
            *(f"tasks.ledger.group_transitions:_decode_{name}" for name in ("create", "seats", "group")),
            *(f"tasks.ledger.trial_transitions:_decode_{name}" for name in ("nothing", "commit", "show", "judge")),
            "tasks.ledger.serving_transitions:_decode_serve",
            "tasks.ledger.checkpoint_transitions:_decode_named",
            "tasks.ledger.checkpoint_transitions:_decode_missed",
            "tasks.ledger.tampering:_decode",
            "tasks.ledger.metering_transitions:_decode_meter", "tasks.ledger.metering_transitions:_decode_finish",
            "tasks.ledger.quorum_transitions:_decode_seal", "tasks.ledger.quorum_transitions:_decode_reveal",
            "tasks.trials:shown_from_value",
            "tasks.ledger.claim_transitions:_decode_input",
            "tasks.ledger.claim_transitions:_decode_diverged",
            "tasks.ledger.bonds:_decode_terms", "tasks.ledger.bonds:_decode_sponsor",
            "tasks.ledger.bonds:_decode_withdraw",
            "state.transition.transfer:_decode", "state.transition.staking:_decode_stake",
            "state.transition.staking:_decode_unstake", "tasks.ledger.carriage:_decode",
            "tasks.ledger.carriage:_decode_fund", "tasks.ledger.carriage:_decode_withdraw",
            *(f"tasks.ledger.payloads:decode_{name}" for name in (
                "offer", "nothing", "create", "task", "amount", "start", "give_up", "proof", "seal", "reveal",
                "open", "seat", "payout",
            )),
        ),
        (DecodeError, InvalidTransaction),
    )  # fmt: skip
    yield "header", Target(
        canonical(decode_header, encode_header), (encode_header(BLOCK.header),),
        ("state.primitives.blocks:decode_header", "state.primitives.blocks:_header_from_value"),
    )  # fmt: skip
    yield "block", Target(canonical(decode_block, encode_block), BLOCKS, ("state.primitives.blocks:decode_block",))
    yield "receipt", Target(
        canonical(decode_receipt, encode_receipt), tuple(map(encode_receipt, RECEIPTS)),
        ("state.primitives.receipts:decode_receipt",),
    )  # fmt: skip
    yield "event", Target(
        of_value(event_from_value, event_to_value), (encode(event_to_value(RECEIPTS[0].events[0])),),
        ("state.primitives.receipts:event_from_value",),
    )  # fmt: skip
    yield (
        "event values",
        Target(
            lambda data: MOVED.decode(Event(b"\x01" * 20, (MOVED.topic, data[:32], data[32:64]), data[64:])),
            (b"t" * 32 + bytes(12) + b"w" * 20 + bytes(31) + b"\5",),
            ("state.primitives.receipts:EventType.decode",),
        ),
    )
    yield (
        "address",
        Target(
            of_text(parse_address),
            (format_address(KEY.address).encode(),),
            ("state.primitives.address:parse_address",),
        ),
    )
    yield "committee", Target(
        canonical(Committee.decode, Committee.encode), (COMMITTEE.encode(),),
        ("state.primitives.committee:Committee.decode",),
    )  # fmt: skip
    yield "evidence", Target(
        canonical(decode_evidence, Evidence.encode), tuple(fault.encode() for fault in EVIDENCE),
        ("state.transition.evidence:decode_evidence", "state.transition.evidence:_vote"),
    )  # fmt: skip
    yield "vrf", Target(read_vrf, (VRF.prove(b"alpha"),), ("state.primitives.vrf:vrf_verify",), cost=4)
    yield "manifest", Target(
        canonical(Manifest.decode, Manifest.encode), (Manifest(2**20 + 1, (b"a" * 32, b"b" * 32)).encode(),),
        ("state.primitives.manifests:Manifest.decode",),
    )  # fmt: skip
    damaged: Raises = (StoreDamaged,)
    yield "tip", Target(
        canonical(decode_tip, encode_tip), (encode_tip(TIP),),
        ("state.store.records:decode_tip", "state.store.records:_decode"), damaged,
    )  # fmt: skip
    yield "place", Target(
        canonical(decode_position, lambda found: encode_position(*found)), (encode_position(7, 3),),
        ("state.store.records:decode_position",), damaged,
    )  # fmt: skip
    yield "receipts of a block", Target(
        canonical(decode_receipts, lambda found: encode_receipts(*found)),
        (encode_receipts(tuple(map(encode_receipt, RECEIPTS)), None), encode_receipts((), b"hooks")),
        ("state.store.records:decode_receipts",), damaged,
    )  # fmt: skip
    yield "bounds", Target(
        canonical(decode_bounds, encode_bounds), (encode_bounds(Bounds(3, 9, 7)),),
        ("state.store.records:decode_bounds",), damaged,
    )  # fmt: skip
    yield "span of notarized views", Target(
        canonical(decode_span, encode_span), (encode_span(Span(2**30, 9, 7)),),
        ("state.store.records:decode_span",), damaged,
    )  # fmt: skip
    yield "index record", Target(
        canonical(decode_index, lambda found: encode_index(*found)),
        (encode_index([b"h" * 32, b"i" * 32], [[b"a" * 20], []]),), ("state.store.records:decode_index",), damaged,
    )  # fmt: skip
    yield "stored epoch", Target(
        canonical(decode_epoch, lambda found: encode_epoch(*found)), (encode_epoch(b"h", b"certificate", b"c"),),
        ("state.store.records:decode_epoch",), damaged,
    )  # fmt: skip
    yield (
        "undo",
        Target(
            canonical(Undo.decode, Undo.encode), (UNDO.encode(),), ("state.store.records:Undo.decode",), damaged
        ),
    )
    yield "flushed parts", Target(
        canonical(decode_flushed, encode_flushed), (bytes(range(256)) * 6,), ("state.store.nodes:decode_flushed",),
        damaged,
    )  # fmt: skip
    known = trie()
    yield "state proof", Target(
        canonical(decode_proof, encode), tuple(prove(known, key) for key in (b"key 1", b"absent")),
        ("state.trie.proof:decode_proof",),
    )  # fmt: skip
    yield "state range", Target(
        canonical(decode_range, encode_range),
        (encode_range(RangeOfMap(((b"key 1", b"value"),), prove_range(known, b"\x40" * 32, b"\x80" * 32))),),
        ("state.trie.ranges:decode_range",),
    )  # fmt: skip
    yield "range of the state, verified", Target(
        check_range, (whole_range(),), ("state.trie.ranges:verify_range",), (DecodeError, RangeInvalid),
    )  # fmt: skip
    yield "proof of the state, verified", Target(
        check_proof, tuple(prove(known, key) for key in (b"key 1", b"absent")),
        ("state.trie.proof:verify_proof",), (),
    )  # fmt: skip
    yield "log of the database", Target(
        read_log, (log_record(b"one") + log_record(b"another")[:9] + bytes(40), log_record(b"one") + bytes(99)),
        ("state.store.log_tail:torn_at",), (),
    )  # fmt: skip
    for name, record in state_records(COMMITTEE, PROFILE, PROOF, FINDINGS, encode_spec(JOB)).items():
        yield (
            f"record: {name}",
            Target(record.reader(), (record.sample()[1],), record.covers, (RecordDamaged,), memory=400),
        )
    yield "genesis", Target(
        of_text(read_genesis), (genesis_to_json(small_genesis()).encode(), genesis_to_json(FILE).encode()),
        (
            "state.primitives.genesis:genesis_from_json", "state.primitives.genesis:_from_document",
            "state.primitives.genesis:read_parameters",
        ),
        (ConfigError,), memory=400,
    )  # fmt: skip
    yield "keystore", Target(
        of_text(read_keys), (KEYSTORE,),
        (
            "state.primitives.keystore:_parse", "state.primitives.keystore:decrypt_keystore",
            "state.primitives.keystore:keystore_address",
        ),
        (KeystoreError,), cost=4, memory=400,
    )  # fmt: skip
    yield "typed data", Target(
        of_text(parse_typed_data), TYPED_DATA, ("state.primitives.typed_data:parse_typed_data",), memory=400
    )  # fmt: skip
