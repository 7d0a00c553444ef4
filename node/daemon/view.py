"""The part of the RPC backend that needs the running node: submission, peers, consensus.

``rpc.backend.store_view`` answers the rest from the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import nsmallest
from importlib.metadata import version
from typing import Final

import trio

from consensus.wire import decode_certificate
from node.chain.runtime import PARAMETER_TABLES
from node.daemon.running import RunningNode
from p2p.records.records import PeerRecord
from rpc.backend.store_view import StoreView, describe
from rpc.protocol.records import KnownNode, Network, Peer, Sync
from state.primitives.accepted_evidence import AcceptedEvidence
from state.primitives.genesis import read_parameters

__all__ = ["LiveNode", "make_view"]

MICROSECONDS: Final = 1000


class LiveNode:
    """Implements ``rpc.protocol.requests.LiveNode`` over a running node."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node

    @contextmanager
    def admission(self) -> Iterator[Callable[[bytes, bytes], object]]:
        """Start admitting transactions to the mempool and gossiping them."""
        with self._node.stages.measure("admit"), self._node.ledger.admission() as admit:
            yield admit

    def submit_evidence(self, raw: bytes) -> AcceptedEvidence:
        """Add evidence of a fault and gossip it."""
        return self._node.evidence.submit(raw)

    def submit_fork(self, certificates: list[bytes], reporter: bytes | None) -> list[AcceptedEvidence]:
        """Add the proof of a fork. It is checked in this worker thread and kept on the event loop."""
        evidence = self._node.evidence
        found = evidence.examine([decode_certificate(certificate) for certificate in certificates])
        return trio.from_thread.run_sync(evidence.submit_fork, found, reporter)

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

    def network(self, after: bytes, limit: int) -> Network:
        """Return how the node is reached, and the address book's entries whose addresses follow ``after``."""
        network, reached = self._node.network, self._node.reachability()
        records = network.records()
        following = nsmallest(limit, (record for record in records if record.address > after), key=_address_of)
        return Network(
            reached.how,
            reached.why,
            tuple(reached.endpoints.items()),
            reached.relays,
            len(records),
            tuple(
                KnownNode(
                    address=record.address,
                    roles=tuple(role.name.lower() for role in record.roles if role.name),
                    endpoints=tuple(map(str, record.endpoints)),
                    signed_ms=min(record.sequence, record.expiry_ms),
                    expires_ms=record.expiry_ms,
                    is_connected=int(network.is_connected(record.address)),
                )
                for record in following
            ),
        )

    def sync(self) -> Sync:
        """Return the sync status of the node."""
        return self._node.sync()


def _address_of(record: PeerRecord) -> bytes:
    return record.address


def make_view(node: RunningNode) -> StoreView:
    """Return the object that the backend serves. It is informed of each new head."""
    ledger = node.ledger
    description = describe(
        ledger.runtime,
        address=node.account.address,
        roles=node.options.roles,
        version=version("dekube-node"),
        parameters={
            prefix: read_parameters(table, prefix, node.genesis) for prefix, table in PARAMETER_TABLES.items()
        },
    )
    view = StoreView(ledger.store, ledger.runtime, ledger.mempool, description)
    ledger.add_listener(
        lambda blocks: view.notify_head({block.header.height: block.execution.changes for block in blocks})
    )
    return view
