"""``dekube bench rpc``: the cost of HTTP requests for the gateway and the node while blocks are made.

Three processes: a node, its gateway (``node.bench.lone_node``), and this one with the clients
(``node.bench.clients``). CPU figures are processor time of node and gateway together, with the node's share in a
second figure, so they hold on a busy machine. Latencies are wall time and do not. The block time under load is
that of a whole test network, idle and loaded in turns.

The cost of a transaction is measured twice. ``accept_cpu_*`` is from its bytes to its place in the pool: the
gateway's decoding, digest, recovery of the sender and address, the frame to the node, and the node's decoding,
checks and admission. ``submit_cpu_*`` adds HTTP, JSON and hex. The ratio to the cost of one recovery in the same
run is better comparable on a machine with varying speed. All of these are measured on one processor.
"""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import structlog

from node.bench.clients import CONNECTIONS, NATIVE, LoadGenerator, RequestCost
from node.bench.lone_node import LoneNode, account_of, lone_node, one_processor
from node.home.keys import load_key, read_passphrase
from node.process.children import die_with_parent
from rpc.client import Call, Client
from state.primitives.errors import DekubeError
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey, recover_address
from state.primitives.transactions import sign_transaction
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload

__all__ = ["recovery_cpu_us", "run"]

BUSY_CONNECTIONS: Final = 64
SUBMISSIONS_PER_S: Final = 4_000
"""More than a loaded machine needs."""
RECOVERIES: Final = 500
PAYER: Final = "faucet"
"""Nothing else may spend from its account during the measurement; a member registers itself later."""
PAYMENTS_PER_S: Final = 100
PAYMENTS_OF_BATCH: Final = 10
PHASES: Final = 3
"""How often the network is idle and loaded in turns."""
WARM_HEIGHT: Final = 3
WARM_S: Final = 60.0
"""Enough time to request every account once."""
NETWORK_PATIENCE_S: Final = 90.0


def run(
    *, accounts: int = 5_000, seconds: float = 3.0, rate_per_s: int = 2_000, websockets: int = 10_000,
    network_seconds: int = 36, base_port: int = 28_650, only_submit: int = 0,
) -> dict[str, float]:  # fmt: skip
    """Measure and return the figures.

    ``cpu_us_*`` are processor time of gateway and node together, without block production. ``batch`` is 100 calls
    of eth_getBalance in one request. ``websockets`` 0 and ``network_seconds`` 0 leave these parts out.
    ``only_submit`` 1 measures only the submissions.
    """
    # Nothing of what the client's side of the socket tells.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="dekube-bench-") as directory,
        lone_node(Path(directory), accounts) as lone,
    ):
        load = LoadGenerator(lone.port, accounts, lone.spent_s)
        load.flood(load.absent, min(seconds, 1.0))  # imports and connections warm
        if not only_submit:
            figures |= _reads(load, seconds)
        figures |= _submissions(lone, load, seconds)
        if only_submit:
            return figures
        load.wait_empty_pool()
        paced = load.paced(rate_per_s, seconds)
        figures[f"p50_ms_at_{rate_per_s}_per_s"] = paced.p50_ms
        figures[f"p99_ms_at_{rate_per_s}_per_s"] = paced.p99_ms
        figures[f"p99_ms_asked_late_at_{rate_per_s}_per_s"] = paced.p99_late_ms
        figures["generator_cpu_us_per_request"] = paced.generator_us
        gateway = lone.gateway.pid
        figures["gateway_rss_mib"] = _rss_mib(gateway)
        if websockets:
            idle_mib = load.idle_websockets(websockets, lambda: _rss_mib(gateway))
            figures["idle_websockets_mib"] = idle_mib
            figures["idle_websocket_kib"] = (idle_mib - figures["gateway_rss_mib"]) * 1024 / websockets
        figures["gateway_peak_mib"] = _peak_mib(gateway)
    if network_seconds:
        figures |= _flooded_network(network_seconds, base_port, accounts)
    return figures


def _reads(load: LoadGenerator, seconds: float) -> dict[str, float]:
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


