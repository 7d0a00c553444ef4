"""The composition root: builds a node's components, starts them in order and stops them together.

A failed component ends the node with one log line that names it. Components that are restarted instead (the
gateway, signature workers, jobs) restart by the rules in docs/operations.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Final, NoReturn

import structlog
import trio

from consensus.halts import ConsensusHalted
from node.chain.local_transactions import LocalTransactions
from node.chain.runtime import make_runtime
from node.consensus.voter import votes_elsewhere
from node.daemon.admin import Admin, serve_admin
from node.daemon.control_commands import control_commands
from node.daemon.metrics_source import NodeMetricsSource
from node.daemon.running import NodeSetup, RunningNode
from node.daemon.view import LiveNode, make_view
from node.home.guards import check_record
from node.home.keys import load_key, read_passphrase
from node.home.load import load_genesis, load_node_options
from node.home.lock import live_in
from node.home.options import NodeOptions
from node.home.paths import Home
from node.process.control import ControlServer
from node.process.gateway_process import keep_gateway
from node.process.health_warnings import log_genesis_countdown, warn_without_peers
from node.process.ports import check_listen, format_host_port
from node.process.signals import stop_on_signal
from node.process.signature_pool import SignatureVerifier, VerifierOptions
from node.sync.database import open_chain
from node.sync.initial_sync import run_state_sync
from node.sync.progress_bar import show_block_sync
from node.telemetry.metrics import serve_metrics
from rpc.backend.server import Backend
from rpc.process.limits import raise_descriptor_limit, tune_collector
from state.primitives.address import format_address
from state.primitives.blocks import VERSION
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.genesis import Genesis
from state.primitives.keys import SecretKey

__all__ = ["ComponentFailed", "Node", "run_node"]

_log = structlog.get_logger("node")

LAST_SCRAPE_S: Final = 60.0
"""When its state diverges, the node waits this long for a scrape of its metrics before it ends, ..."""
LAST_ANSWER_S: Final = 1.0
"""... and this long for the answer to be sent."""
DESCRIPTORS_MAX: Final = 8_192
"""Open files: each peer has up to 17 connections, and the database keeps 1,000 files open."""


class ComponentFailed(DekubeError):
    """A component of the node failed, and the node ended with it."""

    code = "component_failed"

    def __init__(self, part: str, error: BaseException) -> None:
        super().__init__(f"{part} failed: {type(error).__name__}: {error}")
        self.part = part


class Node:
    """One node. ``run`` lasts until it is cancelled, told to stop, or a component fails."""

    def __init__(
        self, home: Home, options: NodeOptions, genesis: Genesis, account: SecretKey, votes: Sequence[SecretKey],
        *, accepts_empty_guard: bool = False,
    ) -> None:  # fmt: skip
        self.setup = NodeSetup(home, options, genesis, account, tuple(votes), accepts_empty_guard)

    def stop(self) -> None:
        """Ask the node to stop in order."""
        self.setup.stopping.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all components; reports through ``task_status`` when the node answers.

        Raises ComponentFailed or a typed error.
        """
        ended: Exception | None = None
        options = self.setup.options
        async with trio.open_nursery() as nursery:
            if options.metrics.listen:
                await _start_part(nursery, "metrics", serve_metrics, self.setup.metrics, options.metrics.listen)
            try:
                # Before the database: its start takes long, and the gateway's process fails on its own.
                for option, listen in (("p2p.listen", options.p2p.listen), ("rpc.listen", options.rpc.listen)):
                    if listen:
                        check_listen(option, listen)
                await self._run_parts(task_status)
            except Exception as error:
                ended = error
                if options.metrics.listen and _is_divergence(error):
                    await self._show_last()
            nursery.cancel_scope.cancel()
        if ended is not None:
            raise ended

    async def _show_last(self) -> None:
        """Keep the metrics available until they were scraped: the process is about to end."""
        _log.critical(
            "the node's state differs from the certified one: it ends as soon as its metrics were scraped",
            within_s=LAST_SCRAPE_S,
        )
        with trio.move_on_after(LAST_SCRAPE_S):
            async with trio.open_nursery() as nursery:

                async def fetched() -> None:
                    await self.setup.metrics.wait_scrape()
                    await trio.sleep(LAST_ANSWER_S)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(fetched)
                await self.setup.stopping.wait()
                nursery.cancel_scope.cancel()

    async def _run_parts(self, task_status: trio.TaskStatus[None]) -> None:
        setup = self.setup
        runtime = make_runtime(
            setup.genesis,
            check_invariants=setup.options.check_invariants,
            protocol_version=setup.options.developer.protocol_version,
        )
        if runtime.signal != VERSION:
            _log.warning(
                "an upgrade is rehearsed: this release has no rules for that protocol version",
                signal=runtime.signal,
            )
        is_wanted = await run_state_sync(
            setup.home,
            setup.options,
            runtime,
            address=setup.account.address,
            sought=setup.named_peers,
            make_network=lambda: setup.make_peering().network,
            wait_stop=setup.stopping.wait,
            stop=self.stop,
            count=lambda result: setup.metrics.count("statesync_chunks_total", result=result),
        )
        if not is_wanted:
            return
        with ExitStack() as stack:
            store = stack.enter_context(open_chain(setup.home, setup.options, runtime))
            verifier = stack.enter_context(
                SignatureVerifier(VerifierOptions(workers=setup.options.processes.signature_workers))
            )
            node = RunningNode(setup, runtime, store, verifier)
            admin = Admin(node)
            backend = Backend(
                make_view(node), LiveNode(node), setup.home.socket, blobs=node.gateway_blobs,
                views=node.duties.views,
            )  # fmt: skip
            control = ControlServer(setup.home.control, control_commands(node, admin))
            setup.metrics.watch(NodeMetricsSource(node))
            stack.callback(setup.metrics.unwatch)
            async with trio.open_nursery() as nursery:
                if setup.options.mempool.keep_local:
                    # First: what comes back by gossip would be taken for somebody else's.
                    kept = LocalTransactions(
                        node.ledger,
                        setup.home.waiting,
                        recover=verifier.recover,
                        wait_peers=lambda: node.network.wait_peers(1),
                    )
                    await _start_part(nursery, "mempool", kept.run)
                await _start_parts(nursery, node, backend, control)
                if setup.options.admin.listen:
                    await _start_part(
                        nursery, "admin", serve_admin, admin, setup.options.admin.listen, setup.home.admin_token
                    )
                tune_collector()
                _write_ready(node)
                task_status.started()
                try:
                    await setup.stopping.wait()
                    await node.duties.leave()
                finally:
                    setup.home.ready.unlink(missing_ok=True)
                nursery.cancel_scope.cancel()


