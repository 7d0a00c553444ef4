"""Who runs a task and who checks it: integer filters and scores, draws from the beacon (market.md 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from state.primitives.hashing import digest
from state.view import Reader
from state.view.accounts import balance_of
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import TaskRecord
from tasks.ledger.registry import (
    NodeProfile,
    NodeRecord,
    NodeRole,
    candidates,
    draw_weight,
    is_available,
    is_limited,
    is_renewed,
    load_node,
    reputation_milli,
)
from tasks.spec import JobSpec

__all__ = [
    "SCORE_WEIGHTS",
    "Miss",
    "draw_seed",
    "draw_segments",
    "draw_verifiers",
    "draw_weighted",
    "eligible_verifiers",
    "has_slot",
    "is_paused",
    "match_worker",
    "may_admit",
]

SCORE_WEIGHTS: Final = (5, 2)
"""Weights of price and reputation. Registered speed is a claim, and has none (market.md 6.2)."""
DRAWN_MAX: Final = 16
"""Workers drawn in one look until one is found that somebody could check: each draw costs as much as there are."""


class Miss(Enum):
    """Why a look found no worker."""

    NOBODY = 1
    """No machine fits: only a change of the registry helps."""
    UNSEEN = 2
    """None of those that were looked at fits, but there are more."""
    UNCHECKED = 3
    """Nobody could check a machine that fits."""


def draw_seed(purpose: bytes, beacon: bytes, task: bytes, *numbers: int) -> bytes:
    """Return the 32 bytes that decide a draw."""
    return digest(purpose, beacon + task + b"".join(number.to_bytes(8, "big") for number in numbers))


def _stream(seed: bytes, index: int, below: int) -> int:
    """Return number ``index`` of the seed's stream, below ``below``; its bias is under 2**-128."""
    return int.from_bytes(digest(b"draw", seed + index.to_bytes(8, "big")), "big") % below


def draw_weighted(
    seed: bytes, weights: Sequence[int], count: int, owners: Sequence[bytes] | None = None
) -> list[int]:
    """Return ``count`` different positions, or all, each drawn with a chance that follows its weight.

    With ``owners`` each of them has one position at most: the others leave with the first.
    """
    left = list(range(len(weights)))
    drawn: list[int] = []
    while left and len(drawn) < count:
        point = _stream(seed, len(drawn), sum(weights[at] for at in left))
        for at in left:
            point -= weights[at]
            if point < 0:
                drawn.append(at)
                left = [other for other in left if other != at and (owners is None or owners[other] != owners[at])]
                break
    return drawn


def draw_segments(seed: bytes, segments: int, count: int) -> tuple[int, ...]:
    """Return ``count`` different segments of ``segments``, or all, ascending; each as likely as any other."""
    return tuple(sorted(draw_weighted(digest(b"draw-segments", seed), [1] * segments, count)))


def _verifiers(state: Reader, seed: bytes, now_ms: int, parameters: TaskParameters) -> list[NodeRecord]:
    return [
        node
        for node in candidates(state, NodeRole.VERIFY, seed, parameters.candidates_max)
        if is_available(node, now_ms, parameters)
    ]


def _parties_of(state: Reader, address: bytes) -> tuple[bytes, ...]:
    """Return an account, and who is behind it: the operator of its machine, and who bonds for that."""
    node = load_node(state, address)
    return (address,) if node is None else node.parties


def _may_check(node: NodeRecord, barred: Sequence[bytes]) -> bool:
    return not any(party in barred for party in node.parties)


def draw_verifiers(seed: bytes, pool: Sequence[NodeRecord], count: int) -> list[NodeRecord]:
    """Return up to ``count`` machines of different operators, drawn by bond times reputation."""
    owners = [node.operator for node in pool]
    return [pool[at] for at in draw_weighted(seed, [draw_weight(node) for node in pool], count, owners)]


def eligible_verifiers(
    state: Reader, task: TaskRecord, worker: bytes, used: Sequence[bytes], seed: bytes, now_ms: int,
    parameters: TaskParameters,
) -> list[NodeRecord]:  # fmt: skip
    """Return nodes that may check ``worker``: of other operators than its own and the requester's.

    ``used`` are machines and operators that were drawn before: neither they nor their machines are.
    """
    barred = (*_parties_of(state, worker), *_parties_of(state, task.requester), *used)
    return [node for node in _verifiers(state, seed, now_ms, parameters) if _may_check(node, barred)]


