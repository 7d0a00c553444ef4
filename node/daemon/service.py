"""The composition root: the parts of a node, wired, started in order, ended together.

A part that fails ends the node with one line that names it; what is restarted instead (the gateway, signature
workers, jobs) restarts inside its own part by the rules in docs/operations.md.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, Final, NoReturn

import structlog
import trio

from consensus.halts import ConsensusHalted
from node.chain.block_tree import Chain, Executed
from node.chain.evidence import EvidenceService
from node.chain.ledger import NodeLedger
from node.chain.local_transactions import KeptTransactions
from node.chain.mempool import MempoolOptions
from node.chain.runtime import make_runtime
from node.chain.tx_gossip import BATCH_LIMIT_BYTES, TransactionGossip
from node.consensus.agreement import Agreement
from node.consensus.voter import votes_elsewhere
from node.daemon.admin import Admin, serve_admin
from node.daemon.reachability import Reachability, RelayDown, judge
from node.daemon.relays import is_bonded, registered_relays
from node.daemon.upgrades import UpgradeWatch
from node.daemon.view import LiveNode, make_view
from node.home.config import parse_host_port, parse_listen, parse_peer
from node.home.guards import check_record
from node.home.keys import load_key, node_secret, read_passphrase
from node.home.load import load_genesis, load_node_options
from node.home.lock import live_in
from node.home.options import NodeOptions
from node.home.paths import Home
from node.market.blob_search import BlobSearch
from node.market.blobs import GatewayBlobs
from node.market.duties import Duties
from node.market.wallet import Wallet
from node.process.control import ControlServer
from node.process.drain import Drain, Load
from node.process.gateway_process import Gateway, keep_gateway
from node.process.health_warnings import ClockWatch, tell_beginning, warn_while_alone
from node.process.ports import check_listen, format_host_port
from node.process.signals import stop_when_told
from node.process.signature_pool import SignatureVerifier, VerifierOptions
from node.sync.database import make_server, open_chain
from node.sync.initial_sync import run_state_sync
from node.sync.progress_bar import outlook, show_block_sync
from node.telemetry.clock_skew import CLOCK_METHOD, Clocks, serve_clock
from node.telemetry.cpu_accounting import Stages
from node.telemetry.metrics import NodeMetrics, serve_metrics
from p2p.base.endpoint import Endpoint
from p2p.base.limits import NetworkLimits
from p2p.base.sockets import Connector
from p2p.path.dial_back import Reach
from p2p.path.hole_punch import Puncher
from p2p.secure.identity import Identity, Role
from p2p.service import Network, NetworkConfig, vicinity_of
from relay.client.client import RelayClient
from relay.client.publisher import FanoutClient
from rpc.backend.server import Backend
from rpc.process.limits import raise_descriptor_limit, tune_collector
from rpc.process.log_output import LOG_OUTPUT
from state.primitives.address import format_address
from state.primitives.blocks import VERSION
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.genesis import Genesis, genesis_hash
from state.primitives.keys import SecretKey
from state.transition.evidence import EVIDENCE_LIMIT_BYTES, FAULTS
from state.transition.slashing import SlashRecord, bonded, load_slash
from state.view.accounts import load_account

__all__ = ["Node", "PartFailed", "run_node"]

_log = structlog.get_logger("node")

TOPIC_TRANSACTIONS: Final = "tx"
TOPIC_EVIDENCE: Final = "evidence"
BLOB_UPLINK_PERCENT: Final = 70
"""Part of the line's upload that blobs may take; the rest is for the chain."""
LAST_SCRAPE_S: Final = 60.0
"""A node whose state diverges waits so long for somebody to fetch its metrics, before it ends; ..."""
LAST_ANSWER_S: Final = 1.0
"""... and so long for them to arrive."""
CERTIFICATE_RENEWAL_S: Final = 24 * 3_600.0
DESCRIPTORS_MAX: Final = 8_192
"""Open files: each peer has up to seventeen connections, the database keeps a thousand files open."""
RELAYS_LOOK_BLOCKS: Final = 600
"""How often, in blocks, a node looks for relays in the chain's registry, ..."""
RELAYS_SEEK_BLOCKS: Final = 30
"""... and one that nobody reaches."""
ROLES: Final = {"validator": Role.VALIDATOR, "compute": Role.WORKER, "relay": Role.RELAY, "storage": Role.ARCHIVE}


