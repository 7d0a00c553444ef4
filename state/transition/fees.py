"""Fees as in EIP-1559: a base fee that is burned and follows demand, a tip for the leader (chain.md R6)."""

from __future__ import annotations

from typing import Final

from state.primitives.genesis import ChainParameters

__all__ = ["CROWDED_SHARE", "demand_of", "effective_price", "next_base_fee"]

CROWDED_SHARE: Final = (9, 10)
"""Share of the byte or transaction limit above which a block counts as above its gas target."""


def demand_of(gas_used: int, size_bytes: int, count: int, chain: ChainParameters) -> int:
    """Return the demand of a block in gas: the gas used, or the target scaled by its fullest limit.

    Gas does not depend on bytes, so a block can be full of bytes or transactions below the gas target. Measured by
    gas alone, it would become cheaper to keep such blocks full.
    """
    part, whole = CROWDED_SHARE
    target = chain.block_gas_target * whole
    return max(
        gas_used,
        target * size_bytes // (chain.body_bytes_max * part),
        target * count // (chain.transactions_max * part),
    )


def next_base_fee(base_fee: int, demand: int, chain: ChainParameters) -> int:
    """Return the base fee of the block after one with ``base_fee`` and ``demand``.

    It moves by at most 1/``base_fee_change_denominator`` a block, at least by one upwards, never below
    ``base_fee_min``.
    """
    target = chain.block_gas_target
    change = base_fee * abs(demand - target) // target // chain.base_fee_change_denominator
    if demand > target:
        return base_fee + max(change, 1)
    return max(base_fee - change, chain.base_fee_min)


def effective_price(base_fee: int, max_fee: int, max_priority_fee: int) -> int:
    """Return what one unit of gas costs the sender; what exceeds ``base_fee`` is the leader's."""
    return min(max_fee, base_fee + max_priority_fee)
