"""The byte layouts of the specification are those of the code.

Each test reads the list of fields from the text, builds the record in that order with an independent CBOR encoder,
and compares it with the code's bytes. Every field has a value of its own, so two swapped fields differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

import cbor2
import pytest

from consensus import signer, wire
from consensus.light import decode_epoch_record, encode_merkle_proof
from consensus.votes import Certificate
from p2p.base.endpoint import Endpoint
from p2p.base.observed_address import OBSERVE_PREAMBLE, ObservedAddress, observed_answer
from p2p.gossip.core import message_id
from p2p.multicast import wire as multicast
from p2p.multicast.pieces import Piece, PieceLayout, encode_piece
from p2p.path.endpoint_status import DialBackAnswer
from p2p.path.hole_punch import PunchMessage
from p2p.records.records import sign_record
from p2p.secure.channel import ChannelFrame, Hello, HelloKind
from p2p.secure.frame import TrafficClass, frame
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Identity, Purpose, prologue
from relay.protocol import fanout
from relay.protocol import wire as relay
from relay.protocol.errors import Refusal
from relay.protocol.link_state import LinkMeasurement, LinkState
from relay.protocol.route import Route
from rpc.protocol import frames, grants
from state.primitives.blocks import Block, Header, encode_block, encode_header, header_hash
from state.primitives.committee import Committee, Seat
from state.primitives.envelope import NATIVE_FORM
from state.primitives.errors import DecodeError
from state.primitives.genesis import Genesis, GenesisValidator, genesis_hash
from state.primitives.hashing import digest, keccak
from state.primitives.keys import SecretKey
from state.primitives.manifests import PIECE_BYTES, Manifest, blob_id, piece_hash
from state.primitives.merkle import MerkleProof, merkle_root
from state.primitives.receipts import Event, Receipt, encode_receipt
from state.primitives.transactions import decode_transaction, sign_transaction
from state.primitives.votes import FINALIZE, NOTARIZE, Candidate, Equivocation, Vote, pid, vote_digest
from state.transition.evidence import Evidence
from state.transition.jail import JailRecord, save_jail
from state.transition.staking import StakeRecord, save_stake
from state.view import EMPTY, Overlay
from state.view.accounts import Account, save_account
from tests.house.imports import ROOT

SPEC: Final = ROOT / "docs/spec"
KEY: Final = SecretKey(b"k" * 32)
GENESIS: Final = b"g" * 32
IDENTITY: Final = Identity.create(KEY, genesis_hash=GENESIS, now_ms=10**12, node_secret=b"n" * 32)


def text_of(document: str) -> str:
    """Return a document with each run of white space as one space."""
    return " ".join((SPEC / document).read_text().split())


def fields_after(document: str, phrase: str) -> list[str]:
    """Return the names in the first list in brackets after ``phrase``; an inner list is one name."""
    text = text_of(document)
    assert text.count(phrase) == 1, f"{document}: {phrase!r} stands {text.count(phrase)} times"
    start = text.index("[", text.index(phrase))
    names: list[str] = []
    depth, name = 0, ""
    for character in text[start:]:
        depth += (character == "[") - (character == "]")
        if depth == 0:
            return [*names, name.strip()]
        if character == "[" and depth == 1:
            continue
        if character == "," and depth == 1:
            names.append(name.strip())
            name = ""
        else:
            name += character
    raise AssertionError(f"{document}: the list after {phrase!r} has no end")


def rows_after(document: str, header: str) -> list[list[str]]:
    """Return the cells of the table whose header line is ``header``, without the grave accents."""
    lines = (SPEC / document).read_text().split("\n")
    assert lines.count(header) == 1, f"{document}: {header!r} stands {lines.count(header)} times"
    rows = []
    for line in lines[lines.index(header) + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.replace("`", "").strip("|").split("|")])
    return rows


def ordered(names: Sequence[str], values: Mapping[str, Any]) -> list[Any]:
    """Return the values in the order of the names of the text; both name the same fields."""
    assert set(names) == set(values), f"the text names {names}, the test {sorted(values)}"
    assert len(names) == len(values)
    return [values[name] for name in names]


def encoded(value: Any) -> bytes:
    """Return the canonical bytes, by the CBOR library alone."""
    return cbor2.dumps(value, canonical=True)


def pairs_of(cell: str) -> list[str]:
    """Return the names in a cell of a table; commas inside brackets separate none."""
    return [name.strip() for name in re.split(r",(?![^\[]*\])", cell)] if cell else []


# chain.md

VALIDATOR: Final = GenesisValidator(b"a" * 20, b"v" * 32, b"r" * 32, 7)


def test_the_genesis_hash_covers_the_fields_of_the_text() -> None:
    genesis = Genesis(5, "name", 11, True, ((b"x" * 20, 13),), (VALIDATOR,), (("chain.stake_min", 17),))
    validator = ordered(fields_after("chain.md", "A validator is"), VALIDATOR._asdict())
    fields = ordered(
        fields_after("chain.md", 'genesis_hash = H("genesis",'),
        {
            "chain_id": 5, "name": "name", "time_ms": 11, "testnet": 1, "allocations": [[b"x" * 20, 13]],
            "validators": [validator], "parameters": [["chain.stake_min", 17]],
        },
    )  # fmt: skip
    assert genesis_hash(genesis) == digest(b"genesis", encoded(fields))


HEADER: Final = Header(
    1, GENESIS, 2, 3, 4, 5, b"p" * 32, 6, b"t" * 32, b"e" * 32, b"s" * 32, b"f" * 32, b"z" * 80, b"c" * 32,
    b"d" * 32, b"b" * 9, 7, 8, 9, 10,
)  # fmt: skip


def test_a_header_has_the_fields_of_the_table_in_their_order() -> None:
    rows = rows_after("chain.md", "| # | Field | Type and range |")
    assert [int(row[0]) for row in rows] == list(range(len(Header._fields)))
    data = encoded(ordered([row[1] for row in rows], HEADER._asdict()))
    assert encode_header(HEADER) == data
    assert header_hash(HEADER) == digest(b"header", data)


def test_a_block_is_its_header_its_transactions_and_its_evidence() -> None:
    block = Block(HEADER, (b"one", b"two"), (b"three",))
    fields = ordered(
        fields_after("chain.md", "A block is `"),
        {"header": list(HEADER), "transactions": [b"one", b"two"], "evidence": [b"three"]},
    )
    assert encode_block(block) == encoded(fields)


def test_a_merkle_tree_and_its_proofs_are_made_as_the_text_says() -> None:
    leaves = [digest(b"merkle-leaf", item) for item in (b"one", b"two", b"three")]
    top = digest(b"merkle-node", digest(b"merkle-node", leaves[0] + leaves[1]) + leaves[2])
    assert merkle_root([b"one", b"two", b"three"]) == digest(b"merkle-root", (3).to_bytes(8, "big") + top)
    values = {"position": 1, "leaves": 3, "siblings": [leaves[0], leaves[2]]}
    proof = MerkleProof(1, 3, (leaves[0], leaves[2]))
    assert encode_merkle_proof(proof) == encoded(ordered(fields_after("chain.md", "A proof is `"), values))


def test_a_native_transaction_is_its_form_and_the_array_of_the_text() -> None:
    names = fields_after("chain.md", "``` 0x44 || ")
    values = {
        "chain_id": 5, "nonce": 6, "max_priority_fee_per_gas": 7, "max_fee_per_gas": 8, "gas_limit": 9, "kind": 1,
        "payload": [b"t" * 20, 10],
    }  # fmt: skip
    signed = keccak(b"\x44" + encoded(ordered(names[:-1], values)))
    raw = b"\x44" + encoded(ordered(names, values | {"signature": KEY.sign(signed)}))
    assert raw == sign_transaction(
        KEY, chain_id=5, nonce=6, kind=1, payload=[b"t" * 20, 10], gas_limit=9, max_fee_per_gas=8,
        max_priority_fee_per_gas=7,
    )  # fmt: skip
    transaction = decode_transaction(raw)
    assert (transaction.form, transaction.hash, transaction.digest) == (NATIVE_FORM, keccak(raw), signed)
    assert transaction.recover_sender() == KEY.address


@pytest.mark.parametrize(("status", "reason"), [(1, None), (0, "stake_too_small")])
def test_a_receipt_and_its_events_are_the_arrays_of_the_text(status: int, reason: str | None) -> None:
    event = Event(b"a" * 20, (b"1" * 32, b"2" * 32), b"data")
    values = {"address": event.address, "topics": list(event.topics), "data": event.data}
    inner = ordered(fields_after("chain.md", "An event is `"), values)
    outer = {
        "status": status, "gas_used": 21_000, "effective_gas_price": 9, "reason": reason, "events": [inner],
    }  # fmt: skip
    data = encoded(ordered(fields_after("chain.md", "A receipt is `"), outer))
    assert encode_receipt(Receipt(status, 21_000, 9, reason, (event,))) == data


def test_records_of_accounts_stakes_and_jails_have_the_layout_of_the_table() -> None:
    rows = {row[0]: row for row in rows_after("chain.md", "| Table | Key after the first byte | Value |")}
    state, who = Overlay(EMPTY), b"w" * 20
    save_account(state, who, Account(3, 5))
    assert rows["0x01"][1:] == ["address", "account: nonce (8 bytes), balance (16 bytes)"]
    assert state.get(b"\x01" + who) == (3).to_bytes(8, "big") + (5).to_bytes(16, "big")
    stake = StakeRecord(7, b"v" * 32, b"r" * 32, 11)
    save_stake(state, who, stake)
    names = rows["0x02"][2].removeprefix("stake: [").removesuffix("]").split(", ")
    assert state.get(b"\x02" + who) == encoded(ordered(names, stake._asdict()))
    jail = JailRecord(13, 2)
    save_jail(state, who, jail)
    names = rows["0x08"][2].removeprefix("jail: [").partition("]")[0].split(", ")
    assert state.get(b"\x08" + who) == encoded(ordered(names, jail._asdict()))


# consensus.md

VOTE: Final = Vote(FINALIZE, 2, 9, 4, b"h" * 32, 5, b"s" * 64)
CERTIFICATE: Final = Certificate(FINALIZE, 2, 9, 4, b"h" * 32, b"\x07", b"s" * 192)
NULL: Final = Certificate(2, 2, 8, 0, bytes(32), b"\x07", b"n" * 192)


def test_a_vote_and_a_certificate_are_the_arrays_of_the_text() -> None:
    vote = ordered(fields_after("consensus.md", "A vote is the array"), VOTE._asdict())
    assert [row[0] for row in rows_after("consensus.md", "| Field | Type and range |")] == list(Vote._fields)
    assert wire.encode_message(wire.Votes((VOTE,))) == encoded([1, [vote]])
    certificate = ordered(fields_after("consensus.md", "A certificate is the array"), CERTIFICATE._asdict())
    assert wire.encode_certificate(CERTIFICATE) == encoded(certificate)


def test_a_vote_signs_the_digest_of_the_text() -> None:
    assert 'pid = H("pid", u32(epoch) || u64(view) || u64(parent_view) || block_hash)' in text_of("consensus.md")
    assert (
        'digest = H("vote", "SDBFT/1" || genesis_hash || u8(kind) || u32(epoch) || u64(view) || identity)'
    ) in text_of("consensus.md")
    candidate = Candidate(2, 9, 4, b"h" * 32)
    head = (2).to_bytes(4, "big") + (9).to_bytes(8, "big")
    identity = digest(b"pid", head + (4).to_bytes(8, "big") + b"h" * 32)
    assert pid(candidate) == identity
    for kind, under in ((NOTARIZE, identity), (2, bytes(32)), (FINALIZE, identity)):
        signed = digest(b"vote", b"SDBFT/1" + GENESIS + bytes((kind,)) + head + under)
        assert vote_digest(GENESIS, kind, candidate) == signed


MESSAGES: Final[tuple[tuple[wire.Message, dict[str, Any]], ...]] = (
    (wire.Votes((VOTE,)), {"array of 1 to votes_max votes": [list(VOTE)]}),
    (
        wire.Proposal(Candidate(2, 9, 4, b"h" * 32), b"s" * 64, CERTIFICATE, (NULL,), b"block"),
        {
            "epoch": 2, "view": 9, "parent_view": 4, "block_hash": b"h" * 32, "signature": b"s" * 64,
            "justify": list(CERTIFICATE), "nulls": [list(NULL)], "block": b"block",
        },
    ),
    (wire.Certificates((CERTIFICATE,)), {"array of 1 to certificates_max certificates": [list(CERTIFICATE)]}),
    (wire.GetCertificates(2, 5, 9), {"epoch": 2, "from_view": 5, "to_view": 9}),
    (wire.GetBlock(b"h" * 32), {"block_hash": b"h" * 32}),
    (wire.BlockReply(b"block"), {"block": b"block"}),
    (wire.GetBlocks(7, 3), {"from_height": 7, "count": 3}),
    (
        wire.BlocksReply(7, CERTIFICATE, (b"block",)),
        {"from_height": 7, "certificate": list(CERTIFICATE), "array of 1 to blocks_max blocks": [b"block"]},
    ),
    (wire.Status(2, 9, 7, b"h" * 32), {"epoch": 2, "view": 9, "finalized_height": 7, "finalized_hash": b"h" * 32}),
    (wire.BlocksPruned(7, 9), {"from_height": 7, "oldest_height": 9}),
)  # fmt: skip


def test_messages_of_the_consensus_have_the_tags_and_items_of_the_table() -> None:
    rows = rows_after("consensus.md", "| Tag | Message | Items after the tag |")
    assert len(rows) == len(MESSAGES)
    for (tag, name, items), (message, values) in zip(rows, MESSAGES, strict=True):
        assert type(message).__name__ == name
        data = encoded([int(tag), *ordered(pairs_of(items), values)])
        assert wire.encode_message(message) == data, name
        assert wire.decode_message(data) == message, name


REQUESTS: Final[tuple[tuple[signer.Request, dict[str, Any]], ...]] = (
    (
        signer.Open(GENESIS, b"v" * 32),
        {"genesis_hash": GENESIS, "and vote_key where it is not the first": b"v" * 32},
    ),
    (
        signer.AskVote(FINALIZE, 2, 9, 4, b"h" * 32, 5),
        {"kind": FINALIZE, "epoch": 2, "view": 9, "parent_view": 4, "block_hash": b"h" * 32, "seat": 5},
    ),
    (signer.AskProof(2, 9, b"r" * 32), {"epoch": 2, "view": 9, "randomness": b"r" * 32}),
    (signer.AskVotes(2, 9, 3), {"epoch": 2, "view": 9, "kind to continue after": 3}),
    (signer.RaiseFloor(2, 9), {"epoch": 2, "view": 9}),
    (signer.Ping(), {}),
    (signer.AskStatus(b"v" * 32), {"vote_key or nothing": b"v" * 32}),
    (signer.Retire(b"v" * 32), {"vote_key or nothing": b"v" * 32}),
    (signer.AskKeys(), {}),
)


def test_requests_to_a_signer_have_the_tags_and_fields_of_the_table() -> None:
    rows = rows_after("consensus.md", "| Tag | Request | Fields | Answer |")
    for (tag, _, fields, _), (request, values) in zip(rows, REQUESTS, strict=True):
        body = encoded([77, int(tag), *ordered(pairs_of(fields), values)])
        assert signer.encode_request(77, request) == body
        assert signer.decode_request(body) == (77, request)
    assert "A frame is `u16 length || body`" in text_of("consensus.md")
    assert signer.frame(b"body") == b"\0\x04body"


def test_evidence_is_the_array_of_the_text() -> None:
    first, second = VOTE._replace(block_hash=b"g" * 32, signature=b"1" * 64), VOTE
    evidence = Evidence.of(Equivocation(second, first), b"r" * 20)
    votes = []
    for vote in (first, second):
        values = {name: getattr(vote, name) for name in ("kind", "parent_view", "block_hash", "signature")}
        votes.append(ordered(fields_after("consensus.md", "A vote in it is"), values))
    names = fields_after("consensus.md", "Evidence is `")
    assert names == ["epoch", "view", "seat", "vote", "vote", "reporter"]
    assert evidence.encode() == encoded([2, 9, 5, *votes, b"r" * 20])


def test_a_committee_and_an_epoch_record_are_the_arrays_of_the_text() -> None:
    seats = Seat(b"a" * 20, b"v" * 32, b"r" * 32, 7), Seat(b"b" * 20, b"w" * 32, b"q" * 32, 5)
    committee = Committee(seats, (1, 0))
    listed = [ordered(fields_after("consensus.md", "A seat is `"), seat._asdict()) for seat in seats]
    values = {"seats": listed, "order": [1, 0]}
    data = encoded(ordered(fields_after("consensus.md", "A committee is the canonical array"), values))
    assert (committee.encode(), committee.hash) == (data, digest(b"committee", data))
    parts = {
        "header": encode_header(HEADER), "certificate": wire.encode_certificate(CERTIFICATE), "committee": data,
    }  # fmt: skip
    record = decode_epoch_record(encoded(ordered(fields_after("consensus.md", "An epoch record is `"), parts)))
    assert (record.header, record.certificate, record.committee.encode()) == (HEADER, CERTIFICATE, data)


# network.md


def certificate_values() -> dict[str, Any]:
    """Return the fields of the node certificate as the text names them."""
    found = IDENTITY.certificate
    return {
        "genesis_hash": found.genesis_hash, "static_key": found.static_key, "signer": found.signer,
        "roles": int(found.roles), "not_after_ms": found.not_after_ms, "sequence": found.sequence,
        "signature": found.signature,
    }  # fmt: skip


def test_a_node_certificate_is_the_array_of_the_text() -> None:
    names = fields_after("network.md", "A certificate says which node keys act for an account")
    value = ordered(names, certificate_values())
    assert names[:-1] == [row[0] for row in rows_after("network.md", "| Field | Form |")]
    assert IDENTITY.certificate.encode() == encoded(value)
    assert IDENTITY.certificate.signature == KEY.sign(digest(b"node certificate", encoded(value[:-1])))


def test_a_peer_record_is_the_array_of_the_text() -> None:
    endpoint = Endpoint.parse("tcp:192.0.2.1:26600")
    record = sign_record(IDENTITY, (endpoint,), now_ms=10**12)
    values = {
        "certificate": list(certificate_values().values()), "sequence": record.sequence,
        "expiry_ms": record.expiry_ms, "[endpoint, ...]": [str(endpoint)],
    }  # fmt: skip
    names = fields_after("network.md", "A peer record says where a node can be reached")
    signed = ordered(names[:-1], values)
    assert names[-1] == "signature"
    signature = IDENTITY.signer.sign(digest(b"peer record", encoded(signed)))
    assert record.data == encoded([*signed, signature])


def test_a_handshake_begins_with_the_prologue_and_the_lengths_of_the_text() -> None:
    text = text_of("network.md")
    assert 'The prologue is `"DEKUBE"`, the version (one byte, 1), the purpose (one byte) and the genesis' in text
    rows = rows_after("network.md", "| Purpose | Number |")
    assert [(name.replace(" ", "_").replace("-", "").upper(), int(number)) for name, number in rows] == [
        (purpose.name, purpose.value) for purpose in Purpose
    ]
    for purpose in Purpose:
        assert prologue(GENESIS, purpose) == b"DEKUBE\x01" + bytes((purpose,)) + GENESIS
    first = Handshake(IDENTITY, Purpose.PEER, is_initiator=True, now_ms=10**12).start()
    assert int.from_bytes(first[:2], "big") == len(first) - 2 == 32, "a key alone: the first payload is empty"
    assert fields_after("network.md", "Payloads of the second and the third are") == ["certificate", "features"]


def test_a_frame_has_the_bytes_of_the_table() -> None:
    rows = rows_after("network.md", "| Bytes | Field |")
    values = {"class": 2, "kind": 0xE8, "stream": 0x01020304, "length of the body": 5}
    assert [name for _, name in rows] == [*values, "body"]
    head = b"".join(values[name].to_bytes(int(size), "big") for size, name in rows[:-1])
    assert frame(TrafficClass.GOSSIP, 0xE8, 0x01020304, b"hello") == head + b"hello"
    assert {name: int(number) for name, number, _ in rows_after(
        "network.md", "| Class | Number | `message_bytes_max` |"
    )} == {cls.name.lower(): cls.value for cls in TrafficClass}  # fmt: skip


def test_the_words_of_a_connection_have_the_numbers_and_bodies_of_the_table() -> None:
    start = (SPEC / "network.md").read_text().index("### 4.4")
    section = (SPEC / "network.md").read_text()[start:].partition("### 4.5")[0]
    words = dict(re.findall(r"^\| ([A-Z]+) \| 0x([0-9A-F]{2}) \|", section, re.MULTILINE))
    ping, pong = re.findall(r"^\| PING, PONG \| 0x([0-9A-F]{2}), 0x([0-9A-F]{2}) \|", section, re.MULTILINE)[0]
    assert {name: int(number, 16) for name, number in (words | {"PING": ping, "PONG": pong}).items()} == {
        word.name: word.value for word in ChannelFrame
    }
    assert "| HELLO | 0xF5 | u8 opening, 16 bytes conversation, u32 generation, u64 received |" in section
    body = b"\x02" + b"c" * 16 + (7).to_bytes(4, "big") + (9).to_bytes(8, "big")
    assert Hello(HelloKind.BULK, b"c" * 16, 7, 9).encode() == frame(TrafficClass.CONSENSUS, 0xF5, 0, body)


def test_the_identifier_of_a_gossip_payload_is_that_of_the_text() -> None:
    assert 'the first 20 bytes of `H("gossip message", topic || 0x00 || payload)`' in text_of("network.md")
    assert message_id("tx", b"payload") == digest(b"gossip message", b"tx\0payload")[:20]


SHAPE: Final = PieceLayout(size_bytes=5_000, piece_bytes=2_048)
MULTICAST: Final[tuple[tuple[multicast.Control, dict[str, Any]], ...]] = (
    (
        multicast.Announce(b"r" * 32, b"k" * 32, 3, SHAPE),
        {"root": b"r" * 32, "key": b"k" * 32, "kind": 3, "sealed size": 5_000, "piece bytes": 2_048},
    ),
    (multicast.Have(b"r" * 32, 5), {"root": b"r" * 32, "bitmap": 5}),
    (multicast.Done(b"r" * 32), {"root": b"r" * 32}),
    (
        multicast.Swap(b"r" * 32, b"p" * 32, 2, (b"m" * 20,)),
        {"root": b"r" * 32, "parity root": b"p" * 32, "parity count": 2, "members": [b"m" * 20]},
    ),
    (multicast.Want(b"r" * 32, 5), {"root": b"r" * 32, "bitmap": 5}),
    (
        multicast.Ask(b"r" * 32, ((b"m" * 20, 5),)),
        {"root": b"r" * 32, "[[address, bitmap], ...]": [[b"m" * 20, 5]]},
    ),
)

RELAY: Final[dict[str, tuple[relay.Message, dict[str, Any]]]] = {
    "Reserve": (relay.Reserve(3, 60), {"request": 3, "life in s": 60}),
    "Release": (relay.Release(), {}),
    "Connect": (
        relay.Connect(3, b"t" * 20, b"p" * 32),
        {"request": 3, "target": b"t" * 20, "token of a parked data connection or empty": b"p" * 32},
    ),
    "Decline": (relay.Decline(b"t" * 32), {"token": b"t" * 32}),
    "Ping": (relay.Ping(7), {"number": 7}),
    "Pong": (relay.Pong(7), {"number": 7}),
    "Extend": (
        relay.Extend(3, b"route", b"p" * 32),
        {"request": 3, "route": b"route", "parked token or empty": b"p" * 32},
    ),
    "Park": (relay.Park(b"t" * 32), {"token": b"t" * 32}),
    "Pay": (relay.Pay(b"receipt"), {"receipt": b"receipt"}),
    "AskLinkState": (relay.AskLinkState(3), {"request": 3}),
    "Reserved": (
        relay.Reserved(3, 60, b"voucher", "192.0.2.1:5"),
        {
            "request": 3, "life in s": 60, "voucher": b"voucher",
            "the client's host and port as one text": "192.0.2.1:5",
        },
    ),
    "Offered": (relay.Offered(3, b"t" * 32, 9), {"request": 3, "token": b"t" * 32, "wait in ms": 9}),
    "Incoming": (
        relay.Incoming(b"t" * 32, b"s" * 20, 9), {"token": b"t" * 32, "source": b"s" * 20, "wait in ms": 9},
    ),
    "Refused": (
        relay.Refused(3, Refusal.RELAY_FULL, 9, 50, ("tcp:192.0.2.1:5",)),
        {
            "request": 3, "refusal": int(Refusal.RELAY_FULL), "retry in ms": 9, "load in percent": 50,
            "other relays": ["tcp:192.0.2.1:5"],
        },
    ),
    "Terms": (
        relay.Terms(1, 2, 3, 4), {"price per GiB": 1, "free bytes": 2, "free ms": 3, "unpaid bytes": 4},
    ),
    "Restarting": (relay.Restarting(9), {"ms left": 9}),
    "Charged": (relay.Charged(9), {"bytes": 9}),
    "LinkStateReply": (relay.LinkStateReply(3, b"state"), {"request": 3, "link state": b"state"}),
}  # fmt: skip

FANOUT: Final[tuple[tuple[fanout.FanoutMessage, dict[str, Any]], ...]] = (
    (fanout.Subscribe((b"p" * 20,)), {"[publisher, ...]: from whom I take pieces": [b"p" * 20]}),
    (fanout.Group(3, (b"m" * 20,)), {"number": 3, "[member, ...]": [b"m" * 20]}),
    (fanout.Publish(3, 99), {"group": 3, "size": 99}),
    (fanout.Ping(7), {"number": 7}),
    (fanout.Delivery(b"p" * 20, 99), {"publisher": b"p" * 20, "size": 99}),
    (fanout.Pong(7), {"number": 7}),
)


def tables(first: str) -> list[list[str]]:
    """Return the rows of the table of network.md "Number, Name, Rest" that has ``first`` as its first name."""
    found = re.findall(
        r"^\| Number \| Name \| Rest \|\n\|[-| ]+\|\n((?:\|.*\n)+)",
        (SPEC / "network.md").read_text(),
        re.MULTILINE,
    )
    (lines,) = [lines for lines in found if lines.split("|")[2].strip() == first]
    return [[cell.strip() for cell in line.replace("`", "").strip("|").split("|")] for line in lines.splitlines()]


def test_control_messages_of_the_multicast_are_those_of_the_table() -> None:
    for (number, name, rest), (message, values) in zip(tables("Announce"), MULTICAST, strict=True):
        assert type(message).__name__ == name
        data = encoded([int(number), *ordered(pairs_of(rest), values)])
        assert multicast.encode_control(message) == data, name
        assert multicast.decode_control(data) == message, name


def test_a_piece_of_the_multicast_has_the_bytes_of_the_text() -> None:
    assert (
        "A frame of a piece is the root (32 bytes), flags (1 byte: 1 means hand on), the number (2 bytes), the "
        "count of siblings (1 byte), the siblings, and the data."
    ) in text_of("network.md")
    piece = Piece(b"r" * 32, 258, (b"1" * 32, b"2" * 32), b"data", is_to_forward=True)
    assert encode_piece(piece) == b"r" * 32 + b"\x01" + b"\x01\x02" + b"\x02" + b"1" * 32 + b"2" * 32 + b"data"


def test_messages_of_a_relay_are_those_of_the_table() -> None:
    seen = set()
    for numbers, names, rest in tables("Reserve"):
        for number, name in zip(numbers.split(", "), names.split(", "), strict=True):
            message, values = RELAY[name]
            fields = pairs_of("" if rest == "nothing" else rest)
            assert type(message).__name__ == name
            data = encoded([int(number), *ordered(fields, values)])
            assert relay.encode_message(message) == data, name
            assert relay.decode_message(data) == message, name
            seen.add(name)
    assert seen == set(RELAY)


def test_messages_of_the_fan_out_are_those_of_the_table() -> None:
    for (number, name, rest), (message, values) in zip(tables("Subscribe"), FANOUT, strict=True):
        assert type(message).__name__ == name
        data = encoded([int(number), *ordered(pairs_of(rest.partition(";")[0]), values)])
        assert fanout.encode_fanout(message) == data, name
        assert fanout.decode_fanout(data) == message, name


def test_vouchers_routes_and_link_states_are_the_arrays_of_the_text() -> None:
    voucher = relay.Voucher.issue(IDENTITY, client=b"c" * 20, not_after_ms=9)
    hop = Endpoint.parse("tcp:192.0.2.1:26600")
    route = Route.sign(IDENTITY, (hop,), b"t" * 20, now_ms=10**12, nonce=b"n" * 16)
    state = LinkState.sign(IDENTITY, {b"o" * 20: LinkMeasurement(3, 5)}, now_ms=9)
    cases: tuple[tuple[str, bytes, bytes, dict[str, Any]], ...] = (
        (
            "The relay answers with a voucher", b"relay voucher", voucher.encode(),
            {"genesis_hash": GENESIS, "relay": KEY.address, "client": b"c" * 20, "not_after_ms": 9},
        ),
        (
            "It signs a route:", b"relay route", route.encode(),
            {
                "hops": [str(hop)], "target": b"t" * 20, "not_after_ms": route.not_after_ms, "nonce": b"n" * 16,
                "certificate": list(certificate_values().values()),
            },
        ),
        (
            "A relay signs what it measured", b"relay links", state.encode(),
            {
                "genesis_hash": GENESIS, "relay": KEY.address, "at_ms": 9,
                "[[address, rtt_us, bytes_per_s], ...]": [[b"o" * 20, 3, 5]],
            },
        ),
    )  # fmt: skip
    for phrase, kind, data, values in cases:
        names = fields_after("network.md", phrase)
        signed = ordered(names[:-1], values)
        assert names[-1] == "signature"
        assert data == encoded([*signed, IDENTITY.signer.sign(digest(kind, encoded(signed)))]), phrase


def test_small_messages_behind_nats_are_the_arrays_of_the_text() -> None:
    host, attempt = "192.0.2.1", b"a" * 16
    address = encoded(
        ordered(fields_after("network.md", "answers with one length byte and"), {"host": host, "port": 5})
    )
    assert (OBSERVE_PREAMBLE, observed_answer(host, 5)) == (b"DKRO", bytes((len(address),)) + address)
    observed = ObservedAddress(ip_address(host), 5)
    cases: tuple[tuple[str, bytes, dict[str, Any]], ...] = (
        (
            "The first question is", PunchMessage(attempt, observed).encode(),
            {"1": 1, "attempt": attempt, "observed": address},
        ),
        ("The second question is", PunchMessage(attempt).encode(), {"2": 2, "attempt": attempt}),
        ("as the second message of the handshake and answers", DialBackAnswer(host, True).encode(),
         {"host": host, "0 or 1": 1}),
    )  # fmt: skip
    for phrase, data, values in cases:
        assert data == encoded(ordered(fields_after("network.md", phrase), values)), phrase


def test_a_manifest_is_the_array_of_the_text() -> None:
    hashes = piece_hash(b"1" * PIECE_BYTES), piece_hash(b"2")
    names = fields_after("network.md", "The manifest is")
    data = encoded(
        ordered(names, {"size_bytes": PIECE_BYTES + 1, "1048576": PIECE_BYTES, "hashes": b"".join(hashes)})
    )
    assert Manifest(PIECE_BYTES + 1, hashes).encode() == data
    chunks = [b"1" * 4096] * 256
    assert (piece_hash(b"1" * PIECE_BYTES), piece_hash(b"2")) == (merkle_root(chunks), merkle_root([b"2"]))
    names = fields_after("network.md", 'The name is `H("blob",')
    pieces = digest(b"blob pieces", b"".join(hashes))
    name = ordered(names, {"size_bytes": PIECE_BYTES + 1, "1048576": PIECE_BYTES, "pieces": pieces})
    assert blob_id(data) == digest(b"blob", encoded(name))


# rpc.md


def test_an_upload_grant_is_the_array_of_the_text_and_signs_its_digest() -> None:
    blob, until = b"b" * 32, 9
    names = fields_after("rpc.md", 'The account signs `H("blob upload",')
    signed = digest(b"blob upload", encoded(ordered(names, {"genesis_hash": GENESIS, "ID": blob, "until": until})))
    assert grants.grant_digest(GENESIS, blob, until) == signed
    values = {"until": until, "signature": KEY.sign(signed)}
    grant = encoded(ordered(fields_after("rpc.md", "the digits of"), values))
    assert grants.make_grant(until, KEY.sign(signed)) == "Dekube " + grant.hex()
    assert grants.read_grant("Dekube " + grant.hex(), genesis_hash=GENESIS, blob=blob, height=3) == KEY.address


NODE_FRAMES: Final[dict[str, tuple[Callable[[], bytes], dict[str, Any]]]] = {
    "request": (
        lambda: frames.encode_request(7, "head", [1, b"x"]),
        {"id": 7, "method": "head", "params": [1, b"x"]},
    ),
    "answer": (lambda: frames.encode_answer(7, [1]), {"id": 7, "null": None, "value": [1]}),
    "failure": (
        lambda: frames.encode_failure(7, DecodeError("why")),
        {"id": 7, "code": "decode_error", "message": "why", "[[name, value], ...]": []},
    ),
    "push": (lambda: frames.encode_push("head", [1]), {"0": 0, "topic": "head", "value": [1]}),
}


def test_frames_between_gateway_and_node_are_those_of_the_table() -> None:
    rows = rows_after("../rpc.md", "| frame | array |")
    assert [name for name, _ in rows] == list(NODE_FRAMES)
    for name, array in rows:
        encode, values = NODE_FRAMES[name]
        body = encoded(ordered(pairs_of(array.removeprefix("[").removesuffix("]")), values))
        assert encode() == len(body).to_bytes(4, "big") + body, name
