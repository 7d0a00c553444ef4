"""Several short rows in one sequence, for fine-tuning (R155): fewer steps for the same rows.

A row keeps its own positions and sees no other one. So its numbers are those that it has alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

import numpy as np

from tasks.models.rows import Example, TokenRows
from tasks.programs.finetune import PLACES, POSITIONS, ROW_TOKENS, SLOTS, STARTS, TARGETS

__all__ = ["PACKED_LENGTH", "packed", "packed_rows_of", "packed_with"]

PACKED_LENGTH: Final = 1_024
"""Tokens of a sequence where nobody says how many, if the model takes them and no row is longer."""


def packed(examples: Sequence[Example], most: int) -> list[tuple[Example, ...]]:
    """Return which rows share a sequence of ``most`` tokens: the longest first, each where least room is left.

    Sequences stand in the order of their first lines, and so do their rows. The same rows always share one.
    """
    room, rows = dict[int, list[list[int]]](), list[list[int]]()
    sizes = list[int]()
    for at in sorted(range(len(examples)), key=lambda one: (-len(examples[one].tokens), one)):
        size = len(examples[at].tokens) - 1
        place = bisect_left(sizes, size)
        if place < len(sizes):
            left = sizes[place]
            found = room[left].pop()
            if not room[left]:
                del room[left]
                sizes.pop(place)
        else:
            left, found = most, []
            rows.append(found)
        found.append(at)
        if left - size not in room:
            insort(sizes, left - size)
        room.setdefault(left - size, []).append(found)
    return [tuple(examples[at] for at in sorted(one)) for one in sorted(rows, key=min)]


def packed_with(
    kept: Sequence[Example], held: Sequence[Example], dropped: Sequence[tuple[int, str]], most: int
) -> tuple[TokenRows, int]:
    """Return sequences with rows for training, then others for validation; and how many the former are."""
    longest = max(len(one.tokens) - 1 for one in (*kept, *held))
    first, second = (packed(part, max(most, longest)) for part in (kept, held))
    return packed_rows_of([*first, *second], dropped), len(first)


def packed_rows_of(
    sequences: Sequence[Sequence[Example]], dropped: Sequence[tuple[int, str]] = ()
) -> TokenRows:  # fmt: skip
    """Return the rows of a job's data, each with several examples. All are as long as the longest."""
    length = max(sum(len(one.tokens) - 1 for one in row) for row in sequences)
    slots = max(sum(sum(one.trained[1:]) for one in row) for row in sequences)
    fills = {ROW_TOKENS: 0, SLOTS: slots, POSITIONS: 0, STARTS: length}
    tables = {name: np.full((len(sequences), length), fill, dtype="<i4") for name, fill in fills.items()}
    places, targets = (np.full((len(sequences), slots), fill, dtype="<i4") for fill in (length, 0))
    for row, examples in enumerate(sequences):
        start = used = 0
        for one in examples:
            size = len(one.tokens) - 1
            end, trained = start + size, np.flatnonzero(one.trained[1:])
            after = used + len(trained)
            tables[ROW_TOKENS][row, start:end] = one.tokens[:-1]
            tables[POSITIONS][row, start:end] = np.arange(size)
            tables[STARTS][row, start:end] = start
            tables[SLOTS][row, start + trained] = np.arange(used, after)
            places[row, used:after] = start + trained
            targets[row, used:after] = np.array(one.tokens)[trained + 1]
            start, used = end, after
    every = [one for row in sequences for one in row]
    contents = {**tables, PLACES: places, TARGETS: targets}
    return TokenRows(
        len(sequences), length, slots, sum(len(one.tokens) for one in every),
        sum(sum(one.trained[1:]) for one in every), tuple(dropped),
        {name: values.tobytes() for name, values in contents.items()},
    )  # fmt: skip
