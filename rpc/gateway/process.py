"""The gateway: ``python -m rpc.gateway.process --config FILE`` or ``--config-fd N`` (JSON of ``GatewayOptions``).

The node starts it as its child; it can also be started by hand. It survives restarts of the node: while the node
is away, requests are answered with ``node_unavailable``.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
import uvicorn
import uvloop

from p2p.base.listening import open_sockets
from rpc.gateway.app import Application, WebOptions
from rpc.gateway.blobs import BlobEndpoint, BlobOptions
from rpc.gateway.connections import ConnectionLimiter, ConnectionOptions
from rpc.gateway.dispatch import Dispatcher, DispatchOptions
from rpc.gateway.limits import is_loopback
from rpc.gateway.method_table import METHOD_TABLE, missing_method_hint
from rpc.gateway.metrics import Metrics
from rpc.gateway.node.client import NodeClient, NodeClientOptions
from rpc.gateway.protocols import make_protocols
from rpc.gateway.subscriptions import SessionOptions, SubscriptionHub
from rpc.gateway.unsent_bytes import bound_kernel
from rpc.process.limits import raise_descriptor_limit, tune_collector
from rpc.process.log_output import LOG_OUTPUT, configure_structlog, open_standard_descriptors
from rpc.process.signals import ignore_log_signals
from state.primitives.errors import ConfigError
from state.primitives.listen import format_host_port, parse_listen

__all__ = ["GatewayOptions", "gateway_command", "main", "options_from_json", "options_to_json"]

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

CONFIG_LIMIT_BYTES: Final = 64 * 1024
BACKLOG: Final = 2048
DESCRIPTORS_SPARE: Final = 64
"""Open files beside the clients' connections: the node's socket, the event loop's, the log."""


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The configuration of a gateway process."""

    socket: str
    """Path of the node's Unix socket."""
    host: str = "127.0.0.1"
    """Empty: all addresses of IPv4 and IPv6."""
    port: int = 8545
    """0: any free port; the gateway reports it to the node."""
    listen: tuple[str, ...] = ()
    """host:port of several addresses, in place of ``host`` and ``port``."""
    cors: tuple[str, ...] = ("*",)
    hosts: tuple[str, ...] = ()
    """Host names to accept beside the loopback ones when listening on loopback."""
    log_level: str = "info"
    log_format: str = "auto"
    """text, json, or auto: text on a terminal."""
    keep_alive_s: int = 120
    """Longer than clients keep idle connections in their pools, so that they do not use a closing one."""
    ready_blocks_behind_max: int = 5
    ready_peers_min: int = 1
    ready_disk_mib_min: int = 256
    dispatch: DispatchOptions = field(default_factory=DispatchOptions)
    connections: ConnectionOptions = field(default_factory=ConnectionOptions)
    session: SessionOptions = field(default_factory=SessionOptions)
    node: NodeClientOptions = field(default_factory=NodeClientOptions)
    blobs: BlobOptions = field(default_factory=BlobOptions)


def options_to_json(options: GatewayOptions) -> str:
    """Return the configuration as the process reads it."""
    return json.dumps(dataclasses.asdict(options))


def options_from_json(text: str) -> GatewayOptions:
    """Return the options of a configuration. Raises ConfigError."""
    try:
        return _read(GatewayOptions, json.loads(text), "rpc gateway")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"rpc gateway: {error}") from None


def _read(cls: type[_T], document: Any, where: str) -> _T:
    if type(document) is not dict:
        raise ConfigError(f"{where}: an object expected")
    fields: dict[str, Any] = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name not in fields:
            raise ConfigError(f"{where}: unknown option {name!r}")
        default = fields[name].default_factory
        if dataclasses.is_dataclass(default):
            values[name] = _read(default, value, f"{where}.{name}")  # type: ignore[arg-type]
        elif type(value) is list and all(type(item) is str for item in value):
            values[name] = tuple(value)
        elif type(value) in (str, int, float, bool):
            values[name] = value
        else:
            raise ConfigError(f"{where}: {name}: unexpected value")
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from None


def gateway_command(config_fd: int) -> list[str]:
    """Return the command line of a gateway that reads its configuration from an inherited descriptor."""
    return [sys.executable, "-m", "rpc.gateway.process", "--config-fd", str(config_fd)]


