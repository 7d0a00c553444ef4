"""A replica without its I/O: the core, the guard, the journal and the wire joined; messages in, actions out. Pure.

The service (trio) and the simulator perform the same actions in the same order, so what is simulated is what runs:
first ``Append`` and ``Sync`` to the journal, then to the guard, and only then anything that leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import ClassVar, Final, NamedTuple, TypeAlias

from consensus import core as c
from consensus.core import ConsensusParameters, Core, Restored, Root
from consensus.guard import (
    JOURNAL_BLOCK,
    JOURNAL_CERTIFICATE,
    Guard,
    GuardRefused,
    journal_record,
    read_journal,
)
from consensus.votes import Certificate, Check, Signer, Verifier, certificate_checks, verify_checks, vote_check
from consensus.wire import (
    VOTES_MAX,
    BlockReply,
    BlocksReply,
    Certificates,
    GetBlock,
    GetBlocks,
    GetCertificates,
    Message,
    Proposal,
    Status,
    Votes,
    decode_certificate,
    decode_message,
    encode_certificate,
    encode_message,
)
from state.primitives.blocks import Block, Header, decode_block, encode_block, header_hash, is_body_of
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError
from state.primitives.votes import FINALIZE, NOTARIZE, Candidate, Vote, vote_digest

__all__ = [
    "GUARD",
    "JOURNAL",
    "Action",
    "Append",
    "Broadcast",
    "Decoded",
    "Inbound",
    "Refused",
    "Replace",
    "Replica",
    "Send",
    "ServeBlock",
    "ServeBlocks",
    "Sync",
    "decode_inbound",
    "root_of",
]

GUARD: Final = "guard"
JOURNAL: Final = "journal"
COMPACT_BYTES: Final = 4 * 1024 * 1024
"""A log is written anew when it has grown by so much; what is above the final view is carried over."""


class Decoded(NamedTuple):
    """A message and the blocks in it, each with its hash and its bytes; header and body belong together."""

    message: Message
    blocks: tuple[tuple[bytes, Block, bytes], ...]


class Inbound(NamedTuple):
    """A message that may matter, the events it becomes, and the signatures to verify before."""

    sender: bytes
    events: tuple[c.Event, ...]
    checks: tuple[Check, ...]
    blocks: tuple[tuple[bytes, Block, bytes], ...] = ()
    reply: Message | None = None


class Append(NamedTuple):
    """Write to the end of a log (GUARD or JOURNAL)."""

    log: str
    data: bytes


class Sync(NamedTuple):
    """Wait until a log is on the disk."""

    log: str


class Replace(NamedTuple):
    """Put new bytes in the place of a whole log, durably."""

    log: str
    data: bytes


class Send(NamedTuple):
    """Send a message to one address; ``is_bulk`` for messages that carry blocks."""

    address: bytes
    data: bytes
    is_bulk: bool = False


class Broadcast(NamedTuple):
    """Send a message to all other seats, and to whoever follows."""

    data: bytes
    is_bulk: bool = False


class ServeBlock(NamedTuple):
    """Look a final block up and send it as BlockReply."""

    address: bytes
    block_hash: bytes


class ServeBlocks(NamedTuple):
    """Look a window of final blocks up and send it as BlocksReply."""

    address: bytes
    from_height: int
    count_max: int


class Refused(NamedTuple):
    """The guard refused a vote the core asked for; for the metric alone."""

    rule: str


Action: TypeAlias = (
    Append
    | Sync
    | Replace
    | Send
    | Broadcast
    | ServeBlock
    | ServeBlocks
    | Refused
    | c.Build
    | c.Check
    | c.Execute
    | c.Commit
    | c.DropBlocks
    | c.SetTimer
    | c.EnterView
    | c.CastVote
    | c.KeepCertificate
    | c.FoundEquivocation
    | c.Resend
    | c.EpochEnded
    | c.Halt
)


def root_of(
    *,
    block_hash: bytes,
    height: int,
    view: int,
    state_root: bytes,
    receipt_root: bytes,
    certificate: bytes | None,
    epoch: int,
) -> tuple[Root, tuple[Certificate, ...]]:
    """Return the root for a stored tip, and the certificates above it that the store knows.

    ``view`` is that of the tip's header, ``certificate`` the stored one. After a crash inside a commit of several
    blocks the certificate names a block above the tip, which is then committed again.
    """
    known = decode_certificate(certificate) if certificate else None
    if known is None or known.epoch != epoch:
        return Root(block_hash, height, 0, state_root, receipt_root), ()
    if known.block_hash == block_hash:
        return Root(block_hash, height, known.view, state_root, receipt_root, known), ()
    return Root(block_hash, height, view, state_root, receipt_root), (known,)


def decode_inbound(data: bytes) -> Decoded:
    """Return the message of a peer's bytes. Touches no replica, so a worker thread may do it for large ones.

    Raises DecodeError, also for a block whose body is not the one its header names.
    """
    message = decode_message(data)
    match message:
        case Proposal() | BlockReply():
            raw: tuple[bytes, ...] = (message.block,)
        case BlocksReply():
            raw = message.blocks
        case _:
            return Decoded(message, ())
    blocks = tuple([_decode_whole_block(block) for block in raw])
    if isinstance(message, Proposal) and blocks[0][0] != message.candidate.block_hash:
        raise DecodeError("a proposal of another block")
    if isinstance(message, BlocksReply):
        for number, (_, block, _) in enumerate(blocks):
            if block.header.height != message.from_height + number or (
                number > 0 and block.header.parent_hash != blocks[number - 1][0]
            ):
                raise DecodeError("a window of blocks that do not follow each other")
        if blocks[-1][0] != message.certificate.block_hash or message.certificate.kind != FINALIZE:
            raise DecodeError("a window of blocks without the certificate of its last")
    return Decoded(message, blocks)


def _decode_whole_block(raw: bytes) -> tuple[bytes, Block, bytes]:
    block = decode_block(raw)
    if not is_body_of(block):
        raise DecodeError("a body that its header does not name")
    return header_hash(block.header), block, raw


class Replica:
    """One seat's replica, or an observer's (``signer`` and ``guard`` None).

    ``journal`` is what the journal's file holds: what survives of it is restored. ``certificates`` above the root
    come from the chain's own store (see ``root_of``). ``verify`` is asked for the
    journal's certificates alone; those of peers are verified by the shell between ``receive`` and ``admit``.
    """

    core_type: ClassVar[type[Core]] = Core

    def __init__(
        self,
        *,
        committee: Committee,
        genesis_hash: bytes,
        epoch: int,
        root: Root,
        parameters: ConsensusParameters,
        signer: Signer | None = None,
        guard: Guard | None = None,
        journal: bytes = b"",
        certificates: tuple[Certificate, ...] = (),
        verify: Verifier = verify_checks,
        compact_bytes: int = COMPACT_BYTES,
        last_height: int | None = None,
        watches_own_seat: bool = True,
    ) -> None:
        self._committee = committee
        self._genesis_hash = genesis_hash
        self._epoch = epoch
        self._signer = signer
        self._guard = guard
        self._compact_bytes = compact_bytes
        self._seat: int | None = None
        if signer is not None and guard is not None:
            keys = [seat.vote_key for seat in committee.seats]
            self._seat = keys.index(signer.vote_key) if signer.vote_key in keys else None
            guard.raise_floor(epoch, root.view)
        self._blocks: dict[bytes, tuple[Block, bytes]] = {}
        self._journalled: set[bytes] = set()
        self._committing: set[bytes] = set()
        self._journal_grown = 0
        self._guard_grown = 0
        self._is_journal_dirty = False
        self._proposal: tuple[int, bytes] | None = None
        restored, whole = self._restore(journal, root, verify)
        restored = restored._replace(certificates=(*restored.certificates, *certificates))
        self._torn = journal[:whole] if whole < len(journal) else None
        self.core = self.core_type(
            committee=committee,
            genesis_hash=genesis_hash,
            epoch=epoch,
            seat=self._seat,
            root=root,
            parameters=parameters,
            restored=restored,
            last_height=last_height,
            watches_own_seat=watches_own_seat,
        )

    def _restore(self, journal: bytes, root: Root, verify: Verifier) -> tuple[Restored, int]:
        records, whole = read_journal(journal)
        certificates: list[Certificate] = []
        headers: list[tuple[bytes, Header]] = []
        for kind, data in records:
            try:
                if kind == JOURNAL_CERTIFICATE:
                    certificate = decode_certificate(data)
                    checks = certificate_checks(self._committee, self._genesis_hash, certificate)
                    if certificate.epoch == self._epoch and certificate.view > root.view and verify(checks):
                        certificates.append(certificate)
                else:
                    block = decode_block(data)
                    if block.header.height > root.height:
                        block_hash = header_hash(block.header)
                        self._blocks[block_hash] = (block, data)
                        self._journalled.add(block_hash)
                        headers.append((block_hash, block.header))
            except DecodeError:
                continue  # of another committee, or written by a newer version: it can be asked for again
        own = self._guard.votes() if self._guard is not None and self._seat is not None else ()
        return Restored(own, tuple(certificates), tuple(headers)), whole

    # What the shell asks.

    @property
    def seat(self) -> int | None:
        """The own seat, None for an observer."""
        return self._seat

    def block(self, block_hash: bytes) -> Block | None:
        """Return a held block above the last committed one."""
        found = self._blocks.get(block_hash)
        return found[0] if found is not None else None

    def sizes(self) -> dict[str, int]:
        """Return how much is kept of what, to hold it against the bounds of R8."""
        return {**self.core.sizes(), "blocks": len(self._blocks)}

    # Messages.

    def receive(self, sender: bytes, decoded: Decoded) -> Inbound | None:
        """Return what a message brings, or None when it brings nothing.

        Raises DecodeError when it can only come from a faulty sender.
        """
        message, blocks = decoded
        core = self.core
        match message:
            case Votes(votes):
                wanted = [vote for vote in votes if core.wants_vote(vote)]
                if not wanted:
                    return None
                checks = tuple([vote_check(self._committee, self._genesis_hash, vote) for vote in wanted])
                return Inbound(sender, tuple([c.VoteReceived(vote) for vote in wanted]), checks)
            case Proposal():
                return self._receive_proposal(sender, message, blocks)
            case Certificates(certificates):
                events, checks = self._certificate_events(certificates)
                return Inbound(sender, events, checks) if events else None
            case BlockReply():
                block_hash, block, _ = blocks[0]
                if not core.wants_block(block_hash):
                    return None
                return Inbound(sender, (c.BlockReceived(block_hash, block.header),), (), blocks)
            case BlocksReply(_, certificate, _):
                if certificate.epoch != self._epoch or blocks[-1][1].header.height <= core.root.height:
                    return None
                headers = tuple([(block_hash, block.header) for block_hash, block, _ in blocks])
                checks = certificate_checks(self._committee, self._genesis_hash, certificate)
                return Inbound(sender, (c.BlocksReceived(certificate, headers),), checks, blocks)
            case GetCertificates(epoch, from_view, to_view):
                if epoch != self._epoch:
                    return None
                found = core.certificates(from_view, to_view)
                return Inbound(sender, (), (), reply=Certificates(found)) if found else None
            case GetBlock() | GetBlocks():
                return Inbound(sender, (), (), reply=message)
            case Status():
                return None
            case _:
                raise AssertionError(message)

    def _receive_proposal(
        self, sender: bytes, message: Proposal, blocks: tuple[tuple[bytes, Block, bytes], ...]
    ) -> Inbound | None:
        candidate = message.candidate
        if candidate.epoch != self._epoch:
            return None
        leader = self._committee.leader(candidate.view)
        vote = Vote(NOTARIZE, *candidate, leader, message.signature)
        if not self.core.wants_proposal(candidate):
            if not self.core.wants_vote(vote):
                return None
            check = vote_check(self._committee, self._genesis_hash, vote)
            return Inbound(sender, (c.VoteReceived(vote),), (check,))
        justification = message.nulls if message.justify is None else (*message.nulls, message.justify)
        events, checks = self._certificate_events(justification)
        check = vote_check(self._committee, self._genesis_hash, vote)
        event = c.ProposalReceived(vote, blocks[0][1].header)
        return Inbound(sender, (*events, event), (*checks, check), blocks)

    def _certificate_events(
        self, certificates: Iterable[Certificate]
    ) -> tuple[tuple[c.Event, ...], tuple[Check, ...]]:
        events: list[c.Event] = []
        checks: list[Check] = []
        # Older ones first: a newer one would move the view beyond what they still help.
        for certificate in sorted(certificates, key=lambda found: found.view):
            if self.core.wants_certificate(certificate):
                checks += certificate_checks(self._committee, self._genesis_hash, certificate)
                events.append(c.CertificateReceived(certificate))
        return tuple(events), tuple(checks)

    def admit(self, inbound: Inbound, now_ms: int) -> list[Action]:
        """Take a message in whose signatures are valid."""
        sender, events, _, blocks, reply = inbound
        if len(events) == 1 and not blocks:  # a single vote, which is nearly all of the traffic
            return self._run(self.core.step(events[0], now_ms), now_ms)
        match reply:
            case Certificates():
                return [Send(sender, encode_message(reply))]
            case GetBlock(block_hash):
                held = self._blocks.get(block_hash)
                if held is not None:
                    return [Send(sender, encode_message(BlockReply(held[1])), True)]
                return [ServeBlock(sender, block_hash)]
            case GetBlocks(from_height, count_max):
                return [ServeBlocks(sender, from_height, count_max)]
            case _:
                pass
        for block_hash, block, raw in blocks:
            self._blocks.setdefault(block_hash, (block, raw))
        actions = self._run([effect for event in events for effect in self.core.step(event, now_ms)], now_ms)
        for block_hash, _, _ in blocks:
            if not self.core.is_held(block_hash) and block_hash not in self._committing:
                self._blocks.pop(block_hash, None)
        return actions

    # Events of the shell.

    def start(self, now_ms: int) -> list[Action]:
        """Begin: call it once, and perform its actions before anything else."""
        # What was read may be in the page cache alone: it must be on the disk before anything rests on it.
        actions: list[Action] = [Sync(JOURNAL), Sync(GUARD)] if self._guard is not None else [Sync(JOURNAL)]
        if self._torn is not None:
            actions.append(Replace(JOURNAL, self._torn))
            self._torn = None
        return actions + self.step(c.Start(), now_ms)

    def step(self, event: c.Event, now_ms: int) -> list[Action]:
        """Take an event that is no message: a timer, a finished check or execution, the mempool."""
        return self._run(self.core.step(event, now_ms), now_ms)

    def built(self, view: int, block: Block | None, now_ms: int) -> list[Action]:
        """Take the answer to Build; None when no block could be built."""
        if block is None:
            return self.step(c.BuildFailed(view), now_ms)
        block_hash = header_hash(block.header)
        self._blocks[block_hash] = (block, encode_block(block))
        actions = self.step(c.BlockBuilt(view, block_hash, block.header), now_ms)
        if not self.core.is_held(block_hash):
            self._blocks.pop(block_hash, None)
        return actions

    def committed(self, block_hashes: tuple[bytes, ...]) -> list[Action]:
        """Take the answer to Commit: the blocks are on the disk, so the guard's floor may rise."""
        for block_hash in block_hashes:
            self._committing.discard(block_hash)
            if not self.core.is_held(block_hash):
                self._blocks.pop(block_hash, None)
                self._journalled.discard(block_hash)
        if self._committing:
            return []
        actions: list[Action] = []
        if self._guard is not None:
            self._guard.raise_floor(self._epoch, self.core.root.view)
            if self._guard_grown > self._compact_bytes:
                self._guard_grown = 0
                actions.append(Replace(GUARD, self._guard.image()))
        if self._journal_grown > self._compact_bytes:
            actions.append(Replace(JOURNAL, self._journal_image()))
            self._is_journal_dirty = False
            self._journal_grown = 0
        return actions

    def _journal_image(self) -> bytes:
        records = [
            journal_record(JOURNAL_BLOCK, raw)
            for block_hash, (_, raw) in self._blocks.items()
            if block_hash in self._journalled
        ]
        records += [
            journal_record(JOURNAL_CERTIFICATE, encode_certificate(certificate))
            for certificate in self.core.all_certificates()
        ]
        return b"".join(records)

    # Effects to actions.

    def _run(self, effects: list[c.Effect], now_ms: int) -> list[Action]:
        if not effects:
            return []
        queue = deque(effects)
        writes = _Writes(self._is_journal_dirty)
        after: list[Action] = []
        while queue:
            effect = queue.popleft()
            match effect:
                case c.CastVote(kind, candidate, _):
                    vote = self._vote(kind, candidate, writes, after)
                    if vote is not None:
                        after.append(Broadcast(encode_message(Votes((vote,)))))
                        after.append(effect)
                        queue.extend(self.core.step(c.VoteReceived(vote, True), now_ms))
                case c.Propose(candidate, justify, nulls):
                    vote = self._vote(NOTARIZE, candidate, writes, after)
                    held = self._blocks.get(candidate.block_hash)
                    if vote is not None and held is not None:
                        data = encode_message(Proposal(candidate, vote.signature, justify, nulls, held[1]))
                        self._proposal = (candidate.view, data)
                        after.append(Broadcast(data, True))
                        after.append(c.CastVote(NOTARIZE, candidate))
                        queue.extend(self.core.step(c.VoteReceived(vote, True), now_ms))
                case c.KeepCertificate(certificate, _):
                    writes.to_journal(journal_record(JOURNAL_CERTIFICATE, encode_certificate(certificate)))
                    after.append(effect)
                case c.PushCertificate(seat, certificates):
                    after.append(Send(self._address(seat), encode_message(Certificates(certificates))))
                case c.AskCertificates(seat, from_view, to_view):
                    message: Message = GetCertificates(self._epoch, from_view, to_view)
                    after.append(Send(self._address(seat), encode_message(message)))
                case c.AskBlock(seat, block_hash):
                    after.append(Send(self._address(seat), encode_message(GetBlock(block_hash))))
                case c.AskBlocks(seat, from_height, count_max):
                    after.append(Send(self._address(seat), encode_message(GetBlocks(from_height, count_max))))
                case c.Resend(votes, certificates, proposal_view):
                    after.append(effect)
                    if votes:
                        after.append(Broadcast(encode_message(Votes(votes[:VOTES_MAX]))))
                    if certificates:
                        after.append(Broadcast(encode_message(Certificates(certificates))))
                    if self._proposal is not None and self._proposal[0] == proposal_view:
                        after.append(Broadcast(self._proposal[1], True))
                case c.DropBlocks(block_hashes):
                    dropped = tuple([known for known in block_hashes if known not in self._committing])
                    for block_hash in dropped:
                        self._blocks.pop(block_hash, None)
                        self._journalled.discard(block_hash)
                    after.append(c.DropBlocks(dropped))
                case c.Commit(_, block_hashes, _):
                    self._committing.update(block_hashes)
                    after.append(effect)
                case _:
                    after.append(effect)
        self._is_journal_dirty = writes.is_journal_dirty
        self._journal_grown += writes.journal_bytes
        self._guard_grown += writes.guard_bytes
        return writes.finish() + after

    def _vote(self, kind: int, candidate: Candidate, writes: _Writes, after: list[Action]) -> Vote | None:
        """Ask the guard and sign; ``writes`` gets what makes the vote durable."""
        if self._guard is None or self._signer is None or self._seat is None:
            return None
        try:
            made = self._guard.check(kind, candidate)
        except GuardRefused as refusal:
            after.append(Refused(refusal.rule))
            return None
        if made is not None:
            return made
        held = self._blocks.get(candidate.block_hash)
        if held is not None and candidate.block_hash not in self._journalled:
            self._journalled.add(candidate.block_hash)
            writes.to_journal(journal_record(JOURNAL_BLOCK, held[1]))
        signature = self._signer.sign_vote(vote_digest(self._genesis_hash, kind, candidate))
        vote = Vote(kind, *candidate, self._seat, signature)
        writes.to_guard(self._guard.record(vote))
        return vote

    def _address(self, seat: int) -> bytes:
        return self._committee.seats[seat].address


