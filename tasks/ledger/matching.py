"""Who may run a task, and who checks it: integer filters, and draws from the beacon (market.md 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import Final

from state.primitives.hashing import digest
from state.view import Reader
from tasks.kinds.verifiers import ANYBODY, Verifiers
from tasks.ledger.fitting import lack, needs_of, traits_of
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import TaskRecord
from tasks.ledger.registry import (
    NodeProfile,
    NodeRecord,
    NodeRole,
    candidates,
    candidates_in_turn,
    is_available,
    is_renewed,
    load_node,
    stake_as_of,
)
from tasks.ledger.reputation import draw_weight
from tasks.spec import JobSpec

__all__ = [
    "Checkers",
    "Miss",
    "draw_seed",
    "draw_segments",
    "draw_verifiers",
    "draw_weighted",
    "eligible_verifiers",
    "free_slots",
    "has_slot",
    "is_paused",
    "may_admit",
    "parties_of",
    "race",
]

_LOG_BITS: Final = 32
_PLACE_BITS: Final = 192
"""Places differ for all weights of up to 2^130: amounts are below 2^127, and weights four times that at most."""
CANDIDATES_LOOKED: Final = 2
"""A draw looks at so many times the candidates: those that came after the proof hide none of the others."""


class Miss(Enum):
    """Why a call had no worker for a task."""

    NOBODY = 1
    """No machine fits: only a change of the registry helps."""
    UNSEEN = 2
    """None of those in the call fits, but there are more."""
    UNCHECKED = 3
    """Nobody could check a machine that fits."""


def draw_seed(purpose: bytes, beacon: bytes, task: bytes, *numbers: int) -> bytes:
    """Return the 32 bytes that decide a draw."""
    return digest(purpose, beacon + task + b"".join(number.to_bytes(8, "big") for number in numbers))


def _stream(seed: bytes, index: int, below: int) -> int:
    """Return number ``index`` of the seed's stream, below ``below``; its bias is under 2**-128."""
    return int.from_bytes(digest(b"draw", seed + index.to_bytes(8, "big")), "big") % below


def draw_weighted(
    seed: bytes, weights: Sequence[int], count: int, owners: Sequence[Sequence[bytes]] | None = None
) -> list[int]:
    """Return ``count`` different positions, or all, each drawn with a chance that follows its weight.

    With ``owners`` no two positions have one in common: the others leave with the first.
    """
    left = list(range(len(weights)))
    total = sum(weights)
    drawn: list[int] = []
    while left and len(drawn) < count:
        point = _stream(seed, len(drawn), total)
        at = next(at for at in left if (point := point - weights[at]) < 0)
        drawn.append(at)
        left.remove(at)
        total -= weights[at]
        if owners is not None:
            left = [other for other in left if set(owners[other]).isdisjoint(owners[at])]
            total = sum(weights[other] for other in left)
    return drawn


def _logarithm(lot: int) -> int:
    """Return ``-log2(lot / 2^64)`` in units of 2^-32 for a lot from 1 to 2^64; at most two units above it."""
    exponent = lot.bit_length() - 1
    fraction = lot << 64 - exponent  # in [1, 2) with 64 bits behind the point
    bits = 0
    for _ in range(_LOG_BITS):
        fraction = fraction * fraction >> 64
        carry = fraction >> 65
        fraction >>= carry
        bits = bits << 1 | carry
    return (64 << _LOG_BITS) - (exponent << _LOG_BITS | bits)


def race(seed: bytes, name: bytes, weight: int) -> int:
    """Return the place of ``name`` in a draw by weights: the lowest is drawn first.

    The place depends on nobody else. So who leaves or joins at the last moment moves no draw from one machine to
    another, which with a running sum of weights one unit of bond would. The chance to be the lowest is the share
    of the weights, for these are exponential variables.
    """
    lot = int.from_bytes(digest(b"race", seed + name)[:8], "big") + 1
    return (_logarithm(lot) << _PLACE_BITS) // weight


def draw_segments(seed: bytes, segments: int, count: int) -> tuple[int, ...]:
    """Return ``count`` different segments of ``segments``, or all, ascending; each as likely as any other."""
    return tuple(sorted(draw_weighted(digest(b"draw-segments", seed), [1] * segments, count)))


def _verifiers(
    state: Reader, seed: bytes, now_ms: int, parameters: TaskParameters, role: NodeRole = NodeRole.VERIFY
) -> list[NodeRecord]:
    return [
        node
        for node in candidates(state, role, seed, parameters.candidates_max)
        if is_available(node, now_ms, parameters)
    ]


def parties_of(state: Reader, address: bytes) -> tuple[bytes, ...]:
    """Return an account, and who is behind it: the operator of its machine, and who bonds for that."""
    node = load_node(state, address)
    return (address,) if node is None else node.parties


def _may_check(node: NodeRecord, barred: Sequence[bytes]) -> bool:
    return not any(party in barred for party in node.parties)