class PartFailed(DekubeError):
    """A part of the node failed and took the node with it."""

    code = "part_failed"

    def __init__(self, part: str, error: BaseException) -> None:
        super().__init__(f"{part} failed: {type(error).__name__}: {error}")
        self.part = part


class Node:
    """One node: ``run`` lives until it is cancelled, told to stop, or a part fails."""

    def __init__(
        self, home: Home, options: NodeOptions, genesis: Genesis, account: SecretKey, votes: Sequence[SecretKey],
        *, accepts_empty_guard: bool = False,
    ) -> None:  # fmt: skip
        self.home = home
        self.options = options
        self.genesis = genesis
        self.account = account
        self.votes = tuple(votes)
        self.accepts_empty_guard = accepts_empty_guard
        self.chain_hash = genesis_hash(genesis)
        self.metrics = NodeMetrics()
        self.stages = Stages()
        self.drain = Drain()
        self.gateway = Gateway()
        self.clock = ClockWatch()
        self._slash_told: tuple[int, int, int] | None = None
        self._relays_looked_at = -RELAYS_LOOK_BLOCKS
        self._stop = trio.Event()

    def stop(self) -> None:
        """Ask the node to end in order."""
        self._stop.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all parts; tells ``task_status`` when the node answers. Raises PartFailed or a typed error."""
        ended: Exception | None = None
        async with trio.open_nursery() as nursery:
            if self.options.metrics.listen:
                await self._start(nursery, "metrics", serve_metrics, self.metrics, self.options.metrics.listen)
            try:
                # Before the database: its start takes long, and the gateway's process fails on its own.
                for option, listen in (
                    ("p2p.listen", self.options.p2p.listen),
                    ("rpc.listen", self.options.rpc.listen),
                ):
                    if listen:
                        check_listen(option, listen)
                await self._run_parts(task_status)
            except Exception as error:
                ended = error
                if self.options.metrics.listen and _is_divergence(error):
                    await self._show_last()
            nursery.cancel_scope.cancel()
        if ended is not None:
            raise ended

    async def _show_last(self) -> None:
        """Keep what pages somebody until it was fetched: the process that shows it is about to end."""
        _log.critical("the state diverges: ends when its metrics were fetched", within_s=LAST_SCRAPE_S)
        with trio.move_on_after(LAST_SCRAPE_S):
            async with trio.open_nursery() as nursery:

                async def fetched() -> None:
                    await self.metrics.wait_scrape()
                    await trio.sleep(LAST_ANSWER_S)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(fetched)
                await self._stop.wait()
                nursery.cancel_scope.cancel()

    async def _run_parts(self, task_status: trio.TaskStatus[None]) -> None:
        with ExitStack() as stack:
            runtime = make_runtime(
                self.genesis,
                check_invariants=self.options.check_invariants,
                protocol_version=self.options.developer.protocol_version,
            )
            if runtime.signal != VERSION:
                _log.warning(
                    "an upgrade is rehearsed: a version of the protocol without rules", signal=runtime.signal
                )
            is_wanted = await run_state_sync(
                self.home,
                self.options,
                runtime,
                address=self.account.address,
                sought=self.sought(),
                make_network=lambda: self.make_network()[0],
                wait_stop=self._stop.wait,
                stop=self.stop,
                count=lambda result: self.metrics.count("statesync_chunks_total", result=result),
            )
            if not is_wanted:
                return
            store = stack.enter_context(open_chain(self.home, self.options, runtime))
            verifier = stack.enter_context(
                SignatureVerifier(VerifierOptions(workers=self.options.processes.signature_workers))
            )
            pool = MempoolOptions(
                transactions_max=self.options.mempool.transactions_max, bytes_max=self.options.mempool.bytes_max
            )
            self.store = store
            self.ledger = NodeLedger(store, Chain(store, runtime), runtime, pool)
            self.network, self.relays = self.make_network()
            self.network.on_bonded(lambda address: is_bonded(store, address))
            self.snapshots = make_server(self.home, self.options, store, self.network)
            self.ledger.add_listener(lambda _blocks: self.snapshots.on_commit())
            self.upgrades = UpgradeWatch(store, runtime.chain, runtime.signal)
            self._look_for_upgrade(self.ledger.head().height)
            gossip = TransactionGossip(
                self.ledger,
                verifier,
                lambda payload: self.network.publish(TOPIC_TRANSACTIONS, payload),
                self.stages,
                is_outdated=lambda: self.upgrades.coming is not None,
            )
            self.ledger.on_admitted = gossip.enqueue
            self.network.on_gossip_batch(TOPIC_TRANSACTIONS, gossip.validate, payload_bytes_max=BATCH_LIMIT_BYTES)
            self.evidence = EvidenceService(
                self.ledger,
                lambda payload: self.network.publish(TOPIC_EVIDENCE, payload),
                records=store,
                reporter=self.account.address,
                path=self.home.evidence,
                metrics=self.metrics,
            )
            self.network.on_gossip(TOPIC_EVIDENCE, self.evidence.validate, payload_bytes_max=EVIDENCE_LIMIT_BYTES)
            self.ledger.add_listener(self.evidence.on_commit)
            self.ledger.add_listener(self._look_for_relays)
            self.ledger.add_listener(self._look_at_clock)
            self.ledger.add_listener(self._look_for_slash)
            self._look_for_slash(())
            self.ledger.add_listener(lambda blocks: self._look_for_upgrade(blocks[-1].header.height))
            self.agreement = Agreement(
                self.ledger,
                verifier,
                self.network,
                self.metrics,
                home=self.home,
                options=self.options,
                votes=self.votes,
                make_identity=lambda: self._identity,
                evidence=self.evidence,
                stages=self.stages,
                accepts_empty_guard=self.accepts_empty_guard,
                on_block_time=lambda leader, ahead_ms: self.clocks.note_block(leader, ahead_ms),
            )
            self.clocks = Clocks(self.network, lambda: self.agreement.committee, self.account.address)
            self.network.on_request(CLOCK_METHOD, serve_clock)
            self.wallet = Wallet(self.account, self.ledger)
            self.duties = Duties(
                self.ledger,
                self.wallet,
                self.network,
                self.options,
                home=self.home,
                secret=self.account.secret,
                is_synced=self.agreement.is_synced,
            )
            self.duties.is_draining = lambda: self.drain.is_on
            search = BlobSearch(self.network, store, Random())
            self.duties.search_with(search)
            self.view = LiveNode(self)
            blobs = GatewayBlobs(
                self.network, store, self.options.uploads, self.home.uploads, self.account.address
            )
            backend = Backend(make_view(self), LiveNode(self), self.home.socket, blobs=blobs)
            admin = Admin(self)
            control = ControlServer(self.home.control, self._verbs(admin))
            self.metrics.watch(self)
            stack.callback(self.metrics.unwatch)

            async with trio.open_nursery() as nursery:
                if self.options.mempool.keep_local:
                    # First: what comes back by gossip would be taken for somebody else's.
                    kept = KeptTransactions(
                        self.ledger,
                        self.home.waiting,
                        recover=verifier.recover,
                        wait_peers=lambda: self.network.wait_peers(1),
                    )
                    await self._start(nursery, "mempool", kept.run)
                await self._start(nursery, "network", self.network.run)
                await self._start(nursery, "evidence", self.evidence.run)
                await self._start(nursery, "snapshots", self.snapshots.run)
                nursery.start_soon(self._part, "blob search", search.run)
                await self._start(nursery, "consensus", self.agreement.run)
                await self._start(nursery, "rpc backend", backend.run)
                await self._start(nursery, "control", control.run)
                nursery.start_soon(
                    self._part,
                    "sync bar",
                    show_block_sync,
                    self.agreement.sync_progress,
                    lambda: not self.agreement.is_synced(),
                )
                nursery.start_soon(self._part, "transaction gossip", gossip.run, name="transaction gossip")
                nursery.start_soon(self._part, "duties", self.duties.run)
                nursery.start_soon(self._part, "certificate", self._renew_certificate)
                nursery.start_soon(self._part, "clocks", self.clocks.run)
                nursery.start_soon(self._part, "drain", self._stop_when_empty)
                nursery.start_soon(tell_beginning, self.genesis.time_ms, lambda: self.ledger.head().height)
                nursery.start_soon(warn_while_alone, self.network.wait_peers, self.sought(), self.chain_hash)
                nursery.start_soon(self._part, "blobs", blobs.run)
                if self.options.rpc.listen:
                    nursery.start_soon(
                        self._part,
                        "gateway",
                        keep_gateway,
                        self.options.rpc,
                        self.home.socket,
                        self.options.log,
                        self.drain,
                        self.gateway,
                    )
                if self.options.admin.listen:
                    await self._start(
                        nursery, "admin", serve_admin, admin, self.options.admin.listen, self.home.admin_token
                    )
                tune_collector()
                self._write_ready()
                task_status.started()
                try:
                    await self._stop.wait()
                    await self.duties.leave()
                finally:
                    self.home.ready.unlink(missing_ok=True)
                nursery.cancel_scope.cancel()

    # Parts

    async def _part(self, name: str, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        try:
            await function(*arguments)
        except Exception as error:
            _raise_part(name, error)

    async def _start(
        self, nursery: trio.Nursery, name: str, function: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> None:
        async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            try:
                await function(*arguments, task_status=task_status)
            except Exception as error:
                _raise_part(name, error)

        await nursery.start(run, name=name)  # the name by which CPU time is attributed

    def make_network(self) -> tuple[Network, RelayClient]:
        """Return the peer network of this node's options and identity, not running yet, and its relays."""
        options = self.options.p2p
        self._identity = self._make_identity()
        relays = []
        for text in options.relays:
            peer = parse_peer(text)
            host, port = parse_host_port(peer.endpoint.removeprefix("tcp:"))
            relays.append(Endpoint(host, port, peer.address))
        config = NetworkConfig(
            listen=parse_listen(options.listen),
            advertise=options.advertise,
            bootstrap=options.bootstrap,
            dial_inner=options.dial_inner,
            data_dir=self.home.peers,
            blob_dir=self.home.blobs,
            blob_budget_bytes=options.blob_store_bytes_max,
            limits=NetworkLimits(
                peers_in_max=options.inbound_max,
                peers_out_target=options.outbound_max,
                blob_upload_bytes_per_s=options.uplink_mbit_per_s * 1_000_000 // 8 * BLOB_UPLINK_PERCENT // 100,
            ),
        )
        log = structlog.get_logger("p2p")
        connector = Connector(vicinity_of(config, relays))
        client = RelayClient(lambda: self._identity, relays, connect=connector.connect)
        puncher = Puncher(
            lambda: [*(reservation.endpoint for reservation in client.reservations), *network.dialled],
            look_up=connector.look_up,
        )
        self.reach = Reach(log=log.info, on_change=lambda: client.need(not self.reach.is_confirmed))
        network = Network(
            config,
            self._identity,
            dialers={"relay": client, "punch": puncher},
            acceptors=(client, puncher, self.reach),
            fanout=FanoutClient(lambda: self._identity, on_published=client.published, connect=connector.connect),
            connector=connector,
            log=log.debug,
        )
        network.on_paths(lambda _target, known: client.ways(known))
        client.on_leaving(network.leave)
        puncher.attach(network)
        self.reach.attach(network)
        network.on_roam(client.roamed)
        network.on_roam(self.reach.roamed)
        return network, client

    def _look_for_relays(self, blocks: Sequence[Executed]) -> None:
        """Tell the relay client, now and then, which relays the chain knows; it reserves while that is needed."""
        has_enough = self.relays.reservations or self.reach.is_confirmed
        every = RELAYS_LOOK_BLOCKS if has_enough else RELAYS_SEEK_BLOCKS
        if blocks[-1].header.height < self._relays_looked_at + every:
            return
        self._relays_looked_at = blocks[-1].header.height
        self.relays.offer(registered_relays(self.store, self.account.address))

    def reachability(self) -> Reachability:
        """Return how others reach this node."""
        began_s = time.time() - trio.current_time()
        down = []
        for relay in self.relays.down:
            since_s = began_s + relay.since_s
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(since_s))
            down.append(RelayDown(str(relay.endpoint), since, round(since_s * 1000), relay.why))
        return judge(
            listens=bool(self.options.p2p.listen),
            configured=self.network.direct,
            verdicts=self.reach.verdicts,
            relays=[reservation.endpoint for reservation in self.relays.reservations],
            down=down,
        )

    def _make_identity(self) -> Identity:
        roles = Role(0)
        for role in self.options.roles:
            roles |= ROLES.get(role, Role(0))
        return Identity.create(
            self.account,
            genesis_hash=self.chain_hash,
            now_ms=time.time_ns() // 1_000_000,
            roles=roles,
            node_secret=node_secret(self.home),
        )

    async def _renew_certificate(self) -> None:
        while True:
            await trio.sleep(CERTIFICATE_RENEWAL_S)
            self._identity = self._make_identity()
            self.network.renew(self._identity)

    def load(self) -> Load:
        """Return what is under way."""
        tasks, checks, running = self.duties.under_way()
        address = self.account.address
        return Load(
            is_offered=self.duties.is_offered,
            tasks=tasks,
            checks=checks,
            running=running,
            transactions=max(0, self.ledger.pending_nonce(address) - load_account(self.store, address).nonce),
            is_serving=self.gateway.is_running,
        )

    async def _stop_when_empty(self) -> None:
        height = -1
        while True:
            await self.drain.wait(on=True)
            height = (await self.ledger.wait_head(height)).height
            if self.drain.stops_when_empty and self.load().is_empty:
                _log.info("drained: nothing is under way")
                self.stop()
                return

    def _write_ready(self) -> None:
        host, port = self.network.bound[0] if self.network.bound else ("", 0)
        document = {
            "pid": os.getpid(),
            "address": format_address(self.account.address),
            "p2p": format_host_port(host, port) if host else None,
            "rpc": self.options.rpc.listen or None,
            "metrics": self.options.metrics.listen or None,
            "version": version("dekube-node"),
        }
        self.home.ready.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self.home.ready.with_suffix(".new")
        temporary.write_text(json.dumps(document) + "\n")
        temporary.replace(self.home.ready)

    # The owner's verbs

    def _verbs(self, admin: Admin) -> dict[str, Callable[[Mapping[str, Any]], Awaitable[Any]]]:
        return {
            "add_blob": self._add_blob,
            "fetch_blob": self._fetch_blob,
            "admin": admin.verb,
            "status": lambda _request: self.status(),
            "stop": self._stop_verb,
        }

    async def _add_blob(self, request: Mapping[str, Any]) -> Any:
        assert self.network.blobs is not None
        name = await trio.to_thread.run_sync(self.network.blobs.add_file, Path(str(request["path"])))
        self.network.blobs.pin(name)
        return {"blob": name.hex()}

    async def _fetch_blob(self, request: Mapping[str, Any]) -> Any:
        name = bytes.fromhex(request["blob"])
        sources = [bytes.fromhex(source) for source in request["sources"]]
        path = await self.network.fetch_blob(name, sources)
        blobs = self.network.blobs
        assert blobs is not None
        blobs.hold(name)  # a copy of gigabytes takes its time
        try:
            target = await trio.to_thread.run_sync(shutil.copyfile, path, Path(str(request["path"])))
        finally:
            blobs.release(name)
        return {"bytes": target.stat().st_size}

    def sought(self) -> list[str]:
        """Return the peers and relays that the owner has named."""
        return [*self.options.p2p.bootstrap, *self.options.p2p.relays]

    def _look_at_clock(self, blocks: Sequence[Executed]) -> None:
        if len(blocks) != 1 or not self.agreement.is_synced():
            return  # older ones that are synced say nothing of now
        if self.clock.note(blocks[0].header.time_ms, time.time_ns() // 1_000_000):
            _log.warning("this machine's clock is not that of the blocks: set it", ahead_ms=self.clock.off_ms)

    def _look_for_upgrade(self, height: int) -> None:
        if not self.upgrades.note(height):
            return
        coming = self.upgrades.coming
        assert coming is not None
        if coming.last_height is None:
            text = "most may soon go on in a version that this release does not know: install a newer one"
        else:
            text = "this node ends after last_height: install a release that knows the version that follows"
        _log.warning(text, **coming._asdict())

    async def status(self) -> Any:
        """Return how the node is doing, for its owner."""
        clocks, slash = self.clocks.judge(), load_slash(self.store, self.account.address)
        head, sync, seat = self.ledger.head(), self.view.sync(), self.agreement.service.status()
        behind_ms = max(0, time.time_ns() // 1_000_000 - head.time_ms)
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
            "slashed": None if slash is None else self._slashed(slash),
            "clock_off_ms": clocks.own_ahead_ms or self.clock.off_ms,
            "clocks": [
                {"validator": format_address(seat.address), "ahead_ms": seat.ahead_ms} for seat in clocks.seats
            ],
            "upgrade": None if self.upgrades.coming is None else self.upgrades.coming._asdict(),
            "syncing": bool(sync.syncing),
            "highest": sync.highest,
            "sync": outlook(self.agreement.sync_progress())._asdict(),
            "epoch": sync.epoch,
            "view": sync.view,
            "votes": self.metrics.hearing.tell(
                self.agreement.committee,
                own=None if seat.is_listening else seat.seat,
                view=seat.view,
                still_s=behind_ms / 1000,
            ),
            "peers": sync.peers,
            "mempool": len(self.ledger.mempool),
            "relays": len(self.relays.reservations),
            "reachability": self._reachability_fields(),
            "jobs": self.duties.jobs(),
            "troubles": self.duties.troubles(),
            "draining": self.drain.is_on,
            "log": LOG_OUTPUT.describe(),
            "gateway": self.gateway.describe() if self.options.rpc.listen else None,
            "roles": list(self.options.roles),
            "version": version("dekube-node"),
        }

    def _reachability_fields(self) -> dict[str, Any]:
        found = self.reachability()
        return found._asdict() | {"relays_down": [relay._asdict() for relay in found.relays_down]}

    def _slashed(self, slash: SlashRecord) -> dict[str, Any]:
        """Return what this account was slashed for, and what is left."""
        return {
            "fault": next(name for name, number in FAULTS.items() if number == slash.fault),
            "epoch": slash.epoch,
            "view": slash.view,
            "height": slash.height,
            "taken": str(slash.taken),
            "left": str(bonded(self.store, self.account.address)),
            "reporter": format_address(slash.reporter),
        }

    def _look_for_slash(self, _blocks: Sequence[Executed]) -> None:
        slash = load_slash(self.store, self.account.address)
        if slash is not None and (slash.epoch, slash.view, slash.taken) != self._slash_told:
            self._slash_told = slash.epoch, slash.view, slash.taken
            _log.error(
                "this validator was slashed for two contradicting votes: it never votes again",
                **self._slashed(slash),
            )

    async def _stop_verb(self, _request: Mapping[str, Any]) -> Any:
        self.stop()
        return {}


def _raise_part(name: str, error: Exception) -> NoReturn:
    """Raise what ends the node: a typed error as it is, a bug as one line, its traceback in the log."""
    if isinstance(error, ExceptionGroup):
        _, unknown = error.split(DekubeError)
        if unknown is None:
            raise error
        error = _first(unknown)
    elif isinstance(error, DekubeError):
        raise error
    _log.critical("a part of the node failed", part=name, exc_info=error)
    raise PartFailed(name, error) from None


def _is_divergence(error: BaseException) -> bool:
    """Tell whether what ended the node is a state that differs from what a quorum made final."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_divergence(inner) for inner in error.exceptions)
    return isinstance(error, ConsensusHalted) and error.reason == "state_divergence"


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def run_node(
    home: Home, ask_passphrase: Callable[[], str], *, accepts_empty_guard: bool = False, checkpoint: str = ""
) -> None:
    """Run the node in ``home`` until SIGTERM or SIGINT.

    ``accepts_empty_guard``: see Agreement. ``checkpoint`` takes the place of that in the options. Raises
    ConfigError, KeystoreError, HomeInUse and PartFailed, and what parts raise.
    """
    options, genesis = load_node_options(home), load_genesis(home.genesis)
    with live_in(home):
        _live(home, options, genesis, ask_passphrase, accepts_empty_guard, checkpoint)


def _live(
    home: Home, options: NodeOptions, genesis: Genesis, ask_passphrase: Callable[[], str],
    accepts_empty_guard: bool, checkpoint: str,
) -> None:  # fmt: skip
    if checkpoint:
        options = replace(options, sync=replace(options.sync, checkpoint=checkpoint))
    file = home.passphrase_file(options.keys)
    passphrase = ask_passphrase() if file is None else read_passphrase(file)
    account = load_key(home.path(options.keys.account), passphrase)
    votes: list[SecretKey] = []
    if "validator" in options.roles and not votes_elsewhere(options):
        files = [options.keys.vote, options.keys.vote_next] if options.keys.vote_next else [options.keys.vote]
        votes = [load_key(home.path(file), passphrase) for file in files]
        if any(vote.address == account.address for vote in votes):
            raise ConfigError("keys: a vote key must not be the account's key")
        for vote in votes:
            check_record(home.guard_of(vote.vote_key), accepts_empty=accepts_empty_guard)
    node = Node(home, options, genesis, account, votes, accepts_empty_guard=accepts_empty_guard)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(stop_when_told, _log, node.stop)
            _log.info("starting", address=account.address, chain=genesis.name, roles=list(options.roles))
            await node.run()
            nursery.cancel_scope.cancel()

    raise_descriptor_limit(DESCRIPTORS_MAX)
    trio.run(main, instruments=(node.stages,))
    _log.info("stopped")