def _submissions(lone: LoneNode, load: LoadGenerator, seconds: float) -> dict[str, float]:
    count = int(seconds * SUBMISSIONS_PER_S)
    recoveries: list[float] = []

    def each(measure: Callable[[], RequestCost]) -> RequestCost:
        load.wait_empty_pool()  # the same for each, and all of them together are more than it holds
        recoveries.append(recovery_cpu_us())
        return measure()

    def accept(*, is_ethereum: bool = False) -> RequestCost:
        take = load.signed(count, is_ethereum=is_ethereum)
        return each(lambda: load.accept(lone.socket, take, seconds, is_ethereum=is_ethereum))

    def flood(size: int = 1, connections: int = CONNECTIONS, *, is_ethereum: bool = False) -> RequestCost:
        source = load.submit(count, size, is_ethereum=is_ethereum)
        return each(lambda: load.flood(source, seconds, connections))

    with one_processor(lone.node.pid, lone.gateway.pid):
        plain, ethereum, one = accept(), accept(is_ethereum=True), flood()
        one_ethereum, many, busy = flood(is_ethereum=True), flood(100), flood(1, BUSY_CONNECTIONS)
    recovery_us = statistics.median(recoveries)
    return {
        "accept_cpu_us_per_transaction": plain.us,
        "accept_recoveries_per_transaction": plain.us / recovery_us,
        "node_accept_cpu_us_per_transaction": plain.node_us,
        "accepted_per_s": plain.per_s,
        "accept_cpu_us_per_ethereum_transaction": ethereum.us,
        "node_accept_cpu_us_per_ethereum_transaction": ethereum.node_us,
        "submit_cpu_us_per_transaction": one.us,
        "node_submit_cpu_us_per_transaction": one.node_us,
        "submit_cpu_us_per_ethereum_transaction": one_ethereum.us,
        "submit_cpu_us_per_transaction_in_batches": many.us / 100,
        f"submit_cpu_us_per_transaction_of_{BUSY_CONNECTIONS}_connections": busy.us,
        "submissions_per_s": busy.per_s,
        "submit_recovery_cpu_us": recovery_us,
    }


def recovery_cpu_us() -> float:
    """Return the processor time of one sender recovery now; each submission has one."""
    key = SecretKey(digest(b"bench-sender", b"recovery"))
    digests = [digest(b"bench-recovered", number.to_bytes(4, "big")) for number in range(RECOVERIES)]
    signed = [(each, key.sign(each)) for each in digests]
    started_s = time.thread_time()
    for each, signature in signed:
        recover_address(each, signature)
    return (time.thread_time() - started_s) / RECOVERIES * 1e6


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _peak_mib(pid: int) -> float:
    """Return the peak memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 2**10


# A network whose gateway is flooded


def _flooded_network(seconds: int, base_port: int, accounts: int) -> dict[str, float]:
    """Return how much longer blocks take while readers saturate a validator's gateway, in turns.

    Payments arrive all the time at another validator's gateway.
    """
    flooded, beside = (base_port + 3 * member + 1 for member in (1, 2))
    url = f"http://127.0.0.1:{beside}"
    with (
        tempfile.TemporaryDirectory(prefix="dekube-bench-") as directory,
        _network(directory, base_port),
        _payments(url, Path(directory, "net", PAYER)),
    ):
        load = LoadGenerator(flooded, accounts)
        block_ms: dict[bool, list[float]] = {False: [], True: []}
        paid: dict[bool, list[float]] = {False: [], True: []}
        count = 0
        with Client(url) as client:
            interval_ms = int(client.call("dekube_genesis")["parameters"]["chain.block_interval_ms_min"])
            for is_flood in (False, True) * PHASES:
                first = client.call("dekube_head")["at"]["height"]
                if is_flood:
                    count += load.ask_all(load.mixed, seconds / PHASES / 2)
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
    """Submit payments at an even rate from the account of a member without load."""
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
                        payload=transfer_payload(account_of(nonce + number), 1), gas_limit=TRANSFER_GAS,
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
