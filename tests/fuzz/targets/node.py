"""Decoders of the node: proposals, transactions, sync, its files and options."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from consensus.light import (
    Fork,
    LightClient,
    LightOptions,
)
from node.chain.block_tree import BodyInvalid, decode_body
from node.chain.evidence import decode_file, encode_file
from node.chain.founding import check_founder, founder_from_json, founder_to_json
from node.chain.local_transactions import (
    decode_local_transactions,
    decode_log,
    encode_local_transactions,
    encode_log_part,
)
from node.chain.tx_gossip import decode_batch, encode_batch
from node.cli.guard import read_watermark
from node.cli.jobs import read_spec, spec_from_json, spec_to_json
from node.cli.output import parse_amount
from node.cli.tasks.job_file import read_job
from node.cli.transactions import read_possession
from node.home.config import (
    dump_options,
    load_options,
    load_table,
    parse_checkpoint,
    parse_listen,
    parse_peer,
    parse_signer,
    parse_until,
    parse_vote_key,
)
from node.home.keyring import key_of_mnemonic, parse_secret
from node.home.keys import read_keystore, read_passphrase
from node.home.kind import kind_of
from node.home.load import load_genesis
from node.home.options import NodeOptions
from node.light.client import Endpoint as LightEndpoint
from node.light.client import LightFile, load_light_file, save_light_file
from node.market.blob_search import Question, decode_question, encode_question
from node.market.challenges import decode_found
from node.market.key_shares import ShareBook, decode_kept, decode_share, encode_kept
from node.market.promises import decode_published
from node.market.task_keys import decode_key_question, decode_window_keys
from node.market.trial_chains import read_chain
from node.relay.home import RelayHomeOptions
from node.relay.settlement_gateway import funds_from_document
from node.signer.home import SignerHomeOptions, load_signer_options
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
from node.telemetry.clock_skew import decode_clock
from node.workflows.records import read_record
from state.primitives.address import format_address
from state.primitives.blocks import decode_block
from state.primitives.codec import encode
from state.primitives.errors import (
    ConfigError,
    DecodeError,
    KeystoreError,
)
from state.primitives.genesis import genesis_to_json
from state.primitives.hashing import digest
from tasks.custody.errors import SharesInvalid
from tasks.custody.keys import KeyProof, key_proof_to_value
from tasks.custody.shares import Share, share_hash
from tasks.spec import encode_spec
from tests.consensus.lightchain import LightChain
from tests.consensus.test_wire import BLOCK, FINAL
from tests.fuzz import blobs, compact
from tests.fuzz.targets.base import Target, canonical, of_file, of_text, scratch
from tests.fuzz.targets.samples import (
    BLOCKS,
    EVIDENCE,
    JOB,
    KEY,
    KEYSTORE,
    PAYLOADS,
    PEER,
    RAW,
    RUNTIME,
)
from tests.node.chain.test_founding import DRAFT, FOUNDERS
from tests.state.primitives.test_objects import FOUNDED as FILE

KEPT_CHAIN = b"c" * 32


TUNING = b"""kind: finetune
model: model
data: rows.jsonl
steps: 6
learning_rate: 1e-2
long_rows: truncate
budget: 2.5 DKB
lora: {rank: 2, targets: [v_proj, q]}
"""


GENERATING = b"""kind: generate
model: "model"
data: >-
  prompts.jsonl
new_tokens: 4  # after the longest
batch: 2
ends:
  - 2
  - 7
