"""Simulated operators after a fork: they submit proofs, agree on a chain, and roll back a chain that halts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Final

from consensus import events as c
from consensus import replica as r
from consensus.events import ConsensusParameters, Epoch
from consensus.evidence import evidence_of_certificates
from consensus.guard import JOURNAL_CERTIFICATE, read_journal
from consensus.guard_log import blocks_alone
from consensus.simulation.cluster import Cluster, SimulatedNode
from consensus.simulation.disk import SimulatedLog
from consensus.simulation.oracle import Violation
from consensus.simulation.worlds import World
from consensus.votes import Certificate
from consensus.wire import decode_certificate
from node.chain.forks import certificates_of
from node.simulation.fork_oracle import Branches
from node.simulation.world import WholeMachine
from state.primitives.blocks import decode_header
from state.primitives.committee import Committee
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote

__all__ = [
    "EVER_MS", "LIMIT_MS", "LIVE_BLOCKS", "ForkingCluster", "carry_proofs", "decide", "honest_of", "is_locked",
    "machine_of", "settle", "sides_of", "tallest", "waits_for_proofs",
]  # fmt: skip

AGAIN_MS: Final = 300
RETRIES: Final = 3
DECISIONS_MAX: Final = 3
"""How often people agree on a chain: the liars that are left may sign two blocks of one height once more."""
LIMIT_MS: Final = 90_000
"""Virtual time until every proof is on chain, and again until those it names have no seat."""
LIMIT_AGAIN_MS: Final = 4 * LIMIT_MS
"""The same after a first attempt that stood still: who has voted in a view there votes for nothing else in it."""
HALT_MS: Final = 700
"""Virtual time from the first node that halts until people decide: the others hear of the fork too."""
LIVE_BLOCKS: Final = 5
EVER_MS: Final = 10**9


class ForkingCluster(Cluster):
    """A network whose chain may fork; who is of another branch looks like a liar there."""

    def __init__(
        self, seed: int, world: World, honest: frozenset[int], twins: int, parameters: ConsensusParameters
    ) -> None:
        super().__init__(seed, world, honest, twins=twins, parameters=parameters, may_fork=True)
        self.branches = Branches(self._honest, world.root_hash, world.genesis_hash, self.is_valid)
        self.aside: dict[int, tuple[WholeMachine, SimulatedLog]] = {}
        """By node: the database and the journal that it had before it started from the genesis."""
        self.oracle = self.branches

    def _blame(self, node: SimulatedNode, replica: r.Replica, sender: bytes, reason: str) -> None:
        if sender in self._honest and self.branches.forks:
            self.perform(node, replica.blamed(sender, self._clock(node)))
            return
        super()._blame(node, replica, sender, reason)

    def _enter_epoch(self, node: SimulatedNode, epoch: int) -> Epoch:
        epoch_view = super()._enter_epoch(node, epoch)
        if node.honest:
            self.branches.saw_committee(epoch, epoch_view.committee)
        return epoch_view

    def _perform(self, node: SimulatedNode, action: r.Action) -> None:
        super()._perform(node, action)
        if isinstance(action, c.FoundFork):
            self.convict(node, action.certificate)

    def convict(self, node: SimulatedNode, *certificates: Certificate) -> None:
        """A node takes in certificates of a fork, as its consensus or a person brings them."""
        for equivocation in machine_of(node).convict(*certificates):
            super()._perform(node, c.FoundEquivocation(equivocation))

    def accuse(self, node: SimulatedNode, recorded: Iterable[Certificate]) -> None:
        """A person brings a node what the databases of others say, two at a time where they contradict."""
        by_view: dict[tuple[int, int], list[Certificate]] = {}
        for certificate in dict.fromkeys(recorded):
            by_view.setdefault((certificate.epoch, certificate.view), []).append(certificate)
        for found in by_view.values():
            for one, other in combinations(found, 2):
                if evidence_of_certificates(one, other):
                    self.convict(node, one, other)

    def bring_proofs(self, node: SimulatedNode) -> None:
        """A person brings a node every proof that there is."""
        for equivocation in tuple(self.branches.proofs):
            super()._perform(node, c.FoundEquivocation(equivocation))


def machine_of(node: SimulatedNode) -> WholeMachine:
    """Return a node's machine."""
    assert isinstance(node.machine, WholeMachine)
    return node.machine


def honest_of(nodes: Sequence[SimulatedNode]) -> list[SimulatedNode]:
    """Return the honest of some nodes."""
    return [node for node in nodes if node.honest]


def sides_of(cluster: ForkingCluster) -> list[list[SimulatedNode]]:
    """The nodes that hear each other, of the sides that have any honest one."""
    blocked = cluster.network.blocked
    assert blocked is not None
    sides: list[list[SimulatedNode]] = []
    for node in cluster.nodes:
        side = next((side for side in sides if not blocked(side[0].number, node.number)), None)
        if side is None:
            sides.append([node])
        else:
            side.append(node)
    return [side for side in sides if honest_of(side)]