class _Writes:
    """The writes of one step in their only safe order.

    A vote's record goes to the guard when all that it rests on is durable; what follows from the vote (a
    certificate it completed) goes to the journal when the vote's record is.
    """

    def __init__(self, is_journal_dirty: bool) -> None:
        self._actions: list[Action] = []
        self._is_guard_dirty = False
        self.is_journal_dirty = is_journal_dirty
        self.journal_bytes = 0
        self.guard_bytes = 0

    def to_journal(self, data: bytes) -> None:
        if self._is_guard_dirty:
            self._actions.append(Sync(GUARD))
            self._is_guard_dirty = False
        self._append(JOURNAL, data)
        self.journal_bytes += len(data)
        self.is_journal_dirty = True

    def to_guard(self, data: bytes) -> None:
        if self.is_journal_dirty:
            self._actions.append(Sync(JOURNAL))
            self.is_journal_dirty = False
        self._append(GUARD, data)
        self.guard_bytes += len(data)
        self._is_guard_dirty = True

    def finish(self) -> list[Action]:
        if self._is_guard_dirty:
            self._actions.append(Sync(GUARD))
        return self._actions

    def _append(self, log: str, data: bytes) -> None:
        match self._actions[-1:]:
            case [Append(last, before)] if last == log:
                self._actions[-1] = Append(log, before + data)
            case _:
                self._actions.append(Append(log, data))
