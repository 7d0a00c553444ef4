from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consensus.light import (
    CertificateInvalid,
    CommitteeUnknown,
    EpochOutOfOrder,
    EpochRecord,
    Fork,
    ForkFound,
    HeaderAhead,
    HeaderUnproven,
    LightClient,
    LightOptions,
    ProofInvalid,
    Proven,
    RecordInvalid,
    TrustExpired,
    Unreadable,
    VersionUnknown,
    checkpoint_root,
    decode_epoch_record,
    decode_merkle_proof,
    encode_epoch_record,
    encode_merkle_proof,
    trusting_period_ms,
    verify_account,
    verify_receipt,
    verify_state,
    verify_transaction,
)
from consensus.votes import Certificate
from state.primitives.blocks import Header, header_hash
from state.primitives.committee import Committee, Seat
from state.primitives.errors import DecodeError, ProtocolError
from state.primitives.hashing import ZERO_HASH
from state.primitives.merkle import merkle_proof, merkle_root
from state.primitives.votes import NOTARIZE
from state.trie import Trie, prove
from state.view.accounts import Account, account_key
from tests.consensus.lightchain import (
    BLOCK_MS,
    EPOCH_BLOCKS,
    GENESIS,
    SENDER,
    START_MS,
    LightChain,
    certify,
    key,
)

CHAIN = LightChain(epochs=5, more=3)
OTHER = LightChain(epochs=5, more=3, twist=1, fork_at=5)
"""The same validators, another history from block 5 on: what more than two thirds of them could sign."""
NOW_MS = CHAIN.now_ms()
OPTIONS = LightOptions(trusting_period_ms=1_000_000)


def client(epochs: int = 0, options: LightOptions = OPTIONS) -> LightClient:
    """A client that has followed so many epochs."""
    made = LightClient(CHAIN.root(), options)
    for epoch in range(epochs):
        assert made.follow(CHAIN.record(epoch), NOW_MS) is None
    return made


def forked(result: object) -> Fork:
    assert type(result) is Fork
    return result


def proven(result: tuple[Proven, ...] | Fork) -> tuple[Proven, ...]:
    assert not isinstance(result, Fork)
    return result


def snapshot(light: LightClient) -> Any:
    return light.trusted, dict(light.boundaries), light.last, light.fork


# Records


