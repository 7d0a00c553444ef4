"""The tree of blocks over a real store: build, check, execute, commit, and the same roots everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.chain.block_tree import BlockUnknown, Chain, Executed, StateDiverged, decode_body
from node.chain.mempool import Mempool, MempoolOptions
from state.primitives.blocks import Block, decode_block, encode_block, evidence_root
from state.primitives.committee import Seat
from state.primitives.errors import InvalidBlock
from state.primitives.genesis import Genesis
from state.primitives.keys import SecretKey, recover_addresses
from state.primitives.transactions import Transaction, decode_transaction
from state.primitives.votes import VoteKey
from state.store import Store
from state.transition.epochs import load_tally
from state.transition.rules import Rule
from state.transition.runtime import Checked, Runtime
from state.transition.staking import STAKE_KIND, UNSTAKE_KIND, stake_payload
from state.transition.transfer import TRANSFER
from state.trie import verify_proof
from state.view.accounts import account_key, balance_of, load_account, nonce_of
from tests.state.transition.chain import COIN, START_MS, USERS, VALIDATORS, genesis, signed, transfer

ALICE, BOB, CAROL, _ = USERS
GENESIS = genesis()
SIGNERS = {key.address: VoteKey(key) for key in VALIDATORS}


class Node:
    """A chain with its store, and short words for what tests do with it."""

    def __init__(self, path: Path, *, versions: tuple[int, ...] = (1,), founded: Genesis = GENESIS) -> None:
        self.runtime = Runtime(founded, check_invariants=True, versions=versions)
        self.store = Store.open(path, founded, self.runtime.genesis_changes)
        self.chain = Chain(self.store, self.runtime)

    def checked(self, *transactions: Transaction, known: SecretKey | None = None) -> list[Checked]:
        for transaction in transactions if known else ():
            transaction.sender = known.address if known else b""
        return [self.runtime.check(transaction) for transaction in transactions]

    def build(self, parent: bytes, *transactions: Transaction, view: int | None = None) -> Block:
        """Build as the leader of ``view``, by default the next one."""
        return self.choose(parent, self.checked(*transactions), view)[0]

    def choose(
        self, parent: bytes, transactions: list[Checked], view: int | None = None, evidence: tuple[bytes, ...] = ()
    ) -> tuple[Block, list[Checked]]:
        state = self.chain.state_after(parent)
        epoch = self.runtime.epoch_at(state, self.height_of(parent) + 1)
        tally = load_tally(state, epoch.epoch)
        assert tally is not None
        view = view or tally.view + 1
        seat = epoch.committee.leader(view)
        return self.chain.build(
            parent, epoch=epoch.epoch, view=view, seat=seat, time_ms=START_MS, voters_bitmap=b"",
            vrf_proof=SIGNERS[epoch.committee.seats[seat].address].prove(self.chain.vrf_input(parent, view)),
            transactions=transactions, evidence=evidence,
        )  # fmt: skip

    def height_of(self, block_hash: bytes) -> int:
        executed = self.chain.get(block_hash)
        return executed.header.height if executed else self.chain.tip.height

    def receive(self, block: Block, *, now_ms: int | None = None) -> Executed:
        """Do what a voter does with bytes from a peer."""
        raw = encode_block(block)
        block = decode_block(raw)
        body = decode_body(self.runtime, block.transactions)
        transactions = body.resolve(recover_addresses(body.batch))
        self.chain.check(block, transactions, now_ms=now_ms)
        return self.chain.execute(block, transactions, raw=raw)

    def grow(self, parent: bytes, *transactions: Transaction, view: int | None = None) -> Executed:
        block = self.build(parent, *transactions, view=view)
        assert len(block.transactions) == len(transactions)
        return self.receive(block)

    @property
    def tip_hash(self) -> bytes:
        return self.chain.tip.block_hash


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "a")
    yield made
    made.store.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "b")
    yield made
    made.store.close()


def test_the_header_carries_the_roots_after_the_parent(node: Node) -> None:
    root = node.chain.tip.state_root
    first = node.grow(node.tip_hash, transfer(ALICE, 0, BOB.address, COIN))
    assert (first.header.state_root, first.header.receipt_root, first.header.height) == (root, bytes(32), 1)
    second = node.grow(first.block_hash, transfer(ALICE, 1, BOB.address, COIN))
    assert (second.header.state_root, second.header.receipt_root) == (first.state_root, first.receipt_root)
    assert second.header.base_fee == first.execution.next_base_fee < first.header.base_fee
    assert second.header.time_ms == first.header.time_ms + node.chain.runtime.chain.block_interval_ms_min
    assert node.chain.tip.height == 0
    assert nonce_of(node.store, ALICE.address) == 0
    assert nonce_of(node.chain.state_after(second.block_hash), ALICE.address) == 2


def test_commit_writes_the_branch_and_drops_its_rivals(node: Node) -> None:
    a1 = node.grow(node.tip_hash, transfer(ALICE, 0, BOB.address, COIN))
    b1 = node.grow(node.tip_hash, transfer(CAROL, 0, BOB.address, COIN), view=2)
    a2 = node.grow(a1.block_hash, transfer(ALICE, 1, CAROL.address, 2 * COIN))
    a3 = node.grow(a2.block_hash)
    b2 = node.grow(b1.block_hash, view=3)
    c2 = node.grow(a1.block_hash, view=4)
    assert node.chain.next_nonces(a3.block_hash) == {ALICE.address: 2}
    assert node.chain.next_nonces(b2.block_hash) == {CAROL.address: 1}
    assert [e.block_hash for e in node.chain.commit(a2.block_hash, b"final")] == [a1.block_hash, a2.block_hash]
    tip = node.chain.tip
    assert (tip.height, tip.block_hash, tip.state_root) == (2, a2.block_hash, a2.state_root)
    assert (tip.receipt_root, tip.next_base_fee) == (a2.receipt_root, a2.execution.next_base_fee)
    assert (node.store.certificate(1), node.store.certificate(2)) == (b"final", b"final")
    assert node.store.block(2) == a2.raw
    assert node.store.receipts(2) == (a2.execution.receipts, None)
    assert [node.chain.is_executed(e.block_hash) for e in (a1, a2, a3, b1, b2, c2)] == [
        False, True, True, False, False, False,
    ]  # fmt: skip
    for gone in (b1, b2, c2, a1):
        with pytest.raises(BlockUnknown):
            node.chain.commit(gone.block_hash, b"final")
        with pytest.raises(BlockUnknown):
            node.build(gone.block_hash)
    assert node.chain.commit(a2.block_hash, b"final") == []
    # What was built on the branch reads on from the store.
    a4 = node.grow(a3.block_hash, transfer(ALICE, 2, BOB.address, 1))
    node.chain.commit(a4.block_hash, b"final")
    assert node.store.verify() > 0
    place = node.store.transaction_position(a4.transactions[0].transaction.hash)
    assert place == (4, 0)
    assert [tuple(p) for p in node.store.history(BOB.address, limit=9)] == [(4, 0), (1, 0)]
    assert [tuple(p) for p in node.store.history(ALICE.address, limit=9)] == [(4, 0), (2, 0), (1, 0)]


def test_what_is_final_is_proven_by_the_next_header(node: Node) -> None:
    first = node.grow(node.tip_hash, transfer(ALICE, 0, BOB.address, COIN))
    second = node.grow(first.block_hash)
    node.chain.commit(second.block_hash, b"final")
    proof = node.store.prove(account_key(BOB.address), 1)
    assert proof.value is not None
    assert verify_proof(second.header.state_root, account_key(BOB.address), proof.value, proof.proof)


def test_drop_forgets_a_branch(node: Node) -> None:
    a1 = node.grow(node.tip_hash)
    a2 = node.grow(a1.block_hash)
    b1 = node.grow(node.tip_hash, view=5)
    node.chain.drop([a1.block_hash, b"unknown"])
    assert [node.chain.get(e.block_hash) for e in (a1, a2, b1)] == [None, None, b1]


def test_executing_twice_is_executing_once(node: Node) -> None:
    first = node.grow(node.tip_hash, transfer(ALICE, 0, BOB.address, COIN))
    block = decode_block(first.raw)
    assert node.chain.execute(block, first.transactions) is first


HEADER_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"version": 2}, "invalid_block"),
    ({"genesis_hash": b"g" * 32}, "invalid_block"),
    ({"height": 2}, "invalid_block"),
    ({"proposer_seat": 2}, "invalid_block"),
    ({"parent_hash": b"p" * 32}, "block_unknown"),
    ({"time_ms": START_MS}, "block_time_wrong"),
    ({"time_ms": START_MS + 999}, "block_time_wrong"),
    ({"time_ms": START_MS + 2_002}, "block_time_wrong"),
    ({"tx_root": b"t" * 32}, "invalid_block"),
    ({"tx_count": 2}, "invalid_block"),
    ({"tx_bytes": 1}, "invalid_block"),
    ({"evidence_root": b"e" * 32}, "invalid_block"),
    ({"receipt_root": b"r" * 32}, "state_diverged"),
    ({"state_root": b"s" * 32}, "state_diverged"),
    ({"vrf_proof": b"v" * 80}, "invalid_block"),
    ({"vrf_proof": b""}, "invalid_block"),
    ({"next_committee_hash": b"n" * 32}, "invalid_block"),
    ({"committee_hash": b"n" * 32}, "invalid_block"),
    ({"epoch": 1}, "invalid_block"),
    ({"view": 2}, "invalid_block"),
    ({"view": 0}, "invalid_block"),
    ({"signal": 0}, "invalid_block"),
    ({"voters_bitmap": b"\4"}, "invalid_block"),
    ({"voters_bitmap": b"\3\0"}, "invalid_block"),
    ({"base_fee": 1}, "invalid_block"),
]


@pytest.mark.parametrize(("fields", "code"), HEADER_FAULTS)
def test_a_wrong_header_is_refused(node: Node, fields: dict[str, Any], code: str) -> None:
    good = node.build(node.tip_hash, transfer(ALICE, 0, BOB.address, COIN))
    bad = Block(good.header._replace(**fields), good.transactions)
    with pytest.raises(InvalidBlock) as error:
        node.receive(bad, now_ms=START_MS + 1)
    assert error.value.code == code
    node.receive(good, now_ms=START_MS + 1)


def test_the_clock_binds_proposals_alone(node: Node) -> None:
    block = node.build(node.tip_hash)
    with pytest.raises(InvalidBlock):
        node.receive(block, now_ms=START_MS + 60_000)
    node.receive(block, now_ms=None)


def test_what_proves_nothing_is_no_evidence(node: Node) -> None:
    good = node.build(node.tip_hash)
    bad = Block(good.header._replace(evidence_root=evidence_root((b"e",))), (), (b"e",))
    with pytest.raises(InvalidBlock, match="evidence"):
        node.receive(bad)


def forged(node: Node, make: Callable[[], tuple[bytes, ...]]) -> Block:
    """Return a block whose header is right and whose body is ``make()``."""
    from state.primitives.blocks import transactions_root

    raws = make()
    header = node.build(node.tip_hash).header
    return Block(
        header._replace(tx_root=transactions_root(raws), tx_count=len(raws), tx_bytes=sum(map(len, raws))), raws
    )


def test_a_wrong_body_is_refused_with_the_reason(node: Node) -> None:
    good = transfer(ALICE, 0, BOB.address, COIN)
    unsigned = good.raw[:-65] + bytes(65)
    for raws, reason in (
        ((b"nonsense",), "not_supported"),
        ((good.raw, unsigned), "signature_invalid"),
        ((good.raw, good.raw), "nonce_too_low"),
        ((transfer(ALICE, 1, BOB.address, COIN).raw,), "nonce_too_high"),
        ((transfer(VALIDATORS[0], 0, BOB.address, 1).raw,), "insufficient_funds"),
        ((transfer(ALICE, 0, BOB.address, 1, fee=1_000).raw,), "fee_cap_too_low"),
        ((signed(ALICE, 0, 0x99, []).raw,), "unknown_kind"),
    ):
        with pytest.raises(InvalidBlock) as error:
            node.receive(forged(node, lambda raws=raws: raws))  # type: ignore[misc]
        assert (error.value.code, getattr(error.value, "reason", None)) == ("block_body_invalid", reason)
    assert node.chain.tip.height == 0


def test_a_body_above_the_limits_is_not_even_decoded(node: Node) -> None:
    for raws in ((b"\0",) * 7_001, (bytes(2**20), b"\0")):
        with pytest.raises(InvalidBlock) as error:
            decode_body(node.runtime, raws)
        assert error.value.code == "invalid_block"


def test_payloads_of_a_body_are_read_as_far_as_the_gas_of_a_block_goes(node: Node) -> None:
    kind, read = 0x20, list[Any]()

    def decode(payload: list[Any]) -> Any:
        read.append(payload)
        return payload

    gas = node.runtime.chain.block_gas_limit // 3
    dear: Rule[Any] = replace(TRANSFER, kind=kind, gas=gas, decode=decode, moves=lambda _: 0)
    node.runtime.rules[kind] = dear
    raws = [signed(ALICE, nonce, kind, [b""], gas_limit=dear.gas).raw for nonce in range(40)]
    with pytest.raises(InvalidBlock, match="weights"):
        decode_body(node.runtime, raws).resolve(ALICE.address * len(raws))
    assert len(read) == 3


def test_known_transactions_are_not_recovered_again(node: Node) -> None:
    pool = Mempool(MempoolOptions(), lambda address: load_account(node.store, address))
    known, unknown = transfer(ALICE, 0, BOB.address, 1), transfer(BOB, 0, ALICE.address, 1)
    pool.add(node.runtime.check(known))
    body = decode_body(node.runtime, (unknown.raw, known.raw), pool.find)
    assert body.batch == unknown.digest + unknown.signature
    first, second = body.resolve(BOB.address)
    assert (first.transaction.sender, second) == (BOB.address, pool.find(known.raw))


def test_divergence_is_found_before_anything_is_executed(node: Node) -> None:
    first = node.grow(node.tip_hash)
    block = node.build(first.block_hash)
    with pytest.raises(StateDiverged):
        node.chain.execute(Block(block.header._replace(state_root=b"s" * 32), ()), [])


def test_a_leader_builds_what_fits_from_the_pool(node: Node) -> None:
    pool = Mempool(MempoolOptions(), lambda address: load_account(node.store, address))
    mine = [transfer(ALICE, nonce, BOB.address, 1, tip=nonce) for nonce in range(3)]
    rich = [transfer(BOB, nonce, CAROL.address, 4_000 * COIN, tip=9) for nonce in range(2)]
    for checked in node.checked(*mine, *rich):
        pool.add(checked)
    first = node.grow(node.tip_hash, *rich)
    taken = pool.take(100, next_nonces=node.chain.next_nonces(first.block_hash))
    assert [checked.transaction for checked in taken] == mine
    block, chosen = node.choose(first.block_hash, [*taken, *node.checked(*rich)])
    assert (block.transactions, [c.transaction for c in chosen]) == (tuple(t.raw for t in mine), mine)
    second = node.receive(block)
    for executed in node.chain.commit(second.block_hash, b"final"):
        assert pool.on_block(executed.header.height, executed.senders) == []
    assert len(pool) == 0


PLAN = st.lists(
    st.tuples(
        st.integers(0, 3),  # which of the executed blocks is the parent, counted from the newest
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([1, COIN])), max_size=4),
        st.booleans(),  # commit it
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=PLAN)
def test_replaying_the_final_chain_on_a_fresh_store_gives_the_same_roots(
    plan: list[tuple[int, list[tuple[int, int, int]], bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("replay")
    node, fresh = Node(directory / "a"), Node(directory / "b")
    try:
        held: list[Executed] = []
        for view, (back, moves, is_final) in enumerate(plan, 1):
            held = [executed for executed in held if node.chain.get(executed.block_hash)]
            parent = held[-1 - back].block_hash if back < len(held) else node.tip_hash
            state = node.chain.state_after(parent)
            nonces = {user: nonce_of(state, user.address) for user in USERS}
            transactions = []
            for sender, to, value in moves:
                user = USERS[sender]
                transactions.append(transfer(user, nonces[user], USERS[to].address, value))
                nonces[user] += 1
            held.append(node.grow(parent, *transactions, view=view))
            if is_final:
                node.chain.commit(held[-1].block_hash, b"final")
        assert node.store.verify()
        for height in range(1, node.chain.tip.height + 1):
            raw = node.store.block(height)
            assert raw is not None
            executed = fresh.receive(decode_block(raw))
            fresh.chain.commit(executed.block_hash, b"final")
        assert fresh.chain.tip == node.chain.tip
        assert balance_of(fresh.store, ALICE.address) == balance_of(node.store, ALICE.address)
        node.runtime.check_whole_supply(fresh.store)
    finally:
        node.store.close()
        fresh.store.close()


def test_two_nodes_agree_whatever_else_they_executed(node: Node, other: Node) -> None:
    rival = other.grow(other.tip_hash, transfer(CAROL, 0, BOB.address, COIN), view=9)
    first = node.grow(node.tip_hash, transfer(ALICE, 0, BOB.address, COIN))
    assert other.receive(decode_block(first.raw)).state_root == first.state_root != rival.state_root
    second = node.grow(first.block_hash, transfer(ALICE, 1, BOB.address, COIN))
    other.receive(decode_block(second.raw))
    for member in (node, other):
        member.chain.commit(second.block_hash, b"final")
    assert node.chain.tip == other.chain.tip


# Epochs

SHORT = genesis(epoch_blocks=4, evidence_epochs=2, stake_min=1)


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "short", founded=SHORT)
    yield made
    made.store.close()


def test_the_last_header_of_an_epoch_names_the_next_committee(short: Node, tmp_path: Path) -> None:
    fresh = Node(tmp_path / "fresh", founded=SHORT)
    vote = SecretKey(b"v" * 32)
    stake = stake_payload(3_000 * COIN, vote, genesis_hash=short.runtime.genesis_hash, address=CAROL.address)
    SIGNERS[CAROL.address] = VoteKey(vote)
    committees: dict[int, bytes] = {}
    for height in range(1, 23):
        epoch, place = divmod(height - 1, 4)
        info = short.chain.epoch_info(epoch)
        assert info is not None
        assert short.chain.epoch_info(epoch + 1) is None
        body = [signed(CAROL, 0, STAKE_KIND, stake)] if height == 1 else []
        executed = short.grow(short.tip_hash, *body)
        header = executed.header
        assert (header.epoch, header.view, header.version) == (epoch, place + 1, 1)
        assert header.committee_hash == info.committee.hash == committees.setdefault(epoch, info.committee.hash)
        following = short.chain.epoch_info(epoch + 1, executed.block_hash)
        if place == 3:  # the boundary: what it names is what its execution begins
            assert following is not None
            assert header.next_committee_hash == following.committee.hash
            assert following.randomness != info.randomness
            committees[epoch + 1] = following.committee.hash
        else:
            assert following is None
            assert header.next_committee_hash == bytes(32)
        short.chain.commit(executed.block_hash, b"final")
        fresh.chain.commit(fresh.receive(decode_block(executed.raw)).block_hash, b"final")
    assert fresh.chain.tip == short.chain.tip
    last = short.chain.epoch_info(5)
    assert last is not None
    assert {seat.address for seat in last.committee.seats} == {CAROL.address, *(key.address for key in VALIDATORS)}
    assert len(set(committees.values())) > 2  # each epoch draws its own order, of which there are few here
    fresh.store.close()


def test_a_chain_goes_on_from_a_boundary_after_reopening(tmp_path: Path) -> None:
    node = Node(tmp_path / "db", founded=SHORT)
    for _ in range(4):
        node.chain.commit(node.grow(node.tip_hash).block_hash, b"final")
    before = node.chain.epoch_info(1)
    node.store.close()
    again = Node(tmp_path / "db", founded=SHORT)
    after = again.chain.epoch_info(1)
    assert before is not None
    assert after is not None
    assert (after.committee.hash, after.randomness) == (before.committee.hash, before.randomness)
    assert again.grow(again.tip_hash).header.view == 1
    again.store.close()


def test_nobody_proves_a_view_with_another_key_input_or_seat(short: Node) -> None:
    good = short.build(short.tip_hash)
    header = good.header
    leader, other = (seat.address for seat in _ordered(short, header.proposer_seat))
    alpha = short.chain.vrf_input(short.tip_hash, 1)
    for proof in (
        SIGNERS[other].prove(alpha),
        SIGNERS[leader].prove(short.chain.vrf_input(short.tip_hash, 2)),
        SIGNERS[leader].prove(b"anything"),
        header.vrf_proof[:-1] + bytes([header.vrf_proof[-1] ^ 1]),
    ):
        with pytest.raises(InvalidBlock, match="VRF"):
            short.receive(Block(header._replace(vrf_proof=proof), ()))
    stolen = header._replace(proposer_seat=1 - header.proposer_seat, vrf_proof=SIGNERS[other].prove(alpha))
    with pytest.raises(InvalidBlock, match="does not lead"):
        short.receive(Block(stolen, ()))
    short.receive(good)


def _ordered(node: Node, first: int) -> tuple[Seat, Seat]:
    info = node.chain.epoch_info(0)
    assert info is not None
    seats = info.committee.seats
    return seats[first], seats[1 - first]


def test_a_boundary_that_names_another_committee_is_refused(short: Node) -> None:
    for _ in range(3):
        short.chain.commit(short.grow(short.tip_hash).block_hash, b"final")
    good = short.build(short.tip_hash)
    for wrong in (bytes(32), b"n" * 32, good.header.committee_hash):
        with pytest.raises(InvalidBlock, match="next committee"):
            short.receive(Block(good.header._replace(next_committee_hash=wrong), ()))
    short.receive(good)


def test_a_leader_builds_for_the_epoch_of_its_parent_alone(short: Node) -> None:
    arguments: dict[str, Any] = {
        "view": 1, "seat": 0, "time_ms": START_MS, "voters_bitmap": b"", "vrf_proof": bytes(80),
        "transactions": (),
    }  # fmt: skip
    with pytest.raises(InvalidBlock, match="epoch 1"):
        short.chain.build(short.tip_hash, epoch=1, **arguments)


def test_an_old_node_stops_where_a_new_version_begins(tmp_path: Path) -> None:
    new, old = (Node(tmp_path / str(n), versions=known, founded=SHORT) for n, known in enumerate(((1, 2), (1,))))
    for _ in range(8):
        executed = new.grow(new.tip_hash)
        assert (executed.header.version, executed.header.signal) == (1, 2)
        new.chain.commit(executed.block_hash, b"final")
        old.chain.commit(old.receive(decode_block(executed.raw)).block_hash, b"final")
    info = old.chain.epoch_info(2)
    assert info is not None
    assert info.version == 2
    block = new.build(new.tip_hash)
    assert block.header.version == 2
    for refused in (lambda: old.receive(block), lambda: old.build(old.tip_hash)):
        with pytest.raises(InvalidBlock) as error:
            refused()
        assert error.value.code == "upgrade_required"
    with pytest.raises(InvalidBlock, match="version 1"):
        new.receive(Block(block.header._replace(version=1), ()))
    new.receive(block)
    for node in (new, old):
        node.store.close()


VECTORS = Path(__file__).parents[2] / "vectors/chain.json"


def test_roots_stand_as_in_the_vectors(node: Node) -> None:
    """The same blocks give the same roots on every Python and platform, and after every change of the code."""
    vote = SecretKey(b"v" * 32)
    stake = stake_payload(2_000 * COIN, vote, genesis_hash=node.runtime.genesis_hash, address=CAROL.address)
    bodies: tuple[list[Transaction], ...] = (
        [transfer(ALICE, 0, BOB.address, COIN, tip=3), signed(CAROL, 0, STAKE_KIND, stake)],
        [],
        [signed(CAROL, 1, UNSTAKE_KIND, [500 * COIN]), signed(CAROL, 2, UNSTAKE_KIND, [1_000 * COIN])],
    )
    found = [["", node.chain.tip.state_root.hex(), node.chain.tip.receipt_root.hex()]]
    for body in bodies:
        executed = node.grow(node.tip_hash, *body)
        found.append([executed.block_hash.hex(), executed.state_root.hex(), executed.receipt_root.hex()])
        node.chain.commit(executed.block_hash, b"final")
    assert found == json.loads(VECTORS.read_text())["block_hash, state_root and receipt_root by height"]


def test_boundaries_stand_as_in_the_vectors(short: Node) -> None:
    assert boundaries(short) == json.loads(VECTORS.read_text())["block_hash and state_root of four boundaries"]


def boundaries(short: Node) -> list[list[str]]:
    """Grow over four epochs, in the first of which somebody stakes; return hash and root of each last block."""
    vote = SecretKey(b"v" * 32)
    SIGNERS[CAROL.address] = VoteKey(vote)
    stake = stake_payload(3_000 * COIN, vote, genesis_hash=short.runtime.genesis_hash, address=CAROL.address)
    found = []
    for height in range(1, 17):
        body = [signed(CAROL, 0, STAKE_KIND, stake)] if height == 1 else []
        executed = short.grow(short.tip_hash, *body, view=height * 2 % 9 if height < 4 else None)
        short.chain.commit(executed.block_hash, b"final")
        if height % 4 == 0:
            found.append([executed.block_hash.hex(), executed.state_root.hex()])
    return found


def test_threads_take_turns(node: Node) -> None:
    """Whatever the order of commits and executions, a block is executed over its parent's state or not at all."""
    first = node.grow(node.tip_hash, transfer(ALICE, 0, BOB.address, COIN))
    blocks = [node.build(first.block_hash, transfer(ALICE, 1, BOB.address, n), view=n) for n in range(2, 10)]
    bodies = [node.checked(*map(decode_transaction, block.transactions), known=ALICE) for block in blocks]

    def execute(number: int) -> Executed | None:
        try:
            return node.chain.execute(blocks[number], bodies[number])
        except BlockUnknown:
            return None

    with ThreadPoolExecutor(4) as threads:
        futures = [threads.submit(execute, number) for number in range(8)]
        commits = threads.submit(node.chain.commit, first.block_hash, b"final")
        winner = futures[3].result()
        assert winner is not None
        commits.result()
        node.chain.commit(winner.block_hash, b"final")
        late = execute(4)
        results = [future.result() for future in futures]
    assert node.chain.tip.block_hash == winner.block_hash
    assert node.store.verify()
    for executed in results:
        if executed is not None:
            assert 0 < balance_of(executed.state, BOB.address) - 10_001 * COIN < 10
    assert late is None or late is results[4]


def test_a_chain_goes_on_after_reopening(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.chain.commit(node.grow(node.tip_hash, transfer(ALICE, 0, BOB.address, COIN)).block_hash, b"final")
    tip = node.chain.tip
    node.store.close()
    again = Node(tmp_path / "db")
    assert again.chain.tip == tip
    second = again.grow(again.tip_hash, transfer(ALICE, 1, BOB.address, COIN))
    again.chain.commit(second.block_hash, b"final")
    assert again.store.verify()
    raw = again.store.block(2)
    assert raw is not None
    assert decode_transaction(decode_block(raw).transactions[0]).nonce == 1
    again.store.close()
