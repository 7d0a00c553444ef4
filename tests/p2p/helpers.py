"""What the tests of this package share: deterministic identities and sessions that never touched a socket."""

from p2p.secure.handshake import Handshake, Session
from p2p.secure.identity import Identity, Purpose, Role
from state.primitives.keys import SecretKey

GENESIS = b"g" * 32
NOW_MS = 1_700_000_000_000


def account(number: int) -> SecretKey:
    return SecretKey((number + 1).to_bytes(32, "big"))


def identity(
    number: int, *, now_ms: int = NOW_MS, sequence: int | None = None, roles: Role | None = None
) -> Identity:
    return Identity.create(
        account(number),
        genesis_hash=GENESIS,
        now_ms=now_ms,
        roles=Role.VALIDATOR if roles is None else roles,
        sequence=sequence,
        node_secret=bytes([number % 256]) * 32,
    )


def sessions(one: int = 0, other: int = 1) -> tuple[Session, Session]:
    initiator = Handshake(identity(one), Purpose.PEER, is_initiator=True, now_ms=NOW_MS)
    responder = Handshake(identity(other), Purpose.PEER, is_initiator=False, now_ms=NOW_MS)
    responder.receive(initiator.receive(responder.receive(initiator.start())))
    assert initiator.session is not None and responder.session is not None
    return initiator.session, responder.session
