"""Names that a container may reach, and names that a machine's owner lets containers reach (market.md R129).

An entry is ``name:port``, or ``*.name:port`` for all names below one. An owner may also write ``*:port``. Entries
are names and never addresses: the machine looks up what a name's address is, and whether it may be reached.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Final

__all__ = [
    "EGRESS_MAX",
    "NAME_LENGTH_MAX",
    "PORT_DEFAULT",
    "covering",
    "egress_fault",
    "entry_of",
    "is_covered",
    "is_host_name",
]

EGRESS_MAX: Final = 16
"""Entries of a job, and patterns of a machine."""
NAME_LENGTH_MAX: Final = 128
LABELS_MAX: Final = 8
PORT_DEFAULT: Final = 443

_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_TOP: Final = r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
"""The last label begins with a letter: so no form of an address in numbers is a name."""
_NAME: Final = re.compile(rf"(?:{_LABEL}\.){{1,{LABELS_MAX - 1}}}{_TOP}", re.ASCII)
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_ANY: Final = "*"
_BELOW: Final = "*."


def is_host_name(text: str) -> bool:
    """Tell whether a text is a host name in lower case, with a dot in it and none at its end."""
    return len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text) is not None


def _is_entry(text: str, *, is_pattern: bool) -> bool:
    name, colon, port = text.partition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65_535:
        return False
    return (is_pattern and name == _ANY) or is_host_name(name.removeprefix(_BELOW))


def entry_of(text: str, *, is_pattern: bool = False) -> str | None:
    """Return the entry that a person has written, None for none: port 443 may be left out, case does not matter.

    ``is_pattern``: an owner's pattern, which may be ``*`` for all names.
    """
    entry = text.lower() if ":" in text else f"{text.lower()}:{PORT_DEFAULT}"
    return entry if _is_entry(entry, is_pattern=is_pattern) else None


def egress_fault(entries: Sequence[str], *, is_pattern: bool = False) -> str:
    """Return what is wrong with a list of entries, empty if nothing is."""
    if len(entries) > EGRESS_MAX or list(entries) != sorted(set(entries)):
        return f"{EGRESS_MAX} entries at most, sorted, each once"
    for entry in entries:
        if not _is_entry(entry, is_pattern=is_pattern):
            return f"name:port or *.name:port expected, not {entry[:40]!r}"
    return ""


def covering(entry: str) -> tuple[str, ...]:
    """Return all patterns that cover an entry, the narrowest first."""
    name, _, port = entry.partition(":")
    labels = name.split(".")
    below = (f"*.{'.'.join(labels[at:])}:{port}" for at in range(1, len(labels) - 1))
    return (*dict.fromkeys((entry, *below)), f"{_ANY}:{port}")


def is_covered(entry: str, patterns: Container[str]) -> bool:
    """Tell whether an entry, or a name with its port, is covered by one of the patterns."""
    return any(pattern in patterns for pattern in covering(entry))
