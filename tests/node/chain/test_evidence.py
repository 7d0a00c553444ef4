"""Evidence in a node: what the pool keeps, what gossip passes on and punishes, what survives a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
import trio
import trio.testing

from consensus.metrics import NoMetrics
from node.chain.block_tree import Executed
from node.chain.evidence import (
    NO_EVIDENCE,
    PENDING_MAX,
    REPEAT_S,
    EvidencePool,
    EvidenceService,
    PoolFull,
    decode_file,
    encode_file,
)
from node.chain.ledger import NodeLedger
from node.chain.mempool import MempoolOptions
from p2p.gossip.core import Verdict
from state.primitives.codec import encode
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError
from state.primitives.heads import Head
from state.primitives.votes import NOTARIZE, Equivocation
from state.store import Store
from state.store.memory import MemoryDatabase
from state.transition.evidence import (
    EVIDENCE_LIMIT_BYTES,
    Evidence,
    EvidenceKnown,
    EvidenceSignatureInvalid,
    apply_evidence,
    prove,
)
from state.transition.runtime import Runtime
from state.transition.slashing import Offence, is_tombstoned
from state.transition.staking import load_committee, save_committee
from state.view import Reader
from state.view.accounts import balance_of
from tests.node.chain.test_block_tree import GENESIS
from tests.node.chain.test_block_tree import Node as ChainNode
from tests.state.transition.chain import VALIDATORS
from tests.state.transition.faults import EPOCH_BLOCKS, EVIDENCE_EPOCHS, REPORTER, Court, evidence, vote

PEER = b"p" * 20
OWN = b"\xcc" * 20


@dataclass
class CourtLedger:
    """The state of a court as a node's ledger shows it."""

    court: Court
    height: int = 1

    @property
    def runtime(self) -> Runtime:
        return self.court.runtime

    @property
    def store(self) -> Reader:
        return self.court.state

    def head(self) -> Head:
        return Head(self.height, bytes(32), 0, bytes(32), 1, 1, 0, 0)

    def judge(self, found: Evidence) -> Offence:
        return prove(
            self.store,
            found,
            epoch_now=self.height // EPOCH_BLOCKS,
            chain=self.runtime.chain,
            genesis_hash=self.runtime.genesis_hash,
        )

    def punish(self, raws: tuple[bytes, ...]) -> Executed:
        """Make a block with ``raws`` final."""
        epoch = self.height // EPOCH_BLOCKS
        apply_evidence(self.court.state, raws, self.court.block(epoch), lambda _: None)
        return block(b"e" * 32)


def block(root: bytes) -> Executed:
    """Return what the service reads of an executed block."""
    execution = SimpleNamespace(block_receipt=None)
    return cast(Executed, SimpleNamespace(header=SimpleNamespace(evidence_root=root), execution=execution))


@dataclass
class Figures(NoMetrics):
    """Keeps the gauges."""

    gauges: dict[str, float] = field(default_factory=dict)

    def set(self, name: str, value: float, **labels: str) -> None:
        self.gauges[name] = value


@pytest.fixture
def ledger() -> CourtLedger:
    court = Court([100] * 10)
    court.seat_all(*range(EVIDENCE_EPOCHS + 3))
    return CourtLedger(court)


def raw(ledger: CourtLedger, member: int, epoch: int, **more: Any) -> bytes:
    return evidence(ledger.court, member, epoch, **more).encode()


def records() -> Store:
    """Return the records of a chain that has only begun."""
    return Store.over(MemoryDatabase(), GENESIS, dict)


def service(ledger: CourtLedger, path: Path, publish: Callable[[bytes], None] | None = None) -> EvidenceService:
    return EvidenceService(
        ledger,
        publish or (lambda _: None),
        records=records(),
        reporter=OWN,
        path=path / "evidence",
        metrics=Figures(),
    )


# The pool


