"""A replica without its I/O: core, guard, journal and wire codec together; messages in, actions out. Pure. See
consensus.md R11.

It spans epochs. When the last block of one is on disk it requests the next (``NextEpoch``), and continues with a
new core, a new journal and a guard floor above everything before. The service (trio) and the simulator perform the
same actions in the same order, so the simulated code is the real one. The order is first ``Append`` and ``Sync``
to the journal, then to the guard, and only then messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import ClassVar, Final

from consensus import events as c
from consensus.actions import (
    GUARD,
    JOURNAL,
    Action,
    Append,
    Broadcast,
    NextEpoch,
    RaiseFloor,
    Redeliver,
    Refused,
    Replace,
    RequestVote,
    Send,
    ServeBlock,
    ServeBlocks,
    Sync,
    Writes,
)
from consensus.core.core import Core
from consensus.events import ConsensusParameters, Epoch, Restored, Root
from consensus.guard import (
    JOURNAL_CERTIFICATE,
    DoppelgangerWatch,
    Guard,
    GuardRefused,
    journal_record,
)
from consensus.inbound import (
    Allowance,
    Decoded,
    EarlyMessages,
    Inbound,
    Pace,
    decode_inbound,
)
from consensus.journal import Journal, restore_journal
from consensus.reception import Reception
from consensus.sync import GAP_BLOCKS, BlockSync, Progress, Window
from consensus.votes import Certificate, Signer, Verifier, verify_checks
from consensus.wire import (
    CERTIFICATES_SENT_MAX,
    VIEWS_MAX,
    VOTES_MAX,
    BlockReply,
    BlocksPruned,
    Certificates,
    GetBlock,
    GetBlocks,
    GetCertificates,
    Message,
    Proposal,
    Status,
    Votes,
    decode_certificate,
    encode_certificate,
    encode_message,
)
from state.primitives.blocks import Block, encode_block, header_hash
from state.primitives.votes import NOTARIZE, Candidate, Vote, vote_digest

__all__ = [
    "GUARD",
    "JOURNAL",
    "Action",
    "Append",
    "Broadcast",
    "Decoded",
    "Inbound",
    "NextEpoch",
    "RaiseFloor",
    "Redeliver",
    "Refused",
    "Replace",
    "Replica",
    "RequestVote",
    "Send",
    "ServeBlock",
    "ServeBlocks",
    "Sync",
    "decode_inbound",
    "root_of",
]

COMPACT_BYTES: Final = 4 * 1024 * 1024
"""A log is replaced when it has grown by this much; the records above the final view are copied."""
BOUNDARIES_MAX: Final = 2
"""For this many ended epochs, a node that is behind is sent the certificate of the last block (consensus.md
12.2)."""
VIEW_LIMIT: Final = 2**48
"""Above every view."""
DOPPELGANGER_FACTOR_MAX: Final = 2
"""Latest end of the initial watch, as a multiple of its shortest time, if no views pass."""


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
    """Return the root for a stored tip, and the certificates above it that the store has.

    ``view`` is that of the tip's header, 0 if the tip ended the epoch before. ``certificate`` is the stored one:
    None if it is gone, as after a rollback. After a crash inside a commit of several blocks the certificate names
    a block above the tip, which is then committed again.
    """
    known = decode_certificate(certificate) if certificate else None
    if known is None:
        return Root(block_hash, height, view, state_root, receipt_root), ()
    if known.epoch != epoch:
        return Root(block_hash, height, 0, state_root, receipt_root), ()
    if known.block_hash == block_hash:
        return Root(block_hash, height, known.view, state_root, receipt_root, known), ()
    return Root(block_hash, height, view, state_root, receipt_root), (known,)


def _by_seat(addresses: tuple[bytes, ...], times: dict[bytes, int]) -> dict[int, int]:
    return {seat: times[address] for seat, address in enumerate(addresses) if address in times}


def _floor_view(floor: tuple[int, int], epoch: int) -> int:
    """The view of an epoch up to which the guard has no record: all views, if it has voted in a later epoch."""
    if floor[0] > epoch:
        return VIEW_LIMIT
    return floor[1] if floor[0] == epoch else 0


class Replica:
    """One seat's replica, or an observer's (without ``signer``, ``guard`` and ``vote_key``).

    ``journal`` is the content of the journal's file, from which it is restored. ``certificates`` come from the
    chain's own store: those above the root (see ``root_of``), and those of skipped views that prove faults.
    ``verify`` is used only for the journal's certificates. The shell verifies those of peers between ``receive``
    and ``admit``. With ``vote_key`` in place of ``signer`` and ``guard``, the guard is in another process, and
    votes are requested (``RequestVote``). Until ``voter_ready`` reports its record, nothing is sent.
    """

    core_type: ClassVar[type[Core]] = Core
    reception_type: ClassVar[type[Reception]] = Reception
    """Tests replace classes by versions with seeded bugs."""

    def __init__(
        self,
        *,
        epoch: Epoch,
        genesis_hash: bytes,
        root: Root,
        parameters: ConsensusParameters,
        signer: Signer | None = None,
        guard: Guard | None = None,
        vote_key: bytes | None = None,
        journal: bytes = b"",
        certificates: tuple[Certificate, ...] = (),
        verify: Verifier = verify_checks,
        compact_bytes: int = COMPACT_BYTES,
        watches_own_seat: bool = True,
    ) -> None:
        assert (signer is None) == (guard is None), "a key votes behind its guard alone"
        self._genesis_hash = genesis_hash
        self._parameters = parameters
        self._signer = signer
        self._guard = guard
        self._vote_key = signer.vote_key if signer is not None else vote_key
        self._is_remote = signer is None and vote_key is not None
        self._compact_bytes = compact_bytes
        self._watches_own_seat = watches_own_seat
        self._blocks: dict[bytes, tuple[Block, bytes]] = {}
        self._committing: set[bytes] = set()
        self._guard_grown = 0
        self._proposal: tuple[int, bytes] | None = None
        self._requested: dict[tuple[int, Candidate], c.CastVote | c.Propose] = {}
        self._unanswered: list[RequestVote] = []
        self._has_transactions = True
        self._opening: tuple[tuple[Vote, ...], tuple[int, int]] | None = None
        """Votes and floor of the guard in another process, once known."""
        self._watch: DoppelgangerWatch | None = None
        """The initial watch, which also applies to a seat that is gained while it lasts."""
        self._previous: Core | None = None
        self._boundaries: dict[int, Certificate] = {}
        self._early = EarlyMessages()
        self._is_asked_next = False
        self._answers = Pace(parameters.fetch_ms)
        self._allowance = Allowance()
        self._ahead: bytes | None = None
        self._is_sync_armed = False
        assert root.height < epoch.last_height, "on the last block of an epoch the next one has begun"
        self._take(epoch)
        if guard is not None:
            guard.raise_floor(epoch.number, root.view)
        found = restore_journal(journal, root, epoch, genesis_hash, verify)
        self._blocks.update(found.blocks)
        self._journal = Journal(found.blocks)
        self._torn = journal[: found.whole_bytes] if found.whole_bytes < len(journal) else None
        self._sync = BlockSync(parameters, self._own_address, root=root.height, last_height=epoch.last_height)
        self._sync.begin_epoch(epoch.last_height, self._addresses)
        headers = tuple([(block_hash, block.header) for block_hash, (block, _) in found.blocks.items()])
        self._begin_core(root, Restored((), (*found.certificates, *certificates), headers))

    def _take(self, epoch: Epoch) -> None:
        """Read an epoch's committee: the own seat may change or end."""
        self._epoch_info = epoch
        self._epoch = epoch.number
        self._committee = epoch.committee
        keys = [seat.vote_key for seat in epoch.committee.seats]
        self._seat = keys.index(self._vote_key) if self._vote_key in keys else None
        self._addresses = tuple([seat.address for seat in epoch.committee.seats])
        self._own_address = b"" if self._seat is None else self._addresses[self._seat]
        self._seated = frozenset(self._addresses)

    def _begin_core(
        self,
        root: Root,
        restored: Restored,
        *,
        watch: DoppelgangerWatch | None = None,
        heard: dict[bytes, int] | None = None,
        waited: dict[bytes, int] | None = None,
    ) -> None:
        own, floor = self._own_votes()
        self.core = self.core_type(
            epoch=self._epoch_info,
            genesis_hash=self._genesis_hash,
            seat=self._seat,
            root=root,
            parameters=self._parameters,
            restored=restored._replace(own=own),
            watches_own_seat=self._watches_own_seat,
            watch=watch,
            knows_own_votes=not self._is_remote or self._opening is not None,
            floor_view=_floor_view(floor, self._epoch),
            heard_ms=_by_seat(self._addresses, heard or {}),
            waited_ms=_by_seat(self._addresses, waited or {}),
            has_transactions=self._has_transactions,
        )
        reception = self.reception_type(
            self._genesis_hash, self._epoch_info, self.core, self._previous, self._sync
        )
        self.receive: Callable[[bytes, Decoded], Inbound | None] = reception.receive
        """Returns what a message brings in this epoch. An attribute, since every message passes through it."""

    def _own_votes(self) -> tuple[tuple[Vote, ...], tuple[int, int]]:
        """The guard's votes of this epoch, possibly of an earlier process that got further, and its floor."""
        if self._guard is not None:
            votes, floor = self._guard.votes(), self._guard.floor
        else:
            votes, floor = self._opening or ((), (0, 0))
        return self._of_own_seat(votes), floor

    def _of_own_seat(self, votes: Iterable[Vote]) -> tuple[Vote, ...]:
        """A vote's signature does not cover its seat: a false record could make one key vote for all seats."""
        return tuple([vote for vote in votes if vote.epoch == self._epoch and vote.seat == self._seat])

    # Queries of the shell.

    @property
    def seat(self) -> int | None:
        """The own seat, None for an observer."""
        return self._seat

    @property
    def epoch(self) -> Epoch:
        """The epoch it is in."""
        return self._epoch_info

    def is_seat(self, address: bytes) -> bool:
        """Tell whether an address has a seat in this epoch."""
        return address in self._seated

    def progress(self, now_ms: int) -> Progress:
        """Return the sync progress."""
        self._sync.prove(self.core.known_height)
        return self._sync.progress(now_ms)

    def block(self, block_hash: bytes) -> Block | None:
        """Return a held block above the last committed one."""
        found = self._blocks.get(block_hash)
        return found[0] if found is not None else None

    def sizes(self) -> dict[str, int]:
        """Return the number of kept items by kind, to compare with the bounds of R8."""
        return {
            **self.core.sizes(),
            **self._sync.sizes(),
            "blocks": len(self._blocks),
            "early": len(self._early),
            "answered": len(self._answers) + len(self._allowance),
            "requested": len(self._requested),
        }

    # Messages.

    def admit(self, inbound: Inbound, now_ms: int) -> list[Action]:
        """Process a message with valid signatures."""
        sender, events, _, blocks, reply, window, epoch, _, during = inbound
        if epoch is not None:
            return self._admit_foreign(inbound, epoch, now_ms)
        if during is not None and during != self._epoch:  # its signatures are those of the committee before
            return self._admit_foreign(inbound, during, now_ms)
        if len(events) == 1 and not blocks:  # a single vote, which is nearly all of the traffic
            return self._run(self.core.step(events[0], now_ms), now_ms)
        if window is not None:
            return self._admit_window(sender, window, blocks, now_ms)
        match reply:
            case Certificates() | GetBlock() | GetBlocks():
                return self._answer(sender, reply, now_ms)
            case Status():
                return self._on_status(sender, reply, now_ms)
            case BlocksPruned(from_height, oldest):
                was_asked = self._sync.pruned(sender, from_height, oldest, now_ms)
                return self._ask_windows(now_ms) if was_asked else []
            case _:
                pass
        for block_hash, block, raw in blocks:
            self._blocks.setdefault(block_hash, (block, raw))
        actions = self._run([effect for event in events for effect in self.core.step(event, now_ms)], now_ms)
        self._release([block_hash for block_hash, _, _ in blocks])
        return actions

    def _answer(self, sender: bytes, message: Certificates | GetBlock | GetBlocks, now_ms: int) -> list[Action]:
        """Answer a request, within its sender's allowance."""
        if not self._allowance.may(sender, now_ms, is_seat=self.is_seat(sender)):
            return []
        match message:
            case Certificates(certificates):
                parts = range(0, len(certificates), CERTIFICATES_SENT_MAX)
                datas = [
                    encode_message(Certificates(certificates[at : at + CERTIFICATES_SENT_MAX])) for at in parts
                ]
            case GetBlock(block_hash):
                held = self._blocks.get(block_hash)
                if held is None:
                    return [ServeBlock(sender, block_hash)]
                datas = [encode_message(BlockReply(held[1]))]
            case GetBlocks(from_height, count_max):
                return [ServeBlocks(sender, from_height, count_max)]
            case _:
                raise AssertionError(message)
        self.served(sender, sum(map(len, datas)), now_ms)
        return [Send(sender, data, isinstance(message, GetBlock)) for data in datas]

    def served(self, address: bytes, size_bytes: int, now_ms: int) -> None:
        """Record what ServeBlock or ServeBlocks has sent."""
        self._allowance.charge(address, size_bytes, now_ms, is_seat=self.is_seat(address))

    def _admit_window(
        self, sender: bytes, certificate: Certificate, blocks: tuple[tuple[bytes, Block, bytes], ...], now_ms: int
    ) -> list[Action]:
        size_bytes = sum([len(raw) for _, _, raw in blocks])
        arrived = Window(blocks[0][1].header.height, certificate, blocks, size_bytes)
        actions = self._take_windows(self._sync.arrived(sender, arrived, now_ms), now_ms)
        return actions + self._ask_windows(now_ms)

    def _take_windows(self, windows: Iterable[Window], now_ms: int) -> list[Action]:
        actions: list[Action] = []
        for window in windows:
            for block_hash, block, raw in window.blocks:
                self._blocks.setdefault(block_hash, (block, raw))
            headers = tuple([(block_hash, block.header) for block_hash, block, _ in window.blocks])
            actions += self._run(self.core.step(c.BlocksReceived(window.certificate, headers), now_ms), now_ms)
            self._release([block_hash for block_hash, _, _ in window.blocks])
        return actions

    def _release(self, block_hashes: Iterable[bytes]) -> None:
        """Drop blocks that the core does not hold."""
        for block_hash in block_hashes:
            if not self.core.is_held(block_hash) and block_hash not in self._committing:
                self._blocks.pop(block_hash, None)

    # Other epochs, and how far others are.

    def _admit_foreign(self, inbound: Inbound, epoch: int, now_ms: int) -> list[Action]:
        sender, early = inbound.sender, inbound.early
        if early is not None:
            self._sync.claim(sender, self._epoch_info.last_height, now_ms, is_least=True)
            if epoch == self._epoch + 1:
                self._early.keep(sender, early, self._seated)
            if self._ahead is None and not self.core.has_ended:
                self._ahead = sender
                if not self._is_sync_armed:
                    self._is_sync_armed = True
                    return [c.SetTimer(c.SYNC, self._parameters.pull_ms)]
            return []
        actions: list[Action] = []
        if self._previous is not None and self._previous.epoch == epoch:
            for event in inbound.events:
                actions += self._run(self._previous.step(event, now_ms), now_ms)
        boundary = self._boundaries.get(epoch)
        if epoch == self._epoch:
            boundary = self.core.final_certificate
        if inbound.reply is None or not self._answers.may(sender, now_ms):
            return actions
        message = Certificates((boundary,)) if boundary is not None else self._status()
        return [*actions, Send(sender, encode_message(message))]

    def _status(self) -> Status:
        root = self.core.root
        return Status(self._epoch, max(1, self.core.view), root.height, root.block_hash)

    def _on_status(self, sender: bytes, status: Status, now_ms: int) -> list[Action]:
        self._sync.claim(sender, status.finalized_height, now_ms)
        actions = self._ask_windows(now_ms)
        height = self.core.root.height
        if status.finalized_height + GAP_BLOCKS < height and self._answers.may(sender, now_ms):
            actions.append(Send(sender, encode_message(self._status())))
        return actions

    def _ask_windows(self, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        if not self.core.has_ended:
            for address, from_height, count in self._sync.plan(now_ms):
                actions.append(Send(address, encode_message(GetBlocks(from_height, count))))
        if self._sync.is_busy and not self._is_sync_armed:
            self._is_sync_armed = True
            actions.append(c.SetTimer(c.SYNC, self._parameters.fetch_ms))
        return actions

    def _on_sync_timer(self, now_ms: int) -> list[Action]:
        self._is_sync_armed = False
        actions: list[Action] = []
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not self.core.has_ended:
            view = max(1, self.core.view)
            message = GetCertificates(self._epoch, view, view + VIEWS_MAX - 1)
            actions.append(Send(ahead, encode_message(message)))
        # Windows that came before the blocks below them, which then came with the votes on them, not in a window.
        actions += self._take_windows(self._sync.ready(), now_ms)
        if self._sync.expire(now_ms):
            actions += self._run(self.core.step(c.WindowsFailed(), now_ms), now_ms)
        return actions + self._ask_windows(now_ms)

    def _on_status_timer(self, now_ms: int) -> list[Action]:
        # Jitter of a fifth either way: replicas that started together must not all speak at once.
        mixed = ((self._seat or 0) * 7_919 + now_ms) % 401
        delay_ms = self._parameters.status_ms * (800 + mixed) // 1000
        return [Broadcast(encode_message(self._status())), c.SetTimer(c.STATUS, max(1, delay_ms))]

    def connected(self, address: bytes) -> list[Action]:
        """Send a newly connected peer the status of this replica."""
        return [Send(address, encode_message(self._status()))]

    def blamed(self, address: bytes, now_ms: int) -> list[Action]:
        """Request from other peers what was requested from this one: it sent false data."""
        self._sync.blamed(address, now_ms)
        return self._ask_windows(now_ms)

    def begin_epoch(
        self,
        epoch: Epoch,
        now_ms: int,
        *,
        signer: Signer | None = None,
        guard: Guard | None = None,
        vote_key: bytes | None = None,
    ) -> list[Action]:
        """Process the answer to NextEpoch.

        With ``signer`` and ``guard`` another of the node's keys votes from now on; the shell then writes to that
        key's guard. With ``vote_key`` it is another key whose guard is in another process; nothing is sent before
        ``voter_ready`` reports its record.
        """
        old = self.core
        assert old.has_ended and epoch.number == self._epoch + 1, "the epoch after the one that has ended"
        if guard is not None:
            self._signer, self._guard, self._vote_key = signer, guard, signer.vote_key if signer else None
            self._is_remote = False
        elif vote_key is not None:
            assert self._is_remote, "a remote key can only follow a remote key"
            self._vote_key, self._opening = vote_key, None
        certificate = old.root.certificate
        assert certificate is not None, "an epoch ends with a certificate"
        self._boundaries[self._epoch] = certificate
        for gone in [known for known in self._boundaries if known <= self._epoch - BOUNDARIES_MAX]:
            del self._boundaries[gone]
        heard = {self._addresses[seat]: at_ms for seat, at_ms in old.activity.heard().items()}
        waited = {self._addresses[seat]: at_ms for seat, at_ms in old.activity.waited().items()}
        self._previous = old
        self._take(epoch)
        for leftover in (self._blocks, self._requested):
            leftover.clear()
        self._journal = Journal(())
        self._unanswered = []
        self._proposal = None
        self._is_asked_next = False
        self._ahead = None
        self._guard_grown = 0
        actions: list[Action] = []
        if self._guard is not None:
            self._guard.raise_floor(epoch.number, 0)
            actions.append(Replace(GUARD, self._guard.image()))
        elif self._is_remote:
            actions.append(RaiseFloor(epoch.number, 0))
        actions.append(Replace(JOURNAL, b""))
        self._sync.begin_epoch(epoch.last_height, self._addresses)
        root = old.root._replace(view=0, certificate=None)
        watch = self._watch if self._watch is not None and not self._watch.is_over(now_ms) else None
        self._begin_core(root, Restored(), watch=watch, heard=heard, waited=waited)
        actions += self.step(c.Start(), now_ms)
        actions += [Redeliver(sender, decoded) for sender, decoded in self._early.take()]
        return actions + self._ask_windows(now_ms)

    def refuse_epoch(self, code: str, message: str) -> list[Action]:
        """Process the answer to NextEpoch if this node cannot follow there, for example because of an unknown
        protocol version.
        """
        return [c.Halt(code, message)]

    # A guard in another process.

    def voter_ready(self, votes: tuple[Vote, ...], floor: tuple[int, int], now_ms: int) -> list[Action]:
        """Process the record of the guard in another process: its votes above its floor (epoch, view)."""
        if not self._is_remote:
            return []
        self._opening = votes, floor
        return self.step(c.OwnVotesKnown(self._of_own_seat(votes), _floor_view(floor, self._epoch)), now_ms)

    def voted(self, request: RequestVote, vote: Vote, now_ms: int) -> list[Action]:
        """Process the answer to RequestVote; its signature was verified."""
        effect = self._requested.pop((request.kind, request.candidate), None)
        if effect is None or request.candidate.epoch != self._epoch:
            return []
        if vote[:6] != (request.kind, *request.candidate, request.seat):
            return [Refused("mismatch")]
        return self._run([], now_ms, released=(vote, effect))

    def vote_refused(self, request: RequestVote, *, is_final: bool = True) -> list[Action]:
        """Process a failed RequestVote: the guard refused, or is unreachable (``is_final`` False).

        A failed request is repeated when the view makes no progress: a view ends only by votes, and this one may
        be missing.
        """
        slot = request.kind, request.candidate
        if is_final:
            self._requested.pop(slot, None)
        elif slot in self._requested:
            self._unanswered.append(request)
        return []

    def _ask_again(self) -> list[Action]:
        """The votes of open views for which the guard was not reached, once each."""
        unanswered, self._unanswered = self._unanswered, []
        again: list[Action] = []
        for request in unanswered:
            slot = request.kind, request.candidate
            if request.candidate.view > self.core.root.view and slot in self._requested:
                again.append(request)
            else:
                self._requested.pop(slot, None)
        return again

    # Events of the shell.

    def start(self, now_ms: int) -> list[Action]:
        """Start: call it once, and perform its actions before anything else."""
        # What was read may be in the page cache alone: it must be on the disk before anything rests on it.
        actions: list[Action] = [Sync(JOURNAL), Sync(GUARD)] if self._guard is not None else [Sync(JOURNAL)]
        if self._torn is not None:
            actions.append(Replace(JOURNAL, self._torn))
            self._torn = None
        parameters = self._parameters
        if parameters.doppelganger_ms > 0 and self._vote_key is not None and self._watches_own_seat:
            self._watch = DoppelgangerWatch(
                views=parameters.doppelganger_views,
                wait_ms=parameters.doppelganger_ms,
                wait_ms_max=DOPPELGANGER_FACTOR_MAX * parameters.doppelganger_ms,
                now_ms=now_ms,
            )
            self.core.listen(self._watch)
        return actions + self.step(c.Start(), now_ms) + self._on_status_timer(now_ms)

    def step(self, event: c.Event, now_ms: int) -> list[Action]:
        """Process an event other than a message: a timer, a finished check or execution, the mempool."""
        match event:
            case c.TimerFired(c.SYNC):
                return self._on_sync_timer(now_ms)
            case c.TimerFired(c.STATUS):
                return self._on_status_timer(now_ms)
            case c.MempoolChanged(has_transactions):
                self._has_transactions = has_transactions
            case _:
                pass
        return self._run(self.core.step(event, now_ms), now_ms)

    def built(self, build: c.Build, block: Block | None, now_ms: int) -> list[Action]:
        """Process the answer to Build; None if no block could be built."""
        if build.epoch != self._epoch:
            return []
        if block is None:
            return self.step(c.BuildFailed(build.view), now_ms)
        block_hash = header_hash(block.header)
        self._blocks[block_hash] = (block, encode_block(block))
        actions = self.step(c.BlockBuilt(build.view, block_hash, block.header), now_ms)
        self._release([block_hash])
        return actions

    def committed(self, block_hashes: tuple[bytes, ...]) -> list[Action]:
        """Process the answer to Commit: the blocks are on disk, so the guard's floor may rise."""
        for block_hash in block_hashes:
            self._committing.discard(block_hash)
            if not self.core.is_held(block_hash):
                self._blocks.pop(block_hash, None)
                self._journal.forget(block_hash)
        if self._committing:
            return []
        actions: list[Action] = []
        if self._guard is not None:
            self._guard.raise_floor(self._epoch, self.core.root.view)
            if self._guard_grown > self._compact_bytes:
                self._guard_grown = 0
                actions.append(Replace(GUARD, self._guard.image()))
        if self._journal.is_large(self._compact_bytes):
            image = self._journal.image(self._blocks, self.core.all_certificates())
            actions.append(Replace(JOURNAL, image))
        if self._is_remote:
            actions.append(RaiseFloor(self._epoch, self.core.root.view))
        if self.core.has_ended and not self._is_asked_next:
            self._is_asked_next = True
            actions.append(NextEpoch(self._epoch + 1))
        return actions

    # Effects to actions.

    def _run(
        self,
        effects: list[c.Effect],
        now_ms: int,
        released: tuple[Vote, c.CastVote | c.Propose] | None = None,
    ) -> list[Action]:
        if not effects and released is None:
            return []
        queue = deque(effects)
        writes = self._journal.writes()
        after: list[Action] = []
        is_behind = False
        if released is not None:
            queue.extend(self._leave(*released, after, now_ms))
        while queue:
            effect = queue.popleft()
            match effect:
                case c.CastVote() | c.Propose():
                    vote = self._vote(effect, writes, after)
                    if vote is not None:
                        queue.extend(self._leave(vote, effect, after, now_ms))
                case c.Behind(height):
                    self._sync.prove(height)
                    is_behind = True
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
                case c.Resend(votes, certificates, proposal_view):
                    after.append(effect)
                    after += self._ask_again()
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
                        self._journal.forget(block_hash)
                    after.append(c.DropBlocks(dropped))
                case c.Commit(_, block_hashes, height):
                    self._committing.update(block_hashes)
                    self._sync.commit(height, now_ms)
                    after.append(effect)
                    is_behind = True
                case _:
                    after.append(effect)
        self._journal.wrote(writes)
        self._guard_grown += writes.guard_bytes
        if is_behind:
            after += self._ask_windows(now_ms)
        return writes.finish() + after

    def _leave(
        self, vote: Vote, effect: c.CastVote | c.Propose, after: list[Action], now_ms: int
    ) -> list[c.Effect]:
        """Send a durable vote, or a proposal with its block, and count it."""
        match effect:
            case c.CastVote():
                after.append(Broadcast(encode_message(Votes((vote,)))))
                after.append(effect)
            case c.Propose(candidate, justify, nulls):
                held = self._blocks.get(candidate.block_hash)
                if held is None:
                    return []
                data = encode_message(Proposal(candidate, vote.signature, justify, nulls, held[1]))
                self._proposal = (candidate.view, data)
                after.append(Broadcast(data, True))
                after.append(c.CastVote(NOTARIZE, candidate))
            case _:
                raise AssertionError(effect)
        return self.core.step(c.VoteReceived(vote, True), now_ms)

    def _vote(self, effect: c.CastVote | c.Propose, writes: Writes, after: list[Action]) -> Vote | None:
        """Ask the guard and sign; ``writes`` gets the writes that make the vote durable.

        None if the answer follows later.
        """
        kind = effect.kind if isinstance(effect, c.CastVote) else NOTARIZE
        candidate = effect.candidate
        held = self._blocks.get(candidate.block_hash)
        if self._seat is None:
            return None
        if self._is_remote:
            if held is not None:
                self._journal.write_block(candidate.block_hash, held[1], writes)
            writes.sync_journal()
            self._requested[kind, candidate] = effect
            after.append(RequestVote(kind, candidate, self._seat))
            return None
        assert self._guard is not None and self._signer is not None, "a seat has a key"
        try:
            made = self._guard.check(kind, candidate)
        except GuardRefused as refusal:
            after.append(Refused(refusal.rule))
            return None
        if made is not None:
            # Recorded on another chain after a fork, the key may have had another seat in the same epoch.
            return made._replace(seat=self._seat)
        if held is not None:
            self._journal.write_block(candidate.block_hash, held[1], writes)
        signature = self._signer.sign_vote(vote_digest(self._genesis_hash, kind, candidate))
        vote = Vote(kind, *candidate, self._seat, signature)
        writes.to_guard(self._guard.record(vote))
        return vote

    def _address(self, seat: int) -> bytes:
        return self._committee.seats[seat].address
