"""Every decoder of the product with good samples: what reads it, what it may raise, what must come back.

``covers`` names the functions (module:qualified name) that a target runs; ``test_registry`` finds them all.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import click
import trio

from billing.relay import Receipt as Carried
from consensus import signer as votesigner
from consensus.guard import (
    JOURNAL_BLOCK,
    JOURNAL_CERTIFICATE,
    Guard,
    GuardCorrupt,
    GuardMissing,
    GuardRefused,
    _slot,
    journal_record,
    read_journal,
)
from consensus.hearsay import decode_said, decode_wanted, encode_said, encode_wanted
from consensus.inbound import decode_inbound
from consensus.light import (
    EpochRecord,
    Fork,
    LightClient,
    LightOptions,
    decode_epoch_record,
    decode_merkle_proof,
    encode_epoch_record,
    encode_merkle_proof,
)
from consensus.wire import decode_certificate, decode_message, encode_certificate, encode_message
from node.blob_search import Question, decode_question, encode_question
from node.carriage import standing_from_document
from node.chain import BodyInvalid, decode_body
from node.cli.guard import read_watermark
from node.cli.jobs import read_spec, spec_from_json, spec_to_json
from node.cli.output import parse_amount
from node.cli.transactions import read_possession
from node.config import (
    NodeOptions,
    dump_options,
    load_options,
    load_table,
    parse_checkpoint,
    parse_host_port,
    parse_peer,
    parse_signer,
    parse_vote_key,
)
from node.evidence import decode_file, encode_file
from node.home import load_genesis, read_keystore, read_passphrase
from node.keyring import key_of_mnemonic, parse_secret
from node.light import Endpoint as LightEndpoint
from node.light import LightFile, load_light_file, save_light_file
from node.promises import decode_published
from node.relay import RelayHomeOptions
from node.runtime import make_runtime
from node.signer import SignerHomeOptions, load_signer_options
from node.sync import messages as sync_messages
from node.sync.messages import (
    Offer,
    decode_asked,
    decode_manifest,
    decode_offers,
    decode_records,
    encode_asked,
    encode_manifest,
    encode_offers,
    encode_records,
)
from node.transactions import decode_batch, encode_batch
from p2p.addrbook import AddressBook
from p2p.blobs import Manifest
from p2p.channel import Channel, Opening
from p2p.channel import Hello as PeerHello
from p2p.dialling import parse_bootstrap
from p2p.errors import FrameInvalid, HandshakeFailed, RecordInvalid
from p2p.frame import frame, frames
from p2p.gossip import Gossip
from p2p.handshake import Handshake
from p2p.identity import NodeCertificate, Purpose
from p2p.lanes import BulkIn, BulkOut, Lane, WindowLimits
from p2p.limits import NetworkLimits, ReceiveMemory
from p2p.multicast import Multicast
from p2p.multicast_wire import (
    Announce,
    Done,
    Have,
    Swap,
    Want,
    encode_control,
)
from p2p.mux import Mux
from p2p.peer import Peer
from p2p.pieces import (
    MESSAGE_BYTES_MAX,
    SEAL_BYTES,
    Piece,
    Shape,
    cut_message,
    decode_piece,
    encode_piece,
)
from p2p.punch import Observed, Word
from p2p.reach import Answer
from p2p.record import RecordReader
from p2p.records import sign_record, verify_record
from p2p.revocations import Revocations
from p2p.transport import Endpoint
from relay import fanout as fanout_wire
from relay.errors import Refusal, RelayProtocolError
from relay.links import Link, LinkState
from relay.protocol import (
    AskLinks,
    Charged,
    Connect,
    Decline,
    Extend,
    Incoming,
    Links,
    Offered,
    Park,
    Pay,
    Ping,
    Pong,
    Refused,
    Release,
    Reserve,
    Reserved,
    Restarting,
    Terms,
    Voucher,
)
from relay.protocol import decode_message as decode_relay_message
from relay.protocol import encode_message as encode_relay_message
from relay.receipts import StoredReceipt
from relay.route import Route
from rpc.client.api import read_grant
from rpc.client.contracts import functions_of, parse_argument, read_revert
from rpc.client.control import ControlRefused, ControlUnavailable
from rpc.client.control import read_answer as read_control_answer
from rpc.client.core import news_of, read_answers
from rpc.client.errors import AnswerMalformed, ClientError
from rpc.client.shapes import Account, Contract, News, Task, Window, read_shape
from rpc.client.shapes import Receipt as ShownReceipt
from rpc.faucet import FaucetRefused, read_address
from rpc.frames import (
    REQUEST_LIMIT_BYTES,
    FrameBuffer,
    encode_answer,
    encode_failure,
    encode_push,
    encode_request,
    read_answer,
    read_request,
)
from rpc.gateway import GatewayOptions, options_from_json, options_to_json
from rpc.view import Head, PoolStatus, read_record, record_value
from state.primitives.address import format_address, parse_address
from state.primitives.blocks import Block, decode_block, decode_header, encode_block, encode_header
from state.primitives.codec import decode, encode
from state.primitives.committee import Committee, Seat
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
from state.primitives.keys import SecretKey
from state.primitives.keystore import decrypt_keystore, encrypt_keystore, keystore_address
from state.primitives.merkle import merkle_proof
from state.primitives.receipts import (
    Event,
    EventType,
    Receipt,
    decode_receipt,
    encode_receipt,
    event_from_value,
    event_to_value,
)
from state.primitives.transactions import CHAIN_ID_MAX, decode_transaction, sign_transaction
from state.primitives.typed_data import parse_typed_data
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Equivocation, Vote, VoteKey
from state.primitives.vrf import VrfKey, vrf_output, vrf_verify
from state.store.errors import StoreDamaged
from state.store.nodes import decode_flushed, encode_flushed
from state.store.records import (
    Bounds,
    Tip,
    Undo,
    decode_bounds,
    decode_epoch,
    decode_index,
    decode_place,
    decode_receipts,
    decode_tip,
    encode_bounds,
    encode_epoch,
    encode_index,
    encode_place,
    encode_receipts,
    encode_tip,
)
from state.transition.calls import SYSTEM_PREFIX
from state.transition.evidence import Evidence, decode_evidence
from state.transition.staking import STAKE_KIND, UNSTAKE_KIND, stake_payload, unstake_payload
from state.transition.transfer import transfer_payload
from state.trie import RangeOfMap, decode_range, encode_range, prove, prove_range, verify_proof
from state.trie.proof import decode_proof
from state.trie.trie import NO_NODES, NodeLayer, Trie
from tasks import transitions
from tasks.carriage import FUND_CARRIAGE, SETTLE_CARRIAGE, WITHDRAW_CARRIAGE
from tasks.datasets import Dataset
from tasks.engine.errors import DatasetInvalid, StateInvalid, UnsupportedJob
from tasks.engine.state import TrainingState
from tasks.engine.training import initial_state
from tasks.executor.job import (
    Cancel,
    Failed,
    Finished,
    FrameReader,
    Hello,
    Job,
    Progress,
    Segment,
    Train,
    decode_child_frame,
    decode_parent_frame,
    encode_frame,
)
from tasks.executor.journal import Journal, _write
from tasks.lifecycle import Reason
from tasks.proofs import (
    Code,
    Finding,
    decode_leaves,
    encode_leaves,
    findings_from_value,
    findings_to_value,
    make_opening,
    opening_from_value,
    opening_to_value,
    window_proof_from_value,
    window_proof_to_value,
)
from tasks.registry import Gpu, NodeProfile, NodeRole, profile_from_value, profile_to_value
from tasks.spec import decode_spec, encode_spec
from testnet.cluster import TestnetError, _load_plan
from testnet.wan.lab import shipped
from testnet.wan.topology import document_of, parse_topology, plan
from tests.consensus.lightchain import LightChain
from tests.consensus.test_signer import ANSWERS, REQUESTS
from tests.consensus.test_wire import BLOCK, FINAL, MESSAGES, VOTE
from tests.fuzz import blobs, compact
from tests.fuzz.state_records import state_records
from tests.p2p.helpers import GENESIS, NOW_MS, account, identity, sessions
from tests.state.primitives.test_abi import STAKE as STAKE_CALL
from tests.state.primitives.test_ethereum import VECTORS as ETHEREUM_VECTORS
from tests.state.primitives.test_objects import FOUNDED as FILE
from tests.state.transition.chain import genesis as small_genesis
from tests.tasks.executor.helpers import BLOB, DATA, make_spec
from tests.tasks.test_codecs import JOB as CALL_JOB
from tests.tasks.test_codecs import OPENING as CALL_OPENING
from tests.tasks.test_codecs import PROFILE as CALL_PROFILE
from tests.tasks.world import leaves_of, probe, proof_of, salt, spec

Raises = tuple[type[Exception], ...]
MALFORMED: Raises = (DecodeError,)
KEY = SecretKey(b"k" * 32)


@dataclass(frozen=True)
class Target:
    """One decoder: ``run`` reads bytes, checks what comes back and raises nothing but ``raises``."""

    run: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    covers: tuple[str, ...]
    raises: Raises = MALFORMED
    cost: int = 1
    """How many times fewer inputs it gets with every run of the tests; in a campaign all get as many."""
    memory: int = 40
    """Peak bytes allowed for each byte of input; what is fixed is allowed on top."""


def canonical(decoder: Callable[[bytes], Any], encoder: Callable[[Any], bytes]) -> Callable[[bytes], object]:
    """Return a run that demands the very bytes back."""

    def run(data: bytes) -> None:
        value = decoder(data)
        assert encoder(value) == data, "a value with two spellings"

    return run


def of_value(reader: Callable[[Any], Any], writer: Callable[[Any], Any]) -> Callable[[bytes], object]:
    """Return a run for a reader of decoded values."""
    return canonical(lambda data: reader(decode(data, limit_bytes=1 << 20)), lambda value: encode(writer(value)))


def of_text(reader: Callable[[str], object]) -> Callable[[bytes], object]:
    """Return a run for a reader of text."""
    return lambda data: reader(data.decode("utf-8", "replace"))


@cache
def scratch() -> Path:
    """A folder in memory where there is one, for readers that take a path."""
    shm = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(prefix="fuzz-", dir=shm if shm.is_dir() else None)
    _keep.append(folder)
    return Path(folder.name)


_keep: list[Any] = []


def of_file(name: str, reader: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a run for a reader of a file."""

    def run(data: bytes) -> object:
        path = scratch() / name
        path.write_bytes(data)
        path.chmod(0o600)
        return reader(path)

    return run


