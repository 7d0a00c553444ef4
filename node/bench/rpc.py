"""``dekube bench rpc``: what a question over HTTP costs the gateway and the node, while blocks are made.

Three processes: a node that holds a store, makes a block a second and serves its socket; a real gateway; and this
one, which asks. CPU figures are processor time of node and gateway together (the node's share beside it), so they
hold on a busy machine; latencies are wall time and do not.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from node.chain import Chain
from node.mempool import Mempool, MempoolOptions
from rpc.backend import Backend
from rpc.dispatch import DispatchOptions
from rpc.doors import DoorOptions
from rpc.gateway import GatewayOptions, gateway_command, options_to_json
from rpc.store_view import StoreView, describe
from rpc.view import Peer, Submitted, Sync
from state.primitives.blocks import encode_block
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from state.primitives.votes import VoteKey
from state.primitives.vrf import vrf_key_of
from state.store import Store
from state.transition.epochs import epoch_of
from state.transition.evidence import EvidenceRefused
from state.transition.runtime import Runtime
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload
from state.view.accounts import Account, load_account

__all__ = ["run"]

CHAIN_ID: Final = 31_337
SENDERS: Final = 64
CONNECTIONS: Final = 16
NATIVE: Final = b'{"jsonrpc":"2.0","id":1,"method":"dekube_getBalance","params":["0x%s"]}'
ETHEREUM: Final = b'{"jsonrpc":"2.0","id":1,"method":"eth_getBalance","params":["0x%s","latest"]}'
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_VALIDATOR: Final = SecretKey(b"\x77" * 32)


def run(*, accounts: int = 5_000, seconds: float = 3.0, rate_per_s: int = 2_000) -> dict[str, float]:
    """Measure and return the figures."""
    with tempfile.TemporaryDirectory(prefix="dekube-bench-") as directory:
        path = Path(directory)
        with _processes(path, accounts) as (node, gateway, port):
            load = _Load(port, node.pid, gateway.pid, accounts)
            figures: dict[str, float] = {}
            load.flood(load.absent, min(seconds, 1.0))  # imports and connections warm
            cold = load.flood(load.absent, seconds)
            figures["cpu_us_per_get_balance_cold"] = cold[0]
            load.flood(lambda: load.batch(100), min(seconds, 1.0))  # wallets ask for the same accounts again
            single = load.flood(load.balance, seconds)
            figures["cpu_us_per_get_balance"] = single[0]
            figures["node_cpu_us_per_get_balance"] = single[1]
            figures["get_balance_per_s"] = single[2]
            batch = load.flood(lambda: load.batch(100), seconds)
            figures["cpu_us_per_batch_of_100"] = batch[0]
            figures["node_cpu_us_per_batch_of_100"] = batch[1]
            wallets = load.flood(lambda: load.balance(ETHEREUM), seconds)
            figures["cpu_us_per_eth_get_balance"] = wallets[0]
            figures["cpu_us_per_eth_batch_of_100"] = load.flood(lambda: load.batch(100, ETHEREUM), seconds)[0]
            submit = load.flood(load.submit(), seconds)
            figures["submit_cpu_us_per_transaction"] = submit[0]
            figures["node_submit_cpu_us_per_transaction"] = submit[1]
            p50, p99 = load.paced(rate_per_s, seconds)
            figures[f"p50_ms_at_{rate_per_s}_per_s"] = p50
            figures[f"p99_ms_at_{rate_per_s}_per_s"] = p99
            figures["gateway_rss_mib"] = _rss_mib(gateway.pid)
            return figures


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
        self.pool = Mempool(MempoolOptions(sender_transactions_max=10**6), self._account)
        description = describe(
            self.runtime, address=_VALIDATOR.address, roles=(), version="bench",
            parameters={"chain": self.runtime.chain},
        )  # fmt: skip
        self.view = StoreView(self.store, self.runtime, self.pool, description, self)

    def _account(self, address: bytes) -> Account:
        return load_account(self.store, address)

    def submit(self, raw: bytes, sender: bytes) -> bytes:
        transaction = decode_transaction(raw)
        transaction.sender = sender  # our own gateway's finding; checking it again is the signature workers' work
        self.pool.add(self.runtime.check(transaction))
        return transaction.hash

    def submit_evidence(self, raw: bytes) -> Submitted:
        raise EvidenceRefused("a node of one accuses nobody")

    def submit_fork(self, certificates: list[bytes], reporter: bytes | None) -> list[Submitted]:
        raise EvidenceRefused("a node of one has no fork")

    def peers(self) -> list[Peer]:
        return []

    def sync(self) -> Sync:
        return Sync(0, self.store.tip.height, 0, 0, 0)

    async def make_blocks(self) -> None:
        while True:
            await trio.sleep(1)
            tip = self.store.tip
            view = tip.height + 1
            block, checked = self.chain.build(
                tip.block_hash, epoch=epoch_of(view, self.runtime.chain), view=view, seat=0,
                time_ms=tip.time_ms + 1_000, voters_bitmap=b"\1",
                vrf_proof=VoteKey(_VALIDATOR).prove(self.chain.vrf_input(tip.block_hash, view)),
                transactions=self.pool.take(2_000),
            )  # fmt: skip
            block_hash = block.hash
            executed = self.chain.execute(block, checked, raw=encode_block(block))
            self.chain.commit(block_hash, b"")
            self.pool.on_block(block.header.height, executed.senders)
            self.view.notify_head({block.header.height: executed.execution.changes})


async def _serve(path: Path, accounts: int) -> None:
    live = _Live(path, accounts)
    backend = Backend(live.view, path / "node.sock")
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        nursery.start_soon(live.make_blocks)
        _, port = await backend.wait_gateway()
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
    node = subprocess.Popen(
        [sys.executable, "-m", "node.bench.rpc", str(path), str(accounts)], stdout=subprocess.PIPE
    )
    gateway = subprocess.Popen(gateway_command(read_end), pass_fds=(read_end,))
    os.close(read_end)
    try:
        with os.fdopen(write_end, "w") as stream:
            stream.write(options_to_json(options))
        assert node.stdout is not None
        yield node, gateway, json.loads(node.stdout.readline())["port"]
    finally:
        for process in (gateway, node):
            process.kill()
            process.wait()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


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
            if b'"error"' in self._buffer:
                raise AssertionError(bytes(self._buffer[-300:]))
            self._buffer.clear()
            self._left = -1
            if self.done is not None and not self.done.done():
                self.done.set_result(None)

    async def ask(self, request: bytes) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(request)  # type: ignore[attr-defined]
        await self.done


class _Load:
    def __init__(self, port: int, node: int, gateway: int, accounts: int) -> None:
        self._port, self._node, self._gateway, self._accounts = port, node, gateway, accounts
        self._random = random.Random(1)
        self._nonces = [0] * SENDERS
        self._keys = [SecretKey(digest(b"bench-sender", bytes([n]))) for n in range(SENDERS)]

    def _http(self, body: bytes) -> bytes:
        return b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)

    def absent(self) -> bytes:
        """Ask for an account that nobody asked for before."""
        return self._http(self._call(self._random.randbytes(20)))

    def _call(self, address: bytes | None = None, text: bytes = NATIVE) -> bytes:
        who = (address or _address(self._random.randrange(self._accounts))).hex()
        return text % who.encode()

    def balance(self, text: bytes = NATIVE) -> bytes:
        return self._http(self._call(text=text))

    def batch(self, size: int, text: bytes = NATIVE) -> bytes:
        return self._http(b"[" + b",".join(self._call(text=text) for _ in range(size)) + b"]")

    def submit(self) -> Callable[[], bytes]:
        """Return a source of requests with transactions signed beforehand."""
        ready: list[bytes] = []
        for number in range(12_000):
            at = number % SENDERS
            raw = sign_transaction(
                self._keys[at], chain_id=CHAIN_ID, nonce=self._nonces[at], kind=TRANSFER_KIND,
                payload=transfer_payload(_address(number % self._accounts), 1), gas_limit=TRANSFER_GAS,
                max_fee_per_gas=10**12,
            )  # fmt: skip
            self._nonces[at] += 1
            text = b'{"jsonrpc":"2.0","id":1,"method":"dekube_sendTransaction","params":["0x%s"]}'
            ready.append(self._http(text % raw.hex().encode()))
        ready.reverse()
        return ready.pop

    def flood(self, source: Callable[[], bytes], seconds: float) -> tuple[float, float, float]:
        """Ask on all connections as fast as answers come; return us of CPU in all and of the node, and rate."""
        before = _cpu_s(self._node), _cpu_s(self._gateway)
        started = time.perf_counter()
        count = asyncio.run(self._flood(source, seconds))
        wall_s = time.perf_counter() - started
        node_s, gateway_s = _cpu_s(self._node) - before[0], _cpu_s(self._gateway) - before[1]
        return (node_s + gateway_s) / count * 1e6, node_s / count * 1e6, count / wall_s

    async def _flood(self, source: Callable[[], bytes], seconds: float) -> int:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        count = 0

        async def worker() -> None:
            nonlocal count
            transport, asker = await loop.create_connection(_Asker, "127.0.0.1", self._port)
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

        await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
        return count

    def paced(self, rate_per_s: int, seconds: float) -> tuple[float, float]:
        """Ask at a fixed rate whether answers come or not; return median and 99th percentile in ms."""
        latencies = sorted(asyncio.run(self._paced(rate_per_s, seconds)))
        return latencies[len(latencies) // 2] * 1e3, latencies[len(latencies) * 99 // 100] * 1e3

    async def _paced(self, rate_per_s: int, seconds: float) -> list[float]:
        loop = asyncio.get_running_loop()
        free: asyncio.Queue[_Asker] = asyncio.Queue()
        for _ in range(8 * CONNECTIONS):
            _, asker = await loop.create_connection(_Asker, "127.0.0.1", self._port)
            free.put_nowait(asker)
        latencies: list[float] = []
        waiting: set[asyncio.Task[None]] = set()

        async def ask(due: float) -> None:
            asker = await free.get()
            await asker.ask(self.balance())
            latencies.append(loop.time() - due)
            free.put_nowait(asker)

        started = loop.time()
        for number in range(int(rate_per_s * seconds)):
            due = started + number / rate_per_s
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            task = asyncio.ensure_future(ask(due))
            waiting.add(task)
            task.add_done_callback(waiting.discard)
        await asyncio.gather(*waiting)
        return latencies


if __name__ == "__main__":
    try:
        trio.run(_serve, Path(sys.argv[1]), int(sys.argv[2]))
    except KeyboardInterrupt:
        pass
