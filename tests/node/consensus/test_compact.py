"""Compact forms: what comes out of one is what the leader hashed, or nothing."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consensus.inbound import decode_inbound
from consensus.wire import GetBlock, Votes, encode_message
from node.consensus.compact import (
    GIVEN_BYTES_MAX,
    CompactProposal,
    HaveProposal,
    ProposalRequest,
    Rebuild,
    TransactionsReply,
    TransactionsRequest,
    bits_of,
    decode_bulk,
    decode_compact_control,
    encode_bulk,
    encode_compact_control,
    make_compact_proposal,
    match_ids,
    message_hash,
    numbers_of,
    short_ids,
)
from state.primitives.errors import DecodeError
from state.primitives.hashing import keccak
from tests.node.compact_world import SomePool, form_of, proposal_of, transactions

RAWS = transactions(400)
bodies = st.integers(60, 160).map(lambda count: transactions(count, count))


def rebuilt(compact: CompactProposal, pool: SomePool) -> Rebuild:
    rebuild = Rebuild(compact)
    rebuild.fill(pool.hashes(), pool.raw_of)
    return rebuild


@settings(max_examples=40, deadline=None)
@given(bodies, st.data())
def test_a_rebuild_gives_the_leaders_very_bytes_whatever_the_pool_holds(
    raws: tuple[bytes, ...], data: st.DataObject
) -> None:
    numbers = st.sets(st.integers(0, len(raws) - 1))
    young = [raws[n] for n in data.draw(numbers)][: len(raws) // 4]
    lacking = data.draw(numbers)
    evidence = data.draw(st.lists(st.binary(max_size=40), max_size=3))
    whole = proposal_of(raws, evidence)
    leader = SomePool(raws, young)
    made = make_compact_proposal(whole, leader.hash_of, leader.young())
    assert made is not None
    compact, body = made
    assert body == raws
    assert decode_bulk(encode_bulk(compact)) == compact
    there = [raw for n, raw in enumerate(raws) if n not in lacking]
    rebuild = rebuilt(compact, SomePool([*transactions(50, 10**6), *reversed(there)]))
    given_numbers = {number for number, _ in compact.given}
    assert rebuild.missing == sorted(lacking - given_numbers)
    if rebuild.missing:
        asked = decode_compact_control(
            encode_compact_control(TransactionsRequest(compact.root, bits_of(rebuild.missing)))
        )
        assert isinstance(asked, TransactionsRequest)
        answer = TransactionsReply(compact.root, tuple(body[n] for n in numbers_of(asked.bits)))
        assert decode_bulk(encode_bulk(answer)) == answer
        assert not rebuild.supply(answer.raws[1:])
        assert rebuild.supply(answer.raws)
    assert rebuild.message() == whole
    assert decode_inbound(whole).blocks[0][1].transactions == raws


def test_a_form_is_eight_bytes_a_transaction_and_what_is_young_up_to_a_bound() -> None:
    compact, data = form_of(RAWS)
    assert len(encode_bulk(compact)) < 8 * len(RAWS) + 2_000 < len(data) / 10
    many = transactions(2_000)
    compact, _ = form_of(many, many)
    assert GIVEN_BYTES_MAX - 150 < sum(len(raw) for _, raw in compact.given) <= GIVEN_BYTES_MAX


def test_a_proposal_that_the_form_would_not_shorten_has_none() -> None:
    assert make_compact_proposal(proposal_of(()), SomePool().hash_of) is None
    assert make_compact_proposal(proposal_of(RAWS), SomePool().hash_of) is None, "nobody would know these"
    assert make_compact_proposal(proposal_of(RAWS), SomePool(RAWS[:100]).hash_of) is None


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, encode_message(GetBlock(bytes(32)))])
def test_only_a_proposal_has_a_form(data: bytes) -> None:
    with pytest.raises(DecodeError):
        make_compact_proposal(data, SomePool().hash_of)


def test_transactions_that_share_an_id_are_asked_for() -> None:
    """Who knew the key before could make such a pair; only the leader does."""
    compact, whole = form_of(RAWS)
    key = [int.from_bytes(compact.root[at : at + 8], "little") | 1 for at in (0, 8)]
    words = [int.from_bytes(keccak(RAWS[7])[at : at + 8], "little") for at in (0, 8)]
    other = [(words[0] + key[1]) % 2**64, (words[1] - key[0]) % 2**64]
    twin = b"".join(control.to_bytes(8, "little") for control in other) + keccak(RAWS[7])[16:]
    assert len(set(short_ids([keccak(RAWS[7]), twin], compact.root).tolist())) == 1
    for extra in (twin, keccak(RAWS[7])):  # beside it, and in its place
        pool = SomePool(RAWS)
        del pool.known[keccak(RAWS[7])]
        pool.known |= {keccak(RAWS[7]): RAWS[7], twin: b"another"} if extra is twin else {twin: b"x" * 150}
        rebuild = rebuilt(compact, pool)
        if extra is twin:
            assert rebuild.missing == [7]
            assert rebuild.supply([RAWS[7]])
            assert rebuild.message() == whole
        else:
            assert not rebuild.missing
            assert rebuild.message() is None, "the wrong one was picked, and it is noticed"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 30), max_size=40),
    st.lists(st.integers(0, 40), max_size=40),
    st.binary(min_size=32, max_size=32),
)
def test_an_id_means_the_one_transaction_that_has_it(known: list[int], wanted: list[int], key: bytes) -> None:
    hashes = [keccak(n.to_bytes(2, "big")) for n in known]
    ids = short_ids([keccak(n.to_bytes(2, "big")) for n in wanted], key).astype("<u8").tobytes()
    expected = [known.index(n) if known.count(n) == 1 else -1 for n in wanted]
    assert match_ids(ids, hashes, key) == expected


@given(st.sets(st.integers(0, 5_000)))
def test_bits_and_numbers_are_inverse(numbers: set[int]) -> None:
    assert numbers_of(bits_of(sorted(numbers))) == sorted(numbers)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_a_leader_makes_up_nothing_but_its_hashed_bytes_comes_out(seed: int) -> None:
    """Counts, orders, ids, places, sizes and roots of a hostile form."""
    random = Random(seed)
    compact, whole = form_of(RAWS[:80], RAWS[:5])
    pool = SomePool(RAWS)
    ids = [compact.ids[at : at + 8] for at in range(0, len(compact.ids), 8)]
    given_ = list(compact.given)
    for _ in range(random.randrange(1, 4)):
        match random.randrange(9):
            case 0:
                random.shuffle(ids)
            case 1:
                ids[random.randrange(len(ids))] = random.choice(ids)
            case 2:
                ids.append(random.randbytes(8))
            case 3:
                given_.append((random.randrange(90), random.choice(RAWS)))
            case 4:
                random.shuffle(given_)
            case 5:
                compact = compact._replace(header=compact.header._replace(tx_count=random.randrange(200)))
            case 6:
                compact = compact._replace(header=compact.header._replace(tx_bytes=random.randrange(20_000)))
            case 7:
                compact = compact._replace(size_bytes=random.choice([0, 5_000, 10**9, 10**6]))
            case _:
                compact = compact._replace(evidence=(b"made up",))
    compact = compact._replace(ids=b"".join(ids), given=tuple(given_))
    with suppress(DecodeError):
        decoded = decode_bulk(encode_bulk(compact))
        assert isinstance(decoded, CompactProposal)
        rebuild = rebuilt(decoded, pool)
        rebuild.supply([random.choice(RAWS) for _ in rebuild.missing])
        assert rebuild.missing == []
        assert rebuild.message() in (None, whole)


def test_ids_that_repeat_do_not_make_a_huge_body() -> None:
    """Few bytes name a large transaction many times: it is refused before anything is put together."""
    large = bytes(60_000)
    compact, _ = form_of([*RAWS, large])
    count = 30_000
    ids = short_ids([keccak(large)], compact.root).astype("<u8").tobytes() * count
    header = compact.header._replace(tx_count=count)
    hostile = CompactProposal(compact.root, 9 * 1024 * 1024, compact.proposal, header, (), ids, ())
    decoded = decode_bulk(encode_bulk(hostile))
    assert isinstance(decoded, CompactProposal)
    rebuild = rebuilt(decoded, SomePool([large]))
    assert not rebuild.missing
    assert rebuild.message() is None


@pytest.mark.parametrize(
    "control", [HaveProposal(bytes(32)), ProposalRequest(b"r" * 32), TransactionsRequest(b"r" * 32, b"\0\1")]
)
def test_words_come_back(control: HaveProposal | TransactionsRequest | ProposalRequest) -> None:
    assert decode_compact_control(encode_compact_control(control)) == control


@pytest.mark.parametrize(
    "control",
    [
        HaveProposal(bytes(31)),
        TransactionsRequest(bytes(32), b""),
        TransactionsRequest(bytes(32), b"\1\0"),
        TransactionsRequest(bytes(32), b"\1" * 20_000),
    ],
)
def test_words_of_other_shapes_are_refused(control: HaveProposal | TransactionsRequest) -> None:
    with pytest.raises(DecodeError):
        decode_compact_control(encode_compact_control(control))


def test_a_form_holds_nothing_but_the_head_of_a_proposal() -> None:
    compact, whole = form_of(RAWS)
    bulk = encode_bulk(compact)
    head = encode_message(compact.proposal)
    for other in (encode_message(Votes(())), encode_message(compact.proposal._replace(block=b"x"))):
        assert len(other) != len(head)
        with pytest.raises(DecodeError):
            decode_bulk(bulk.replace(head, other))
    assert message_hash(whole) == compact.root
