"""``dekube bench rpc``: what a question over HTTP costs the gateway and the node, while blocks are made.

Three processes: a node that holds a store, makes a block a second and serves its socket; a real gateway; and this
one, which asks. CPU figures are processor time of node and gateway together (the node's share beside it), so they
hold on a busy machine; latencies are wall time and do not. A submission's figure is all that the gateway does for
it, HTTP and the sender's recovery among it, and its admission by the node, which has no peers to tell; what a
recovery alone takes in the same run is a figure of its own. The block time under a flood is that of a whole test
network, idle and flooded in turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import trio
import uvloop

from node.chain import Chain, Executed
from node.children import die_with_parent
from node.home import load_key, read_passphrase, write_whole
from node.ledger import NodeLedger
from node.mempool import MempoolOptions
from rpc.backend import Backend
from rpc.client import Call, Client
from rpc.dispatch import DispatchOptions
from rpc.doors import DoorOptions
from rpc.gateway import GatewayOptions, gateway_command, options_to_json
from rpc.limits import raise_descriptor_limit, tune_collector
from rpc.store_view import StoreView, describe
from rpc.view import Network, Peer, Submitted, Sync
from state.primitives.blocks import encode_block
from state.primitives.errors import DekubeError
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey, recover_address
from state.primitives.signing import sign_dynamic
from state.primitives.transactions import sign_transaction
from state.primitives.votes import VoteKey
from state.primitives.vrf import vrf_key_of
from state.store import Store
from state.transition.epochs import epoch_of
from state.transition.evidence import EvidenceRefused
from state.transition.runtime import Checked, Runtime
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload

__all__ = ["run"]

CHAIN_ID: Final = 31_337
SENDERS: Final = 64
CONNECTIONS: Final = 16
BUSY_CONNECTIONS: Final = 64
NATIVE: Final = b'{"jsonrpc":"2.0","id":1,"method":"dekube_getBalance","params":["0x%s"]}'
ETHEREUM: Final = b'{"jsonrpc":"2.0","id":1,"method":"eth_getBalance","params":["0x%s","latest"]}'
SUBMIT: Final = b'{"jsonrpc":"2.0","id":1,"method":"dekube_sendTransaction","params":["0x%s"]}'
SUBMIT_RAW: Final = b'{"jsonrpc":"2.0","id":1,"method":"eth_sendRawTransaction","params":["0x%s"]}'
SUBMISSIONS_PER_S: Final = 4_000
"""More than a loaded machine takes."""
BLOCK_TRANSACTIONS: Final = 2_000
RECOVERIES: Final = 500
SUBMIT_EVERY: Final = 20
"""One of so many requests at a fixed rate is a transaction."""
OPENED_AT_ONCE: Final = 100
FILES_SPARE: Final = 500
UPGRADE: Final = (
    b"GET /ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)
PING: Final = b"\x89"
PONG: Final = b"\x8a"
PAYER: Final = "faucet"
"""Nobody else spends from its account meanwhile: a member registers itself when it gets to it."""
PAYMENTS_PER_S: Final = 100
PAYMENTS_OF_BATCH: Final = 10
PHASES: Final = 3
"""Times that the network is idle and flooded in turns."""
WARM_HEIGHT: Final = 3
WARM_S: Final = 60.0
"""More than it takes to ask for every account once."""
START_PATIENCE_S: Final = 60.0
NETWORK_PATIENCE_S: Final = 90.0
_VALIDATOR: Final = SecretKey(b"\x77" * 32)


def run(
    *, accounts: int = 5_000, seconds: float = 3.0, rate_per_s: int = 2_000, websockets: int = 10_000,
    network_seconds: int = 36, base_port: int = 28_650, only_submit: int = 0,
) -> dict[str, float]:  # fmt: skip
    """Measure and return the figures.

    ``cpu_us_*`` are processor time of gateway and node together, without that of making blocks; ``batch`` is 100
    calls of eth_getBalance in one request. ``websockets`` 0 and ``network_seconds`` 0 leave these parts out;
    ``only_submit`` 1 leaves out all but the submissions.
    """
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="dekube-bench-") as directory:
        path = Path(directory)
        with _processes(path, accounts) as (node, gateway, port):
            load = _Load(port, node.pid, gateway.pid, accounts, path)
            load.flood(load.absent, min(seconds, 1.0))  # imports and connections warm
            if not only_submit:
                figures |= _reads(load, seconds)
            figures |= _submissions(load, seconds)
            if only_submit:
                return figures
            paced = load.paced(rate_per_s, seconds)
            figures[f"p50_ms_at_{rate_per_s}_per_s"] = paced.p50_ms
            figures[f"p99_ms_at_{rate_per_s}_per_s"] = paced.p99_ms
            figures[f"p99_ms_asked_late_at_{rate_per_s}_per_s"] = paced.p99_late_ms
            figures["generator_cpu_us_per_request"] = paced.generator_us
            figures["gateway_rss_mib"] = _rss_mib(gateway.pid)
            if websockets:
                figures["idle_websockets_mib"] = load.idle_websockets(websockets)
                figures["idle_websocket_kib"] = (
                    (figures["idle_websockets_mib"] - figures["gateway_rss_mib"]) * 1024 / websockets
                )
            figures["gateway_peak_mib"] = _peak_mib(gateway.pid)
    if network_seconds:
        figures |= _flooded_network(network_seconds, base_port, accounts)
    return figures


def _reads(load: _Load, seconds: float) -> dict[str, float]:
    cold = load.flood(load.absent, seconds)
    load.flood(load.each_once(), WARM_S)  # wallets ask for the same accounts again
    single = load.flood(load.balance, seconds)
    batch = load.flood(lambda: load.batch(100), seconds)
    return {
        "cpu_us_per_eth_get_balance_cold": cold.us,
        "cpu_us_per_eth_get_balance": single.us,
        "node_cpu_us_per_eth_get_balance": single.node_us,
        "eth_get_balance_per_s": single.per_s,
        "cpu_us_per_batch_of_100": batch.us,
        "node_cpu_us_per_batch_of_100": batch.node_us,
        "cpu_us_per_native_get_balance": load.flood(lambda: load.balance(NATIVE), seconds).us,
        "cpu_us_per_native_batch_of_100": load.flood(lambda: load.batch(100, NATIVE), seconds).us,
    }


def _submissions(load: _Load, seconds: float) -> dict[str, float]:
    count = int(seconds * SUBMISSIONS_PER_S)
    recoveries = [_recovery_us()]

    def flood(size: int = 1, connections: int = CONNECTIONS, *, is_ethereum: bool = False) -> _Cost:
        cost = load.flood(load.submit(count, size, is_ethereum=is_ethereum), seconds, connections)
        recoveries.append(_recovery_us())
        return cost

    submit, ethereum, many, busy = flood(), flood(is_ethereum=True), flood(100), flood(1, BUSY_CONNECTIONS)
    return {
        "submit_cpu_us_per_transaction": submit.us,
        "node_submit_cpu_us_per_transaction": submit.node_us,
        "submit_cpu_us_per_ethereum_transaction": ethereum.us,
        "node_submit_cpu_us_per_ethereum_transaction": ethereum.node_us,
        "submit_cpu_us_per_transaction_in_batches": many.us / 100,
        "node_submit_cpu_us_per_transaction_in_batches": many.node_us / 100,
        f"submit_cpu_us_per_transaction_of_{BUSY_CONNECTIONS}_connections": busy.us,
        "submissions_per_s": busy.per_s,
        "submit_recovery_cpu_us": statistics.median(recoveries),
    }


def _recovery_us() -> float:
    """Return the processor time of one recovery of a sender, here and now: each submission has one."""
    key = SecretKey(digest(b"bench-sender", b"recovery"))
    digests = [digest(b"bench-recovered", number.to_bytes(4, "big")) for number in range(RECOVERIES)]
    signed = [(each, key.sign(each)) for each in digests]
    started_s = time.thread_time()
    for each, signature in signed:
        recover_address(each, signature)
    return (time.thread_time() - started_s) / RECOVERIES * 1e6


# The node


def _genesis(accounts: int) -> Genesis:
    senders = [SecretKey(digest(b"bench-sender", bytes([n]))).address for n in range(SENDERS)]
    others = [_address(n) for n in range(accounts)]
    return Genesis(
        CHAIN_ID,
        "bench",
        1_700_000_000_000,
        True,
        tuple((address, 10**24) for address in (*senders, *others)),
        (GenesisValidator(_VALIDATOR.address, _VALIDATOR.vote_key, vrf_key_of(_VALIDATOR).public, 10**21),),
    )


def _address(number: int) -> bytes:
    return digest(b"bench-account", number.to_bytes(4, "big"))[:20]


class _Live:
    """A node of one, without peers: it makes a block a second of whatever waits."""

    def __init__(self, path: Path, accounts: int) -> None:
        genesis = _genesis(accounts)
        self.runtime = Runtime(genesis)
        self.store = Store.open(path / "db", genesis, self.runtime.genesis_changes)
        self.chain = Chain(self.store, self.runtime)
        self.ledger = NodeLedger(
            self.store, self.chain, self.runtime, MempoolOptions(sender_transactions_max=10**6)
        )
        description = describe(
            self.runtime, address=_VALIDATOR.address, roles=(), version="bench",
            parameters={"chain": self.runtime.chain},
        )  # fmt: skip
        self.view = StoreView(self.store, self.runtime, self.ledger.mempool, description, self)

    def admission(self) -> AbstractContextManager[Callable[[bytes, bytes], object]]:
        return self.ledger.admission()

    def submit_evidence(self, raw: bytes) -> Submitted:
        raise EvidenceRefused("a node of one accuses nobody")

    def submit_fork(self, certificates: list[bytes], reporter: bytes | None) -> list[Submitted]:
        raise EvidenceRefused("a node of one has no fork")

    def peers(self) -> list[Peer]:
        return []

    def network(self, after: bytes, limit: int) -> Network:
        return Network("none", "", (), (), 0, ())

    def sync(self) -> Sync:
        return Sync(0, self.store.tip.height, 0, 0, 0)

    async def make_blocks(self, path: Path) -> None:
        """Make a block a second beside the loop, and note what processor time all of them took."""
        spent_s = 0.0
        while True:
            await trio.sleep(1)
            started_s = time.thread_time()
            waiting = self.ledger.mempool.take(BLOCK_TRANSACTIONS)
            spent_s += time.thread_time() - started_s
            executed, block_s = await trio.to_thread.run_sync(self._make_block, waiting)
            started_s = time.thread_time()
            self.ledger.on_commit([executed])
            self.view.notify_head({executed.header.height: executed.execution.changes})
            spent_s += block_s + time.thread_time() - started_s
            write_whole(_blocks_file(path), repr(spent_s))

    def _make_block(self, waiting: list[Checked]) -> tuple[Executed, float]:
        started_s = time.thread_time()
        tip = self.store.tip
        view = tip.height + 1
        block, checked = self.chain.build(
            tip.block_hash, epoch=epoch_of(view, self.runtime.chain), view=view, seat=0,
            time_ms=tip.time_ms + 1_000, voters_bitmap=b"\1",
            vrf_proof=VoteKey(_VALIDATOR).prove(self.chain.vrf_input(tip.block_hash, view)),
            transactions=waiting,
        )  # fmt: skip
        executed = self.chain.execute(block, checked, raw=encode_block(block))
        self.chain.commit(block.hash, b"")
        return executed, time.thread_time() - started_s


def _blocks_file(path: Path) -> Path:
    return path / "blocks_cpu_s"


async def _serve(path: Path, accounts: int) -> None:
    write_whole(_blocks_file(path), "0.0")
    live = _Live(path, accounts)
    backend = Backend(live.view, path / "node.sock")
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        nursery.start_soon(live.make_blocks, path)
        _, port = await backend.wait_gateway()
        tune_collector()  # as a node does
        print(json.dumps({"port": port}), flush=True)
        await trio.sleep_forever()


@contextmanager
def _processes(
    path: Path, accounts: int
) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes], int]]:
    options = GatewayOptions(
        socket=str(path / "node.sock"),
        port=0,
        log_level="warning",
        dispatch=DispatchOptions(rate_per_s=0),
        doors=DoorOptions(connections_per_address_max=0),
    )
    read_end, write_end = os.pipe()
    ends_with_us = partial(die_with_parent, os.getpid())
    node = subprocess.Popen(
        [sys.executable, "-m", "node.bench.rpc", str(path), str(accounts)], stdout=subprocess.PIPE,
        preexec_fn=ends_with_us,
    )  # fmt: skip
    gateway = subprocess.Popen(gateway_command(read_end), pass_fds=(read_end,), preexec_fn=ends_with_us)
    os.close(read_end)
    try:
        with os.fdopen(write_end, "w") as stream:
            stream.write(options_to_json(options))
        assert node.stdout is not None
        if not select.select([node.stdout], [], [], START_PATIENCE_S)[0]:
            raise AssertionError(f"not up: node {node.poll()}, gateway {gateway.poll()}")
        yield node, gateway, json.loads(node.stdout.readline())["port"]
    finally:
        for process in (gateway, node):
            process.kill()
            process.wait()


def _cpu_s(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)  # the clock that Linux has for the processor time of each process


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _peak_mib(pid: int) -> float:
    """Return the most memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 2**10


