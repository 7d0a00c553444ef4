"""Keys, wraps, chunks in custody, shares of a key: honest use works, and each falsified part is found."""

from __future__ import annotations

from random import Random

import pytest
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.codec import encode
from state.primitives.merkle import merkle_root
from tasks.custody.chunks import (
    CHUNK_BYTES,
    BlobCommitment,
    CipherBlob,
    Custody,
    crypt_chunk,
    is_garbage,
    read_chunk,
)
from tasks.custody.errors import ChunkInvalid, KeyInvalid, SharesInvalid, WrapInvalid
from tasks.custody.keys import (
    KeyCommitments,
    KeyName,
    check_key,
    derive_key,
    input_key_name,
    names_hash,
    window_key_name,
)
from tasks.custody.shares import PRIME, join_shares, share_hash, split_key, split_randomness_bytes
from tasks.custody.wraps import public_key_of, unwrap_keys, unwrap_task_key, wrap_keys, wrap_task_key

TASK, OTHER = b"t" * 32, b"o" * 32
WORKER, VERIFIER = b"w" * 20, b"v" * 20
KEY = bytes(range(32))
SECRET = b"\x07" * 32


# Keys


def test_a_key_is_checked_against_the_task_before_a_byte_is_fetched() -> None:
    commitments = KeyCommitments(KEY, 2, 5)
    for name in (input_key_name(0), input_key_name(1), window_key_name(0), window_key_name(4)):
        key, proof = derive_key(KEY, name), commitments.proof(name)
        check_key(commitments.root, 2, 5, name, key, proof)
        with pytest.raises(KeyInvalid):
            check_key(commitments.root, 2, 5, name, key[:-1] + b"\x00", proof)
        with pytest.raises(KeyInvalid):
            check_key(commitments.root, 2, 5, name, derive_key(b"k" * 32, name), proof)


def test_a_key_of_one_name_is_no_key_of_another() -> None:
    commitments = KeyCommitments(KEY, 2, 5)
    name, other = window_key_name(1), window_key_name(2)
    with pytest.raises(KeyInvalid):
        check_key(commitments.root, 2, 5, other, derive_key(KEY, name), commitments.proof(name))
    with pytest.raises(KeyInvalid):
        check_key(commitments.root, 2, 5, KeyName(3, 0), derive_key(KEY, name), commitments.proof(name))
    with pytest.raises(KeyInvalid):
        commitments.proof(window_key_name(5))
    assert len({derive_key(KEY, KeyName(kind, at)) for kind in (1, 2) for at in range(5)}) == 10


# Wraps


def test_a_wrap_opens_for_its_task_holder_and_purpose_alone() -> None:
    public = public_key_of(SECRET)
    wrap = wrap_task_key(KEY, public, task=TASK, worker=WORKER)
    assert len(wrap) == 80
    assert unwrap_task_key(wrap, SECRET, task=TASK, worker=WORKER) == KEY
    names = [window_key_name(3), input_key_name(0)]
    keys = {name: derive_key(KEY, name) for name in names}
    seat = wrap_keys(keys, public, task=TASK, holder=VERIFIER)
    assert unwrap_keys(seat, SECRET, names, task=TASK, holder=VERIFIER) == keys
    for attempt in (
        lambda: unwrap_task_key(wrap, SECRET, task=OTHER, worker=WORKER),
        lambda: unwrap_task_key(wrap, SECRET, task=TASK, worker=VERIFIER),
        lambda: unwrap_task_key(wrap, b"\x08" * 32, task=TASK, worker=WORKER),
        lambda: unwrap_task_key(wrap[:-1] + b"\x00", SECRET, task=TASK, worker=WORKER),
        lambda: unwrap_task_key(wrap[:20], SECRET, task=TASK, worker=WORKER),
        lambda: unwrap_task_key(seat, SECRET, task=TASK, worker=VERIFIER),
        lambda: unwrap_keys(seat, SECRET, names[:1], task=TASK, holder=VERIFIER),
        lambda: wrap_task_key(KEY, bytes(32), task=TASK, worker=WORKER),
        lambda: wrap_task_key(KEY, public[:-1], task=TASK, worker=WORKER),
    ):
        with pytest.raises(WrapInvalid):
            attempt()


LOW_ORDER = (
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
)
"""Points of small order on Curve25519 (RFC 7748, 6.1): with one of them two sides share no secret."""


