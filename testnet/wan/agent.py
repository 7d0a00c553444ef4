"""A small process on a host of a lab: a peer network with its relay client, or a relay, controlled by JSON lines.

``python -m testnet.wan.agent``: the first line describes the agent (``AgentSpec``). Each further line is a
numbered command; its answer has the same number. All measured traffic uses the product's own transport. Times are
nanoseconds of the machine's monotonic clock, which all hosts of a lab share.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from struct import Struct
from typing import Any, Final

import structlog
import trio

from consensus.wire import Proposal, decode_message
from node.consensus.compact_service import CompactBlocks
from p2p.base.endpoint import Endpoint
from p2p.base.limits import NetworkLimits
from p2p.path.dial_back import DialBack
from p2p.path.hole_punch import HolePuncher
from p2p.secure.frame import TrafficClass
from p2p.secure.identity import Identity, Role
from p2p.service import Network, NetworkConfig
from relay.client.client import RelayClient
from relay.client.publisher import FanoutClient
from relay.protocol.fanout import Copy
from relay.server.daemon import RelayDaemon, RelayOptions, run_relay
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from testnet.wan.proposals import FixedPool, make_proposal, make_transfers

__all__ = ["AgentSpec", "account_of", "address_of", "main"]

GENESIS_HASH: Final = digest(b"wan", b"genesis")
VOTE: Final = 1
BULK: Final = 2
BLOCK: Final = 5
PROPOSAL: Final = 6
"""Kinds 3 and 4 are those of compact proposals."""
LINE_BYTES_MAX: Final = 1024 * 1024
STARTED_S_MAX: Final = 30.0
_LOOK_S: Final = 0.05
_HEAD: Final = Struct(">QQ")
"""Time when a message was queued, and its number in its run."""


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The description of an agent."""

    name: str
    """Name of the host; its key derives from it."""
    relay: str = ""
    """host:port to listen on as a relay; empty: a node."""
    listen: str = ""
    """host:port to listen on as a node."""
    reserve: tuple[str, ...] = ()
    """Relays to reserve at, NAME@host:port."""
    faults: tuple[str, ...] = ()
    """Misbehaviour of a relay: ``censor`` accepts published data and forwards nothing."""
    punches: bool = True
    """Whether a node punches holes. Without it, nodes behind NAT stay on relays."""


def account_of(name: str) -> SecretKey:
    """Return the key of the host of this name."""
    return SecretKey(digest(b"wan", name.encode()))


def address_of(name: str) -> bytes:
    """Return the address of the host of this name."""
    return account_of(name).address


def identity_of(name: str, roles: Role = Role.VALIDATOR) -> Identity:
    """Return the identity of the host of this name."""
    return Identity.create(
        account_of(name), genesis_hash=GENESIS_HASH, now_ms=time.time_ns() // 1_000_000, roles=roles,
        node_secret=digest(b"wan node", name.encode()),
    )  # fmt: skip


def relay_at(text: str) -> Endpoint:
    """Return the endpoint of a relay, NAME@host:port. Raises ConfigError."""
    name, _, where = text.partition("@")
    host, _, port = where.rpartition(":")
    if not name or not host or not port.isdigit():
        raise ConfigError(f"relay {text!r}: NAME@host:port expected")
    return Endpoint(host.strip("[]"), int(port), address_of(name))


def path_to(hops: list[str]) -> Endpoint:
    """Return the path in words: one ``host:port``, or relays NAME@host:port, beginning with the dialler's own."""
    if len(hops) == 1 and "@" not in hops[0]:
        host, _, port = hops[0].rpartition(":")
        return Endpoint(host.strip("[]"), int(port))
    path: Endpoint | None = None
    for hop in hops:
        relay = relay_at(hop)
        path = Endpoint(relay.host, relay.port, relay.relay, via=path)
    if path is None:
        raise ConfigError("the path is empty")
    return path


