"""Samples that decoders of more than one package read."""

from __future__ import annotations

from typing import Any

from billing.relay import Receipt as Carried
from node.chain.runtime import make_runtime
from state.primitives.address import format_address
from state.primitives.blocks import Block, encode_block
from state.primitives.committee import Committee, Seat
from state.primitives.genesis import genesis_hash
from state.primitives.keys import SecretKey
from state.primitives.keystore import encrypt_keystore
from state.primitives.transactions import sign_transaction
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Equivocation, Vote
from state.transition.evidence import Evidence
from state.transition.staking import STAKE_KIND, UNSTAKE_KIND, stake_payload, unstake_payload
from state.transition.transfer import transfer_payload
from tasks.claims import Fault, claim_to_value
from tasks.custody.chunks import ChunkProof, chunk_proof_to_value
from tasks.custody.inputs import PlainClaim, plain_claim_to_value
from tasks.custody.keys import KeyProof, key_proof_to_value
from tasks.custody.layout import LeafEvidence, PlainChunk, leaf_evidence_to_value, plain_chunk_to_value
from tasks.dispute.moves import Pick, encode_move
from tasks.engines.dataset_layout import NodePlace
from tasks.ledger import (
    bonds,
    checkpoint_transitions,
    claim_transitions,
    custody_transitions,
    dispute_transitions,
    group_transitions,
    metering_transitions,
    quorum_transitions,
    serving_transitions,
    tampering,
    transitions,
    trial_transitions,
)
from tasks.ledger.carriage import FUND_CARRIAGE, SETTLE_CARRIAGE, WITHDRAW_CARRIAGE
from tasks.ledger.custody_records import INPUT_WINDOW
from tasks.ledger.lifecycle import Reason
from tasks.ledger.registry import Gpu, NodeProfile, NodeRole, profile_to_value
from tasks.programs.divergence import Divergence
from tasks.proofs import (
    Break,
    Code,
    Finding,
    ShownLeaf,
    ShownLosses,
    break_to_value,
    findings_to_value,
    make_opening,
    opening_to_value,
    window_proof_to_value,
)
from tasks.spec import encode_spec
from tests.consensus.test_wire import BLOCK
from tests.p2p.helpers import NOW_MS, identity
from tests.state.transition.chain import genesis as small_genesis
from tests.tasks.strays import CLAIM
from tests.tasks.world import leaves_of, proof_of, salt, spec, work_of

KEY = SecretKey(b"k" * 32)
RUNTIME = make_runtime(small_genesis())
PEER = f"{format_address(KEY.address)}@tcp:h:1".encode()
KEYSTORE = encrypt_keystore(
    KEY, "passphrase", salt=b"s" * 32, iv=b"i" * 16, identifier=b"u" * 16, scrypt_n=2
).encode()
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
JOB = spec(total=55)
LEAVES = leaves_of(JOB, 2, b"i" * 32)
PROOF = proof_of(JOB, b"t" * 32, 2, LEAVES)
DIVERGED_PROOF = PROOF._replace(step_to=44, diverged=Divergence(43, 99, 1, 2, b"b" * 32))
EVALUATED_PROOF = PROOF._replace(losses=ShownLosses(bytes(512), (b"h" * 32,) * 4))
OPENING = make_opening(LEAVES, 1, work_of(LEAVES[1]), salt(LEAVES[1].step_from))
PROFILE = NodeProfile(b"o" * 20, NodeRole.COMPUTE, (Gpu("H100", 81_559),), 8, 16_000, 16, 10**15, 100, 1, 0,
                      ("tcp:h:1",), "1.0")  # fmt: skip