"""


WORKFLOW = json.dumps(
    {
        "version": 1, "name": "a", "file": "f", "digest": "ab", "account": "cd", "chain_id": 5, "seed": "07",
        "prices": {"": 5}, "lost": 0, "is_cancelled": False,
        "members": [
            {"step": "", "name": "n=1", "task": "ab", "create": "cd", "custody": "", "cost": 7, "is_created": True}
        ],
    }
).encode()  # fmt: skip


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


def read_kept(data: bytes) -> None:
    """Read a file of waiting transactions whose checksum is right, which hardly a change of one leaves so."""
    whole = digest(b"kept-mempool", data) + data
    assert encode_local_transactions(KEPT_CHAIN, decode_local_transactions(whole, KEPT_CHAIN)) == whole


def read_log(data: bytes) -> None:
    """Read a log of waiting transactions, as it is and with the checksum of its first part right."""
    part = digest(b"kept-mempool", data) + data
    for whole in (data, len(part).to_bytes(4, "big") + part + data):
        found, size = decode_log(whole, KEPT_CHAIN)
        assert size <= len(whole) and (size or not found)


def read_founder(text: str) -> None:
    """Read a founder's file; what is accepted is what its account has signed."""
    founder = founder_from_json(text)
    check_founder(founder, DRAFT)
    assert (founder.validator, founder.coins) == (FOUNDERS[0].validator, FOUNDERS[0].coins)


def read_body(data: bytes) -> None:
    """Read a block's body as voters do."""
    block = decode_block(data)
    decode_body(RUNTIME, block.transactions)


def read_words(text: str) -> None:
    """Read the secret of an account in each of its spellings."""
    for reader in (parse_secret, lambda words: key_of_mnemonic(words, 0)):
        try:
            reader(text)
        except KeystoreError as error:
            assert len(text) < 20 or text not in str(error)


