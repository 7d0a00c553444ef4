"""Limits on the resources that other nodes can use here. Times are in seconds unless a name says otherwise."""

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
    """Inbound peers from one public /24 or IPv6 /48; persistent peers are not counted."""
    accepts_per_ip_per_s: float = 10.0
    accepts_per_ip_burst: float = 20.0
    accepts_per_network_per_s: float = 40.0
    accepts_per_network_burst: float = 80.0
    accepts_per_block_per_s: float = 80.0
    """From one /16 or IPv6 /32, so that one of them cannot use up the total rate."""
    accepts_per_block_burst: float = 160.0
    accepts_per_s: float = 200.0
    accepts_kept_per_s: float = 50.0
    """Additional rate for blocks with few recent connections: otherwise three blocks could use up the total."""
    half_open_max: int = 256
    handshake_timeout_s: float = 5.0
    dial_timeout_s: float = 10.0
    dials_max: int = 32
    dials_reserved: int = 12
    """Of these, reserved for persistent peers and for peers in the owner's configuration."""
    redial_min_s: float = 0.25
    redial_max_s: float = 30.0
    redial_refused_max_s: float = 600.0
    """The same after connections that the other end closed at once."""
    redial_persistent_max_s: float = 5.0
    """Longest interval between attempts for persistent peers (the committee)."""
    dial_stagger_s: float = 0.3
    """How long one path to a peer is tried before the next one is tried in parallel."""
    resume_s: float = 6.0
    """How long a conversation without a connection waits for another one."""
    resume_retry_s: float = 0.25
    probe_s: float = 1.0
    """Silence of a peer with an outstanding acknowledgement after which it is pinged."""
    stall_s: float = 2.5
    """The same; after this another path is tried."""
    roam_check_s: float = 1.0
    """Interval of checks of this machine's own address."""
    plan_interval_s: float = 0.25
    """Interval of updates of the bulk plan."""
    bulk_connections_max: int = 16
    """Bulk connections of one peer."""
    bulk_connections_in_max: int = 256
    """Bulk connections opened by peers."""
    bulk_open_bytes: int = 96 * 1024
    """Waiting bulk that justifies a separate connection."""
    bulk_wait_s: float = 1.5
    """How long bulk waits for that connection before it uses the control connection."""
    bulk_idle_s: float = 30.0
    bulk_drain_s: float = 5.0
    """Time for an abandoned bulk connection to finish its data in flight."""
    bulk_retry_s: float = 5.0
    """Pause after a bulk connection could not be opened."""
    bulk_requests_per_s: float = 2.0
    """Rate at which a peer's requests for bulk connections are answered."""
    bulk_connections_requested_max: int = 64
    """Bulk connections opened on request of other nodes."""
    bulk_new_paths_per_s: float = 0.05
    """Rate at which a peer's requests may cause dials over paths that never led to it, ..."""
    bulk_new_paths_burst: float = 3.0
    """... and the burst. The peer's record names such a path, and may name any host."""
    bulk_new_paths_sum_per_s: float = 1.0
    """The same for all peers together."""
    bulk_request_interval_s: float = 0.5
    """Interval of requests for bulk connections; four times this if nothing has changed."""
    bulk_tick_s: float = 0.125
    """Interval of progress checks of bulk connections, ..."""
    bulk_report_s: float = 0.2
    """... and minimum interval of progress reports to the peer."""
    receive_bytes_per_peer_max: int = 64 * MIB
    """Memory for messages being received from one peer."""
    receive_bytes_max: int = 1024 * MIB
    """The same for all peers together."""
    send_bytes_max: int = 1024 * MIB
    """Unsent and unacknowledged bytes of all peers together."""
    short_records_s: float = 1.0
    """After a message of class consensus, records stay short on a connection that also carries bulk."""
    settled_s: float = 5.0
    """A connection that lasted this long was a success; otherwise the back-off continues."""
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
    """Payloads passed to a validator at once, which it may process without yielding."""
    event_loop_percent_max: int = 75
    """Maximum share of the event loop's time for one peer's input."""
    event_loop_burst_s: float = 0.1
    """Processing time above its share before a peer's connection is read more slowly."""
    records_per_peer_per_s: float = 20.0
    records_per_peer_burst: float = 400.0
    """Peer records forwarded by one peer whose signatures are checked."""
    unknown_authors_per_peer_per_s: float = 2.0
    unknown_authors_per_peer_burst: float = 200.0
    """Of those, records of unknown nodes; anybody can create any number of them."""
    records_per_author_per_s: float = 0.2
    records_per_author_burst: float = 20.0
    exchange_interval_s: float = 60.0
    exchange_again_s: float = 4.0
    """Time after which a new peer is asked a second time."""
    feeler_interval_s: float = 120.0
    """Interval of feelers (trial dials of untried addresses) once there are enough peers."""
    exchange_records_max: int = 50
    blob_serves_max: int = 8
    """Pieces read from disk at the same time."""
    blob_peers_served_max: int = 4
    """Peers served at the same time; after its turn, a peer makes room for a waiting one."""
    blob_turn_s: float = 10.0
    blob_upload_bytes_per_s: int = 0
    """Rate of all served blobs together; 0: none."""
    blob_requests_per_source: int = 2
    """Pieces requested from one source at once, initially, ..."""
    blob_requests_per_source_max: int = 8
    """... and at most, according to its rate and round trip."""
    blob_piece_timeout_s: float = 60.0
    blob_source_failures_max: int = 4
    blob_busy_retries_max: int = 60


