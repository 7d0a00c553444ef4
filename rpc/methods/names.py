"""Names of enumerations in answers: phases, reasons, statuses, roles."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from rpc.methods.schema import Schema
from tasks.ledger.registry import NodeRole

__all__ = ["roles", "word", "words_of"]


def word(item: IntEnum) -> str:
    """Return what an answer calls ``item``."""
    return item.name.lower()


def words_of(*kinds: type[IntEnum]) -> Schema:
    """Return the schema of a word for any item of ``kinds``."""
    return {"type": "string", "enum": [word(item) for kind in kinds for item in kind]}


def roles(value: IntFlag) -> list[str]:
    """Return the roles that ``value`` holds."""
    return [role.name.lower() for role in NodeRole if value & role and role.name]
