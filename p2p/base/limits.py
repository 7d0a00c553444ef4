"""Limits on what other nodes can make this node spend. Times are in seconds unless a name says otherwise."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from p2p.base.errors import ReceiveMemoryExceeded
from state.primitives.token_bucket import RateLimiter

__all__ = [
    "EventLoopLimiter",
    "HalfOpenSlot",
    "HalfOpenSlots",
    "MemoryAccount",
    "MemoryCharge",
    "NetworkLimits",
    "ReceiveMemory",
    "SendBacklog",
    "SharedRate",
    "excess_holders",
]

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """Bounds of the network service (network.md 12)."""

    peers_in_max: int = 64
    peers_out_target: int = 12
    peers_per_ip_max: int = 8
    peers_per_network_max: int = 16
    """Of those that come in, from one public /24 or /48 of IPv6; whom the node wants always is not counted."""
    accepts_per_ip_per_s: float = 10.0
    accepts_per_ip_burst: float = 20.0
    accepts_per_network_per_s: float = 40.0
    accepts_per_network_burst: float = 80.0
    accepts_per_block_per_s: float = 80.0
    """From one /16 or /32 of IPv6: the rate in sum is not for one of them to use up."""
    accepts_per_block_burst: float = 160.0
    accepts_per_s: float = 200.0
    accepts_kept_per_s: float = 50.0
    """On top of these, for blocks from which hardly anybody has come of late: three blocks use up the rest."""
    half_open_max: int = 256
    handshake_timeout_s: float = 5.0
    dial_timeout_s: float = 10.0
    dials_max: int = 32
    dials_reserved: int = 12
    """Of these, for whom we always want and for those that the owner named."""
    redial_min_s: float = 0.25
    redial_max_s: float = 30.0
    redial_refused_max_s: float = 600.0
    """The same after connections that the other end did not keep."""
    redial_persistent_max_s: float = 5.0
    """Longest wait between attempts at peers that the node wants always (its committee)."""
    dial_stagger_s: float = 0.3
    """How long one path to a peer is tried alone before the next one is tried beside it."""
    resume_s: float = 6.0
    """How long the conversation with a peer waits for another connection when it has lost its own."""
    resume_retry_s: float = 0.25
    probe_s: float = 1.0
    """Silence of a peer that owes an acknowledgement, after which it is pinged."""
    stall_s: float = 2.5
    """The same, after which another path to it is tried."""
    roam_check_s: float = 1.0
    """Between looks at this machine's own address."""
    plan_interval_s: float = 0.25
    """Between looks at what the bulk connections carry."""
    bulk_connections_max: int = 16
    """Bulk connections of one peer."""
    bulk_connections_in_max: int = 256
    """Bulk connections that others opened to us."""
    bulk_open_bytes: int = 96 * 1024
    """Waiting bulk that is worth a connection of its own."""
    bulk_wait_s: float = 1.5
    """How long bulk waits for that connection before it takes the control connection."""
    bulk_idle_s: float = 30.0
    bulk_drain_s: float = 5.0
    """How long a bulk connection that is given up may take to finish what it has in flight."""
    bulk_retry_s: float = 5.0
    """After a bulk connection could not be opened."""
    bulk_requests_per_s: float = 2.0
    """How often a peer's requests for bulk connections are answered."""
    bulk_connections_requested_max: int = 64
    """Bulk connections that other nodes requested."""
    bulk_new_paths_per_s: float = 0.05
    """How often a peer's request may cause a dial over a path that never led to it; ..."""
    bulk_new_paths_burst: float = 3.0
    """... so many at first. The peer's record names such a path, and may name any host."""
    bulk_new_paths_sum_per_s: float = 1.0
    """The same of all peers."""
    bulk_request_interval_s: float = 0.5
    """Between two requests for bulk connections; four times this if nothing has changed."""
    bulk_tick_s: float = 0.125
    """Between looks at whether bulk connections move, ..."""
    bulk_report_s: float = 0.2
    """... and between two reports of that to the peer, at least."""
    receive_bytes_per_peer_max: int = 64 * MIB
    """Memory that messages being received from one peer may hold."""
    receive_bytes_max: int = 1024 * MIB
    """The same of all peers."""
    send_bytes_max: int = 1024 * MIB
    """What may wait to leave, or to be acknowledged, of all peers together."""
    short_records_s: float = 1.0
    """After a message of class consensus, records stay short where bulk shares its connection."""
    settled_s: float = 5.0
    """A connection that lived so long was a success; before, its back-off runs on."""
    ping_interval_s: float = 5.0
    idle_timeout_s: float = 20.0
    write_timeout_s: float = 20.0
    rekey_interval_s: float = 3_600.0
    ban_s: float = 3_600.0
    bans_max: int = 4_096
    outbox_bytes_max: int = 256 * 1024
    """Messages that wait for a connection to one address."""
    outbox_peers_max: int = 256
    outbox_s: float = 5.0
    requests_served_per_peer_max: int = 16
    requests_asked_per_peer_max: int = 64
    request_bytes_max: int = 64 * 1024
    serve_timeout_s: float = 30.0
    gossip_batch_max: int = 256
    gossip_batch_bytes_max: int = 256 * 1024
    """Payloads that a validator gets at once: it may work through them without giving others their turn."""
    event_loop_percent_max: int = 75
    """Most of the event loop's time that what one peer sends may take."""
    event_loop_burst_s: float = 0.1
    """How far a peer may be ahead of its share, in time, before its connection is read more slowly."""
    records_per_peer_per_s: float = 20.0
    records_per_peer_burst: float = 400.0
    """Peer records that one peer passes on, whose signatures are checked."""
    unknown_authors_per_peer_per_s: float = 2.0
    unknown_authors_per_peer_burst: float = 200.0
    """Of those, the ones of nodes that we have never met: anybody can make any number of them."""
    records_per_author_per_s: float = 0.2
    records_per_author_burst: float = 20.0
    exchange_interval_s: float = 60.0
    exchange_again_s: float = 4.0
    """After its first answer a new peer is asked once more."""
    feeler_interval_s: float = 120.0
    """Between looks at whether an address that we were only told of answers, once there are peers enough."""
    exchange_records_max: int = 50
    blob_serves_max: int = 8
    """Pieces read from disk at once."""
    blob_peers_served_max: int = 4
    """Peers that are served at once; who has had its turn makes room for who waits."""
    blob_turn_s: float = 10.0
    blob_upload_bytes_per_s: int = 0
    """Pace of all blobs that are served together; 0: none."""
    blob_requests_per_source: int = 2
    """Pieces asked of one source at once, at first; ..."""
    blob_requests_per_source_max: int = 8
    """... and at most, as its rate and round trip call for it."""
    blob_piece_timeout_s: float = 60.0
    blob_source_failures_max: int = 4
    blob_busy_retries_max: int = 60


