from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.base.errors import CertificateInvalid, HandshakeFailed, WrongPeer
from p2p.secure.handshake import HANDSHAKE_MESSAGE_BYTES_MAX, Handshake, Session
from p2p.secure.identity import (
    CERTIFICATE_BYTES_MAX,
    CERTIFICATE_LIFE_MS_MAX,
    Identity,
    NodeCertificate,
    Purpose,
    Role,
)
from p2p.secure.noise import StaticKey
from state.primitives.errors import DecodeError
from state.primitives.keys import SecretKey

GENESIS = b"g" * 32
NOW_MS = 1_700_000_000_000
ALICE, BOB, MALLORY = (SecretKey(bytes([n]) * 32) for n in (1, 2, 3))


def identity(account: SecretKey, genesis_hash: bytes = GENESIS, now_ms: int = NOW_MS) -> Identity:
    return Identity.create(
        account, genesis_hash=genesis_hash, now_ms=now_ms, node_secret=account.secret, roles=Role.VALIDATOR
    )


def run(initiator: Handshake, responder: Handshake, *, chunk: int = 10**6) -> tuple[Session, Session]:
    def feed(to: Handshake, data: bytes) -> bytes:
        return b"".join(to.receive(data[at : at + chunk]) for at in range(0, len(data), chunk))

    second = feed(responder, initiator.start())
    assert feed(responder, feed(initiator, second)) == b""
    assert initiator.session is not None and responder.session is not None
    return initiator.session, responder.session


def pair(
    one: Identity,
    other: Identity,
    *,
    expected: bytes | None = None,
    purposes: tuple[Purpose, Purpose] = (Purpose.PEER, Purpose.PEER),
) -> tuple[Handshake, Handshake]:
    return (
        Handshake(one, purposes[0], is_initiator=True, now_ms=NOW_MS, expected=expected, features=5),
        Handshake(other, purposes[1], is_initiator=False, now_ms=NOW_MS),
    )


@pytest.mark.parametrize("chunk", [1, 7, 10**6])
def test_both_sides_learn_the_proved_address_and_share_a_channel(chunk: int) -> None:
    alice, bob = run(*pair(identity(ALICE), identity(BOB), expected=BOB.address), chunk=chunk)
    assert (alice.address, bob.address) == (BOB.address, ALICE.address)
    assert alice.channel_binding == bob.channel_binding
    assert bob.features == 5 and bob.certificate.roles == Role.VALIDATOR
    assert bob.receive.decrypt(alice.send.encrypt(b"to bob")) == b"to bob"
    assert alice.receive.decrypt(bob.send.encrypt(b"to alice")) == b"to alice"


def test_a_dialler_never_names_itself_to_an_impostor() -> None:
    initiator, responder = pair(identity(ALICE), identity(MALLORY), expected=BOB.address)
    second = responder.receive(initiator.start())
    with pytest.raises(WrongPeer):
        initiator.receive(second)


def test_a_certificate_copied_from_another_node_does_not_prove_its_address() -> None:
    bob = identity(BOB)
    stolen = replace(bob, static=StaticKey.generate())
    initiator, responder = pair(identity(ALICE), stolen)
    with pytest.raises(CertificateInvalid):
        initiator.receive(responder.receive(initiator.start()))


@pytest.mark.parametrize(
    "other",
    [
        identity(BOB, genesis_hash=b"h" * 32),
        identity(BOB, now_ms=NOW_MS - CERTIFICATE_LIFE_MS_MAX - 1),
        identity(BOB, now_ms=NOW_MS + CERTIFICATE_LIFE_MS_MAX),
    ],
    ids=["another chain", "expired", "too long-lived"],
)
def test_certificates_of_another_chain_or_time_are_refused(other: Identity) -> None:
    initiator, responder = pair(identity(ALICE), other)
    with pytest.raises(HandshakeFailed):
        initiator.receive(responder.receive(initiator.start()))


def test_a_handshake_for_one_purpose_does_not_serve_another() -> None:
    initiator, responder = pair(identity(ALICE), identity(BOB), purposes=(Purpose.PEER, Purpose.CIRCUIT))
    with pytest.raises(HandshakeFailed):
        initiator.receive(responder.receive(initiator.start()))


