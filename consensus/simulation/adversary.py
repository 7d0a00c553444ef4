"""A faulty seat that knows the protocol: it follows as an observer does, and says whatever may hurt (SDBFT.md 5).

Twins run correct code and so never break a rule that correct code keeps; this one proposes on stale parents, skips
views without nullifications, votes twice, justifies wrongly, replays, and sends damaged certificates and garbage.
"""

from __future__ import annotations

from typing import Final

from consensus import replica as r
from consensus.simulation.cluster import EPOCH, GENESIS_BLOCK, Cluster, Node, genesis_root, next_state_root
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
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote

__all__ = ["Adversary"]

REPLAYS_MAX: Final = 200


class Adversary:
    """Drives one faulty seat of a cluster; ``rate`` is the chance to act on each message it hears."""

    def __init__(self, cluster: Cluster, seat: int, rate: float) -> None:
        self._cluster = cluster
        self._seat = seat
        self._node: Node = cluster.nodes[seat]
        self._rate = rate
        self._rng = cluster.rng
        self._proposed: set[int] = set()
        self._candidates: dict[int, list[Candidate]] = {}
        self._certificates: dict[tuple[int, int], Certificate] = {}
        self._headers: dict[bytes, Header] = {}
        self._states: dict[bytes, bytes] = {GENESIS_BLOCK: genesis_root().state_root}
        self._blocks: dict[bytes, bytes] = {}
        self._heard: list[bytes] = []
        self._view = 1
        self._node.signer = None  # its replica observes; the adversary signs
        cluster.on_deliver[seat] = self.hears

    def hears(self, _sender: int, raw: bytes, decoded: r.Decoded) -> None:
        """Learn from a message, then perhaps act."""
        message = decoded.message
        rng = self._rng
        if len(self._heard) < REPLAYS_MAX:
            self._heard.append(raw)
        elif rng.random() < 0.2:
            self._heard[rng.randrange(REPLAYS_MAX)] = raw
        match message:
            case Votes(votes):
                for vote in votes:
                    if vote.view <= self._view + 3:  # another faulty seat's may be absurd
                        self._view = max(self._view, vote.view)
                    if vote.kind != NULLIFY:
                        self._learn(vote.candidate)
            case Proposal(candidate, _, justify, nulls, block):
                self._learn(candidate)
                if candidate.view <= self._view + 3:
                    self._view = max(self._view, candidate.view)
                header = decoded.blocks[0][1].header
                self._headers[candidate.block_hash] = header
                self._blocks[candidate.block_hash] = block
                parent_state = self._states.get(header.parent_hash)
                if parent_state is not None:
                    self._states[candidate.block_hash] = next_state_root(parent_state, candidate.block_hash)
                for certificate in nulls if justify is None else (*nulls, justify):
                    self._certificates[certificate.kind, certificate.view] = certificate
            case Certificates(certificates):
                for certificate in certificates:
                    self._certificates[certificate.kind, certificate.view] = certificate
            case GetBlock(block_hash) if block_hash in self._blocks and rng.random() < 0.5:
                self._tell(BlockReply(self._blocks[block_hash]))
            case _:
                pass
        replica = self._node.replica
        if replica is not None:
            self._view = max(self._view, replica.core.view)
            for certificate in replica.core.certificates(max(1, self._view - 3), self._view):
                self._certificates[certificate.kind, certificate.view] = certificate
        if self._cluster.committee.leader(self._view) == self._seat and self._view not in self._proposed:
            self._proposed.add(self._view)
            self._lead(self._view)
        elif rng.random() < self._rate:
            self._act()

    def _learn(self, candidate: Candidate) -> None:
        known = self._candidates.setdefault(candidate.view, [])
        if candidate not in known and len(known) < 8:
            known.append(candidate)

    # Saying things.

    def _tell(self, message: Message, share: float = 1.0) -> None:
        data = encode_message(message)
        for node in self._cluster.nodes:
            if node.number != self._seat and (share >= 1.0 or self._rng.random() < share):
                self._cluster.send(self._seat, node.number, data)

    def _vote(self, kind: int, candidate: Candidate, share: float) -> None:
        if kind == NULLIFY:
            candidate = Candidate(EPOCH, candidate.view, 0, ZERO_HASH)
        vote = self._cluster.sign(self._seat, Vote(kind, *candidate, self._seat, b""))
        self._tell(Votes((vote,)), share)

    def _act(self) -> None:
        rng = self._rng
        view = max(1, self._view - rng.choice((0, 0, 0, 1, 1, 2, 5)))
        candidates = self._candidates.get(view) or [Candidate(EPOCH, view, max(0, view - 1), rng.randbytes(32))]
        candidate = rng.choice(candidates)
        choice = rng.randrange(9)
        if choice <= 2:
            self._vote(choice + 1, candidate, rng.choice((0.5, 1.0)))
        elif choice == 3:  # everything at once, to different halves
            for kind in (NOTARIZE, NULLIFY, FINALIZE):
                for each in candidates:
                    self._vote(kind, each, 0.5)
        elif choice == 4 and self._heard:
            data = rng.choice(self._heard)
            for node in self._cluster.nodes:
                if node.number != self._seat:
                    self._cluster.send(self._seat, node.number, data)
        elif choice == 5 and self._heard:
            damaged = bytearray(rng.choice(self._heard))
            for _ in range(rng.choice((1, 1, 2, 8))):
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            for node in self._cluster.nodes:
                if node.number != self._seat:
                    self._cluster.send(self._seat, node.number, bytes(damaged))
        elif choice == 6 and self._certificates:
            self._damaged_certificate()
        elif choice == 7:  # a vote far ahead, for a view that nobody has reached
            ahead = self._view + rng.choice((1, 2, 3, 50, 10**9))
            self._vote(
                rng.choice((NOTARIZE, NULLIFY, FINALIZE)), Candidate(EPOCH, ahead, ahead - 1, bytes(32)), 1.0
            )
        elif self._certificates:
            newest = [c for (_, at), c in self._certificates.items() if at >= self._view - 4]
            if newest:
                self._tell(Certificates(tuple(newest[:64])), 0.5)

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
            certificate._replace(signatures=certificate.signatures[:-size] or first),
            certificate._replace(bitmap=b"\x01".ljust(len(certificate.bitmap), b"\0"), signatures=first),
            certificate._replace(block_hash=rng.randbytes(32)),
        )
        self._tell(Certificates((rng.choice(damages),)))

    # Leading badly.

    def _make(self, view: int, parent_hash: bytes) -> Block | None:
        state = self._states.get(parent_hash)
        header = self._headers.get(parent_hash)
        if state is None or (header is None and parent_hash != GENESIS_BLOCK):
            return None
        height = 1 if header is None else header.height + 1
        block = self._cluster.make_block(
            height=height, view=view, seat=self._seat, parent_hash=parent_hash, state_root=state
        )
        block_hash = header_hash(block.header)
        self._headers[block_hash] = block.header
        self._blocks[block_hash] = encode_block(block)
        self._states[block_hash] = next_state_root(state, block_hash)
        self._cluster.oracle.saw_block(block_hash, parent_hash)
        return block

    def _lead(self, view: int) -> None:
        rng = self._rng
        certified = sorted(
            (c for (kind, _), c in self._certificates.items() if kind != NULLIFY), key=lambda c: -c.view
        )
        certified = [c for c in certified if c.view < view]
        choice = rng.randrange(8)
        if choice == 0:
            return  # says nothing
        parents: list[tuple[int, bytes, Certificate | None]] = [(c.view, c.block_hash, c) for c in certified[:4]]
        parents.append((0, GENESIS_BLOCK, None))
        if choice in (1, 2):  # honest, perhaps to some only
            self._propose(view, *parents[0], 1.0 if choice == 1 else 0.6)
        elif choice in (3, 4):  # two blocks, to different halves
            self._propose(view, *parents[0], 0.5)
            self._propose(view, *parents[0], 0.5)
        elif choice in (5, 6):  # a stale parent: a view is skipped without a nullification
            self._propose(view, *parents[min(1 + rng.randrange(3), len(parents) - 1)], 1.0)
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
                        {"proposer_seat": (self._seat + 1) % self._cluster.committee.size},
                    )
                )
            )
            block = block._replace(header=header)
            self._cluster.oracle.saw_block(header_hash(header), parent_hash)
        block_hash = header_hash(block.header)
        candidate = Candidate(EPOCH, view, min(parent_view, view - 1), block_hash)
        vote = self._cluster.sign(self._seat, Vote(NOTARIZE, *candidate, self._seat, b""))
        nulls = [
            self._certificates[NULLIFY, skipped]
            for skipped in range(view - 1, max(parent_view, view - 100), -1)
            if (NULLIFY, skipped) in self._certificates
        ]
        self._tell(Proposal(candidate, vote.signature, justify, tuple(nulls[:64]), encode_block(block)), share)
