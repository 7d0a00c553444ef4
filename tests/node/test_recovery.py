"""No signature is recovered twice, whether gossip or a block brings a transaction first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.chain.block_tree import Chain
from node.chain.ledger import NodeLedger
from node.chain.mempool import MempoolOptions
from node.chain.tx_gossip import TransactionGossip, encode_batch
from node.process.signature_pool import SignatureVerifier, VerifierOptions
from node.telemetry.cpu_accounting import CpuAccounting
from p2p.gossip.core import Verdict
from p2p.service import GossipItem
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from state.primitives.vrf import vrf_key_of
from state.store import Store
from state.transition.runtime import Runtime
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload

PEER = b"p" * 20
ANN, BEN, LEADER = (SecretKey(bytes([n]) * 32) for n in (1, 2, 3))
GENESIS = Genesis(
    7, "gossip", 0, True, tuple((key.address, 10**24) for key in (ANN, BEN)),
    (GenesisValidator(LEADER.address, LEADER.vote_key, vrf_key_of(LEADER).public, 10**21),),
)  # fmt: skip


class CountingVerifier(SignatureVerifier):
    """Counts the signatures that were recovered."""

    recovered = 0

    async def recover(self, batch: bytes) -> bytes:
        self.recovered += len(batch) // 97
        return await super().recover(batch)


class World:
    def __init__(self, store: Store, runtime: Runtime, verifier: CountingVerifier) -> None:
        self.ledger = NodeLedger(store, Chain(store, runtime), runtime, MempoolOptions())
        self.verifier = verifier
        self.runtime = runtime
        self.stages = CpuAccounting()
        self.gossip = TransactionGossip(self.ledger, verifier, lambda _payload: None, self.stages)

    async def bring(self, *payloads: bytes) -> list[Verdict]:
        return await self.gossip.validate([GossipItem(PEER, payload) for payload in payloads])

    @property
    def outgoing(self) -> list[bytes]:
        return list(self.gossip._outgoing)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    runtime = Runtime(GENESIS)
    with (
        Store.open(tmp_path / "db", GENESIS, runtime.genesis_changes) as store,
        CountingVerifier(VerifierOptions()) as verifier,
    ):
        yield World(store, runtime, verifier)


def transfer(key: SecretKey, nonce: int, *, fee: int = 10**12, chain_id: int = 7) -> bytes:
    return sign_transaction(
        key, chain_id=chain_id, nonce=nonce, kind=TRANSFER_KIND, payload=transfer_payload(BEN.address, 1),
        gas_limit=TRANSFER_GAS, max_fee_per_gas=fee,
    )  # fmt: skip


async def test_what_two_batches_bring_at_once_is_recovered_and_admitted_once(world: World) -> None:
    shared, own = transfer(ANN, 0), transfer(BEN, 0)
    verdicts = await world.bring(encode_batch([shared]), encode_batch([shared, own]))
    assert verdicts == [Verdict.ACCEPT, Verdict.IGNORE]
    assert world.verifier.recovered == 2
    assert len(world.ledger.mempool) == 2
    assert world.outgoing == [own]  # the new part of the second batch, in a batch of our own
    assert await world.bring(encode_batch([shared])) == [Verdict.IGNORE]
    assert world.verifier.recovered == 2


async def test_what_a_block_brought_first_is_not_recovered_again(world: World) -> None:
    raw = transfer(ANN, 0)
    transaction = decode_transaction(raw)
    transaction.recover_sender()
    world.ledger.remember([world.runtime.check(transaction)])
    assert await world.bring(encode_batch([raw])) == [Verdict.ACCEPT]  # the block may still fail: it waits
    assert world.verifier.recovered == 0
    assert world.ledger.mempool.find(raw) is not None


async def test_more_than_one_turn_of_batches_keeps_the_order_of_verdicts(world: World) -> None:
    many = [encode_batch([transfer(ANN, nonce)]) if nonce % 3 else b"\x01" * 70_000 for nonce in range(9)]
    verdicts = await world.bring(*many)
    assert [verdict is Verdict.REJECT for verdict in verdicts] == [not nonce % 3 for nonce in range(9)]


def test_what_is_remembered_of_blocks_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.chain.ledger.RECENT_MAX", 3)
    raws = [transfer(ANN, nonce) for nonce in range(5)]
    for raw in raws:
        transaction = decode_transaction(raw)
        transaction.recover_sender()
        world.ledger.remember([world.runtime.check(transaction)])
    assert [world.ledger.find(raw) is not None for raw in raws] == [False, False, True, True, True]
