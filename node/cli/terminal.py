"""What strangers wrote, before a terminal shows it: names, reasons and messages come from other machines."""

from __future__ import annotations

__all__ = ["printable", "printable_lines"]


def printable(text: str) -> str:
    """Return ``text`` on one line; what moves the cursor, changes colours or is not seen stands as an escape."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def printable_lines(text: str) -> str:
    """Return ``text`` with its lines kept, each as ``printable`` gives it."""
    return "\n".join(printable(line) for line in text.split("\n"))