def targets() -> Iterator[tuple[str, Target]]:
    yield "compact proposal", Target(
        compact.check_bulk, compact.BULK,
        ("node.consensus.compact:decode_bulk", "node.consensus.compact:match_ids",
        "node.consensus.compact:short_ids"),
    )  # fmt: skip
    yield "compact word", Target(
        compact.check_word, compact.WORDS, ("node.consensus.compact:decode_compact_control",
        "node.consensus.compact:numbers_of"),
    )  # fmt: skip
    yield "batch", Target(
        canonical(decode_batch, encode_batch), (encode_batch(PAYLOADS), encode_batch([RAW])),
        ("node.chain.tx_gossip:decode_batch",),
    )  # fmt: skip
    yield "body", Target(read_body, BLOCKS[:1], ("node.chain.block_tree:decode_body",), (DecodeError, BodyInvalid))
    yield (
        "question for a key",
        Target(
            canonical(decode_key_question, lambda asked: encode([*asked])),
            (encode([b"t" * 32, 7, b"p" * 32]),),
            ("node.market.task_keys:decode_key_question",),
        ),
    )
    path = KeyProof(1, 3, (b"s" * 32, b"n" * 32))
    yield (
        "keys of a window",
        Target(
            canonical(decode_window_keys, lambda keys: encode([keys[0], [*map(key_proof_to_value, keys[1])]])),
            (encode([b"w" * 90, [key_proof_to_value(path)]]),),
            ("node.market.task_keys:decode_window_keys",),
        ),
    )
    share = Share(0, b"v" * 33, b"s" * 16)
    book = ShareBook(b"t" * 32, 1, (share_hash(b"t" * 32, share), b"h" * 32), b"g" * 65)
    yield (
        "share to keep",
        Target(
            canonical(decode_kept, lambda kept: encode_kept(*kept)),
            (encode_kept(b"t" * 32, [(book, share)] * 2), encode_kept(b"t" * 32, ())),
            (
                "node.market.key_shares:decode_kept",
                "node.market.key_shares:_kept_pair",
                "node.market.key_shares:_book_from_value",
                "node.market.key_shares:_share_from_value",
            ),
            (DecodeError, SharesInvalid),
        ),
    )
    yield (
        "wrapped share",
        Target(
            canonical(
                lambda data: decode_share(b"t" * 32, data),
                lambda found: encode([[found[0].threshold, list(found[0].hashes), found[0].signature], found[1]]),
            ),
            (encode([[1, [b"h" * 32], b"g" * 65], b"w" * 90]),),
            ("node.market.key_shares:decode_share",),
        ),
    )
    yield "question for a blob", Target(
        canonical(decode_question, encode_question),
        (encode_question(Question(b"t" * 32, b"b" * 32, b"a" * 20, 7)),),
        ("node.market.blob_search:decode_question",),
    )  # fmt: skip
    yield (
        "clock",
        Target(
            canonical(decode_clock, lambda clock: clock.to_bytes(8, "big")),
            ((1_800_000_000_000).to_bytes(8, "big"), bytes(8)),
            ("node.telemetry.clock_skew:decode_clock",),
        ),
    )
    yield "file of evidence", Target(
        canonical(decode_file, encode_file), (encode_file([]), encode_file(fault.encode() for fault in EVIDENCE)),
        ("node.chain.evidence:decode_file",),
    )  # fmt: skip
    yield "waiting transactions", Target(
        read_kept,
        (encode_local_transactions(KEPT_CHAIN, [])[32:], encode_local_transactions(KEPT_CHAIN, [(7, RAW)])[32:]),
        ("node.chain.local_transactions:decode_local_transactions",),
    )  # fmt: skip
    yield "log of waiting transactions", Target(
        read_log,
        (encode_log_part(KEPT_CHAIN, [(7, RAW)]), encode_local_transactions(KEPT_CHAIN, [(7, RAW)])[32:]),
        ("node.chain.local_transactions:decode_log",),
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
        ("node.home.config:parse_checkpoint",), (ConfigError,),
    )  # fmt: skip
    yield (
        "published window",
        Target(
            decode_published,
            (encode([[b"p" * 32, b"q" * 32], [b"s" * 32, b"t" * 32], b"l" * 32, b"o" * 32]),),
            ("node.market.promises:decode_published",),
        ),
    )
    yield (
        "what a challenge hides",
        Target(
            decode_found,
            (encode([3, b"w" * 32, b"r" * 32, 7, b"s" * 32]),),
            ("node.market.challenges:decode_found",),
        ),
    )
    yield (
        "chain of a trial",
        Target(
            lambda data: read_chain(bytes(32), data),
            ((32).to_bytes(2, "big") + bytes(32) + digest(b"trial-file", bytes(64))[:8],),
            ("node.market.trial_chains:read_chain", "node.market.trial_chains:TrialChains.load"),
        ),
    )
    yield "genesis file", Target(
        of_file("genesis.json", load_genesis), (genesis_to_json(FILE).encode(),),
        ("node.home.load:load_genesis",), (ConfigError,), cost=4, memory=400,
    )  # fmt: skip
    yield "founder's file", Target(
        of_text(read_founder), (founder_to_json(FOUNDERS[0]).encode(),),
        ("node.chain.founding:founder_from_json", "node.cli.genesis:_read_founder"), (ConfigError,), cost=8,
    )  # fmt: skip
    yield "keystore file", Target(
        of_file("key.json", read_keystore), (KEYSTORE,),
        ("node.home.keys:read_keystore", "node.home.keys:load_key"),
        (KeystoreError,), cost=8,
    )  # fmt: skip
    yield "passphrase file", Target(
        of_file("passphrase", read_passphrase), (b"secret\n",), ("node.home.keys:read_passphrase",),
        (KeystoreError,), cost=8,
    )  # fmt: skip
    toml = dump_options(NodeOptions(roles=("validator", "compute"))).encode()
    yield "node options", Target(
        of_file("config.toml", load_options),
        (toml, b'kind = "node"\n[p2p]\nlisten = ":1"\nbootstrap = ["a"]\n[registry]\nstake = "5"\n'),
        (
            "node.home.config:load_options", "node.home.config:load_table", "node.home.config:read_table",
            "node.home.config:_parse",
            "node.home.load:load_node_options",
        ),
        (ConfigError,),
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
        lambda data: funds_from_document(json.loads(data), b"r" * 20), (json.dumps(carried).encode(),),
        ("node.relay.settlement_gateway:funds_from_document", "node.relay.settlement_gateway:_with_relay"),
        (DecodeError, ValueError, RecursionError), memory=400,
    )  # fmt: skip
    yield "relay options", Target(
        of_file("relay.toml", lambda path: load_table(path, RelayHomeOptions)),
        (dump_options(RelayHomeOptions()).encode(),),
        ("node.home.config:load_table",), (ConfigError,), cost=4, memory=400,
    )  # fmt: skip
    yield "kind of a home", Target(
        of_file("home.toml", kind_of),
        (toml, dump_options(RelayHomeOptions()).encode(), b'kind = "node"\nroles = []\nlisten = ""\n'),
        ("node.home.kind:kind_of",), (), cost=4, memory=400,
    )  # fmt: skip
    job_text = json.dumps(spec_to_json(JOB)).encode()
    yield "job file", Target(
        of_file("job.json", read_spec), (job_text, encode_spec(JOB)), ("node.cli.jobs:read_spec",), (ConfigError,),
        cost=4, memory=400,
    )  # fmt: skip
    yield "job text", Target(
        lambda data: spec_from_json(json.loads(data)), (job_text,), ("node.cli.jobs:spec_from_json",),
        (ConfigError, ValueError), memory=400,
    )  # fmt: skip
    yield "tuning file", Target(
        of_file("job.yaml", read_job), (TUNING, GENERATING),
        ("node.cli.tasks.job_file:read_job", "tasks.requests.reading:read_file",
         "tasks.requests.yaml_text:read_yaml"),
        (ConfigError,), cost=4, memory=400,
    )  # fmt: skip
    yield "workflow record", Target(
        read_record, (WORKFLOW,), ("node.workflows.records:read_record",), (ValueError, TypeError, KeyError),
        memory=400,
    )  # fmt: skip
    yield "light client's file", Target(
        of_file("light.json", load_light_file), light_files(),
        ("node.light.client:load_light_file", "node.light.client:_read_fork", "node.light.client:_from_document"),
        (ConfigError,), cost=8, memory=400,
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
        of_text(parse_signer), (PEER, b"unix:/run/signer.sock"), ("node.home.config:parse_signer",), (ConfigError,)
    )  # fmt: skip
    yield "vote key", Target(
        of_text(parse_vote_key), (b"0x" + b"ab" * 32,), ("node.home.config:parse_vote_key",), (ConfigError,)
    )  # fmt: skip
    yield "signer options", Target(
        of_file("signer.toml", load_signer_options),
        (dump_options(SignerHomeOptions(listen="h:1", clients=(format_address(KEY.address),))).encode(),),
        ("node.signer.home:load_signer_options",), (ConfigError,), cost=4, memory=400,
    )  # fmt: skip
    yield "time until", Target(
        of_text(parse_until), (b"2027-01-31T08:00+01:00", b""), ("node.home.config:parse_until",), (ConfigError,),
    )  # fmt: skip
    yield "peer text", Target(of_text(parse_peer), (PEER,), ("node.home.config:parse_peer",), (ConfigError,))
    yield (
        "host and port",
        Target(
            of_text(parse_listen),
            (b"127.0.0.1:80", b"[::1]:1", b":1,h:2"),
            ("state.primitives.listen:parse_host_port", "state.primitives.listen:parse_listen"),
            (ConfigError,),
        ),
    )
    yield "book of uploads", Target(
        blobs.check_book, blobs.BOOKS,
        ("node.market.uploads:decode_book", "node.market.uploads:_upload", "node.market.uploads:_charge"),
    )  # fmt: skip
    yield "words of a wallet", Target(
        of_text(read_words), (b"test test test test test test test test test test test junk", b"0x" + b"ab" * 32),
        ("node.home.keyring:parse_secret",), (), cost=5, memory=4000,
    )  # fmt: skip