def test_bytes_behind_the_last_message_are_kept_for_the_records() -> None:
    initiator, responder = pair(identity(ALICE), identity(BOB))
    last = initiator.receive(responder.receive(initiator.start()))
    responder.receive(last + b"first record")
    assert responder.session is not None and responder.session.rest == b"first record"


def test_a_long_announcement_is_refused_before_it_is_buffered() -> None:
    _, responder = pair(identity(ALICE), identity(BOB))
    with pytest.raises(HandshakeFailed):
        responder.receive((HANDSHAKE_MESSAGE_BYTES_MAX + 1).to_bytes(2, "big"))


@given(st.binary(max_size=300))
def test_garbage_only_fails_the_handshake(garbage: bytes) -> None:
    initiator, responder = pair(identity(ALICE), identity(BOB))
    initiator.start()
    for side in (initiator, responder):
        try:
            side.receive(garbage)
        except HandshakeFailed:
            pass
        assert side.session is None


@given(
    roles=st.integers(0, 2**16 - 1),
    sequence=st.integers(0, 2**63 - 1),
    now_ms=st.integers(0, 2**62),
)
def test_certificates_survive_the_wire_within_their_limit(roles: int, sequence: int, now_ms: int) -> None:
    certificate = NodeCertificate.issue(
        ALICE,
        genesis_hash=GENESIS,
        static_key=b"k" * 32,
        signer=b"s" * 20,
        roles=Role(roles),
        now_ms=now_ms,
        sequence=sequence,
    )
    data = certificate.encode()
    assert len(data) <= CERTIFICATE_BYTES_MAX
    assert NodeCertificate.decode(data) == certificate
    assert certificate.verify(genesis_hash=GENESIS, now_ms=now_ms) == ALICE.address


def test_changing_any_signed_field_changes_the_address_or_breaks_the_signature() -> None:
    certificate = identity(ALICE).certificate
    for changed in (
        replace(certificate, static_key=b"x" * 32),
        replace(certificate, signer=b"x" * 20),
        replace(certificate, roles=Role.RELAY),
        replace(certificate, sequence=certificate.sequence + 1),
        replace(certificate, not_after_ms=certificate.not_after_ms - 1),
    ):
        try:
            assert changed.verify(genesis_hash=GENESIS, now_ms=NOW_MS) != ALICE.address
        except CertificateInvalid:
            pass


@given(st.data())
def test_mutated_certificates_raise_nothing_but_decode_errors(data: st.DataObject) -> None:
    raw = bytearray(identity(ALICE).certificate.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert NodeCertificate.decode(bytes(raw)).encode() == bytes(raw)
    except DecodeError:
        pass


def test_a_node_without_its_account_key_loads_secret_and_certificate() -> None:
    secret = bytes(range(32))
    issued = Identity.create(ALICE, genesis_hash=GENESIS, now_ms=NOW_MS, node_secret=secret)
    loaded = Identity.load(secret, issued.certificate, now_ms=NOW_MS)
    assert (loaded.address, loaded.signer.address) == (ALICE.address, issued.certificate.signer)
    with pytest.raises(CertificateInvalid):
        Identity.load(bytes(32), issued.certificate, now_ms=NOW_MS)


@given(st.integers(1, 3), st.booleans())
def test_what_was_recorded_of_a_handshake_opens_no_other(messages: int, towards_dialler: bool) -> None:
    """Both ends bring ephemeral keys of their own, so old messages prove nothing to a new handshake."""
    initiator, responder = pair(identity(ALICE), identity(BOB))
    first = initiator.start()
    second = responder.receive(first)
    third = initiator.receive(second)
    assert initiator.session is not None
    if towards_dialler:
        again, _ = pair(identity(ALICE), identity(BOB))
        again.start()
        with pytest.raises(HandshakeFailed):
            again.receive(second)
        assert again.session is None
    else:
        _, again = pair(identity(ALICE), identity(BOB))
        again.receive(first)
        if messages > 1:
            with pytest.raises(HandshakeFailed):
                again.receive(third)
        assert again.session is None