def read_ethereum(data: bytes) -> None:
    """Either form; what is read is within the limits that every transaction has."""
    transaction = decode_dynamic(data) if data[:1] == b"\x02" else decode_legacy(data)
    assert transaction.raw == data and 0 < transaction.chain_id <= CHAIN_ID_MAX


def check_call(data: bytes) -> None:
    """The first byte picks the contract, the value is what the kind moves where that can be told."""
    contract, data = SYSTEM_PREFIX + bytes((data[0] % 5 if data else 0,)), data[1:]
    rule = CALL_RUNTIME.rule_of_call(contract, 0, data)
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


# Samples

CALL_RUNTIME = make_runtime(small_genesis())
CALL_PAYLOADS: tuple[tuple[int, list[Any]], ...] = (
    (STAKE_KIND, [0, bytes(32), b"p" * 64, bytes(32), b"v" * 80]),
    (transitions.REGISTER_NODE, transitions.node_payload(CALL_PROFILE, 0)),
    (transitions.CREATE_TASK, [encode_spec(CALL_JOB)]),
    (transitions.OPEN_WINDOW, [bytes(32), 1, [opening_to_value(CALL_OPENING)]]),
)
CALLS = tuple(
    form.contract[-1:] + form.call_of(payload, 0)[1]
    for kind, payload in CALL_PAYLOADS
    if (form := CALL_RUNTIME.rules[kind].call) is not None
)
ETHEREUM = tuple(bytes.fromhex(vector["raw"]) for vector in ETHEREUM_VECTORS[:12])
VRF = VrfKey(b"v" * 32)
COMMITTEE = Committee(
    [Seat(bytes([n]) * 20, bytes([n]) * 32, bytes([n]) * 32, n + 1) for n in range(4)], (2, 0, 1, 3)
)
EVIDENCE = tuple(
    Evidence.of(Equivocation(Vote(a, 3, 9, *one, 2, b"s" * 64), Vote(b, 3, 9, *other, 2, b"t" * 64)), b"r" * 20)
    for a, one, b, other in (
        (NOTARIZE, (8, b"a" * 32), NOTARIZE, (8, b"b" * 32)), (NULLIFY, (0, bytes(32)), FINALIZE, (7, b"b" * 32)),
    )
)  # fmt: skip
RAW = sign_transaction(KEY, chain_id=7, nonce=3, kind=1, payload=[b"a" * 20, 10**22], gas_limit=21_000,
                       max_fee_per_gas=2 * 10**9, max_priority_fee_per_gas=1)  # fmt: skip
MOVED = EventType(b"\x01" * 20, "Moved(bytes32 indexed task, address indexed to, uint256 value)")
RECEIPTS = (Receipt(1, 21_000, 10**9, None, (MOVED(b"t" * 32, b"w" * 20, 5),)), Receipt(0, 1, 1, "no", ()))
JOB = spec(total=55)
LEAVES = leaves_of(JOB, 2, b"i" * 32)
PROOF = proof_of(JOB, b"t" * 32, 2, LEAVES)
OPENING = make_opening(LEAVES, 1, probe(LEAVES[1].step_from), salt(LEAVES[1].step_from))
PROFILE = NodeProfile(b"o" * 20, NodeRole.COMPUTE, (Gpu("H100", 81_559),), 8, 16_000, 16, 10**15, 100, 1, 0,
                      ("tcp:h:1",), "1.0")  # fmt: skip
FINDINGS = (Finding(0, Code.COMPUTED, b"p" * 32, b"s" * 32), Finding(3, Code.UNAVAILABLE, bytes(32), bytes(32)))
RUN = Job.of(make_spec())
STATE = initial_state(RUN.plan)
SEGMENT = Segment(0, 5, STATE.root(RUN.plan), STATE.root(RUN.plan), b"b" * 32, b"p" * 32, 7, 12, STATE.encode())
TOKEN = b"\x07" * 32
VOUCHER = Voucher.issue(identity(3), client=b"c" * 20, not_after_ms=NOW_MS)
HOPS = (Endpoint("r.example", 3, b"r" * 20), Endpoint("::2", 4, b"q" * 20))
ROUTE = Route.sign(identity(3), HOPS, b"t" * 20, now_ms=NOW_MS)
LINK_STATE = LinkState.sign(identity(3), {b"r" * 20: Link(20_000, 10**7), b"q" * 20: Link(1, 0)}, now_ms=NOW_MS)
CARRIED = Carried(
    b"g" * 32, b"r" * 20, identity(3).address, b"c" * 32, NOW_MS, 1, 2**30, 10**16, NOW_MS + 1
).signed_by(identity(3).signer)
RELAYED = (
    Reserve(1, 60), Release(), Connect(2, b"t" * 20), Decline(TOKEN), Ping(5), Pong(5),
    Reserved(1, 60, VOUCHER.encode(), "192.0.2.1:7"), Offered(2, TOKEN, 5_000), Incoming(TOKEN, b"s" * 20, 5_000),
    Refused(2, Refusal.RELAY_FULL, 100, 99, ("relay:" + "ab" * 20 + ":h:1",)), Connect(2, b"t" * 20, TOKEN),
    Extend(3, ROUTE.encode(), TOKEN), Park(TOKEN), Pay(CARRIED.encode()), AskLinks(4), Terms(10**16, 4, 5, 6),
    Charged(7), Restarting(8), Links(4, LINK_STATE.encode()),
)  # fmt: skip
RECORD = sign_record(identity(1), (Endpoint("h", 1), Endpoint("::1", 2), Endpoint("r.example", 3, b"r" * 20)),
                     now_ms=NOW_MS)  # fmt: skip