def is_paused(node: NodeRecord, now_ms: int) -> bool:
    """Tell whether a machine is in a pause, after a fault or after it left a task that had not started."""
    return max(node.cool_down_until_ms, node.match_from_ms) > now_ms


def has_slot(node: NodeRecord, now_ms: int, parameters: TaskParameters) -> bool:
    """Tell whether a machine may be given one more task now."""
    return (
        is_available(node, now_ms, parameters)
        and is_renewed(node, now_ms, parameters)
        and node.match_from_ms <= now_ms
        and node.busy_slots < min(node.profile.slots, parameters.slots_max)
    )


def may_admit(profile: NodeProfile, spec: JobSpec) -> bool:
    """Tell whether a machine is what a job requires, at a price that it pays."""
    wanted = spec.requirements
    return (
        profile.price_per_tera_unit <= spec.max_price_per_tera_unit
        and len(profile.gpus) >= wanted.gpus
        and profile.memory_mib >= wanted.memory_mib
        and profile.rate >= wanted.rate_min
        and not (wanted.gpus > 1 and is_limited(profile))
    )


def _fits(node: NodeRecord, spec: JobSpec, task: TaskRecord, now_ms: int, parameters: TaskParameters) -> bool:
    return (
        has_slot(node, now_ms, parameters) and node.address not in task.excluded and may_admit(node.profile, spec)
    )


def _drawn(seed: bytes, nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
    weights = [node.backing * (1 + reputation_milli(node)) for node in nodes]
    return [nodes[at] for at in draw_weighted(digest(b"worker-draw", seed), weights, DRAWN_MAX)]


def match_worker(
    state: Reader, task: TaskRecord, spec: JobSpec, seed: bytes, now_ms: int, bond_at: Callable[[NodeRecord], int],
    parameters: TaskParameters, offered: NodeRecord | None = None,
) -> NodeRecord | Miss:  # fmt: skip
    """Return the worker to assign, or why there is none; with ``offered`` no other machine is looked at.

    It is the one that ranks best by what it asks and has done. Where offers to such came to nothing it is drawn,
    by bonds and records: words cost nothing, so many could take turns in keeping a task from all others.
    ``bond_at`` tells the bond of a node; one that cannot lock it is passed over.
    """
    limit_nodes = parameters.candidates_max
    nodes = candidates(state, NodeRole.COMPUTE, seed, limit_nodes) if offered is None else [offered]
    fitting = [
        node
        for node in nodes
        if _fits(node, spec, task, now_ms, parameters) and balance_of(state, node.address) >= bond_at(node)
    ]
    if not fitting:
        return Miss.UNSEEN if len(nodes) == limit_nodes else Miss.NOBODY

    def rank(node: NodeRecord) -> tuple[int, bytes]:
        limit = spec.max_price_per_tera_unit
        parts = (1000 * (limit - node.profile.price_per_tera_unit) // limit, reputation_milli(node))
        score = sum(weight * part for weight, part in zip(SCORE_WEIGHTS, parts, strict=True))
        return -score, digest(b"match-tie", seed + node.address)

    is_drawn = task.vain_offers >= parameters.offers_ranked
    order = _drawn(seed, fitting) if is_drawn else sorted(fitting, key=rank)
    # One look at the verifiers for all workers, and one for each operator: a look for each worker would let one
    # operator with many machines make a search cost the square of them.
    requesters = _parties_of(state, task.requester)
    verifiers = [
        node for node in _verifiers(state, seed, now_ms, parameters) if _may_check(node, requesters)
    ]  # fmt: skip
    of_others: dict[tuple[bytes, ...], list[NodeRecord]] = {}
    for node in order:
        behind = node.parties[1:]
        if behind not in of_others:
            of_others[behind] = [verifier for verifier in verifiers if _may_check(verifier, behind)]
        if any(_may_check(verifier, (node.address,)) for verifier in of_others[behind]):
            return node
    return Miss.UNCHECKED
