"""The meaning of a decoded message for the replica in its epoch: events, and the signatures to verify first. Pure.

It changes no state. The shell verifies the signatures between ``receive`` and ``Replica.admit``, possibly in a
thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from consensus import events as c
from consensus.core.core import Core
from consensus.events import Epoch
from consensus.inbound import Decoded, FalseWindow, Inbound, epoch_of
from consensus.sync import BlockSync
from consensus.votes import Certificate, Check, certificate_checks, vote_check
from consensus.wire import (
    BlockReply,
    BlocksPruned,
    BlocksReply,
    Certificates,
    GetBlock,
    GetBlocks,
    GetCertificates,
    Proposal,
    Status,
    Votes,
)
from state.primitives.blocks import Block
from state.primitives.errors import DecodeError
from state.primitives.votes import NOTARIZE, Vote

__all__ = ["Reception"]


class Reception:
    """Reads messages for the core of one epoch; ``previous``, the core before it, only detects faults."""

    def __init__(
        self, genesis_hash: bytes, epoch: Epoch, core: Core, previous: Core | None, sync: BlockSync
    ) -> None:
        self._genesis_hash = genesis_hash
        self._epoch = epoch.number
        self._committee = epoch.committee
        self._last_height = epoch.last_height
        self._core = core
        self._previous = previous
        self._sync = sync

    def receive(self, sender: bytes, decoded: Decoded) -> Inbound | None:
        """Return the result of a message, or None if it has none.

        Raises DecodeError if only a faulty sender sends it.
        """
        message, blocks = decoded
        core = self._core
        if isinstance(message, Votes):  # nearly all of the traffic
            return self._receive_votes(sender, decoded, message.votes)
        epoch = epoch_of(message)
        if epoch is not None and epoch != self._epoch:
            return self._receive_foreign(sender, decoded, epoch)
        match message:
            case Proposal():
                return self._receive_proposal(sender, message, blocks)
            case Certificates(certificates):
                events, checks = self._certificate_events(certificates)
                return Inbound(sender, events, checks, during=self._epoch) if events else None
            case BlockReply():
                block_hash, block, _ = blocks[0]
                if not core.wants_block(block_hash):
                    return None
                event = c.BlockReceived(block_hash, block.header)
                return Inbound(sender, (event,), (), blocks, during=self._epoch)
            case BlocksReply(from_height, certificate, _):
                last = blocks[-1][1].header.height
                if last <= core.root.height or not self._sync.is_asked(sender, from_height, len(blocks)):
                    return None
                if certificate.epoch != self._epoch or last > self._last_height:
                    raise FalseWindow("a window of blocks of another epoch")
                try:
                    checks = certificate_checks(self._committee, self._genesis_hash, certificate)
                except DecodeError as error:
                    raise FalseWindow(str(error)) from None
                return Inbound(sender, (), checks, blocks, window=certificate, during=self._epoch)
            case GetCertificates(_, from_view, to_view):
                found = core.certificates(from_view, to_view)
                return Inbound(sender, (), (), reply=Certificates(found)) if found else None
            case GetBlock() | GetBlocks() | Status() | BlocksPruned():
                return Inbound(sender, (), (), reply=message)
            case _:
                raise AssertionError(message)

    def _receive_votes(self, sender: bytes, decoded: Decoded, votes: tuple[Vote, ...]) -> Inbound | None:
        core, epoch = self._core, votes[0].epoch
        if epoch != self._epoch:
            return self._receive_foreign(sender, decoded, epoch)
        final = core.final_certificate
        if final is not None and votes[0].view > final.view and core.is_over:
            return Inbound(sender, (), (), reply=decoded.message, epoch=epoch)
        wanted = [vote for vote in votes if core.wants_vote(vote)]
        if not wanted:
            return None
        checks = tuple([vote_check(self._committee, self._genesis_hash, vote) for vote in wanted])
        return Inbound(sender, tuple([c.VoteReceived(vote) for vote in wanted]), checks, during=self._epoch)

    def _receive_foreign(self, sender: bytes, decoded: Decoded, epoch: int) -> Inbound | None:
        """A message of another epoch: of the next one, or of one that has ended."""
        if epoch > self._epoch:
            return Inbound(sender, (), (), epoch=epoch, early=decoded)
        # Certificates are an answer themselves: two that are ahead of each other would never cease.
        reply = None if isinstance(decoded.message, Certificates) else decoded.message
        previous = self._previous
        events: list[c.Event] = []
        checks: list[Check] = []
        if previous is not None and previous.epoch == epoch:
            committee = previous.committee
            match decoded.message:
                case Votes(votes):
                    for vote in votes:
                        if previous.wants_vote(vote):
                            checks.append(vote_check(committee, self._genesis_hash, vote))
                            events.append(c.VoteReceived(vote))
                case Certificates(certificates):
                    for certificate in certificates:
                        if previous.wants_certificate(certificate):
                            checks += certificate_checks(committee, self._genesis_hash, certificate)
                            events.append(c.CertificateReceived(certificate))
                case _:
                    pass
        if reply is None and not events:
            return None
        return Inbound(sender, tuple(events), tuple(checks), reply=reply, epoch=epoch)

    def _receive_proposal(
        self, sender: bytes, message: Proposal, blocks: tuple[tuple[bytes, Block, bytes], ...]
    ) -> Inbound | None:
        candidate = message.candidate
        leader = self._committee.leader(candidate.view)
        vote = Vote(NOTARIZE, *candidate, leader, message.signature)
        justification = message.nulls if message.justify is None else (*message.nulls, message.justify)
        events, checks = self._certificate_events(justification)
        if not self._core.wants_proposal(candidate):
            if self._core.wants_vote(vote):
                events = (*events, c.VoteReceived(vote))
                checks = (*checks, vote_check(self._committee, self._genesis_hash, vote))
            return Inbound(sender, events, checks, during=self._epoch) if events else None
        check = vote_check(self._committee, self._genesis_hash, vote)
        event = c.ProposalReceived(vote, blocks[0][1].header)
        return Inbound(sender, (*events, event), (*checks, check), blocks, during=self._epoch)

    def _certificate_events(
        self, certificates: Iterable[Certificate]
    ) -> tuple[tuple[c.Event, ...], tuple[Check, ...]]:
        events: list[c.Event] = []
        checks: list[Check] = []
        # Older ones first: a newer one would move the view beyond what they still help.
        for certificate in sorted(certificates, key=lambda found: found.view):
            if self._core.wants_certificate(certificate):
                checks += certificate_checks(self._committee, self._genesis_hash, certificate)
                events.append(c.CertificateReceived(certificate))
        return tuple(events), tuple(checks)
