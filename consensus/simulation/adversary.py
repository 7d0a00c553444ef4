"""A faulty account that knows the protocol: it follows as an observer, and says whatever may hurt.

See consensus.md 5.3.

Twins run correct code and so never break a rule that correct code keeps; this one proposes on stale parents, skips
views without nullifications, votes twice, justifies wrongly, replays what it heard, also into other epochs, and
sends damaged certificates and garbage.
"""

from __future__ import annotations

from typing import Final

from consensus import replica as r
from consensus.simulation.cluster import Cluster, SimulatedNode
from consensus.simulation.worlds import GENESIS_BLOCK, HashWorld, next_state_root
from consensus.votes import Certificate
from consensus.wire import (
    BlockReply,
    Certificates,
    GetBlock,
    Message,
    Proposal,
    Votes,
    encode_message,
)
from state.primitives.blocks import Block, Header, encode_block, header_hash
from state.primitives.committee import Committee
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote, vrf_alpha

__all__ = ["Adversary"]

REPLAYS_MAX: Final = 200
OLD_MAX: Final = 40
"""Votes and certificates of earlier epochs that it keeps."""


class Adversary:
    """Drives one faulty account of a cluster; ``rate`` is the chance to act on each message it hears."""

    def __init__(self, cluster: Cluster, account: int, rate: float) -> None:
        self._cluster = cluster
        self._node: SimulatedNode = cluster.nodes[account]
        self._account = account
        self._rate = rate
        self._rng = cluster.rng
        self._epoch = -1
        self._key = 0
        self._seat: int | None = None
        self._committee: Committee | None = None
        self._proposed: set[int] = set()
        self._candidates: dict[int, list[Candidate]] = {}
        self._certificates: dict[tuple[int, int], Certificate] = {}
        self._headers: dict[bytes, Header] = {}
        self._states: dict[bytes, bytes] = {GENESIS_BLOCK: next_state_root(ZERO_HASH, GENESIS_BLOCK)}
        self._blocks: dict[bytes, bytes] = {}
        self._heard: list[bytes] = []
        self._old_votes: list[Vote] = []
        self._old_certificates: list[Certificate] = []
        self._view = 1
        self._node.votes = False  # its replica observes; the adversary signs
        cluster.on_deliver[account] = self.hears

    def _follow(self, epoch: int) -> None:
        """Take the seat of a new epoch; what was heard of the old one is kept to be said again."""
        self._old_certificates = [*self._certificates.values(), *self._old_certificates][:OLD_MAX]
        self._certificates.clear()
        self._candidates.clear()
        self._proposed.clear()
        self._epoch, self._view = epoch, 1
        epoch_view = self._node.machine.epoch_view(epoch)
        assert epoch_view is not None, "its own node is in that epoch"
        self._committee = epoch_view.committee
        self._seat = epoch_view.committee.seat_of(self._node.address)
        if self._seat is not None:
            self._key = self._cluster.world.key_of(self._account, epoch_view.committee.seats[self._seat].vote_key)

    def hears(self, _sender: int, raw: bytes, decoded: r.Decoded) -> None:
        """Learn from a message, then perhaps act."""
        message = decoded.message
        rng = self._rng
        if self._node.epoch != self._epoch:
            self._follow(self._node.epoch)
        if len(self._heard) < REPLAYS_MAX:
            self._heard.append(raw)
        elif rng.random() < 0.2:
            self._heard[rng.randrange(REPLAYS_MAX)] = raw
        match message:
            case Votes(votes):
                for vote in votes:
                    self._hear_vote(vote)
            case Proposal():
                self._hear_proposal(message, decoded.blocks[0][1].header)
            case Certificates(certificates):
                self._keep(certificates)
            case GetBlock(block_hash) if block_hash in self._blocks and rng.random() < 0.5:
                self._tell(BlockReply(self._blocks[block_hash]))
            case _:
                pass
        replica = self._node.replica
        if replica is not None and replica.core.epoch == self._epoch:
            self._view = max(self._view, replica.core.view)
            self._keep(replica.core.certificates(max(1, self._view - 3), self._view))
        if self._leads(self._view) and self._view not in self._proposed:
            self._proposed.add(self._view)
            self._lead(self._view)
        elif rng.random() < self._rate:
            self._act()

    def _leads(self, view: int) -> bool:
        return (
            self._committee is not None and self._seat is not None and self._committee.leader(view) == self._seat
        )

    def _hear_vote(self, vote: Vote) -> None:
        if vote.epoch != self._epoch:
            return
        if len(self._old_votes) < OLD_MAX or self._rng.random() < 0.05:
            self._old_votes = [vote, *self._old_votes[: OLD_MAX - 1]]
        if vote.view <= self._view + 3:  # another faulty seat's may be absurd
            self._view = max(self._view, vote.view)
        if vote.kind != NULLIFY:
            self._learn(vote.candidate)

    def _hear_proposal(self, proposal: Proposal, header: Header) -> None:
        candidate, _, justify, nulls, block = proposal
        if candidate.epoch != self._epoch:
            return
        self._learn(candidate)
        if candidate.view <= self._view + 3:
            self._view = max(self._view, candidate.view)
        self._headers[candidate.block_hash] = header
        self._blocks[candidate.block_hash] = block
        parent_state = self._states.get(header.parent_hash)
        if parent_state is not None:
            self._states[candidate.block_hash] = next_state_root(parent_state, candidate.block_hash)
        self._keep(nulls if justify is None else (*nulls, justify))

    def _keep(self, certificates: tuple[Certificate, ...]) -> None:
        for certificate in certificates:
            if certificate.epoch == self._epoch:
                self._certificates[certificate.kind, certificate.view] = certificate

    def _learn(self, candidate: Candidate) -> None:
        known = self._candidates.setdefault(candidate.view, [])
        if candidate not in known and len(known) < 8:
            known.append(candidate)

    # Saying things.

    def _tell(self, message: Message, share: float = 1.0) -> None:
        self._send(encode_message(message), share)

    def _send(self, data: bytes, share: float = 1.0) -> None:
        for node in self._cluster.nodes:
            if node.number != self._node.number and (share >= 1.0 or self._rng.random() < share):
                self._cluster.send(self._node.number, node.number, data)

    def _signed(self, kind: int, candidate: Candidate) -> Vote | None:
        if self._seat is None:
            return None
        return self._cluster.sign(self._account, self._key, Vote(kind, *candidate, self._seat, b""))

    def _vote(self, kind: int, candidate: Candidate, share: float) -> None:
        if kind == NULLIFY:
            candidate = Candidate(candidate.epoch, candidate.view, 0, ZERO_HASH)
        vote = self._signed(kind, candidate)
        if vote is not None:
            self._tell(Votes((vote,)), share)

    def _act(self) -> None:
        rng = self._rng
        view = max(1, self._view - rng.choice((0, 0, 0, 1, 1, 2, 5)))
        candidates = self._candidates.get(view) or [
            Candidate(self._epoch, view, max(0, view - 1), rng.randbytes(32))
        ]
        candidate = rng.choice(candidates)
        choice = rng.randrange(10)
        if choice <= 2:
            self._vote(choice + 1, candidate, rng.choice((0.5, 1.0)))
        elif choice == 3:  # everything at once, to different halves
            for kind in (NOTARIZE, NULLIFY, FINALIZE):
                for each in candidates:
                    self._vote(kind, each, 0.5)
        elif choice == 4 and self._heard:
            self._send(rng.choice(self._heard))
        elif choice == 5 and self._heard:
            damaged = bytearray(rng.choice(self._heard))
            for _ in range(rng.choice((1, 1, 2, 8))):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            self._send(bytes(damaged))
        elif choice == 6 and self._certificates:
            self._damaged_certificate()
        elif choice == 7:  # a vote far ahead, for a view that nobody has reached
            ahead = self._view + rng.choice((1, 2, 3, 50, 10**9))
            self._vote(
                rng.choice((NOTARIZE, NULLIFY, FINALIZE)),
                Candidate(self._epoch, ahead, ahead - 1, bytes(32)),
                1.0,
            )
        elif choice == 8:
            self._replay_across_epochs(candidate)
        elif self._certificates:
            newest = [c for (_, at), c in self._certificates.items() if at >= self._view - 4]
            if newest:
                self._tell(Certificates(tuple(newest[:64])), 0.5)

    def _replay_across_epochs(self, candidate: Candidate) -> None:
        """Votes and certificates of other epochs: as they were, under this epoch's number, or newly signed."""
        rng = self._rng
        choice = rng.randrange(4)
        other = max(0, self._epoch + rng.choice((-1, 1, 1, 2)))
        if choice == 0 and self._old_votes:
            old = rng.sample(self._old_votes, min(8, len(self._old_votes)))
            if rng.random() < 0.5:
                old = [vote._replace(epoch=self._epoch) for vote in old]
            self._tell(Votes(tuple(old)))
        elif choice == 1 and self._old_certificates:
            certificate = rng.choice(self._old_certificates)
            self._tell(Certificates((certificate._replace(epoch=rng.choice((self._epoch, certificate.epoch))),)))
        elif choice == 2 and self._certificates:
            certificate = rng.choice(list(self._certificates.values()))
            self._tell(Certificates((certificate._replace(epoch=other),)))
        elif self._seat is not None:
            self._vote(rng.choice((NOTARIZE, NULLIFY, FINALIZE)), candidate._replace(epoch=other), 1.0)

    def _damaged_certificate(self) -> None:
        rng = self._rng
        certificate = rng.choice(list(self._certificates.values()))
        size = 64
        first = certificate.signatures[:size]
        damages = (
            certificate._replace(signatures=first * (len(certificate.signatures) // size)),  # one seat, many times
            certificate._replace(view=self._view, parent_view=0),
            certificate._replace(kind=FINALIZE) if certificate.kind == NOTARIZE else certificate._replace(epoch=7),
            certificate._replace(bitmap=b"\xff" * len(certificate.bitmap)),
            certificate._replace(bitmap=certificate.bitmap + b"\x01"),
            certificate._replace(bitmap=bytes((certificate.bitmap[0] ^ 0b11, *certificate.bitmap[1:]))),
            certificate._replace(signatures=certificate.signatures[:-size] or first),
            self._lighter(certificate),
            certificate._replace(bitmap=b"\x01".ljust(len(certificate.bitmap), b"\0"), signatures=first),
            certificate._replace(block_hash=rng.randbytes(32)),
        )
        self._tell(Certificates((rng.choice(damages),)))

    @staticmethod
    def _lighter(certificate: Certificate) -> Certificate:
        """Return the certificate without its first vote: well formed, and perhaps short of weight."""
        bits = int.from_bytes(certificate.bitmap, "little")
        lighter = (bits & (bits - 1)).to_bytes(len(certificate.bitmap), "little")
        return certificate._replace(bitmap=lighter, signatures=certificate.signatures[64:])

    # Leading badly.

    def _make(self, view: int, parent_hash: bytes) -> Block | None:
        """Return a block: in a world of hashes on any parent it has heard of, else on one that it has executed."""
        world, seat = self._cluster.world, self._seat
        epoch_view = self._node.machine.epoch_view(self._epoch)
        if seat is None or epoch_view is None:
            return None
        if not isinstance(world, HashWorld):
            alpha = vrf_alpha(world.genesis_hash, epoch_view.randomness, self._epoch, view)
            block = self._node.machine.build(
                parent_hash, epoch=self._epoch, view=view, seat=seat, time_ms=self._cluster.now_ms,
                vrf_proof=world.signer(self._account, self._key).prove(alpha), voters=b"",
            )  # fmt: skip
        else:
            state, header = self._states.get(parent_hash), self._headers.get(parent_hash)
            if state is None or (header is None and parent_hash != GENESIS_BLOCK):
                return None
            block = world.make_block(
                height=1 if header is None else header.height + 1, epoch=self._epoch, view=view, seat=seat,
                parent_hash=parent_hash, state_root=state, vrf_proof=world.proof(self._epoch, view, seat),
                body=self._rng.randbytes(8),
            )  # fmt: skip
        if block is None:
            return None
        block_hash = self._shown(block)
        if parent_hash in self._states:
            self._states[block_hash] = next_state_root(self._states[parent_hash], block_hash)
        return block

    def _shown(self, block: Block) -> bytes:
        header = block.header
        block_hash = header_hash(header)
        self._headers[block_hash] = header
        self._blocks[block_hash] = encode_block(block)
        self._cluster.oracle.saw_block(block_hash, header.parent_hash, header.height, header.epoch)
        return block_hash

    def _lead(self, view: int) -> None:
        rng = self._rng
        certified = sorted(
            (c for (kind, _), c in self._certificates.items() if kind != NULLIFY), key=lambda c: -c.view
        )
        certified = [c for c in certified if c.view < view]
        choice = rng.randrange(9)
        if choice == 0:
            return  # says nothing
        parents: list[tuple[int, bytes, Certificate | None]] = [(c.view, c.block_hash, c) for c in certified[:4]]
        replica = self._node.replica
        parents.append((0, GENESIS_BLOCK if replica is None else replica.core.root.block_hash, None))
        if choice in (1, 2):  # honest, perhaps to some only
            self._propose(view, *parents[0], 1.0 if choice == 1 else 0.6)
        elif choice in (3, 4):  # two blocks, to different halves
            self._propose(view, *parents[0], 0.5)
            self._propose(view, *parents[0], 0.5)
        elif choice in (5, 6):  # a stale parent: a view is skipped without a nullification
            self._propose(view, *parents[min(1 + rng.randrange(3), len(parents) - 1)], 1.0)
        elif choice == 7:  # the parent again, which is right on the last block of an epoch alone
            self._repeat(view, *parents[0])
        else:  # wrong justification
            parent_view, parent_hash, _ = parents[0]
            wrong = parents[-2][2] if len(parents) > 2 else None
            self._propose(view, parent_view, parent_hash, wrong, 1.0)

    def _propose(
        self, view: int, parent_view: int, parent_hash: bytes, justify: Certificate | None, share: float
    ) -> None:
        rng = self._rng
        block = self._make(view, parent_hash)
        if block is None:
            return
        if rng.random() < 0.15:
            header = block.header._replace(
                **rng.choice(
                    (
                        {"height": block.header.height + 1},
                        {"state_root": bytes(32)},
                        {"view": view + 1},
                        {"time_ms": 10**9},
                        {"epoch": self._epoch + 1},
                        {"vrf_proof": b""},
                        {"next_committee_hash": rng.randbytes(32)},
                        {"committee_hash": rng.randbytes(32)},
                        {"proposer_seat": (block.header.proposer_seat + 1) % 100},
                    )
                )
            )
            block = block._replace(header=header)
            self._shown(block)
        self._show_proposal(view, parent_view, justify, block, share)

    def _repeat(self, view: int, parent_view: int, parent_hash: bytes, justify: Certificate | None) -> None:
        raw = self._blocks.get(parent_hash)
        held = self._node.replica.block(parent_hash) if self._node.replica is not None else None
        if held is not None:
            self._show_proposal(view, parent_view, justify, held, 1.0)
        elif raw is not None:
            self._send(raw)

    def _show_proposal(
        self, view: int, parent_view: int, justify: Certificate | None, block: Block, share: float
    ) -> None:
        candidate = Candidate(self._epoch, view, min(parent_view, view - 1), header_hash(block.header))
        vote = self._signed(NOTARIZE, candidate)
        if vote is None:
            return
        nulls = [
            self._certificates[NULLIFY, skipped]
            for skipped in range(view - 1, max(parent_view, view - 100), -1)
            if (NULLIFY, skipped) in self._certificates
        ]
        self._tell(Proposal(candidate, vote.signature, justify, tuple(nulls[:64]), encode_block(block)), share)
