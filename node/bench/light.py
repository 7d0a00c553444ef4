"""`dekube bench light`: the cost of a light client's checks, for committees of 4, 21 and 100 seats."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from consensus.light import (
    EpochRecord,
    LightClient,
    LightOptions,
    decode_epoch_record,
    encode_epoch_record,
    genesis_root,
    verify_account,
)
from consensus.votes import Certificate
from consensus.wire import encode_certificate
from state.primitives.blocks import Header, header_hash
from state.primitives.committee import Committee, Seat
from state.primitives.hashing import ZERO_HASH
from state.primitives.keys import SecretKey
from state.primitives.votes import FINALIZE, Candidate, Vote, vote_digest
from state.primitives.vrf import VRF_PROOF_BYTES
from state.trie import Trie, prove
from state.view.accounts import ACCOUNT_BYTES, account_key

__all__ = ["run"]

SEATS: Final = (4, 21, 100)
EPOCH_BLOCKS: Final = 3_600
EPOCH_MS: Final = 3_600_000
GENESIS: Final = b"g" * 32
START_MS: Final = 1_700_000_000_000
STAKE: Final = 25_000 * 10**18


def run(*, records: int = 20, accounts: int = 20_000) -> dict[str, float]:
    """Follow ``records`` epochs for each committee, check a proof among ``accounts``. Times are of one core."""
    figures: dict[str, float] = {}
    for seats in SEATS:
        figures |= _follow(seats, records)
    return figures | _prove(accounts)


def _follow(size: int, records: int) -> dict[str, float]:
    keys = [SecretKey((number + 1).to_bytes(32, "big")) for number in range(size)]
    committee = Committee(
        [Seat(key.address, key.vote_key, key.vote_key, STAKE + at) for at, key in enumerate(keys)]
    )
    encoded = [encode_epoch_record(_record(epoch, committee, keys)) for epoch in range(records)]
    root = genesis_root(genesis_hash=GENESIS, time_ms=START_MS, epoch_blocks=EPOCH_BLOCKS, committee=committee)
    client = LightClient(root, LightOptions(trusting_period_ms=None))
    now_ms = START_MS + records * EPOCH_MS
    begun_s = time.process_time()
    decoded = [decode_epoch_record(data) for data in encoded]
    between_s = time.process_time()
    for record in decoded:
        if client.follow(record, now_ms) is not None:
            raise AssertionError("a fork in a chain of one history")
    ended_s = time.process_time()
    year = 365 * 24 * 3_600_000 // EPOCH_MS
    each_s = (ended_s - begun_s) / records
    return {
        f"record_bytes_{size}_seats": len(encoded[-1]),
        f"certificate_bytes_{size}_seats": len(encode_certificate(decoded[-1].certificate)),
        f"decode_record_us_{size}_seats": round((between_s - begun_s) / records * 1e6, 1),
        f"check_certificate_us_{size}_seats": round((ended_s - between_s) / records * 1e6, 1),
        f"year_of_records_s_{size}_seats": round(each_s * year, 1),
        f"year_of_records_mb_{size}_seats": round(len(encoded[-1]) * year / 1e6, 1),
    }


def _header(epoch: int, committee_hash: bytes) -> Header:
    """Return the last header of an epoch, with the usual size."""
    return Header(
        version=1, genesis_hash=GENESIS, height=(epoch + 1) * EPOCH_BLOCKS, epoch=epoch, view=EPOCH_BLOCKS,
        proposer_seat=0, parent_hash=b"p" * 32, time_ms=START_MS + (epoch + 1) * EPOCH_MS, tx_root=b"t" * 32,
        receipt_root=b"r" * 32, state_root=b"s" * 32, evidence_root=ZERO_HASH, vrf_proof=bytes(VRF_PROOF_BYTES),
        committee_hash=committee_hash, next_committee_hash=committee_hash, voters_bitmap=b"\xff" * 13,
        base_fee=10**9, tx_bytes=10**6, tx_count=5_000, signal=1,
    )  # fmt: skip


def _record(epoch: int, committee: Committee, keys: Sequence[SecretKey]) -> EpochRecord:
    """Return a record with the minimum number of signatures."""
    header = _header(epoch, committee.hash)
    candidate = Candidate(epoch, header.view, header.view - 1, header_hash(header))
    signed = vote_digest(GENESIS, FINALIZE, candidate)
    votes: list[Vote] = []
    weight = 0
    for seat, key in enumerate(keys):
        if weight >= committee.quorum:
            break
        votes.append(Vote(FINALIZE, *candidate, seat, key.sign_vote(signed)))
        weight += committee.weights[seat]
    return EpochRecord(header, Certificate.of(committee, votes), committee)


def _prove(accounts: int) -> dict[str, float]:
    addresses = [number.to_bytes(20, "big") for number in range(accounts)]
    record = (7).to_bytes(ACCOUNT_BYTES, "big")
    trie = Trie()
    trie = trie.after(trie.update({account_key(address): record for address in addresses}))
    following = _header(0, ZERO_HASH)._replace(state_root=trie.root)
    proofs = [(address, prove(trie, account_key(address))) for address in addresses[:: max(1, accounts // 500)]]
    begun_s = time.process_time()
    for address, proof in proofs:
        verify_account(following, address, record, proof)
    ended_s = time.process_time()
    return {
        "account_proof_us": round((ended_s - begun_s) / len(proofs) * 1e6, 1),
        "account_proof_bytes": round(sum(len(proof) for _, proof in proofs) / len(proofs)),
    }
