"""The test of the tests: each seeded bug in core, guard or shell is found by the scenarios within some seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from consensus import core as c
from consensus import replica as r
from consensus.core import Core
from consensus.guard import Guard
from consensus.simulation.cluster import Cluster, Node
from consensus.simulation.oracle import Violation
from consensus.simulation.scenarios import run_scenario
from consensus.simulation.worlds import HashWorld
from consensus.votes import Certificate
from state.primitives.blocks import Header
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote

SEEDS_MAX = 300


class OpenGuard(Guard):
    """Allows what the core asks for, so that a bug of the core reaches the network."""

    def check(self, kind: int, candidate: Candidate) -> Vote | None:
        return None


class FinalizeAfterNullify(Core):
    def _try_finalize(self, view: int) -> None:
        cast = self._cast.get(view, {})
        nullified = cast.pop(NULLIFY, None)
        super()._try_finalize(view)
        if nullified is not None:
            self._cast.setdefault(view, {})[NULLIFY] = nullified


class NullifyAfterFinalize(Core):
    """Nullifies the view before as well when a view times out."""

    def _nullify(self, reason: str) -> None:
        super()._nullify(reason)
        view = self._view - 1
        if reason in ("leader", "advance") and view > self._root.view and NULLIFY not in self._cast.get(view, {}):
            self._cast_vote(NULLIFY, Candidate(self._epoch, view, 0, bytes(32)))


class NotarizeAfterNullify(Core):
    def _try_vote(self) -> None:
        cast = self._cast.get(self._view, {})
        nullified = cast.pop(NULLIFY, None)
        super()._try_vote()
        if nullified is not None:
            self._cast.setdefault(self._view, {})[NULLIFY] = nullified


class VotesForEveryProposal(Core):
    def _on_proposal(self, vote: Vote, header: Header) -> None:
        if vote.view == self._view:
            self._proposals.pop(vote.view, None)
            self._cast.get(vote.view, {}).pop(NOTARIZE, None)
        super()._on_proposal(vote, header)

    def wants_proposal(self, candidate: Candidate) -> bool:
        return candidate.view >= self._view


class SkipsWithoutNullification(Core):
    def _judge(self, candidate: Candidate) -> bool | None:
        hidden = self._nullified

        class Everything(dict[int, Certificate]):
            def __contains__(self, key: object) -> bool:
                return True

        self._nullified = Everything(hidden)
        try:
            return super()._judge(candidate)
        finally:
            self._nullified = hidden


class AnyParent(Core):
    """Believes the view of the parent that the proposal claims, whatever block stands there."""

    def _judge(self, candidate: Candidate) -> bool | None:
        header = self._headers.get(candidate.block_hash)
        if header is not None and header.parent_hash in self._roots and candidate.block_hash not in self._checked:
            self._checked[candidate.block_hash] = True
        return True if header is not None and header.parent_hash in self._roots else None


class NeverAsks(Core):
    def _want(self, block_hash: bytes) -> None:
        return

    def _sync(self) -> None:
        return


class NeverRepeats(Core):
    def _on_timer(self, name: str) -> None:
        if name not in (c.RETRANSMIT, c.PULL, c.FETCH):
            super()._on_timer(name)


class CommitsNotarized(Core):
    """Takes a NOTARIZE certificate for final."""

    def _absorb(self, certificate: Certificate, *, is_formed: bool) -> None:
        super()._absorb(certificate, is_formed=is_formed)
        if certificate.kind == NOTARIZE and not self._is_halted:
            super()._absorb(certificate._replace(kind=FINALIZE), is_formed=is_formed)


class ForgetfulGuard(Guard):
    """Opens as if nothing had ever been signed."""

    @classmethod
    def load(cls, data: bytes, genesis_hash: bytes, vote_key: bytes) -> tuple[Guard, int]:
        guard, whole = super().load(data, genesis_hash, vote_key)
        guard.raise_floor(*guard.floor)
        guard._votes.clear()
        return guard, whole


def smaller_quorum(cluster: Cluster) -> None:
    world = cluster.world
    assert isinstance(world, HashWorld)
    committee = world.reign(0).committee
    committee.quorum = committee.weight // 2 + 1


def unverified(cluster: Cluster) -> None:
    cluster.is_valid = lambda check: True  # type: ignore[method-assign]


def sends_before_sync(cluster: Cluster) -> None:
    perform = cluster.perform

    def hasty(node: Node, actions: list[r.Action]) -> None:
        late = (r.Append, r.Sync)
        perform(
            node, [a for a in actions if not isinstance(a, late)] + [a for a in actions if isinstance(a, late)]
        )

    cluster.perform = hasty  # type: ignore[method-assign]


def never_syncs(cluster: Cluster) -> None:
    original = cluster._perform

    def lazy(node: Node, action: r.Action) -> None:
        if not isinstance(action, r.Sync):
            original(node, action)

    cluster._perform = lazy  # type: ignore[method-assign]


def loses_the_journal(cluster: Cluster) -> None:
    start = cluster.start

    def forgetful(node: Node) -> None:
        node.journal_log.durable = b""
        start(node)

    cluster.start = forgetful  # type: ignore[method-assign]


MUTANTS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "finalize after nullify": (None, {"core_type": FinalizeAfterNullify, "guard_type": OpenGuard}),
    "nullify after finalize": (None, {"core_type": NullifyAfterFinalize, "guard_type": OpenGuard}),
    "notarize after nullify": (None, {"core_type": NotarizeAfterNullify, "guard_type": OpenGuard}),
    "votes for every proposal": ("adversary", {"core_type": VotesForEveryProposal, "guard_type": OpenGuard}),
    "skips without nullification": ("adversary", {"core_type": SkipsWithoutNullification}),
    "any parent": ("adversary", {"core_type": AnyParent}),
    "never asks for blocks": ("blackout", {"core_type": NeverAsks}),
    "never repeats": ("crash", {"core_type": NeverRepeats}),
    "commits what is only notarized": (None, {"core_type": CommitsNotarized}),
    "guard forgets at a crash": ("crash", {"guard_type": ForgetfulGuard}),
    "quorum too small": ("twins", {"mutate": smaller_quorum}),
    "signatures not verified": ("adversary", {"mutate": unverified}),
    "vote leaves before it is on disk": ("blackout", {"mutate": sends_before_sync}),
    "nothing is ever synced": ("blackout", {"mutate": never_syncs}),
    "journal lost at a crash": ("blackout", {"mutate": loses_the_journal}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_seeded_bug_is_found(name: str) -> None:
    kind, bug = MUTANTS[name]
    assert _first_failing_seed(lambda seed: run_scenario(seed, kind=kind, **bug)) is not None


def _first_failing_seed(run: Callable[[int], object]) -> int | None:
    for seed in range(SEEDS_MAX):
        try:
            run(seed)
        except Violation:
            return seed
    return None
