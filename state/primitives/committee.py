"""The committee of an epoch: seats, weights, quorum, the order of leaders. Integers only.

See consensus.md 2.2, 10.7, 11.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from state.primitives.codec import decode, encode
from state.primitives.errors import ConfigError, DecodeError
from state.primitives.hashing import digest
from state.primitives.keys import VOTE_KEY_BYTES
from state.primitives.vrf import VRF_KEY_BYTES

__all__ = ["SEATS_MAX", "Committee", "Seat", "quorum"]

SEATS_MAX: Final = 100
LEADER_ROUNDS: Final = 64
"""The order of leaders repeats after this many views per seat, so the leader of any view is found directly."""
ADDRESS_BYTES: Final = 20
RECORD_LIMIT_BYTES: Final = 32 * 1024
_SIZES: Final = (ADDRESS_BYTES, VOTE_KEY_BYTES, VRF_KEY_BYTES)


class Seat(NamedTuple):
    """A seat of the committee: the validator's account, its x-only vote key, its VRF key and its weight."""

    address: bytes
    vote_key: bytes
    vrf_key: bytes
    weight: int


def quorum(weight: int) -> int:
    """Weight at which any two sets of votes share an honest seat, of ``weight`` in all.

    Two sets of 2W/3 share more than W/3, which exceeds what the faulty hold (consensus.md 5.1).
    """
    return 2 * weight // 3 + 1


class Committee:
    """The voters of one epoch. Immutable.

    ``order`` is the permutation that breaks ties between leaders, drawn for each epoch. Raises ConfigError
    for no seats, too many, a repeated key or address, or a weight below one.
    """

    __slots__ = (
        "_by_address",
        "_drawn",
        "hash",
        "order",
        "quorum",
        "seats",
        "size",
        "weight",
        "weights",
    )

    def __init__(self, seats: Iterable[Seat], order: Sequence[int] | None = None) -> None:
        self.seats: tuple[Seat, ...] = tuple(seats)
        self.size = len(self.seats)
        if not 0 < self.size <= SEATS_MAX:
            raise ConfigError(f"a committee has 1 to {SEATS_MAX} seats, not {self.size}")
        if len({seat.vote_key for seat in self.seats}) < self.size:
            raise ConfigError("a vote key sits twice in the committee")
        self._by_address = {seat.address: number for number, seat in enumerate(self.seats)}
        if len(self._by_address) < self.size:
            raise ConfigError("an address sits twice in the committee")
        for seat in self.seats:
            if seat.weight <= 0 or (len(seat.address), len(seat.vote_key), len(seat.vrf_key)) != _SIZES:
                raise ConfigError("a seat needs a weight, a vote key, a VRF key and an address")
        self.weights: tuple[int, ...] = tuple(seat.weight for seat in self.seats)
        self.weight = sum(self.weights)
        self.quorum = quorum(self.weight)
        self.order: tuple[int, ...] = tuple(range(self.size) if order is None else order)
        if sorted(self.order) != list(range(self.size)):
            raise ConfigError("the order of a committee is a permutation of its seats")
        self.hash: bytes = digest(b"committee", self.encode())
        self._drawn: tuple[list[int], list[int]] = [], [0] * self.size

    def encode(self) -> bytes:
        """Return the canonical bytes, as the state keeps them and ``hash`` covers them."""
        return encode([[list(seat) for seat in self.seats], list(self.order)])

    @classmethod
    def decode(cls, data: bytes) -> Committee:
        """Return the committee of ``data``. Raises DecodeError."""
        match decode(data, limit_bytes=RECORD_LIMIT_BYTES):
            case [list(seats), list(order)] if all(type(seat) is int for seat in order):
                try:
                    return cls([_seat(seat) for seat in seats], order)
                except ConfigError as error:
                    raise DecodeError(str(error)) from None
            case _:
                raise DecodeError("not a committee")

    def seat_of(self, address: bytes) -> int | None:
        """Return the seat that ``address`` holds, if any."""
        return self._by_address.get(address)

    def leader(self, view: int) -> int:
        """Return the seat that leads ``view`` (from 1): smooth weighted round robin.

        With equal weights every seat leads once in each ``size`` views, so faulty leaders never follow each
        other for longer than there are faulty seats.
        """
        at = (view - 1) % (LEADER_ROUNDS * self.size)
        leaders, credit = self._drawn
        if at >= len(leaders):
            leaders, credit = list(leaders), list(credit)
            while at >= len(leaders) or len(leaders) % self.size:
                for seat, weight in enumerate(self.weights):
                    credit[seat] += weight
                best = max(self.order, key=credit.__getitem__)  # the first of equals in the order
                credit[best] -= self.weight
                leaders.append(best)
            self._drawn = leaders, credit  # at once: threads share a committee, and draw the same
        return leaders[at]

    def weight_of(self, bitmap: bytes) -> int:
        """Return the weight of the seats whose bit is set; bits beyond the committee count nothing."""
        bits = int.from_bytes(bitmap, "little")
        return sum(weight for seat, weight in enumerate(self.weights) if bits >> seat & 1)


def _seat(value: Any) -> Seat:
    match value:
        case [bytes(address), bytes(vote_key), bytes(vrf_key), int(weight)]:
            return Seat(address, vote_key, vrf_key, weight)
        case _:
            raise DecodeError("not a seat")
