"""What is served at once, and in one answer: bounded whatever is asked, and a proof of itself."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consensus.block_serving import SERVES_MAX, SERVES_OF_ONE_MAX, SERVES_OF_STRANGERS_MAX, ServingSlots, window
from consensus.votes import Certificate
from consensus.wire import WINDOW_BYTES_MAX, encode_certificate
from state.primitives.votes import FINALIZE

SEATED = frozenset(b"ab")


@given(st.lists(st.tuples(st.integers(0, 255), st.booleans()), max_size=80))
def test_turns_are_bounded_and_a_seat_always_finds_one(asked: list[tuple[int, bool]]) -> None:
    turns, held = ServingSlots(lambda asker: asker[0] in SEATED), Counter[bytes]()
    for number, gives_back in asked:
        asker = bytes([ord("a") + number % 12])
        if gives_back and held[asker]:
            turns.give_back(asker)
            held[asker] -= 1
        elif turns.take(asker):
            held[asker] += 1
        strangers = sum(count for known, count in held.items() if known[0] not in SEATED)
        assert held.total() <= SERVES_MAX and max(held.values(), default=0) <= SERVES_OF_ONE_MAX
        assert strangers <= SERVES_OF_STRANGERS_MAX
    if not held[b"a"] and held[b"b"] < SERVES_OF_ONE_MAX:
        assert turns.take(b"a"), "whoever else asks, a seat finds its turn"


def block(height: int, size: int, epoch: int, has_certificate: bool) -> tuple[bytes, bytes, bytes | None]:
    block_hash = height.to_bytes(32, "big")
    proof = Certificate(FINALIZE, epoch, height + 1, height, block_hash, b"\x07", bytes(192))
    return block_hash, bytes(size), encode_certificate(proof) if has_certificate else None


SIZES = st.sampled_from((1, WINDOW_BYTES_MAX // 3, WINDOW_BYTES_MAX, 2 * WINDOW_BYTES_MAX + 1))


@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=8), st.integers(1, 8))
def test_a_window_ends_with_its_proof_in_one_epoch_within_the_limit(
    kinds: list[tuple[int, bool]], boundary: int
) -> None:
    blocks = [
        block(height, size, int(height > boundary), is_certified or height == boundary)
        for height, (size, is_certified) in enumerate(kinds, 1)
    ]
    reply = window(1, blocks)
    if reply is None:
        assert not blocks or blocks[0][2] is None, "whoever has a certificate first is served"
        return
    count = len(reply.blocks)
    assert reply.certificate.block_hash == blocks[count - 1][0], "the last block is the proven one"
    assert [raw for _, raw, _ in blocks[:count]] == list(reply.blocks)
    assert count == 1 or sum(map(len, reply.blocks)) <= 2 * WINDOW_BYTES_MAX
    assert count <= boundary, "not everybody knows the next committee"
