"""The signer's process: vote keys behind their guards, served to the allowed nodes (trio).

It listens on a Unix socket in its home. If configured, it also listens on TCP, encrypted and authenticated. There
the node proves its address, which must be on the signer's list, and the signer proves the address in the node's
options.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

import structlog
import trio

from consensus.remote_voter import ask_signer
from consensus.signer import Answer, Request, Retire, SignerCore, SignerUnavailable
from consensus.signer_server import SignerKey, SignerServer
from node.home.files import write_whole
from node.home.guards import is_retired, open_guard
from node.home.keys import load_key, node_secret, read_passphrase
from node.home.kind import check_home_kind
from node.home.load import load_genesis
from node.home.lock import live_in
from node.home.options import SIGNER
from node.home.paths import Home
from node.process.control import short_path
from node.process.ports import format_host_port, listen_at
from node.process.signals import stop_on_signal
from node.signer.home import SignerHomeOptions, load_signer_options, signer_socket, vote_keys_of
from node.signer.tcp_server import SignerTcpServer
from node.telemetry.logs import configure_logs
from p2p.secure.identity import Identity
from rpc.process.log_output import LOG_OUTPUT
from state.primitives.address import format_address, parse_address
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.genesis import genesis_hash
from state.primitives.votes import VoteKey

__all__ = ["ask_home", "run_signer", "serve_signer"]

_log = structlog.get_logger("signer")

CONNECTIONS_MAX: Final = 16


async def ask_home(home: Home, request: Request) -> Answer:
    """Query the signer that runs in ``home``.

    Raises SignerUnavailable or the error of a refusal. Raises ConfigError for a home of another kind.
    """
    try:
        stream = await trio.open_unix_socket(short_path(signer_socket(home)))
    except OSError as error:
        check_home_kind(home.config, SIGNER)
        raise SignerUnavailable(
            f"no signer runs in {home.root} ({error.strerror or error}); `dekube signer run` starts it"
        ) from None
    return await ask_signer(stream, request)


async def serve_signer(
    home: Home, options: SignerHomeOptions, server: SignerServer, make_identity: Callable[[], Identity],
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:  # fmt: skip
    """Serve until cancelled; reports host:port of the TCP listener through ``task_status``, "" without one.

    Raises StoreError when the guard's disk fails.
    """
    path = signer_socket(home)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)  # the guard's lock tells that no other signer lives here
    local = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await local.bind(short_path(path))
    path.chmod(0o600)
    local.listen(CONNECTIONS_MAX)
    listeners: list[trio.SocketListener] = []
    if options.listen:
        try:
            opened = listen_at("listen", options.listen)
        except ConfigError:
            local.close()
            path.unlink(missing_ok=True)
            raise
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(one)) for one in opened]
    door = SignerTcpServer(
        partial(server.serve, is_local=False),
        make_identity,
        clients=frozenset(parse_address(client) for client in options.clients),
        # For each key one that votes, and one that is told that it may not.
        connections_of_one=2 * len(server.vote_keys),
    )
    connections = trio.CapacityLimiter(CONNECTIONS_MAX)

    async def serve_local(stream: trio.SocketStream) -> None:
        async with connections:
            await server.serve(stream, is_local=True)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve_local, [trio.SocketListener(local)])
            bound = ""
            if listeners:
                name = listeners[0].socket.getsockname()
                bound = format_host_port(name[0], name[1])
                nursery.start_soon(trio.serve_listeners, door.enter, listeners)
            task_status.started(bound)
    finally:
        path.unlink(missing_ok=True)


def run_signer(home: Home, ask_passphrase: Callable[[], str], *, accepts_empty_guard: bool = False) -> None:
    """Run the signer in ``home`` until SIGTERM or SIGINT.

    Raises ConfigError, KeystoreError, GuardMissing, GuardCorrupt, and StoreError when the guard's disk fails.
    """
    options = load_signer_options(home.config)
    configure_logs(options.log)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the key
    chain_hash = genesis_hash(load_genesis(home.genesis))
    file = home.passphrase_file(options.keys)
    passphrase = ask_passphrase() if file is None else read_passphrase(file)
    votes = vote_keys_of(home, passphrase)
    account = load_key(home.path(options.keys.account), passphrase)
    secret = node_secret(home)

    def make_identity() -> Identity:
        now_ms = time.time_ns() // 1_000_000
        return Identity.create(account, genesis_hash=chain_hash, now_ms=now_ms, node_secret=secret)

    def tell_refusal(error: DekubeError, request: Request) -> None:
        _log.warning("a request was refused", code=error.code, reason=str(error), request=type(request).__name__)

    with ExitStack() as stack:
        stack.enter_context(live_in(home))
        keys: list[SignerKey] = []
        for vote in votes:
            # What the chain knows of the key is the node's to check, which has a chain.
            folder = home.guard_of(vote.vote_key)
            directory = open_guard(
                folder,
                chain_hash,
                vote.vote_key,
                may_have_voted=False,
                tip=(0, 0),
                accepts_empty=accepts_empty_guard,
                may_be_retired=True,
            )
            stack.callback(directory.close)
            core = SignerCore(VoteKey(vote), directory.load_guard(chain_hash, vote.vote_key), chain_hash)
            if is_retired(folder):  # its other keys vote on
                core.step(Retire(vote.vote_key))
                _log.warning(
                    "this key does not vote: its watermark was exported. Import a watermark to allow it",
                    vote_key=vote.vote_key,
                )
            keys.append(SignerKey(core, directory.guard))
        server = SignerServer(*keys, on_refusal=tell_refusal, log_state=_log_state)
        trio.run(_run_until_told, home, options, server, make_identity)
    _log.info("stopped")


def _log_state() -> tuple[int, int]:
    failure = LOG_OUTPUT.failure()
    return LOG_OUTPUT.dropped, 0 if failure is None else failure.since_ms


async def _run_until_told(
    home: Home, options: SignerHomeOptions, server: SignerServer, make_identity: Callable[[], Identity],
) -> None:  # fmt: skip
    vote_keys = ["0x" + vote_key.hex() for vote_key in server.vote_keys]
    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signal, _log, nursery.cancel_scope.cancel)
        bound: str = await nursery.start(serve_signer, home, options, server, make_identity)
        address = make_identity().address
        ready = {
            "pid": os.getpid(),
            "address": format_address(address),
            "vote_key": vote_keys[0],
            "vote_keys": vote_keys,
            "listen": bound or None,
        }
        write_whole(home.ready, json.dumps(ready) + "\n")
        _log.info(
            "the signer is ready", vote_keys=vote_keys, socket=str(signer_socket(home)), listen=bound or None
        )
        try:
            await trio.sleep_forever()
        finally:
            home.ready.unlink(missing_ok=True)
