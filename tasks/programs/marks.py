"""A program whose parts are marked: where those begin that a step does for one layer after another."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from tasks.programs.program import Program

__all__ = ["ONCE", "Mark", "Marked"]

ONCE: Final = -1
"""The layer of a part outside of layers."""


class Mark(NamedTuple):
    """From this call on a program does one part of a step for one layer; ``layer`` is ONCE outside of layers."""

    part: IntEnum
    layer: int
    call: int


class Marked(NamedTuple):
    """A program, and where its parts begin, in order."""

    program: Program
    marks: Sequence[Mark]
