"""Connections that were never opened, for readers of what comes over one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from p2p.handshake import Session
from p2p.noise import CipherState
from tests.p2p.helpers import sessions


def fresh_sessions() -> tuple[Session, Session]:
    """Return both ends of a connection that has carried nothing yet; the handshake is done once for all."""
    (one, other), keys = _handshake()
    ciphers = [CipherState(key) for key in keys]
    return (
        replace(one, send=ciphers[0], receive=ciphers[1]),
        replace(other, send=ciphers[2], receive=ciphers[3]),
    )


@cache
def _handshake() -> tuple[tuple[Session, Session], list[bytes]]:
    both = sessions()
    return both, [cipher._key for end in both for cipher in (end.send, end.receive)]