def main() -> None:
    """Run the agent described by the first line of standard input, until the input ends."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(_level()),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    spec = AgentSpec(**json.loads(sys.stdin.buffer.readline(LINE_BYTES_MAX)))
    if spec.relay:
        _be_relay(spec)
    else:
        with contextlib.suppress(KeyboardInterrupt):
            trio.run(_be_node, spec)


def _level() -> int:
    return getattr(logging, os.environ.get("DEKUBE_WAN_LOG", "ERROR").upper(), logging.ERROR)


def _be_relay(spec: AgentSpec) -> None:
    def tell(daemon: RelayDaemon) -> None:
        if "censor" in spec.faults:
            _censor(daemon)
        _say({"id": 0, "ready": list(daemon.endpoint)})

    run_relay(RelayOptions(listen=spec.relay), lambda: identity_of(spec.name, Role.RELAY), on_ready=tell)


def _censor(daemon: RelayDaemon) -> None:
    core = daemon.fanout.core
    honest = core.message

    def message(*arguments: Any) -> Any:
        answer = honest(*arguments)
        return None if isinstance(answer, Copy) else answer

    setattr(core, "message", message)  # noqa: B010


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def _lines() -> AsyncIterator[dict[str, Any]]:
    stream = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
    buffer = bytearray()
    async with stream:
        while data := await stream.receive_some(65_536):
            buffer += data
            *lines, rest = bytes(buffer).split(b"\n")
            buffer = bytearray(rest)
            for line in lines:
                yield json.loads(line)


async def _be_node(spec: AgentSpec) -> None:
    client = RelayClient(lambda: identity_of(spec.name), [relay_at(text) for text in spec.reserve])
    host, _, port = spec.listen.rpartition(":")
    # Wired as a node's is (node/daemon/service.py), or the figures would be of something else.
    puncher = HolePuncher(
        lambda: [*(reservation.endpoint for reservation in client.reservations), *network.dialled]
    )
    reach = DialBack()
    network = Network(
        NetworkConfig(listen=((host.strip("[]"), int(port)),) if spec.listen else (), limits=NetworkLimits()),
        identity_of(spec.name),
        dialers={"relay": client, "punch": puncher} if spec.punches else {"relay": client},
        acceptors=(client, puncher, reach) if spec.punches else (client, reach),
        fanout=FanoutClient(lambda: identity_of(spec.name)),
        log=structlog.get_logger("p2p").info,
    )
    network.on_paths(lambda _target, known: client.two_relay_paths(known))
    if spec.punches:
        puncher.attach(network)
    reach.attach(network)
    network.on_roam(client.roamed)
    network.on_roam(reach.roamed)
    async with trio.open_nursery() as nursery:
        agent = _Agent(network, client, nursery)
        await nursery.start(network.run)
        with trio.move_on_after(STARTED_S_MAX):
            await client.wait_reserved(len({relay_at(text).relay for text in spec.reserve}))
        _say({"id": 0, "ready": [list(at) for at in network.bound], "reserved": len(client.reservations)})
        async for command in _lines():
            nursery.start_soon(agent.obey, command)
        nursery.cancel_scope.cancel()


@dataclass(slots=True)
class _Heard:
    """Data received from one peer since the counts were last read."""

    bulk_bytes: int = 0
    bulk: list[tuple[int, int]] = field(default_factory=list)
    """(time, bytes) of each bulk message."""
    votes: list[tuple[int, int, int]] = field(default_factory=list)
    """(number, time queued, time handled)."""
    blocks: dict[int, int] = field(default_factory=dict)
    """Time at which each block or proposal was handled, by its number."""


class _Agent:
    """The commands, one method each. Keyword arguments are the command's fields."""

    def __init__(self, network: Network, client: RelayClient, nursery: trio.Nursery) -> None:
        self._network = network
        self._client = client
        self._nursery = nursery
        self._heard: defaultdict[bytes, _Heard] = defaultdict(_Heard)
        self._floods: dict[str, trio.CancelScope] = {}
        self._wanted: set[bytes] = set()
        self._changed = trio.Event()
        self._came = trio.Event()
        self._held: tuple[bytes, ...] = ()
        self._pool = FixedPool()
        self._compact: CompactBlocks | None = None
        network.on_peer(self._on_peer)
        network.on_message(VOTE, self._on_vote)
        network.on_message(BULK, self._on_bulk)
        network.on_message(BLOCK, self._on_block)
        network.on_message(PROPOSAL, self._on_proposal)

    async def obey(self, command: dict[str, Any]) -> None:
        """Perform one command and answer it."""
        number, verb = command.pop("id"), command.pop("do")
        action: Callable[..., Awaitable[dict[str, Any] | None]] | None = getattr(self, f"do_{verb}", None)
        answer: dict[str, Any] = {"id": number}
        try:
            if action is None:
                raise ConfigError(f"no command {verb!r}")
            answer |= await action(**command) or {}
        except (DekubeError, TypeError, ValueError, trio.TooSlowError) as error:
            answer |= {"error": getattr(error, "code", type(error).__name__), "text": str(error)}
        _say(answer)

    # -- what is heard ---------------------------------------------------------------------------------------

    async def _on_vote(self, peer: bytes, body: bytes) -> None:
        sent_at, number = _HEAD.unpack_from(body)
        self._heard[peer].votes.append((number, sent_at, time.monotonic_ns()))
        self._note()

    async def _on_bulk(self, peer: bytes, body: bytes) -> None:
        heard = self._heard[peer]
        heard.bulk_bytes += len(body)
        heard.bulk.append((time.monotonic_ns(), len(body)))
        self._note()

    async def _on_block(self, peer: bytes, body: bytes) -> None:
        self._heard[peer].blocks[_HEAD.unpack_from(body)[1]] = time.monotonic_ns()

    async def _on_proposal(self, peer: bytes, body: bytes) -> None:
        if self._compact is None or self._compact.came(peer, body):
            self._take_proposal(peer, body)

    def _take_proposal(self, peer: bytes, body: bytes) -> None:
        at = time.monotonic_ns()
        proposal = decode_message(body)
        if isinstance(proposal, Proposal):
            self._heard[peer].blocks[proposal.candidate.view] = at

    def _note(self) -> None:
        self._came.set()
        self._came = trio.Event()

    # -- commands --------------------------------------------------------------------------------------------

    async def do_know(self, *, peer: str, path: list[str]) -> None:
        """Set the endpoints of a peer; the last one is tried first."""
        self._network.add_endpoint(address_of(peer), path_to(path))

    async def do_connect(
        self, *, peer: str, path: list[str] | None = None, timeout_s: float = 20
    ) -> dict[str, Any]:
        """Set the endpoints of a peer (without any, its record has them), dial it, and wait for the connection."""
        address = address_of(peer)
        if path:
            self._network.add_endpoint(address, path_to(path))
        self._wanted.add(address)
        self._network.set_persistent(self._wanted)
        began = time.monotonic_ns()
        with trio.fail_after(timeout_s):
            await self._connected(address)
        return {"ms": (time.monotonic_ns() - began) / 1e6, "remote": self._remote(address)}

    async def do_wait(self, *, peer: str, timeout_s: float = 20) -> dict[str, Any]:
        """Wait until a peer has dialled this node."""
        with trio.fail_after(timeout_s):
            await self._connected(address_of(peer))
        return {"remote": self._remote(address_of(peer))}

    async def do_flood(self, *, peer: str, seconds: float = 1e6, message_bytes: int = 65_536) -> dict[str, Any]:
        """Send bulk continuously for a time or until ``stop``, also across lost connections."""
        address, sent = address_of(peer), 0
        filling = Random(1).randbytes(message_bytes - _HEAD.size)
        with trio.move_on_after(seconds) as scope:
            self._floods[peer] = scope
            while True:
                body = _HEAD.pack(time.monotonic_ns(), sent) + filling
                try:
                    await self._network.send_when_room(address, TrafficClass.BULK, BULK, body)
                    sent += 1
                except DekubeError:
                    await trio.sleep(0.02)
                await trio.lowlevel.checkpoint()
        return {"sent": sent}

    async def do_stop(self, *, peer: str) -> None:
        """Stop sending bulk to a peer."""
        scope = self._floods.pop(peer, None)
        if scope is not None:
            scope.cancel()

    async def do_send(self, *, peer: str, count: int, message_bytes: int) -> dict[str, Any]:
        """Send a number of bulk messages."""
        address = address_of(peer)
        filling = Random(1).randbytes(message_bytes - _HEAD.size)
        for number in range(count):
            body = _HEAD.pack(time.monotonic_ns(), number) + filling
            await self._network.send_when_room(address, TrafficClass.BULK, BULK, body)
        return {}

    async def do_votes(
        self, *, peer: str, count: int, interval_ms: float, vote_bytes: int = 200
    ) -> dict[str, Any]:
        """Send votes at a fixed rate."""
        address, taken = address_of(peer), 0
        next_at = trio.current_time()
        for number in range(count):
            body = _HEAD.pack(time.monotonic_ns(), number) + bytes(vote_bytes - _HEAD.size)
            taken += self._network.send(address, TrafficClass.CONSENSUS, VOTE, body)
            next_at += interval_ms / 1_000
            await trio.sleep_until(next_at)
        return {"taken": taken}

    async def do_block(self, *, peers: list[str], size_bytes: int, number: int, way: str) -> dict[str, Any]:
        """Send one block to all peers, ``multicast`` or ``unicast``; return the time when it was queued."""
        addresses = [address_of(peer) for peer in peers]
        body = _HEAD.pack(0, number) + Random(number).randbytes(size_bytes - _HEAD.size)
        began = time.monotonic_ns()
        if way == "multicast":
            self._network.multicast(addresses, TrafficClass.BLOCK, BLOCK, body)
        else:
            self._network.broadcast(addresses, TrafficClass.BLOCK, BLOCK, body)
        return {"at": began}

    async def do_hold(self, *, count: int, lacking: int = 0, seed: int = 1) -> None:
        """Hold transfers in a pool, except for the first ``lacking``, and take part in compact proposals."""
        self._held = make_transfers(count, seed)
        self._pool = FixedPool(self._held[lacking:])
        if self._compact is None:
            self._compact = CompactBlocks(
                self._network, self, own=self._network.identity.address, kind=PROPOSAL,
                leads=lambda _sender, _epoch, _view: True, deliver=self._take_proposal,
                blame=lambda sender, _: self._network.penalise(sender, 10.0), in_thread=trio.to_thread.run_sync,
                random=Random(seed),
            )  # fmt: skip
            self._nursery.start_soon(self._compact.run)
        self._compact.seats = (*sorted(self._wanted), self._network.identity.address)

    def hashes(self) -> Sequence[bytes]:
        """Return the hashes in the pool."""
        return self._pool.hashes()

    def young(self) -> frozenset[bytes]:
        """Return the recent hashes in the pool."""
        return self._pool.young()

    def raw_of(self, transaction_hash: bytes) -> bytes | None:
        """Return a transaction of the pool."""
        return self._pool.raw_of(transaction_hash)

    def hash_of(self, raw: bytes) -> bytes | None:
        """Return the hash of a transaction of the pool."""
        return self._pool.hash_of(raw)

    async def do_propose(self, *, peers: list[str], number: int, way: str) -> dict[str, Any]:
        """Send a proposal of the held transfers, ``compact`` or ``multicast``; return its start time."""
        addresses = [address_of(peer) for peer in peers]
        data = make_proposal(number, self._held)
        began = time.monotonic_ns()
        if way == "compact":
            assert self._compact is not None
            self._compact.send(data, addresses, ())
        else:
            self._network.multicast(addresses, TrafficClass.BLOCK, PROPOSAL, data)
        return {"at": began, "bytes": len(data)}

    async def do_mesh(self, *, peers: dict[str, list[str]], timeout_s: float = 40) -> None:
        """Keep connections to all these peers from now on, and wait for them."""
        for peer, path in peers.items():
            self._network.add_endpoint(address_of(peer), path_to(path))
        self._wanted |= {address_of(peer) for peer in peers}
        self._network.set_persistent(self._wanted)
        with trio.fail_after(timeout_s):
            for peer in peers:
                await self._connected(address_of(peer))

    async def do_block_at(self, *, peer: str, number: int) -> dict[str, Any]:
        """Return when a peer's block was handled; 0 if it was not."""
        return {"at": self._heard[address_of(peer)].blocks.get(number, 0)}

    async def do_await_votes(self, *, peer: str, count: int, timeout_s: float = 55) -> None:
        """Wait until this number of different votes arrived since they were last read."""
        with trio.fail_after(timeout_s):
            while len({number for number, _, _ in self._heard[address_of(peer)].votes}) < count:
                await self._came.wait()

    async def do_await_bulk(self, *, peer: str, size_bytes: int, timeout_s: float = 55) -> None:
        """Wait until this much bulk arrived since it was last read."""
        with trio.fail_after(timeout_s):
            while self._heard[address_of(peer)].bulk_bytes < size_bytes:
                await self._came.wait()

    async def do_heard(self, *, peer: str) -> dict[str, Any]:
        """Return the data received from a peer since the last call."""
        heard = self._heard.pop(address_of(peer), _Heard())
        return {
            "at": time.monotonic_ns(), "bulk_bytes": heard.bulk_bytes, "bulk": heard.bulk, "votes": heard.votes,
            "blocks": heard.blocks,
        }  # fmt: skip

    async def do_peers(self) -> dict[str, Any]:
        """Return the connections."""
        return {
            "peers": [
                {
                    "address": info.address.hex(), "remote": info.remote, "rtt_ms": info.rtt_ms,
                    "bytes_in": info.bytes_in, "bytes_out": info.bytes_out,
                }
                for info in self._network.peers()
            ],
            "reserved": len(self._client.reservations),
            "counters": dict(self._network.counters),
        }  # fmt: skip

    async def do_record(self, *, peer: str) -> dict[str, Any]:
        """Return the endpoints in a peer's newest known record."""
        return {"endpoints": self._told(peer)}

    async def do_await_record(self, *, peer: str, endpoints: list[str], timeout_s: float = 50) -> None:
        """Wait until a peer's newest record has exactly these endpoints."""
        with trio.fail_after(timeout_s):
            while self._told(peer) != endpoints:  # noqa: ASYNC110
                await trio.sleep(_LOOK_S)

    def _told(self, peer: str) -> list[str]:
        record = self._network.record(address_of(peer))
        return [] if record is None else [str(endpoint) for endpoint in record.endpoints]

    async def do_await_reserved(self, *, count: int, timeout_s: float = 50) -> None:
        """Wait for this number of reservations."""
        with trio.fail_after(timeout_s):
            await self._client.wait_reserved(count)

    def _on_peer(self, _address: bytes, _is_there: bool) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _connected(self, address: bytes) -> None:
        while not self._network.is_connected(address):
            await self._changed.wait()

    async def do_await_path(self, *, peer: str, scheme: str, timeout_s: float = 50) -> dict[str, Any]:
        """Wait until a peer's control traffic takes a path of this scheme (``tcp``, ``relay``, ``punch``)."""
        with trio.fail_after(timeout_s):
            while self._remote(address_of(peer)).partition(":")[0] != scheme:  # noqa: ASYNC110
                await trio.sleep(_LOOK_S)  # no event tells of a move
        return {"remote": self._remote(address_of(peer))}

    def _remote(self, address: bytes) -> str:
        return next((info.remote for info in self._network.peers() if info.address == address), "")


if __name__ == "__main__":
    main()