def carry_proofs(cluster: ForkingCluster, sides: list[list[SimulatedNode]]) -> None:
    """Somebody who has seen both chains brings each what the nodes of both have on record, and all proofs."""
    recorded = _recorded(cluster)
    for side in sides:
        cluster.accuse(tallest(cluster, side), recorded)
    for side in sides:
        cluster.bring_proofs(tallest(cluster, side))


def _recorded(cluster: ForkingCluster) -> list[Certificate]:
    """What the databases of honest nodes have; nothing that is in memory or journal alone."""
    return [
        certificate
        for node in honest_of(cluster.nodes)
        for certificate in certificates_of(machine_of(node).store, from_height=1)
    ]


def tallest(cluster: ForkingCluster, nodes: Sequence[SimulatedNode]) -> SimulatedNode:
    """Return the honest node of some that has committed most."""
    return max(honest_of(nodes), key=lambda node: (cluster.branches.height(node.number), -node.number))


def _follows(machine: WholeMachine, other: WholeMachine) -> bool:
    """Whether one chain is the beginning of the other."""
    shared = min(machine.store.tip.height, other.store.tip.height)
    one, two = machine.store.height(shared), other.store.height(shared)
    return one is not None and two is not None and one.block_hash == two.block_hash


def decide(cluster: ForkingCluster, chosen: SimulatedNode | None = None) -> None:
    """People agree on a chain, the longest: who follows it starts again as it is, the others start over on it.

    Their guards stay, and who halts once more starts over too. Of a liar one process is left, of that chain if it
    has any. What the databases that are given up had on record is brought to the chain that goes on.
    """
    chosen = tallest(cluster, cluster.nodes) if chosen is None else chosen
    chain = machine_of(chosen)
    followers = {node.number for node in cluster.nodes if _follows(machine_of(node), chain)}
    recorded = _recorded(cluster)
    stays = {node.number for node in cluster.nodes if node.honest}
    for account in {node.account for node in cluster.nodes if not node.honest}:
        processes = [node for node in cluster.nodes if node.account == account]
        stays.add(max(processes, key=lambda node: (node.number in followers, -node.number)).number)
    cluster.on_deliver.clear()
    for node in cluster.nodes:
        _stop(cluster, node)
        if node.number not in followers:
            _start_over(cluster, node)
    for node in cluster.nodes:
        # What the key of a liar has said elsewhere is no secret to it.
        node.watches_own_seat = node.honest
        node.votes = node.refused is None
        if node.number in stays:
            _start_again(cluster, node)
    for _ in range(RETRIES):
        cluster.run(cluster.now_ms + AGAIN_MS)
        halted = [node for node in cluster.nodes if node.halted and node.number in stays]
        if not halted:
            break
        for node in halted:  # its journal says of the views to come what others deny
            _stop(cluster, node)
            if _follows(machine_of(node), chain):
                node.journal_log.durable = blocks_alone(node.journal_log.durable)
            else:
                _start_over(cluster, node)
            _start_again(cluster, node)
    cluster.accuse(chosen, recorded)
    cluster.bring_proofs(chosen)


def _turn_back(cluster: ForkingCluster) -> bool:
    """People take the other chain, from the databases that were put aside; tell whether there are any."""
    aside, cluster.aside = cluster.aside, {}
    back = [node for node in cluster.nodes if node.number in aside]
    if not honest_of(back):
        return False
    for node in cluster.nodes:
        cluster.crash(node, EVER_MS)
    for node in back:
        earlier, node.journal_log = aside[node.number]
        node.machine = machine_of(node).put_back(earlier)
        cluster.branches.is_back(node.number, earlier)
    decide(cluster, tallest(cluster, back))
    return True


def _stop(cluster: ForkingCluster, node: SimulatedNode) -> None:
    """Stop a node. Where one halted, only its process has ended: its files have what it wrote."""
    if node.halted:
        for log in (*node.guard_logs.values(), node.journal_log):
            log.end_process(cluster.rng, None, is_sync=False)
    cluster.crash(node, EVER_MS)


def _start_over(cluster: ForkingCluster, node: SimulatedNode) -> None:
    cluster.aside.setdefault(node.number, (machine_of(node), node.journal_log))
    node.journal_log = SimulatedLog()
    node.machine = machine_of(node).fresh()
    cluster.branches.starts_over(node.number)


def _start_again(cluster: ForkingCluster, node: SimulatedNode) -> None:
    node.halted = None
    cluster.start(node)


def waits_for_proofs(side: Sequence[SimulatedNode]) -> bool:
    """Tell whether an honest node of a side has a proof that is not on its chain."""
    return any(machine_of(node).pending for node in honest_of(side))


