"""``dekube bench replay``: how fast a validator processes blocks of signed transfers, from bytes to a synced
commit.

First a leader's chain is made, which is not measured. Then a fresh process, with the genesis state on disk and the
blocks as bytes, processes each block as a validator does. It decodes the block, recovers every sender in worker
processes, checks and executes the body, updates the trie, and writes one synced batch. The signatures of the next
blocks are checked while a block is executed. TMPDIR selects the disk.
"""

from __future__ import annotations

import gc
import json
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

from node.bench.transfers import make_transfer_chain, secret_of
from node.chain.block_tree import Chain, decode_body
from node.process.signature_pool import SignatureVerifier, VerifierOptions, default_workers
from state.primitives.blocks import Block, decode_block, encode_block, header_hash
from state.primitives.genesis import Genesis
from state.primitives.keys import recover_addresses
from state.primitives.votes import VoteKey
from state.store import Store
from state.transition.epochs import epoch_of
from state.transition.runtime import Checked, Execution, Runtime

__all__ = ["run"]

AHEAD_BLOCKS: Final = 2
"""Blocks that are decoded, with their signatures being checked, ahead of the executed block."""
_CERTIFICATE: Final = bytes(400)  # of the size of a committee's; the store does not read it
_GROWTH_ACCOUNTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Plan:
    """Parameters of the measured process beside the files."""

    warm_up: int
    workers: int


def run(
    *, blocks: int = 50, accounts: int = 1_000_000, transactions: int = 2_000, workers: int = -1, warm_up: int = 10
) -> dict[str, float]:
    """Measure and return the figures; ``workers`` -1 means one for each core.

    ``transactions_per_s`` counts the ``blocks`` after ``warm_up`` blocks, which fill the caches, by wall clock.
    The stages are wall time of the node's main thread per transaction; with ``verify_wait_us`` they sum to the
    whole. ``verify_us`` is the processor time of one signature in a worker. ``peak_rss_mib`` is that of the
    measured process without its workers.
    """
    workers = default_workers() if workers < 0 else workers
    figures = _measure(blocks, accounts, transactions, workers, warm_up)
    small = _measure(blocks, min(accounts, _GROWTH_ACCOUNTS), transactions, workers, warm_up)
    figures["transactions_per_s_10k_accounts"] = small["transactions_per_s"]
    return figures


def _measure(blocks: int, accounts: int, transactions: int, workers: int, warm_up: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="dekube-replay-") as name:
        folder = Path(name)
        _prepare(folder, blocks + warm_up, accounts, transactions, max(workers, 1))
        (folder / "plan.json").write_text(json.dumps(asdict(_Plan(warm_up, workers))))
        done = subprocess.run(
            [sys.executable, "-m", "node.bench.replay", name], stdout=subprocess.PIPE, text=True, check=True
        )
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return figures


def _prepare(folder: Path, blocks: int, accounts: int, transactions: int, processes: int) -> None:
    """Write a genesis, a database of its state, and a leader's encoded blocks to ``folder``."""
    load = make_transfer_chain(accounts=accounts, blocks=blocks, transactions=transactions, processes=processes)
    (folder / "genesis").write_bytes(pickle.dumps(load.genesis))
    runtime = Runtime(load.genesis)
    Store.open(folder / "follower", load.genesis, runtime.genesis_changes).close()
    shutil.copytree(folder / "follower", folder / "leader")
    raws: list[bytes] = []
    leader = VoteKey(secret_of(accounts))
    with (
        Store.open(folder / "leader", load.genesis, runtime.genesis_changes) as store,
        SignatureVerifier(VerifierOptions(workers=processes)) as verifier,
    ):
        chain = Chain(store, runtime)
        for number, body in enumerate(load.bodies, start=1):
            decoded = decode_body(runtime, body)
            checked = decoded.resolve(verifier.recover_sync(decoded.batch))
            parent_hash = store.tip.block_hash
            block, chosen = chain.build(
                parent_hash, epoch=epoch_of(number, runtime.chain), view=number, seat=0, time_ms=number * 1_000,
                voters_bitmap=b"\x01", vrf_proof=leader.prove(chain.vrf_input(parent_hash, number)),
                transactions=checked,
            )  # fmt: skip
            if len(chosen) != len(body):
                raise AssertionError(f"a block took {len(chosen)} of {len(body)} transfers")
            raws.append(encode_block(block))
            executed = chain.execute(block, chosen, raw=raws[-1])
            chain.commit(executed.block_hash, _CERTIFICATE)
        (folder / "root").write_bytes(store.tip.state_root)
    shutil.rmtree(folder / "leader")
    (folder / "blocks").write_bytes(pickle.dumps(raws))


