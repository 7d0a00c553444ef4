"""Requests for missing blocks and certificates, in any view and one at a time for each (consensus.md R7)."""

from __future__ import annotations

from consensus.core.block_tree import BlockTree
from consensus.core.certificates import CertificateTable
from consensus.core.current_view import CurrentView
from consensus.core.limits import FETCHES_MAX, PULL_TRIES_MAX, SYNC_GAP_BLOCKS
from consensus.core.outbox import Outbox
from consensus.core.setup import Setup
from consensus.events import FETCH, PULL, AskBlock, AskCertificates, Behind, SetTimer
from consensus.wire import VIEWS_MAX

__all__ = ["BlockFetch", "CertificateFetch", "SeatRotation"]


class SeatRotation:
    """Chooses the seat for the next request: all in turn except the own one."""

    def __init__(self, setup: Setup) -> None:
        self._size = setup.committee.size
        self._seat = setup.seat
        self._turn = setup.seat or 0

    def next(self) -> int:
        """Return the next seat; the own one only if there is no other."""
        self._turn = (self._turn + 1) % self._size
        if self._turn == self._seat and self._size > 1:
            self._turn = (self._turn + 1) % self._size
        return self._turn


class BlockFetch:
    """Requests single blocks, or reports a gap that windows of final blocks have to close."""

    def __init__(
        self, setup: Setup, tree: BlockTree, certificates: CertificateTable, rotation: SeatRotation, outbox: Outbox
    ) -> None:
        self._fetch_ms = setup.parameters.fetch_ms
        self._tree = tree
        self._certificates = certificates
        self._rotation = rotation
        self._outbox = outbox
        self._asked: dict[bytes, None] = {}
        self._is_armed = False
        self._reported_height = 0
        self._asks_singly = False

    def __len__(self) -> int:
        """Return the number of requested blocks."""
        return len(self._asked)

    def is_asked(self, block_hash: bytes) -> bool:
        """Tell whether a block was requested and has not arrived."""
        return block_hash in self._asked

    def want(self, block_hash: bytes) -> None:
        """Request a block, unless it is here, requested, or there are too many requests."""
        if (
            block_hash in self._asked
            or block_hash in self._tree.headers
            or block_hash == self._tree.root.block_hash
        ):
            return
        if len(self._asked) >= FETCHES_MAX:
            return
        self._asked[block_hash] = None
        self._outbox.emit(AskBlock(self._rotation.next(), block_hash))
        self._arm()

    def seek(self, block_hash: bytes) -> None:
        """Request the missing parent of a held block."""
        if self.is_far:
            self.report_gap()
        else:
            self.want(block_hash)

    def close(self, block_hash: bytes) -> None:
        """Drop a request: the block arrived or is no longer useful."""
        self._asked.pop(block_hash, None)

    def timer_fired(self) -> None:
        """Repeat all requests, each to another seat; call ``rearm`` after further requests."""
        self._is_armed = False
        for block_hash in self._asked:
            self._outbox.emit(AskBlock(self._rotation.next(), block_hash))

    def rearm(self) -> None:
        """Set the timer if requests are open."""
        if self._asked:
            self._arm()

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._outbox.emit(SetTimer(FETCH, self._fetch_ms))

    @property
    def is_far(self) -> bool:
        """Whether the gap to a final block should be closed by windows of blocks, not by single ones."""
        if self._asks_singly:
            return False
        header = self._certificates.final_header
        return header is not None and header.height - self._tree.root.height > SYNC_GAP_BLOCKS

    def report_gap(self) -> None:
        """Emit Behind, once for each height that a certificate reaches."""
        header = self._certificates.final_header
        if header is not None and header.height > self._reported_height:
            self._reported_height = header.height
            self._outbox.emit(Behind(header.height))

    def windows_failed(self) -> None:
        """Request single blocks until the next commit, regardless of the size of the gap."""
        self._asks_singly = True

    def committed(self) -> None:
        """Start again: the root moved, so the gap changed."""
        self._reported_height = 0
        self._asks_singly = False


class CertificateFetch:
    """Requests certificates that others have, and those of past views that a vote has to rest on."""

    def __init__(
        self,
        setup: Setup,
        view: CurrentView,
        tree: BlockTree,
        certificates: CertificateTable,
        rotation: SeatRotation,
        outbox: Outbox,
    ) -> None:
        self._pull_ms = setup.parameters.pull_ms
        self._pull_ms_max = setup.parameters.fetch_ms
        self._view = view
        self._tree = tree
        self._certificates = certificates
        self._rotation = rotation
        self._outbox = outbox
        self._is_armed = False
        self._tries = 0
        self.hinted_view = 0
        """The highest view that a vote claims to be certified."""
        self._hinting_seat = 0
        self._lacking_view = 0

    def hint(self, view: int, seat: int) -> None:
        """Note that a seat has certificates up to a view: its vote is for the view after it."""
        if view > self.hinted_view:
            self.hinted_view, self._hinting_seat = view, seat
            self._arm()

    def lack(self, view: int) -> None:
        """Request the certificate of a past view that the current view needs."""
        self._lacking_view = view
        self._arm()

    def entered_view(self) -> None:
        """Start again with the shortest delay."""
        self._tries = 0

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            self._outbox.emit(SetTimer(PULL, min(self._pull_ms * (1 + self._tries), self._pull_ms_max)))

    def timer_fired(self) -> None:
        """Request what is still missing."""
        self._is_armed = False
        view, lacking = self._view.number, self._lacking_view
        is_behind, is_lacking = self.hinted_view >= view, self._is_lacking(lacking)
        if not (is_behind or is_lacking):
            self._lacking_view = self._tries = 0
            return
        if is_behind:
            seat = self._hinting_seat if self._tries == 0 else self._rotation.next()
            self._outbox.emit(AskCertificates(seat, view, min(self.hinted_view, view + VIEWS_MAX - 1)))
        if is_lacking:
            # Asked for whatever is hinted: by votes for ever higher views that nobody reached, one seat could
            # otherwise keep this seat from the certificate under its vote, and the committee from that vote.
            from_view = max(self._tree.root.view + 1, lacking - VIEWS_MAX + 1)
            self._outbox.emit(AskCertificates(self._rotation.next(), from_view, lacking))
        self._tries += 1
        if self._tries > PULL_TRIES_MAX:
            self.hinted_view = 0  # a seat may sign a vote for a view that nobody has reached
        self._arm()

    def _is_lacking(self, view: int) -> bool:
        if view <= self._tree.root.view or view in self._certificates.nullified:
            return False
        certified = self._certificates.for_block(view)
        return certified is None or certified.block_hash not in self._tree.headers
