"""Connections that were never opened, for readers of what comes over one."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

from p2p.secure.handshake import Session
from p2p.secure.noise import CipherState
from tests.p2p.helpers import sessions


def fresh_sessions() -> tuple[Session, Session]:
    """Return both ends of a connection that has carried nothing yet; the handshake is done once for all."""
    one, other = _handshake()
    return _unused(one), _unused(other)


@cache
def _handshake() -> tuple[dict[str, Any], dict[str, Any]]:
    one, other = ({field.name: getattr(end, field.name) for field in fields(Session)} for end in sessions())
    return one, other


def _unused(end: dict[str, Any]) -> Session:
    return Session(**{**end, "send": _first(end["send"]), "receive": _first(end["receive"])})


def _first(cipher: CipherState) -> CipherState:
    """A cipher of the same key that has sealed nothing; setting up the key once more would be most of the work."""
    fresh = CipherState.__new__(CipherState)
    fresh._key, fresh._aead, fresh.nonce = cipher._key, cipher._aead, 0
    return fresh
