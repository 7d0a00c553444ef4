"""A network of this process and its children alone, in which any direction between two members can be cut.

Every member has an address of 127.0.1.0/24 from which it also connects (``disturb.c``), and the kernel drops what
goes from one to the other: connections stay as they are and hear nothing, as with a cable that is out.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["Cut", "address", "own_network", "set_cuts"]

Cut = tuple[str, str]
"""From whom, to whom."""
_CLONE_NEWNET: Final = 0x40000000


def address(name: str) -> str:
    """Return where a validator listens, and from where it connects."""
    return f"127.0.1.{int(name.rpartition('-')[2]) + 1}"


@contextmanager
def own_network() -> Iterator[bool]:
    """Put this thread, and what it starts, into a network of its own; False where that may not be."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(_CLONE_NEWNET) != 0:
            yield False
            return
        try:
            yield _is_usable()
        finally:
            if libc.setns(before, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "this thread cannot return to its network")
    finally:
        os.close(before)


def _is_usable() -> bool:
    if shutil.which("ip") is None:
        return False
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)
    try:
        set_cuts(())
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def set_cuts(cuts: Collection[Cut]) -> None:
    """Cut these directions and no others."""
    rules = [f"-A INPUT -s {address(source)} -d {address(target)} -j DROP" for source, target in sorted(cuts)]
    text = "\n".join(["*filter", ":INPUT ACCEPT [0:0]", *rules, "COMMIT", ""])
    subprocess.run(["iptables-restore"], input=text, text=True, check=True, timeout=20, capture_output=True)
