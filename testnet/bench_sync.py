"""``dekube bench sync``: how fast a node without a database catches up with a growing chain.

First a chain of ``blocks`` empty blocks in one epoch is made with the votes of four validators. Three of them
continue it, as processes of this machine. These nodes catch up in turns, each time without a database:

- ``plain``: a node without a vote key; - ``seated``: the fourth validator, with its vote guard and journal; -
``repaired``: the same after its database was damaged and ``dekube db repair`` has moved it aside.

Blocks come from peers over the real network. Every certificate is verified, and each block is executed and
written. The measured time is from the first block to the last one that existed at the beginning, without the start
of the process.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import plyvel
import trio

from consensus.guard import JOURNAL_BLOCK, JOURNAL_CERTIFICATE, Guard, journal_record
from consensus.guard_log import VoteDirectory
from consensus.replica import COMPACT_BYTES
from consensus.votes import Certificate
from consensus.wire import encode_certificate
from node.chain.block_tree import Chain
from node.chain.runtime import make_runtime
from node.cli.output import counted
from node.home.create import create_home
from node.home.paths import Home
from node.process.control import ask_node
from state.primitives.blocks import encode_block
from state.primitives.committee import Committee
from state.primitives.errors import DekubeError
from state.primitives.genesis import ChainParameters, Genesis
from state.primitives.votes import FINALIZE, NOTARIZE, Candidate, Vote, VoteKey, vote_digest
from state.store import Store
from testnet.cluster import PLAN_FILE, SCRYPT_N_TESTNET, Cluster, lay_out
from testnet.plan import Plan

__all__ = ["CatchUpFailed", "lay_out_chain", "run"]

SEATS: Final = 4
SPARE_BLOCKS: Final = 3_600
"""Blocks by which the epoch is longer than the gap, because the chain grows during the measurement."""
UNBONDING_MS_PER_BLOCK: Final = ChainParameters().unbonding_ms // ChainParameters().epoch_blocks
"""A longer epoch needs a longer unbonding time."""
BLOCK_MS: Final = 1_000
YOUNG_MS: Final = 30_000
"""Age of the newest block when the network starts."""
LOOK_S: Final = 0.1
PATIENCE_S: Final = 900.0
WAYS: Final = ("plain", "seated", "repaired")
_SEATED, _PLAIN = f"validator-{SEATS - 1}", f"validator-{SEATS}"
_BAD_RECORD: Final = (b"n0", b"\1" + bytes(576))


class CatchUpFailed(DekubeError):
    """The node ended, or did not catch up in time."""

    code = "catch_up_failed"


def run(*, blocks: int = 3_600, turns: int = 3, base_port: int = 28_500) -> dict[str, float]:
    """Measure each variant ``turns`` times, in turns, and return the medians.

    ``seated_ratio`` and ``repaired_ratio`` are medians of their time against the plain node of the same turn.
    """
    with tempfile.TemporaryDirectory(prefix="dekube-sync-") as name:
        root = Path(name) / "network"
        plan = lay_out_chain(root, blocks, base_port)
        return trio.run(_measure, root, plan, blocks, turns)


# The chain


def lay_out_chain(root: Path, blocks: int, base_port: int) -> Plan:
    """Create all homes, and copy the chain to those that serve it."""
    epoch_blocks = blocks + SPARE_BLOCKS
    parameters = {
        "chain.epoch_blocks": epoch_blocks,
        "chain.unbonding_ms": UNBONDING_MS_PER_BLOCK * epoch_blocks,
    }
    numbers = {"validators": SEATS + 1, "founders": SEATS, "workers": 0, "seed": 1, "base_port": base_port}
    begun_ms = time.time_ns() // 1_000_000 - blocks * BLOCK_MS - YOUNG_MS
    root.mkdir(parents=True)
    (root / PLAN_FILE).write_text(json.dumps({**numbers, "time_ms": begun_ms, "parameters": parameters}))
    plan = lay_out(root, validators=SEATS + 1, workers=0, seed=1, base_port=base_port, founders=SEATS)
    _make_plain(root, plan)
    keys = {member.name: VoteKey(member.vote) for member in plan.members if member.vote is not None}
    made = _make_chain(root / "chain", plan.genesis, blocks, list(keys.values())[:SEATS])
    genesis_hash = make_runtime(plan.genesis).genesis_hash
    for name in list(keys)[:SEATS]:
        home = Home(root / name)
        guard = Guard(genesis_hash, keys[name].vote_key)
        with closing(VoteDirectory(home.guard)) as directory:
            if name == _SEATED:
                for vote in made.votes(keys[name].vote_key):
                    guard.record(vote)
                directory.journal.replace(made.journal())
            else:
                guard.raise_floor(0, blocks)
                shutil.copytree(root / "chain", home.chain, dirs_exist_ok=True)
            directory.guard.replace(guard.image())
    shutil.rmtree(root / "chain")
    return plan


def _make_plain(root: Path, plan: Plan) -> None:
    """Write the last home again, without a vote key."""
    member = next(member for member in plan.members if member.name == _PLAIN)
    assert member.options is not None
    shutil.rmtree(root / _PLAIN)
    create_home(
        root / _PLAIN, genesis=plan.genesis, options=replace(member.options, roles=()), account=member.account,
        vote=None, passphrase=plan.passphrase, scrypt_n=SCRYPT_N_TESTNET,
    )  # fmt: skip


class _RecordedVotes:
    """The votes of a chain's validators."""

    def __init__(self, committee: Committee) -> None:
        self._committee = committee
        self._records: list[bytes] = []
        self._votes: list[list[Vote]] = []

    def add(self, block: bytes, notarized: list[Vote], finalized: list[Vote]) -> Certificate:
        """Add the votes on a block; return its FINALIZE certificate."""
        self._votes += [notarized, finalized]
        certificates = [Certificate.of(self._committee, list(votes)) for votes in (notarized, finalized)]
        self._records.append(journal_record(JOURNAL_BLOCK, block))
        self._records += [journal_record(JOURNAL_CERTIFICATE, encode_certificate(each)) for each in certificates]
        return certificates[1]

    def votes(self, vote_key: bytes) -> Iterator[Vote]:
        """Return all votes of a key."""
        seat = [seat.vote_key for seat in self._committee.seats].index(vote_key)
        return (vote for votes in self._votes for vote in votes if vote.seat == seat)

    def journal(self) -> bytes:
        """Return the newest votes, as many as a journal keeps."""
        size, kept = 0, len(self._records)
        while kept and size + len(self._records[kept - 1]) <= COMPACT_BYTES:
            kept -= 1
            size += len(self._records[kept])
        return b"".join(self._records[kept:])


