import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.base.errors import FrameInvalid, HandshakeFailed
from p2p.secure.noise import CipherState, HandshakeState, StaticKey

VECTOR = json.loads((Path(__file__).parents[2] / "vectors" / "noise_xx.json").read_text())


def side(name: str, *, ephemeral: bool = True, prologue: str = VECTOR["prologue"]) -> HandshakeState:
    return HandshakeState(
        initiator=name == "initiator",
        static=StaticKey(bytes.fromhex(VECTOR[f"{name}_static"])),
        prologue=bytes.fromhex(prologue),
        ephemeral=StaticKey(bytes.fromhex(VECTOR[f"{name}_ephemeral"])) if ephemeral else None,
    )


def handshake(initiator: HandshakeState, responder: HandshakeState) -> None:
    for index in range(3):
        writer, reader = (initiator, responder) if index % 2 == 0 else (responder, initiator)
        reader.read_message(writer.write_message(b"payload"))


def test_published_vector_is_reproduced_byte_for_byte() -> None:
    initiator, responder = side("initiator"), side("responder")
    pairs = [(bytes.fromhex(payload), bytes.fromhex(sealed)) for payload, sealed in VECTOR["messages"]]
    for index, (payload, sealed) in enumerate(pairs[:3]):
        writer, reader = (initiator, responder) if index % 2 == 0 else (responder, initiator)
        assert writer.write_message(payload) == sealed
        assert reader.read_message(sealed) == payload
    assert initiator.handshake_hash == responder.handshake_hash == bytes.fromhex(VECTOR["handshake_hash"])
    to_responder, from_responder = initiator.split()
    to_initiator, from_initiator = responder.split()
    for index, (payload, sealed) in enumerate(pairs[3:], start=3):
        send, receive = (to_responder, from_initiator) if index % 2 == 0 else (to_initiator, from_responder)
        assert send.encrypt(payload) == sealed
        assert receive.decrypt(sealed) == payload


def test_each_side_learns_the_others_static_key() -> None:
    initiator, responder = side("initiator", ephemeral=False), side("responder", ephemeral=False)
    handshake(initiator, responder)
    assert responder.remote_static == StaticKey(bytes.fromhex(VECTOR["initiator_static"])).public
    assert initiator.remote_static == StaticKey(bytes.fromhex(VECTOR["responder_static"])).public


def test_another_prologue_is_refused_at_the_first_sealed_message() -> None:
    initiator, responder = side("initiator"), side("responder", prologue="00")
    responder.read_message(initiator.write_message())
    with pytest.raises(HandshakeFailed):
        initiator.read_message(responder.write_message())


def test_points_of_small_order_are_refused() -> None:
    responder = side("responder")
    responder.read_message(bytes(32))
    with pytest.raises(HandshakeFailed):
        responder.write_message()


@given(st.integers(0, 2), st.data())
def test_any_flipped_bit_of_a_handshake_message_is_noticed(broken: int, data: st.DataObject) -> None:
    initiator, responder = side("initiator"), side("responder")
    with pytest.raises(HandshakeFailed):  # at the latest by the reader of the message after the broken one
        for index in range(3):
            writer, reader = (initiator, responder) if index % 2 == 0 else (responder, initiator)
            message = bytearray(writer.write_message(b"payload"))
            if index == broken:
                message[data.draw(st.integers(0, len(message) - 1))] ^= 1 << data.draw(st.integers(0, 6))
            reader.read_message(bytes(message))


@given(st.binary(max_size=200))
def test_garbage_is_never_more_than_a_failed_handshake(garbage: bytes) -> None:
    for state in (side("responder"), side("initiator")):
        if state.is_my_turn:
            state.write_message()
        try:
            state.read_message(garbage)
        except HandshakeFailed:
            continue
        assert len(garbage) >= 32  # the first message is an ephemeral key and anything


def test_rekey_changes_the_key_on_both_sides_alike_and_only_together() -> None:
    one, other = CipherState(bytes(32)), CipherState(bytes(32))
    other.decrypt(one.encrypt(b"before"))
    one.rekey()
    sealed = one.encrypt(b"after")
    with pytest.raises(FrameInvalid):
        other.decrypt(sealed)
    other.rekey()
    assert other.decrypt(sealed) == b"after"


def test_replayed_and_reordered_messages_are_refused() -> None:
    one, other = CipherState(bytes(32)), CipherState(bytes(32))
    first, second = one.encrypt(b"1"), one.encrypt(b"2")
    with pytest.raises(FrameInvalid):
        other.decrypt(second)
    assert other.decrypt(first) == b"1"
    with pytest.raises(FrameInvalid):
        other.decrypt(first)
    assert other.decrypt(second) == b"2"
