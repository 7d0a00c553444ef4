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
    Form,
    Have,
    Rebuild,
    Some,
    WantSome,
    WantWhole,
    bits_of,
    decode_bulk,
    decode_word,
    encode_bulk,
    encode_word,
    make_form,
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


def rebuilt(form: Form, pool: SomePool) -> Rebuild:
    rebuild = Rebuild(form)
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
    made = make_form(whole, leader.hash_of, leader.young())
    assert made is not None
    form, body = made
    assert body == raws
    assert decode_bulk(encode_bulk(form)) == form
    there = [raw for n, raw in enumerate(raws) if n not in lacking]
    rebuild = rebuilt(form, SomePool([*transactions(50, 10**6), *reversed(there)]))
    given_numbers = {number for number, _ in form.given}
    assert rebuild.missing == sorted(lacking - given_numbers)
    if rebuild.missing:
        asked = decode_word(encode_word(WantSome(form.root, bits_of(rebuild.missing))))
        assert isinstance(asked, WantSome)
        answer = Some(form.root, tuple(body[n] for n in numbers_of(asked.bits)))
        assert decode_bulk(encode_bulk(answer)) == answer
        assert not rebuild.supply(answer.raws[1:])
        assert rebuild.supply(answer.raws)
    assert rebuild.message() == whole
    assert decode_inbound(whole).blocks[0][1].transactions == raws


def test_a_form_is_eight_bytes_a_transaction_and_what_is_young_up_to_a_bound() -> None:
    form, data = form_of(RAWS)
    assert len(encode_bulk(form)) < 8 * len(RAWS) + 2_000 < len(data) / 10
    many = transactions(2_000)
    form, _ = form_of(many, many)
    assert GIVEN_BYTES_MAX - 150 < sum(len(raw) for _, raw in form.given) <= GIVEN_BYTES_MAX


def test_a_proposal_that_the_form_would_not_shorten_has_none() -> None:
    assert make_form(proposal_of(()), SomePool().hash_of) is None
    assert make_form(proposal_of(RAWS), SomePool().hash_of) is None, "nobody would know these"
    assert make_form(proposal_of(RAWS), SomePool(RAWS[:100]).hash_of) is None


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, encode_message(GetBlock(bytes(32)))])
def test_only_a_proposal_has_a_form(data: bytes) -> None:
    with pytest.raises(DecodeError):
        make_form(data, SomePool().hash_of)


def test_transactions_that_share_an_id_are_asked_for() -> None:
    """Who knew the key before could make such a pair; only the leader does."""
    form, whole = form_of(RAWS)
    key = [int.from_bytes(form.root[at : at + 8], "little") | 1 for at in (0, 8)]
    words = [int.from_bytes(keccak(RAWS[7])[at : at + 8], "little") for at in (0, 8)]
    other = [(words[0] + key[1]) % 2**64, (words[1] - key[0]) % 2**64]
    twin = b"".join(word.to_bytes(8, "little") for word in other) + keccak(RAWS[7])[16:]
    assert len(set(short_ids([keccak(RAWS[7]), twin], form.root).tolist())) == 1
    for extra in (twin, keccak(RAWS[7])):  # beside it, and in its place
        pool = SomePool(RAWS)
        del pool.known[keccak(RAWS[7])]
        pool.known |= {keccak(RAWS[7]): RAWS[7], twin: b"another"} if extra is twin else {twin: b"x" * 150}
        rebuild = rebuilt(form, pool)
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
    form, whole = form_of(RAWS[:80], RAWS[:5])
    pool = SomePool(RAWS)
    ids = [form.ids[at : at + 8] for at in range(0, len(form.ids), 8)]
    given_ = list(form.given)
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
                form = form._replace(header=form.header._replace(tx_count=random.randrange(200)))
            case 6:
                form = form._replace(header=form.header._replace(tx_bytes=random.randrange(20_000)))
            case 7:
                form = form._replace(size_bytes=random.choice([0, 5_000, 10**9, 10**6]))
            case _:
                form = form._replace(evidence=(b"made up",))
    form = form._replace(ids=b"".join(ids), given=tuple(given_))
    with suppress(DecodeError):
        decoded = decode_bulk(encode_bulk(form))
        assert isinstance(decoded, Form)
        rebuild = rebuilt(decoded, pool)
        rebuild.supply([random.choice(RAWS) for _ in rebuild.missing])
        assert rebuild.missing == []
        assert rebuild.message() in (None, whole)


def test_ids_that_repeat_do_not_make_a_huge_body() -> None:
    """Few bytes name a large transaction many times: it is refused before anything is put together."""
    large = bytes(60_000)
    form, _ = form_of([*RAWS, large])
    count = 30_000
    ids = short_ids([keccak(large)], form.root).astype("<u8").tobytes() * count
    header = form.header._replace(tx_count=count)
    hostile = Form(form.root, 9 * 1024 * 1024, form.proposal, header, (), ids, ())
    decoded = decode_bulk(encode_bulk(hostile))
    assert isinstance(decoded, Form)
    rebuild = rebuilt(decoded, SomePool([large]))
    assert not rebuild.missing
    assert rebuild.message() is None


@pytest.mark.parametrize("word", [Have(bytes(32)), WantWhole(b"r" * 32), WantSome(b"r" * 32, b"\0\1")])
def test_words_come_back(word: Have | WantSome | WantWhole) -> None:
    assert decode_word(encode_word(word)) == word


@pytest.mark.parametrize(
    "word",
    [
        Have(bytes(31)),
        WantSome(bytes(32), b""),
        WantSome(bytes(32), b"\1\0"),
        WantSome(bytes(32), b"\1" * 20_000),
    ],
)
def test_words_of_other_shapes_are_refused(word: Have | WantSome) -> None:
    with pytest.raises(DecodeError):
        decode_word(encode_word(word))


def test_a_form_holds_nothing_but_the_head_of_a_proposal() -> None:
    form, whole = form_of(RAWS)
    bulk = encode_bulk(form)
    head = encode_message(form.proposal)
    for other in (encode_message(Votes(())), encode_message(form.proposal._replace(block=b"x"))):
        assert len(other) != len(head)
        with pytest.raises(DecodeError):
            decode_bulk(bulk.replace(head, other))
    assert message_hash(whole) == form.root