async def serve(options: GatewayOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError when the address cannot be bound."""
    # Imported here: FastAPI is slow to load, and the node, which only starts this process, does not need it.
    from rpc.gateway.rest import ReadinessOptions, rest_api

    options = dataclasses.replace(options, connections=_within_descriptors(options.connections))
    where = ",".join(options.listen) or format_host_port(options.host, options.port)
    places = parse_listen(where)
    try:
        listeners = open_sockets(places, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"rpc: cannot listen on {where}: {error}") from None
    for listener in listeners:
        bound_kernel(listener)
    loop = asyncio.get_running_loop()
    node = NodeClient(Path(options.socket), options.node)
    node.serving = listeners[0].getsockname()[:2]
    hub = SubscriptionHub(node)
    limiter = ConnectionLimiter(options.connections)
    metrics = Metrics(node, limiter)
    dispatcher = Dispatcher(
        node, METHOD_TABLE, options.dispatch, loop.time, metrics.observe, missing_method_hint, limiter.memory_quota
    )
    readiness = ReadinessOptions(
        options.ready_blocks_behind_max, options.ready_peers_min, options.ready_disk_mib_min
    )
    application = Application(
        hub,
        dispatcher,
        rest_api(node, dispatcher, metrics, readiness),
        BlobEndpoint(node, options.blobs, loop.time, metrics.observe),
        metrics,
        limiter.memory_quota,
        options.session,
        WebOptions(options.cors, options.hosts, all(is_loopback(host) for host, _ in places)),
    )
    http, websocket = make_protocols(limiter, application)
    server = uvicorn.Server(
        uvicorn.Config(
            application,
            http=http,
            ws=websocket,
            ws_max_size=options.dispatch.body_bytes_max,
            ws_per_message_deflate=False,  # a small frame must not become a large message
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=options.keep_alive_s,
            timeout_graceful_shutdown=3,
        )
    )
    background = [asyncio.ensure_future(part) for part in (node.run(), hub.run(), limiter.watch())]
    for task in background:
        task.add_done_callback(_end_on_failure)
    tune_collector()
    _log.info("rpc gateway listens", host=node.serving[0], port=node.serving[1])
    try:
        await server.serve(listeners)
    finally:
        for task in background:
            task.remove_done_callback(_end_on_failure)
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)


def _within_descriptors(connections: ConnectionOptions) -> ConnectionOptions:
    """Raise the limit of open files; return the options with no more connections than it allows."""
    limit = raise_descriptor_limit(connections.connections_max + DESCRIPTORS_SPARE) - DESCRIPTORS_SPARE
    if limit >= connections.connections_max:
        return connections
    _log.warning("fewer connections than configured: open files are limited", connections_max=limit)
    return dataclasses.replace(connections, connections_max=limit)


def _end_on_failure(task: asyncio.Task[None]) -> None:
    """End the process when a background task has failed; the node starts another one."""
    if not task.cancelled():
        _log.critical("rpc gateway failed", error=repr(task.exception()))
        LOG_OUTPUT.flush()
        os._exit(70)


def _load(arguments: argparse.Namespace) -> GatewayOptions:
    try:
        if arguments.config_fd is not None:
            with os.fdopen(arguments.config_fd, "rb") as stream:
                data = stream.read(CONFIG_LIMIT_BYTES)
        else:
            data = Path(arguments.config).read_bytes()[:CONFIG_LIMIT_BYTES]
        return options_from_json(data.decode())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"rpc gateway: configuration: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; return its exit status."""
    open_standard_descriptors()
    ignore_log_signals()
    parser = argparse.ArgumentParser(prog="dekube-rpc-gateway", description="JSON-RPC gateway of a DEKUBE node")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", help="JSON file with the gateway's options")
    source.add_argument("--config-fd", type=int, help="inherited descriptor to read them from")
    try:
        options = _load(parser.parse_args(arguments))
        if options.log_level.upper() not in logging.getLevelNamesMapping():
            raise ConfigError(
                f"rpc gateway: log_level {options.log_level!r}: debug, info, warning or error expected"
            )
        configure_structlog(options.log_level, options.log_format)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # warnings are of what anybody may send
        uvloop.run(serve(options))
    except ConfigError as error:
        LOG_OUTPUT.write(f"dekube: {error}\n")
        return 78
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