def _make_chain(path: Path, genesis: Genesis, blocks: int, keys: list[VoteKey]) -> _RecordedVotes:
    """Write a database with a chain in which all of ``keys`` have voted for every block."""
    runtime = make_runtime(genesis)
    with Store.open(path, genesis, runtime.genesis_changes) as store:
        chain = Chain(store, runtime)
        info = chain.epoch_info(0)
        assert info is not None, "a chain begins with its first epoch"
        committee = info.committee
        by_seat = {key.vote_key: key for key in keys}
        ordered = [by_seat[seat.vote_key] for seat in committee.seats]
        everybody = ((1 << committee.size) - 1).to_bytes((committee.size + 7) // 8, "little")
        made = _RecordedVotes(committee)
        for view in range(1, blocks + 1):
            parent_hash, leader = store.tip.block_hash, committee.leader(view)
            block, transactions = chain.build(
                parent_hash, epoch=0, view=view, seat=leader, time_ms=genesis.time_ms + view * BLOCK_MS,
                voters_bitmap=everybody if view > 2 else b"",
                vrf_proof=ordered[leader].prove(chain.vrf_input(parent_hash, view)), transactions=(),
            )  # fmt: skip
            raw = encode_block(block)
            candidate = Candidate(0, view, view - 1, block.hash)
            sign = _signer(runtime.genesis_hash, ordered, candidate)
            certificate = made.add(raw, sign(NOTARIZE), sign(FINALIZE))
            chain.execute(block, transactions, raw=raw)
            chain.commit(block.hash, encode_certificate(certificate))
    return made


def _signer(genesis_hash: bytes, keys: list[VoteKey], candidate: Candidate) -> Callable[[int], list[Vote]]:
    def sign(kind: int) -> list[Vote]:
        digest = vote_digest(genesis_hash, kind, candidate)
        return [Vote(kind, *candidate, seat, key.sign_vote(digest)) for seat, key in enumerate(keys)]

    return sign


# Catching up


async def _measure(root: Path, plan: Plan, blocks: int, turns: int) -> dict[str, float]:
    cluster = Cluster(
        root, plan, report=lambda line: print(line, file=sys.stderr), absent={_SEATED, _PLAIN}
    )  # fmt: skip
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    async with trio.open_nursery() as nursery:
        await nursery.start(cluster.run)
        await _wait_height(cluster, "validator-0", blocks + 1)
        for turn in range(turns):
            for way in (*WAYS[turn % len(WAYS) :], *WAYS[: turn % len(WAYS)]):
                found[way].append(await _catch_up(cluster, way, blocks))
        cluster.down()
        nursery.cancel_scope.cancel()
    figures = {f"{way}_blocks_per_s": statistics.median(found[way]) for way in WAYS}
    for way in WAYS[1:]:
        figures[f"{way}_ratio"] = statistics.median(
            one / plain for one, plain in zip(found[way], found["plain"], strict=True)
        )
    return {**figures, "blocks": float(blocks), "turns": float(turns)}


async def _catch_up(cluster: Cluster, way: str, blocks: int) -> float:
    """Return how many blocks per second a node without a database processed."""
    name = _PLAIN if way == "plain" else _SEATED
    home = cluster.home(name)
    if way == "repaired" and home.chain.exists():
        await trio.to_thread.run_sync(_damage_and_repair, home)
    else:
        shutil.rmtree(home.chain, ignore_errors=True)
    await cluster.restart(name)
    first = await _wait_height(cluster, name, 1)
    last = await _wait_height(cluster, name, blocks)
    await cluster.stop(name)
    if last[1] <= first[1]:
        raise CatchUpFailed(f"{name}: {counted(blocks, 'block')} cannot be measured: more are needed")
    return (last[1] - first[1]) / (last[0] - first[0])


def _damage_and_repair(home: Home) -> None:
    with closing(plyvel.DB(str(home.chain))) as database:
        database.put(*_BAD_RECORD)
    command = [sys.executable, "-m", "node", "db", "repair", "--no-sync", "--json", "--home", str(home.root)]
    said: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    if said["moved_to"] is None:
        raise CatchUpFailed(f"{home.root}: the damage was not found")
    shutil.rmtree(said["moved_to"])


async def _wait_height(cluster: Cluster, name: str, height: int) -> tuple[float, int]:
    """Return when a node had reached a height, and the height that was read."""
    control = cluster.home(name).control
    with trio.move_on_after(PATIENCE_S):
        while True:
            state = next(member.state for member in cluster.status() if member.name == name)
            if state == "failed":
                break
            try:
                status = await trio.to_thread.run_sync(lambda: ask_node(control, "status", timeout_s=10))
                if status["height"] >= height:
                    return trio.current_time(), int(status["height"])
            except DekubeError:
                pass  # it is about to start, or busy
            await trio.sleep(LOOK_S)
    raise CatchUpFailed(f"{name} is not at height {height} after {PATIENCE_S:.0f} s")
