"""The GPUs of this machine by the ids that engines take: whole cards, and parts of cards (MIG).

A card that is cut into parts is none that could be lent whole, so its own ids are left out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tasks.kinds.gpus import has_card, mig_memory_mib

__all__ = ["PART_PREFIX", "Device", "devices_here", "fitting_devices", "parse_devices"]

PART_PREFIX: Final = "MIG-"
"""Begins the ids of parts."""
PROGRAM: Final = "nvidia-smi"
TIMEOUT_S: Final = 10.0
OUTPUT_CHARS_MAX: Final = 1 << 18
DEVICES_MAX: Final = 1_024
_CARD: Final = re.compile(r"GPU ([0-9]{1,3}): (.{1,128}) \(UUID: ([A-Za-z0-9-]{1,64})\)", re.ASCII)
_PART: Final = re.compile(
    r"\s+MIG (\S{1,32})\s+Device\s+([0-9]{1,3}): \(UUID: (MIG-[A-Za-z0-9/-]{1,96})\)", re.ASCII
)


class Device(NamedTuple):
    """A card, or a part of one: name, MiB of memory, and the number of its card."""

    name: str
    memory_mib: int
    card: int


def devices_here() -> Mapping[str, Device]:
    """Return the devices of this machine by their ids; none where the driver does not tell. Blocking."""
    if shutil.which(PROGRAM) is None:
        return {}
    try:
        query = _run("--query-gpu=index,memory.total", "--format=csv,noheader,nounits")
        return parse_devices(_run("-L"), query)
    except (OSError, subprocess.SubprocessError):
        return {}


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=True
    )
    return done.stdout[:OUTPUT_CHARS_MAX]


def parse_devices(listing: str, query: str) -> Mapping[str, Device]:
    """Return the devices by UUID, and by number (``0``, ``0:1`` for a part), of what the driver's program prints.

    A line that is not understood names no device.
    """
    memory = dict[int, int]()
    for line in query.splitlines():
        number, _, mib = (part.strip() for part in line.partition(","))
        if number.isdecimal() and mib.isdecimal():
            memory[int(number)] = int(mib)
    found = dict[str, Device]()
    card: tuple[int, str, str] | None = None
    for line in listing.splitlines():
        if (whole := _CARD.fullmatch(line.rstrip())) is not None:
            card = int(whole[1]), whole[2], whole[3]
            device = Device(card[1], memory.get(card[0], 0), card[0])
            names: tuple[str, str] = (card[2], str(card[0]))
        elif card is not None and (part := _PART.fullmatch(line.rstrip())) is not None:
            for name in (card[2], str(card[0])):
                found.pop(name, None)
            profile = part[1].lower().replace("+", ".")
            device = Device(f"{card[1]} MIG {profile}", mig_memory_mib(profile), card[0])
            names = part[3], f"{card[0]}:{part[2]}"
        else:
            continue
        if len(found) + len(names) > DEVICES_MAX:
            break
        found.update(dict.fromkeys(names, device))
    return found


def fitting_devices(
    lent: Sequence[str], here: Mapping[str, Device], words: Sequence[str], memory_mib: int
) -> tuple[str, ...]:
    """Return those of the ids that are what a job orders."""
    return tuple(
        one
        for one in lent
        if (device := here.get(one)) is not None and has_card(device.name, device.memory_mib, words, memory_mib)
    )