UNDO = Undo([b"\x01a", b"\x01b"], [None, b"v"])
TIP = Tip(7, b"h" * 32, b"s" * 32, b"r" * 32, 10**9, 1_700_000_000_000, encode_header(BLOCK.header))
HEAD = Head(7, b"h" * 32, 1, b"s" * 32, 10, 11, 0, 0)


@cache
def trie() -> Trie:
    """A trie of three levels."""
    update = Trie(bytes(32), NO_NODES).update({b"key %d" % n: b"value" for n in range(700)})
    return Trie(update.root, NodeLayer(NO_NODES, update.nodes))


def guard() -> Guard:
    """A guard with two votes."""
    made = Guard(b"g" * 32, KEY.vote_key)
    for view in (1, 2):
        made.record(vote(view))
    return made


def light_files() -> tuple[bytes, ...]:
    """Files of a light client that has followed an epoch, and of one that found a fork."""
    chain = LightChain(epochs=1, more=0)
    light = LightClient(chain.root(), LightOptions(None))
    light.follow(chain.record(0), chain.now_ms())
    fork = Fork(4, chain.committee(0), (b"a" * 32, b"b" * 32), (chain.certificates[4], None))
    file = LightFile(
        light.trusted, 5, True, dict(light.boundaries), light.last, (LightEndpoint("u", "lied"),), fork
    )
    found = []
    for saved in (file, file._replace(fork=None, last=None)):
        save_light_file(scratch() / "made.json", saved)
        found.append((scratch() / "made.json").read_bytes())
    return tuple(found)


def vote(view: int) -> Vote:
    """A vote in a view."""
    return Vote(FINALIZE, 0, view, view - 1, b"h" * 32, 0, b"s" * 64)


def third_slot() -> bytes:
    """The content of the slot that follows those of ``guard``."""
    made = guard()
    made.image()
    return made.record(vote(3))[:244]


# Runs that need more than a decoder and its encoder


def read_guard(data: bytes) -> None:
    """Load a guard; what it took must survive its own image."""
    loaded, whole = Guard.load(data, b"g" * 32, KEY.vote_key)
    assert whole <= len(data)
    again, _ = Guard.load(loaded.image(), b"g" * 32, KEY.vote_key)
    assert list(again.votes()) == list(loaded.votes())


def read_guard_slot(data: bytes) -> None:
    """Load a guard with a last slot of any content under a right checksum."""
    read_guard(guard().image() + _slot(data[:244]))


def read_vote_journal(data: bytes) -> None:
    """Read a journal: what is told must be the very beginning of the bytes."""
    records, whole = read_journal(data)
    assert b"".join([journal_record(kind, body) for kind, body in records]) == data[:whole]


def read_signer_frames(data: bytes) -> None:
    """Ask a signer with any bytes; what it signs was asked for by its fields, and is on its record."""
    record = Guard(b"g" * 32, KEY.vote_key)
    signer = votesigner.SignerCore(VoteKey(KEY), record, b"g" * 32)
    for body in votesigner.FrameReader(256).feed(data):
        _, request = votesigner.decode_request(body)
        if isinstance(request, votesigner.AskStatus | votesigner.AskKeys):
            continue  # answered by the shell
        answer = signer.step(request).answer
        if isinstance(answer, votesigner.Signed):
            assert isinstance(request, votesigner.AskVote) and answer.vote.candidate == request.candidate
            assert not record.is_foreign(answer.vote)


def read_body(data: bytes) -> None:
    """Read a block's body as voters do."""
    block = decode_block(data)
    decode_body(_runtime(), block.transactions)


@cache
def _runtime() -> Any:
    return make_runtime(small_genesis())


def execute_payload(data: bytes) -> None:
    """Read the payload of any kind as the rules do."""
    transaction = decode_transaction(data)
    transaction.sender = KEY.address
    _runtime().check(transaction)


def read_transaction(data: bytes) -> None:
    """Read a transaction and recover its sender."""
    transaction = decode_transaction(data)
    assert transaction.raw == data
    assert len(transaction.recover_sender()) == 20


def read_topology(text: str) -> None:
    """Whatever is read can be planned, and written so that the same is read again."""
    topology = parse_topology(text)
    plan(topology)
    assert parse_topology(json.dumps(document_of(topology))) == topology


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


def read_frames(data: bytes) -> None:
    """Cut a record's plaintext."""
    assert b"".join(frame(cls, kind, stream, body) for cls, kind, stream, body in frames(data)) == data


def read_mux(data: bytes) -> None:
    """Give authentic hostile plaintexts to a connection."""
    one, other = sessions()
    mux = Mux(Channel(other))
    for at in range(0, len(data), 60_000):
        body = one.send.encrypt(data[at : at + 60_000])
        mux.receive(len(body).to_bytes(2, "big") + body)
        assert mux.reassembly_bytes <= mux.limits.reassembly_bytes_max


def read_multicast(data: bytes) -> None:
    """Give a control message to a core that knows nobody."""
    core = Multicast(b"o" * 20, random=Random(0))
    core.control(b"p" * 20, data, 0.0)
    assert core.held_bytes <= MESSAGE_BYTES_MAX + SEAL_BYTES


def read_fanout(data: bytes) -> None:
    """Give bytes, and authentic hostile plaintexts, to a connection for fan-out."""
    one, other = sessions()
    body = one.send.encrypt(data[: fanout_wire.MESSAGE_BYTES_MAX])
    fanout_wire.FanoutChannel(other).receive(len(body).to_bytes(2, "big") + body)
    with suppress(RelayProtocolError):
        fanout_wire.FanoutChannel(sessions()[1]).receive(data)


def read_lane(data: bytes) -> None:
    """Give authentic hostile plaintexts to a bulk connection."""
    one, other = sessions()
    account = ReceiveMemory(2**40).open(2**26, lambda: None)
    incoming = BulkIn(account, message_bytes_max=2**20, limits=WindowLimits())
    outgoing = BulkOut(queue_bytes_max=1, message_bytes_max=1, window_bytes=1)
    lane = Lane(Channel(other), outgoing, incoming)
    for at in range(0, len(data), 60_000):
        body = one.send.encrypt(data[at : at + 60_000])
        lane.receive(len(body).to_bytes(2, "big") + body)
        assert incoming.held_bytes <= 2**20


def read_sealed(data: bytes) -> None:
    """Give bytes to a connection as they come from a wire that somebody changes."""
    _, other = _sessions()
    for _ in RecordReader(other.receive).receive(data):
        raise AssertionError("a forged record")


@cache
def _sessions() -> Any:
    return sessions()


def read_hello(data: bytes) -> None:
    """Give bytes to a responder that waits for a hello."""
    responder = Handshake(identity(1), Purpose.PEER, is_initiator=False, now_ms=NOW_MS)
    assert len(responder.receive(data)) < 2048
    assert responder.session is None


def read_handshake_payload(data: bytes) -> None:
    """Check what a peer says under the encryption of the handshake."""
    responder = _waiting_responder()
    address, certificate, features = responder._check_peer(data)
    assert encode([certificate.to_value(), features]) == data
    assert len(address) == 20


@cache
def _waiting_responder() -> Handshake:
    initiator = Handshake(identity(0), Purpose.PEER, is_initiator=True, now_ms=NOW_MS)
    responder = Handshake(identity(1), Purpose.PEER, is_initiator=False, now_ms=NOW_MS)
    responder.receive(initiator.receive(responder.receive(initiator.start())))
    return responder


def read_gossip(data: bytes) -> None:
    """Give a message to the gossip core, which never raises and keeps its bounds."""
    core = Gossip(random=Random(1), now=1000.0)
    core.subscribe("tx", 100_000)
    core.peer_joined(b"p" * 20, outbound=True)
    core.receive(b"p" * 20, data, 1000.0)
    core.heartbeat(1001.0)
    core.receive(b"p" * 20, data, 1001.5)
    assert core.score(b"p" * 20) <= 1_000_000