_GRANT_BYTES: Final = 4 * 1024
"""Charged ahead of what has come of a message: it is counted in steps, and to begin one costs something."""


class SharedRate:
    """A total rate with a reserve for netgroups that have sent few connections recently.

    Each netgroup has a limit of its own before this one. Without the reserve, a few netgroups at their limits
    would use up the total.
    """

    __slots__ = ("_kept", "_rare", "_sum")

    def __init__(self, *, per_s: float, burst: float, kept_per_s: float) -> None:
        self._sum = RateLimiter(per_s=per_s, burst=burst)
        self._rare = RateLimiter(per_s=1.0, burst=2.0)
        self._kept = RateLimiter(per_s=kept_per_s, burst=kept_per_s)

    def allows(self, netgroup: str, now: float) -> bool:
        """Whether one more connection of this netgroup is accepted."""
        is_rare = self._rare.allows(netgroup, now)
        return self._sum.allows(None, now) or (is_rare and self._kept.allows(None, now))


class EventLoopLimiter:
    """One peer's share of the event loop, so that input that is cheap to send and costly to process starves
    nobody.

    A peer above its share waits, and its own connection slows it down.
    """

    __slots__ = ("_debt_s", "_factor", "_free_at")

    def __init__(self, now: float, *, percent: int, debt_s: float) -> None:
        self._factor = 100 / percent
        self._debt_s = debt_s
        self._free_at = now

    def wait_s(self, took_s: float, now: float) -> float:
        """Return how long to wait after ``took_s`` of work that ends now; zero or less: do not wait."""
        self._free_at = max(self._free_at, now - took_s) + took_s * self._factor
        return self._free_at - now - self._debt_s


