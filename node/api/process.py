"""Runs ``dekube api``: one HTTP server of this machine (asyncio), and a thread that carries the jobs on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import uvicorn

from node.api.app import FORM_BYTES_MAX, Guard, make_app
from node.api.driver import Driver
from node.api.key import open_key_file
from node.api.making import Maker, MakerOptions, ModelFile
from node.api.service import Service
from node.api.store import Store
from node.home.paths import Home
from p2p.base.listening import open_sockets
from rpc.client import Client
from rpc.gateway.asgi_only import AsgiOnly
from rpc.gateway.connections import ConnectionLimiter, ConnectionOptions
from rpc.gateway.protocols import make_protocols
from rpc.gateway.unsent_bytes import bound_kernel
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey

__all__ = ["ApiOptions", "serve"]

_log = structlog.get_logger(__name__)

CONNECTIONS_MAX: Final = 256
ENDING_S: Final = 5.0
"""Time for the step that the thread of jobs is in; the rest is done after the next start."""


@dataclass(frozen=True)
class ApiOptions:
    """Options of the server."""

    home: Home
    folder: Path
    models: tuple[ModelFile, ...]
    budget: int
    max_price: int
    match_ms: int
    port: int
    ready_file: Path | None = None


async def serve(
    key: SecretKey, options: ApiOptions, connect: Callable[[], Client], control: Callable[[], Path | None]
) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError."""
    for model in options.models:
        model.check()
    token = open_key_file(options.folder / "key")
    store = Store(options.folder)
    try:
        listeners = open_sockets([("127.0.0.1", options.port)])
    except (OSError, OverflowError) as error:
        store.close()
        raise ConfigError(f"api: cannot listen on 127.0.0.1:{options.port}: {error}") from None
    for listener in listeners:
        bound_kernel(listener)
    making = threading.Lock()
    maker = Maker(options.models, options.home, store, MakerOptions(options.max_price, options.match_ms))
    driver = Driver(store, maker, connect, key, control, making)
    service = Service(store, maker, connect, driver, making, key.address, options.budget, int(time.time()))
    # One address only: all connections are of this machine.
    limiter = ConnectionLimiter(ConnectionOptions(CONNECTIONS_MAX, CONNECTIONS_MAX, held_bytes_max=0))
    http, _ = make_protocols(limiter, AsgiOnly(FORM_BYTES_MAX))
    server = uvicorn.Server(
        uvicorn.Config(
            Guard(make_app(service, store), token), http=http, ws="none", lifespan="off", log_config=None,
            access_log=False, proxy_headers=False, server_header=False, timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
        )
    )  # fmt: skip
    thread = threading.Thread(target=_run, args=(driver,), name="jobs", daemon=True)
    watching = asyncio.ensure_future(limiter.watch())
    port = listeners[0].getsockname()[1]
    _log.info("api listens", base_url=f"http://127.0.0.1:{port}/v1", key_file=str(options.folder / "key"))
    signal.signal(signal.SIGTERM, server.handle_exit)
    thread.start()
    if options.ready_file is not None:
        options.ready_file.parent.mkdir(parents=True, exist_ok=True)
        options.ready_file.write_text(json.dumps({"pid": os.getpid(), "port": port}))
    try:
        await server.serve(listeners)
    finally:
        watching.cancel()
        driver.stop()
        await asyncio.to_thread(thread.join, ENDING_S)
        if options.ready_file is not None:
            options.ready_file.unlink(missing_ok=True)
        if not thread.is_alive():
            store.close()


def _run(driver: Driver) -> None:
    """Carry jobs on; a fault of this program ends the process, for its state is unknown then."""
    try:
        driver.run()
    except BaseException as error:
        _log.critical("jobs are not carried on", error=repr(error))
        os._exit(70)
