"""The clients of ``dekube bench network``: they send signed transfers through the gateways, as wallets do.

They run in a separate process, so that their processor time does not count for the validators. Each connection has
its own senders, so nonces stay in order. It also has its own loopback address, because gateways limit each
address.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

from node.bench.transfers import secret_of
from state.primitives.hashing import digest
from state.primitives.transactions import decode_transaction, sign_transaction
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload

__all__ = ["BATCH", "LoadPlan", "prepare"]

BATCH: Final = 100
"""Transactions in one HTTP request."""
FEE_CAP: Final = 10**12
RECEIVERS: Final = 10_000
PAUSE_S: Final = 0.02
"""Pause between two polls for the next block, and before refused transactions are sent again. It limits the
precision of the finality."""
DRAIN_S: Final = 10.0
"""How long to wait for transactions after the end, or after the last one that was seen."""
DONE: Final = ("already_known", "nonce_too_low")
"""Refusals of transactions that arrived before."""
REQUEST_TIMEOUT_S: Final = 60.0


class LoadPlan(NamedTuple):
    """Parameters of the load process, in ``load.json``.

    The files ``connection-N`` beside it have the transactions.
    """

    gateways: list[tuple[str, int]]
    connections: int
    seconds: float
    rate: int
    """Maximum submissions per second."""
    window: int
    """Maximum submissions that are not final yet."""


def prepare(folder: Path, *, chain_id: int, connections: int, senders: int, count: int, processes: int) -> None:
    """Sign ``count`` transfers into ``folder``, one file for each connection, from ``senders`` accounts each."""
    each = -(-count // connections)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        jobs = [(chain_id, connection, senders, each) for connection in range(connections)]
        for connection, lines in enumerate(pool.map(_sign_connection, jobs)):
            (folder / f"connection-{connection}").write_text("\n".join(lines))


def _sign_connection(job: tuple[int, int, int, int]) -> list[str]:
    chain_id, connection, senders, count = job
    secrets = [secret_of(connection * senders + n) for n in range(senders)]
    lines = []
    for n in range(count):
        receiver = digest(b"bench-receiver", (n * 7919 % RECEIVERS).to_bytes(4, "big"))[:20]
        raw = sign_transaction(
            secrets[n % senders], chain_id=chain_id, nonce=n // senders, kind=TRANSFER_KIND,
            payload=transfer_payload(receiver, 1 + n), gas_limit=TRANSFER_GAS, max_fee_per_gas=FEE_CAP,
        )  # fmt: skip
        lines.append(f"{decode_transaction(raw).hash.hex()} 0x{raw.hex()}")
    return lines


class _Connection:
    """A persistent HTTP connection with its own source address."""

    def __init__(self, gateway: tuple[str, int], number: int) -> None:
        source = (f"127.0.{1 + number // 250}.{1 + number % 250}", 0)
        self._http = http.client.HTTPConnection(*gateway, timeout=REQUEST_TIMEOUT_S, source_address=source)

    def ask(self, body: bytes) -> Any:
        """Return the answer; None if there was none."""
        try:
            self._http.request("POST", "/", body, {"Content-Type": "application/json"})
            return json.loads(self._http.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            self._http.close()  # the next request opens it again
            return None


class _Load:
    def __init__(self, folder: Path, plan: LoadPlan) -> None:
        self._plan = plan
        self._queues = [
            deque(tuple(line.split()) for line in (folder / f"connection-{connection}").read_text().splitlines())
            for connection in range(plan.connections)
        ]
        self._lock = threading.Lock()
        self._sent_at: dict[str, float] = {}
        self._sent = 0
        self._seen = 0
        self.begun = self.end = 0.0
        self.refused = 0
        self.unanswered = 0
        self.finalities: list[tuple[float, float]] = []
        """Of each transaction that became final: when, and the time since its submission."""
        self.blocks: list[tuple[float, int]] = []
        self.height = 0
        self._sending = plan.connections

    def run(self) -> None:
        """Send for the planned time, then wait for the submissions under way."""
        watcher = _Connection(self._plan.gateways[0], 249)
        self.height = _ask(watcher, "dekube_head", [])["at"]["height"]
        self.begun = time.monotonic()
        self.end = self.begun + self._plan.seconds
        threads = [
            threading.Thread(target=self._send, args=(connection,)) for connection in range(self._plan.connections)
        ]
        for thread in threads:
            thread.start()
        self._watch(watcher)
        for thread in threads:
            thread.join()

    def _room(self, wanted: int) -> int:
        """Reserve the right to send up to ``wanted`` now; return the number granted."""
        with self._lock:
            due = int((time.monotonic() - self.begun) * self._plan.rate) - self._sent
            room = min(wanted, due, self._plan.window - (self._sent - self._seen))
            if room < min(wanted, BATCH // 4):
                return 0
            self._sent += room
            return room

    def _send(self, number: int) -> None:
        plan, queue = self._plan, self._queues[number]
        connection = _Connection(plan.gateways[number % len(plan.gateways)], number)
        try:
            while queue and time.monotonic() < self.end:
                room = self._room(min(BATCH, len(queue)))
                if not room:
                    time.sleep(PAUSE_S)
                    continue
                batch = [queue.popleft() for _ in range(room)]
                back = self._post(connection, batch)
                if back:
                    queue.extendleft(reversed(back))
                    with self._lock:
                        self._sent -= len(back)
                    time.sleep(PAUSE_S)
        finally:
            with self._lock:
                self._sending -= 1

    def _post(self, connection: _Connection, batch: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Submit a batch; return the refused submissions that may be sent again."""
        calls = (
            f'{{"jsonrpc":"2.0","id":{i},"method":"dekube_sendTransaction","params":["{raw}"]}}'
            for i, (_, raw) in enumerate(batch)
        )
        body = f"[{','.join(calls)}]".encode()
        now = time.monotonic()
        with self._lock:
            for name, _ in batch:
                self._sent_at.setdefault(name, now)
        answers = connection.ask(body)
        if not isinstance(answers, list):
            # Not even one of them may have arrived; those that did are then refused as known.
            self.unanswered += 1
            refused = set(range(len(batch)))
        else:
            refused = {
                answer["id"] for answer in answers
                if "error" in answer and answer["error"]["data"]["reason"] not in DONE
            }  # fmt: skip
        back = [item for i, item in enumerate(batch) if i in refused]
        with self._lock:
            self.refused += len(back)
            for name, _ in back:
                self._sent_at.pop(name, None)
        return back

    def _watch(self, connection: _Connection) -> None:
        """Record each block's transactions as soon as a client can see it."""
        progress = self.end
        while True:
            found = _ask(connection, "dekube_getBlock", [self.height + 1])
            now = time.monotonic()
            block = found and found["block"]
            if block:
                self.height += 1
                with self._lock:
                    mine = [self._sent_at.pop(name[2:], None) for name in block["transactions"]]
                    times = [now - at for at in mine if at is not None]
                    self._seen += len(times)
                self.finalities += [(now, spent) for spent in times]
                self.blocks.append((now, len(block["transactions"])))
                progress = now if times else progress
                continue
            with self._lock:
                is_done = not self._sending and not self._sent_at
            if (is_done and now > self.end) or now > max(self.end, progress) + DRAIN_S:
                return
            time.sleep(PAUSE_S)


