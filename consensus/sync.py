"""Windows of final blocks from several peers, fastest first (consensus.md 13). Pure: it plans, the replica sends
requests.

The height that a peer claims is a hint: it decides which peer is asked, and is never trusted. The certificate of
its last block proves a window, so any peer may send it, in any order. A peer that claims blocks and does not serve
them is ignored for a while.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from consensus.events import ConsensusParameters
from consensus.votes import Certificate
from consensus.wire import BLOCKS_MAX
from state.primitives.blocks import Block

__all__ = ["AHEAD_BLOCKS_MAX", "GAP_BLOCKS", "BlockSync", "Progress", "Request", "Window"]

GAP_BLOCKS: Final = 2
"""A replica that is behind by no more than this gets the blocks with the votes for them."""
WINDOWS_MAX: Final = 4
"""Windows requested at the same time, each from another peer if there are enough."""
PEER_WINDOWS_MAX: Final = 2
"""Of these, the most from one peer, which serves no more to one peer (consensus.block_serving)."""
AHEAD_BLOCKS_MAX: Final = 256
"""Final blocks fetched above the last committed one."""
AHEAD_BYTES_MAX: Final = 32 * 1024 * 1024
"""No new window is requested while this much waits for execution."""
PEERS_MAX: Final = 256
MISSES_MAX: Final = 2
"""After this many time-outs in a row a peer is ignored."""
FORGET_MS: Final = 10_000
"""The first time it is ignored for this long; each further time is twice as long, until it serves again."""
FORGET_FACTOR_MAX: Final = 32
TRIES_MAX: Final = 8
"""After this many windows in a row that no peer sent, single blocks are requested."""
KNOWN_ENOUGH: Final = 2
"""With this many peers that have served, others are tried one at a time, at most once in ``TRY_MS``."""
TRY_MS: Final = 10_000
LATE_MAX: Final = 64
STALLED_MS: Final = 30_000
"""Windows that arrived and were not executed for this time are fetched again."""
QUIET_MS: Final = 60_000
"""After this time without a new block, the claims of ignored peers count as well."""
PRUNED_MS: Final = 600_000
"""For this time a peer is not asked again for heights that it reported as pruned."""
SPEED_MS: Final = 10_000
"""The speed in the progress is measured over this time."""


class Request(NamedTuple):
    """A request for a window from a peer."""

    address: bytes
    from_height: int
    blocks_max: int


class Window(NamedTuple):
    """A window that arrived: linked blocks (hash, block, bytes), the last with a verified FINAL certificate."""

    from_height: int
    certificate: Certificate
    blocks: tuple[tuple[bytes, Block, bytes], ...]
    size_bytes: int


class Progress(NamedTuple):
    """The progress of catching up. ``claimed_height`` is the unproven claim of peers, for a progress bar.

    ``oldest_height`` is the oldest block that the peers ahead claim to keep, if none of them keeps the next block;
    else 0.
    """

    height: int
    proven_height: int
    claimed_height: int
    blocks_per_s: float
    peers: int
    oldest_height: int = 0


class _Peer:
    __slots__ = ("asked", "bytes_per_ms", "height", "misses", "oldest", "pruned_ms")

    def __init__(self) -> None:
        self.height = 0
        self.asked = 0
        self.misses = 0
        self.bytes_per_ms = -1
        """Measured; -1 for a peer that has never served."""
        self.oldest = 0
        """Below this height it keeps no blocks, as it said at ``pruned_ms``."""
        self.pruned_ms = 0

    def may_keep(self, height: int, now_ms: int) -> bool:
        """Tell whether it is worth asking for a height."""
        return height >= self.oldest or now_ms - self.pruned_ms >= PRUNED_MS


class _Forgotten:
    __slots__ = ("factor", "height", "until_ms")

    def __init__(self, until_ms: int, factor: int, height: int) -> None:
        self.until_ms = until_ms
        self.factor = factor
        self.height = height
        """The height it claims; 0 for a peer that was blamed, whose claim is not used."""


class BlockSync:
    """Plans which windows are requested from which peers.

    Heights at or below ``root`` are committed; the epoch ends at ``last_height``.
    """

    def __init__(self, parameters: ConsensusParameters, own: bytes, *, root: int, last_height: int) -> None:
        self._window_ms = parameters.window_ms
        self._own = own
        self._root = root
        self._last_height = last_height
        self._delivered = root
        self._proven = root
        self._moved_ms = 0
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()
        self._forgotten: OrderedDict[bytes, _Forgotten] = OrderedDict()
        self._seats: tuple[bytes, ...] = ()
        self._turn = 0
        self._tried_ms = -TRY_MS
        self._asked: dict[int, tuple[Request, int]] = {}
        self._late: OrderedDict[tuple[bytes, int], tuple[int, int]] = OrderedDict()
        self._waiting: dict[int, Window] = {}
        self._held: deque[tuple[int, int]] = deque()
        self._held_bytes = 0
        self._tries = 0
        self._marks: deque[tuple[int, int]] = deque()

    # Queries.

    @property
    def proven_height(self) -> int:
        """The highest height that a certificate was seen for."""
        return max(self._root, self._proven)

    @property
    def is_busy(self) -> bool:
        """Whether windows are on their way, or could be."""
        return bool(self._asked) or self._target(0) > self._root

    def progress(self, now_ms: int) -> Progress:
        """Return how far it is.

        Who is silent may be honest and have nothing to serve, or not be reached: while no block comes, its claim
        stands. Otherwise a node that nobody can help would take itself for synced.
        """
        claims = {address: peer.height for address, peer in self._peers.items()}
        if not self._marks or now_ms - self._moved_ms >= QUIET_MS:
            for address, gone in self._forgotten.items():
                if gone.height:
                    claims.setdefault(address, gone.height)
        heights = sorted(claims.values(), reverse=True)
        # Above what a third of the peers say, liars may be alone.
        claimed = heights[(len(heights) - 1) // 3] if heights else 0
        speed = 0.0
        if self._marks and now_ms > self._marks[0][0]:
            speed = (self._root - self._marks[0][1]) * 1000 / (now_ms - self._marks[0][0])
        ahead = [peer.oldest for peer in self._peers.values() if peer.height > self._root]
        oldest = min(ahead, default=0)
        return Progress(
            self._root,
            self.proven_height,
            max(claimed, self.proven_height),
            speed,
            len(heights),
            oldest if oldest > self._root + 1 else 0,
        )

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the tables."""
        return {"sync_peers": len(self._peers), "sync_windows": len(self._waiting) + len(self._asked)}

    # Events.

    def begin_epoch(self, last_height: int, seats: tuple[bytes, ...]) -> None:
        """Begin an epoch: windows end at its last block, and its seats can be asked before their first claim."""
        self._last_height = last_height
        self._seats = seats
        for peer in self._peers.values():
            peer.asked = 0
        self._asked.clear()
        self._waiting.clear()
        self._delivered = self._root

    def claim(self, address: bytes, height: int, now_ms: int, *, is_least: bool = False) -> None:
        """Note the height that a peer claims (``is_least``: a lower bound), as a reason to ask it."""
        if address == self._own:
            return
        if self._is_forgotten(address, now_ms):
            gone = self._forgotten[address]
            if gone.height:
                gone.height = max(gone.height, height) if is_least else max(1, height)
            return
        peer = self._peer(address)
        peer.height = max(peer.height, height) if is_least else height

    def prove(self, height: int) -> None:
        """Note that a verified certificate names a block of that height."""
        self._proven = max(self._proven, height)

    def commit(self, height: int, now_ms: int) -> None:
        """Note a committed block."""
        self._root, self._moved_ms = height, now_ms
        self._delivered = max(self._delivered, height)
        self._tries = 0
        while self._held and self._held[0][0] <= height:
            self._held_bytes -= self._held.popleft()[1]
        self._marks.append((now_ms, height))
        while len(self._marks) > 2 and (
            self._marks[0][0] < now_ms - SPEED_MS or len(self._marks) > AHEAD_BLOCKS_MAX
        ):
            self._marks.popleft()

    def is_asked(self, address: bytes, from_height: int, count: int) -> bool:
        """Tell whether a window answers a request to this peer, in time or late."""
        found = self._asked.get(from_height)
        if found is not None and found[0].address == address:
            return count <= found[0].blocks_max
        late = self._late.get((address, from_height))
        return late is not None and count <= late[0]

    def arrived(self, address: bytes, window: Window, now_ms: int) -> list[Window]:
        """Take in a verified window; return the windows that may be executed now, lowest first."""
        peer = self._peer(address)
        found = self._asked.get(window.from_height)
        if found is not None and found[0].address == address:
            del self._asked[window.from_height]
            peer.asked = max(0, peer.asked - 1)
            asked_ms = found[1]
        else:
            asked_ms = self._late.pop((address, window.from_height), (0, now_ms - self._window_ms))[1]
        measured = window.size_bytes // max(1, now_ms - asked_ms)
        peer.bytes_per_ms = measured if peer.bytes_per_ms < 0 else (3 * peer.bytes_per_ms + measured) // 4
        peer.misses = self._tries = 0
        self._forgotten.pop(address, None)
        self.prove(window.from_height + len(window.blocks) - 1)
        if window.from_height + len(window.blocks) - 1 > self._delivered:
            self._waiting.setdefault(window.from_height, window)
        return self.ready()

    def ready(self) -> list[Window]:
        """Return the windows that wait no more, lowest first: what was below them has come, by whatever way."""
        ready = []
        for height in sorted(self._waiting):
            waiting = self._waiting[height]
            end = height + len(waiting.blocks) - 1
            if end <= self._delivered:
                del self._waiting[height]
            elif height <= self._delivered + 1:
                del self._waiting[height]
                self._delivered = end
                self._held.append((end, waiting.size_bytes))
                self._held_bytes += waiting.size_bytes
                ready.append(waiting)
        return ready

    def pruned(self, address: bytes, from_height: int, oldest: int, now_ms: int) -> bool:
        """Note that a peer keeps no blocks below ``oldest``; tell whether it was asked for such.

        It has answered, so it is not ignored and its claim stands. Other peers are asked.
        """
        if oldest <= from_height or not self.is_asked(address, from_height, 1):
            return False
        peer = self._peer(address)
        found = self._asked.get(from_height)
        if found is not None and found[0].address == address:
            del self._asked[from_height]
            peer.asked = max(0, peer.asked - 1)
        else:
            del self._late[address, from_height]
        peer.misses = 0
        peer.oldest, peer.pruned_ms = oldest, now_ms
        return True

    def blamed(self, address: bytes, now_ms: int) -> None:
        """Ignore a peer for a while: its window was false."""
        for from_height in [at for at, (request, _) in self._asked.items() if request.address == address]:
            del self._asked[from_height]
        self._forget(address, now_ms, is_liar=True)

    def expire(self, now_ms: int) -> bool:
        """Give up requests that were not answered in time; tell whether no peer serves at all."""
        owing: dict[bytes, None] = {}
        for from_height, (request, asked_ms) in list(self._asked.items()):
            is_needed = from_height + request.blocks_max - 1 > self._delivered
            if is_needed and now_ms - asked_ms < self._window_ms:
                continue
            del self._asked[from_height]
            peer = self._peer(request.address)
            peer.asked = max(0, peer.asked - 1)
            if not is_needed:
                continue  # the blocks came by another path
            self._late[request.address, from_height] = (request.blocks_max, asked_ms)
            while len(self._late) > LATE_MAX:
                self._late.popitem(last=False)
            self._tries += 1
            owing[request.address] = None
        for address in owing:
            peer = self._peer(address)
            peer.misses += 1
            peer.bytes_per_ms = max(0, peer.bytes_per_ms // 2)
            if peer.misses >= MISSES_MAX:
                self._forget(address, now_ms)
        if self._delivered > self._root and now_ms - self._moved_ms > STALLED_MS:
            self._delivered = self._root
        if self._tries < TRIES_MAX:
            return False
        self._tries = 0
        return True

    def plan(self, now_ms: int) -> list[Request]:
        """Return the requests to send now, and note them as sent."""
        found: list[Request] = []
        target = min(self._target(now_ms), self._last_height, self._root + AHEAD_BLOCKS_MAX)
        at = self._delivered + 1
        waiting_bytes = sum([window.size_bytes for window in self._waiting.values()])
        while at <= target and len(self._asked) < WINDOWS_MAX:
            if self._held_bytes + (waiting_bytes if at > self._delivered + 1 else 0) > AHEAD_BYTES_MAX:
                break  # the window that all others wait for may always be asked for, once execution has caught up
            end = self._covered(at)
            if end:
                at = end + 1
                continue
            above = [height for height in (*self._asked, *self._waiting) if height > at]
            count = min(BLOCKS_MAX, target - at + 1, min(above, default=at + BLOCKS_MAX) - at)
            address = self._whom(at, now_ms)
            if address is None:
                break
            request = Request(address, at, count)
            self._asked[at] = (request, now_ms)
            self._peer(address).asked += 1
            found.append(request)
            at += count
        return found

    # Inside.

    def _target(self, now_ms: int) -> int:
        """Up to where blocks are worth asking for."""
        claimed = max((peer.height for peer in self._peers.values()), default=0)
        is_stuck = now_ms - self._moved_ms >= self._window_ms
        reach = max(claimed, self._proven)
        return reach if reach > self._root + (0 if is_stuck else GAP_BLOCKS) else self._root

    def _covered(self, height: int) -> int:
        """The last height of the window, asked for or waiting, that holds ``height``; 0 for none."""
        for at, (request, _) in self._asked.items():
            if at <= height < at + request.blocks_max:
                return at + request.blocks_max - 1
        for at, window in self._waiting.items():
            if at <= height < at + len(window.blocks):
                return at + len(window.blocks) - 1
        return 0

    def _whom(self, height: int, now_ms: int) -> bytes | None:
        """The peer to ask for a height: idle ones first, then the fastest; now and then an unknown one is tried.

        Of the unknown, seats go first: who has no seat may have any number of names. After a window that did not
        come the proven ones go before the unknown.
        """
        able = [
            address
            for address, peer in self._peers.items()
            if peer.height >= height and peer.may_keep(height, now_ms)
        ]
        if able:
            able = [address for address in able if self._peers[address].asked < PEER_WINDOWS_MAX]
            known = sum(self._peers[address].bytes_per_ms >= 0 for address in able)
            is_time = known < KNOWN_ENOUGH or now_ms - self._tried_ms >= TRY_MS
            is_trying = any(peer.asked and peer.bytes_per_ms < 0 for peer in self._peers.values())
            unknown = 2 if is_time and not is_trying and not self._tries else 0

            def rank(address: bytes) -> tuple[int, int, int]:
                peer = self._peers[address]
                if peer.bytes_per_ms < 0:
                    return unknown, -peer.asked, address in self._seats
                return 1, -peer.asked, peer.bytes_per_ms

            chosen = max(able, key=rank, default=None)
            if chosen is not None and self._peers[chosen].bytes_per_ms < 0:
                self._tried_ms = now_ms
            return chosen
        if height > self._proven:
            return None
        seats = [seat for seat in self._seats if seat != self._own]
        seats = [
            seat
            for seat in seats
            if (peer := self._peers.get(seat)) is None
            or (peer.asked < PEER_WINDOWS_MAX and peer.may_keep(height, now_ms))
        ]
        willing = [seat for seat in seats if not self._is_forgotten(seat, now_ms)] or seats
        if not willing:
            return None
        self._turn += 1
        return willing[self._turn % len(willing)]

    def _peer(self, address: bytes) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer()
            while len(self._peers) > PEERS_MAX:
                self._peers.popitem(last=False)
        self._peers.move_to_end(address)
        return peer

    def _is_forgotten(self, address: bytes, now_ms: int) -> bool:
        return address in self._forgotten and self._forgotten[address].until_ms > now_ms

    def _forget(self, address: bytes, now_ms: int, *, is_liar: bool = False) -> None:
        peer, before = self._peers.pop(address, None), self._forgotten.get(address)
        factor = 1 if before is None else min(FORGET_FACTOR_MAX, 2 * before.factor)
        height = 0 if is_liar or peer is None else peer.height
        self._forgotten[address] = _Forgotten(now_ms + factor * FORGET_MS, factor, height)
        self._forgotten.move_to_end(address)
        while len(self._forgotten) > PEERS_MAX:
            self._forgotten.popitem(last=False)