def test_the_verifier_needs_neither_database_nor_event_loop_nor_numpy() -> None:
    program = """
import sys
for name in ("plyvel", "trio", "numpy", "asyncio", "socket", "ssl", "orjson", "rpc", "node", "state.store"):
    sys.modules[name] = None
import consensus.light
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr


def test_a_record_survives_its_bytes() -> None:
    record = CHAIN.record(2)
    again = decode_epoch_record(encode_epoch_record(record))
    assert (again.header, again.certificate) == record[:2]
    assert again.committee.seats == record.committee.seats and again.committee.hash == record.committee.hash


def test_records_hand_trust_from_committee_to_committee() -> None:
    light = client(5)
    trusted = light.trusted
    assert (trusted.epoch, trusted.height) == (5, 5 * EPOCH_BLOCKS)
    assert trusted.block_hash == CHAIN.hashes[20]
    assert trusted.committee.hash == CHAIN.committee(5).hash
    assert light.boundaries == {epoch: CHAIN.hashes[4 * epoch + 4] for epoch in range(5)}
    assert light.last == CHAIN.record(4)


def test_a_checkpoint_is_as_good_as_the_genesis() -> None:
    root = checkpoint_root(CHAIN.record(2), height=12, block_hash=CHAIN.hashes[12])
    assert (root.genesis_hash, root.epoch_blocks, root.epoch) == (GENESIS, EPOCH_BLOCKS, 3)
    light = LightClient(root, OPTIONS)
    for epoch in (3, 4):
        light.follow(CHAIN.record(epoch), NOW_MS)
    assert light.trusted == client(5).trusted


WITHIN = CHAIN.record(2)._replace(header=CHAIN.headers[12]._replace(height=11))
"""A committee after a block that ends no epoch."""


@pytest.mark.parametrize(
    ("record", "height", "block_hash"),
    [
        (CHAIN.record(1), 12, CHAIN.hashes[12]),
        (CHAIN.record(2), 12, CHAIN.hashes[11]),
        (CHAIN.record(2), 13, CHAIN.hashes[12]),
        (CHAIN.record(2)._replace(committee=CHAIN.committee(4)), 12, CHAIN.hashes[12]),
        (CHAIN.record(2)._replace(header=CHAIN.headers[11]), 11, CHAIN.hashes[11]),
        (WITHIN, 11, header_hash(WITHIN.header)),
        (CHAIN.record(2)._replace(header=CHAIN.headers[9], committee=CHAIN.committee(3)), 9, CHAIN.hashes[9]),
    ],
)
def test_a_checkpoint_is_believed_by_its_hash_alone(record: EpochRecord, height: int, block_hash: bytes) -> None:
    with pytest.raises(RecordInvalid):
        checkpoint_root(record, height=height, block_hash=block_hash)


def test_a_client_neither_skips_nor_goes_back() -> None:
    light = client(2)
    for epoch in (0, 1, 3):
        with pytest.raises(EpochOutOfOrder):
            light.follow(CHAIN.record(epoch), NOW_MS)
    assert snapshot(light) == snapshot(client(2))


def changed(value: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """Another value of the same shape."""
    if type(value) is int:
        return max(0, value + draw(st.sampled_from([-1, 1, 2, 1 << 40])))
    if not value:
        return b"\1"
    at, bit = draw(st.integers(0, len(value) - 1)), draw(st.integers(0, 7))
    return value[:at] + bytes([value[at] ^ 1 << bit]) + value[at + 1 :]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_record_with_any_field_changed_is_refused(data: st.DataObject) -> None:
    light, record = client(2), CHAIN.record(2)
    part = data.draw(st.sampled_from(("header", "certificate", "committee")))
    if part == "committee":
        seats: list[list[Any]] = [list(seat) for seat in record.committee.seats]
        number, field = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
        seats[number][field] = changed(seats[number][field], data.draw) or 7
        forged = record._replace(committee=Committee([Seat(*seat) for seat in seats], [1, 2, 3, 0]))
    else:
        whole = getattr(record, part)
        name = data.draw(st.sampled_from(whole._fields))
        value = changed(getattr(whole, name), data.draw)
        forged = record._replace(**{part: whole._replace(**{name: value})})
        if value == getattr(whole, name):
            return
    before = snapshot(light)
    with pytest.raises((RecordInvalid, CertificateInvalid, EpochOutOfOrder)):
        light.follow(forged, NOW_MS)
    assert snapshot(light) == before
    light.follow(record, NOW_MS)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_record_with_any_bit_flipped_is_refused(data: st.DataObject) -> None:
    encoded = encode_epoch_record(CHAIN.record(1))
    forged = changed(encoded, data.draw)
    with pytest.raises(ProtocolError):
        client(1).follow(decode_epoch_record(forged), NOW_MS)


def resigned(header: Header, epoch: int, **more: Any) -> EpochRecord:
    """A record of a changed header, signed again."""
    return EpochRecord(
        header, certify(header, CHAIN.committee(epoch), first_key=epoch, **more), CHAIN.committee(epoch + 1)
    )


GOOD = CHAIN.headers[12]


@pytest.mark.parametrize(
    ("forged", "error"),
    [
        (resigned(GOOD, 2, seats=[0, 1]), CertificateInvalid),  # too little weight
        (resigned(GOOD, 2, kind=NOTARIZE), CertificateInvalid),
        (resigned(GOOD, 2, view=GOOD.view - 1), CertificateInvalid),
        (resigned(GOOD, 2, genesis=b"x" * 32), CertificateInvalid),  # votes of another chain
        (resigned(GOOD._replace(genesis_hash=b"x" * 32), 2), RecordInvalid),
        (resigned(GOOD._replace(height=11), 2), RecordInvalid),
        (resigned(GOOD._replace(height=13), 2), RecordInvalid),
        (resigned(GOOD._replace(committee_hash=ZERO_HASH), 2), CertificateInvalid),
        (resigned(GOOD._replace(next_committee_hash=ZERO_HASH), 2), RecordInvalid),
        (resigned(GOOD._replace(time_ms=START_MS + 8 * BLOCK_MS), 2), RecordInvalid),  # not after the last
        (resigned(GOOD._replace(time_ms=NOW_MS + 2_001), 2), HeaderAhead),
        (CHAIN.record(2)._replace(certificate=CHAIN.certificates[11]), CertificateInvalid),
        # The committee of the epoch before signs once more
        (
            EpochRecord(GOOD, certify(GOOD, CHAIN.committee(1), first_key=1), CHAIN.committee(3)),
            CertificateInvalid,
        ),
    ],
)
def test_what_a_minority_or_a_confused_majority_signs_is_refused(
    forged: EpochRecord, error: type[Exception]
) -> None:
    light = client(2)
    with pytest.raises(error):
        light.follow(forged, NOW_MS)
    assert light.trusted.epoch == 2


def test_a_clock_may_be_two_seconds_behind() -> None:
    light = client(2)
    assert light.follow(resigned(GOOD._replace(time_ms=NOW_MS + 2_000), 2), NOW_MS) is None


def test_a_boundary_block_that_was_proposed_again_counts_in_its_later_view() -> None:
    light = client(2)
    assert light.follow(resigned(GOOD, 2, view=GOOD.view + 5), NOW_MS) is None


def test_old_trust_is_no_trust() -> None:
    assert trusting_period_ms(14 * 24) == 224
    light = client(1)
    late = light.trusted.time_ms + 1_000_000
    light.check_trust(late)
    with pytest.raises(TrustExpired):
        light.follow(CHAIN.record(1), late + 1)
    with pytest.raises(TrustExpired):
        light.verify_headers([CHAIN.headers[5]], CHAIN.certificates[5], late + 1)
    vouched = LightClient(light.trusted, LightOptions(trusting_period_ms=None))
    assert vouched.follow(CHAIN.record(1), late + 1) is None


def test_an_unknown_version_is_nobody_s_lie() -> None:
    light = client(2, LightOptions(trusting_period_ms=None, versions=(1,)))
    with pytest.raises(VersionUnknown) as told:
        light.follow(resigned(GOOD._replace(version=2), 2), NOW_MS)
    assert told.value.code == "upgrade_required" and not isinstance(told.value, ProtocolError)
    newer = client(2, LightOptions(trusting_period_ms=None, versions=(1, 2)))
    assert newer.follow(resigned(GOOD._replace(version=2), 2), NOW_MS) is None


# Forks


def test_two_final_boundary_blocks_convict_all_that_signed_both() -> None:
    light = client(5)
    assert light.compare(CHAIN.record(3)) is None
    fork = forked(light.compare(OTHER.record(4)))
    assert fork.height == 20 and fork.hashes == (CHAIN.hashes[20], OTHER.hashes[20])
    assert len(fork.equivocations) == 4  # every seat voted FINALIZE twice in view 4
    assert {pair.type for pair in fork.equivocations} == {"E2"}
    assert fork.suspects == tuple(seat.address for seat in CHAIN.committee(4).seats)
    for act in (
        lambda: light.follow(CHAIN.record(4), NOW_MS),
        lambda: light.compare(CHAIN.record(4)),
        lambda: light.verify_headers([CHAIN.headers[20]], None, NOW_MS),
    ):
        with pytest.raises(ForkFound) as told:
            act()
        assert told.value.fork is fork


def test_certificates_of_different_views_name_suspects() -> None:
    light = client(3)
    other = resigned(OTHER.headers[12]._replace(view=2), 2, view=9, seats=[0, 1, 2])
    fork = forked(light.compare(other))
    assert fork.equivocations == ()
    assert fork.suspects == tuple(seat.address for seat in CHAIN.committee(2).seats[:3])


def test_certificates_of_two_epochs_name_nobody() -> None:
    """Seats of one number are of different validators there."""
    ours, theirs = CHAIN.certificates[4], OTHER.certificates[8]
    assert Fork(4, CHAIN.committee(0), (b"a" * 32, b"b" * 32), (ours, theirs)).suspects == ()


def test_a_false_record_of_a_followed_epoch_is_told_from_a_fork() -> None:
    light = client(5)
    with pytest.raises(CertificateInvalid):
        light.compare(OTHER.record(4)._replace(certificate=CHAIN.certificates[20]))
    with pytest.raises(RecordInvalid):
        light.compare(CHAIN.record(4)._replace(committee=CHAIN.committee(4)))
    with pytest.raises(CertificateInvalid):  # the right block with a certificate of somebody's own
        light.compare(resigned(CHAIN.headers[20], 4, seats=[1]))
    with pytest.raises(EpochOutOfOrder):
        light.compare(OTHER.record(4)._replace(header=OTHER.headers[23]))
    assert light.fork is None


def test_a_client_that_started_anew_asks_for_our_records_first() -> None:
    first = client(5)
    light = LightClient(first.trusted, OPTIONS, boundaries=first.boundaries, last=first.last)
    assert light.compare(CHAIN.record(4)) is None
    with pytest.raises(CommitteeUnknown):
        light.compare(OTHER.record(4))
    with pytest.raises(RecordInvalid):
        light.compare(CHAIN.record(3)._replace(committee=CHAIN.committee(9)))
    light.compare(CHAIN.record(3))
    assert forked(light.compare(OTHER.record(4))).equivocations
    with pytest.raises(RecordInvalid):
        LightClient(first.trusted, OPTIONS, boundaries=first.boundaries, last=OTHER.record(4))


def test_two_final_blocks_within_an_epoch_are_noticed() -> None:
    light = client(5)
    assert proven(light.verify_headers(CHAIN.path(22, 23), CHAIN.certificates[23], NOW_MS))
    fork = forked(light.verify_headers(OTHER.path(22, 22), OTHER.certificates[22], NOW_MS))
    assert fork.height == 22 and fork.certificates == (CHAIN.certificates[23], OTHER.certificates[22])


def test_a_certified_block_over_another_boundary_is_a_fork() -> None:
    light = client(5)
    fork = forked(light.verify_headers(OTHER.path(20, 21), OTHER.certificates[21], NOW_MS))
    assert fork.height == 20 and fork.certificates == (CHAIN.certificates[20], OTHER.certificates[21])


def test_a_certified_block_whose_parent_is_another_boundary_is_a_fork() -> None:
    light = client(5)
    fork = forked(light.verify_headers(OTHER.path(21, 21), OTHER.certificates[21], NOW_MS))
    assert (fork.height, fork.hashes) == (20, (CHAIN.hashes[20], OTHER.hashes[20]))
    light = client(5)
    assert proven(light.verify_headers(CHAIN.path(21, 21), CHAIN.certificates[21], NOW_MS))
    fork = forked(light.verify_headers(OTHER.path(22, 22), OTHER.certificates[22], NOW_MS))
    assert (fork.height, fork.hashes) == (21, (CHAIN.hashes[21], OTHER.hashes[21]))


def test_a_boundary_record_that_contradicts_a_proven_header_is_a_fork() -> None:
    light = client(2)
    assert proven(light.verify_headers([CHAIN.headers[12]], CHAIN.certificates[12], NOW_MS))
    assert len(forked(light.follow(resigned(OTHER.headers[12], 2), NOW_MS)).equivocations) == 4


# Headers


def test_headers_are_proven_by_a_certificate_above_them_also_across_the_boundary() -> None:
    light = client(5)
    found = proven(light.verify_headers(CHAIN.path(18, 23), CHAIN.certificates[23], NOW_MS))
    assert [block_hash for _, block_hash in found] == [CHAIN.hashes[height] for height in range(18, 24)]


def test_headers_are_proven_by_a_boundary_block_without_any_certificate() -> None:
    light = client(5)
    assert len(proven(light.verify_headers(CHAIN.path(2, 8), None, NOW_MS))) == 7
    with pytest.raises(HeaderUnproven):
        light.verify_headers(CHAIN.path(2, 7), None, NOW_MS)


def test_what_is_sent_beside_a_path_to_a_known_boundary_is_not_kept_as_its_proof() -> None:
    """Otherwise an earlier invalid certificate would hide the seats that signed both sides of a fork."""
    light = client(5)
    real = CHAIN.certificates[20]
    junk = real._replace(signatures=bytes(len(real.signatures)))
    assert proven(light.verify_headers(CHAIN.path(18, 20), junk, NOW_MS))
    fork = forked(light.verify_headers(OTHER.path(19, 19), OTHER.certificates[19], NOW_MS))
    assert fork.certificates == (CHAIN.record(4).certificate, OTHER.certificates[19])
    assert fork.suspects


def test_certificates_of_earlier_epochs_count_once_their_committee_is_shown() -> None:
    first = client(5)
    light = LightClient(first.trusted, OPTIONS, boundaries=first.boundaries)
    with pytest.raises(CommitteeUnknown) as told:
        light.verify_headers(CHAIN.path(9, 10), CHAIN.certificates[10], NOW_MS)
    assert told.value.epoch == 2
    light.compare(CHAIN.record(1))
    assert proven(light.verify_headers(CHAIN.path(9, 10), CHAIN.certificates[10], NOW_MS))


def test_certificates_of_earlier_epochs_count_only_within_the_trusting_period() -> None:
    options = LightOptions(trusting_period_ms=(CHAIN.tip + 1 - 10) * BLOCK_MS)
    light = client(5, LightOptions(trusting_period_ms=None))
    light = LightClient(light.trusted, options, boundaries=light.boundaries)
    light.compare(CHAIN.record(1))
    assert proven(light.verify_headers(CHAIN.path(9, 10), CHAIN.certificates[10], NOW_MS))
    with pytest.raises(HeaderUnproven):
        light.verify_headers(CHAIN.path(9, 10), CHAIN.certificates[10], NOW_MS + 1)
    assert proven(light.verify_headers(CHAIN.path(9, 12), None, NOW_MS + 1))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_headers_with_any_field_changed_are_refused(data: st.DataObject) -> None:
    light, path, certificate = client(5), list(CHAIN.path(20, 22)), CHAIN.certificates[22]
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(Certificate._fields))
        value = changed(getattr(certificate, name), data.draw)
        if value == getattr(certificate, name):
            return
        certificate = certificate._replace(**{name: value})
    else:
        at, name = data.draw(st.integers(0, 2)), data.draw(st.sampled_from(Header._fields))
        value = changed(getattr(path[at], name), data.draw)
        if value == getattr(path[at], name):
            return
        path[at] = path[at]._replace(**{name: value})
    with pytest.raises((HeaderUnproven, CertificateInvalid)):
        light.verify_headers(path, certificate, NOW_MS)
    assert light.fork is None


@pytest.mark.parametrize(
    ("path", "at"),
    [
        ((), 22),
        ((CHAIN.headers[21], CHAIN.headers[23]), 23),  # a gap
        ((CHAIN.headers[22], CHAIN.headers[21]), 21),  # downwards
        ((CHAIN.headers[21],), 22),  # the certificate is another block's
    ],
)
def test_headers_that_lead_nowhere_are_refused(path: tuple[Header, ...], at: int) -> None:
    with pytest.raises((HeaderUnproven, CertificateInvalid)):
        client(5).verify_headers(path, CHAIN.certificates[at], NOW_MS)


@pytest.mark.parametrize(
    "header",
    [
        CHAIN.headers[22]._replace(genesis_hash=b"x" * 32),  # the same validators on another chain
        CHAIN.headers[22]._replace(height=18),
        CHAIN.headers[22]._replace(height=25),
        CHAIN.headers[22]._replace(height=0),
    ],
)
def test_a_signed_header_that_is_out_of_place_is_refused(header: Header) -> None:
    certificate = certify(header, CHAIN.committee(5), first_key=5, genesis=header.genesis_hash)
    with pytest.raises(HeaderUnproven):
        client(5).verify_headers([header], certificate, NOW_MS)


def test_a_header_ahead_of_the_clock_is_refused() -> None:
    light = client(5)
    with pytest.raises(HeaderAhead):
        light.verify_headers([CHAIN.headers[23]], CHAIN.certificates[23], CHAIN.headers[23].time_ms - 2_001)


# What headers prove


def test_an_account_that_is_there_and_one_that_is_not() -> None:
    for height in (1, 9, 22):
        following = CHAIN.headers[height + 1]
        proof = CHAIN.prove(height, account_key(SENDER.address))
        found = verify_account(following, SENDER.address, CHAIN.account(height), proof)
        assert found == Account(height, 1_000 + height)
        nobody = key(200).address
        assert verify_account(following, nobody, None, CHAIN.prove(height, account_key(nobody))) == Account(0, 0)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_changed_account_or_proof_is_refused(data: st.DataObject) -> None:
    who = SENDER.address
    following, record, proof = CHAIN.headers[10], CHAIN.account(9), CHAIN.prove(9, account_key(who))
    match data.draw(st.sampled_from(("record", "proof", "address", "absent", "height", "other proof"))):
        case "record":
            arguments: Any = (following, who, changed(record, data.draw), proof)
        case "proof":
            arguments = (following, who, record, changed(proof, data.draw))
        case "address":
            arguments = (following, changed(who, data.draw), record, proof)
        case "absent":
            arguments = (following, who, None, proof)
        case "height":
            arguments = (CHAIN.headers[11], who, record, proof)
        case _:
            arguments = (following, who, record, CHAIN.prove(9, account_key(key(3).address)))
    with pytest.raises(ProofInvalid):
        verify_account(*arguments)


def test_a_record_that_is_not_an_account_s_is_refused() -> None:
    with pytest.raises(ProofInvalid):
        verify_state(CHAIN.headers[10], b"\x55", b"", b"")


def test_a_transaction_and_its_receipt() -> None:
    placed = CHAIN.placed(7, 2)
    assert verify_transaction(CHAIN.headers[7], placed.raw, placed.proof) == CHAIN.hash_of(7, 2)
    receipt = verify_receipt(CHAIN.headers[7], CHAIN.headers[8], placed.receipt, placed.receipt_proof)
    assert receipt.gas_used == 21_002


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_transaction_receipt_or_proof_is_refused(data: st.DataObject) -> None:
    header, following, placed = CHAIN.headers[7], CHAIN.headers[8], CHAIN.placed(7, 1)
    is_receipt = data.draw(st.booleans())
    leaf, proof = (placed.receipt, placed.receipt_proof) if is_receipt else (placed.raw, placed.proof)
    match data.draw(st.sampled_from(("leaf", "position", "leaves", "sibling", "fewer", "more", "headers"))):
        case "leaf":
            leaf = changed(leaf, data.draw)
        case "position":
            proof = proof._replace(position=changed(proof.position, data.draw))
        case "leaves":
            proof = proof._replace(leaves=changed(proof.leaves, data.draw))
        case "sibling":
            at = data.draw(st.integers(0, len(proof.siblings) - 1))
            siblings = list(proof.siblings)
            siblings[at] = changed(siblings[at], data.draw)
            proof = proof._replace(siblings=tuple(siblings))
        case "fewer":
            proof = proof._replace(siblings=proof.siblings[1:])
        case "more":
            proof = proof._replace(siblings=(*proof.siblings, bytes(32)))
        case _:
            header, following = CHAIN.headers[6], CHAIN.headers[data.draw(st.sampled_from((7, 8)))]
    with pytest.raises(ProofInvalid):
        if is_receipt:
            verify_receipt(header, following, leaf, proof)
        else:
            verify_transaction(header, leaf, proof)


def test_the_receipt_of_a_block_s_own_events_is_no_transaction_s() -> None:
    leaves = CHAIN.receipts[7]
    assert len(leaves) == CHAIN.headers[7].tx_count + 1
    with pytest.raises(ProofInvalid):
        verify_receipt(CHAIN.headers[7], CHAIN.headers[8], leaves[3], merkle_proof(leaves, 3))


def test_the_root_over_receipts_is_that_of_the_very_next_header() -> None:
    placed, stranger = CHAIN.placed(7, 1), CHAIN.headers[8]._replace(parent_hash=b"x" * 32)
    with pytest.raises(ProofInvalid):
        verify_receipt(CHAIN.headers[7], stranger, placed.receipt, placed.receipt_proof)


def test_what_is_proven_and_of_another_form_is_nobody_s_lie() -> None:
    who, leaves = SENDER.address, [b"receipt of later days"]
    trie = Trie()
    trie = trie.after(trie.update({account_key(who): b"x" * 25}))
    following = CHAIN.headers[6]._replace(
        state_root=trie.root, receipt_root=merkle_root(leaves), parent_hash=CHAIN.hashes[5]
    )
    with pytest.raises(Unreadable):
        verify_account(following, who, b"x" * 25, prove(trie, account_key(who)))
    with pytest.raises(Unreadable):
        verify_receipt(CHAIN.headers[5], following, leaves[0], merkle_proof(leaves, 0))


def test_merkle_proofs_have_one_spelling() -> None:
    proof = CHAIN.placed(7, 1).proof
    assert decode_merkle_proof(encode_merkle_proof(proof)) == proof
    for wrong in (
        proof._replace(position=3),
        proof._replace(position=-1),
        proof._replace(siblings=(b"short",)),
        proof._replace(siblings=(bytes(32),) * 34),
    ):
        with pytest.raises(DecodeError):
            decode_merkle_proof(encode_merkle_proof(wrong))
