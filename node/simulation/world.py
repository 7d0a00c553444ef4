"""Whole nodes in the simulator: the real ``node.chain.block_tree`` on a database in memory that power cuts visit.

Blocks are built, checked, executed and committed by the code of a node: the runtime with all rules, epochs and
committees from stakes, VRF proofs, evidence and its penalties, the store with its trie. Simulated are the disk,
the network and the clock; of transactions every signature is real, and checked once for all nodes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from consensus.events import Epoch
from consensus.replica import root_of
from consensus.simulation.oracle import Violation
from consensus.simulation.worlds import Committed, Standing
from consensus.votes import Certificate, Check, verify_checks
from consensus.wire import BLOCKS_MAX, BlocksReply, decode_certificate, encode_certificate
from node.chain.block_tree import BlockUnknown, Chain, decode_body
from node.chain.evidence import EvidencePool
from node.chain.forks import ForkUnproven, check_certificate, convict, kept, to_keep
from node.chain.ledger import NodeLedger
from node.chain.mempool import MempoolOptions
from node.chain.runtime import make_runtime
from state.primitives.blocks import Block, decode_header
from state.primitives.codec import Value
from state.primitives.errors import DecodeError, InvalidBlock, InvalidTransaction, StoreError
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction, sign_transaction
from state.primitives.votes import Equivocation, VoteKey
from state.primitives.vrf import vrf_key_of
from state.store import Store, StoreOptions
from state.store.memory import MemoryDatabase
from state.transition.epochs import EpochInfo, epoch_of
from state.transition.evidence import Evidence, EvidenceRefused, prove
from state.transition.runtime import Checked
from state.transition.slashing import Offence
from state.transition.staking import (
    STAKE_GAS,
    STAKE_KIND,
    UNSTAKE_GAS,
    UNSTAKE_KIND,
    load_committee,
    stake_payload,
    unstake_payload,
)
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload

__all__ = ["BALANCE", "COIN", "STAKE", "START_MS", "WholeMachine", "WholeWorld"]

COIN: Final = 10**18
STAKE: Final = 10_000 * COIN
BALANCE: Final = 100_000 * COIN
START_MS: Final = 1_700_000_000_000
FEE_CAP: Final = 10**12
TAKEN_MAX: Final = 50
_OPTIONS: Final = StoreOptions(
    value_cache_entries=2_000, node_cache_entries=2_000, node_period_blocks=4, undo_cache_entries=2_000
)


class WholeWorld:
    """Accounts, keys and the genesis; the first ``founders`` accounts are its validators, the others may join."""

    def __init__(
        self,
        founders: Sequence[int],
        *,
        spare: int = 0,
        epoch_blocks: int = 6,
        downtime_blocks_min: int = 4,
        validators_max: int = 100,
        block_interval_ms: int = 0,
        evidence_epochs: int = 64,
    ) -> None:
        self.accounts = len(founders) + spare
        self.founders = len(founders)
        self._stakes = {number: share * STAKE for number, share in enumerate(founders)}
        self._secrets = [
            SecretKey(digest(b"sim-account", number.to_bytes(4, "big"))) for number in range(self.accounts)
        ]
        self._vote_secrets: dict[tuple[int, int], SecretKey] = {}
        self._signers: dict[tuple[int, int], VoteKey] = {}
        self._numbers: dict[bytes, int] = {}
        self.keys = [0] * self.accounts
        """The newest key that each account has registered."""
        validators = tuple(
            [
                GenesisValidator(
                    self.address(number),
                    self.vote_secret(number, 0).vote_key,
                    vrf_key_of(self.vote_secret(number, 0)).public,
                    share * STAKE,
                )
                for number, share in enumerate(founders)
            ]
        )
        parameters = {
            "chain.epoch_blocks": epoch_blocks,
            "chain.evidence_epochs": evidence_epochs,
            "chain.downtime_blocks_min": downtime_blocks_min,
            "chain.validators_max": validators_max,
            "chain.validators_min": 1,
            "chain.unstake_percent_max": 100,
            "chain.block_interval_ms_min": block_interval_ms,
            "chain.time_ahead_ms_max": 60_000,
            "chain.time_behind_ms_max": 60_000,
            "chain.history_heights": 16,
            "consensus.block_interval_ms": block_interval_ms,
        }
        allocations = tuple([(self.address(number), BALANCE) for number in range(self.accounts)])
        self.genesis = Genesis(
            7, "simulation", START_MS, True, allocations, validators, tuple(sorted(parameters.items()))
        )
        self.runtime = make_runtime(self.genesis, check_invariants=True)
        self.genesis_hash = self.runtime.genesis_hash
        self.root_hash = self.genesis_hash
        self._nonces = [0] * self.accounts
        self._checked: dict[bytes, Checked] = {}
        self.submitted: list[bytes] = []
        """Every transaction so far: a node that restarts hears them again from its peers."""
        self.machines: list[WholeMachine] = []

    def address(self, account: int) -> bytes:
        """Return an account's address."""
        return self._secrets[account].address

    def vote_secret(self, account: int, key: int) -> SecretKey:
        """Return the secret of one of an account's vote keys."""
        secret = self._vote_secrets.get((account, key))
        if secret is None:
            secret = SecretKey(digest(b"sim-vote", account.to_bytes(4, "big") + key.to_bytes(4, "big")))
            self._vote_secrets[account, key] = secret
            self._numbers[secret.vote_key] = key
        return secret

    def signer(self, account: int, key: int) -> VoteKey:
        """Return one of an account's keys."""
        signer = self._signers.get((account, key))
        if signer is None:
            signer = self._signers[account, key] = VoteKey(self.vote_secret(account, key))
        return signer

    def key_of(self, account: int, vote_key: bytes) -> int:
        """Return which of its keys an account has registered as ``vote_key``."""
        return self._numbers[vote_key]

    def machine(self, number: int, rng: random.Random) -> WholeMachine:
        """Return a new node's machine."""
        machine = WholeMachine(self, number)
        self.machines.append(machine)
        return machine

    def is_valid(self, check: Check) -> bool:
        """Verify a signature."""
        return verify_checks((check,))

    # What people do.

    def _submit(self, account: int, kind: int, payload: list[Value], gas: int) -> None:
        raw = sign_transaction(
            self._secrets[account], chain_id=self.genesis.chain_id, nonce=self._nonces[account], kind=kind,
            payload=payload, gas_limit=gas, max_fee_per_gas=FEE_CAP,
        )  # fmt: skip
        self._nonces[account] += 1
        self.submitted.append(raw)
        for machine in self.machines:
            machine.admit(raw)

    def transfer(self, account: int, to: int, value: int) -> None:
        """Send a transfer."""
        self._submit(account, TRANSFER_KIND, transfer_payload(self.address(to), value), TRANSFER_GAS)

    def stake(self, account: int, amount: int, *, new_key: bool = False) -> None:
        """Join, add to the stake, or rotate the keys with an amount of 0."""
        self.keys[account] += new_key
        self._stakes[account] = self.staked(account) + amount
        payload = stake_payload(
            amount,
            self.vote_secret(account, self.keys[account]),
            genesis_hash=self.genesis_hash,
            address=self.address(account),
        )
        self._submit(account, STAKE_KIND, payload, STAKE_GAS)

    def unstake(self, account: int, amount: int) -> None:
        """Take some of the stake back, or leave."""
        self._stakes[account] = self.staked(account) - amount
        self._submit(account, UNSTAKE_KIND, unstake_payload(amount), UNSTAKE_GAS)

    def staked(self, account: int) -> int:
        """Return what an account has staked, once all that it has sent is executed."""
        return self._stakes.get(account, 0)

    def account_of(self, address: bytes) -> int:
        """Return the account of an address."""
        return next(account for account in range(self.accounts) if self.address(account) == address)

    def checked(self, raw: bytes) -> Checked | None:
        """Return a transaction with its sender; None when it is none."""
        known = self._checked.get(raw)
        if known is None:
            try:
                transaction = decode_transaction(raw)
                transaction.recover_sender()
                known = self._checked[raw] = self.runtime.check(transaction)
            except (DecodeError, InvalidTransaction):
                return None
        return known


