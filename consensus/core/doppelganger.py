"""Detects a second process with the same vote key, and defines the time in which this seat only listens.

See consensus.md 7.4.
"""

from __future__ import annotations

from consensus.core.block_tree import BlockTree
from consensus.core.outbox import Outbox
from consensus.core.own_votes import OwnVoteRecord
from consensus.events import WATCH, SetTimer
from consensus.guard import DoppelgangerWatch
from consensus.votes import Certificate
from state.primitives.votes import NULLIFY, Vote

__all__ = ["DoppelgangerCheck"]


class DoppelgangerCheck:
    """Compares each vote of the own seat that others show with the own record, and halts on a difference.

    ``halts`` is off if two processes share a key on purpose. ``floor_view``: the guard has no record of votes up
    to this view, so they are not compared. During ``watch``, or until the record of a remote guard is known, the
    core casts no vote.
    """

    def __init__(
        self,
        seat: int | None,
        own: OwnVoteRecord,
        tree: BlockTree,
        outbox: Outbox,
        *,
        halts: bool,
        watch: DoppelgangerWatch | None,
        knows_own_votes: bool,
        floor_view: int,
    ) -> None:
        self._seat = seat
        self._own = own
        self._tree = tree
        self._outbox = outbox
        self._halts = halts
        self._compared_from = max(tree.root.view, floor_view)
        self._watch = watch if seat is not None else None
        self._is_first_view = False
        self.knows_own_votes = knows_own_votes or seat is None
        self.is_listening = False
        """Whether this seat casts no vote yet; an attribute, because each attempt to vote asks for it."""
        self._update()

    def _update(self) -> None:
        self.is_listening = self._watch is not None or not self.knows_own_votes

    def listen(self, watch: DoppelgangerWatch) -> None:
        """Cast no vote until the watch is over; call it before Start."""
        if self._seat is not None:
            self._watch = watch
            self._is_first_view = True
            self._update()

    def start(self, now_ms: int) -> None:
        """Set the timer of the watch."""
        if self._watch is not None:
            self._outbox.emit(SetTimer(WATCH, max(1, self._watch.earliest_ms - now_ms)))

    def entered_view(self, now_ms: int) -> bool:
        """Count a view for the watch; tell whether the watch is over with it."""
        if self._watch is None:
            return False
        # The first view after the start is not counted: this node may have come too late to hear a vote in it.
        if not self._is_first_view:
            self._watch.entered_view()
        self._is_first_view = False
        return self._end_watch(self._watch, now_ms)

    def timer_fired(self, now_ms: int) -> bool:
        """Tell whether the watch is over now; otherwise set the timer for its latest end."""
        if self._watch is None:
            return False
        if self._end_watch(self._watch, now_ms):
            return True
        self._outbox.emit(SetTimer(WATCH, max(1, self._watch.latest_ms - now_ms)))
        return False

    def _end_watch(self, watch: DoppelgangerWatch, now_ms: int) -> bool:
        if not watch.is_over(now_ms):
            return False
        self._watch = None
        self._update()
        return True

    def learn_own_votes(self, floor_view: int) -> None:
        """Take note that the record of a remote guard is complete here."""
        self.knows_own_votes = True
        self._compared_from = max(self._compared_from, floor_view)
        self._update()

    def compare(self, vote: Vote, time_ms: int = 0) -> None:
        """Halt if another replica shows a vote of the own seat that this process did not cast.

        Nothing is compared before the own record is known: a missing entry would prove nothing.
        """
        cast = self._own.cast(vote.view).get(vote.kind)
        if not self._halts or not self.knows_own_votes or vote.view <= self._compared_from:
            return
        if cast is None or (vote.kind != NULLIFY and cast != vote.candidate):
            self._outbox.halt(
                "doppelganger",
                f"another process votes with this key: epoch {vote.epoch}, view {vote.view}",
                time_ms,
            )
        elif vote.view > self._tree.root.view:
            self._own.keep(vote)

    def compare_certificate(self, certificate: Certificate) -> bool:
        """Compare the own seat's vote inside a certificate; tell whether the core is halted.

        Single votes arrive only while they are new; votes before this start are only in certificates. So a lost
        guard is noticed when its validator catches up.
        """
        if self._seat is None or not int.from_bytes(certificate.bitmap, "little") >> self._seat & 1:
            return False
        if certificate.kind not in self._own.cast(certificate.view):
            header = self._tree.headers.get(certificate.block_hash)
            for vote in certificate.votes():
                if vote.seat == self._seat:
                    self.compare(vote, 0 if header is None else header.time_ms)
        return self._outbox.is_halted