def test_the_pool_keeps_one_for_each_operator_that_of_the_newest_epoch(ledger: CourtLedger) -> None:
    ledger.height = 3 * EPOCH_BLOCKS
    pool = EvidencePool(ledger.judge)
    assert pool.add(raw(ledger, 1, 1))
    assert not pool.add(raw(ledger, 1, 1)), "the same"
    assert not pool.add(raw(ledger, 1, 1, fault="E3")), "another fault of the same epoch"
    assert not pool.add(raw(ledger, 1, 0)), "older"
    newer = raw(ledger, 1, 2)
    assert pool.add(newer)
    assert pool.all() == (newer,)
    assert pool.add(raw(ledger, 2, 0))
    assert len(pool) == 2


def test_the_pool_keeps_the_fault_that_costs_the_most(ledger: CourtLedger) -> None:
    ledger.height = 3 * EPOCH_BLOCKS
    seats = list(ledger.court.committee.seats)
    seats[1] = seats[1]._replace(weight=99)
    save_committee(ledger.court.state, 2, Committee(seats))
    pool, small, large = EvidencePool(ledger.judge), raw(ledger, 1, 2), raw(ledger, 1, 1)
    assert pool.add(small) and pool.add(large)
    assert not pool.add(small), "an offender would hide behind a small fault of a newer epoch"
    assert pool.all() == (large,)
    ledger.punish((small,))
    assert not pool.refresh() and pool.all() == (large,), "it still costs more"
    ledger.punish((large,))
    assert pool.refresh() and pool.all() == ()


def test_what_proves_nothing_is_refused_and_not_kept(ledger: CourtLedger) -> None:
    pool = EvidencePool(ledger.judge)
    with pytest.raises(DecodeError):
        pool.add(b"junk")
    with pytest.raises(DecodeError):
        pool.add(bytes(EVIDENCE_LIMIT_BYTES + 1))
    with pytest.raises(EvidenceSignatureInvalid):
        pool.add(raw(ledger, 1, 0, seat=2))
    assert not len(pool)


def test_the_pool_is_bounded_and_a_newer_fault_of_a_known_operator_still_enters(ledger: CourtLedger) -> None:
    ledger.height = 3 * EPOCH_BLOCKS
    pool = EvidencePool(ledger.judge, pending_max=2)
    assert pool.add(raw(ledger, 0, 0)) and pool.add(raw(ledger, 1, 0))
    with pytest.raises(PoolFull):
        pool.add(raw(ledger, 2, 0))
    assert pool.add(raw(ledger, 1, 1))
    assert len(pool) == 2


def test_a_leader_gets_the_oldest_first_within_its_limit(ledger: CourtLedger) -> None:
    ledger.height = 4 * EPOCH_BLOCKS
    pool = EvidencePool(ledger.judge)
    raws = [raw(ledger, member, epoch) for member, epoch in ((0, 3), (1, 1), (2, 2))]
    for each in raws:
        pool.add(each)
    assert pool.take() == (raws[1], raws[2], raws[0]) == pool.all()
    assert pool.take(len(raws[1]) + len(raws[2])) == (raws[1], raws[2])
    assert pool.take(10) == ()
    assert len(pool) == 3


def test_the_pool_drops_what_is_punished_or_too_old(ledger: CourtLedger) -> None:
    ledger.height = EPOCH_BLOCKS
    pool = EvidencePool(ledger.judge)
    for member, epoch in ((0, 0), (1, 1), (2, 1)):
        pool.add(raw(ledger, member, epoch))
    assert not pool.refresh()
    ledger.punish((raw(ledger, 1, 0),))  # another fault of the same operator
    assert pool.refresh()
    with pytest.raises(EvidenceKnown):
        pool.add(raw(ledger, 1, 1))
    ledger.height = (EVIDENCE_EPOCHS + 1) * EPOCH_BLOCKS
    assert pool.refresh()
    assert pool.all() == (raw(ledger, 2, 1),)


# The service


async def test_what_is_found_is_published_once_and_names_this_node(ledger: CourtLedger, tmp_path: Path) -> None:
    published: list[bytes] = []
    found = service(ledger, tmp_path, published.append)
    seen = evidence(ledger.court, 1, 0)
    found.found(Equivocation(seen.second, seen.first))
    found.found(Equivocation(seen.first, seen.second))
    own = seen._replace(reporter=OWN).encode()
    assert published == [own] == list(found.take()) == list(found.pending)
    ledger.court.state.changes.clear()  # an empty state knows no committee: nothing to prove, nothing fails
    found.found(Equivocation(*evidence(ledger.court, 2, 5)[:2]))
    assert published == [own]