# The questions


class _Asker(asyncio.Protocol):
    """One kept connection that has one request under way at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = -1
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._left < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            at = self._buffer.find(b"content-length: ") + 16
            self._left = end + 4 + int(self._buffer[at : self._buffer.find(b"\r", at)])
        if len(self._buffer) >= self._left:
            refusal = bytes(self._buffer[-300:]) if b'"error"' in self._buffer else b""
            self._buffer.clear()
            self._left = -1
            if self.done is not None and not self.done.done():
                if refusal:
                    self.done.set_exception(AssertionError(refusal))
                else:
                    self.done.set_result(None)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(AssertionError("the gateway closed a connection"))

    async def ask(self, request: bytes) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(request)  # type: ignore[attr-defined]
        await self.done


class _Cost(NamedTuple):
    """Processor time of a request, in all and of the node, and requests a second."""

    us: float
    node_us: float
    per_s: float


class _Pace(NamedTuple):
    """Latencies from when a request was due, how late the generator itself was, and what it cost."""

    p50_ms: float
    p99_ms: float
    p99_late_ms: float
    generator_us: float


def _http(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def _source(number: int) -> tuple[str, int]:
    """Return an address of loopback for a connection: gateways ration what one address may ask."""
    return f"127.0.{1 + number // 250}.{1 + number % 250}", 0


async def _flood(port: int, source: Callable[[], bytes], seconds: float, connections: int = CONNECTIONS) -> int:
    """Ask on all connections as fast as answers come; return how many came."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    count = 0

    async def worker(number: int) -> None:
        nonlocal count
        transport, asker = await loop.create_connection(_Asker, "127.0.0.1", port, local_addr=_source(number))
        try:
            while loop.time() < until:
                try:
                    request = source()
                except IndexError:  # all that was signed is sent
                    return
                await asker.ask(request)
                count += 1
        finally:
            transport.close()

    await asyncio.gather(*map(worker, range(connections)))
    return count