class WholeMachine:
    """One node's chain. Its database survives; blocks that are not final, and the mempool, do not."""

    def __init__(self, world: WholeWorld, number: int) -> None:
        self._world = world
        self._number = number
        self._db = MemoryDatabase()
        self._evidence_file: tuple[bytes, ...] = ()
        self._epochs: dict[int, Epoch] = {}
        self._bodies: dict[bytes, list[Checked]] = {}
        self._tip_height = 0
        self._open()

    def _open(self) -> None:
        world = self._world
        self._db.reopen()
        self.store = Store.over(self._db, world.genesis, world.runtime.genesis_changes, _OPTIONS)
        self.chain = Chain(self.store, world.runtime)
        self._ledger = NodeLedger(self.store, self.chain, world.runtime, MempoolOptions())
        self._pool = EvidencePool(self._judge)
        self._tip_height = self.store.tip.height

    def start(self) -> Standing:
        """Open the database, and say where the node stands."""
        self._db.close()  # what the process before has left open
        self._open()
        self._bodies.clear()
        for raw in self._world.submitted:
            self.admit(raw)
        for proof in self._evidence_file:
            self.heard(proof)
        tip = self.store.tip
        epoch = epoch_of(tip.height + 1, self._world.runtime.chain)
        header = decode_header(tip.header) if tip.header else None
        root, certificates = root_of(
            block_hash=tip.block_hash,
            height=tip.height,
            view=header.view if header is not None and header.epoch == epoch else 0,
            state_root=tip.state_root,
            receipt_root=tip.receipt_root,
            certificate=self.store.certificate(tip.height),
            epoch=epoch,
        )
        return Standing(epoch, root, (*certificates, *kept(self.store, epoch, root.view)))

    def info(self, epoch: int) -> EpochInfo | None:
        """Return what the final state knows of an epoch."""
        return self.chain.epoch_info(epoch)

    def epoch_view(self, epoch: int) -> Epoch | None:
        """Return an epoch that the final state knows."""
        known = self._epochs.get(epoch)
        if known is None:
            info = self.info(epoch)
            if info is None:
                return None
            known = Epoch(info.epoch, info.last_height, info.committee, info.randomness, info.lottery_weight)
            self._epochs[epoch] = known
        return known

    def build(
        self,
        parent_hash: bytes,
        *,
        epoch: int,
        view: int,
        seat: int,
        time_ms: int,
        vrf_proof: bytes,
        voters: bytes,
    ) -> Block | None:
        """Return a block of what waits, with the evidence that waits."""
        try:
            block, checked = self.chain.build(
                parent_hash,
                epoch=epoch,
                view=view,
                seat=seat,
                time_ms=START_MS + time_ms,
                voters_bitmap=voters,
                vrf_proof=vrf_proof,
                transactions=self._ledger.take(TAKEN_MAX, self._ledger.room_after(parent_hash)),
                evidence=self._pool.take(),
            )
        except InvalidBlock:
            return None
        self._bodies[block.hash] = list(checked)
        return block

    def _body(self, block_hash: bytes, block: Block) -> list[Checked]:
        """Return the block's transactions. Raises InvalidBlock."""
        known = self._bodies.get(block_hash)
        if known is None:
            known = decode_body(self._world.runtime, block.transactions, self._world.checked).resolve(b"")
            self._bodies[block_hash] = known
        return known

    def is_valid(self, block_hash: bytes, block: Block, now_ms: int) -> bool:
        """Check a block on its executed parent, as a voter does."""
        try:
            self.chain.check(block, self._body(block_hash, block), now_ms=START_MS + now_ms)
        except InvalidBlock:
            return False
        return True

    def execute(self, block_hash: bytes, block: Block) -> tuple[bytes, bytes] | None:
        """Return the roots after a block; None when its branch was dropped meanwhile."""
        try:
            executed = self.chain.execute(block, self._body(block_hash, block), block_hash=block_hash)
        except BlockUnknown:
            return None
        return executed.state_root, executed.receipt_root

    def commit(
        self, block_hashes: Sequence[bytes], certificate: Certificate, views: Sequence[Certificate] = ()
    ) -> list[Committed]:
        """Write executed blocks, lowest first."""
        blocks = self.chain.commit(block_hashes[-1], encode_certificate(certificate), to_keep(views))
        assert [executed.block_hash for executed in blocks] == list(block_hashes), "the branch of the commit"
        self._ledger.on_commit(blocks)
        self._pool.refresh()
        self._evidence_file = self._pool.all()
        self._tip_height = self.store.tip.height
        for executed in blocks:
            self._bodies.pop(executed.block_hash, None)
        return [Committed(e.header.height, e.block_hash, e.state_root) for e in blocks]

    def commit_in_vain(self, block_hashes: Sequence[bytes], certificate: Certificate) -> None:
        """Try the same on a disk that refuses: the store says so, and nothing changes."""

        def refuse(is_sync: bool) -> None:
            raise OSError("no space left on the device")

        before = self.store.tip
        self._db.before_write = refuse
        try:
            self.chain.commit(block_hashes[-1], encode_certificate(certificate))
        except StoreError:
            pass
        else:
            raise Violation("a commit on a full disk was not refused")
        finally:
            self._db.before_write = lambda is_sync: None
        if self.store.tip != before:
            raise Violation("a commit that the disk refused has changed the tip")

    def drop(self, block_hashes: Sequence[bytes]) -> None:
        """Forget executed blocks."""
        self.chain.drop(block_hashes)
        for block_hash in block_hashes:
            self._bodies.pop(block_hash, None)

    def block(self, block_hash: bytes) -> bytes | None:
        """Return the bytes of a final block."""
        height = self.store.height_of(block_hash)
        return None if height is None else self.store.block(height)

    def window(self, from_height: int, count_max: int) -> BlocksReply | None:
        """Return final blocks of one epoch with the certificate of the last."""
        chain = self._world.runtime.chain
        raws: list[bytes] = []
        proof: tuple[int, Certificate] | None = None
        last = min(from_height + min(count_max, BLOCKS_MAX) - 1, self.store.tip.height)
        for height in range(max(1, from_height), last + 1):
            record, raw, stored = (
                self.store.height(height),
                self.store.block(height),
                self.store.certificate(height),
            )
            if record is None or raw is None or epoch_of(height, chain) != epoch_of(from_height, chain):
                break
            raws.append(raw)
            certificate = decode_certificate(stored) if stored else None
            if certificate is not None and certificate.block_hash == record.block_hash:
                proof = (len(raws), certificate)
        return None if proof is None else BlocksReply(from_height, proof[1], tuple(raws[: proof[0]]))

    def lose_power(self, rng: random.Random) -> int:
        """Lose what was not synced; return the height that is left."""
        self._db.reopen()
        self._db.lose_power(rng)
        self._open()
        return self._tip_height

    def ignore_syncs(self) -> None:
        """Leave every write to the page cache: a seeded bug."""
        self._db.ignores_syncs = True

    def fresh(self) -> WholeMachine:
        """Return the machine of the same node with an empty database, and the file of evidence as it is."""
        world = self._world
        machine = WholeMachine(world, self._number)
        machine._evidence_file = self._evidence_file
        world.machines[world.machines.index(self)] = machine
        return machine

    def put_back(self, earlier: WholeMachine) -> WholeMachine:
        """Return the machine with an earlier database of the same node, and the file of evidence as it is."""
        earlier._evidence_file = self._evidence_file
        self._world.machines[self._world.machines.index(self)] = earlier
        return earlier

    # Transactions and evidence of others.

    def admit(self, raw: bytes) -> None:
        """Take a transaction into the mempool, if it may stand there."""
        checked = self._world.checked(raw)
        if checked is not None:
            try:
                self._ledger.admit_checked(checked)
            except InvalidTransaction:
                return

    def _judge(self, evidence: Evidence) -> Offence:
        chain = self._world.runtime.chain
        return prove(
            self.store,
            evidence,
            epoch_now=epoch_of(self.store.tip.height + 1, chain),
            chain=chain,
            genesis_hash=self._world.genesis_hash,
        )

    def found(self, equivocation: Equivocation) -> bytes | None:
        """Take in a fault that the node's consensus has found; return what the other nodes are told of it."""
        proof = Evidence.of(equivocation, self._world.address(self._number % self._world.accounts)).encode()
        return proof if self._add(proof) else None

    def convict(self, *certificates: Certificate) -> tuple[Equivocation, ...]:
        """Return whom certificates of a fork convict, with each other or with the records of this chain."""
        try:
            for certificate in certificates:
                committee = load_committee(self.store, certificate.epoch)
                check_certificate(certificate, committee, self._world.genesis_hash)
        except ForkUnproven:
            return ()
        return convict(self.store, certificates)

    @property
    def pending(self) -> tuple[bytes, ...]:
        """What waits for a block."""
        return self._pool.all()

    def heard(self, proof: bytes) -> None:
        """Take in what another node has found."""
        self._add(proof)

    def _add(self, proof: bytes) -> bool:
        try:
            is_new = self._pool.add(proof)
        except (DecodeError, EvidenceRefused):
            return False
        self._evidence_file = self._pool.all()
        return is_new