def read_peer_request(data: bytes) -> None:
    """Read a request, its answer and a refusal as a connection does."""
    refused: list[tuple[int, str]] = []
    peer = cast(
        Peer,
        SimpleNamespace(
            _limits=NetworkLimits(), _serving=0, _refuse=lambda *a: refused.append(a), _asked={}, rtt_s=None
        ),
    )
    for reader in (Peer._on_response, Peer._on_refusal):
        try:
            reader(peer, data)
        except FrameInvalid:
            pass
    Peer._on_request(peer, cast(trio.Nursery, None), data, lambda _method: None)
    assert refused


def read_revocations(data: bytes) -> None:
    """Load the newest certificates that an earlier run knew."""
    known = Revocations(known_max=4)
    known.load(data, now_ms=NOW_MS)
    assert len(known) <= 4


def read_book(data: bytes) -> None:
    """Load an address book."""
    book = AddressBook(key=b"key", genesis_hash=GENESIS)
    book.load(data, now_ms=NOW_MS)
    assert len(book) <= 1


def read_unix_frames(data: bytes) -> None:
    """Cut and read what comes over the node's Unix socket, from either end."""
    for value in FrameBuffer(REQUEST_LIMIT_BYTES).feed(data):
        for reader in (read_request, read_answer):
            try:
                reader(value)
            except DecodeError:
                continue


def read_unix_records(data: bytes) -> None:
    """Read the records in answers of the node's socket."""
    value = decode(data, limit_bytes=1 << 16)
    for kind in (Head, PoolStatus):
        try:
            assert record_value(read_record(kind, value)) == value
        except DecodeError:
            continue


def read_job_frames(data: bytes) -> None:
    """Cut and read frames between supervisor and job, at either end."""
    for body in FrameReader(1 << 20).feed(data):
        for reader in (decode_parent_frame, lambda b: decode_child_frame(b, RUN.plan)):
            try:
                message = reader(body)
            except (DecodeError, UnsupportedJob):
                continue
            assert encode_frame(message)[4:] == body


def read_job_journal(data: bytes) -> None:
    """Take up a journal whose files have right checksums over any bytes: damage counts as not written."""
    root = scratch() / "journal"
    directory = root / (b"\x11" * 32).hex()
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("order", "start", "delivered", "segment-0000000000000000"):
        (directory / name).unlink(missing_ok=True)
    journal = Journal(root)
    _write(directory / "order", RUN.encode())
    for name in ("start", "delivered", "segment-0000000000000000"):
        _write(directory / name, data)
    for entry in journal.entries():
        assert 0 <= entry.step <= RUN.total_steps
    _write(directory / "order", data)
    journal.entries()


def read_control_line(data: bytes) -> None:
    """Read what a node answers at its control socket."""
    read_control_answer(data, Path("control"))


def read_faucet(data: bytes) -> None:
    """Read what a faucet is asked, and what it answers."""
    for reader in (read_address, read_grant):
        try:
            assert len(reader(data)) in (20, 32)
        except (FaucetRefused, AnswerMalformed, ClientError):
            continue


def read_words(text: str) -> None:
    """Read the secret of an account in each of its spellings."""
    for reader in (parse_secret, lambda words: key_of_mnemonic(words, 0)):
        try:
            reader(text)
        except KeystoreError as error:
            assert len(text) < 20 or text not in str(error)


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


def read_gateway_answer(data: bytes) -> None:
    """Read what a gateway answers, as every record that a client knows."""
    results = []
    for count, is_batch in ((1, False), (2, True)):
        try:
            results += read_answers(data, count, is_batch=is_batch)
        except AnswerMalformed:
            continue
    for result in results:
        if isinstance(result, ClientError):
            assert isinstance(result.reason, str)
            read_revert(result.data)
            continue
        for cls in (Account, Contract, News, ShownReceipt, Task, Window):
            try:
                found = read_shape(cls, result)
            except AnswerMalformed:
                continue
            assert found.document == result
        for kind in ("heads", "events"):
            try:
                news_of(result, None if kind == "heads" else result, kind, {})
            except AnswerMalformed:
                continue


def read_contract(data: bytes) -> None:
    """Read the ABI of a contract, and text as arguments of its functions."""
    [answer] = read_answers(data, 1, is_batch=False)
    if isinstance(answer, ClientError):
        return
    for function in functions_of(read_shape(Contract, answer)):
        for parameter in function.inputs:
            for text in (str(answer)[:100], "1", "0x12", "true"):
                try:
                    parse_argument(parameter, text)
                except ConfigError:
                    continue
        try:
            function.decode("0x" + data[:64].hex())
        except AnswerMalformed:
            continue


_WHEN = {"height": 5, "hash": "0x" + "ab" * 32}
_EVENT = {
    "address": "0x" + "22" * 20, "topics": ["0x" + "33" * 32], "data": "0x", "name": None, "values": {"a": "1"},
}  # fmt: skip
_RECEIPT = {
    "transaction_hash": "0x" + "cd" * 32, "block": _WHEN | {"index": 0, "time_ms": 5}, "from": "0x" + "11" * 20,
    "kind": 1, "kind_name": "transfer", "succeeded": True, "reason": None, "gas_used": 21000,
    "effective_gas_price": "7", "fee": "147000",
    "events": [_EVENT],
}  # fmt: skip
GATEWAY_ANSWERS = tuple(
    json.dumps({"jsonrpc": "2.0", "id": 0, **answer}).encode()
    for answer in (
        {"result": {"at": _WHEN, "address": "0x" + "11" * 20, "balance": "5", "nonce": 1, "pending_nonce": 2}},
        {"result": _RECEIPT},
        {"result": {"receipts": [_RECEIPT]}},
        {"result": {"at": _WHEN, "items": [{"transaction_hash": None, "index": None, "event": _EVENT}]}},
        {"error": {"code": -32005, "message": "m", "data": {"reason": "limit_exceeded", "retry_after_s": 1}}},
        {"error": {"code": 3, "message": "m", "data": "0x08c379a0"}},
    )
)  # fmt: skip
CONTRACT_ANSWER = json.dumps(
    {
        "id": 0,
        "result": {
            "name": "staking", "address": "0x" + "22" * 20,
            "abi": [{"type": "function", "name": "stakeOf", "stateMutability": "view",
                     "inputs": [{"name": "who", "type": "address"}, {"name": "n", "type": "uint8"}],
                     "outputs": [{"name": "amount", "type": "uint256"}]}, {"type": "event"}],
        },
    }
).encode()  # fmt: skip


PLANS = {"validators": 4, "workers": 2, "seed": 1, "base_port": 1, "time_ms": 5, "parameters": {}}


def payload(kind: int, items: list[Any]) -> bytes:
    """Return a signed transaction of a kind."""
    return sign_transaction(
        KEY, chain_id=7, nonce=0, kind=kind, payload=items, gas_limit=10**6, max_fee_per_gas=10**10
    )