async def _start_parts(nursery: trio.Nursery, node: RunningNode, backend: Backend, control: ControlServer) -> None:
    """Start the components that every node has, and its gateway, each after the components that it needs."""
    await _start_part(nursery, "network", node.network.run)
    await _start_part(nursery, "evidence", node.evidence.run)
    await _start_part(nursery, "snapshots", node.snapshots.run)
    nursery.start_soon(_run_part, "blob search", node.blob_search.run)
    await _start_part(nursery, "consensus", node.agreement.run)
    await _start_part(nursery, "rpc backend", backend.run)
    await _start_part(nursery, "control", control.run)
    nursery.start_soon(
        _run_part, "sync bar", show_block_sync, node.agreement.sync_progress,
        lambda: not node.agreement.is_synced(),
    )  # fmt: skip
    nursery.start_soon(_run_part, "transaction gossip", node.gossip.run, name="transaction gossip")
    nursery.start_soon(_run_part, "duties", node.duties.run)
    nursery.start_soon(_run_part, "certificate", node.peering.renew_certificates)
    nursery.start_soon(_run_part, "clocks", node.clocks.run)
    nursery.start_soon(_run_part, "drain", _stop_when_empty, node)
    nursery.start_soon(log_genesis_countdown, node.genesis.time_ms, lambda: node.ledger.head().height)
    nursery.start_soon(warn_without_peers, node.network.wait_peers, node.setup.named_peers, node.setup.chain_hash)
    nursery.start_soon(_run_part, "blobs", node.gateway_blobs.run)
    if node.options.rpc.listen:
        nursery.start_soon(
            _run_part, "gateway", keep_gateway, node.options.rpc, node.home.socket, node.options.log, node.drain,
            node.setup.gateway,
        )  # fmt: skip


async def _run_part(name: str, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
    try:
        await function(*arguments)
    except Exception as error:
        _raise_part(name, error)


async def _start_part(
    nursery: trio.Nursery, name: str, function: Callable[..., Awaitable[Any]], *arguments: Any
) -> None:
    async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            await function(*arguments, task_status=task_status)
        except Exception as error:
            _raise_part(name, error)

    await nursery.start(run, name=name)  # the name by which CPU time is attributed


async def _stop_when_empty(node: RunningNode) -> None:
    height = -1
    while True:
        await node.drain.wait(on=True)
        height = (await node.ledger.wait_head(height)).height
        if node.drain.stops_when_empty and node.remaining_work().is_empty:
            _log.info("drained: no work is under way")
            node.stop()
            return


def _write_ready(node: RunningNode) -> None:
    """Write the addresses of the running node, for processes that wait for its start."""
    host, port = node.network.bound[0] if node.network.bound else ("", 0)
    document = {
        "pid": os.getpid(),
        "address": format_address(node.account.address),
        "p2p": format_host_port(host, port) if host else None,
        "rpc": node.options.rpc.listen or None,
        "metrics": node.options.metrics.listen or None,
        "version": version("dekube-node"),
    }
    node.home.ready.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = node.home.ready.with_suffix(".new")
    temporary.write_text(json.dumps(document) + "\n")
    temporary.replace(node.home.ready)


def _raise_part(name: str, error: Exception) -> NoReturn:
    """Raise the error that ends the node.

    A typed error is raised unchanged. A bug becomes one line; its traceback is logged.
    """
    if isinstance(error, ExceptionGroup):
        _, unknown = error.split(DekubeError)
        if unknown is None:
            raise error
        error = _first(unknown)
    elif isinstance(error, DekubeError):
        raise error
    _log.critical("a component of the node failed; the node ends", part=name, exc_info=error)
    raise ComponentFailed(name, error) from None


def _is_divergence(error: BaseException) -> bool:
    """Tell whether the node ended because its state differs from the one that a quorum made final."""
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

    ``accepts_empty_guard``: see Agreement. ``checkpoint`` replaces the one in the options. Raises ConfigError,
    KeystoreError, HomeInUse and ComponentFailed, and errors of components.
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
            await nursery.start(stop_on_signal, _log, node.stop)
            _log.info("starting", address=account.address, chain=genesis.name, roles=list(options.roles))
            await node.run()
            nursery.cancel_scope.cancel()

    raise_descriptor_limit(DESCRIPTORS_MAX)
    trio.run(main, instruments=(node.setup.stages,))
    _log.info("stopped")