@pytest.mark.parametrize("point", [*LOW_ORDER, *(bytes([*p[:-1], p[-1] | 0x80]) for p in LOW_ORDER)])
def test_nothing_is_wrapped_to_or_opened_from_a_point_of_small_order(point: bytes) -> None:
    """A worker whose one-time key is such a point would have the task's key encrypted under what all know."""
    with pytest.raises(WrapInvalid):
        wrap_task_key(KEY, point, task=TASK, worker=WORKER)
    wrap = wrap_task_key(KEY, public_key_of(SECRET), task=TASK, worker=WORKER)
    with pytest.raises(WrapInvalid):
        unwrap_task_key(point + wrap[32:], SECRET, task=TASK, worker=WORKER)


def test_the_other_encodings_of_a_one_time_key_open_nothing() -> None:
    public = public_key_of(SECRET)
    wrap = wrap_task_key(KEY, bytes([*public[:-1], public[-1] | 0x80]), task=TASK, worker=WORKER)
    with pytest.raises(WrapInvalid):
        unwrap_task_key(wrap, SECRET, task=TASK, worker=WORKER)


@pytest.mark.parametrize("order", [(1, 0), (0, 0, 1), (0, 1, 1), (0,), (0, 1, 2)])
def test_a_wrap_carries_each_key_once_and_in_order(order: tuple[int, ...]) -> None:
    """Of two keys with one name a reader would take either: the one it checks and another one that it uses."""
    names = [window_key_name(0), window_key_name(1)]
    content = encode([[*window_key_name(at), bytes([at]) * 32] for at in order])
    info = encode(["dekube wrap", b"keys", TASK, VERIFIER, names_hash(names)])
    suite = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
    wrap = suite.encrypt(content, X25519PublicKey.from_public_bytes(public_key_of(SECRET)), info)
    with pytest.raises(WrapInvalid):
        unwrap_keys(wrap, SECRET, names, task=TASK, holder=VERIFIER)


# Chunks


def _blob(random: Random, size: int) -> tuple[bytes, CipherBlob]:
    content = random.randbytes(size)
    return content, CipherBlob(KEY, content)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3 * CHUNK_BYTES + 5), st.randoms(use_true_random=False))
def test_what_lies_in_custody_comes_back(size: int, random: Random) -> None:
    content, blob = _blob(random, size)
    custody = Custody(blob.commitment, blob.chunks, blob.plain_hashes)
    got = [read_chunk(blob.commitment, KEY, custody.proof(at)) for at in range(blob.commitment.chunks)]
    assert b"".join(chunk or b"" for chunk in got) == content
    assert not any(is_garbage(blob.commitment, KEY, custody.proof(at)) for at in range(len(got)))


def test_a_worker_that_puts_garbage_into_custody_is_proved_to() -> None:
    """MARKET N3: random bytes under honest roots of the plain content, one chunk or all of them."""
    random = Random(1)
    content, blob = _blob(random, 2 * CHUNK_BYTES + 7)
    chunks = list(blob.chunks)
    chunks[1] = random.randbytes(CHUNK_BYTES)
    lied = blob.commitment._replace(cipher_root=merkle_root(chunks))
    custody = Custody(lied, chunks, blob.plain_hashes)  # a custodian cannot tell
    assert [is_garbage(lied, KEY, custody.proof(at)) for at in range(3)] == [False, True, False]
    assert read_chunk(lied, KEY, custody.proof(1)) is None
    assert read_chunk(lied, KEY, custody.proof(2)) == content[2 * CHUNK_BYTES :]


def test_nobody_proves_garbage_of_an_honest_blob() -> None:
    random = Random(2)
    _, blob = _blob(random, 3 * CHUNK_BYTES)
    custody = Custody(blob.commitment, blob.chunks, blob.plain_hashes)
    proof = custody.proof(1)
    for false in (
        proof._replace(cipher=random.randbytes(CHUNK_BYTES)),
        proof._replace(plain_hash=random.randbytes(32)),
        proof._replace(number=2),
        proof._replace(number=3),
        proof._replace(cipher=proof.cipher[:-1]),
        proof._replace(plain_siblings=()),
        custody.proof(0)._replace(number=1),
    ):
        with pytest.raises(ChunkInvalid):
            is_garbage(blob.commitment, KEY, false)


def test_a_custodian_signs_for_nothing_but_both_roots() -> None:
    _, blob = _blob(Random(3), CHUNK_BYTES + 1)
    for chunks, hashes in (
        (blob.chunks[:1], blob.plain_hashes),
        (blob.chunks[::-1], blob.plain_hashes),
        (blob.chunks, blob.plain_hashes[::-1]),
        (blob.chunks, [*blob.plain_hashes[:1], b"x" * 31]),
    ):
        with pytest.raises(ChunkInvalid):
            Custody(blob.commitment, chunks, hashes)
    with pytest.raises(ChunkInvalid):
        Custody(BlobCommitment(0, bytes(32), bytes(32)), [], [])


