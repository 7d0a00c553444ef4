"""Integer price arithmetic: prices of work units, shares in basis points, splits that lose no unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

__all__ = [
    "BPS",
    "ROLE_WEIGHTS",
    "TERA",
    "Budget",
    "Role",
    "hour_price",
    "share",
    "share_up",
    "split",
    "split_roles",
    "work_price",
    "work_price_up",
]

BPS: Final = 10_000
"""Basis points in a whole."""
TERA: Final = 10**12
"""Work units that a price is for."""
HOUR_S: Final = 3_600


class Role(IntEnum):
    """The metered resources that a price applies to."""

    COMPUTE = 1
    VERIFY = 2
    COORDINATE = 3
    RELAY = 4
    STORAGE = 5


ROLE_WEIGHTS: Final[Mapping[Role, int]] = {
    Role.COMPUTE: 80, Role.VERIFY: 8, Role.COORDINATE: 4, Role.RELAY: 5, Role.STORAGE: 3,
}  # fmt: skip
"""market.md 8.3, 8.5. Verification is paid from its own pool, so it takes no part in splitting the price of
work."""


class Budget(NamedTuple):
    """What a requester locks: the most that the work may cost, the checks, the protocol's fee, the preparation."""

    price: int
    verification: int
    fee: int
    preparation: int = 0

    @property
    def total(self) -> int:
        """The whole escrow."""
        return self.price + self.verification + self.fee + self.preparation

    @classmethod
    def of(cls, price: int, *, verification_bps: int, fee_bps: int) -> Budget:
        """Return the budget of a job of at most ``price``; rounded up, so that rounded-down payments fit."""
        return cls(price, share_up(price, verification_bps), share_up(price, fee_bps))


def work_price(units: int, price_per_tera_unit: int) -> int:
    """Return the price of ``units`` work units, rounded down: what a worker is paid."""
    return units * price_per_tera_unit // TERA


def work_price_up(units: int, price_per_tera_unit: int) -> int:
    """Return the price of ``units`` work units, rounded up: what is locked for them."""
    return -(-units * price_per_tera_unit // TERA)


def hour_price(rate: int, price_per_tera_unit: int) -> int:
    """Return what an hour costs of a machine that does ``rate`` work units a second, rounded down."""
    return work_price(rate * HOUR_S, price_per_tera_unit)


def share(amount: int, bps: int) -> int:
    """Return ``bps`` basis points of ``amount``, rounded down."""
    return amount * bps // BPS


def share_up(amount: int, bps: int) -> int:
    """Return ``bps`` basis points of ``amount``, rounded up."""
    return -(-amount * bps // BPS)


def split(amount: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Split ``amount`` by ``weights`` so that the parts sum to it exactly.

    Largest remainder: each part is rounded down, the units left go one each to the largest remainders, on a tie
    to the earlier part. Raises AssertionError for a negative weight or none above 0.
    """
    whole = sum(weights)
    if amount < 0 or whole <= 0 or min(weights) < 0:
        raise AssertionError(f"cannot split {amount} by {weights}")
    parts = [amount * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda at: (-(amount * weights[at] % whole), at))
    for at in order[: amount - sum(parts)]:
        parts[at] += 1
    return tuple(parts)


def split_roles(
    amount: int, contributions: Mapping[Role, Mapping[bytes, int]]
) -> tuple[tuple[Role, bytes, int], ...]:
    """Split ``amount`` over the roles present by ROLE_WEIGHTS, and within each by its members' contributions.

    A role is present when the contributions of its members sum to more than 0. Returns (role, address, part) in
    the order of roles and addresses; the parts sum to ``amount``.
    """
    present = [role for role in sorted(contributions) if sum(contributions[role].values()) > 0]
    by_role = split(amount, [ROLE_WEIGHTS[role] for role in present])
    parts: list[tuple[Role, bytes, int]] = []
    for role, role_amount in zip(present, by_role, strict=True):
        members = sorted(contributions[role])
        amounts = split(role_amount, [contributions[role][member] for member in members])
        parts += [(role, member, part) for member, part in zip(members, amounts, strict=True)]
    return tuple(parts)