class _TimedRuntime(Runtime):
    """The runtime, with the summed time of its executions."""

    execute_s = 0.0

    def execute(self, *arguments: Any) -> Execution:
        """Execute as Runtime does."""
        start = perf_counter()
        execution = super().execute(*arguments)
        self.execute_s += perf_counter() - start
        return execution


class _Replay:
    """The measured loop."""

    def __init__(self, genesis: Genesis, store: Store, verifier: SignatureVerifier) -> None:
        self.runtime = _TimedRuntime(genesis)
        self.chain = Chain(store, self.runtime)
        self.verifier = verifier
        self.transactions = 0
        self.seconds = dict.fromkeys(("decode", "verify_wait", "check", "apply", "commit"), 0.0)

    def replay(self, raws: Sequence[bytes]) -> None:
        """Process ``raws`` from bytes to disk."""
        waiting: deque[tuple[Block, bytes, Any, Any]] = deque()
        coming = iter(raws)
        while True:
            while len(waiting) <= AHEAD_BLOCKS and (raw := next(coming, None)) is not None:
                start = perf_counter()
                block = decode_block(raw)
                body = decode_body(self.runtime, block.transactions)
                self.seconds["decode"] += perf_counter() - start
                waiting.append((block, raw, body, self.verifier.submit(body.batch)))
            if not waiting:
                return
            self._apply(*waiting.popleft())

    def _apply(self, block: Block, raw: bytes, body: Any, recovery: Any) -> None:
        seconds = self.seconds
        t0 = perf_counter()
        addresses = recovery.result()
        t1 = perf_counter()
        checked: list[Checked] = body.resolve(addresses)
        self.chain.check(block, checked, now_ms=None)
        t2 = perf_counter()
        block_hash = header_hash(block.header)
        self.chain.execute(block, checked, block_hash=block_hash, raw=raw)
        t3 = perf_counter()
        self.chain.commit(block_hash, _CERTIFICATE)
        t4 = perf_counter()
        self.transactions += len(checked)
        for stage, duration in zip(
            ("verify_wait", "check", "apply", "commit"), (t1 - t0, t2 - t1, t3 - t2, t4 - t3), strict=True
        ):
            seconds[stage] += duration


def _main(folder: Path) -> dict[str, float]:
    plan = _Plan(**json.loads((folder / "plan.json").read_text()))
    genesis: Genesis = pickle.loads((folder / "genesis").read_bytes())  # noqa: S301 - written by the parent process
    raws: list[bytes] = pickle.loads((folder / "blocks").read_bytes())  # noqa: S301
    with (
        Store.open(folder / "follower", genesis, dict) as store,
        SignatureVerifier(VerifierOptions(workers=plan.workers)) as verifier,
    ):
        replay = _Replay(genesis, store, verifier)
        # As the node does: what lives long is not looked at again, and nothing in the loop makes cycles.
        gc.collect()
        gc.freeze()
        gc.disable()
        replay.replay(raws[: plan.warm_up])
        replay.transactions, replay.runtime.execute_s = 0, 0.0
        replay.seconds = dict.fromkeys(replay.seconds, 0.0)
        cpu, wall = process_time(), perf_counter()
        replay.replay(raws[plan.warm_up :])
        wall, cpu = perf_counter() - wall, process_time() - cpu
        if store.tip.state_root != (folder / "root").read_bytes():
            raise AssertionError("the follower's state root is not the leader's")
        count = max(replay.transactions, 1)
        verify_us = _signature_us(genesis, raws[-1])
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    microseconds = {stage: seconds / count * 1e6 for stage, seconds in replay.seconds.items()}
    execute_us = replay.runtime.execute_s / count * 1e6
    return {
        "transactions_per_s": count / wall,
        "decode_us": microseconds["decode"],
        "verify_us": verify_us,
        "verify_wait_us": microseconds["verify_wait"],
        "check_us": microseconds["check"],
        "execute_us": execute_us,
        "trie_us": microseconds["apply"] - execute_us,
        "commit_us": microseconds["commit"],
        "main_process_cpu_us": cpu / count * 1e6,
        "peak_rss_mib": peak_mib,
    }


def _signature_us(genesis: Genesis, raw: bytes) -> float:
    batch = decode_body(Runtime(genesis), decode_block(raw).transactions).batch[: 97 * 1_000]
    start = process_time()
    recover_addresses(batch)
    return (process_time() - start) / max(len(batch) // 97, 1) * 1e6


if __name__ == "__main__":
    print(json.dumps(_main(Path(sys.argv[1]))))