class Checkers:
    """Who could check machines of a call: one look at the verifiers for all of its orders.

    A verifier is a bit, a party the bits of the verifiers that it bars. So a pair of a requester and a machine
    costs one operation, whoever shares parties with whom. A call has ``PAIRS_PER_CALL_MAX`` pairs at most.
    """

    def __init__(self, state: Reader, seed: bytes, now_ms: int, parameters: TaskParameters) -> None:
        self._state = state
        self._barred_by: dict[bytes, int] = {}
        verifiers = _verifiers(state, seed, now_ms, parameters)
        for at, node in enumerate(verifiers):
            for party in node.parties:
                self._barred_by[party] = self._barred_by.get(party, 0) | 1 << at
        self._all = (1 << len(verifiers)) - 1
        self._has: dict[bytes, Callable[[NodeRecord], bool]] = {}
        self._of_worker: dict[bytes, int] = {}

    def _without(self, parties: Sequence[bytes]) -> int:
        """Return the verifiers that share none of ``parties``."""
        left = self._all
        for party in parties:
            left &= ~self._barred_by.get(party, 0)
        return left

    def of_requester(self, requester: bytes) -> Callable[[NodeRecord], bool]:
        """Return what tells whether somebody could check a machine, who belongs to neither's owner."""
        known = self._has.get(requester)
        if known is not None:
            return known
        theirs = self._without(parties_of(self._state, requester))
        of_worker, without = self._of_worker, self._without

        def has(worker: NodeRecord) -> bool:
            its = of_worker.get(worker.address)
            if its is None:
                its = of_worker[worker.address] = without(worker.parties)
            return theirs & its != 0

        self._has[requester] = has
        return has

    def of_workers(self, workers: Sequence[NodeRecord]) -> Callable[[bytes], int]:
        """Return what gives for a requester the set of ``workers`` (``ask_index``) for whom ``has`` is true.

        Workers with the same verifiers are looked at together.
        """
        alike: dict[int, int] = {}
        for at, worker in enumerate(workers):
            its = self._without(worker.parties)
            alike[its] = alike.get(its, 0) | 1 << at
        known: dict[bytes, int] = {}

        def checkable(requester: bytes) -> int:
            found = known.get(requester)
            if found is None:
                theirs = self._without(parties_of(self._state, requester))
                found = known[requester] = sum(those for its, those in alike.items() if theirs & its)
            return found

        return checkable

    def has(self, requester: bytes, worker: NodeRecord) -> bool:
        """Tell whether somebody could check ``worker`` who belongs neither to its owner nor to the requester's."""
        return (self._has.get(requester) or self.of_requester(requester))(worker)


def draw_verifiers(
    seed: bytes, pool: Sequence[NodeRecord], count: int, since: int, parameters: TaskParameters
) -> list[NodeRecord]:
    """Return up to ``count`` machines of different operators, drawn by bond times reputation.

    Of their bonds counts what stood at height ``since``.
    """
    places = [
        (race(seed, node.address, draw_weight(node, stake_as_of(node, since, parameters))), node) for node in pool
    ]
    drawn: list[NodeRecord] = []
    for _, node in sorted(places, key=lambda place: (place[0], place[1].address)):
        if len(drawn) == count:
            break
        if all(set(node.parties).isdisjoint(other.parties) for other in drawn):
            drawn.append(node)
    return drawn


def eligible_verifiers(
    state: Reader, task: TaskRecord, worker: bytes, used: Sequence[bytes], seed: bytes, now_ms: int,
    parameters: TaskParameters, since: int, *, role: NodeRole = NodeRole.VERIFY, chosen: Verifiers = ANYBODY,
) -> list[NodeRecord]:  # fmt: skip
    """Return nodes of ``role`` that may check ``worker``: of other operators than its own and the requester's.

    ``used`` are machines and operators that were drawn before: neither they nor their machines are. Nor is a
    machine whose bond at height ``since`` did not suffice, nor one that is not ``chosen`` (R167).
    """
    barred = (*parties_of(state, worker), *parties_of(state, task.requester), *used)
    looked = candidates_in_turn(state, role, seed, CANDIDATES_LOOKED * parameters.candidates_max)
    if chosen.names:
        looked = _named(state, looked, chosen.names, role)
    least = max(parameters.node_bond_min, chosen.bond_min)
    stood = (node for node in looked if stake_as_of(node, since, parameters) >= least)
    return [
        node
        for node in islice(stood, parameters.candidates_max)
        if is_available(node, now_ms, parameters) and _may_check(node, barred)
    ]


def _named(
    state: Reader, looked: Iterator[NodeRecord], names: Sequence[bytes], role: NodeRole
) -> Iterator[NodeRecord]:
    """Yield the machines that are named, wherever they stand in the index, then those of named accounts."""
    wanted = set(names)
    for name in names:
        node = load_node(state, name)
        if node is not None and node.profile.roles & role:
            yield node
    for node in looked:
        if node.address not in wanted and not wanted.isdisjoint(node.parties):
            yield node


def is_paused(node: NodeRecord, now_ms: int) -> bool:
    """Tell whether a machine is in a pause, after a fault or after it left a task that had not started."""
    return max(node.cool_down_until_ms, node.match_from_ms) > now_ms


def has_slot(node: NodeRecord, now_ms: int, parameters: TaskParameters) -> bool:
    """Tell whether a machine may be given one more task now."""
    return (
        is_available(node, now_ms, parameters)
        and is_renewed(node, now_ms, parameters)
        and node.match_from_ms <= now_ms
        and free_slots(node, parameters) > 0
    )


def free_slots(node: NodeRecord, parameters: TaskParameters) -> int:
    """Return how many more tasks a machine takes."""
    return max(0, min(node.profile.slots, parameters.slots_max) - node.busy_slots)


def may_admit(profile: NodeProfile, spec: JobSpec, until_ms: int = 0) -> bool:
    """Tell whether a machine is what a job requires, at a price that it pays, and offers to stay ``until_ms``."""
    is_paid = profile.price_per_tera_unit <= spec.max_price_per_tera_unit
    return is_paid and lack(traits_of(profile), needs_of(spec, until_ms)) is None
