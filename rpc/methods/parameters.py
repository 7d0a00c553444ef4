"""The chain's parameters, from the numbers in its genesis."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from state.primitives.genesis import ChainParameters
from tasks.ledger.parameters import TaskParameters

__all__ = ["Parameters", "parameters_of"]


class Parameters(NamedTuple):
    """Those of blocks, fees and stake, and those of the market."""

    chain: ChainParameters
    tasks: TaskParameters


@lru_cache(maxsize=4)
def parameters_of(numbers: tuple[tuple[str, int], ...]) -> Parameters:
    """Return the parameters of the chain whose description has these ``numbers``."""
    groups: dict[str, dict[str, int]] = {"chain": {}, "tasks": {}}
    for name, number in numbers:
        prefix, _, field = name.partition(".")
        if prefix in groups:
            groups[prefix][field] = number
    return Parameters(ChainParameters(**groups["chain"]), TaskParameters(**groups["tasks"]))
