"""Traces of the Quint model, replayed against the real core and the real guard.

Each honest seat of the model is a ``Core`` with a ``Guard``. What the model's seat learns or is shown, the core
is given, as the event a node would give it; the shell's part (blocks, execution, signatures) is answered at
once. After each step: what the model's seat has voted, the core has voted, and whatever the core has voted the
model allows; both are in the same view and have committed the same block. The core may be ahead with a
FINALIZE, which it casts at once.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from consensus import events as c
from consensus.core.core import Core
from consensus.events import ConsensusParameters, Epoch, Root
from consensus.guard import Guard
from consensus.votes import Certificate
from state.primitives.blocks import VERSION, Header, header_hash
from state.primitives.committee import Committee, Seat
from state.primitives.hashing import ZERO_HASH, digest
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote
from tests.model.rules import Block, Chain, Rules, ViewRecord
from tests.model.rules import Candidate as Named

KINDS: Final = {"notarize": NOTARIZE, "nullify": NULLIFY, "finalize": FINALIZE}
GENESIS: Final = b"g" * 32
EPOCH: Final = 1
NOTHING: Final = Named(0, ())
STALE: Final = 9
"""The mark of a block that a leader has built in vain."""


class World(NamedTuple):
    """An instance of the model: what its constants are here."""

    weights: tuple[int, ...]
    faulty: int
    last_height: int


WORLDS: Final = {
    "equal": World((1, 1, 1, 1), 1, 2),
    "weighted": World((1, 1, 2, 1), 1, 2),
}


class Step(NamedTuple):
    """One state of a trace: what was done, and where everybody is after it."""

    did: str
    kind: str
    seat: int
    view: int
    named: Named
    current: dict[int, int]
    committed: dict[int, Block]


def committee_of(weights: tuple[int, ...]) -> Committee:
    return Committee(
        Seat(bytes([n + 1]) * 20, bytes([n + 1]) * 32, bytes([n + 1]) * 32, weight)
        for n, weight in enumerate(weights)
    )


def load_trace(path: Path) -> list[Step]:
    """Read a trace in the Informal Trace Format, whole as Quint writes it or cut down as it is kept here."""

    def plain(value: Any) -> Any:
        match value:
            case {"#bigint": number}:
                return int(number)
            case {"#map": pairs}:
                return {plain(key): plain(item) for key, item in pairs}
            case {"#set": items} | {"#tup": items}:
                return [plain(item) for item in items]
            case dict():
                return {key.rpartition("::")[2]: plain(item) for key, item in value.items() if key != "#meta"}
            case list():
                return [plain(item) for item in value]
            case _:
                return value

    steps = []
    for state in json.loads(path.read_text())["states"]:
        values = plain(state)
        last = values["last"]
        what = last["what"]
        steps.append(
            Step(
                last["did"],
                last["kind"],
                last["seat"],
                what["view"],
                Named(what["parent"], tuple(what["block"])),
                values["current"],
                {seat: tuple(block) for seat, block in values["committed"].items()},
            )
        )
    return steps


@dataclass
class Replica:
    """One honest seat: its core and guard, and what the model says it knows."""

    seat: int
    core: Core
    guard: Guard
    known: dict[tuple[str, int], Named] = field(default_factory=dict)
    cast: dict[tuple[int, int], Candidate] = field(default_factory=dict)
    formed: set[tuple[int, int]] = field(default_factory=set)
    build: c.Build | None = None
    waits_idle: bool = False


class Replay:
    """A trace against one committee.

    ``idle``: nobody has a transaction, so leaders wait before they propose. ``by_votes``: certificates are formed
    from votes, not received, wherever the votes tell the core no more than the model's seat learns.
    """

    def __init__(
        self, world: World, *, idle: bool = False, by_votes: bool = False, core_type: type[Core] = Core
    ) -> None:
        self.by_votes = by_votes
        self.committee = committee_of(world.weights)
        self.faulty = world.faulty
        self.last_height = world.last_height
        honest = [seat for seat in range(len(world.weights)) if seat != world.faulty]
        self.rules = Rules(
            tuple(world.weights[seat] for seat in honest), world.weights[world.faulty], world.last_height
        )
        self.headers: dict[Block, tuple[bytes, Header]] = {}
        self.blocks: dict[bytes, Block] = {ROOT.block_hash: ()}
        self.votes: dict[tuple[str, int, Named], set[int]] = {}
        self.seen: Counter[str] = Counter()
        parameters = ConsensusParameters(block_interval_ms=0, idle_ms=5_000 if idle else 0)
        self.replicas = {
            seat: Replica(
                seat,
                core_type(
                    epoch=Epoch(EPOCH, world.last_height, self.committee, b"r" * 32),
                    genesis_hash=GENESIS,
                    seat=seat,
                    root=ROOT,
                    parameters=parameters,
                    has_transactions=not idle,
                ),
                Guard(GENESIS, self.committee.seats[seat].vote_key),
            )
            for seat in honest
        }

    def run(self, steps: list[Step]) -> Counter[str]:
        """Replay a whole trace and return what was seen. Raises AssertionError where model and core differ."""
        for number, step in enumerate(steps):
            if step.did == "begin":
                for replica in self.replicas.values():
                    self.feed(replica, c.Start())
            else:
                self.take(step)
            for seat, replica in self.replicas.items():
                where = f"step {number} ({step.did} {step.kind} of view {step.view} by {step.seat}), seat {seat}"
                committed = self.blocks[replica.core.root.block_hash]
                assert committed == step.committed[seat], f"{where}: committed {committed}"
                if len(committed) < self.last_height:
                    assert replica.core.view == step.current[seat], f"{where}: in view {replica.core.view}"
        return self.seen

    def take(self, step: Step) -> None:
        """Give one step of the model to the core of its seat."""
        replica, named = self.replicas[step.seat], step.named
        vote = KINDS[step.kind], step.view
        self.seen[step.did] += 1
        match step.did:
            case "learn":
                self.learn(replica, step)
                return
            case "propose":
                self.propose(replica, step)
            case "notarize":
                assert vote not in replica.cast, f"a vote before there is a proposal: {step}"
                self.show(replica, step)
            case "refuse":
                self.show(replica, step)
            case "nullify":
                assert vote not in replica.cast, f"a NULLIFY without a reason: {step}"
                self.feed(replica, c.TimerFired(c.ADVANCE))
            case "finalize":
                self.seen["finalize late"] += step.view < replica.core.view - 1
            case _:
                raise AssertionError(step)
        assert replica.cast.get(vote) == self.candidate(step), f"the core has not done this: {step}"
        for_what = NOTHING if step.kind == "nullify" else named
        self.votes.setdefault((step.kind, step.view, for_what), set()).add(step.seat)

    def learn(self, replica: Replica, step: Step) -> None:
        """Let a replica have a certificate, or the votes that make it."""
        replica.known[step.kind, step.view] = step.named
        certificate = self.certificate(step)
        votes = sorted(certificate.votes(), key=lambda vote: (vote.seat == self.faulty, vote.seat))
        leader = self.committee.leader(step.view)
        # A leader's NULLIFY, or its second NOTARIZE, is a reason to give the view up that the model does not have.
        tells_more = leader in (vote.seat for vote in votes) and (step.kind == "nullify" or leader == self.faulty)
        if self.by_votes and not tells_more:
            for vote in votes:
                if vote.seat != replica.seat and not self.is_formed(replica, certificate):
                    self.feed(replica, c.VoteReceived(vote))
            self.seen["learn by votes"] += self.is_formed(replica, certificate)
        self.feed(replica, c.CertificateReceived(certificate))

    def is_formed(self, replica: Replica, certificate: Certificate) -> bool:
        return (certificate.kind, certificate.view) in replica.formed

    def propose(self, replica: Replica, step: Step) -> None:
        """Let a leader build; at the boundary there is nothing to build and the core has been faster."""
        parent_view, block = step.named
        is_again = block[-1] // 10 != step.view
        self.seen["propose again"] += is_again
        self.seen["propose on a skipped view"] += parent_view < step.view - 1
        if is_again and replica.build is None:
            return
        if replica.waits_idle:
            assert replica.build is None, "a leader that waits does not build"
            self.feed(replica, c.TimerFired(c.IDLE))
        parent_hash = self.hash_of(block[:-1])
        if replica.build is not None and (is_again or replica.build.parent_hash != parent_hash):
            # A newer parent was certified while this one was built upon.
            self.seen["build in vain"] += 1
            stale = (*self.blocks[replica.build.parent_hash], 10 * step.view + STALE)
            replica.build = None
            self.feed(replica, c.BlockBuilt(step.view, *self.block(stale)))
        if not is_again:
            build = replica.build
            assert build is not None and build.parent_hash == parent_hash, f"this is not being built: {step}"
            assert build.view == step.view and build.seat == step.seat
            self.feed(replica, c.BlockBuilt(step.view, *self.block(block)))

    def show(self, replica: Replica, step: Step) -> None:
        """Show the leader's proposal to a replica."""
        leader = self.committee.leader(step.view)
        block_hash, header = self.block(step.named.block)
        candidate = Candidate(EPOCH, step.view, step.named.parent_view, block_hash)
        self.feed(replica, c.ProposalReceived(Vote(NOTARIZE, *candidate, leader, bytes(64)), header))

    # The shell.

    def feed(self, replica: Replica, event: c.Event) -> None:
        """Step a core, and answer what it asks for until it asks for nothing more."""
        events = deque([event])
        while events:
            for effect in replica.core.step(events.popleft(), 0):
                match effect:
                    case c.CastVote(kind, candidate, _):
                        events.append(self.cast(replica, kind, candidate))
                    case c.Propose(candidate, justify, nulls):
                        self.check_justified(candidate, justify, nulls)
                        events.append(self.cast(replica, NOTARIZE, candidate))
                    case c.Build():
                        replica.build = effect
                    case c.Check(block_hash):
                        events.append(c.BlockChecked(block_hash, True))
                    case c.Execute(block_hash):
                        events.append(c.BlockExecuted(block_hash, state_after(block_hash), ZERO_HASH))
                    case c.AskBlock(_, block_hash):
                        events.append(c.BlockReceived(block_hash, self.block(self.blocks[block_hash])[1]))
                    case c.EnterView():
                        replica.build, replica.waits_idle = None, False
                    case c.SetTimer(c.IDLE, _):
                        replica.waits_idle = True
                    case c.Commit(_, block_hashes, _):
                        self.seen["commit"] += len(block_hashes)
                    case c.EpochEnded():
                        self.seen["epoch ended"] += 1
                    case c.KeepCertificate(certificate, True):
                        assert self.by_votes, f"formed from too few votes: {certificate}"
                        replica.formed.add((certificate.kind, certificate.view))
                    case c.Halt() | c.FoundEquivocation() | c.Behind():
                        raise AssertionError(f"nothing gives cause for {effect}")
                    case _:
                        pass

    def cast(self, replica: Replica, kind: int, candidate: Candidate) -> c.Event:
        """Sign and record a vote as the signer does, after asking the guard and the model."""
        assert replica.guard.check(kind, candidate) is None, "the core asks for a vote twice"
        self.check_allowed(replica, kind, candidate)
        vote = Vote(kind, *candidate, replica.seat, bytes(64))
        replica.guard.record(vote)
        replica.cast[kind, candidate.view] = candidate
        return c.VoteReceived(vote, True)

    # What the model allows (R1, R3, R4, R5), by what this seat knows and has voted.

    def check_allowed(self, replica: Replica, kind: int, candidate: Candidate) -> None:
        view, current, cast = candidate.view, replica.core.view, replica.cast
        assert (kind, view) not in cast, f"a second vote: {candidate}"
        if kind == FINALIZE:
            assert (NULLIFY, view) not in cast, f"FINALIZE after NULLIFY: {candidate}"
            certified = replica.known.get(("notarize", view))
            assert certified == self.named(candidate), f"FINALIZE of what is not notarized: {candidate}"
            return
        assert view == current, f"a vote outside of the current view {current}: {candidate}"
        if kind == NULLIFY:
            assert (FINALIZE, view) not in cast, f"NULLIFY after FINALIZE: {candidate}"
            return
        assert (NULLIFY, view) not in cast, f"NOTARIZE after NULLIFY: {candidate}"
        chain = self.chain(replica, view)
        parents = self.rules.parents(chain)
        parent_view, block = self.named(candidate)
        if self.committee.leader(view) == replica.seat:
            assert parent_view == parents[0].parent_view, f"not the newest parent: {candidate}"
        parent = next((known for known in parents if known.parent_view == parent_view), None)
        assert parent is not None, f"a parent that the certificates do not let through: {candidate}"
        if len(parent.block) == self.last_height:
            assert block == parent.block, f"above the boundary: {candidate}"
        else:
            assert block[:-1] == parent.block and block[-1] // 10 == view, f"another block: {candidate}"

    def chain(self, replica: Replica, view: int) -> Chain:
        """What a seat knows of the views before ``view``."""
        records = []
        for past in range(1, view):
            certified = replica.known.get(("notarize", past)) or replica.known.get(("finalize", past))
            records.append(ViewRecord((certified,) if certified else (), ("nullify", past) in replica.known))
        return tuple(records)

    def check_justified(
        self, candidate: Candidate, justify: Certificate | None, nulls: tuple[Certificate, ...]
    ) -> None:
        """A proposal carries the proof of its parent and of each skipped view."""
        assert {null.view for null in nulls} == set(range(candidate.parent_view + 1, candidate.view))
        assert all(null.kind == NULLIFY for null in nulls)
        if candidate.parent_view == 0:
            assert justify is None
            return
        assert justify is not None and justify.kind != NULLIFY and justify.view == candidate.parent_view
        block = self.blocks[candidate.block_hash]
        assert self.blocks[justify.block_hash] in (block, block[:-1])

    # Names of the model and bytes of the core.

    def block(self, block: Block) -> tuple[bytes, Header]:
        found = self.headers.get(block)
        if found is None:
            parent_hash = self.hash_of(block[:-1])
            view, which = divmod(block[-1], 10)
            header = Header(
                version=VERSION,
                genesis_hash=GENESIS,
                height=len(block),
                epoch=EPOCH,
                view=view,
                proposer_seat=self.committee.leader(view),
                parent_hash=parent_hash,
                time_ms=len(block),
                tx_root=bytes([which]) * 32,
                receipt_root=ZERO_HASH,
                state_root=state_after(parent_hash),
                evidence_root=ZERO_HASH,
                vrf_proof=b"",
                committee_hash=self.committee.hash,
                next_committee_hash=ZERO_HASH,
                voters_bitmap=b"",
                base_fee=0,
                tx_bytes=0,
                tx_count=0,
                signal=VERSION,
            )
            found = self.headers[block] = header_hash(header), header
            self.blocks[found[0]] = block
        return found

    def hash_of(self, block: Block) -> bytes:
        return self.block(block)[0] if block else ROOT.block_hash

    def named(self, candidate: Candidate) -> Named:
        return Named(candidate.parent_view, self.blocks[candidate.block_hash])

    def candidate(self, step: Step) -> Candidate:
        if step.kind == "nullify":
            return Candidate(EPOCH, step.view, 0, ZERO_HASH)
        return Candidate(EPOCH, step.view, step.named.parent_view, self.hash_of(step.named.block))

    def certificate(self, step: Step) -> Certificate:
        """The votes that the model has seen cast, with those of the faulty seat."""
        seats = sorted({self.faulty, *self.votes[step.kind, step.view, step.named]})
        assert sum(self.committee.weights[seat] for seat in seats) >= self.committee.quorum
        candidate = self.candidate(step)
        return Certificate.of(
            self.committee, [Vote(KINDS[step.kind], *candidate, seat, bytes(64)) for seat in seats]
        )


def state_after(block_hash: bytes) -> bytes:
    """What executing a block leads to, in a world without accounts."""
    return digest(b"state", block_hash)


ROOT: Final = Root(b"0" * 32, 0, 0, state_after(b"0" * 32), ZERO_HASH)
