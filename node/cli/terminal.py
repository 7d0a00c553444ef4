"""What strangers wrote, before a terminal shows it: names, reasons and messages come from other machines."""

from __future__ import annotations

from typing import Final

__all__ = ["STDIO", "printable", "printable_heading", "printable_lines"]

STDIO: Final = "-"
"""A file of this name is standard input, or standard output."""


def printable(text: str) -> str:
    """Return ``text`` on one line; what moves the cursor, changes colours or is not seen stands as an escape."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def printable_heading(text: str) -> str:
    """Return ``text`` as ``printable`` gives it, below an empty line where it begins with one."""
    return "\n" * text.startswith("\n") + printable(text.removeprefix("\n"))


def printable_lines(text: str) -> str:
    """Return ``text`` with its lines kept, each as ``printable`` gives it: for what no stranger has a part in.

    A line of a stranger would pass for one of the command's own.
    """
    return "\n".join(printable(line) for line in text.split("\n"))
