"""Gossip of transactions: forwarding, dropping, penalties for senders, and repetition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.chain.tx_gossip import (
    BATCH_BYTES_MAX,
    BATCH_LIMIT_BYTES,
    BATCH_MAX,
    TransactionGossip,
    decode_batch,
    encode_batch,
)
from node.process.signature_pool import SignatureVerifier, VerifierOptions
from node.telemetry.cpu_accounting import CpuAccounting
from p2p.gossip.core import Verdict
from p2p.service import GossipItem
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from state.primitives.transactions import TRANSACTION_LIMIT_BYTES, sign_transaction
from state.transition.staking import STAKING_ADDRESS
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload
from tests.ethereum import sign_dynamic, sign_legacy
from tests.node.world import COIN, World
from tests.p2p.helpers import account

FEE = 10**12
PEER = b"p" * 20
TO = b"t" * 20
UNKNOWN = sign_transaction(
    account(9), chain_id=7, nonce=0, kind=2**16 - 1, payload=[], gas_limit=TRANSFER_GAS, max_fee_per_gas=FEE
)
"""Of a kind that no version knows."""


@dataclass
class Node:
    """A ledger with its gossip; ``published`` is what left."""

    world: World
    gossip: TransactionGossip
    is_outdated: bool = False
    published: list[bytes] = field(default_factory=list)

    async def hear(self, *payloads: bytes) -> list[Verdict]:
        return await self.gossip.validate([GossipItem(PEER, payload) for payload in payloads])

    async def passed_on(self) -> list[bytes]:
        """Let what is queued leave; return the transactions of all that left."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.gossip.run)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        return [raw for payload in self.published for raw in decode_batch(payload)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    world = World(tmp_path)
    with SignatureVerifier(VerifierOptions()) as verifier:
        made = Node(
            world,
            TransactionGossip(
                world.ledger, verifier, lambda payload: made.published.append(payload), CpuAccounting(),
                is_outdated=lambda: made.is_outdated,
            ),
        )  # fmt: skip
        world.ledger.on_admitted = made.gossip.enqueue
        yield made
    world.store.close()


def transfer(number: int, nonce: int = 0, *, chain_id: int = 7, gas: int = TRANSFER_GAS, fee: int = FEE) -> bytes:
    return sign_transaction(
        account(number), chain_id=chain_id, nonce=nonce, kind=TRANSFER_KIND, payload=transfer_payload(TO, COIN),
        gas_limit=gas, max_fee_per_gas=fee,
    )  # fmt: skip


def called(number: int, to: bytes = TO, data: bytes = b"", *, is_legacy: bool = False) -> bytes:
    """What a wallet of Ethereum sends."""
    if is_legacy:
        return sign_legacy(account(number), chain_id=7, nonce=0, to=to, value=COIN, data=data, price=FEE)
    return sign_dynamic(account(number), chain_id=7, nonce=0, to=to, value=COIN, data=data, fee=FEE)


def forged(number: int) -> bytes:
    """A transaction from whose signature nobody can be recovered."""
    raw = transfer(number)
    return raw[:-65] + b"\xff" * 64 + b"\0"


async def test_transactions_of_wallets_travel_like_any_other(node: Node, autojump_clock: object) -> None:
    batch = encode_batch([called(0), called(1, is_legacy=True), transfer(2), called(3, data=b"note")])
    assert await node.hear(batch) == [Verdict.ACCEPT]
    assert len(node.world.ledger.mempool) == 4
    assert await node.hear(encode_batch([called(4, STAKING_ADDRESS, b"\1\2\3\4")])) == [Verdict.REJECT]
    assert len(node.world.ledger.mempool) == 4


async def test_a_good_new_batch_goes_on_as_it_came(node: Node, autojump_clock: object) -> None:
    batch = encode_batch([transfer(n) for n in range(4)])
    assert await node.hear(batch) == [Verdict.ACCEPT]
    assert len(node.world.ledger.mempool) == 4
    assert await node.hear(batch) == [Verdict.IGNORE], "nothing in it is new"
    assert await node.passed_on() == [], "the gossip itself forwards what was accepted"


async def test_of_a_batch_partly_known_the_new_part_goes_on_alone(node: Node, autojump_clock: object) -> None:
    assert await node.hear(encode_batch([transfer(0)])) == [Verdict.ACCEPT]
    poor = sign_transaction(
        account(50), chain_id=7, nonce=0, kind=TRANSFER_KIND, payload=transfer_payload(b"t" * 20, COIN),
        gas_limit=TRANSFER_GAS, max_fee_per_gas=FEE,
    )  # fmt: skip
    assert await node.hear(encode_batch([poor, transfer(1), transfer(2)])) == [Verdict.IGNORE]
    assert await node.passed_on() == [transfer(1), transfer(2)]