async def test_gossip_forwards_what_is_new_and_blames_for_what_proves_nothing(
    ledger: CourtLedger, tmp_path: Path
) -> None:
    node = service(ledger, tmp_path)
    good = raw(ledger, 1, 0)
    ahead, old = raw(ledger, 2, 3), raw(ledger, 2, 0)
    verdicts = [
        (good, Verdict.ACCEPT), (good, Verdict.IGNORE), (raw(ledger, 1, 0, reporter=PEER), Verdict.IGNORE),
        (b"junk", Verdict.REJECT), (raw(ledger, 2, 0, seat=3), Verdict.REJECT),
        (raw(ledger, 2, 0, seat=10), Verdict.REJECT), (ahead, Verdict.IGNORE),
    ]  # fmt: skip
    for payload, expected in verdicts:
        assert await node.validate(PEER, payload) is expected
    ledger.height = 3 * EPOCH_BLOCKS
    assert await node.validate(PEER, ahead) is Verdict.ACCEPT, "what was too early is good later"
    ledger.punish((good,))
    assert await node.validate(PEER, raw(ledger, 1, 2)) is Verdict.IGNORE, "punished already"
    ledger.height = (EVIDENCE_EPOCHS + 1) * EPOCH_BLOCKS
    assert await node.validate(PEER, old) is Verdict.IGNORE, "too old"
    assert node.pending == (good, ahead)


async def test_what_becomes_final_waits_no_longer(ledger: CourtLedger, tmp_path: Path) -> None:
    node = service(ledger, tmp_path)
    for member in (1, 2):
        await node.validate(PEER, raw(ledger, member, 0))
    node.on_commit([block(NO_EVIDENCE)])
    assert len(node.pending) == 2
    executed = ledger.punish((raw(ledger, 1, 0),))
    node.on_commit([block(NO_EVIDENCE)])
    assert len(node.pending) == 2, "not looked at without a reason"
    node.on_commit([executed])
    assert list(node.pending) == [raw(ledger, 2, 0)]
    ledger.height = (EVIDENCE_EPOCHS + 1) * EPOCH_BLOCKS
    node.on_commit([block(NO_EVIDENCE)])
    assert not node.pending


