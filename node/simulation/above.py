"""Whole nodes above the bound: more than a third of the weight lies, chains may fork, and what follows on each.

Nothing can promise one chain there. What stays promised: honest seats are never shown to lie, proofs of who did
get into each chain that goes on, the liars lose what the rules say and their seats, who brought a proof is paid,
and the honest go on without them once people have agreed on a chain and the liars are out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import Final, NamedTuple

from consensus import events as c
from consensus import replica as r
from consensus.events import ConsensusParameters, Epoch
from consensus.evidence import evidence_of_certificates
from consensus.guard import JOURNAL_CERTIFICATE, read_journal
from consensus.guard_log import blocks_alone
from consensus.simulation.adversary import Adversary
from consensus.simulation.cluster import Cluster, Node, sim_parameters
from consensus.simulation.disk import SimulatedLog
from consensus.simulation.oracle import Oracle, Reign, Violation
from consensus.simulation.scenarios import cut_network, fork_network
from consensus.simulation.worlds import World
from consensus.votes import Certificate, Check, vote_check
from consensus.wire import decode_certificate
from node.forks import certificates_of
from node.simulation.world import BALANCE, WholeMachine, WholeWorld
from state.primitives.blocks import decode_header
from state.primitives.committee import Committee, Seat
from state.primitives.votes import NULLIFY, Equivocation, Vote
from state.transition.jail import FOREVER, load_jail
from state.transition.slashing import SlashRecord, load_slash
from state.transition.staking import load_stake
from state.view.accounts import balance_of

__all__ = ["ABOVE_KINDS", "AboveOutcome", "run_above"]

ABOVE_KINDS: Final = ("fork", "fork", "apart", "apart", "twins", "adversary")
"""Two sides that meet; two that never do and only hear of the other's certificates; twins among all; liars who act
as they like, and are stopped."""
CHAOS_MS: Final = {4: 1_100, 7: 800}
MEET_MS: Final = 700
AGAIN_MS: Final = 300
RETRIES: Final = 3
DECISIONS_MAX: Final = 3
"""How often people agree on a chain: the liars that are left may sign two blocks of one height once more."""
APART_MS: Final = 20_000
LIMIT_MS: Final = 90_000
"""Virtual time until every proof is on chain, and again until those it names have no seat."""
LIMIT_AGAIN_MS: Final = 4 * LIMIT_MS
"""The same after a first attempt that stood still: who has voted in a view there votes for nothing else in it."""
LIVE_BLOCKS: Final = 5
HONEST_MIN: Final = 99
"""Per cent of its stake that an honest account keeps: who is cut off may be taken for absent and pay a little."""
EVER_MS: Final = 10**9


class AboveOutcome(NamedTuple):
    """What a run came to; equal for equal seeds."""

    kind: str
    events: int
    trace: int
    is_forked: bool
    punished_apart: int
    """Branches that have each punished the liars, before people agreed on one."""
    liars: int
    slashed: int
    epochs: int
    recovery_ms: int
    stands_still: bool = False
    """The chain that was agreed on cannot go on: what was signed on another leads all past a view of it."""


class Branches(Oracle):
    """The judge where chains fork over epochs: seats are other accounts' there, so a vote is known by its key."""

    def __init__(
        self, honest: frozenset[bytes], root_hash: bytes, genesis_hash: bytes, is_valid: Callable[[Check], bool]
    ) -> None:
        super().__init__(honest, root_hash, may_fork=True)
        self._genesis_hash = genesis_hash
        self._is_valid = is_valid
        self._committees: dict[int, dict[bytes, Committee]] = {}
        self._words: dict[tuple[bytes, int, int], set[tuple[int, int, bytes]]] = {}
        self._finals: dict[int, list[bytes]] = {}
        self._roots: dict[bytes, bytes] = {}
        self._firsts: dict[int, bytes] = {}
        self.liars: set[bytes] = set()
        """Who has cast two votes where one is allowed, whether anybody knows it or not."""
        self.proofs: dict[Equivocation, None] = {}
        """What honest nodes have found, by themselves or with the certificates that people brought."""
        self._seen: set[Certificate] = set()

    def saw_committee(self, epoch: int, committee: Committee) -> None:
        """An honest node enters an epoch with a committee, which may be another one on another branch."""
        self._committees.setdefault(epoch, {})[committee.hash] = committee

    def saw_reign(self, node: int, reign: Reign) -> None:
        """Nothing: branches differ."""

    def _casters(self, vote: Vote) -> set[Seat]:
        """Whose vote it may be: a key's, since on another branch the same account may have rotated its key."""
        return {
            committee.seats[vote.seat]._replace(weight=0)
            for committee in self._committees.get(vote.epoch, {}).values()
            if vote.seat < committee.size and self._is_valid(vote_check(committee, self._genesis_hash, vote))
        }

    def saw_vote(self, vote: Vote) -> None:
        """A vote was released. Raises Violation when it contradicts another one of an honest account."""
        for caster in self._casters(vote):
            words = self._words.setdefault((caster.vote_key, vote.epoch, vote.view), set())
            for kind, parent_view, block_hash in words:
                is_double = kind == vote.kind != 2 and (parent_view, block_hash) != (
                    vote.parent_view,
                    vote.block_hash,
                )
                if is_double or {kind, vote.kind} == {2, 3}:
                    if caster.address in self._honest:
                        raise Violation(f"an honest account equivocated: epoch {vote.epoch}, view {vote.view}")
                    self.liars.add(caster.address)
            words.add((vote.kind, vote.parent_view, vote.block_hash))

    def saw_certificate(self, certificate: Certificate, *, must_be_final: bool = False) -> None:
        """An honest node shows or keeps a certificate. Raises Violation when no committee has signed it."""
        kind, epoch, view, parent_view, block_hash, bitmap, signatures = certificate
        if certificate in self._seen:
            return
        self._seen.add(certificate)
        seats = [seat for seat in range(8 * len(bitmap)) if bitmap[seat // 8] & (1 << seat % 8)]
        votes = [
            Vote(kind, epoch, view, parent_view, block_hash, seat, signatures[64 * at : 64 * at + 64])
            for at, seat in enumerate(seats)
        ]
        for committee in self._committees.get(epoch, {}).values():
            weight = sum(committee.seats[seat].weight for seat in seats if seat < committee.size)
            if 3 * weight > 2 * sum(committee.weights) and all(
                vote.seat < committee.size and self._is_valid(vote_check(committee, self._genesis_hash, vote))
                for vote in votes
            ):
                break
        else:
            raise Violation(f"a certificate of view {view} is of no committee")
        for vote in votes:
            self.saw_vote(vote)

    def saw_commit(self, node: int, height: int, block_hash: bytes, state_root: bytes) -> None:
        """An honest node made a block final. Raises Violation when its own chain, or the state, is not one."""
        chain = self._finals.setdefault(node, [])
        block = self._blocks.get(block_hash)
        below = chain[-1] if chain else self._root_hash
        if len(chain) + 1 != height or block is None or (block.parent_hash, block.height) != (below, height):
            raise Violation(f"node {node} committed height {height}, not on top of its height {len(chain)}")
        if self._roots.setdefault(block_hash, state_root) != state_root:
            raise Violation(f"two states of one block of height {height}")
        if self._firsts.setdefault(height, block_hash) != block_hash:
            self.forks.add(height)
        chain.append(block_hash)

    def saw_power_loss(self, node: int, height: int) -> None:
        """After a loss of power the database of an honest node is at ``height``. Raises Violation."""
        if height < self.height(node):
            raise Violation(f"node {node} has lost final blocks")

    def saw_evidence(self, equivocation: Equivocation) -> None:
        """An honest node holds a proof of a fault. Raises Violation when it proves none, or names the honest."""
        first, second = equivocation
        casters = self._casters(first) & self._casters(second)
        if (first.epoch, first.view, first.seat) != (second.epoch, second.view, second.seat) or not casters:
            raise Violation("a proof of a fault proves none")
        self.saw_vote(first)
        self.saw_vote(second)
        if not {caster.address for caster in casters} <= self.liars:
            raise Violation("a proof of a fault names who has told no lie")
        self.proofs[equivocation] = None

    def check_blame(self) -> bool:
        """Tell whether the chain forked."""
        return bool(self.forks)

    def height(self, node: int) -> int:
        """The newest height that a node has committed."""
        return len(self._finals.get(node, ()))

    @property
    def height_max(self) -> int:
        """The newest height that any node has committed."""
        return max(map(len, self._finals.values()), default=0)

    @property
    def epoch_max(self) -> int:
        """The newest epoch that any honest node has entered."""
        return max(self._committees, default=0)

    def stands_on(self, block_hash: bytes, below: bytes) -> bool:
        """Tell whether a block is known and has another one below it."""
        while (block := self._blocks.get(block_hash)) is not None:
            if block.parent_hash == below:
                return True
            block_hash = block.parent_hash
        return False

    def named_share(self) -> Fraction:
        """The largest part of a committee's weight that the proofs name."""
        named: dict[int, set[bytes]] = {}
        for first, _ in self.proofs:
            named.setdefault(first.epoch, set()).update(caster.address for caster in self._casters(first))
        return max(
            (
                Fraction(sum(seat.weight for seat in committee.seats if seat.address in who), committee.weight)
                for epoch, who in named.items()
                for committee in self._committees[epoch].values()
            ),
            default=Fraction(0),
        )

    def is_back(self, node: int, machine: WholeMachine) -> None:
        """A person has put a database of a node back."""
        records = [machine.store.height(height) for height in range(1, machine.store.tip.height + 1)]
        self._finals[node] = [record.block_hash for record in records if record is not None]

    def begins_anew(self, node: int) -> None:
        """A person has taken the database of a node away."""
        self._finals.pop(node, None)


class _Cluster(Cluster):
    """A network whose chain may fork; who is of another branch looks like a liar there."""

    def __init__(
        self, seed: int, world: World, honest: frozenset[int], twins: int, parameters: ConsensusParameters
    ) -> None:
        super().__init__(seed, world, honest, twins=twins, parameters=parameters, may_fork=True)
        self.branches = Branches(self._honest, world.root_hash, world.genesis_hash, self.is_valid)
        self.aside: dict[int, tuple[WholeMachine, SimulatedLog]] = {}
        """By node: the database and the journal that it had before it began anew."""
        self.oracle = self.branches

    def _blame(self, node: Node, replica: r.Replica, sender: bytes, reason: str) -> None:
        if sender in self._honest and self.branches.forks:
            self.perform(node, replica.blamed(sender, self._clock(node)))
            return
        super()._blame(node, replica, sender, reason)

    def _enter_epoch(self, node: Node, epoch: int) -> Epoch:
        reign = super()._enter_epoch(node, epoch)
        if node.honest:
            self.branches.saw_committee(epoch, reign.committee)
        return reign

    def _perform(self, node: Node, action: r.Action) -> None:
        super()._perform(node, action)
        if isinstance(action, c.FoundFork):
            self.convict(node, action.certificate)

    def convict(self, node: Node, *certificates: Certificate) -> None:
        """A node takes in certificates of a fork, as its consensus or a person brings them."""
        for equivocation in machine_of(node).convict(*certificates):
            super()._perform(node, c.FoundEquivocation(equivocation))

    def accuse(self, node: Node, recorded: Iterable[Certificate]) -> None:
        """A person brings a node what the databases of others say, two at a time where they contradict."""
        by_view: dict[tuple[int, int], list[Certificate]] = {}
        for certificate in dict.fromkeys(recorded):
            by_view.setdefault((certificate.epoch, certificate.view), []).append(certificate)
        for found in by_view.values():
            for one, other in combinations(found, 2):
                if evidence_of_certificates(one, other):
                    self.convict(node, one, other)

    def bring_proofs(self, node: Node) -> None:
        """A person brings a node every proof that there is."""
        for equivocation in tuple(self.branches.proofs):
            super()._perform(node, c.FoundEquivocation(equivocation))


def machine_of(node: Node) -> WholeMachine:
    """Return a node's machine."""
    assert isinstance(node.machine, WholeMachine)
    return node.machine


def run_above(seed: int, *, kind: str | None = None) -> AboveOutcome:
    """Run one scenario. Raises Violation when a promise is broken that holds however many lie."""
    rng = random.Random(seed)
    drawn = rng.choice(ABOVE_KINDS)
    kind = drawn if kind is None else kind
    size = rng.choice((4, 4, 7))
    founders = [rng.choice((1, 1, 2, 3)) for _ in range(size)]
    epoch_blocks = rng.randrange(5, 8)
    faulty = _draw_faulty(rng, founders)
    world = WholeWorld(founders, spare=1, epoch_blocks=epoch_blocks, downtime_blocks_min=10**6)
    honest = frozenset(range(world.accounts)) - faulty
    cluster = _Cluster(seed, world, honest, 0 if kind == "adversary" else len(faulty), sim_parameters())
    cluster.network.latency_ms_max = rng.choice((10, 30))
    cluster.network.loss = rng.choice((0.0, 0.0, 0.05))
    for node in cluster.nodes:
        node.clock_permille = rng.randrange(950, 1051)
    if kind == "adversary":
        for account in sorted(faulty):
            Adversary(cluster, account, rate=rng.choice((0.05, 0.2)))
    cluster.start_all()
    chaos_ms = CHAOS_MS[size]
    if kind in ("fork", "apart"):
        weights = tuple([0 if account >= size else founders[account] for account in range(world.accounts)])
        fork_network(cluster, rng, weights, faulty)
    elif kind == "adversary":
        cut_network(cluster, rng, chaos_ms)
    stakers = sorted(honest - {world.accounts - 1})
    for _ in range(3):  # a rotated key must neither hide a liar nor betray an honest one
        account = rng.choice(stakers)
        cluster.call_at(rng.randrange(1, chaos_ms), partial(world.stake, account, 0, new_key=True))
    cluster.run(chaos_ms)
    return _aftermath(cluster, world, kind, faulty)


def _draw_faulty(rng: random.Random, founders: Sequence[int]) -> frozenset[int]:
    """The fewest accounts, in a drawn order, with more than a third of the weight, and less than two thirds."""
    reign = WholeWorld(founders).machine(0, rng).reign(0)
    assert reign is not None
    weights = {seat.address: seat.weight for seat in reign.committee.seats}
    world = WholeWorld(founders)
    held = [weights[world.address(account)] for account in range(len(founders))]
    order, faulty = list(range(len(founders))), set[int]()
    rng.shuffle(order)
    for account in order:
        have = sum(held[other] for other in faulty)
        if 3 * have <= sum(held) and 3 * (have + held[account]) < 2 * sum(held):
            faulty.add(account)
    return frozenset(faulty)


def _aftermath(cluster: _Cluster, world: WholeWorld, kind: str, faulty: frozenset[int]) -> AboveOutcome:
    branches, network = cluster.branches, cluster.network
    network.loss = 0.0
    healed_ms, punished = cluster.now_ms, 0
    if kind == "apart" and branches.forks:
        sides = _sides(cluster)
        _carry(cluster, sides)
        # Each for itself: one that has lost too many cannot go on, neither with a proof nor without.
        before = [branches.height(_tallest(cluster, side).number) for side in sides]
        cluster.run(cluster.now_ms + APART_MS, lambda: not any(_waits(side) for side in sides))
        for height, side in zip(before, sides, strict=True):
            if not _waits(side):
                punished += 1
                _check_branch(world, side, True, faulty)
            elif branches.height(_tallest(cluster, side).number) > height + 1:
                raise Violation("a branch goes on without the proofs that wait there")
    network.blocked = None
    cluster.run(cluster.now_ms + MEET_MS)
    if branches.forks or kind == "adversary" or any(node.halted for node in _honest(cluster.nodes)):
        _decide(cluster)
    goes_on = _settle(cluster)
    recovery_ms = cluster.now_ms - healed_ms
    if not goes_on:
        liars, epochs = len(branches.liars), branches.epoch_max + 1
        forked = bool(branches.forks)
        return AboveOutcome(
            kind, cluster.events, cluster.trace, forked, punished, liars, 0, epochs, 0, stands_still=True
        )
    slashed = _check_branch(world, cluster.nodes, bool(branches.forks), faulty)
    _without_the_slashed(cluster)
    _check_branch(world, cluster.nodes, bool(branches.forks), faulty)
    return AboveOutcome(
        kind,
        cluster.events,
        cluster.trace,
        bool(branches.forks),
        punished,
        len(branches.liars),
        slashed,
        branches.epoch_max + 1,
        recovery_ms,
    )


def _honest(nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node.honest]


def _sides(cluster: _Cluster) -> list[list[Node]]:
    """The nodes that hear each other, of the sides that have any honest one."""
    blocked = cluster.network.blocked
    assert blocked is not None
    sides: list[list[Node]] = []
    for node in cluster.nodes:
        side = next((side for side in sides if not blocked(side[0].number, node.number)), None)
        if side is None:
            sides.append([node])
        else:
            side.append(node)
    return [side for side in sides if _honest(side)]


def _carry(cluster: _Cluster, sides: list[list[Node]]) -> None:
    """Somebody who has seen both chains brings each what the nodes of both have on record, and all proofs."""
    recorded = _recorded(cluster)
    for side in sides:
        cluster.accuse(_tallest(cluster, side), recorded)
    for side in sides:
        cluster.bring_proofs(_tallest(cluster, side))


def _recorded(cluster: _Cluster) -> list[Certificate]:
    """What the databases of honest nodes have; nothing that is in memory or journal alone."""
    return [
        certificate
        for node in _honest(cluster.nodes)
        for certificate in certificates_of(machine_of(node).store, from_height=1)
    ]


def _tallest(cluster: _Cluster, nodes: Sequence[Node]) -> Node:
    return max(_honest(nodes), key=lambda node: (cluster.branches.height(node.number), -node.number))


def _follows(machine: WholeMachine, other: WholeMachine) -> bool:
    """Whether one chain is the beginning of the other."""
    shared = min(machine.store.tip.height, other.store.tip.height)
    one, two = machine.store.height(shared), other.store.height(shared)
    return one is not None and two is not None and one.block_hash == two.block_hash


def _decide(cluster: _Cluster, chosen: Node | None = None) -> None:
    """People agree on a chain, the longest: who follows it starts again as it is, the others begin anew on it.

    Their guards stay, and who halts once more begins anew too. Of a liar one process is left, of that chain if it
    has any. What the databases that are given up had on record is brought to the chain that goes on.
    """
    chosen = _tallest(cluster, cluster.nodes) if chosen is None else chosen
    chain = machine_of(chosen)
    followers = {node.number for node in cluster.nodes if _follows(machine_of(node), chain)}
    recorded = _recorded(cluster)
    stays = {node.number for node in cluster.nodes if node.honest}
    for account in {node.account for node in cluster.nodes if not node.honest}:
        processes = [node for node in cluster.nodes if node.account == account]
        stays.add(max(processes, key=lambda node: (node.number in followers, -node.number)).number)
    cluster.on_deliver.clear()
    for node in cluster.nodes:
        cluster.crash(node, EVER_MS)
        if node.number not in followers:
            _begin_anew(cluster, node)
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
            if _follows(machine_of(node), chain):
                node.journal_log.durable = blocks_alone(node.journal_log.durable)
            else:
                _begin_anew(cluster, node)
            _start_again(cluster, node)
    cluster.accuse(chosen, recorded)
    cluster.bring_proofs(chosen)


def _turn_back(cluster: _Cluster) -> bool:
    """People take the other chain, from the databases that were put aside; tell whether there are any."""
    aside, cluster.aside = cluster.aside, {}
    back = [node for node in cluster.nodes if node.number in aside]
    if not _honest(back):
        return False
    for node in cluster.nodes:
        cluster.crash(node, EVER_MS)
    for node in back:
        earlier, node.journal_log = aside[node.number]
        node.machine = machine_of(node).put_back(earlier)
        cluster.branches.is_back(node.number, earlier)
    _decide(cluster, _tallest(cluster, back))
    return True


def _begin_anew(cluster: _Cluster, node: Node) -> None:
    cluster.aside.setdefault(node.number, (machine_of(node), node.journal_log))
    node.journal_log = SimulatedLog()
    node.machine = machine_of(node).anew()
    cluster.branches.begins_anew(node.number)


def _start_again(cluster: _Cluster, node: Node) -> None:
    node.halted = None
    cluster.start(node)


def _waits(side: Sequence[Node]) -> bool:
    return any(machine_of(node).pending for node in _honest(side))


def _settle(cluster: _Cluster) -> bool:
    """Run until all that is provable is on the chain, and it goes on; tell whether it does.

    It need not where a lie leads past what can be built on; then the proofs must tell whose lie it is. Raises
    Violation when it takes too long for no such reason.
    """
    honest, branches = _honest(cluster.nodes), cluster.branches

    def is_done() -> bool:
        return all(branches.height(node.number) >= goal for node in honest) and not _waits(honest)

    limit_ms = LIMIT_MS
    for decision in range(1, DECISIONS_MAX + 1):
        goal = max(branches.height(node.number) for node in honest) + LIVE_BLOCKS
        if cluster.run(cluster.now_ms + limit_ms, is_done):
            return True
        if decision == DECISIONS_MAX:
            break
        if any(node.halted for node in honest):
            _decide(cluster)
        elif limit_ms == LIMIT_MS and _turn_back(cluster):
            limit_ms = LIMIT_AGAIN_MS
        else:
            break
    heights = [branches.height(node.number) for node in honest]
    waiting = [len(machine_of(node).pending) for node in honest]
    seated = [node for node in honest if _has_seat(cluster.world, node)]
    if not all(_is_led_astray(cluster, node) for node in seated):
        raise Violation(f"not all proofs are on chain: heights {heights} of {goal}, waiting {waiting}")
    if 3 * branches.named_share() <= 1:
        raise Violation(f"the chain stands still at {heights}, and the proofs name too few")
    return False


def _has_seat(world: World, node: Node) -> bool:
    reign = node.machine.reign(node.epoch)
    assert reign is not None
    return reign.committee.seat_of(world.address(node.account)) is not None


def _is_led_astray(cluster: _Cluster, node: Node) -> bool:
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


def _slashed(machine: WholeMachine, world: WholeWorld) -> dict[int, SlashRecord]:
    records = {account: load_slash(machine.store, world.address(account)) for account in range(world.accounts)}
    return {account: record for account, record in records.items() if record is not None}


def _check_branch(world: WholeWorld, side: Sequence[Node], is_forked: bool, faulty: frozenset[int]) -> int:
    """Check who has lost what on a branch, and who was paid. Raises Violation; returns how many were slashed."""
    for node in _honest(side):
        machine = machine_of(node)
        store, slashed = machine.store, _slashed(machine, world)
        out = {
            account
            for account in range(world.accounts)
            if (jail := load_jail(store, world.address(account))) is not None and jail.until_epoch == FOREVER
        }
        if out != set(slashed) or not out <= faulty:
            raise Violation(f"out for ever are {sorted(out)}, slashed {sorted(slashed)}, of {sorted(faulty)}")
        share = Fraction(0)
        for account, record in slashed.items():
            committee = machine.info(record.epoch)
            assert committee is not None, "committees are kept as long as evidence counts"
            seat = committee.committee.seat_of(world.address(account))
            assert seat is not None, "a proof names a seat"
            share += Fraction(committee.committee.seats[seat].weight, committee.committee.weight)
        if is_forked and 3 * share <= 1:
            raise Violation(f"the chain forked, and who is slashed held {float(share):.2f} of the weight")
        rate = min(Fraction(1), max(Fraction(1, 20), 3 * share))
        paid: dict[bytes, int] = {}
        for account, record in slashed.items():
            stake = load_stake(store, world.address(account))
            left = stake.amount if stake is not None else 0
            # Shares are rounded up in parts of a thousand million.
            if (
                abs(left - record.base * (1 - rate)) > record.base * 100 // 10**9
                or left + record.taken != record.base
            ):
                raise Violation(
                    f"{left} of {record.base} are left to account {account} at a rate of {float(rate)}"
                )
            is_own = record.reporter == world.address(account)
            if record.rewarded != (0 if is_own else record.taken // 20):
                raise Violation(f"{record.rewarded} were paid for {record.taken}")
            paid[record.reporter] = paid.get(record.reporter, 0) + record.rewarded
        for reporter, amount in paid.items():
            if balance_of(store, reporter) < BALANCE // 2 + amount:
                raise Violation("a reporter was not paid")
        for account in set(range(world.founders)) - faulty:
            stake = load_stake(store, world.address(account))
            left = stake.amount if stake is not None else 0
            if left * 100 < world.staked(account) * HONEST_MIN:
                raise Violation(f"{left} of the stake of the honest account {account} are left")
    return len(slashed)


def _without_the_slashed(cluster: _Cluster) -> None:
    """Run until no slashed account has a seat; then the others go on without any of them. Raises Violation."""
    honest, branches, world = _honest(cluster.nodes), cluster.branches, cluster.world
    assert isinstance(world, WholeWorld)
    slashed = {world.address(account) for account in _slashed(machine_of(honest[0]), world)}

    def are_out() -> bool:
        for node in honest:
            reign = node.machine.reign(node.epoch)
            assert reign is not None
            if any(reign.committee.seat_of(address) is not None for address in slashed):
                return False
        return True

    if not are_out() and not cluster.run(cluster.now_ms + LIMIT_MS, are_out):
        raise Violation("the slashed still have seats")
    for node in cluster.nodes:
        if node.address in slashed:
            cluster.crash(node, EVER_MS)
    goal = max(branches.height(node.number) for node in honest) + LIVE_BLOCKS
    if not cluster.run(
        cluster.now_ms + LIMIT_MS, lambda: all(branches.height(node.number) >= goal for node in honest)
    ):
        raise Violation("the honest do not go on without the slashed")
