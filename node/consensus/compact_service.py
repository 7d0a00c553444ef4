"""Runs compact proposals between the mempool and the peers: sends them, rebuilds others', and sends whole ones if
needed. See network.md R15.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Final, Protocol, TypeVar

import trio

from node.consensus.compact import (
    CompactProposal,
    ProposalRequest,
    Rebuild,
    TransactionsReply,
    TransactionsRequest,
    decode_bulk,
    decode_compact_control,
    encode_bulk,
    encode_compact_control,
    make_compact_proposal,
)
from node.consensus.compact_exchange import (
    TICK_S,
    CompactParameters,
    Deliver,
    Effect,
    Receiver,
    SendCompactControl,
    Sender,
    SendProposal,
    SendTransactions,
)
from p2p.multicast.service import MulticastService
from p2p.secure.frame import TrafficClass
from p2p.session.peerinfo import PeerInfo
from state.primitives.errors import DecodeError

__all__ = ["KIND_COMPACT", "KIND_COMPACT_CONTROL", "WHOLE_BYTES_MAX", "CompactBlocks", "Pool"]

KIND_COMPACT: Final = 0x03
KIND_COMPACT_CONTROL: Final = 0x04
WHOLE_BYTES_MAX: Final = 16 * 1024
UPLOAD_BYTES_MIN: Final = 256 * 1024
"""A proposal up to this size, or below this for all receivers together, is sent whole: its compact form would cost
more than it saves."""
COMPACT_BYTES_MIN: Final = 256 * 1024
"""Compact proposals above this for all receivers together go through relays, as whole blocks do above a larger
total. A home needs 50 ms to upload that much, and all receivers wait for it before they vote."""
INLINE_BYTES_MAX: Final = 64 * 1024
"""Larger compact proposals and answers are decoded in a worker thread."""
INBOX_OF_ONE_MAX: Final = 4
INBOX_BYTES_MAX: Final = 32 * 1024 * 1024
RTT_UNKNOWN_S: Final = 0.1
_T = TypeVar("_T")


class Pool(Protocol):
    """The waiting transactions."""

    def hashes(self) -> Sequence[bytes]:
        """Return the hashes of all transactions."""
        ...

    def young(self) -> frozenset[bytes]:
        """Return the hashes of transactions so recent that peers may lack them."""
        ...

    def raw_of(self, transaction_hash: bytes) -> bytes | None:
        """Return a transaction's bytes; from any thread."""
        ...

    def hash_of(self, raw: bytes) -> bytes | None:
        """Return the hash of a transaction known by its bytes; from any thread."""
        ...


class _Peers(Protocol):
    """The part of the network that is used here."""

    counters: Counter[str]
    multicasts: MulticastService

    def on_message(self, kind: int, handler: Callable[[bytes, bytes], Awaitable[None]]) -> None: ...
    def send(self, address: bytes, cls: TrafficClass, kind: int, body: bytes) -> bool: ...
    def multicast(
        self,
        addresses: Iterable[bytes],
        cls: TrafficClass,
        kind: int,
        body: bytes,
        *,
        followers: Iterable[bytes] = (),
    ) -> None: ...
    def is_connected(self, address: bytes) -> bool: ...
    def peers(self) -> list[PeerInfo]: ...


