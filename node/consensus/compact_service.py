"""Compact proposals between the mempool and the peers: forms out, rebuilt messages in, the whole at need.

See network.md R15.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Final, Protocol, TypeVar

import trio

from node.consensus.compact import (
    Form,
    Rebuild,
    Some,
    WantSome,
    WantWhole,
    decode_bulk,
    decode_word,
    encode_bulk,
    encode_word,
    make_form,
)
from node.consensus.compact_exchange import (
    TICK_S,
    CompactParameters,
    Deliver,
    Effect,
    Receiver,
    Say,
    Sender,
    SendSome,
    SendWhole,
)
from p2p.multicast.service import MulticastService
from p2p.secure.frame import TrafficClass
from p2p.session.peerinfo import PeerInfo
from state.primitives.errors import DecodeError

__all__ = ["KIND_COMPACT", "KIND_COMPACT_WORD", "WHOLE_BYTES_MAX", "CompactBlocks", "Pool"]

KIND_COMPACT: Final = 0x03
KIND_COMPACT_WORD: Final = 0x04
WHOLE_BYTES_MAX: Final = 16 * 1024
UPLOAD_BYTES_MIN: Final = 256 * 1024
"""A proposal up to that size, or that is less than this for all receivers together, travels as it is: making,
matching and words about a form cost more than they save."""
FORMS_BYTES_MIN: Final = 256 * 1024
"""Forms that are so much for all receivers together go through relays, as whole blocks do from a larger sum on: a
home needs 50 ms to upload that, and all who wait for it cannot vote before."""
INLINE_BYTES_MAX: Final = 64 * 1024
"""Larger forms and answers are decoded in a worker thread."""
INBOX_OF_ONE_MAX: Final = 4
INBOX_BYTES_MAX: Final = 32 * 1024 * 1024
RTT_UNKNOWN_S: Final = 0.1
_T = TypeVar("_T")


class Pool(Protocol):
    """The transactions that wait here."""

    def hashes(self) -> Sequence[bytes]:
        """Return the hashes of all of them."""
        ...

    def young(self) -> frozenset[bytes]:
        """Return the hashes of those that came so lately that peers may lack them."""
        ...

    def raw_of(self, transaction_hash: bytes) -> bytes | None:
        """Return a transaction's bytes; from any thread."""
        ...

    def hash_of(self, raw: bytes) -> bytes | None:
        """Return the hash of a transaction that is known by its bytes; from any thread."""
        ...


class _Peers(Protocol):
    """What is needed of the network."""

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
    """Brings proposals to many by their forms, and rebuilds those of others.

    ``kind`` is that of whole messages. ``leads(sender, epoch, view)`` tells whether a proposal of that view could
    be the sender's, or nothing is spent on it. ``deliver(sender, data)`` takes what has become whole; ``blame`` is
    told what only a faulty node sends; ``in_thread`` makes long calls.
    """

    def __init__(
        self, network: _Peers, pool: Pool, *, own: bytes, kind: int, leads: Callable[[bytes, int, int], bool],
        deliver: Callable[[bytes, bytes], None], blame: Callable[[bytes, str], None],
        in_thread: Callable[[Callable[[], object]], Awaitable[object]], random: Random,
        parameters: CompactParameters | None = None,
    ) -> None:  # fmt: skip
        self.seats: tuple[bytes, ...] = ()
        """Who may send forms and is asked for help: those who vote now or in the next epoch."""
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
        network.on_message(KIND_COMPACT_WORD, self._on_word)

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
        """Bring a proposal to all seats but our own, and to the nodes that follow.

        One that is sent a second time travels whole: the first time has helped too few.
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
        """Take notice of a whole message; False for one that was rebuilt and delivered a moment ago."""
        return self._receiver.whole(sender, data, trio.current_time())

    # -- the leader's end ------------------------------------------------------------------------------------

    async def _send(self, data: bytes, seats: Sequence[bytes], followers: Sequence[bytes]) -> None:
        network, now = self._network, trio.current_time()
        compact, whole = self._sender.split(seats, now)
        compact_rest, whole_rest = self._sender.split(followers, now)
        made = None
        if compact or compact_rest:
            young = self._pool.young()
            made = await self._call(lambda: make_form(data, self._pool.hash_of, young))
        if made is None:
            network.multicast(seats, TrafficClass.BLOCK, self._kind, data, followers=followers)
            return
        form, transactions = made
        rtt_s = self._round_trips()
        members = {address: rtt_s.get(address, RTT_UNKNOWN_S) for address in (*compact, *compact_rest)}
        self._sender.sent(form.root, data, transactions, members, trio.current_time())
        network.multicasts.send(
            compact, TrafficClass.BLOCK, KIND_COMPACT, encode_bulk(form), followers=compact_rest,
            upload_bytes_min=FORMS_BYTES_MIN,
        )  # fmt: skip
        if whole or whole_rest:
            network.multicast(whole, TrafficClass.BLOCK, self._kind, data, followers=whole_rest)
        self._counters["sent"] += 1
        self._wake.set()

    # -- what peers say --------------------------------------------------------------------------------------

    async def _on_word(self, peer: bytes, body: bytes) -> None:
        try:
            word = decode_word(body)
        except DecodeError as error:
            self._blame(peer, str(error))
            return
        if self._sender.knows(word.root):
            self._do(self._sender.word(peer, word, trio.current_time()))
        elif isinstance(word, WantSome) and peer in self.seats:
            self._do(self._receiver.help(peer, word))

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
        """Deal with forms and answers, one after the other: what they cost in sum is bounded by one thread."""
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
            case Form():
                await self._on_form(peer, message)
            case Some():
                rebuild = self._receiver.some(peer, message)
                if rebuild is not None:
                    await self._finish(rebuild)
            case _:
                raise AssertionError(message)

    async def _on_form(self, peer: bytes, form: Form) -> None:
        candidate = form.proposal.candidate
        if not self._leads(peer, candidate.epoch, candidate.view):
            self._do([Say(peer, WantWhole(form.root))])
            return
        rebuild, effects = self._receiver.form(peer, form, trio.current_time())
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
        self._do(self._receiver.filled(form.root, helpers, rtt_s, trio.current_time()))

    async def _finish(self, rebuild: Rebuild) -> None:
        data = await self._call(rebuild.message)
        self._do(self._receiver.finished(rebuild.form.root, data, trio.current_time()))

    # -- what the cores say ----------------------------------------------------------------------------------

    def _do(self, effects: Iterable[Effect]) -> None:
        network = self._network
        for effect in effects:
            match effect:
                case Say(address, word):
                    network.send(address, TrafficClass.CONSENSUS, KIND_COMPACT_WORD, encode_word(word))
                case SendSome(address, answer):
                    network.send(address, TrafficClass.BLOCK, KIND_COMPACT, encode_bulk(answer))
                case SendWhole(data, addresses):
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