def settle(cluster: ForkingCluster) -> bool:
    """Run until all that is provable is on the chain, and it goes on; tell whether it does.

    It need not where a lie leads past what can be built on, or where the votes of a view that guards have recorded
    on both chains leave no quorum for anything; then the proofs must tell whose lie it is. A node that
    halts has people decide soon, long before evidence is too old to count. Raises Violation when it takes too long
    for no such reason.
    """
    honest, branches = honest_of(cluster.nodes), cluster.branches

    def halts() -> set[int]:
        return {node.number for node in honest if node.halted}

    def is_done() -> bool:
        return (
            all(branches.height(node.number) >= goal for node in honest)
            and not halts()
            and not waits_for_proofs(honest)
        )

    def is_over() -> bool:
        return not halts() <= halted or is_done()

    limit_ms = LIMIT_MS
    for decision in range(1, DECISIONS_MAX + 1):
        goal = max(branches.height(node.number) for node in honest) + LIVE_BLOCKS
        halted = halts()
        cluster.run(cluster.now_ms + limit_ms, is_over)
        if is_done():
            return True
        if not halts() <= halted:
            cluster.run(cluster.now_ms + HALT_MS)
        if decision == DECISIONS_MAX:
            break
        if any(node.halted for node in honest):
            decide(cluster)
        elif limit_ms == LIMIT_MS and _turn_back(cluster):
            limit_ms = LIMIT_AGAIN_MS
        else:
            break
    heights = [branches.height(node.number) for node in honest]
    waiting = [len(machine_of(node).pending) for node in honest]
    seated = [node for node in honest if _has_seat(cluster.world, node)]
    if not all(_is_led_astray(cluster, node) or _stands_locked(cluster, node) for node in seated):
        raise Violation(f"not all proofs are on chain: heights {heights} of {goal}, waiting {waiting}")
    if 3 * branches.named_share() <= 1:
        raise Violation(f"the chain stands still at {heights}, and the proofs name too few")
    return False


def _has_seat(world: World, node: SimulatedNode) -> bool:
    epoch_view = node.machine.epoch_view(node.epoch)
    assert epoch_view is not None
    return epoch_view.committee.seat_of(world.address(node.account)) is not None


def _is_led_astray(cluster: ForkingCluster, node: SimulatedNode) -> bool:
    """Whether a certificate of another chain leads a node past a view that no NULLIFY certificate lets through."""
    if node.halted:
        return False
    tip = machine_of(node).store.tip
    final = decode_header(tip.header)
    above = [
        certificate
        for kind, data in read_journal(node.journal_log.durable)[0]
        if kind == JOURNAL_CERTIFICATE
        and ((certificate := decode_certificate(data)).epoch, certificate.view) > (final.epoch, final.view)
    ]
    nullified = {(certificate.epoch, certificate.view) for certificate in above if certificate.kind == NULLIFY}
    return any(
        certificate.kind != NULLIFY
        and (certificate.epoch, certificate.view) not in nullified
        and not cluster.branches.stands_on(certificate.block_hash, tip.block_hash)
        for certificate in above
    )


def _stands_locked(cluster: ForkingCluster, node: SimulatedNode) -> bool:
    """Whether what the running guards have recorded lets no certificate of a node's view be formed any more."""
    epoch_view = node.machine.epoch_view(node.epoch)
    if node.replica is None or epoch_view is None:
        return False
    view, committee = node.replica.core.view, epoch_view.committee
    recorded: dict[int, list[Vote]] = {seat: [] for seat in range(committee.size)}
    for other in cluster.nodes:
        seat = committee.seat_of(other.address)
        if seat is not None and other.guard is not None and other.replica is not None:
            recorded[seat] += [
                vote for vote in other.guard.votes() if (vote.epoch, vote.view) == (node.epoch, view)
            ]
    return is_locked(committee, recorded)


def is_locked(committee: Committee, recorded: Mapping[int, Sequence[Vote]]) -> bool:
    """Tell whether the votes of one view that seats have recorded leave no quorum for any certificate of it.

    A seat votes NULLIFY or FINALIZE, NOTARIZE once, and no NOTARIZE after NULLIFY.
    """

    def weight_of(may: Callable[[Sequence[Vote]], bool]) -> int:
        return sum(committee.seats[seat].weight for seat, votes in recorded.items() if may(votes))

    def may_vote(kind: int, candidate: Candidate | None, votes: Sequence[Vote]) -> bool:
        """Whether a seat has cast this vote, or still may."""
        kinds = {vote.kind: vote.candidate for vote in votes}
        return kinds[kind] == candidate if kind in kinds else NULLIFY not in kinds

    # None is a block that nobody has voted for yet.
    candidates = {None, *(vote.candidate for votes in recorded.values() for vote in votes if vote.kind != NULLIFY)}
    most = [weight_of(lambda votes: all(vote.kind != FINALIZE for vote in votes))]
    for candidate in candidates:
        most += [weight_of(partial(may_vote, kind, candidate)) for kind in (NOTARIZE, FINALIZE)]
    return max(most) < committee.quorum
