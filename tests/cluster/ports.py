"""Ports for networks of several tests at once: a range belongs to one process of tests as long as it runs."""

from __future__ import annotations

import os
import socket
from itertools import chain
from typing import Final

RANGES: Final = range(20_000, 28_000, 40)
"""Below the ports that the kernel gives to outgoing connections (from 32,768), which would take one of ours."""
USABLE: Final = RANGES.step - 1

_held: list[socket.socket] = []


def free_ports() -> int:
    """Return the first of ``USABLE`` ports that nobody has; nobody else gets them until this process ends."""
    start = os.getpid() % len(RANGES)  # runs at once look at different ones first
    for base in chain(RANGES[start:], RANGES[:start]):
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", base + USABLE))  # what holds the range: only one can be bound
        except OSError:
            holder.close()
            continue
        if all(_is_free(port) for port in range(base, base + USABLE)):
            _held.append(holder)
            return base
        holder.close()
    raise AssertionError("no range of ports is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
