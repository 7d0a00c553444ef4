from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.errors import PieceForged
from p2p.multicast import erasure
from p2p.multicast.pieces import (
    MESSAGE_BYTES_MAX,
    PIECE_BYTES_MAX,
    PIECE_BYTES_MIN,
    PIECE_FRAME_BYTES_MAX,
    SEAL_BYTES,
    Assembly,
    Piece,
    PieceLayout,
    PieceSet,
    decode_piece,
    encode_piece,
    make_parity_pieces,
    open_message,
    seal_message,
    split_message,
)
from state.primitives.errors import DecodeError

KEY = bytes(range(32))


def pieces_of(cut: PieceSet, root: bytes, begin: int = 0) -> dict[int, Piece]:
    return {
        begin + at: Piece(root, begin + at, proof.siblings, data)
        for at, (data, proof) in enumerate(zip(cut.pieces, cut.proofs, strict=True))
    }


def message(size: int, receivers: int, spare: int) -> tuple[bytes, Assembly, dict[int, Piece]]:
    """Return a message, an empty assembly for it, and all its pieces, parity among them."""
    body = Random(size).randbytes(size)
    sealed = seal_message(KEY, 2, body)
    layout = PieceLayout.fit(len(sealed), receivers)
    cut = split_message(sealed, layout)
    parity = make_parity_pieces(cut.pieces, layout, spare) if spare else None
    pieces = pieces_of(cut, cut.root)
    if parity is not None:
        pieces |= pieces_of(parity, cut.root, layout.count)
    return body, Assembly(cut.root, layout, b"" if parity is None else parity.root, spare), pieces


@given(st.integers(1, 200_000), st.integers(1, 20), st.integers(0, 12), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_any_of_the_pieces_rebuild_the_message(size: int, receivers: int, spare: int, random: Random) -> None:
    body, assembly, pieces = message(size, receivers, spare)
    order = list(pieces)
    random.shuffle(order)
    for at, number in enumerate(order[: assembly.layout.count]):
        assert not assembly.is_enough
        assert assembly.add(decode_piece(encode_piece(pieces[number])))
        assert not assembly.add(pieces[number]), "a second time it is nothing new"
        assert assembly.bitmap == sum(1 << known for known in order[: at + 1])
    assert assembly.is_enough
    assert open_message(KEY, 2, assembly.sealed()) == body


@given(st.integers(1, 40), st.integers(0, 30), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_code_gives_back_whatever_is_missing(count: int, spare: int, random: Random) -> None:
    data = [random.randbytes(32) for _ in range(count)]
    everything = dict(enumerate([*data, *erasure.parity(data, spare)]))
    kept = random.sample(sorted(everything), count)
    assert erasure.rebuild({number: everything[number] for number in kept}, count) == data


def test_the_code_reaches_its_bounds() -> None:
    data = [bytes([number]) * 4 for number in range(200)]
    spare = erasure.parity(data, erasure.PIECES_MAX - 200)
    kept = dict(enumerate(data[: 200 - len(spare)])) | {200 + at: piece for at, piece in enumerate(spare)}
    assert erasure.rebuild(kept, 200) == data


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_piece_that_is_changed_anywhere_is_refused_and_not_kept(data: st.DataObject) -> None:
    _, assembly, pieces = message(60_000, 7, 3)
    piece = pieces[data.draw(st.sampled_from(sorted(pieces)))]
    raw = bytearray(encode_piece(piece))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        changed = decode_piece(bytes(raw))
    except DecodeError:
        return
    if changed.root != piece.root or not assembly.knows(changed.number):
        return  # of another message, or of none
    if changed._replace(is_to_forward=False) == piece:
        return
    with pytest.raises(PieceForged):
        assembly.add(changed)
    assert not assembly.pieces


def test_a_piece_of_another_place_or_length_is_refused() -> None:
    _, assembly, pieces = message(60_000, 7, 3)
    for piece in (
        pieces[1]._replace(number=0),
        pieces[0]._replace(data=pieces[0].data[:-1]),
        pieces[0]._replace(siblings=pieces[0].siblings[:-1]),
        pieces[0]._replace(siblings=(*pieces[0].siblings, bytes(32))),
        pieces[assembly.layout.count]._replace(number=0),
        pieces[0]._replace(number=assembly.layout.count),
    ):
        with pytest.raises(PieceForged):
            assembly.add(piece)
    assert not assembly.pieces


def test_parity_of_other_data_is_the_senders_lie() -> None:
    _, assembly, pieces = message(60_000, 7, 3)
    layout = assembly.layout
    other = make_parity_pieces([bytes(len(pieces[n].data)) for n in range(layout.count)], layout, 3)
    assembly.parity_root = other.root
    for number in range(layout.count - 1):
        assembly.add(pieces[number])
    assembly.add(pieces_of(other, assembly.root, layout.count)[layout.count])
    with pytest.raises(PieceForged):
        assembly.sealed()


def test_another_key_or_kind_opens_nothing() -> None:
    sealed = seal_message(KEY, 2, b"body")
    assert open_message(KEY, 2, sealed) == b"body"
    for key, kind in ((bytes(32), 2), (KEY, 3)):
        with pytest.raises(PieceForged):
            open_message(key, kind, sealed)


@given(st.integers(SEAL_BYTES + 1, MESSAGE_BYTES_MAX + SEAL_BYTES), st.integers(0, 200))
def test_every_message_has_a_shape_in_bounds_with_even_shares(size: int, receivers: int) -> None:
    layout = PieceLayout.fit(size, receivers)
    assert PIECE_BYTES_MIN <= layout.piece_bytes <= PIECE_BYTES_MAX
    assert sum(layout.piece_size(number) for number in range(layout.count)) == size
    if 0 < receivers <= 100 and size > receivers * PIECE_BYTES_MIN and layout.piece_bytes < PIECE_BYTES_MAX:
        assert (
            -(-layout.count // receivers) * receivers * layout.piece_bytes <= size + receivers * layout.piece_bytes
        )


@pytest.mark.parametrize(
    ("size", "step"), [(SEAL_BYTES, 1024), (10**8, PIECE_BYTES_MAX), (10**6, 1), (10**6, 2**20), (10**6, 1024)]
)
def test_other_shapes_are_refused(size: int, step: int) -> None:
    with pytest.raises(DecodeError):
        PieceLayout(size, step)


def test_bytes_that_are_no_piece_are_refused() -> None:
    _, _, pieces = message(60_000, 7, 0)
    whole = encode_piece(pieces[0])
    head = encode_piece(pieces[0]._replace(siblings=(), data=b""))
    many = encode_piece(Piece(bytes(32), 0, tuple([bytes(32)] * 9), b"x"))
    for data in (
        b"",
        whole[:35],
        head,
        many,
        whole + bytes(PIECE_FRAME_BYTES_MAX),
        head[:32] + b"\x02" + whole[33:],
    ):
        with pytest.raises(DecodeError):
            decode_piece(data)
    assert decode_piece(whole) == pieces[0]
    assert decode_piece(encode_piece(pieces[0]._replace(is_to_forward=True))).is_to_forward


def test_an_assembly_without_parity_knows_no_parity() -> None:
    _, assembly, pieces = message(60_000, 7, 3)
    bare = replace(assembly, parity_root=b"", parity_count=0, pieces={})
    assert not bare.knows(bare.layout.count)
    with pytest.raises(PieceForged):
        bare.add(pieces[bare.layout.count])
