"""Fees as in EIP-1559: a base fee that is burned and follows demand, a tip for the leader."""

from __future__ import annotations

from state.primitives.genesis import ChainParameters

__all__ = ["effective_price", "next_base_fee"]


def next_base_fee(base_fee: int, gas_used: int, chain: ChainParameters) -> int:
    """Return the base fee of the block after one with ``base_fee`` that used ``gas_used``.

    It moves by at most 1/``base_fee_change_denominator`` a block, at least by one upwards, never below
    ``base_fee_min``.
    """
    target = chain.block_gas_target
    change = base_fee * abs(gas_used - target) // target // chain.base_fee_change_denominator
    if gas_used > target:
        return base_fee + max(change, 1)
    return max(base_fee - change, chain.base_fee_min)


def effective_price(base_fee: int, max_fee: int, max_priority_fee: int) -> int:
    """Return what one unit of gas costs the sender; what exceeds ``base_fee`` is the leader's."""
    return min(max_fee, base_fee + max_priority_fee)