def test_no_two_chunks_share_a_stream() -> None:
    streams = {
        crypt_chunk(key, root, at, bytes(64))
        for key in (KEY, b"k" * 32) for root in (TASK, OTHER) for at in range(50)
    }  # fmt: skip
    assert len(streams) == 200


def test_two_proofs_of_one_window_share_no_stream() -> None:
    """A lazy worker commits to zeros, which were the stream of the window's key: the next proof was no secret."""
    random = Random(5)
    secret = random.randbytes(CHUNK_BYTES)
    lazy, honest = CipherBlob(KEY, bytes(CHUNK_BYTES)), CipherBlob(KEY, secret)
    seen = bytes(a ^ b for a, b in zip(lazy.chunks[0], honest.chunks[0], strict=True))
    assert sum(a == b for a, b in zip(seen, secret, strict=True)) < CHUNK_BYTES // 64
    assert CipherBlob(KEY, secret).chunks == honest.chunks, "of the same bytes all make the same chunks"


@given(st.integers(0, CHUNK_BYTES // 64 - 1), st.integers(1, CHUNK_BYTES), st.integers(0, 9))
def test_a_part_of_a_chunk_decrypts_alone(block: int, size: int, index: int) -> None:
    """A claim shows 4 KiB of a blob at a time, and a chunk in custody has 16."""
    plain = Random(index).randbytes(CHUNK_BYTES)
    whole = crypt_chunk(KEY, TASK, index, plain)
    start = 64 * block
    part = whole[start : start + size]
    assert crypt_chunk(KEY, TASK, index, part, start) == plain[start : start + size]


@pytest.mark.parametrize("offset", [-64, 1, 63, CHUNK_BYTES])
def test_a_part_begins_with_a_block_and_lies_in_its_chunk(offset: int) -> None:
    with pytest.raises(ChunkInvalid):
        crypt_chunk(KEY, TASK, 0, bytes(64), offset)


# Shares


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 16), st.data())
def test_any_threshold_of_shares_makes_the_key_and_false_ones_are_known(holders: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, holders))
    random = Random(holders * 100 + threshold)
    key = data.draw(st.sampled_from([bytes(32), b"\xff" * 32, KEY]))
    shares = split_key(key, threshold, holders, random.randbytes(split_randomness_bytes(threshold, holders)))
    commitments = [share_hash(TASK, share) for share in shares]
    chosen = random.sample(shares, threshold)
    assert join_shares(TASK, commitments, threshold, {share.holder: share for share in chosen}) == key
    with pytest.raises(SharesInvalid):
        join_shares(TASK, commitments, threshold, {share.holder: share for share in chosen[1:]})
    false = chosen[0]._replace(value=bytes(33)) if any(chosen[0].value) else chosen[0]._replace(salt=b"x" * 16)
    with pytest.raises(SharesInvalid):
        join_shares(TASK, commitments, threshold, {share.holder: share for share in (false, *chosen[1:])})
    with pytest.raises(SharesInvalid):
        join_shares(OTHER, commitments, threshold, {share.holder: share for share in chosen})


def test_no_share_makes_no_key() -> None:
    for threshold in (0, -1):
        with pytest.raises(SharesInvalid):
            join_shares(TASK, [], threshold, {})


def test_the_modulus_of_shares_is_a_prime_and_the_least_above_all_keys() -> None:
    """Each base shows a composite number with a chance of 3/4 (Miller and Rabin)."""

    def is_prime(number: int) -> bool:
        odd, twos = number - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        return all(
            (power := pow(base, odd, number)) in (1, number - 1)
            or any((power := power * power % number) == number - 1 for _ in range(twos - 1))
            for base in range(2, 42)
        )

    assert [number for number in range(2**256 + 1, PRIME + 1, 2) if is_prime(number)] == [PRIME]


def test_what_stands_on_chain_may_not_change() -> None:
    """Values of market.md 11: another node has to derive the same."""
    assert (
        derive_key(KEY, window_key_name(3)).hex()
        == "8fe9d8c7dd11d8acb31388eb2f43f29dfd43c625f082d90d73f81ea32d59d6a7"
    )
    assert (
        KeyCommitments(KEY, 1, 2).root.hex() == "b30970d345d8850c5e6ad32c5ab54679ee74b55c08dcc5e71f3a4094fb0e06cf"
    )
    assert crypt_chunk(KEY, TASK, 1, bytes(16)).hex() == "d6c2b08d5d7951c38ac316361b061edb"
    assert (
        share_hash(TASK, split_key(KEY, 1, 1, bytes(16))[0]).hex()
        == "063030cd1ad950af5b1b998d9017b646e3710e7102bebf55d8ce514811bebf97"
    )