class ReceiveMemory:
    """The memory that messages being received from all peers may use together.

    When it is used up, the peer that holds most is dropped, so a peer that holds little is not harmed by others.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._accounts: set[MemoryAccount] = set()

    def open(self, limit_bytes: int, on_evicted: Callable[[], None]) -> MemoryAccount:
        """Return the account of a peer; ``on_evicted`` ends that peer."""
        account = MemoryAccount(self, limit_bytes, on_evicted)
        self._accounts.add(account)
        return account

    def closed(self, account: MemoryAccount) -> None:
        """Forget an account whose bytes have been returned."""
        self._accounts.discard(account)

    def make_room(self, asker: MemoryAccount, size_bytes: int) -> None:
        """Evict the largest holders until there is room. Raises ReceiveMemoryExceeded if the largest is the
        asker.
        """
        while self.used_bytes + size_bytes > self.limit_bytes:
            largest = max(self._accounts, key=lambda account: account.held_bytes, default=asker)
            if largest is asker or largest.held_bytes <= asker.held_bytes + size_bytes:
                raise ReceiveMemoryExceeded(f"{self.used_bytes} bytes of messages being received")
            largest.evict()


class MemoryAccount:
    """One peer's share of ``ReceiveMemory``."""

    __slots__ = ("_is_open", "_limit_bytes", "_memory", "_on_evicted", "held_bytes")

    def __init__(self, memory: ReceiveMemory, limit_bytes: int, on_evicted: Callable[[], None]) -> None:
        self._memory = memory
        self._limit_bytes = limit_bytes
        self._on_evicted = on_evicted
        self._is_open = True
        self.held_bytes = 0

    @property
    def is_scarce(self) -> bool:
        """Whether all peers together hold so much that windows should shrink."""
        return self._memory.used_bytes > self._memory.limit_bytes // 2

    def take(self, size_bytes: int) -> None:
        """Hold ``size_bytes`` more. Raises ReceiveMemoryExceeded."""
        if self.held_bytes + size_bytes > self._limit_bytes:
            raise ReceiveMemoryExceeded(f"{self.held_bytes} bytes of one peer's messages being received")
        if self._memory.used_bytes + size_bytes > self._memory.limit_bytes:
            self._memory.make_room(self, size_bytes)
        self.take_always(size_bytes)

    def take_always(self, size_bytes: int) -> None:
        """Hold ``size_bytes`` more whatever the limits say: for consensus, which its class bounds."""
        if self._is_open:
            self.held_bytes += size_bytes
            self._memory.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Return ``size_bytes``."""
        if self._is_open:
            self.held_bytes -= size_bytes
            self._memory.used_bytes -= size_bytes

    def evict(self) -> None:
        """Close the account and end its peer."""
        self.close()
        self._on_evicted()

    def close(self) -> None:
        """Return everything; later calls count nothing."""
        if self._is_open:
            self._is_open = False
            self._memory.used_bytes -= self.held_bytes
            self.held_bytes = 0
            self._memory.closed(self)


class SendBacklog(NamedTuple):
    """What is queued or unacknowledged for one peer."""

    size_bytes: int
    """All of it."""
    blocks: tuple[tuple[int, int], ...] = ()
    """Of it what may wait for others too, and is held once then: (which object, bytes)."""


_Holder = TypeVar("_Holder")


def excess_holders(holdings: Mapping[_Holder, SendBacklog], limit_bytes: int) -> list[_Holder]:
    """Return the peers to drop until the rest is within the limit, those with the largest backlog first.

    A peer that requests much and reads little, or acknowledges nothing, makes this node keep all of it.
    """
    if sum(backlog.size_bytes for backlog in holdings.values()) <= limit_bytes:
        return []
    waits_for = Counter(block for backlog in holdings.values() for block in dict.fromkeys(backlog.blocks))
    own = {
        holder: backlog.size_bytes - sum(block[1] for block in backlog.blocks if waits_for[block] > 1)
        for holder, backlog in holdings.items()
    }
    shared = sum(size for (_, size), count in waits_for.items() if count > 1)
    excess = sum(own.values()) + shared - limit_bytes
    found: list[_Holder] = []
    for holder in sorted(own, key=lambda holder: -own[holder]):
        if excess <= 0:
            break
        found.append(holder)
        excess -= own[holder]
    return found


class MemoryCharge:
    """What one message being received is charged to its peer's account: the bytes that came, and a little more.

    Announced bytes are not charged, or a few announcements would keep all other peers from receiving.
    """

    __slots__ = ("_account", "_held_bytes", "_is_exempt", "_size_bytes")

    def __init__(self, account: MemoryAccount, size_bytes: int, *, is_exempt: bool = False) -> None:
        self._account = account
        self._size_bytes = size_bytes
        self._is_exempt = is_exempt
        """Consensus: counted, and never refused."""
        self._held_bytes = 0

    def cover(self, arrived_bytes: int) -> None:
        """Charge what has come so far. Raises ReceiveMemoryExceeded."""
        if arrived_bytes <= self._held_bytes and self._held_bytes:
            return
        wanted = min(self._size_bytes, arrived_bytes + _GRANT_BYTES)
        more = wanted - self._held_bytes
        if self._is_exempt:
            self._account.take_always(more)
        else:
            self._account.take(more)
        self._held_bytes = wanted

    def give_back(self) -> None:
        """Return all of the charge."""
        self._account.give(self._held_bytes)
        self._held_bytes = 0


class HalfOpenSlot:
    """A slot for one connection whose handshake has not finished."""

    __slots__ = ("is_lost", "netgroup", "on_lost")

    def __init__(self, netgroup: str) -> None:
        self.netgroup = netgroup
        self.is_lost = False
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the slot is given to another connection."""


class HalfOpenSlots:
    """The slots for connections whose handshake has not finished, by the netgroup that they come from.

    When all slots are taken, the netgroup with most slots loses its oldest one. An attacker who fills the slots
    therefore competes with itself first.
    """

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self._netgroups: dict[str, OrderedDict[HalfOpenSlot, None]] = {}
        """Each with its oldest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, netgroup: str) -> HalfOpenSlot:
        """Return a slot for a connection from ``netgroup``, taken from another connection if none is free."""
        if self._netgroups and self._count >= self._slots_max:
            largest = max(self._netgroups.values(), key=len)
            oldest = next(iter(largest))
            self.leave(oldest)
            oldest.is_lost = True
            oldest.on_lost()
        slot = HalfOpenSlot(netgroup)
        self._netgroups.setdefault(netgroup, OrderedDict())[slot] = None
        self._count += 1
        return slot

    def leave(self, slot: HalfOpenSlot) -> None:
        """Free a slot; a slot that was lost already is ignored."""
        slots = self._netgroups.get(slot.netgroup)
        if slots is None or slot not in slots:
            return
        del slots[slot]
        self._count -= 1
        if not slots:
            del self._netgroups[slot.netgroup]