PAYLOADS = (
    RAW,
    payload(1, transfer_payload(b"t" * 20, 5)),
    payload(
        STAKE_KIND, stake_payload(10**21, KEY, genesis_hash=genesis_hash(small_genesis()), address=KEY.address)
    ),
    payload(UNSTAKE_KIND, unstake_payload(5)),
    payload(transitions.REGISTER_NODE, [profile_to_value(PROFILE), 10**21]),
    payload(transitions.UPDATE_NODE, [profile_to_value(PROFILE), 0]),
    payload(transitions.RETIRE_NODE, []),
    payload(transitions.CREATE_TASK, [encode_spec(JOB)]),
    payload(transitions.CANCEL_TASK, [b"t" * 32]),
    payload(transitions.ACCEPT_TASK, [b"t" * 32, 5]),
    payload(transitions.START_TASK, [b"t" * 32, b"m" * 32]),
    payload(transitions.SUBMIT_WINDOW, [window_proof_to_value(PROOF)]),
    payload(transitions.SEAL_VERDICT, [b"t" * 32, 1, b"s" * 32]),
    payload(transitions.REVEAL_VERDICT, [b"t" * 32, 1, findings_to_value(FINDINGS), b"n" * 32]),
    payload(transitions.OPEN_WINDOW, [b"t" * 32, 1, [opening_to_value(OPENING)]]),
    payload(transitions.POKE, [b"t" * 32]),
    payload(transitions.TOP_UP_TASK, [b"t" * 32, 5]),
    payload(transitions.RESUME_TASK, [b"t" * 32]),
    payload(transitions.GIVE_UP_TASK, [b"t" * 32, int(Reason.INPUT_UNAVAILABLE)]),
    payload(SETTLE_CARRIAGE, [CARRIED.encode(), identity(3).certificate.encode()]),
    payload(FUND_CARRIAGE, [5]),
    payload(WITHDRAW_CARRIAGE, [5]),
)