@pytest.mark.parametrize(
    "bad", [transfer(9, chain_id=8), forged(9), transfer(9, gas=1)], ids=["chain", "signature", "gas"]
)
async def test_what_any_peer_could_have_seen_costs_the_sender_and_the_rest_is_kept(
    node: Node, bad: bytes, autojump_clock: object
) -> None:
    assert await node.hear(encode_batch([transfer(0), bad, transfer(1)])) == [Verdict.REJECT]
    assert len(node.world.ledger.mempool) == 2
    assert await node.passed_on() == [transfer(0), transfer(1)]


@pytest.mark.parametrize(
    ("bad", "is_fault"),
    [
        (transfer(9, chain_id=8), True), (forged(9), True), (transfer(9, gas=1), False), (b"\x70junk", False),
        (UNKNOWN, False),
        (called(9, STAKING_ADDRESS, b"\1\2\3\4"), False),
    ],
    ids=["chain", "signature", "gas", "form", "kind", "call"],
)  # fmt: skip
async def test_peers_are_not_blamed_for_what_a_version_that_comes_may_allow(
    node: Node, bad: bytes, is_fault: bool, autojump_clock: object
) -> None:
    assert await node.hear(encode_batch([transfer(0), bad])) == [Verdict.REJECT]
    node.is_outdated = True
    assert await node.hear(encode_batch([transfer(1), bad])) == [Verdict.REJECT if is_fault else Verdict.IGNORE]
    assert await node.hear(b"\xff") == [Verdict.REJECT]


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\xff", encode([]), encode(b"x"), encode([1]), encode([b""]), encode([b"\x02junk"]),
        encode([transfer(0), b"junk"]), encode([transfer(n % 8, n) for n in range(BATCH_MAX + 1)]),
        encode([bytes(TRANSACTION_LIMIT_BYTES)] * 3),
    ],
)  # fmt: skip
async def test_what_is_no_batch_is_rejected_and_nothing_of_it_kept(node: Node, payload: bytes) -> None:
    assert await node.hear(payload) == [Verdict.REJECT]
    assert len(node.world.ledger.mempool) == 0


async def test_our_own_state_is_not_the_peers_fault(node: Node) -> None:
    """A nonce used already, a fee too low, an account without money: honest peers may see these otherwise."""
    assert await node.hear(encode_batch([transfer(0)])) == [Verdict.ACCEPT]
    node.world.mint()
    old, cheap = transfer(0, fee=2 * FEE), transfer(1, fee=1)
    assert await node.hear(encode_batch([old]), encode_batch([cheap])) == [Verdict.IGNORE, Verdict.IGNORE]


async def test_two_batches_at_once_with_the_same_transaction_admit_it_once(node: Node) -> None:
    shared, other = transfer(0), transfer(1)
    verdicts = await node.hear(
        encode_batch([shared]), encode_batch([shared, other]), encode_batch([shared, other])
    )
    assert verdicts[0] is Verdict.ACCEPT and Verdict.REJECT not in verdicts
    assert len(node.world.ledger.mempool) == 2


async def test_a_hostile_batch_beside_good_ones_harms_only_itself(node: Node) -> None:
    batches = [encode_batch([transfer(n)]) for n in range(5)]
    batches.insert(2, b"\xff" * 100)
    verdicts = await node.hear(*batches)
    assert [verdict is Verdict.ACCEPT for verdict in verdicts] == [True, True, False, True, True, True]


async def test_own_transactions_leave_in_batches_within_both_limits(node: Node, autojump_clock: object) -> None:
    raws = [b"%06d" % n for n in range(2 * BATCH_MAX + 10)] + [bytes(30_000) + bytes([n]) for n in range(5)]
    raws.append(bytes(TRANSACTION_LIMIT_BYTES))
    for raw in raws:
        node.gossip.enqueue(raw)
    assert await node.passed_on() == raws
    for payload in node.published:
        batch = decode_batch(payload)
        assert len(payload) <= BATCH_LIMIT_BYTES
        assert len(batch) == 1 or (len(batch) <= BATCH_MAX and sum(map(len, batch)) <= BATCH_BYTES_MAX)
    assert len(node.published) < 10, "they travel together"


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=BATCH_MAX))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_batches_return_as_they_were(raws: list[bytes]) -> None:
    assert decode_batch(encode_batch(raws)) == raws


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_a_decode_error(data: bytes) -> None:
    try:
        assert encode_batch(decode_batch(data)) == data
    except DecodeError:
        pass
