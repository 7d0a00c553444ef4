"""A chain of several epochs with real certificates, for the tests of sync: its store, and its snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from consensus.votes import Certificate
from consensus.wire import encode_certificate
from node.chain.block_tree import Chain, Executed
from state.primitives.blocks import encode_block
from state.primitives.committee import Committee
from state.primitives.genesis import Genesis
from state.primitives.keys import SecretKey
from state.primitives.transactions import Transaction
from state.primitives.votes import FINALIZE, Candidate, Vote, VoteKey, vote_digest
from state.store import Store, StoreOptions
from state.transition.epochs import load_tally
from state.transition.runtime import Runtime
from tests.state.transition.chain import COIN, START_MS, USERS, VALIDATORS, genesis, transfer

EPOCH_BLOCKS: Final = 4
HISTORY_HEIGHTS: Final = 8
GENESIS: Final = genesis(epoch_blocks=EPOCH_BLOCKS, history_heights=HISTORY_HEIGHTS)
SIGNERS: Final = {key.address: VoteKey(key) for key in VALIDATORS}
NOW_MS: Final = START_MS + 3_600_000
ALICE: Final = USERS[0]


def open_store(path: Path, runtime: Runtime, options: StoreOptions | None = None) -> Store:
    return Store.open(path, runtime.genesis, runtime.genesis_changes, options)


def certify(
    committee: Committee,
    block_hash: bytes,
    epoch: int,
    view: int,
    *,
    genesis_hash: bytes,
    seats: Sequence[int] = (),
) -> Certificate:
    """Return the FINALIZE certificate of a block, by all seats unless some are named."""
    candidate = Candidate(epoch, view, view - 1, block_hash)
    votes = []
    for seat in seats or range(committee.size):
        signer = SIGNERS[committee.seats[seat].address]
        signature = signer.sign_vote(vote_digest(genesis_hash, FINALIZE, candidate))
        votes.append(Vote(FINALIZE, *candidate, seat, signature))
    return Certificate.of(committee, votes)


class World:
    """The chain; each block is final as soon as it is made, by its own certificate or with the next one's."""

    def __init__(self, path: Path, options: StoreOptions | None = None, genesis: Genesis = GENESIS) -> None:
        self.path = path
        self.runtime = Runtime(genesis, check_invariants=True)
        self.store = open_store(path / "chain", self.runtime, options)
        self.chain = Chain(self.store, self.runtime)
        self._nonce = 0

    def make(self, parent: bytes, height: int, *transactions: Transaction) -> Executed:
        """Build and execute a block on ``parent``."""
        state = self.chain.state_after(parent)
        info = self.runtime.epoch_at(state, height)
        tally = load_tally(state, info.epoch)
        assert tally is not None
        view = tally.view + 1
        seat = info.committee.leader(view)
        signer = SIGNERS[info.committee.seats[seat].address]
        checked = [self.runtime.check(transaction) for transaction in transactions]
        block, chosen = self.chain.build(
            parent, epoch=info.epoch, view=view, seat=seat, time_ms=START_MS + height * 1_000, voters_bitmap=b"",
            vrf_proof=signer.prove(self.chain.vrf_input(parent, view)), transactions=checked,
        )  # fmt: skip
        assert len(chosen) == len(transactions)
        self.chain.check(block, chosen, now_ms=None)
        return self.chain.execute(block, chosen, raw=encode_block(block))

    def commit(self, block: Executed) -> None:
        """Commit an executed block and its ancestors with the certificate of that one."""
        header = block.header
        info = self.chain.epoch_info(header.epoch)
        assert info is not None
        certificate = certify(
            info.committee, block.block_hash, header.epoch, header.view, genesis_hash=self.runtime.genesis_hash
        )
        self.chain.commit(block.block_hash, encode_certificate(certificate))

    def mint(self, blocks: int = 1, *, accounts: int = 1) -> None:
        """Make blocks, each of which pays to ``accounts`` new accounts."""
        for _ in range(blocks):
            height = self.store.tip.height + 1
            self.commit(self.make(self.store.tip.block_hash, height, *self.payments(accounts)))

    def mint_pair(self) -> None:
        """Make two blocks of which the second's certificate makes both final."""
        first = self.make(self.store.tip.block_hash, self.store.tip.height + 1)
        self.commit(self.make(first.block_hash, first.header.height + 1))

    def payments(self, count: int) -> list[Transaction]:
        """Return transfers of one account to new ones."""
        found = []
        for _ in range(count):
            to = SecretKey((10_000 + self._nonce).to_bytes(32, "big")).address
            found.append(transfer(ALICE, self._nonce, to, COIN // 1_000))
            self._nonce += 1
        return found


def state_of(store: Store) -> dict[bytes, bytes]:
    return dict(store.scan(b"", b"\xff" * 40, 10**6))