CHUNK = ChunkProof(1, b"c" * 40, (b"h" * 32,), b"p" * 32, (b"g" * 32, b"f" * 32))
KEY_PROOF = KeyProof(3, 9, (b"h" * 32,) * 4)
PLAIN = PlainChunk(1, b"p" * 40, (b"h" * 32,))
PLAIN_CLAIM = PlainClaim(b"t" * 32, Fault.NODE, NodePlace(1, 2, 3), (PLAIN, PLAIN))
STATE_LEAF = LeafEvidence(2, b"r" * 32, (b"h" * 32,), 3, b"v" * 64, (b"g" * 32,))
FINDINGS = (
    Finding(0, Code.COMPUTED, b"p" * 32, b"s" * 32, 7),
    Finding(3, Code.UNAVAILABLE, bytes(32), bytes(32), 0),
    Finding(4, Code.BROKEN, bytes(32), bytes(32), 0),
)
BROKEN = Break(2, ShownLeaf(b"leaf", (b"s" * 32,)), ShownLeaf(b"before", (b"s" * 32, b"t" * 32)))
CARRIED = Carried(
    b"g" * 32, b"r" * 20, identity(3).address, b"c" * 32, NOW_MS, 1, 2**30, 10**16, NOW_MS + 1
).signed_by(identity(3).signer)


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
    payload(transitions.SUSPEND_NODE, []),
    payload(transitions.HEARTBEAT, []),
    payload(transitions.CREATE_TASK, [encode_spec(JOB)]),
    payload(transitions.CANCEL_TASK, [b"t" * 32]),
    payload(transitions.ACCEPT_TASK, [b"t" * 32, 5]),
    payload(transitions.START_TASK, [b"t" * 32, b"m" * 32]),
    payload(transitions.SUBMIT_WINDOW, [window_proof_to_value(PROOF)]),
    payload(transitions.SEAL_VERDICT, [b"t" * 32, 1, b"s" * 32]),
    payload(transitions.REVEAL_VERDICT, [b"t" * 32, 1, findings_to_value(FINDINGS), b"n" * 32]),
    payload(claim_transitions.CLAIM_INPUT, [claim_to_value(CLAIM)]),
    payload(claim_transitions.CLAIM_DIVERGED, [window_proof_to_value(DIVERGED_PROOF)]),
    payload(transitions.SET_PAYOUT, [b"m" * 20, b"p" * 20]),
    payload(bonds.SET_TERMS, [b"m" * 20, b"s" * 20, 1_000, 5_000, 10**19]),
    payload(bonds.SPONSOR_NODE, [b"m" * 20, 1_000, 5_000, 10**19, 10**19]),
    payload(bonds.WITHDRAW_SPONSOR, [b"m" * 20, 5]),
    payload(transitions.DECLINE_SEAT, [b"t" * 32, 1]),
    payload(dispute_transitions.MOVE, [b"t" * 32, 1, 2, 3, encode_move(Pick(3))]),
    payload(dispute_transitions.SEAL_CHALLENGE, [b"t" * 32, 1, b"s" * 32, 5]),
    payload(dispute_transitions.OPEN_CHALLENGE, [b"t" * 32, 1, 2, 3, b"w" * 32, b"s" * 32, 7, b"n" * 32]),
    payload(dispute_transitions.RESUME_DISPUTE, [b"t" * 32, 1, 2, 5]),
    payload(dispute_transitions.SHOW_BREAK, [b"t" * 32, 1, *break_to_value(BROKEN)]),
    payload(custody_transitions.ASK_CUSTODY, [b"t" * 32, b"k" * 32, 1, 5]),
    payload(custody_transitions.TAKE_CUSTODY, [b"t" * 32, 1, 5]),
    payload(custody_transitions.DEMAND_CUSTODY, [b"t" * 32, 1, b"c" * 20, 5]),
    payload(custody_transitions.ANSWER_DEMAND, [b"t" * 32, 1, chunk_proof_to_value(CHUNK)]),
    payload(custody_transitions.RECEIVE_CUSTODY, [b"t" * 32, 1]),
    payload(
        custody_transitions.REVEAL_GARBAGE,
        [b"t" * 32, 1, b"k" * 32, key_proof_to_value(KEY_PROOF), chunk_proof_to_value(CHUNK)],
    ),
    payload(
        custody_transitions.REVEAL_MISMATCH,
        [b"t" * 32, 1, plain_chunk_to_value(PLAIN), leaf_evidence_to_value(STATE_LEAF)],
    ),
    payload(custody_transitions.END_CUSTODY, [b"t" * 32, 1]),
    payload(custody_transitions.RECEIVE_CUSTODY, [b"t" * 32, INPUT_WINDOW]),
    payload(custody_transitions.KEEP_INPUT, [b"t" * 32, 40_000, b"p" * 32, b"c" * 32, 5]),
    payload(
        custody_transitions.CLAIM_GARBAGE,
        [b"t" * 32, b"k" * 32, key_proof_to_value(KEY_PROOF), chunk_proof_to_value(CHUNK)],
    ),
    payload(custody_transitions.CLAIM_KEYED, [claim_to_value(CLAIM), b"k" * 32, key_proof_to_value(KEY_PROOF)]),
    payload(custody_transitions.CLAIM_PLAIN, [plain_claim_to_value(PLAIN_CLAIM)]),
    payload(group_transitions.CREATE_GROUP, [encode_spec(JOB), 9, 2]),
    payload(group_transitions.ADD_SEATS, [b"g" * 32, [b"r" * 32, b""], 5]),
    payload(group_transitions.CANCEL_GROUP, [b"g" * 32]),
    payload(trial_transitions.ASK_TRIAL, []),
    payload(serving_transitions.SERVE_WINDOW, [b"t" * 32, 1]),
    payload(metering_transitions.METER_TASK, [b"t" * 32, 600]),
    payload(tampering.REPORT_TAMPERING, [b"t" * 32, 1]),
    payload(quorum_transitions.SEAL_OUTPUT, [b"t" * 32, 605, b"s" * 32]),
    payload(quorum_transitions.REVEAL_OUTPUT, [b"t" * 32, b"r" * 32, b"s" * 32]),
    payload(metering_transitions.FINISH_TASK, [b"t" * 32, 605, [1, 3, b"o" * 32, 10_240, b"l" * 32, 77]]),
    payload(checkpoint_transitions.CHECKPOINT_TASK, [b"t" * 32, 600, b"c" * 32, 10_240]),
    payload(checkpoint_transitions.MISS_CHECKPOINT, [b"t" * 32, b"c" * 32]),
    payload(trial_transitions.COMMIT_TRIAL, [5, b"r" * 32, 7]),
    payload(trial_transitions.SHOW_TRIAL, [[[1, b"b" * 32, b"a" * 32, [b"s" * 32], [b"s" * 32]]]]),
    payload(trial_transitions.JUDGE_TRIAL, [b"m" * 20, [b"d" * 32]]),
    payload(transitions.OPEN_WINDOW, [b"t" * 32, 1, [opening_to_value(OPENING)]]),
    payload(transitions.POKE, [b"t" * 32]),
    payload(transitions.TOP_UP_TASK, [b"t" * 32, 5]),
    payload(transitions.RESUME_TASK, [b"t" * 32]),
    payload(transitions.DEMAND_RESULT, [b"t" * 32, 5]),
    payload(transitions.GIVE_UP_TASK, [b"t" * 32, int(Reason.INPUT_UNAVAILABLE)]),
    payload(SETTLE_CARRIAGE, [CARRIED.encode(), identity(3).certificate.encode()]),
    payload(FUND_CARRIAGE, [5]),
    payload(WITHDRAW_CARRIAGE, [5]),
)
BLOCKS = (encode_block(Block(BLOCK.header, (RAW, RAW), (b"e",))), encode_block(BLOCK))