async def test_what_waits_is_gossiped_again_and_again(
    ledger: CourtLedger, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    published: list[bytes] = []
    good = raw(ledger, 1, 0)
    (tmp_path / "evidence").write_bytes(encode_file([good]))
    async with trio.open_nursery() as nursery:
        await nursery.start(service(ledger, tmp_path, published.append).run)
        await trio.sleep(2.5 * REPEAT_S)
        nursery.cancel_scope.cancel()
    assert published == [good] * 3


async def test_what_waits_survives_a_restart(ledger: CourtLedger, tmp_path: Path) -> None:
    figures, path = Figures(), tmp_path / "evidence"
    node = EvidenceService(ledger, lambda _: None, records=records(), reporter=OWN, path=path, metrics=figures)
    seen = evidence(ledger.court, 1, 0)
    own = seen._replace(reporter=OWN).encode()
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        node.found(Equivocation(*seen[:2]))
        assert figures.gauges == {"evidence_pending": 1}
        await wait_file(path, [own])
        nursery.cancel_scope.cancel()
    again = service(ledger, tmp_path)
    assert again.pending == (own,)
    async with trio.open_nursery() as nursery:
        await nursery.start(again.run)
        again.on_commit([ledger.punish((own,))])
        await wait_file(path, [])
        nursery.cancel_scope.cancel()
    assert service(ledger, tmp_path).pending == ()


async def test_what_is_found_in_the_moment_that_ends_the_node_is_kept(ledger: CourtLedger, tmp_path: Path) -> None:
    node = service(ledger, tmp_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        node.found(Equivocation(*evidence(ledger.court, 1, 0)[:2]))
        nursery.cancel_scope.cancel()  # before the writer had its turn
    assert service(ledger, tmp_path).pending == node.pending != ()


async def test_from_what_one_node_saw_to_the_same_punishment_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One finds it, another leads: real chains, real headers, the same roots, and nothing waits afterwards."""
    nodes = [ChainNode(tmp_path / name) for name in ("a", "b")]
    try:
        ledgers = [NodeLedger(node.store, node.chain, node.runtime, MempoolOptions()) for node in nodes]
        heard: list[bytes] = []
        finder, leader = (
            EvidenceService(
                ledger, heard.append, records=ledger.store, reporter=OWN, path=tmp_path / name, metrics=NoMetrics()
            )
            for ledger, name in zip(ledgers, ("e", "f"), strict=True)
        )
        committee = load_committee(nodes[0].store, 0)
        assert committee is not None
        key = next(key for key in VALIDATORS if key.address == committee.seats[0].address)
        votes = [
            vote(key, 0, NOTARIZE, name, epoch=0, genesis_hash=nodes[0].runtime.genesis_hash)
            for name in (b"y", b"x")
        ]
        finder.found(Equivocation(*votes))
        assert await leader.validate(PEER, heard[0]) is Verdict.ACCEPT
        block, _ = nodes[1].choose(nodes[1].tip_hash, [], evidence=leader.take())
        assert block.evidence == tuple(heard)
        told = structlog.testing.CapturingLogger()
        monkeypatch.setattr("node.chain.evidence._log", told)
        for node, ledger, service_ in zip(nodes, ledgers, (finder, leader), strict=True):
            executed = node.receive(block)
            # A child of a block that punishes cannot punish again, though the pool still has the proof.
            child, _ = node.choose(executed.block_hash, [], evidence=service_.take())
            assert child.evidence == ()
            node.chain.commit(executed.block_hash, b"certificate")
            ledger.on_commit([executed])
            service_.on_commit([executed])
            assert service_.pending == ()
            assert is_tombstoned(node.store, key.address)
            assert balance_of(node.store, OWN) > 0
        assert nodes[0].store.tip.state_root == nodes[1].store.tip.state_root
        assert [call.args[0] for call in told.calls].count(
            "an operator is excluded for ever: its fault is in a final block"
        ) == 2
    finally:
        for node in nodes:
            node.store.close()


async def wait_file(path: Path, content: list[bytes]) -> None:
    with trio.fail_after(120):
        while kept(path) != content:  # noqa: ASYNC110 - a file tells nobody that it has changed
            await trio.sleep(0.005)


def kept(path: Path) -> list[bytes] | None:
    return decode_file(path.read_bytes()) if path.exists() else None


@pytest.mark.parametrize("data", [b"", b"junk", encode([1]), encode([b""] * (PENDING_MAX + 1)), bytes(2**20)])
async def test_a_damaged_file_costs_nothing_but_what_it_kept(
    ledger: CourtLedger, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "evidence").write_bytes(data)
    node = service(ledger, tmp_path)
    assert node.pending == ()
    assert await node.validate(PEER, raw(ledger, 1, 0)) is Verdict.ACCEPT


async def test_of_a_file_only_what_still_holds_is_taken(ledger: CourtLedger, tmp_path: Path) -> None:
    good = raw(ledger, 1, 0)
    punished = raw(ledger, 2, 0)
    ledger.punish((punished,))
    (tmp_path / "evidence").write_bytes(encode_file([punished, b"junk", good, raw(ledger, 3, 0, seat=4)]))
    assert service(ledger, tmp_path).pending == (good,)


async def test_a_disk_that_refuses_ends_nothing(ledger: CourtLedger, tmp_path: Path) -> None:
    node = service(ledger, tmp_path / "gone")
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        assert await node.validate(PEER, raw(ledger, 1, 0)) is Verdict.ACCEPT
        await trio.testing.wait_all_tasks_blocked()
        assert await node.validate(PEER, raw(ledger, 2, 0, reporter=REPORTER)) is Verdict.ACCEPT
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(node.take()) == 2