_GRANT_BYTES: Final = 4 * 1024
"""Bytes charged ahead of the arrived ones: a message is counted in steps of this size."""


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
    """One peer's share of the event loop, against input that is cheap to send and costly to process.

    A peer above its share is made to wait, which slows down only its own connection.
    """

    __slots__ = ("_debt_s", "_factor", "_free_at")

    def __init__(self, now: float, *, percent: int, debt_s: float) -> None:
        self._factor = 100 / percent
        self._debt_s = debt_s
        self._free_at = now

    def wait_s(self, took_s: float, now: float) -> float:
        """Return how long to wait after work of ``took_s`` that ends now; zero or less: no wait."""
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
        """Remove an account whose bytes have been returned."""
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
        """Hold ``size_bytes`` more regardless of the limits, for consensus messages, which their class bounds."""
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
        """Return all bytes; later calls have no effect."""
        if self._is_open:
            self._is_open = False
            self._memory.used_bytes -= self.held_bytes
            self.held_bytes = 0
            self._memory.closed(self)


class SendBacklog(NamedTuple):
    """Queued and unacknowledged data of one peer."""

    size_bytes: int
    """The total."""
    blocks: tuple[tuple[int, int], ...] = ()
    """The part of it that may be shared with other peers and is then held once: (object id, bytes)."""


_Holder = TypeVar("_Holder")


def excess_holders(holdings: Mapping[_Holder, SendBacklog], limit_bytes: int) -> list[_Holder]:
    """Return the peers to drop until the rest is within the limit, largest backlog first.

    This node must keep all data for a peer that requests much and reads or acknowledges little.
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
    """The bytes of one message being received that are charged to its peer's account: those that arrived, and a
    step ahead.

    Announced bytes are not charged. Otherwise a few announcements could block all other peers.
    """

    __slots__ = ("_account", "_held_bytes", "_is_exempt", "_size_bytes")

    def __init__(self, account: MemoryAccount, size_bytes: int, *, is_exempt: bool = False) -> None:
        self._account = account
        self._size_bytes = size_bytes
        self._is_exempt = is_exempt
        """Consensus messages are counted but never refused."""
        self._held_bytes = 0

    def cover(self, arrived_bytes: int) -> None:
        """Charge the bytes that have arrived. Raises ReceiveMemoryExceeded."""
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
    """A slot for one connection with an unfinished handshake."""

    __slots__ = ("is_lost", "netgroup", "on_lost")

    def __init__(self, netgroup: str) -> None:
        self.netgroup = netgroup
        self.is_lost = False
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the slot is given to another connection."""


class HalfOpenSlots:
    """The slots for connections with an unfinished handshake, by netgroup.

    When all slots are taken, the netgroup with most slots loses its oldest one. So an attacker who fills the slots
    competes with itself first.
    """

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self._netgroups: dict[str, OrderedDict[HalfOpenSlot, None]] = {}
        """By netgroup, oldest first."""
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