class _Load:
    """The clients of the gateway at ``port``; ``path`` is the node's folder."""

    def __init__(self, port: int, node: int, gateway: int, accounts: int, path: Path) -> None:
        self._port, self._node, self._gateway, self._accounts, self._path = port, node, gateway, accounts, path
        self._random = random.Random(1)
        self._nonces = [0] * SENDERS
        self._keys = [SecretKey(digest(b"bench-sender", bytes([n]))) for n in range(SENDERS)]

    def absent(self) -> bytes:
        """Ask for an account that nobody asked for before."""
        return _http(self._call(self._random.randbytes(20)))

    def _call(self, address: bytes | None = None, text: bytes = ETHEREUM) -> bytes:
        who = (address or _address(self._random.randrange(self._accounts))).hex()
        return text % who.encode()

    def balance(self, text: bytes = ETHEREUM) -> bytes:
        return _http(self._call(text=text))

    def batch(self, size: int, text: bytes = ETHEREUM) -> bytes:
        return _http(b"[" + b",".join(self._call(text=text) for _ in range(size)) + b"]")

    def each_once(self) -> Callable[[], bytes]:
        """Return a source of requests for every account, in batches."""
        calls = [self._call(_address(number)) for number in range(self._accounts)]
        parts = [calls[at : at + 100] for at in range(0, len(calls), 100)]
        return [_http(b"[" + b",".join(part) + b"]") for part in parts].pop

    def mixed(self) -> bytes:
        """Ask as readers do: half of it is new to the gateway."""
        return self.absent() if self._random.random() < 0.5 else self.balance()

    def submit(self, count: int, size: int = 1, *, is_ethereum: bool = False) -> Callable[[], bytes]:
        """Return a source of ``count`` signed transactions, ``size`` in each request."""
        ready: list[tuple[int, bytes]] = []
        nonces = list(self._nonces)
        for number in range(count):
            at = number % SENDERS
            to = _address(number % self._accounts)
            if is_ethereum:
                raw = sign_dynamic(
                    self._keys[at], chain_id=CHAIN_ID, nonce=nonces[at], to=to, value=1, gas_limit=TRANSFER_GAS,
                    max_fee_per_gas=10**12,
                )  # fmt: skip
            else:
                raw = sign_transaction(
                    self._keys[at], chain_id=CHAIN_ID, nonce=nonces[at], kind=TRANSFER_KIND,
                    payload=transfer_payload(to, 1), gas_limit=TRANSFER_GAS, max_fee_per_gas=10**12,
                )  # fmt: skip
            text = SUBMIT_RAW if is_ethereum else SUBMIT
            nonces[at] += 1
            ready.append((at, text % raw.hex().encode()))
        ready.reverse()

        def take() -> bytes:
            taken = [ready.pop() for _ in range(size)]
            for at, _ in taken:
                self._nonces[at] += 1  # what is not taken before the time is up is never sent
            calls = [call for _, call in taken]
            return _http(calls[0] if size == 1 else b"[" + b",".join(calls) + b"]")

        return take

    def _spent_s(self) -> tuple[float, float]:
        """Return the processor time of the node without its blocks, and of the gateway."""
        return _cpu_s(self._node) - float(_blocks_file(self._path).read_text()), _cpu_s(self._gateway)

    def flood(self, source: Callable[[], bytes], seconds: float, connections: int = CONNECTIONS) -> _Cost:
        """Ask as fast as answers come."""
        before = self._spent_s()
        started = time.perf_counter()
        count = uvloop.run(_flood(self._port, source, seconds, connections))
        wall_s = time.perf_counter() - started
        after = self._spent_s()
        node_us, gateway_us = ((b - a) / count * 1e6 for a, b in zip(before, after, strict=True))
        return _Cost(node_us + gateway_us, node_us, count / wall_s)

    def paced(self, rate_per_s: int, seconds: float) -> _Pace:
        """Ask at a fixed rate whether answers come or not; a part of it is transactions, so blocks have some."""
        with Client(f"http://127.0.0.1:{self._port}") as client:
            while client.call("txpool_status") != {"pending": "0x0", "queued": "0x0"}:  # of the flood before
                time.sleep(1)
        requests = [self.balance() for _ in range(int(rate_per_s * seconds))]
        requests[::SUBMIT_EVERY] = _drain(self.submit(len(requests[::SUBMIT_EVERY])))
        before_s = time.process_time()
        latencies, late = uvloop.run(self._paced(rate_per_s, requests))
        spent_s = time.process_time() - before_s
        return _Pace(
            _part(latencies, 50) * 1e3, _part(latencies, 99) * 1e3, _part(late, 99) * 1e3,
            spent_s / len(requests) * 1e6,
        )  # fmt: skip

    async def _paced(self, rate_per_s: int, requests: list[bytes]) -> tuple[list[float], list[float]]:
        loop = asyncio.get_running_loop()
        now = time.perf_counter  # the loop's own clock stands still within a turn
        free: deque[_Asker] = deque()
        for _ in range(8 * CONNECTIONS):
            _, asker = await loop.create_connection(_Asker, "127.0.0.1", self._port)
            free.append(asker)
        latencies: list[float] = []
        late: list[float] = []
        waiting: deque[tuple[float, bytes]] = deque()
        finished: asyncio.Future[None] = loop.create_future()

        def ask(due: float, request: bytes) -> None:
            if not free:
                waiting.append((due, request))
                return
            asker = free.popleft()
            asker.done = loop.create_future()
            asker.done.add_done_callback(partial(answered, asker, due))
            asker.transport.write(request)  # type: ignore[attr-defined]

        def answered(asker: _Asker, due: float, done: asyncio.Future[None]) -> None:
            if (error := done.exception()) is not None:
                finished.set_exception(error)
                return
            latencies.append(now() - due)
            free.append(asker)
            if waiting:
                ask(*waiting.popleft())
            elif len(latencies) == len(requests):
                finished.set_result(None)

        started = now()
        for number, request in enumerate(requests):
            due = started + number / rate_per_s
            if due > now():
                await asyncio.sleep(due - now())
            late.append(now() - due)
            ask(due, request)
        await finished
        return latencies, late

    def idle_websockets(self, count: int) -> float:
        """Return the gateway's memory in MiB with ``count`` WebSockets that say nothing; all must live on."""
        raise_descriptor_limit(count + FILES_SPARE)
        return uvloop.run(self._idle_websockets(count))

    async def _idle_websockets(self, count: int) -> float:
        loop = asyncio.get_running_loop()
        listeners: list[_Listener] = []
        for first in range(0, count, OPENED_AT_ONCE):
            opening = (
                loop.create_connection(_Listener, "127.0.0.1", self._port, local_addr=_source(number))
                for number in range(first, min(first + OPENED_AT_ONCE, count))
            )
            opened = [listener for _, listener in await asyncio.gather(*opening)]
            await asyncio.gather(*(listener.accepted for listener in opened))
            listeners += opened
        _, asker = await loop.create_connection(_Asker, "127.0.0.1", self._port)
        await asker.ask(self.balance())  # others are served
        if any(listener.is_closed for listener in listeners):
            raise AssertionError("the gateway closed an idle WebSocket")
        return _rss_mib(self._gateway)


