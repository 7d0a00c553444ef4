"""What the node shows to its RPC backend (``rpc.view.NodeView``): the ledger, the peers, the consensus."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from node.runtime import PARAMETER_TABLES
from rpc.view import BlockRecord, Committee, Description, KindInfo, Peer, Seat, Sync
from state.primitives.genesis import read_parameters
from state.view import Reader

if TYPE_CHECKING:
    from node.service import Node

__all__ = ["ServedView"]

MICROSECONDS: Final = 1000


class ServedView:
    """Implements ``NodeView`` over a running node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        ledger, genesis = node.ledger, node.genesis
        self.head = ledger.head
        self.wait_head = ledger.wait_head
        self.pending_nonce = ledger.pending_nonce
        self.pool_status = ledger.pool_status
        self.pool_transactions = ledger.pool_transactions
        self.pool_get = ledger.pool_get
        self.submit = ledger.submit
        self._ledger = ledger
        self._description = Description(
            chain_id=genesis.chain_id,
            chain_name=genesis.name,
            genesis_hash=node.chain_hash,
            genesis_time_ms=genesis.time_ms,
            testnet=int(genesis.testnet),
            address=node.account.address,
            roles=tuple(node.options.roles),
            version=version("dekube-node"),
            kinds=tuple(
                KindInfo(rule.kind, rule.name, rule.gas)
                for rule in sorted(ledger.runtime.rules.values(), key=lambda rule: rule.kind)
            ),
            parameters=tuple(
                (f"{prefix}.{name}", int(value))
                for prefix, cls in PARAMETER_TABLES.items()
                for name, value in dataclasses.asdict(read_parameters(cls, prefix, genesis)).items()
            ),
            validators=tuple(tuple(validator) for validator in genesis.validators),
        )

    def description(self) -> Description:
        """Return what does not change."""
        return self._description

    def reader(self, height: int) -> Reader:
        """Return the state after the block at ``height``."""
        return self._ledger.reader(height)

    def block(self, height: int) -> BlockRecord | None:
        """Return the block at ``height``."""
        return self._ledger.block(height)

    def block_hash(self, height: int) -> bytes | None:
        """Return the hash of the block at ``height``."""
        return self._ledger.block_hash(height)

    def height_of(self, block_hash: bytes) -> int | None:
        """Return the height of a finalised block."""
        return self._ledger.height_of(block_hash)

    def locate(self, transaction_hash: bytes) -> tuple[int, int] | None:
        """Return height and index of a finalised transaction."""
        return self._ledger.locate(transaction_hash)

    def history(self, address: bytes, before: tuple[int, int] | None, limit: int) -> list[tuple[int, int]]:
        """Return places of transactions that touch ``address``."""
        return self._ledger.history(address, before, limit)

    def prove(self, key: bytes, height: int) -> bytes:
        """Return the encoded proof of ``key`` after ``height``."""
        return self._ledger.prove(key, height)

    def simulate(self, sender: bytes, kind: int, payload: list[Any]) -> bytes:
        """Return the encoded receipt of a dry run."""
        return self._ledger.simulate(sender, kind, payload)

    def peers(self) -> list[Peer]:
        """Return the connected peers."""
        return [
            Peer(
                address=info.address,
                endpoint=info.remote,
                inbound=int(not info.is_outbound),
                path="relay" if info.remote.startswith("relay") else "direct",
                roles=tuple(role.name.lower() for role in info.roles if role.name),
                latency_us=int((info.rtt_ms or 0) * MICROSECONDS),
                version="",
            )
            for info in self._node.network.peers()
        ]

    def sync(self) -> Sync:
        """Return how far the node is."""
        state = self._node.agreement.progress()
        return Sync(
            syncing=int(state.is_syncing),
            highest=max(state.highest, self._ledger.head().height),
            peers=len(self._node.network.peers()),
            view=state.view,
            epoch=state.epoch,
        )

    def committee(self) -> Committee:
        """Return the voters of the current epoch."""
        committee = self._node.agreement.committee
        return Committee(
            epoch=self._node.agreement.progress().epoch,
            quorum=committee.quorum,
            hash=committee.hash,
            seats=tuple(Seat(seat.address, seat.vote_key, seat.weight) for seat in committee.seats),
        )
