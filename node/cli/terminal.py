"""Makes untrusted text safe for a terminal: names, reasons and messages from other machines."""

from __future__ import annotations

from typing import Final

__all__ = ["STDIO", "printable", "printable_heading", "printable_lines"]

STDIO: Final = "-"
"""A file name that means standard input or standard output."""


def printable(text: str) -> str:
    """Return ``text`` on one line.

    Characters that move the cursor, change colours or are invisible are escaped.
    """
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def printable_heading(text: str) -> str:
    """Return ``text`` as ``printable``, after an empty line if it begins with one."""
    return "\n" * text.startswith("\n") + printable(text.removeprefix("\n"))


def printable_lines(text: str) -> str:
    """Return ``text`` with its lines kept, each as ``printable``. Only for text without untrusted parts.

    An untrusted line could look like one of the command's own.
    """
    return "\n".join(printable(line) for line in text.split("\n"))
