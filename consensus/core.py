"""The core of SDBFT: rules R1 to R9 as a state machine; events in, effects out, no I/O, no clock (consensus.md 4).

Whatever enters is verified before (signatures, shapes); whatever leaves is done by the shell in the order of the
list. Work that takes time (build, check, execute) is asked for and comes back as an event, the core never waits.

What is easily missed in the rules:
- A vote announces the certificate that let its caster enter the view, so no announcement travels of its own; who
  lacks that certificate asks the caster for it after ``pull_ms``.
- A seat votes FINALIZE also when a quorum did before it, as long as the block is not committed here: who finalises
  is counted for downtime, and slow is not dead.
- Certificates of committed views are kept for ``EVIDENCE_VIEWS``: one that conflicts names more than W/3.
- Certificates and voted blocks are kept durably before a vote that rests on them leaves (``KeepCertificate``, and
  the block of a vote): without that, a crash of all replicas at once could lose a notarised block, or the only
  proof that a view ended, for ever.

A replica that catches up holds thousands of blocks and certificates. So no event looks at all of them: what a
block or a certificate makes possible is found by indexes, and each block is visited a bounded number of times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from consensus.events import (
    ADVANCE,
    FETCH,
    IDLE,
    LEADER,
    NOTHING_RESTORED,
    PULL,
    RETRANSMIT,
    STATUS,
    SYNC,
    WATCH,
    AskBlock,
    AskCertificates,
    Behind,
    BlockBuilt,
    BlockChecked,
    BlockEarly,
    BlockExecuted,
    BlockReceived,
    BlocksReceived,
    Build,
    BuildFailed,
    CastVote,
    CertificateReceived,
    Check,
    Commit,
    ConsensusParameters,
    DropBlocks,
    Effect,
    EnterView,
    Epoch,
    EpochEnded,
    Event,
    Execute,
    FoundEquivocation,
    FoundFork,
    Halt,
    KeepCertificate,
    MempoolChanged,
    OwnVotes,
    OwnVotesKnown,
    ProposalReceived,
    Propose,
    PushCertificate,
    Resend,
    Restored,
    Root,
    SetTimer,
    Start,
    TimerFired,
    VoteReceived,
    WindowsFailed,
)
from consensus.evidence import evidence_of_certificates
from consensus.guard import DoppelgangerWatch
from consensus.min_key_dict import Ascending
from consensus.votes import Certificate, VoteSet
from consensus.wire import NULLS_MAX, VIEWS_MAX
from state.primitives.blocks import Header
from state.primitives.committee import Committee
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote

__all__ = [
    "ADVANCE",
    "EVIDENCE_VIEWS",
    "FETCH",
    "IDLE",
    "LEADER",
    "PULL",
    "RETRANSMIT",
    "STATUS",
    "SYNC",
    "VIEWS_AHEAD",
    "WATCH",
    "AskBlock",
    "AskCertificates",
    "Behind",
    "BlockBuilt",
    "BlockChecked",
    "BlockEarly",
    "BlockExecuted",
    "BlockReceived",
    "BlocksReceived",
    "Build",
    "BuildFailed",
    "CastVote",
    "CertificateReceived",
    "Check",
    "Commit",
    "ConsensusParameters",
    "Core",
    "DropBlocks",
    "Effect",
    "EnterView",
    "Epoch",
    "EpochEnded",
    "Event",
    "Execute",
    "FoundEquivocation",
    "FoundFork",
    "Halt",
    "KeepCertificate",
    "MempoolChanged",
    "OwnVotes",
    "OwnVotesKnown",
    "ProposalReceived",
    "Propose",
    "PushCertificate",
    "Resend",
    "Restored",
    "Root",
    "SetTimer",
    "Start",
    "TimerFired",
    "VoteReceived",
    "WindowsFailed",
]

VIEWS_AHEAD: Final = 2
"""Votes and proposals are admitted up to this many views above the current one (consensus.md R8)."""
EVIDENCE_VIEWS: Final = 256
"""Votes are kept this many views below the current one, for evidence and for late finality (consensus.md R6,
R8)."""
FETCHES_MAX: Final = 64
SYNC_GAP_BLOCKS: Final = 2
"""Behind by more than this, a replica asks for windows of final blocks instead of single blocks."""
CATCH_UP_COMMIT_BLOCKS: Final = 64
"""While more than so many final blocks are to be executed, as many are committed at once: a commit has a cost of
its own. Who catches up by windows alone has no certificates for less."""
PULL_TRIES_MAX: Final = 8
RESENT_VIEWS: Final = 8
KEPT_CANDIDATE_VIEWS: Final = 8
LINEAGE_BLOCKS: Final = 2
"""Committed blocks whose parent and view a leader may still have to name."""
BACKOFF_EXPONENT_MAX: Final = 64
_POWERS_OF_3: Final[tuple[int, ...]] = tuple(3**exponent for exponent in range(BACKOFF_EXPONENT_MAX + 1))


class Core:
    """One replica in one epoch. ``seat`` is None for an observer, which follows and never votes.

    On top of the epoch's last block the same block is proposed again until it is final (consensus.md R16); then
    the core has ended and only looks for faults any more. ``watches_own_seat`` halts on a vote of the own seat
    that the own guard has not made (doppelganger), above ``floor_view``, up to which the guard knows nothing.
    While ``watch`` lasts, or while the own votes are not known, the core listens and says nothing. ``heard_ms``
    is when seats were last heard before this epoch, ``waited_ms`` since when they are waited for.
    """

    def __init__(
        self,
        *,
        epoch: Epoch,
        genesis_hash: bytes,
        seat: int | None,
        root: Root,
        parameters: ConsensusParameters,
        restored: Restored = NOTHING_RESTORED,
        watches_own_seat: bool = True,
        watch: DoppelgangerWatch | None = None,
        knows_own_votes: bool = True,
        floor_view: int = 0,
        heard_ms: Mapping[int, int] | None = None,
        waited_ms: Mapping[int, int] | None = None,
        has_transactions: bool = True,
    ) -> None:
        self._reign = epoch
        self._committee: Committee = epoch.committee
        self._genesis_hash = genesis_hash
        self._epoch = epoch.number
        self._seat = seat
        self._root = root
        self._parameters = parameters
        self._last_height = epoch.last_height
        self._watches_own_seat = watches_own_seat
        self._watched_from = max(root.view, floor_view)
        self._watch = watch if seat is not None else None
        self._is_first_view = False
        self._knows_own_votes = knows_own_votes or seat is None
        self._has_ended = False
        self._now_ms = 0
        self._out: list[Effect] = []
        self._is_halted = False
        self._view = root.view
        self._final = root.certificate
        """The newest FINAL certificate known; its block may not be held yet."""
        self._notarized: Ascending[int, Certificate] = Ascending()
        self._nullified: Ascending[int, Certificate] = Ascending()
        self._finalized: Ascending[int, Certificate] = Ascending()
        self._notarized_views: dict[bytes, list[int]] = {}
        self._finalized_views: dict[bytes, list[int]] = {}
        """Of the certificates above the root, by block: the last one of an epoch may have several of a kind."""
        self._committable: Certificate | None = None
        """The highest of the FINALIZE certificates whose block is executed."""
        self._newest_notarized = 0
        self._past: Ascending[tuple[int, int], Certificate] = Ascending()
        """By view and kind: what was certified up to the root, to recognise what conflicts."""
        if root.certificate is not None:
            self._past[root.view, root.certificate.kind] = root.certificate
        self._lineage: dict[bytes, tuple[bytes, int]] = {}
        """Parent and view of the newest committed blocks of this epoch."""
        self._votes: dict[int, VoteSet] = {}
        self._proposals: dict[int, Candidate] = {}
        self._headers: dict[bytes, Header] = {}
        self._children: dict[bytes, list[bytes]] = {}
        self._at_height: dict[int, dict[bytes, None]] = {}
        """The held blocks of a height."""
        self._loose: dict[bytes, None] = {}
        """Held blocks that are not certified and that no certified block stands on."""
        self._roots: dict[bytes, tuple[bytes, bytes]] = {root.block_hash: (root.state_root, root.receipt_root)}
        self._wanted_execution: set[bytes] = set()
        """Held blocks that are to be executed after their parents. The ancestors of one are in here too, down to a
        block that is being executed, to one that is asked for (``_missing``), or to a branch that is dead."""
        self._missing: dict[bytes, None] = {}
        """Blocks that are not held, are certified or have a child that is to be executed, and were asked for."""
        self._executing: set[bytes] = set()
        self._checked: dict[bytes, bool] = {}
        self._pending_checks: set[bytes] = set()
        self._early: set[bytes] = set()
        """Blocks whose time this node's clock did not allow when they came."""
        self._leader_over = 0
        """The view whose leader's time is over."""
        self._own: Ascending[int, OwnVotes] = Ascending()
        self._cast: Ascending[int, dict[int, Candidate]] = Ascending()
        self._open: Ascending[int, None] = Ascending()
        """Notarised views in which this seat may still vote FINALIZE."""
        self._building = 0
        self._proposed = 0
        self._fetching: dict[bytes, int] = {}
        self._fetch_armed = False
        self._behind_height = 0
        self._asks_singly = False
        self._pull_armed = False
        self._pull_tries = 0
        self._hint_view = 0
        self._hint_seat = 0
        self._lacks_views = 0
        self._has_transactions = has_transactions
        self._idle_added = False
        self._idle_over = 0
        self._idle_armed = 0
        self._resends = 0
        self._ask_turn = seat or 0
        self._heard_ms: dict[int, int] = dict(heard_ms or {})
        self._started_ms: dict[int, int] = dict(waited_ms or {})
        """Since when a seat that was never heard is waited for."""
        self._restored = restored

    # What the shell may ask.

    @property
    def view(self) -> int:
        """The current view."""
        return self._view

    @property
    def epoch(self) -> int:
        """The epoch this core serves."""
        return self._epoch

    @property
    def committee(self) -> Committee:
        """The committee of the epoch."""
        return self._committee

    @property
    def has_ended(self) -> bool:
        """Whether the epoch's last block is committed."""
        return self._has_ended

    @property
    def is_over(self) -> bool:
        """Whether the epoch's last block is known to be final: nothing that is left to vote on matters."""
        if self._has_ended:
            return True
        header = self._headers.get(self._final.block_hash) if self._final is not None else None
        return header is not None and header.height == self._last_height

    @property
    def is_listening(self) -> bool:
        """Whether this seat says nothing yet."""
        return self._watch is not None or not self._knows_own_votes

    @property
    def root(self) -> Root:
        """The last committed block."""
        return self._root

    @property
    def final_certificate(self) -> Certificate | None:
        """The newest FINAL certificate known, whether or not its block is here."""
        return self._final

    @property
    def is_halted(self) -> bool:
        """Whether the core has stopped for good."""
        return self._is_halted

    @property
    def known_height(self) -> int:
        """The height of the newest block known to be final; more than the root's while behind."""
        header = self._headers.get(self._final.block_hash) if self._final is not None else None
        return self._root.height if header is None else max(self._root.height, header.height)

    def wants_vote(self, vote: Vote) -> bool:
        """Tell whether a vote could change anything (consensus.md R8), before its signature is paid for."""
        if vote.epoch != self._epoch or vote.view < self._view - EVIDENCE_VIEWS:
            return False
        if vote.view > self._view + VIEWS_AHEAD:
            return vote.view > self._hint_view + 1
        votes = self._votes.get(vote.view)
        return votes is None or votes.is_wanted(vote)

    def wants_certificate(self, certificate: Certificate) -> bool:
        """Tell whether a certificate is new and still of use."""
        if certificate.epoch != self._epoch:
            return False
        if certificate.view <= self._root.view:
            return bool(self._conflicts(certificate))
        known = self._table(certificate.kind).get(certificate.view)
        return known is None or known.candidate != certificate.candidate

    def wants_proposal(self, candidate: Candidate) -> bool:
        """Tell whether a proposal is for a view that can still use one."""
        return (
            candidate.epoch == self._epoch
            and self._view <= candidate.view <= self._view + NULLS_MAX
            and candidate.view not in self._proposals
        )

    def wants_block(self, block_hash: bytes) -> bool:
        """Tell whether a block was asked for."""
        return block_hash in self._fetching

    def is_held(self, block_hash: bytes) -> bool:
        """Tell whether the block is held above the root."""
        return block_hash in self._headers

    def certificates(self, from_view: int, to_view: int) -> tuple[Certificate, ...]:
        """Return what is held for these views, and the certificates that prove the newest state."""
        found: dict[tuple[int, int], Certificate] = {}
        for view in range(from_view, min(to_view, from_view + VIEWS_MAX - 1) + 1):
            for table in (self._notarized, self._nullified):
                if (certificate := table.get(view)) is not None:
                    found[certificate.kind, view] = certificate
        for certificate in self._newest():
            found[certificate.kind, certificate.view] = certificate
        return tuple(found.values())

    def all_certificates(self) -> tuple[Certificate, ...]:
        """Return every certificate above the root, in the order of views."""
        tables = (self._notarized, self._nullified, self._finalized)
        return tuple(sorted((found for table in tables for found in table.values()), key=lambda found: found.view))

    def own_votes(self) -> tuple[Vote, ...]:
        """Return the signed own votes that are held above the final view."""
        return tuple(vote for _, own in sorted(self._own.items()) for vote in own if vote is not None)

    def heard(self) -> dict[int, int]:
        """Return when each seat was last heard."""
        return dict(self._heard_ms)

    def waited(self) -> dict[int, int]:
        """Return since when each seat is waited for that was never heard."""
        return dict(self._started_ms)

    def missing_weight(self, now_ms: int) -> int:
        """Return the weight of the seats not heard for ``silent_ms``."""
        since_ms = now_ms - self._parameters.silent_ms
        heard = [seat for seat, at_ms in self._heard_ms.items() if at_ms > since_ms]
        if self._seat is not None and self._seat not in heard:
            heard.append(self._seat)
        return self._committee.weight - sum(self._committee.weights[seat] for seat in heard)

    def is_late(self, vote: Vote) -> bool:
        """Tell whether a vote comes after what it could have helped to decide."""
        if vote.kind == FINALIZE:
            return self._final is not None and vote.view <= self._final.view
        return vote.view < self._view

    def sizes(self) -> dict[str, int]:
        """Return how many views of votes, proposals, blocks and requests are kept."""
        return {
            "votes": len(self._votes),
            "proposals": len(self._proposals),
            "headers": len(self._headers),
            "fetching": len(self._fetching),
            "missing": len(self._missing),
            "certificates": len(self._notarized) + len(self._nullified) + len(self._finalized),
            "past": len(self._past),
            "cast": len(self._cast),
        }

    # The one way in.

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event at a monotonic time and return what to do, in order."""
        if self._is_halted:
            return []
        self._now_ms = now_ms
        if self._has_ended:
            return self._step_ended(event)
        match event:
            case VoteReceived(vote, is_own):
                self._on_vote(vote, is_own)
            case CertificateReceived(certificate):
                self._absorb(certificate, is_formed=False)
            case ProposalReceived(vote, header):
                self._on_proposal(vote, header)
            case TimerFired(name):
                self._on_timer(name)
            case BlockExecuted(block_hash, state_root, receipt_root):
                self._on_executed(block_hash, state_root, receipt_root)
            case BlockChecked(block_hash, is_valid):
                self._on_checked(block_hash, is_valid)
            case BlockEarly(block_hash):
                self._on_early(block_hash)
            case BlockReceived(block_hash, header):
                self._on_block(block_hash, header)
            case BlocksReceived(certificate, blocks):
                self._on_blocks(certificate, blocks)
            case BlockBuilt(view, block_hash, header):
                self._on_built(view, block_hash, header)
            case BuildFailed(view):
                if view == self._view:
                    self._nullify("build")
            case MempoolChanged(has_transactions):
                self._on_mempool(has_transactions)
            case OwnVotesKnown(votes, floor_view):
                self._on_own_votes(votes, floor_view)
            case WindowsFailed():
                self._asks_singly = True
                self._ask_missing()
                self._progress()
            case Start():
                self._on_start()
            case _:
                raise AssertionError(event)
        out, self._out = self._out, []
        return out

    def _step_ended(self, event: Event) -> list[Effect]:
        """After the last block nothing is decided here any more, but faults may still show."""
        match event:
            case VoteReceived(vote, False) if vote.view >= self._view - EVIDENCE_VIEWS:
                if vote.view <= self._view + VIEWS_AHEAD and vote.seat != self._seat:
                    equivocation = self._votes_of(vote.view).add(vote).equivocation
                    if equivocation is not None:
                        self._out.append(FoundEquivocation(equivocation))
            case CertificateReceived(certificate) if certificate.view <= self._root.view:
                self._absorb(certificate, is_formed=False)
            case _:
                pass
        out, self._out = self._out, []
        return out

    # Start.

    def listen(self, watch: DoppelgangerWatch) -> None:
        """Say nothing until the watch is over; before Start."""
        if self._seat is not None:
            self._watch = watch
            self._is_first_view = True

    def _on_start(self) -> None:
        for seat in range(self._committee.size):
            self._started_ms.setdefault(seat, self._now_ms)
        if self._watch is not None:
            self._out.append(SetTimer(WATCH, max(1, self._watch.earliest_ms - self._now_ms)))
        restored, self._restored = self._restored, Restored()
        for vote in restored.own:
            if vote.view > self._root.view and vote.epoch == self._epoch:
                self._cast.setdefault(vote.view, {})[vote.kind] = vote.candidate
                self._keep_own(vote)
        for block_hash, header in restored.headers:
            self._hold(block_hash, header)
        view = self._root.view
        for certificate in restored.certificates:
            if certificate.epoch != self._epoch:
                continue
            if certificate.view <= self._root.view:
                if certificate.view >= self._root.view - EVIDENCE_VIEWS:
                    self._past.setdefault((certificate.view, certificate.kind), certificate)
            elif certificate.view not in self._table(certificate.kind):
                self._register(certificate)
                view = max(view, certificate.view)
                if certificate.kind == FINALIZE and (self._final is None or certificate.view > self._final.view):
                    self._final = certificate
        self._open = Ascending((view, None) for view in self._notarized)
        for certified in (*self._notarized.values(), *self._finalized.values()):
            self._on_certified_block(certified)
        self._enter(view + 1)
        for vote in restored.own:
            if vote.view > self._root.view and vote.epoch == self._epoch:
                self._on_vote(vote, True)
        self._try_finalize_open()
        self._progress()
        # The others learn at once where this replica is, and answer with what it missed.
        self._resend()

    # Votes and certificates.

    def _votes_of(self, view: int) -> VoteSet:
        votes = self._votes.get(view)
        if votes is None:
            votes = self._votes[view] = VoteSet(self._committee)
        return votes

    def _keep_own(self, vote: Vote) -> None:
        own = self._own.get(vote.view, OwnVotes())
        match vote.kind:
            case 1:
                own = own._replace(notarize=vote)
            case 2:
                own = own._replace(nullify=vote)
            case _:
                own = own._replace(finalize=vote)
        self._own[vote.view] = own

    def _on_vote(self, vote: Vote, is_own: bool) -> None:
        if vote.seat == self._seat and not is_own:
            self._on_foreign_own_vote(vote)
            return
        if vote.seat >= self._committee.size:
            return  # the guard recorded it on another chain, whose committee of this epoch was larger
        view = vote.view
        self._heard_ms[vote.seat] = self._now_ms
        if is_own:
            self._keep_own(vote)
        elif view > self._view:
            # Its caster has a certificate for every view up to the one before, or one that skips them.
            self._hint(view - 1, vote.seat)
        if view > self._view + VIEWS_AHEAD or view < self._view - EVIDENCE_VIEWS:
            return
        _, certificate, equivocation = self._votes_of(view).add(vote)
        if equivocation is not None:
            self._out.append(FoundEquivocation(equivocation))
        if view == self._view and vote.seat == self._committee.leader(view) and not is_own:
            if vote.kind == NULLIFY:
                self._nullify("leader_nullify")
            elif equivocation is not None and vote.kind == NOTARIZE:
                self._nullify("equivocation")
        if certificate is not None:
            self._absorb(certificate, is_formed=True)

    def _on_foreign_own_vote(self, vote: Vote, time_ms: int | None = None) -> None:
        cast = self._cast.get(vote.view, {}).get(vote.kind)
        if not self._watches_own_seat or not self._knows_own_votes or vote.view <= self._watched_from:
            return
        if cast is None or (vote.kind != NULLIFY and cast != vote.candidate):
            self._halt(
                "doppelganger",
                f"another process votes with this key: epoch {vote.epoch}, view {vote.view}",
                time_ms or 0,
            )
        elif vote.view > self._root.view:
            self._keep_own(vote)

    def _bears_foreign_vote(self, certificate: Certificate) -> bool:
        """Halt for a certificate with a vote of this key that its guard has not made.

        Votes are heard while they are new; those of before this start stand in certificates alone, so that a guard
        that was lost shows when its validator catches up.
        """
        if self._seat is None or not int.from_bytes(certificate.bitmap, "little") >> self._seat & 1:
            return False
        if certificate.kind not in self._cast.get(certificate.view, {}):
            header = self._headers.get(certificate.block_hash)
            for vote in certificate.votes():
                if vote.seat == self._seat:
                    self._on_foreign_own_vote(vote, None if header is None else header.time_ms)
        return self._is_halted

    def _on_own_votes(self, votes: tuple[Vote, ...], floor_view: int) -> None:
        if self._knows_own_votes:
            return
        self._knows_own_votes = True
        self._watched_from = max(self._watched_from, floor_view)
        own = [vote for vote in votes if vote.epoch == self._epoch and vote.view > self._root.view]
        for vote in own:
            self._cast.setdefault(vote.view, {})[vote.kind] = vote.candidate
        for vote in own:
            self._on_vote(vote, True)
        if own and not self._is_halted and not self._has_ended:
            self._resend()  # some may never have left
        self._speak()

    def _speak(self) -> None:
        """Voting may begin: what ran out while this seat only listened begins anew."""
        if not self.is_listening and not self._is_halted:
            self._arm_view(0)
            self._try_finalize_open()
            self._progress()

    def _table(self, kind: int) -> Ascending[int, Certificate]:
        if kind == NOTARIZE:
            return self._notarized
        return self._nullified if kind == NULLIFY else self._finalized

    def _register(self, certificate: Certificate) -> None:
        """Keep a certificate above the root, the first of its kind and view."""
        kind, view, block_hash = certificate.kind, certificate.view, certificate.block_hash
        self._table(kind)[view] = certificate
        if kind == NOTARIZE:
            self._newest_notarized = max(self._newest_notarized, view)
            self._notarized_views.setdefault(block_hash, []).append(view)
        elif kind == FINALIZE:
            self._finalized_views.setdefault(block_hash, []).append(view)
            if block_hash in self._roots:
                self._may_commit(certificate)
        if kind != NULLIFY:
            self._mark_certain(block_hash)

    def _retire(self, view: int) -> tuple[Certificate, ...]:
        """Move the certificates up to the root's view to those of the past; return the nullifications."""
        nullified: tuple[Certificate, ...] = ()
        for kind, table in ((NOTARIZE, self._notarized), (NULLIFY, self._nullified), (FINALIZE, self._finalized)):
            taken = table.take(view)
            for old, certificate in taken:
                self._past[old, kind] = certificate
                views = self._notarized_views if kind == NOTARIZE else self._finalized_views
                if kind != NULLIFY:
                    views[certificate.block_hash].remove(old)
                    if not views[certificate.block_hash]:
                        del views[certificate.block_hash]
            if kind == NULLIFY:
                nullified = tuple([certificate for _, certificate in taken])
        self._past.take((view - EVIDENCE_VIEWS, 0))
        return nullified

    def _is_certified(self, block_hash: bytes) -> bool:
        """Whether a certificate above the root names the block."""
        return block_hash in self._notarized_views or block_hash in self._finalized_views

    def _certified(self, view: int) -> Certificate | None:
        return self._notarized.get(view) or self._finalized.get(view)

    def _absorb(self, certificate: Certificate, *, is_formed: bool) -> None:
        kind, view = certificate.kind, certificate.view
        table = self._table(kind)
        if certificate.epoch != self._epoch:
            return
        faults = self._conflicts(certificate)
        if faults:
            self._accuse(certificate, faults)
            return
        if view <= self._root.view or view in table:
            return
        self._register(certificate)
        if not is_formed and self._bears_foreign_vote(certificate):
            return
        if self._is_contradiction(view):
            self._accuse(certificate, ())
            return
        self._out.append(KeepCertificate(certificate, is_formed))
        if kind == FINALIZE and (self._final is None or view > self._final.view):
            self._final = certificate
        if kind == NOTARIZE:
            self._open[view] = None
        if kind != NULLIFY:
            self._on_certified_block(certificate)
        if kind == NOTARIZE:
            self._try_finalize(view)
        if kind == FINALIZE:
            self._try_commit()
        if self._has_ended:
            return
        if view >= self._view:
            self._enter(view + 1)
            if kind == NULLIFY:
                leader = self._committee.leader(self._view)
                if leader != self._seat:
                    self._out.append(PushCertificate(leader, (certificate,)))
        elif not self._is_halted:
            self._try_propose()
            self._try_vote()

    def _is_contradiction(self, view: int) -> bool:
        """Whether two certificates of a view contradict each other though they name no seat twice."""
        notarized, final = self._notarized.get(view), self._finalized.get(view)
        return notarized is not None and final is not None and notarized.candidate != final.candidate

    def _conflicts(self, certificate: Certificate) -> tuple[Certificate, ...]:
        """What is held and, with this certificate, proves the faults of more than W/3."""
        kind, view = certificate.kind, certificate.view
        is_past = view <= self._root.view
        found = []
        for other in (NOTARIZE, NULLIFY, FINALIZE):
            known = self._past.get((view, other)) if is_past else self._table(other).get(view)
            if known is None:
                continue
            is_double = other == kind and known.candidate != certificate.candidate
            if is_double or {kind, other} == {NULLIFY, FINALIZE}:
                found.append(known)
        return tuple(found)

    def _accuse(self, certificate: Certificate, others: tuple[Certificate, ...]) -> None:
        """Name every culprit, then stop: what is final here may not be final elsewhere."""
        for other in others:
            self._out += [FoundEquivocation(fault) for fault in evidence_of_certificates(other, certificate)]
        self._halt(
            "safety",
            f"certificates of epoch {self._epoch}, view {certificate.view} contradict each other: "
            "a third of the weight is faulty",
        )

    def _on_certified_block(self, certificate: Certificate) -> None:
        """Have a certified block executed, or ask for it.

        Below the newest final view only its ancestors count, and they are asked for from there downwards.
        """
        block_hash = certificate.block_hash
        if block_hash in self._headers:
            self._drive(block_hash)
        elif block_hash != self._root.block_hash and (self._final is None or certificate.view >= self._final.view):
            self._missing[block_hash] = None
            self._want(block_hash)

    # Views and their timers (consensus.md R1, R2, consensus.md 6).

    def _enter(self, view: int) -> None:
        self._view = view
        parameters = self._parameters
        final_view = self._final.view if self._final is not None else self._root.view
        exponent = max(0, view - final_view - 2)
        leader = self._committee.leader(view)
        self._out.append(EnterView(view, leader, exponent))
        if self._watch is not None:
            if not self._is_first_view:  # it may have come too late for a vote in the view it starts in
                self._watch.entered_view()
            self._is_first_view = False
            if self._watch.is_over(self._now_ms):
                self._watch = None
                self._try_finalize_open()
                if self._is_halted:
                    return
        for old in [known for known in self._proposals if known < view]:
            del self._proposals[old]
        self._resends = self._pull_tries = 0
        self._idle_added = not self._has_transactions and parameters.idle_ms > 0
        self._arm_view(parameters.idle_ms if self._idle_added else 0)
        self._arm_resend()
        self._drop_candidates()
        for old in [known for known in self._votes if known < view - EVIDENCE_VIEWS]:
            del self._votes[old]
        if self._is_silent(leader):
            self._nullify("inactive")
        self._try_propose()
        self._try_vote()

    def _arm_view(self, extra_ms: int) -> None:
        parameters = self._parameters
        self._leader_over = 0
        interval_ms = parameters.block_interval_ms + extra_ms
        for name, base_ms in ((LEADER, parameters.leader_ms), (ADVANCE, parameters.advance_ms)):
            self._out.append(SetTimer(name, self._backed_off(base_ms) + interval_ms))

    def _backed_off(self, base_ms: int) -> int:
        final_view = self._final.view if self._final is not None else self._root.view
        exponent = min(max(0, self._view - final_view - 2), BACKOFF_EXPONENT_MAX)
        parameters = self._parameters
        grown = min(base_ms * _POWERS_OF_3[exponent] >> exponent, base_ms * parameters.backoff_factor_max)
        return min(grown, parameters.timeout_ms_max)

    def _is_silent(self, leader: int) -> bool:
        """Whether the leader has been quiet while a quorum was not (consensus.md 11.4; local and safe)."""
        since_ms = self._now_ms - self._parameters.silent_ms
        if leader == self._seat:
            return False
        if max(self._heard_ms.get(leader, 0), self._started_ms.get(leader, 0)) > since_ms:
            return False
        weights = self._committee.weights
        heard = sum(weights[seat] for seat, at_ms in self._heard_ms.items() if at_ms > since_ms)
        return heard >= self._committee.quorum

    def _on_timer(self, name: str) -> None:
        if name == LEADER:
            self._leader_over = self._view
            if self._holds_early():
                self._nullify("early")
            elif self._view not in self._proposals and self._proposed != self._view:
                self._nullify("leader")
        elif name == ADVANCE:
            self._nullify("advance")
        elif name == RETRANSMIT:
            self._resend()
            self._resends += 1
            self._arm_resend()
        elif name == FETCH:
            self._fetch_armed = False
            self._refetch()
        elif name == PULL:
            self._pull_armed = False
            self._pull()
        elif name == WATCH and self._watch is not None:
            if self._watch.is_over(self._now_ms):
                self._watch = None
                self._speak()
            else:
                self._out.append(SetTimer(WATCH, max(1, self._watch.latest_ms - self._now_ms)))
        elif name == IDLE and self._building < self._view:
            self._idle_over = self._view
            self._try_propose()

    def _on_mempool(self, has_transactions: bool) -> None:
        self._has_transactions = has_transactions
        if not has_transactions:
            return
        if self._idle_added:
            self._idle_added = False
            if self._view not in self._proposals or self._holds_early():
                self._arm_view(0)
        self._try_propose()

    # Proposing (consensus.md R1).

    def _choose_parent(self) -> tuple[bytes, int, Certificate | None, list[Certificate]] | None:
        """The newest certified and executed block that every later view lets through, or None and what lacks."""
        nulls: list[Certificate] = []
        view = self._view - 1
        while view > self._root.view:
            certified = self._certified(view)
            if certified is not None and certified.block_hash in self._roots:
                return certified.block_hash, view, certified, nulls
            null = self._nullified.get(view)
            if null is None:
                self._lack(view)
                return None
            nulls.append(null)
            view -= 1
        root = self._root
        return root.block_hash, root.view, root.certificate, nulls

    def _try_propose(self) -> None:
        view = self._view
        if self._seat is None or self._proposed == view or self._committee.leader(view) != self._seat:
            return
        if self.is_listening or self.is_over:
            return
        cast = self._cast.get(view, {})
        if self._building == view or NOTARIZE in cast or NULLIFY in cast:
            return
        chosen = self._choose_parent()
        if chosen is None:
            return
        parent_hash, parent_view, justify, nulls = chosen
        if self._height_of(parent_hash) == self._last_height:
            self._propose(Candidate(self._epoch, view, parent_view, parent_hash), justify, nulls)
            return
        idle_ms = self._parameters.idle_ms
        if not self._has_transactions and idle_ms > 0 and self._idle_over != view:
            if self._idle_armed != view:
                self._idle_armed = view
                self._out.append(SetTimer(IDLE, idle_ms))
            return
        self._building = view
        bitmap = self._voters_bitmap(parent_hash)
        self._out.append(Build(self._epoch, view, self._seat, parent_hash, bitmap, self._reign.randomness))

    def _voters_bitmap(self, parent_hash: bytes) -> bytes:
        """The seats whose FINALIZE for the parent of the parent is here; empty while they are less than a quorum.

        One more block interval than the parent's own certificate gives a slow seat; a leader that has just started
        knows too little to testify.
        """
        grandparent = self._origin_of(parent_hash)
        origin = self._origin_of(grandparent[0]) if grandparent is not None else None
        if grandparent is None or origin is None:
            return b""
        block_hash, view = grandparent[0], origin[1]
        final = self._finalized.get(view) or self._past.get((view, FINALIZE))
        bits = 0
        if final is not None and final.block_hash == block_hash:
            bits = int.from_bytes(final.bitmap, "little")
        votes = self._votes.get(view)
        if votes is not None:
            for seat in range(self._committee.size):
                vote = votes.get(FINALIZE, seat)
                if vote is not None and vote.block_hash == block_hash:
                    bits |= 1 << seat
        bitmap = bits.to_bytes((self._committee.size + 7) // 8, "little")
        return bitmap if self._committee.weight_of(bitmap) >= self._committee.quorum else b""

    def _origin_of(self, block_hash: bytes) -> tuple[bytes, int] | None:
        """Parent and first view of a block of this epoch, if it is known."""
        header = self._headers.get(block_hash)
        return (header.parent_hash, header.view) if header is not None else self._lineage.get(block_hash)

    def _on_built(self, view: int, block_hash: bytes, header: Header) -> None:
        if view != self._view or self._building != view:
            return
        cast = self._cast.get(view, {})
        chosen = self._choose_parent()
        if chosen is None or NOTARIZE in cast or NULLIFY in cast:
            return
        parent_hash, parent_view, justify, nulls = chosen
        if header.parent_hash != parent_hash:  # a newer parent was certified meanwhile
            self._building = 0
            self._try_propose()
            return
        self._hold(block_hash, header)
        self._checked[block_hash] = True
        self._propose(Candidate(self._epoch, view, parent_view, block_hash), justify, nulls)
        self._drive(block_hash)

    def _propose(self, candidate: Candidate, justify: Certificate | None, nulls: list[Certificate]) -> None:
        self._proposed = candidate.view
        self._cast.setdefault(candidate.view, {})[NOTARIZE] = candidate
        self._out.append(Propose(candidate, justify, tuple(nulls[:NULLS_MAX])))

    # Voting (consensus.md R3, R4, R5).

    def _on_proposal(self, vote: Vote, header: Header) -> None:
        view = vote.view
        if vote.seat == self._seat:
            self._on_foreign_own_vote(vote)
            return
        self._on_vote(vote, False)
        if self._is_halted or not self._view <= view <= self._view + VIEWS_AHEAD or view in self._proposals:
            return
        self._proposals[view] = vote.candidate
        if vote.block_hash != self._root.block_hash:
            self._hold(vote.block_hash, header)
        if view == self._view:
            self._try_vote()
        self._progress_block(vote.block_hash)

    def _try_vote(self) -> None:
        view = self._view
        candidate = self._proposals.get(view)
        if candidate is None or self._is_halted:
            return
        cast = self._cast.get(view, {})
        if self._seat is not None and (NOTARIZE in cast or NULLIFY in cast):
            return
        if self.is_over:
            return
        verdict = self._judge(candidate)
        if verdict is None:
            return
        if not verdict:
            self._nullify("invalid")
            return
        if self._seat is not None and not self.is_listening:
            self._cast_vote(NOTARIZE, candidate)
        self._drive(candidate.block_hash)

    def _judge(self, candidate: Candidate) -> bool | None:
        """Whether the proposal may be voted for (consensus.md R3); None while something is missing."""
        view, parent_view, root = candidate.view, candidate.parent_view, self._root
        if parent_view < root.view:
            return False  # it skips a final view, of which no nullification can exist
        if parent_view == root.view:
            parent_hash = root.block_hash
        else:
            certified = self._certified(parent_view)
            if certified is None:
                self._lack(parent_view)
                return None
            parent_hash = certified.block_hash
        for skipped in range(view - 1, parent_view, -1):
            if skipped not in self._nullified:
                self._lack(skipped)
                return None
        if parent_hash not in self._roots:
            if parent_hash in self._headers:
                self._drive(parent_hash)
            return None
        parent_height = self._height_of(parent_hash)
        if parent_height == self._last_height:
            return candidate.block_hash == parent_hash
        header = self._headers.get(candidate.block_hash)
        if header is None:
            return False if candidate.block_hash == root.block_hash else None
        if (
            header.view != view
            or header.parent_hash != parent_hash
            or header.height != parent_height + 1
            or header.epoch != self._epoch
            or header.proposer_seat != self._committee.leader(view)
            or header.genesis_hash != self._genesis_hash
            or header.committee_hash != self._committee.hash
            or (header.state_root, header.receipt_root) != self._roots[parent_hash]
        ):
            return False
        if candidate.block_hash not in self._checked:
            self._checked[candidate.block_hash] = False
            self._out.append(Check(candidate.block_hash))
            self._pending_checks.add(candidate.block_hash)
        if candidate.block_hash in self._pending_checks:
            return None
        return self._checked[candidate.block_hash]

    def _holds_early(self) -> bool:
        """Whether the proposal of this view waits for this node's clock, or had to.

        Only a certificate ends such a view before the leader's time-out, not this node's vote. Clocks differ: when
        the block's time comes near the time-out, some vote for the block and the others against it. All would then
        wait for the end of the view, each time that this leader leads.
        """
        candidate = self._proposals.get(self._view)
        return candidate is not None and candidate.block_hash in self._early

    def _on_early(self, block_hash: bytes) -> None:
        if block_hash in self._pending_checks:
            self._early.add(block_hash)
            if self._leader_over == self._view and self._holds_early():
                self._nullify("early")

    def _on_checked(self, block_hash: bytes, is_valid: bool) -> None:
        self._pending_checks.discard(block_hash)
        if block_hash in self._headers:
            self._checked[block_hash] = is_valid
            self._try_vote()

    def _cast_vote(self, kind: int, candidate: Candidate, reason: str = "") -> None:
        self._cast.setdefault(candidate.view, {})[kind] = candidate
        self._out.append(CastVote(kind, candidate, reason))

    def _nullify(self, reason: str) -> None:
        view = self._view
        if self._seat is None or self.is_listening or self.is_over:
            return
        cast = self._cast.get(view, {})
        if NULLIFY in cast or FINALIZE in cast:
            return
        self._cast_vote(NULLIFY, Candidate(self._epoch, view, 0, ZERO_HASH), reason)

    def _try_finalize(self, view: int) -> None:
        """R5: also for past views; a divergent root of a notarised block halts."""
        if self._seat is None or self.is_listening or view not in self._open:
            return
        cast = self._cast.get(view, {})
        if NULLIFY in cast or FINALIZE in cast:
            self._open.pop(view, None)
            return
        certificate = self._notarized[view]
        header = self._headers.get(certificate.block_hash)
        if header is None:
            if certificate.block_hash == self._root.block_hash:  # the boundary block again, already final
                self._open.pop(view, None)
            return
        parent = self._roots.get(header.parent_hash)
        if parent is None:
            return
        if parent != (header.state_root, header.receipt_root):
            self._diverged(header)
            return
        self._open.pop(view, None)
        self._cast_vote(FINALIZE, certificate.candidate)

    def _try_finalize_open(self) -> None:
        """Try all open views: this seat may vote from now on."""
        for view in sorted(self._open):
            self._try_finalize(view)

    def _try_finalize_block(self, block_hash: bytes) -> None:
        """Try the views that notarised a block: its parent was executed, or it has come."""
        for view in tuple(self._notarized_views.get(block_hash, ())):
            self._try_finalize(view)

    # Blocks: held, executed, committed (consensus.md R6).

    def _height_of(self, block_hash: bytes) -> int:
        if block_hash == self._root.block_hash:
            return self._root.height
        return self._headers[block_hash].height

    def _hold(self, block_hash: bytes, header: Header) -> None:
        self._fetching.pop(block_hash, None)
        is_wanted = block_hash in self._missing
        if is_wanted:
            del self._missing[block_hash]
        if block_hash in self._headers or header.height <= self._root.height:
            return
        if is_wanted:  # it is certified, or what stands on it waits to be executed
            self._wanted_execution.add(block_hash)
        self._headers[block_hash] = header
        self._children.setdefault(header.parent_hash, []).append(block_hash)
        self._at_height.setdefault(header.height, {})[block_hash] = None
        self._loose[block_hash] = None
        children = self._children.get(block_hash, ())
        if self._is_certified(block_hash) or any(child not in self._loose for child in children):
            self._mark_certain(block_hash)

    def _mark_certain(self, block_hash: bytes) -> None:
        """A block is certified: it and its ancestors are kept."""
        while block_hash in self._loose:
            del self._loose[block_hash]
            block_hash = self._headers[block_hash].parent_hash

    def _on_block(self, block_hash: bytes, header: Header) -> None:
        if block_hash not in self._fetching:
            return
        self._hold(block_hash, header)
        self._progress_block(block_hash)

    def _progress_block(self, block_hash: bytes) -> None:
        if block_hash not in self._headers:
            return
        self._resume(block_hash)
        self._progress()

    def _resume(self, block_hash: bytes) -> None:
        """A block has come: do what waited for it."""
        if self._is_certified(block_hash) or block_hash in self._wanted_execution:
            self._drive(block_hash)
        self._try_finalize_block(block_hash)

    def _progress(self) -> None:
        """Something arrived: try everything that may have waited for it."""
        if self._missing and self._is_far():
            self._behind()
        if not self._is_halted:
            self._try_commit()
        if not self._is_halted and not self._has_ended:
            self._try_propose()
            self._try_vote()

    def _drive(self, block_hash: bytes) -> None:
        """Have a held block executed after its ancestors; ask for those that are missing.

        It ends at an ancestor that was driven before, so that each block is passed once.
        """
        is_first = True
        while block_hash not in self._roots and block_hash not in self._executing:
            header = self._headers.get(block_hash)
            if header is None:
                self._missing[block_hash] = None
                self._seek(block_hash)
                return
            if block_hash in self._wanted_execution and not is_first:
                return
            is_first = False
            self._wanted_execution.add(block_hash)
            if header.parent_hash in self._roots:
                self._execute(block_hash, header)
                return
            if header.height <= self._root.height + 1:
                return  # a sibling of the root: never final
            block_hash = header.parent_hash

    def _execute(self, block_hash: bytes, header: Header) -> None:
        if self._roots[header.parent_hash] != (header.state_root, header.receipt_root):
            if self._is_certified(block_hash):
                self._diverged(header)
            return
        self._executing.add(block_hash)
        self._out.append(Execute(block_hash))

    def _on_executed(self, block_hash: bytes, state_root: bytes, receipt_root: bytes) -> None:
        self._executing.discard(block_hash)
        if block_hash not in self._headers:
            return
        self._roots[block_hash] = (state_root, receipt_root)
        self._wanted_execution.discard(block_hash)
        for view in self._finalized_views.get(block_hash, ()):
            self._may_commit(self._finalized[view])
        children = tuple(self._children.get(block_hash, ()))
        for child in children:
            if child in self._wanted_execution and child not in self._executing:
                self._execute(child, self._headers[child])
        for child in children:
            self._try_finalize_block(child)
        if not self._is_halted:
            self._progress()

    def _path(self, block_hash: bytes) -> list[bytes] | None:
        """The held blocks from the root's child up to ``block_hash``; None when one is missing."""
        path: list[bytes] = []
        while block_hash != self._root.block_hash:
            header = self._headers.get(block_hash)
            if header is None:
                return None
            path.append(block_hash)
            block_hash = header.parent_hash
        path.reverse()
        return path

    def _may_commit(self, certificate: Certificate) -> None:
        """The block of a FINALIZE certificate is executed, and so are its ancestors above the root."""
        if self._committable is None or certificate.view > self._committable.view:
            self._committable = certificate

    def _try_commit(self) -> None:
        certificate = self._committable
        if certificate is not None and self._more_come_first(certificate):
            return
        path = self._path(certificate.block_hash) if certificate is not None else None
        if certificate is not None and path is not None:
            self._commit(certificate, path)

    def _more_come_first(self, certificate: Certificate) -> bool:
        """Whether a commit waits for further blocks: they are being executed, and each of them calls again."""
        header = self._headers.get(certificate.block_hash)
        if header is None or not self._executing:
            return False
        height, root_height = header.height, self._root.height
        return height - root_height < CATCH_UP_COMMIT_BLOCKS < self.known_height - root_height

    def _commit(self, certificate: Certificate, path: list[bytes]) -> None:
        block_hash, view = certificate.block_hash, certificate.view
        roots = self._roots[block_hash]
        height = self._root.height + len(path)
        before = self._root
        self._committable = None
        nullified = self._retire(view)
        self._out.append(Commit(certificate, tuple(path), height, nullified))
        self._root = Root(block_hash, height, view, roots[0], roots[1], certificate)
        self._behind_height = 0
        self._asks_singly = False
        for known in path[-LINEAGE_BLOCKS:]:
            header = self._headers[known]
            self._lineage[known] = (header.parent_hash, header.view)
        while len(self._lineage) > 2 * LINEAGE_BLOCKS:
            del self._lineage[next(iter(self._lineage))]
        self._own.take(view)
        self._cast.take(view - EVIDENCE_VIEWS - 1)
        self._open.take(view)
        self._drop_below_root(before.height)
        if before.block_hash != block_hash:
            self._roots.pop(before.block_hash, None)
        if height == self._last_height:
            self._has_ended = True
            self._out.append(EpochEnded(certificate))
        elif self._is_far():
            self._behind()  # windows bring what is missing, which may be much
        else:
            self._ask_missing()

    def _drop_below_root(self, from_height: int) -> None:
        """Forget what can no longer become final; ``from_height`` was the root's before."""
        root = self._root
        dead: dict[bytes, int] = {}
        for height in range(from_height + 1, root.height + 2):
            for block_hash in self._at_height.get(height, ()):
                if height <= root.height or self._headers[block_hash].parent_hash != root.block_hash:
                    dead[block_hash] = height
        following = deque(dead)
        while following:
            parent_hash = following.popleft()
            for child in self._children.get(parent_hash, ()):
                height = self._headers[child].height
                if child not in dead and (parent_hash, height) != (root.block_hash, root.height + 1):
                    dead[child] = height
                    following.append(child)
        self._forget(tuple(sorted(dead, key=dead.__getitem__)))

    def _drop_candidates(self) -> None:
        """Forget candidates of old views that nothing certified and this seat has not voted for."""
        if len(self._loose) <= 2 * KEPT_CANDIDATE_VIEWS:
            return
        needed: set[bytes] = set()
        # Own NOTARIZE votes promise that the block can be had, as long as a certificate for it may appear.
        for block_hash in self._loose:
            view = self._headers[block_hash].view
            own = self._cast.get(view, {}).get(NOTARIZE)
            if view <= self._root.view or view in self._nullified:
                continue
            if own is not None and own.block_hash == block_hash:
                while block_hash in self._loose and block_hash not in needed:
                    needed.add(block_hash)
                    block_hash = self._headers[block_hash].parent_hash
        oldest = self._view - KEPT_CANDIDATE_VIEWS
        dead = [h for h in self._loose if self._headers[h].view < oldest and h not in needed]
        for child in [child for known in dead for child in self._children.get(known, ())]:
            self._no_longer_driven(child)
        self._forget(tuple(dead))

    def _no_longer_driven(self, block_hash: bytes) -> None:
        """An ancestor is forgotten: who drives this block must go down to that again."""
        above = [block_hash]
        while above:
            block_hash = above.pop()
            if block_hash in self._wanted_execution:
                self._wanted_execution.discard(block_hash)
                above += self._children.get(block_hash, ())

    def _forget(self, dead: tuple[bytes, ...]) -> None:
        for block_hash in dead:
            header = self._headers.pop(block_hash)
            siblings = self._children[header.parent_hash]
            siblings.remove(block_hash)
            if not siblings:
                del self._children[header.parent_hash]
            level = self._at_height[header.height]
            del level[block_hash]
            if not level:
                del self._at_height[header.height]
            if block_hash != self._root.block_hash:
                self._roots.pop(block_hash, None)
            self._checked.pop(block_hash, None)
            self._loose.pop(block_hash, None)
            self._pending_checks.discard(block_hash)
            self._early.discard(block_hash)
            self._wanted_execution.discard(block_hash)
            self._executing.discard(block_hash)  # a shell that has dropped it does not answer
        if dead:
            self._out.append(DropBlocks(dead))

    # Asking for what is missing (consensus.md R7: independent of the view, one request in flight for each object).

    def _next_seat(self) -> int:
        self._ask_turn = (self._ask_turn + 1) % self._committee.size
        if self._ask_turn == self._seat and self._committee.size > 1:
            self._ask_turn = (self._ask_turn + 1) % self._committee.size
        return self._ask_turn

    def _want(self, block_hash: bytes) -> None:
        if block_hash in self._fetching or block_hash in self._headers or block_hash == self._root.block_hash:
            return
        if len(self._fetching) >= FETCHES_MAX:
            return
        self._fetching[block_hash] = 0
        self._out.append(AskBlock(self._next_seat(), block_hash))
        self._arm_fetch()

    def _arm_fetch(self) -> None:
        if not self._fetch_armed:
            self._fetch_armed = True
            self._out.append(SetTimer(FETCH, self._parameters.fetch_ms))

    def _refetch(self) -> None:
        for block_hash in self._fetching:
            self._out.append(AskBlock(self._next_seat(), block_hash))
        self._ask_missing()
        if self._fetching:
            self._arm_fetch()

    def _seek(self, block_hash: bytes) -> None:
        """Ask for a block on which one that is held stands."""
        if self._is_far():
            self._behind()
        else:
            self._want(block_hash)

    def _ask_missing(self) -> None:
        """Ask for what is still of use and could not be asked for before; forget what is of none."""
        for block_hash in tuple(self._missing):
            if self._is_newly_certified(block_hash):
                self._want(block_hash)
            elif any(child in self._wanted_execution for child in self._children.get(block_hash, ())):
                self._seek(block_hash)
            else:
                del self._missing[block_hash]
                self._fetching.pop(block_hash, None)

    def _is_newly_certified(self, block_hash: bytes) -> bool:
        """Whether a certificate names the block that is no older than the newest final one."""
        final_view = self._final.view if self._final is not None else self._root.view
        views = (*self._notarized_views.get(block_hash, ()), *self._finalized_views.get(block_hash, ()))
        return any(view >= final_view for view in views)

    def _behind(self) -> None:
        """Tell once how far a certificate reaches above the root."""
        header = self._headers.get(self._final.block_hash) if self._final is not None else None
        if header is not None and header.height > self._behind_height:
            self._behind_height = header.height
            self._out.append(Behind(header.height))

    def _is_far(self) -> bool:
        """Whether the gap to a final block is one for windows of blocks, not for single ones."""
        if self._final is None or self._asks_singly:
            return False
        header = self._headers.get(self._final.block_hash)
        return header is not None and header.height - self._root.height > SYNC_GAP_BLOCKS

    def _on_blocks(self, certificate: Certificate, blocks: tuple[tuple[bytes, Header], ...]) -> None:
        root = self._root
        above = [(block_hash, header) for block_hash, header in blocks if header.height > root.height]
        if not above or above[-1][0] != certificate.block_hash:
            return
        parent_hash = above[0][1].parent_hash
        if parent_hash != root.block_hash and parent_hash not in self._headers:
            if above[0][1].height == root.height + 1:
                self._out += [
                    FoundEquivocation(fault)
                    for known in self._conflicts(certificate)
                    for fault in evidence_of_certificates(known, certificate)
                ]
                self._out.append(FoundFork(certificate))
                self._halt("safety", f"the final block {root.height + 1} does not follow this node's chain")
            return
        for block_hash, header in above:
            self._hold(block_hash, header)
        for block_hash, _ in above:
            self._resume(block_hash)
        if not self._is_halted:
            self._absorb(certificate, is_formed=False)
        if not self._is_halted:
            self._progress()

    def _hint(self, view: int, seat: int) -> None:
        if view > self._hint_view:
            self._hint_view, self._hint_seat = view, seat
            self._arm_pull()

    def _lack(self, view: int) -> None:
        """A certificate of a past view is missing, without which the current view cannot go on."""
        self._lacks_views = view
        self._arm_pull()

    def _arm_pull(self) -> None:
        if not self._pull_armed:
            self._pull_armed = True
            delay_ms = self._parameters.pull_ms * (1 + self._pull_tries)
            self._out.append(SetTimer(PULL, min(delay_ms, self._parameters.fetch_ms)))

    def _pull(self) -> None:
        view, lacks = self._view, self._lacks_views
        is_behind, is_lacking = self._hint_view >= view, self._is_lacking(lacks)
        if not (is_behind or is_lacking):
            self._lacks_views = self._pull_tries = 0
            return
        if is_behind:
            seat = self._hint_seat if self._pull_tries == 0 else self._next_seat()
            self._out.append(AskCertificates(seat, view, min(self._hint_view, view + VIEWS_MAX - 1)))
        if is_lacking:
            # Whatever is hinted: by votes for views that nobody has reached, ever higher, one seat could keep this
            # one from what the present view rests on, and the committee from its vote.
            from_view = max(self._root.view + 1, lacks - VIEWS_MAX + 1)
            self._out.append(AskCertificates(self._next_seat(), from_view, lacks))
        self._pull_tries += 1
        if self._pull_tries > PULL_TRIES_MAX:
            self._hint_view = 0  # a seat may sign a vote for a view that nobody has reached
        self._arm_pull()

    def _is_lacking(self, view: int) -> bool:
        if view <= self._root.view or view in self._nullified:
            return False
        certified = self._certified(view)
        return certified is None or certified.block_hash not in self._headers

    # Repeating (consensus.md R7).

    def _arm_resend(self) -> None:
        parameters = self._parameters
        exponent = min(self._resends, BACKOFF_EXPONENT_MAX)
        delay_ms = min(parameters.retransmit_ms * _POWERS_OF_3[exponent] >> exponent, parameters.retransmit_ms_max)
        # Jitter of a fifth either way, from the seat and the view: replicas must not all speak at once.
        mixed = ((self._seat or 0) * 7_919 + self._view * 104_729 + self._resends * 1_299_709) % 401
        extra_ms = self._parameters.idle_ms if self._idle_added and self._resends == 0 else 0
        self._out.append(SetTimer(RETRANSMIT, delay_ms * (800 + mixed) // 1000 + extra_ms))

    def _newest(self) -> tuple[Certificate, ...]:
        newest: list[Certificate | None] = [self._final]
        newest.append(self._notarized.get(self._newest_notarized))
        newest.append(self._nullified.get(self._view - 1))
        return tuple(certificate for certificate in newest if certificate is not None)

    def _resend(self) -> None:
        if self._seat is None:  # an observer has nothing to say: it asks
            self._out.append(AskCertificates(self._next_seat(), self._view, self._view + VIEWS_MAX - 1))
            return
        votes = []
        for view in sorted(self._own, reverse=True)[:VIEWS_MAX]:
            own = self._own[view]
            recent = own if view >= self._view - RESENT_VIEWS else own[2:]
            votes += [vote for vote in recent if vote is not None]
        self._out.append(
            Resend(tuple(votes), self._newest(), self._proposed if self._proposed == self._view else None)
        )

    # The end.

    def _diverged(self, header: Header) -> None:
        self._halt(
            "state_divergence", f"the parent of certified block {header.height} has another state root here"
        )

    def _halt(self, code: str, message: str, time_ms: int = 0) -> None:
        if not self._is_halted:
            self._is_halted = True
            self._out.append(Halt(code, message, time_ms))