class _Listener(asyncio.Protocol):
    """A WebSocket that is opened and says nothing but that it is there."""

    def __init__(self) -> None:
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(UPGRADE)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self.accepted.done():
            if data[:1] == PING:
                answer = PONG + bytes([0x80 | data[1]]) + bytes(4) + data[2 : 2 + data[1]]
                self._transport.write(answer)  # type: ignore[attr-defined]
        else:
            if data.startswith(b"HTTP/1.1 101 "):
                self.accepted.set_result(None)
            else:
                self.accepted.set_exception(AssertionError(data[:300]))

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_closed = True
        if not self.accepted.done():
            self.accepted.set_exception(AssertionError("closed before it was opened"))


def _drain(source: Callable[[], bytes]) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(source())
        except IndexError:
            return found


def _part(values: list[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]


# A network whose gateway is flooded


def _flooded_network(seconds: int, base_port: int, accounts: int) -> dict[str, float]:
    """Return how much longer blocks take while readers saturate the gateway of a validator, in turns.

    Payments come in all the time, at the gateway of another validator.
    """
    flooded, beside = (base_port + 3 * member + 1 for member in (1, 2))
    url = f"http://127.0.0.1:{beside}"
    with (
        tempfile.TemporaryDirectory(prefix="dekube-bench-") as directory,
        _network(directory, base_port),
        _payments(url, Path(directory, "net", PAYER)),
    ):
        load = _Load(flooded, 0, 0, accounts, Path(directory))
        block_ms: dict[bool, list[float]] = {False: [], True: []}
        paid: dict[bool, list[float]] = {False: [], True: []}
        count = 0
        with Client(url) as client:
            interval_ms = int(client.call("dekube_genesis")["parameters"]["chain.block_interval_ms_min"])
            for is_flood in (False, True) * PHASES:
                first = client.call("dekube_head")["at"]["height"]
                if is_flood:
                    count += uvloop.run(_flood(flooded, load.mixed, seconds / PHASES / 2))
                else:
                    time.sleep(seconds / PHASES / 2)
                last = client.call("dekube_head")["at"]["height"]
                blocks = [client.call("dekube_getBlock", at)["block"] for at in range(first + 1, last + 1)]
                times = [block["time_ms"] for block in blocks]
                block_ms[is_flood] += [after - before for before, after in pairwise(times)]
                paid[is_flood] += [len(block["transactions"]) for block in blocks[1:]]
    idle, flood = (statistics.fmean(block_ms[is_flood]) for is_flood in (False, True))
    return {
        "block_ms_idle": idle, "block_ms_under_flood": flood, "block_time_ratio_under_flood": flood / idle,
        "block_ms_above_pace_idle": idle - interval_ms, "block_ms_above_pace_under_flood": flood - interval_ms,
        "payments_per_block_idle": statistics.fmean(paid[False]),
        "payments_per_block_under_flood": statistics.fmean(paid[True]),
        "flood_requests_per_s": count / (seconds / 2),
    }  # fmt: skip


@contextmanager
def _payments(url: str, payer: Path) -> Iterator[None]:
    """Hand in payments at an even pace, from the account of a member that is not flooded."""
    key = load_key(payer / "key.json", read_passphrase(payer / "passphrase"))
    enough = threading.Event()

    def pay() -> None:
        with Client(url) as client:
            chain_id = client.call("dekube_chainInfo")["chain_id"]
            nonce = client.call("dekube_getNonce", "0x" + key.address.hex())["pending_nonce"]
            due = time.monotonic()
            while not enough.wait(max(due - time.monotonic(), 0)):
                raws = [
                    sign_transaction(
                        key, chain_id=chain_id, nonce=nonce + number, kind=TRANSFER_KIND,
                        payload=transfer_payload(_address(nonce + number), 1), gas_limit=TRANSFER_GAS,
                        max_fee_per_gas=10**12,
                    )
                    for number in range(PAYMENTS_OF_BATCH)
                ]  # fmt: skip
                for answer in client.batch([Call("dekube_sendTransaction", ["0x" + raw.hex()]) for raw in raws]):
                    if isinstance(answer, DekubeError):
                        raise answer
                nonce += len(raws)
                due += PAYMENTS_OF_BATCH / PAYMENTS_PER_S

    with ThreadPoolExecutor(1) as threads:
        paying = threads.submit(pay)
        try:
            yield
        finally:
            enough.set()
        paying.result()


@contextmanager
def _network(folder: str, base_port: int) -> Iterator[None]:
    """Run ``dekube testnet up`` until four validators make blocks."""
    command = [
        sys.executable, "-m", "node", "testnet", "up", "--dir", f"{folder}/net", "--base-port", str(base_port),
        "--validators", "4", "--workers", "0", "--no-task",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, preexec_fn=partial(die_with_parent, os.getpid())
    )
    try:
        for member in (1, 2):
            _wait_height(f"http://127.0.0.1:{base_port + 3 * member + 1}", WARM_HEIGHT)
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_height(url: str, height: int) -> None:
    deadline = time.monotonic() + NETWORK_PATIENCE_S
    while True:
        try:
            with Client(url) as client:
                client.call("dekube_head", min_height=height)
            return
        except DekubeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    try:
        trio.run(_serve, Path(sys.argv[1]), int(sys.argv[2]))
    except KeyboardInterrupt:
        pass
