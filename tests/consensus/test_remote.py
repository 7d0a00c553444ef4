"""Replicas whose guards sit elsewhere, in the simulator: slow and lost answers, guards that are away, crashes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from consensus import replica as r
from consensus.guard import Guard, GuardRefused
from consensus.simulation.cluster import Cluster, SimulatedNode, sim_parameters
from consensus.simulation.worlds import HashWorld
from state.primitives.votes import Vote, vote_digest

WEIGHTS = ((1, 1, 1, 1), (3, 2, 2, 2), (1, 2, 3, 3))


class RemoteCluster(Cluster):
    """Every guard is a process of its own: it survives its node, may not be reached, or answer into the void."""

    def __init__(self, seed: int, weights: tuple[int, ...]) -> None:
        super().__init__(seed, HashWorld(weights), frozenset(range(len(weights))), parameters=sim_parameters())
        self._answer_ms: dict[int, int] = {}
        self._guards = [
            Guard(self.world.genesis_hash, self.world.signer(node.account, node.key).vote_key)
            for node in self.nodes
        ]

    def start(self, node: SimulatedNode) -> None:
        node.incarnation += 1
        node.timers.clear()
        node.commits = 0
        standing = node.machine.start()
        node.replica = r.Replica(
            epoch=self._enter_epoch(node, standing.epoch),
            genesis_hash=self.world.genesis_hash,
            root=standing.root,
            certificates=standing.certificates,
            parameters=self.parameters,
            vote_key=self.world.signer(node.account, node.key).vote_key,
            journal=node.journal_log.durable,
            verify=lambda checks: all(map(self.is_valid, checks)),
        )
        self.perform(node, node.replica.start(self._clock(node)))
        self._push(self.now_ms + self.rng.randrange(300), node.number, node.incarnation, "opening", None)

    def _handle(self, node: SimulatedNode, what: Any, data: Any) -> None:
        replica, guard = node.replica, self._guards[node.number]
        assert replica is not None
        if what == "opening":
            self.perform(node, replica.voter_ready(guard.votes(), guard.floor, self._clock(node)))
        elif what == "asked":
            self._ask(node, replica, guard, data)
        elif what == "voted":
            request, vote = data
            self.perform(node, replica.voted(request, vote, self._clock(node)))
        else:
            super()._handle(node, what, data)

    def _ask(self, node: SimulatedNode, replica: r.Replica, guard: Guard, request: r.RequestVote) -> None:
        if self.rng.random() < 0.1:
            self.perform(node, replica.vote_refused(request, is_final=False))
            return
        candidate = request.candidate
        try:
            made = guard.check(request.kind, candidate)
        except GuardRefused:
            self.perform(node, replica.vote_refused(request))
            return
        if made is None:
            digest = vote_digest(self.world.genesis_hash, request.kind, candidate)
            signature = self.world.signer(node.account, node.key).sign_vote(digest)
            made = Vote(request.kind, *candidate, request.seat, signature)
            guard.record(made)
            block = replica.block(candidate.block_hash)
            if block is not None:
                header = block.header
                self.oracle.saw_block(candidate.block_hash, header.parent_hash, header.height, header.epoch)
            self.oracle.saw_vote(made)
        if self.rng.random() < 0.05:  # it has voted, and nobody hears of it
            self.perform(node, replica.vote_refused(request, is_final=False))
            return
        self._push(self.now_ms + self.rng.randrange(5), node.number, node.incarnation, "voted", (request, made))

    def _perform(self, node: SimulatedNode, action: r.Action) -> None:
        if isinstance(action, r.RequestVote):
            at_ms = max(self._answer_ms.get(node.number, 0), self.now_ms + self.rng.randrange(5))
            self._answer_ms[node.number] = at_ms
            self._push(at_ms, node.number, node.incarnation, "asked", action)
        elif isinstance(action, r.RaiseFloor):
            self._guards[node.number].raise_floor(*action)
        else:
            super()._perform(node, action)


@pytest.mark.parametrize("seed", range(12))
def test_guards_elsewhere_are_as_safe_and_as_live(seed: int) -> None:
    rng = random.Random(seed)
    cluster = RemoteCluster(seed, WEIGHTS[seed % len(WEIGHTS)])
    cluster.network.latency_ms_max = rng.choice((10, 30, 120))
    cluster.network.loss = rng.choice((0.0, 0.05, 0.2))
    cluster.start_all()

    def crash(numbers: tuple[int, ...]) -> None:
        for number in numbers:
            cluster.crash(cluster.nodes[number], rng.randrange(1, 400))

    for _ in range(rng.randrange(1, 8)):
        struck = (0, 1, 2, 3) if rng.random() < 0.3 else (rng.randrange(4),)
        cluster.call_at(rng.randrange(100, 2_400), lambda struck=struck: crash(struck))  # type: ignore[misc]
    cluster.run(2_500)
    cluster.network.loss = 0.0
    goal = cluster.oracle.height_max + 5
    assert cluster.run(
        cluster.now_ms + 20_000, lambda: all(cluster.oracle.height(number) >= goal for number in range(4))
    )