class CompactBlocks:
    """Sends proposals in compact form, and rebuilds those of others.

    ``kind`` is that of whole messages. ``leads(sender, epoch, view)`` tells whether the sender may lead that view;
    other proposals are not processed. ``deliver(sender, data)`` takes complete messages. ``blame`` reports peers
    whose messages only a faulty node sends. ``in_thread`` runs long calls.
    """

    def __init__(
        self, network: _Peers, pool: Pool, *, own: bytes, kind: int, leads: Callable[[bytes, int, int], bool],
        deliver: Callable[[bytes, bytes], None], blame: Callable[[bytes, str], None],
        in_thread: Callable[[Callable[[], object]], Awaitable[object]], random: Random,
        parameters: CompactParameters | None = None,
    ) -> None:  # fmt: skip
        self.seats: tuple[bytes, ...] = ()
        """Peers that may send compact proposals and are asked for help: the seats of this and the next epoch."""
        self._network = network
        self._pool = pool
        self._own = own
        self._kind = kind
        self._leads = leads
        self._deliver = deliver
        self._blame = blame
        self._in_thread = in_thread
        self._random = random
        self._counters: Counter[str] = Counter()
        bounds = parameters or CompactParameters()
        self._sender = Sender(bounds, self._counters)
        self._receiver = Receiver(bounds, self._counters)
        self._last = b""
        self._inbox: deque[tuple[bytes, bytes]] = deque()
        self._inbox_bytes = 0
        self._arrived = trio.Event()
        self._wake = trio.Event()
        self._nursery: trio.Nursery | None = None
        network.on_message(KIND_COMPACT, self._on_bulk)
        network.on_message(KIND_COMPACT_CONTROL, self._on_control)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._work, name="consensus")
                nursery.start_soon(self._tick, name="consensus")
        finally:
            self._nursery = None

    def send(self, data: bytes, seats: Sequence[bytes], followers: Sequence[bytes]) -> None:
        """Send a proposal to all other seats, and to the nodes that follow.

        A repeated one is sent whole: the first attempt was not enough.
        """
        is_repeated, self._last = data == self._last, data
        others = [address for address in dict.fromkeys(seats) if address != self._own]
        rest = [address for address in dict.fromkeys(followers) if address not in {self._own, *others}]
        is_small = len(data) <= WHOLE_BYTES_MAX or len(data) * (len(others) + len(rest)) < UPLOAD_BYTES_MIN
        if is_small or is_repeated or self._nursery is None:
            self._network.multicast(others, TrafficClass.BLOCK, self._kind, data, followers=rest)
            return
        self._nursery.start_soon(self._send, data, others, rest, name="consensus")

    def came(self, sender: bytes, data: bytes) -> bool:
        """Process a whole message; return False for one that was rebuilt and delivered a moment ago."""
        return self._receiver.whole(sender, data, trio.current_time())

    # -- the leader's end ------------------------------------------------------------------------------------

    async def _send(self, data: bytes, seats: Sequence[bytes], followers: Sequence[bytes]) -> None:
        network, now = self._network, trio.current_time()
        compact_seats, whole = self._sender.split(seats, now)
        compact_rest, whole_rest = self._sender.split(followers, now)
        made = None
        if compact_seats or compact_rest:
            young = self._pool.young()
            made = await self._call(lambda: make_compact_proposal(data, self._pool.hash_of, young))
        if made is None:
            network.multicast(seats, TrafficClass.BLOCK, self._kind, data, followers=followers)
            return
        compact, transactions = made
        rtt_s = self._round_trips()
        members = {address: rtt_s.get(address, RTT_UNKNOWN_S) for address in (*compact_seats, *compact_rest)}
        self._sender.sent(compact.root, data, transactions, members, trio.current_time())
        network.multicasts.send(
            compact_seats, TrafficClass.BLOCK, KIND_COMPACT, encode_bulk(compact), followers=compact_rest,
            upload_bytes_min=COMPACT_BYTES_MIN,
        )  # fmt: skip
        if whole or whole_rest:
            network.multicast(whole, TrafficClass.BLOCK, self._kind, data, followers=whole_rest)
        self._counters["sent"] += 1
        self._wake.set()

    # -- what peers say --------------------------------------------------------------------------------------

    async def _on_control(self, peer: bytes, body: bytes) -> None:
        try:
            control = decode_compact_control(body)
        except DecodeError as error:
            self._blame(peer, str(error))
            return
        if self._sender.knows(control.root):
            self._do(self._sender.control(peer, control, trio.current_time()))
        elif isinstance(control, TransactionsRequest) and peer in self.seats:
            self._do(self._receiver.help(peer, control))

    async def _on_bulk(self, peer: bytes, body: bytes) -> None:
        size = len(body)
        if (
            peer not in self.seats
            or sum(sender == peer for sender, _ in self._inbox) >= INBOX_OF_ONE_MAX
            or self._inbox_bytes + size > INBOX_BYTES_MAX
        ):
            self._counters["dropped"] += 1
            return
        self._inbox.append((peer, body))
        self._inbox_bytes += size
        self._arrived.set()

    async def _work(self) -> None:
        """Process compact proposals and answers one after the other, so that they use at most one thread."""
        while True:
            while self._inbox:
                peer, body = self._inbox.popleft()
                self._inbox_bytes -= len(body)
                try:
                    await self._take(peer, body)
                except DecodeError as error:
                    self._blame(peer, str(error))
                await trio.lowlevel.checkpoint()
            self._arrived = trio.Event()
            await self._arrived.wait()

    async def _take(self, peer: bytes, body: bytes) -> None:
        is_small = len(body) <= INLINE_BYTES_MAX
        message = decode_bulk(body) if is_small else await self._call(lambda: decode_bulk(body))
        match message:
            case CompactProposal():
                await self._on_compact(peer, message)
            case TransactionsReply():
                rebuild = self._receiver.some(peer, message)
                if rebuild is not None:
                    await self._finish(rebuild)
            case _:
                raise AssertionError(message)

    async def _on_compact(self, peer: bytes, compact: CompactProposal) -> None:
        candidate = compact.proposal.candidate
        if not self._leads(peer, candidate.epoch, candidate.view):
            self._do([SendCompactControl(peer, ProposalRequest(compact.root))])
            return
        rebuild, effects = self._receiver.compact(peer, compact, trio.current_time())
        self._do(effects)
        if rebuild is None:
            return
        hashes = self._pool.hashes()
        await self._call(lambda: rebuild.fill(hashes, self._pool.raw_of))
        if not rebuild.missing:
            await self._finish(rebuild)
            return
        others = set(self.seats) - {peer, self._own}
        helpers = [seat for seat in sorted(others) if self._network.is_connected(seat)]
        self._random.shuffle(helpers)
        rtt_s = self._round_trips().get(peer, RTT_UNKNOWN_S)
        self._do(self._receiver.filled(compact.root, helpers, rtt_s, trio.current_time()))

    async def _finish(self, rebuild: Rebuild) -> None:
        data = await self._call(rebuild.message)
        self._do(self._receiver.finished(rebuild.compact.root, data, trio.current_time()))

    # -- what the cores say ----------------------------------------------------------------------------------

    def _do(self, effects: Iterable[Effect]) -> None:
        network = self._network
        for effect in effects:
            match effect:
                case SendCompactControl(address, control):
                    network.send(
                        address, TrafficClass.CONSENSUS, KIND_COMPACT_CONTROL, encode_compact_control(control)
                    )
                case SendTransactions(address, answer):
                    network.send(address, TrafficClass.BLOCK, KIND_COMPACT, encode_bulk(answer))
                case SendProposal(data, addresses):
                    seats = [address for address in addresses if address in self.seats]
                    rest = [address for address in addresses if address not in self.seats]
                    network.multicast(seats, TrafficClass.BLOCK, self._kind, data, followers=rest)
                case Deliver(sender, data):
                    self._deliver(sender, data)
                case _:
                    raise AssertionError(effect)
        self._wake.set()

    async def _tick(self) -> None:
        while True:
            if not self._sender.is_active and not self._receiver.is_active:
                self._wake = trio.Event()
                await self._wake.wait()
            await trio.sleep(TICK_S)
            now = trio.current_time()
            self._do([*self._sender.tick(now), *self._receiver.tick(now)])
            for name, count in self._counters.items():
                self._network.counters[f"compact_{name}"] = count

    def _round_trips(self) -> dict[bytes, float]:
        return {info.address: info.rtt_ms / 1_000 for info in self._network.peers() if info.rtt_ms is not None}

    async def _call(self, function: Callable[[], _T]) -> _T:
        result: _T = await self._in_thread(function)  # type: ignore[assignment]
        return result