def _targets() -> Iterator[tuple[str, Target]]:
    blocks = (encode_block(Block(BLOCK.header, (RAW, RAW), (b"e",))), encode_block(BLOCK))
    keystore = encrypt_keystore(KEY, "passphrase", salt=b"s" * 32, iv=b"i" * 16, identifier=b"u" * 16, scrypt_n=2)
    yield (
        "codec",
        Target(
            canonical(lambda data: decode(data, limit_bytes=1 << 16), encode),
            (encode([1, -1, 2**200, b"bytes", "text", None, [[], [0]]]), *blocks),
            ("state.primitives.codec:decode",),
        ),
    )
    # Chain
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
            "state.transition.transfer:_decode", "state.transition.staking:_decode_stake",
            "state.transition.staking:_decode_unstake", "tasks.carriage:_decode",
            "tasks.carriage:_decode_fund", "tasks.carriage:_decode_withdraw",
            *(f"tasks.transitions:_decode_{name}" for name in (
                "offer", "nothing", "create", "task", "amount", "start", "give_up", "proof", "seal", "reveal",
                "open",
            )),
        ),
        (DecodeError, InvalidTransaction),
    )  # fmt: skip
    yield "compact proposal", Target(
        compact.check_bulk, compact.BULK,
        ("node.compact:decode_bulk", "node.compact:match_ids", "node.compact:short_ids"),
    )  # fmt: skip
    yield "compact word", Target(
        compact.check_word, compact.WORDS, ("node.compact:decode_word", "node.compact:numbers_of"),
    )  # fmt: skip
    yield "batch", Target(
        canonical(decode_batch, encode_batch), (encode_batch(PAYLOADS), encode_batch([RAW])),
        ("node.transactions:decode_batch",),
    )  # fmt: skip
    yield "header", Target(
        canonical(decode_header, encode_header), (encode_header(BLOCK.header),),
        ("state.primitives.blocks:decode_header", "state.primitives.blocks:_header_from_value"),
    )  # fmt: skip
    yield "block", Target(canonical(decode_block, encode_block), blocks, ("state.primitives.blocks:decode_block",))
    yield "body", Target(read_body, blocks[:1], ("node.chain:decode_body",), (DecodeError, BodyInvalid))
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
    # Consensus
    wire = tuple(map(encode_message, MESSAGES.values()))
    yield "consensus message", Target(
        canonical(decode_message, encode_message), wire,
        ("consensus.wire:decode_message", "consensus.wire:_vote", "consensus.wire:_certificate"),
    )  # fmt: skip
    yield "consensus inbound", Target(
        canonical(decode_inbound, lambda found: encode_message(found.message)), wire,
        ("consensus.inbound:decode_inbound", "consensus.inbound:_decode_whole_block"),
    )  # fmt: skip
    yield "word of a seat", Target(
        lambda data: encode_said(decode_said(data)),
        tuple(encode_said(said) for said in (VOTE, FINAL)),
        ("consensus.hearsay:decode_said",),
    )  # fmt: skip
    yield "wanted proposal", Target(
        canonical(decode_wanted, encode_wanted), (encode_wanted(FINAL.candidate),),
        ("consensus.hearsay:decode_wanted",),
    )  # fmt: skip
    yield "question for a blob", Target(
        canonical(decode_question, encode_question),
        (encode_question(Question(b"t" * 32, b"b" * 32, b"a" * 20, 7)),),
        ("node.blob_search:decode_question",),
    )  # fmt: skip
    yield "committee", Target(
        canonical(Committee.decode, Committee.encode), (COMMITTEE.encode(),),
        ("state.primitives.committee:Committee.decode",),
    )  # fmt: skip
    yield "evidence", Target(
        canonical(decode_evidence, Evidence.encode), tuple(fault.encode() for fault in EVIDENCE),
        ("state.transition.evidence:decode_evidence", "state.transition.evidence:_vote"),
    )  # fmt: skip
    yield "file of evidence", Target(
        canonical(decode_file, encode_file), (encode_file([]), encode_file(fault.encode() for fault in EVIDENCE)),
        ("node.evidence:decode_file",),
    )  # fmt: skip
    yield "vrf", Target(read_vrf, (VRF.prove(b"alpha"),), ("state.primitives.vrf:vrf_verify",), cost=4)
    yield "certificate", Target(
        canonical(decode_certificate, encode_certificate), (encode_certificate(FINAL),),
        ("consensus.wire:decode_certificate",),
    )  # fmt: skip
    yield "epoch record", Target(
        canonical(decode_epoch_record, encode_epoch_record),
        (encode_epoch_record(EpochRecord(BLOCK.header, FINAL, COMMITTEE)),),
        ("consensus.light:decode_epoch_record",),
    )  # fmt: skip
    sync = "node.sync.messages:"
    yield "sync offers", Target(
        canonical(decode_offers, encode_offers), (encode_offers([Offer(8, b"p" * 32, 3)]),),
        (sync + "decode_offers",),
    )  # fmt: skip
    yield "sync request", Target(
        canonical(lambda data: decode_asked(data, 2), lambda asked: encode_asked(*asked)), (encode_asked(8, 3),),
        (sync + "decode_asked",),
    )  # fmt: skip
    yield "sync records", Target(
        canonical(decode_records, encode_records), (encode_records([b"record", b"another"]),),
        (sync + "decode_records",),
    )  # fmt: skip
    yield "sync manifest", Target(
        canonical(decode_manifest, encode_manifest),
        (encode_manifest(sync_messages.Manifest(BLOCK.header, (BLOCK.header,), FINAL, (bytes(8), b"p" * 8))),),
        (sync + "decode_manifest",),
    )  # fmt: skip
    yield "checkpoint", Target(
        of_text(parse_checkpoint), (b"8:" + b"ab" * 32, b"3600:0x" + b"cd" * 32),
        ("node.config:parse_checkpoint",), (ConfigError,),
    )  # fmt: skip
    yield "merkle proof", Target(
        canonical(decode_merkle_proof, encode_merkle_proof),
        (encode_merkle_proof(merkle_proof([bytes([n]) for n in range(21)], 5)),),
        ("consensus.light:decode_merkle_proof",),
    )  # fmt: skip
    faults: Raises = (GuardCorrupt, GuardMissing)
    yield "guard", Target(read_guard, (guard().image(),), ("consensus.guard:Guard.load",), faults)
    yield "guard slot", Target(read_guard_slot, (third_slot(),), ("consensus.guard:Guard._take",), faults)
    yield "consensus journal", Target(
        read_vote_journal,
        (
            journal_record(JOURNAL_BLOCK, encode_block(BLOCK))
            + journal_record(JOURNAL_CERTIFICATE, encode_certificate(FINAL)),
        ),
        ("consensus.guard:read_journal", "consensus.guard:_journal_records"), (),
    )  # fmt: skip
    yield "signer request", Target(
        canonical(votesigner.decode_request, lambda found: votesigner.encode_request(*found)),
        tuple(votesigner.encode_request(number, request) for number, request in enumerate(REQUESTS)),
        ("consensus.signer:decode_request",),
    )  # fmt: skip
    yield "signer answer", Target(
        canonical(votesigner.decode_answer, lambda found: votesigner.encode_answer(*found)),
        tuple(votesigner.encode_answer(number, answer) for number, answer in enumerate(ANSWERS)),
        (
            "consensus.signer:decode_answer", "consensus.signer:_vote_from_value",
            "consensus.signer:_watermark_from_value",
        ),
    )  # fmt: skip
    yield "signer", Target(
        read_signer_frames,
        (b"".join(votesigner.frame(votesigner.encode_request(1, request)) for request in REQUESTS),),
        (), (DecodeError, GuardRefused, votesigner.SignerRefused),
    )  # fmt: skip
    # Network
    yield "node certificate", Target(
        canonical(NodeCertificate.decode, NodeCertificate.encode), (identity(1).certificate.encode(),),
        ("p2p.identity:NodeCertificate.decode", "p2p.identity:NodeCertificate.from_value"),
    )  # fmt: skip
    yield "hello", Target(
        read_hello, (Handshake(identity(0), Purpose.PEER, is_initiator=True, now_ms=NOW_MS).start(),),
        ("p2p.noise:HandshakeState.read_message", "p2p.handshake:Handshake.receive"), (HandshakeFailed,), cost=10,
    )  # fmt: skip
    yield "handshake payload", Target(
        read_handshake_payload, (encode([identity(0).certificate.to_value(), 0]),),
        ("p2p.handshake:Handshake._check_peer",), (HandshakeFailed,),
    )  # fmt: skip
    whole = frame(1, 2, 3, b"body") + frame(0, 0xF0, 0, bytes(8)) + frame(4, 1, 0, b"")
    parts = frame(2, 1, 0, b"gossip") + frame(1, 1, 7, (90_000).to_bytes(4, "big") + bytes(50))
    yield "frames", Target(read_frames, (whole, parts), ("p2p.frame:frames",), (FrameInvalid,))
    lanes = b"".join(
        frame(0, kind, 0, body)
        for kind, body in ((0xFA, b"\0\1\2\3"), (0xFB, b"\1\0\2\2"), (0xFC, bytes(24)), (0xFD, bytes(16)))
    )
    yield "mux", Target(
        read_mux, (parts, whole, lanes),
        (
            "p2p.mux:Mux.receive", "p2p.mux:Mux._take_fragment", "p2p.mux:Mux._take_control",
            "p2p.ways:decode_ways", "p2p.ways:decode_wishes",
        ),
        (FrameInvalid,), cost=20,
    )  # fmt: skip
    yield "lane", Target(
        read_lane, (frame(4, 1, 1, bytes(4) + b"bulk"), whole),
        ("p2p.lanes:Lane.receive", "p2p.lanes:BulkIn.take"), (FrameInvalid,), cost=20,
    )  # fmt: skip
    yield "conversation hello", Target(
        canonical(PeerHello.decode, PeerHello.encode), (PeerHello(Opening.RESUME, bytes(16), 1, 2).encode(),),
        ("p2p.channel:Hello.decode",), (FrameInvalid,),
    )  # fmt: skip
    yield "sealed record", Target(
        read_sealed, (b"\0\x20" + bytes(32), b"\xff\xff" + bytes(200)), ("p2p.record:RecordReader.receive",),
        (FrameInvalid,),
    )  # fmt: skip
    gossip = (
        encode([1, "tx", [RAW, b"x"]]), encode([2, ["tx", "record"]]), encode([3, "tx", [b"i" * 20, b"j" * 20]]),
        encode([4, [b"i" * 20]]), encode([4, "tx"]), encode([5, "tx"]), encode([6, "tx", 60]),
        encode([7, [b"i" * 20]]),
    )  # fmt: skip
    yield (
        "gossip",
        Target(read_gossip, gossip, ("p2p.gossip:Gossip._receive", "p2p.gossip:Gossip.receive"), (), cost=2),
    )
    yield "peer request", Target(
        read_peer_request, (encode([1, "blob", 1000, b"body"]), bytes(8) + b"busy"),
        ("p2p.peer:Peer._on_request", "p2p.peer:Peer._on_response", "p2p.peer:Peer._on_refusal"),
        (DecodeError, FrameInvalid),
    )  # fmt: skip
    yield "peer record", Target(
        canonical(lambda data: verify_record(data, genesis_hash=GENESIS, now_ms=NOW_MS), lambda found: found.data),
        (RECORD.data,), ("p2p.records:verify_record",), (RecordInvalid,),
    )  # fmt: skip
    book = AddressBook(key=b"key", genesis_hash=GENESIS)
    book.add(RECORD, source=b"")
    newest = encode([[b"a" * 20, 5, b"k" * 32, 2**62, 1], [b"b" * 20, 5, b"k" * 32, 2**62, 0]])
    yield "newest certificates", Target(read_revocations, (newest,), ("p2p.revocations:Revocations.load",))
    yield "address book", Target(read_book, (book.encode(),), ("p2p.addrbook:AddressBook.load",))
    yield (
        "endpoint",
        Target(
            canonical(lambda data: Endpoint.parse(data.decode("utf-8", "replace")), lambda e: str(e).encode()),
            (b"tcp:h.example:26656", b"tcp:[::1]:1", b"relay:" + b"ab" * 20 + b":h:1"),
            ("p2p.transport:Endpoint.parse",),
        ),
    )
    seen = Observed.of("192.0.2.1", 4_000)
    yield (
        "observed address",
        Target(
            canonical(Observed.decode, Observed.encode),
            (seen.encode(), Observed.of("2001:db8::1", 1).encode()),
            ("p2p.punch:Observed.decode",),
        ),
    )
    yield (
        "dial-back answer",
        Target(
            canonical(Answer.decode, Answer.encode),
            (Answer("192.0.2.1", True).encode(), Answer("2001:db8::1", False).encode()),
            ("p2p.reach:Answer.decode",),
        ),
    )
    yield (
        "punch word",
        Target(
            canonical(Word.decode, Word.encode),
            (Word(bytes(16), seen).encode(), Word(bytes(16)).encode()),
            ("p2p.punch:Word.decode",),
        ),
    )
    peer = f"{format_address(KEY.address)}@tcp:h:1".encode()
    yield (
        "bootstrap",
        Target(of_text(parse_bootstrap), (peer, b"h:1"), ("p2p.dialling:parse_bootstrap",), (ConfigError,)),
    )
    yield "manifest", Target(
        canonical(Manifest.decode, Manifest.encode), (Manifest(2**20 + 1, (b"a" * 32, b"b" * 32)).encode(),),
        ("state.primitives.manifests:Manifest.decode",),
    )  # fmt: skip
    # Relay
    multicast = (
        Announce(bytes(32), bytes(32), 2, Shape(100_000, 4_096)), Have(bytes(32), 5), Done(bytes(32)),
        Swap(bytes(32), bytes(32), 3, (b"m" * 20, b"n" * 20)), Swap(bytes(32), b"", 0, ()), Want(bytes(32), 6),
    )  # fmt: skip
    yield "multicast", Target(
        read_multicast, tuple(encode_control(message) for message in multicast),
        ("p2p.multicast_wire:decode_control", "p2p.multicast:Multicast.control"), cost=2,
    )  # fmt: skip
    cut = cut_message(bytes(5_000), Shape(5_000, 1_024))
    pieces = tuple(
        encode_piece(Piece(cut.root, number, cut.proofs[number].siblings, data, bool(number)))
        for number, data in enumerate(cut.pieces[:2])
    )
    yield "piece", Target(canonical(decode_piece, encode_piece), pieces, ("p2p.pieces:decode_piece",))
    fanout = (
        fanout_wire.Accept((b"p" * 20,)), fanout_wire.Group(1, (b"m" * 20, b"n" * 20)),
        fanout_wire.Publish(1, 60_000), fanout_wire.Ping(3), fanout_wire.Handed(b"p" * 20, 60_000),
        fanout_wire.Pong(3),
    )  # fmt: skip
    yield "fan-out message", Target(
        canonical(fanout_wire.decode_fanout, fanout_wire.encode_fanout),
        tuple(fanout_wire.encode_fanout(message) for message in fanout), ("relay.fanout:decode_fanout",),
    )  # fmt: skip
    yield "fan-out records", Target(
        read_fanout, (fanout_wire.encode_fanout(fanout[3]), b"\xff\xff" + bytes(200)),
        ("relay.fanout:FanoutChannel.receive",),
        (RelayProtocolError,), cost=10,
    )  # fmt: skip
    yield "relay message", Target(
        canonical(decode_relay_message, encode_relay_message),
        tuple(encode_relay_message(message) for message in RELAYED),
        ("relay.protocol:decode_message",),
    )  # fmt: skip
    yield (
        "relay voucher",
        Target(canonical(Voucher.decode, Voucher.encode), (VOUCHER.encode(),), ("relay.protocol:Voucher.decode",)),
    )
    yield "relay route", Target(
        canonical(Route.decode, Route.encode), (ROUTE.encode(),), ("relay.route:Route.decode",),
    )  # fmt: skip
    yield "relay links", Target(
        canonical(LinkState.decode, LinkState.encode), (LINK_STATE.encode(),),
        ("relay.links:LinkState.decode", "relay.links:_link"),
    )  # fmt: skip
    yield "relay receipt", Target(
        canonical(Carried.decode, Carried.encode), (CARRIED.encode(),), ("billing.relay:Receipt.decode",),
    )  # fmt: skip
    yield "stored relay receipt", Target(
        canonical(StoredReceipt.decode, StoredReceipt.encode),
        (StoredReceipt(CARRIED, identity(3).certificate.encode()).encode(),),
        ("relay.receipts:StoredReceipt.decode", "relay.receipts:ReceiptStore.load"),
    )  # fmt: skip
    # Tasks
    yield (
        "job specification",
        Target(canonical(decode_spec, encode_spec), (encode_spec(JOB),), ("tasks.spec:decode_spec",)),
    )
    yield "leaves", Target(
        canonical(decode_leaves, encode_leaves), (encode_leaves(LEAVES),),
        ("tasks.proofs:decode_leaves", "tasks.proofs:_leaf_from_value"),
    )  # fmt: skip
    yield "window proof", Target(
        of_value(window_proof_from_value, window_proof_to_value), (encode(window_proof_to_value(PROOF)),),
        ("tasks.proofs:window_proof_from_value",),
    )  # fmt: skip
    yield "findings", Target(
        of_value(findings_from_value, findings_to_value), (encode(findings_to_value(FINDINGS)),),
        ("tasks.proofs:findings_from_value",),
    )  # fmt: skip
    yield "opening", Target(
        of_value(opening_from_value, opening_to_value), (encode(opening_to_value(OPENING)),),
        ("tasks.proofs:opening_from_value",),
    )  # fmt: skip
    yield "node profile", Target(
        of_value(profile_from_value, profile_to_value), (encode(profile_to_value(PROFILE)),),
        ("tasks.registry:profile_from_value", "tasks.registry:_gpu"),
    )  # fmt: skip
    yield (
        "dataset",
        Target(
            canonical(Dataset.decode, Dataset.encode),
            (BLOB,),
            ("tasks.datasets:Dataset.decode",),
            (DatasetInvalid,),
        ),
    )
    yield "training state", Target(
        canonical(lambda data: TrainingState.decode(data, RUN.plan), TrainingState.encode), (STATE.encode(),),
        ("tasks.engine.state:TrainingState.decode",), (StateInvalid,),
    )  # fmt: skip
    yield "job", Target(
        canonical(Job.decode, Job.encode), (RUN.encode(),), ("tasks.executor.job:Job.decode",),
        (DecodeError, UnsupportedJob),
    )  # fmt: skip
    job_frames = (
        Train(RUN, BLOB, None, 5, True), Cancel(), Hello("cpu:numpy", frozenset({"net"})), Progress(5), SEGMENT,
        Finished(3, DATA.rows), Failed("reason", "text"),
    )  # fmt: skip
    yield "job frames", Target(
        read_job_frames, tuple(encode_frame(message) for message in job_frames),
        (
            "tasks.executor.job:decode_parent_frame", "tasks.executor.job:decode_child_frame",
            "tasks.executor.job:FrameReader.feed",
        ),
    )  # fmt: skip
    segment = encode_frame(SEGMENT)[4:]
    stored = encode(decode(segment, limit_bytes=1 << 20)[1:])
    yield "job journal", Target(
        read_job_journal, (stored, encode(1), STATE.encode(), RUN.encode()),
        (
            "tasks.executor.journal:Journal.entries", "tasks.executor.journal:TaskJournal._load_delivered",
            "tasks.executor.journal:TaskJournal._check_start", "tasks.executor.journal:TaskJournal._load_segments",
            "tasks.executor.journal:TaskJournal._load_segment", "tasks.executor.journal:TaskJournal._read_segment",
            "tasks.executor.journal:_read", "tasks.executor.journal:TaskJournal.load_start",
        ),
        (), cost=30, memory=400,
    )  # fmt: skip
    yield (
        "published window",
        Target(
            decode_published,
            (encode([[b"p" * 32, b"q" * 32], [b"s" * 32, b"t" * 32], b"l" * 32, b"o" * 32]),),
            ("node.promises:decode_published",),
        ),
    )
    # Disk
    damaged: Raises = (StoreDamaged,)
    yield "tip", Target(
        canonical(decode_tip, encode_tip), (encode_tip(TIP),),
        ("state.store.records:decode_tip", "state.store.records:_decode"), damaged,
    )  # fmt: skip
    yield "place", Target(
        canonical(decode_place, lambda found: encode_place(*found)), (encode_place(7, 3),),
        ("state.store.records:decode_place",), damaged,
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
    for name, record in state_records(COMMITTEE, PROFILE, PROOF, FINDINGS, encode_spec(JOB)).items():
        yield (
            f"record: {name}",
            Target(record.run, (record.sample()[1],), record.covers, (RecordDamaged,), cost=4, memory=400),
        )
    # Files that people write
    yield "topology", Target(
        of_text(read_topology), tuple(text.encode() for text in shipped().values()),
        ("testnet.wan.topology:parse_topology", "testnet.wan.topology:parse_settings"),
        (ConfigError,), cost=8, memory=400,
    )  # fmt: skip
    yield "genesis", Target(
        of_text(read_genesis), (genesis_to_json(small_genesis()).encode(), genesis_to_json(FILE).encode()),
        (
            "state.primitives.genesis:genesis_from_json", "state.primitives.genesis:_from_document",
            "state.primitives.genesis:read_parameters",
        ),
        (ConfigError,), memory=400,
    )  # fmt: skip
    yield "genesis file", Target(
        of_file("genesis.json", load_genesis), (genesis_to_json(FILE).encode(),), ("node.home:load_genesis",),
        (ConfigError,), cost=4, memory=400,
    )  # fmt: skip
    yield "keystore", Target(
        of_text(read_keys), (keystore.encode(),),
        (
            "state.primitives.keystore:_parse", "state.primitives.keystore:decrypt_keystore",
            "state.primitives.keystore:keystore_address",
        ),
        (KeystoreError,), cost=4, memory=400,
    )  # fmt: skip
    yield "keystore file", Target(
        of_file("key.json", read_keystore), (keystore.encode(),),
        ("node.home:read_keystore", "node.home:load_key"),
        (KeystoreError,), cost=8,
    )  # fmt: skip
    yield "passphrase file", Target(
        of_file("passphrase", read_passphrase), (b"secret\n",), ("node.home:read_passphrase",), (KeystoreError,),
        cost=8,
    )  # fmt: skip
    toml = dump_options(NodeOptions(roles=("validator", "compute"))).encode()
    yield "node options", Target(
        of_file("config.toml", load_options),
        (toml, b'[p2p]\nlisten = ":1"\nbootstrap = ["a"]\n[registry]\nstake = "5"\n'),
        ("node.config:load_options", "node.config:load_table", "node.home:Home.load_options"), (ConfigError,),
        cost=4, memory=400,
    )  # fmt: skip
    carried = {
        "deposit": "5", "withdrawing": "2", "release_ms": None, "earning": False, "room": True, "due": "1",
        "relays": [
            {
                "relay": "0x" + "72" * 20, "channel": "0x" + "63" * 32, "opened_ms": 1, "bytes": 2, "amount": "3",
                "due": "1",
            }
        ],
    }  # fmt: skip
    yield "standing of a payer", Target(
        lambda data: standing_from_document(json.loads(data), b"r" * 20), (json.dumps(carried).encode(),),
        ("node.carriage:standing_from_document", "node.carriage:_with_relay"),
        (DecodeError, json.JSONDecodeError, UnicodeDecodeError, RecursionError), memory=400,
    )  # fmt: skip
    yield "relay options", Target(
        of_file("relay.toml", lambda path: load_table(path, RelayHomeOptions)),
        (dump_options(RelayHomeOptions()).encode(),),
        ("node.config:load_table",), (ConfigError,), cost=4, memory=400,
    )  # fmt: skip
    job_text = json.dumps(spec_to_json(JOB)).encode()
    yield "job file", Target(
        of_file("job.json", read_spec), (job_text, encode_spec(JOB)), ("node.cli.jobs:read_spec",), (ConfigError,),
        cost=4, memory=400,
    )  # fmt: skip
    yield "job text", Target(
        lambda data: spec_from_json(json.loads(data)), (job_text,), ("node.cli.jobs:spec_from_json",),
        (ConfigError, json.JSONDecodeError, UnicodeDecodeError), memory=400,
    )  # fmt: skip
    yield "light client's file", Target(
        of_file("light.json", load_light_file), light_files(),
        ("node.light:load_light_file", "node.light:_read_fork", "node.light:_from_document"), (ConfigError,),
        cost=8, memory=400,
    )  # fmt: skip
    mark = {"version": 1, "genesis_hash": "0x" + "ab" * 32, "vote_key": "0x" + "cd" * 32, "epoch": 0, "view": 9}
    yield "watermark", Target(
        of_file("watermark.json", read_watermark), (json.dumps(mark).encode(),),
        ("node.cli.guard:read_watermark",),
        (ConfigError,), cost=4, memory=400,
    )  # fmt: skip
    proofs = dict.fromkeys(("vote_key", "possession", "vrf_key", "vrf_possession"), "0x" + "ab" * 32)
    yield "possession", Target(
        of_file("possession.json", read_possession), (json.dumps(proofs).encode(),),
        ("node.cli.transactions:read_possession",), (ConfigError,), cost=4, memory=400,
    )  # fmt: skip
    yield (
        "amount",
        Target(
            of_text(parse_amount), (b"1.5 DKB", b"15wei"), ("node.cli.output:parse_amount",), (click.BadParameter,)
        ),
    )
    yield "signer endpoint", Target(
        of_text(parse_signer), (peer, b"unix:/run/signer.sock"), ("node.config:parse_signer",), (ConfigError,)
    )  # fmt: skip
    yield "vote key", Target(
        of_text(parse_vote_key), (b"0x" + b"ab" * 32,), ("node.config:parse_vote_key",), (ConfigError,)
    )  # fmt: skip
    yield "signer options", Target(
        of_file("signer.toml", load_signer_options),
        (dump_options(SignerHomeOptions(listen="h:1", clients=(format_address(KEY.address),))).encode(),),
        ("node.signer:load_signer_options",), (ConfigError,), cost=4, memory=400,
    )  # fmt: skip
    yield "peer text", Target(of_text(parse_peer), (peer,), ("node.config:parse_peer",), (ConfigError,))
    yield (
        "host and port",
        Target(
            of_text(parse_host_port),
            (b"127.0.0.1:80", b"[::1]:1"),
            ("node.config:parse_host_port",),
            (ConfigError,),
        ),
    )
    yield "network folder", Target(
        of_file("testnet.json", _load_plan), (json.dumps(PLANS).encode(),), ("testnet.cluster:_load_plan",),
        (TestnetError, ConfigError), cost=4, memory=400,
    )  # fmt: skip
    # Between processes of a node
    unix = (
        encode_request(1, "head", [1, b"x"]), encode_answer(1, [1, [b"a"]]), encode_push("head", [1]),
        encode_failure(2, RelayProtocolError("text")),
    )  # fmt: skip
    yield "unix frames", Target(
        read_unix_frames, (*unix, b"".join(unix)),
        ("rpc.frames:FrameBuffer.feed", "rpc.frames:read_request", "rpc.frames:read_answer"),
    )  # fmt: skip
    yield (
        "unix records",
        Target(read_unix_records, (encode(list(HEAD)), encode([1, 2, 3])), ("rpc.view:read_record",)),
    )
    yield "gateway options", Target(
        of_text(options_from_json), (options_to_json(GatewayOptions("socket")).encode(),),
        ("rpc.gateway:options_from_json",), (ConfigError,), memory=400,
    )  # fmt: skip
    yield "control answer", Target(
        read_control_line, (b'{"result": {"a": 1}}\n', b'{"error": {"code": "x", "message": "y"}}\n'),
        ("rpc.client.control:read_answer", "rpc.client.control:ask_node"),
        (ControlUnavailable, ControlRefused), memory=400,
    )  # fmt: skip

    yield "book of uploads", Target(
        blobs.check_book, blobs.BOOKS,
        ("node.uploads:decode_book", "node.uploads:_upload", "node.uploads:_charge"),
    )  # fmt: skip
    yield "upload signature", Target(blobs.check_grant, blobs.GRANTS, ("rpc.grants:read_grant",), (), cost=2)
    yield "range of bytes", Target(blobs.check_range, blobs.RANGES, ("rpc.blobs:read_range",), (), memory=400)
    yield "answers about blobs", Target(
        blobs.check_answer, blobs.ANSWERS,
        ("rpc.client.blobs:_missing", "rpc.client.blobs:_told", "rpc.client.blobs:_refusal"), (), memory=400,
    )  # fmt: skip
    yield "typed data", Target(
        of_text(parse_typed_data), TYPED_DATA, ("state.primitives.typed_data:parse_typed_data",), memory=400
    )  # fmt: skip
    yield "words of a wallet", Target(
        of_text(read_words), (b"test test test test test test test test test test test junk", b"0x" + b"ab" * 32),
        ("node.keyring:parse_secret",), (), cost=5, memory=4000,
    )  # fmt: skip
    yield "faucet", Target(
        read_faucet, (b'{"address": "0x%s"}' % (b"11" * 20), b'{"hash": "0x%s"}' % (b"ab" * 32),
                      b'{"error": {"reason": "r", "message": "m", "retry_after_s": 5}}'),
        ("rpc.faucet:read_address", "rpc.client.api:read_grant"), (), memory=400,
    )  # fmt: skip
    yield "client answers", Target(
        read_gateway_answer, GATEWAY_ANSWERS,
        ("rpc.client.core:read_answers", "rpc.client.core:_json", "rpc.client.shapes:read_shape",
         "rpc.client.contracts:read_revert"), (), cost=2, memory=400,
    )  # fmt: skip
    yield "client contracts", Target(
        read_contract, (CONTRACT_ANSWER,),
        ("rpc.client.contracts:parse_argument", "rpc.client.contracts:ContractFunction.decode"),
        (AnswerMalformed,), cost=2, memory=400,
    )  # fmt: skip


TARGETS = dict(_targets())
assert verify_proof(trie().root, b"key 1", b"value", TARGETS["state proof"].samples[0])
assert account(0).address == identity(0).address
