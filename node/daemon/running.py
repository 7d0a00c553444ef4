"""A node with an open chain: its components, built and connected, not running yet."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from random import Random
from typing import Any, ClassVar, Final

import trio

from node.chain.block_tree import Chain
from node.chain.evidence import EvidenceService
from node.chain.ledger import NodeLedger
from node.chain.mempool import MempoolOptions
from node.chain.tx_gossip import BATCH_LIMIT_BYTES, TransactionGossip
from node.consensus.agreement import Agreement
from node.daemon.head_watch import HeadWatch, slash_fields
from node.daemon.peering import Peering
from node.daemon.reachability import Reachability
from node.daemon.relays import is_bonded
from node.daemon.upgrades import UpgradeWatch
from node.home.options import NodeOptions
from node.home.paths import Home
from node.market.blob_search import BlobSearch
from node.market.blobs import GatewayBlobs
from node.market.chain_events import ChainEvents
from node.market.duties import DutyService
from node.market.wallet import Wallet
from node.process.drain import Drain, RemainingWork
from node.process.gateway_process import GatewayProcess
from node.process.health_warnings import ClockWatch
from node.process.signature_pool import SignatureVerifier
from node.sync.database import make_server
from node.sync.progress_bar import outlook
from node.telemetry.clock_skew import CLOCK_METHOD, ClockSkew, serve_clock
from node.telemetry.cpu_accounting import CpuAccounting
from node.telemetry.metrics import NodeMetrics
from rpc.process.log_output import LOG_OUTPUT
from rpc.protocol.records import Sync
from state.primitives.address import format_address
from state.primitives.genesis import Genesis, genesis_hash
from state.primitives.keys import SecretKey
from state.store import Store
from state.transition.evidence import EVIDENCE_LIMIT_BYTES
from state.transition.runtime import Runtime
from state.transition.slashing import load_slash
from state.view.accounts import load_account

__all__ = ["NodeSetup", "RunningNode"]

TOPIC_TRANSACTIONS: Final = "tx"
TOPIC_EVIDENCE: Final = "evidence"
MIB: Final = 2**20


@dataclass(frozen=True)
class NodeSetup:
    """What a node is started with, and the components that exist before its chain is open."""

    home: Home
    options: NodeOptions
    genesis: Genesis
    account: SecretKey
    votes: tuple[SecretKey, ...]
    accepts_empty_guard: bool = False
    metrics: NodeMetrics = field(default_factory=NodeMetrics)
    stages: CpuAccounting = field(default_factory=CpuAccounting)
    drain: Drain = field(default_factory=Drain)
    gateway: GatewayProcess = field(default_factory=GatewayProcess)
    clock: ClockWatch = field(default_factory=ClockWatch)
    stopping: trio.Event = field(default_factory=trio.Event)

    @cached_property
    def chain_hash(self) -> bytes:
        """The hash of the genesis."""
        return genesis_hash(self.genesis)

    @property
    def named_peers(self) -> list[str]:
        """The peers and relays in the owner's configuration."""
        return [*self.options.p2p.bootstrap, *self.options.p2p.relays]

    def make_peering(self) -> Peering:
        """Return this node's peer network, not running yet."""
        return Peering(self.home, self.options, self.account, self.chain_hash)