def _ask(connection: _Connection, method: str, params: list[Any]) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    answer = connection.ask(body)
    return answer.get("result") if isinstance(answer, dict) else None


def _figures(load: _Load, plan: LoadPlan) -> Iterator[tuple[str, float]]:
    inside = [spent for at, spent in load.finalities if at <= load.end]
    latencies = sorted(spent for _, spent in load.finalities) or [0.0]
    blocks = [size for at, size in load.blocks if at <= load.end]
    yield "transactions_per_s", len(inside) / plan.seconds
    yield "finality_ms_p50", latencies[len(latencies) // 2] * 1000
    yield "finality_ms_p99", latencies[len(latencies) * 99 // 100] * 1000
    yield "blocks_per_s", len(blocks) / plan.seconds
    yield "transactions_per_block", sum(blocks) / max(1, len(blocks))
    yield "transactions_final", len(load.finalities)
    yield "transactions_lost", len(load._sent_at)
    yield "refusals", load.refused
    yield "requests_unanswered", load.unanswered
    yield "load_cpu_s", time.process_time()


def _main(folder: Path) -> None:
    plan = LoadPlan(*json.loads((folder / "load.json").read_text()))
    load = _Load(folder, LoadPlan([(host, port) for host, port in plan.gateways], *plan[1:]))
    print("ready", flush=True)
    sys.stdin.readline()
    load.run()
    print(json.dumps({"figures": dict(_figures(load, plan)), "height": load.height}), flush=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
