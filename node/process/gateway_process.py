"""Runs the RPC gateway process, and restarts it when it ends (docs/operations.md)."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from node.home.config import parse_listen
from node.home.options import LogOptions, RpcOptions
from node.process.children import Child
from node.process.drain import Drain
from node.process.ports import format_host_port

__all__ = ["GatewayProcess", "gateway_document", "keep_gateway"]

_log = structlog.get_logger("gateway")

STEADY_S: Final = 60.0
"""A gateway that ran for this long is restarted at once; after a shorter run the restart is delayed."""
DELAY_S_MIN: Final = 0.5
DELAY_S_MAX: Final = 30.0
DOUBLINGS_MAX: Final = 10
STOP_GRACE_S: Final = 5.0


def gateway_document(options: RpcOptions, node_socket: Path, log: LogOptions) -> dict[str, Any]:
    """Return the options for the gateway process that come from the node (``rpc.gateway.process.GatewayOptions``).

    They are repeated here because importing that module would load the web server into this process.
    """
    return {
        "socket": str(node_socket),
        "listen": [format_host_port(host, port) for host, port in parse_listen(options.listen)],
        "cors": options.cors,
        "hosts": options.hosts,
        "log_level": log.level,
        "log_format": log.format,
        "ready_peers_min": options.ready_peers_min,
        "dispatch": {
            "rate_per_s": options.units_per_s,
            "burst": options.units_burst,
            "requests_per_caller_max": options.requests_per_address_max,
        },
        "connections": {
            "connections_max": options.connections_max,
            "connections_per_address_max": options.connections_per_address_max,
            "trusted_proxies": options.trusted_proxies,
        },
        "session": {"subscriptions_per_address_max": options.subscriptions_per_address_max},
        "node": {"filters_per_caller_max": options.filters_per_address_max},
    }


class GatewayProcess:
    """State of the gateway process as the node sees it."""

    is_running = False
    started_s = 0.0
    """Time of the last start, of trio's clock."""
    failures = 0
    """Number of unexpected ends in a row before the last start."""

    def describe(self) -> dict[str, Any]:
        """Return its state for the node's owner. A gateway that ran for a while counts as healthy."""
        is_steady = self.is_running and trio.current_time() - self.started_s > STEADY_S
        return {"running": self.is_running, "failures": 0 if is_steady else self.failures}


async def keep_gateway(
    options: RpcOptions, node_socket: Path, log: LogOptions, drain: Drain | None = None,
    gateway: GatewayProcess | None = None,
) -> None:  # fmt: skip
    """Run the gateway until cancelled, except while ``drain`` is on; ``gateway`` gets its state.

    The gateway holds no state, so its end only loses connections. The node continues and restarts it with growing
    delays. A validator votes without it too.
    """
    drain, gateway = drain or Drain(), gateway or GatewayProcess()
    document = json.dumps(gateway_document(options, node_socket, log))
    while True:
        await drain.wait(on=False)
        gateway.started_s = trio.current_time()
        status: int | str
        try:
            child = _start(document)
        except OSError as error:  # too many processes or files: no reason to end the node
            status = f"not started: {error}"
        else:
            gateway.is_running = True
            try:
                status = await _wait_end(child, drain)
            finally:
                await child.stop(STOP_GRACE_S)  # it takes no more connections and finishes its requests
                gateway.is_running = False
            if drain.is_on:
                _log.info("the rpc gateway is stopped until the drain ends")
                continue
        ran_s = trio.current_time() - gateway.started_s
        gateway.failures = 1 if ran_s > STEADY_S else gateway.failures + 1
        delay_s = min(DELAY_S_MIN * 2 ** min(gateway.failures - 1, DOUBLINGS_MAX), DELAY_S_MAX)
        _log.error(
            "the rpc gateway ended unexpectedly and is restarted; see the log lines before",
            status=status, ran_s=round(ran_s), failures=gateway.failures, delay_s=delay_s,
        )  # fmt: skip
        await trio.sleep(delay_s)


async def _wait_end(child: Child, drain: Drain) -> int | str:
    """Wait until the gateway ends or the node drains; return its exit status."""
    status: int | str = "told to"

    async def wait(scope: trio.CancelScope) -> None:
        nonlocal status
        status = await child.wait()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, nursery.cancel_scope)
        await drain.wait(on=True)
        nursery.cancel_scope.cancel()
    return status


def _start(document: str) -> Child:
    handle = os.memfd_create(f"gateway-{time.monotonic_ns()}")
    try:
        os.write(handle, document.encode())
        os.lseek(handle, 0, os.SEEK_SET)
        return Child([sys.executable, "-m", "rpc.gateway.process", "--config-fd", str(handle)], pass_fds=(handle,))
    finally:
        os.close(handle)