class RunningNode:
    """The components of a node, and the queries of its owner and its gateway that need several of them."""

    duties_type: ClassVar[type[DutyService]] = DutyService

    def __init__(self, setup: NodeSetup, runtime: Runtime, store: Store, verifier: SignatureVerifier) -> None:
        options, home, address = setup.options, setup.home, setup.account.address
        self.setup, self.home, self.options, self.genesis = setup, home, options, setup.genesis
        self.account, self.votes = setup.account, setup.votes
        self.drain, self.stages = setup.drain, setup.stages
        self.store = store
        pool = MempoolOptions(
            transactions_max=options.mempool.transactions_max, bytes_max=options.mempool.bytes_max
        )
        self.ledger = NodeLedger(store, Chain(store, runtime), runtime, pool)
        self.peering = setup.make_peering()
        self.network, self.relays = self.peering.network, self.peering.relays
        self.network.on_bonded(lambda address: is_bonded(store, address))
        self.snapshots = make_server(home, options, store, self.network)
        self.ledger.add_listener(lambda _blocks: self.snapshots.on_commit())
        self.upgrades = UpgradeWatch(store, runtime.chain, runtime.signal)
        watch = HeadWatch(
            store, address, self.peering, setup.clock, self.upgrades, lambda: self.agreement.is_synced()
        )
        watch.look_for_upgrade(self.ledger.head().height)
        self.gossip = TransactionGossip(
            self.ledger,
            verifier,
            lambda payload: self.network.publish(TOPIC_TRANSACTIONS, payload),
            self.stages,
            is_outdated=lambda: self.upgrades.pending is not None,
        )
        self.ledger.on_admitted = self.gossip.enqueue
        self.network.on_gossip_batch(TOPIC_TRANSACTIONS, self.gossip.validate, payload_bytes_max=BATCH_LIMIT_BYTES)
        self.evidence = EvidenceService(
            self.ledger,
            lambda payload: self.network.publish(TOPIC_EVIDENCE, payload),
            records=store,
            reporter=address,
            path=home.evidence,
            metrics=setup.metrics,
        )
        self.network.on_gossip(TOPIC_EVIDENCE, self.evidence.validate, payload_bytes_max=EVIDENCE_LIMIT_BYTES)
        self.ledger.add_listener(self.evidence.on_commit)
        self.chain_events = ChainEvents(store, address)
        self.ledger.add_listener(self.chain_events.on_commit)
        self.ledger.add_listener(watch.look_for_relays)
        self.ledger.add_listener(watch.look_at_clock)
        self.ledger.add_listener(watch.look_for_slash)
        watch.look_for_slash(())
        self.ledger.add_listener(lambda blocks: watch.look_for_upgrade(blocks[-1].header.height))
        self.agreement = Agreement(
            self.ledger,
            verifier,
            self.network,
            setup.metrics,
            home=home,
            options=options,
            votes=self.votes,
            make_identity=lambda: self.peering.identity,
            evidence=self.evidence,
            stages=self.stages,
            accepts_empty_guard=setup.accepts_empty_guard,
            on_block_time=lambda leader, ahead_ms: self.clocks.note_block(leader, ahead_ms),
        )
        self.clocks = ClockSkew(self.network, lambda: self.agreement.committee, address)
        self.network.on_request(CLOCK_METHOD, serve_clock)
        self.duties = self.duties_type(
            self.ledger,
            Wallet(self.account, self.ledger),
            self.network,
            options,
            home=home,
            secret=self.account.secret,
            is_synced=self.agreement.is_synced,
        )
        self.duties.serve()
        self.duties.is_draining = lambda: self.drain.is_on
        self.duties.is_taken_back = lambda: self.drain.is_taken_back
        self.blob_search = BlobSearch(self.network, store, Random())
        self.duties.search_with(self.blob_search)
        self.gateway_blobs = GatewayBlobs(self.network, store, options.uploads, home.uploads, address)

    def stop(self) -> None:
        """Ask the node to stop in order."""
        self.setup.stopping.set()

    def reachability(self) -> Reachability:
        """Return how peers reach this node."""
        return self.peering.reachability()

    def sync(self) -> Sync:
        """Return the sync status of the node."""
        progress = self.agreement.progress()
        return Sync(
            syncing=int(progress.is_syncing),
            highest=max(progress.highest, self.ledger.head().height),
            peers=len(self.network.peers()),
            view=progress.view,
            epoch=progress.epoch,
            disk_free_mib=shutil.disk_usage(self.home.root).free // MIB,
        )

    def remaining_work(self) -> RemainingWork:
        """Return the work that a drain waits for."""
        tasks, checks, running = self.duties.under_way()
        address = self.account.address
        return RemainingWork(
            is_offered=self.duties.is_offered,
            tasks=tasks,
            checks=checks,
            running=running,
            transactions=max(0, self.ledger.pending_nonce(address) - load_account(self.store, address).nonce),
            is_serving=self.setup.gateway.is_running,
        )

    async def status(self) -> dict[str, Any]:
        """Return the node's status for its owner."""
        clocks, slash = self.clocks.estimate(), load_slash(self.store, self.account.address)
        head, sync, seat = self.ledger.head(), self.sync(), self.agreement.service.status()
        behind_ms = max(0, time.time_ns() // 1_000_000 - head.time_ms)
        reached = self.reachability()
        return {
            "address": format_address(self.account.address),
            "chain": self.genesis.name,
            "chain_id": self.genesis.chain_id,
            "height": head.height,
            "block": head.hash.hex(),
            "state_root": head.state_root.hex(),
            "block_time_ms": head.time_ms,
            "behind_ms": behind_ms,
            "genesis_time_ms": self.genesis.time_ms,
            "since_genesis_ms": time.time_ns() // 1_000_000 - self.genesis.time_ms,
            "slashed": None if slash is None else slash_fields(self.store, self.account.address, slash),
            "clock_off_ms": clocks.own_ahead_ms or self.setup.clock.off_ms,
            "clocks": [
                {"validator": format_address(seat.address), "ahead_ms": seat.ahead_ms} for seat in clocks.seats
            ],
            "upgrade": None if self.upgrades.pending is None else self.upgrades.pending._asdict(),
            "syncing": bool(sync.syncing),
            "highest": sync.highest,
            "sync": outlook(self.agreement.sync_progress())._asdict(),
            "epoch": sync.epoch,
            "view": sync.view,
            "votes": self.setup.metrics.vote_liveness.tell(
                self.agreement.committee,
                own=None if seat.is_listening else seat.seat,
                view=seat.view,
                still_s=behind_ms / 1000,
            ),
            "peers": sync.peers,
            "mempool": len(self.ledger.mempool),
            "relays": len(self.relays.reservations),
            "reachability": reached._asdict()
            | {"relays_down": [relay._asdict() for relay in reached.relays_down]},
            "jobs": self.duties.jobs(),
            "troubles": self.duties.troubles(),
            "disputes": self.duties.disputes | self.duties.dispute_results,
            "draining": self.drain.is_on,
            "log": LOG_OUTPUT.describe(),
            "gateway": self.setup.gateway.describe() if self.options.rpc.listen else None,
            "roles": list(self.options.roles),
            "version": version("dekube-node"),
        }
