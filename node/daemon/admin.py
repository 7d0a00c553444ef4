"""The owner's methods as JSON-RPC on a separate port: loopback only, with a token, off by default.

The methods have a table of their own, which ``rpc.discover`` describes there. The gateway offers none of them. The
control socket offers the same methods (``node.process.control``), so the command line needs neither port nor
token.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
import trio

from node.daemon.running import RunningNode
from node.home.config import LOG_LEVELS, parse_host_port, parse_peer
from node.process.bounded_http import BoundedServer, serving
from node.process.control import ControlRefused
from node.process.ports import cannot_listen, listen_at
from node.telemetry.logs import set_log_level
from p2p.base.endpoint import Endpoint
from rpc.methods.method import Json, Method, bind
from rpc.methods.openrpc import describe
from rpc.methods.render import ADDRESS_OUT, AMOUNT_OUT, HASH_OUT, hexed
from rpc.methods.schema import (
    ADDRESS,
    BOOLEAN,
    HASH,
    NUMBER,
    STRING,
    Param,
    ParamType,
    array,
    choice,
    natural,
    nullable,
    obj,
    text,
)
from rpc.methods.validators import JAIL_OUT, jail_json
from rpc.protocol.errors import RpcError
from state.primitives.address import format_address
from state.primitives.errors import ConfigError, DekubeError, ProtocolError
from state.transition.jail import load_jail
from state.transition.staking import load_stake

__all__ = ["TABLE", "Admin", "serve_admin"]

_log = structlog.get_logger("admin")

BODY_LIMIT_BYTES: Final = 64 * 1024
CONNECTIONS_MAX: Final = 16
REQUEST_TIMEOUT_S: Final = 10
TOKEN_BYTES: Final = 32
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
REASON_CHARACTERS: Final = 100
_IDENTIFIERS: Final = (int, str, type(None))
BAN_S_MAX: Final = 30 * 24 * 3_600


# The methods


async def _status(node: RunningNode) -> Json:
    return await node.status()


async def _peers(node: RunningNode) -> Json:
    return [
        {
            "address": format_address(peer.address),
            "endpoint": peer.remote,
            "outbound": peer.is_outbound,
            "roles": [role.name.lower() for role in peer.roles if role.name],
            "latency_us": None if peer.rtt_ms is None else int(peer.rtt_ms * 1000),
            "score": float(peer.score),
            "age_s": int(peer.age_s),
            "bytes_in": peer.bytes_in,
            "bytes_out": peer.bytes_out,
        }
        for peer in node.network.peers()
    ]


async def _bans(node: RunningNode) -> Json:
    return [
        {"address": format_address(address), "left_s": int(left_s)}
        for address, left_s in node.network.bans.left_s().items()
    ]


async def _ban(node: RunningNode, address: bytes, reason: str, seconds: int | None) -> Json:
    if address == node.account.address:
        raise RpcError("invalid_params", "invalid params: address: that is this node", param="address")
    node.network.ban(address, f"by the owner: {reason}" if reason else "by the owner", ban_s=seconds)
    return {"left_s": int(node.network.bans.left_s()[address])}


async def _unban(node: RunningNode, address: bytes) -> Json:
    return {"was_banned": node.network.bans.lift(address)}


async def _connect(node: RunningNode, peer: tuple[bytes, Endpoint]) -> Json:
    node.network.connect(*peer)
    return {"connected": node.network.is_connected(peer[0])}


async def _disconnect(node: RunningNode, address: bytes) -> Json:
    return {"was_connected": node.network.disconnect(address, "by the owner")}


async def _log_level(_node: RunningNode, level: str) -> Json:
    before = set_log_level(level)
    _log.warning("log level set", level=level, before=before)
    return {"before": before, "level": level}


async def _drop_transaction(node: RunningNode, hash_: bytes) -> Json:
    dropped = node.ledger.mempool.remove(hash_)
    node.ledger.on_pool_changed()
    return {"dropped": dropped is not None}


async def _clear_mempool(node: RunningNode) -> Json:
    dropped = node.ledger.mempool.clear()
    node.ledger.on_pool_changed()
    _log.warning("mempool cleared", transactions=dropped)
    return {"dropped": dropped}


async def _snapshot(node: RunningNode) -> Json:
    offer = await node.snapshots.make_now()
    return {"snapshot": None if offer is None else {"height": offer.height, "pieces": offer.pieces}}


async def _validator(node: RunningNode) -> Json:
    status, seats = node.agreement.service.status(), node.agreement.committee.seats
    own, state = node.account.address, node.ledger.store
    jail, stake = load_jail(state, own), load_stake(state, own)
    if jail is not None and jail.until_epoch <= status.epoch:
        jail = None  # it has sat out what it had to
    return {
        "address": format_address(own),
        "stake": str(0 if stake is None else stake.amount),
        "jail": jail_json(jail),
        "vote_keys": [hexed(vote.vote_key) for vote in node.votes],
        "signer": node.options.signer.endpoint or None,
        "epoch": status.epoch,
        "view": status.view,
        "height": status.height,
        "last_height_of_epoch": status.last_height,
        "seat": status.seat,
        "seat_key": None if status.seat is None else hexed(seats[status.seat].vote_key),
        "seats": len(seats),
        "leader": status.leader,
        "listens_before_voting": status.is_listening,
        "listens_s_max": node.agreement.listens_s_max,
    }


async def _drain(node: RunningNode, on: bool, stop: bool, leave: bool) -> Json:
    if on != node.drain.is_on:
        _log.warning("draining begins" if on else "draining ends")
    node.drain.switch(on=on, stops_when_empty=stop, takes_back=leave)
    return node.drain.describe(node.remaining_work())


async def _get_drain(node: RunningNode) -> Json:
    return node.drain.describe(node.remaining_work())


async def _disputes(node: RunningNode) -> Json:
    return node.duties.dispute_rows()


async def _challenge(node: RunningNode, task: bytes, window: int | None, check_only: bool) -> Json:
    asked = node.duties.challenges.ask(task, window, is_check_only=check_only)
    return {"windows": [key.window for key in asked]}


async def _challenges(node: RunningNode, task: bytes) -> Json:
    return node.duties.challenges.rows(task)


async def _stop(node: RunningNode) -> Json:
    _log.warning("the owner's method admin_stop was called: the node ends")
    node.stop()
    return {}


def _read_peer(value: Any) -> tuple[bytes, Endpoint]:
    if type(value) is not str or len(value) > 512:
        raise ValueError("0xADDRESS@tcp:host:port expected")
    try:
        peer = parse_peer(value)
        host, port = parse_host_port(peer.endpoint.removeprefix("tcp:"))
    except ConfigError as error:
        raise ValueError(str(error)) from None
    if not host or not port:
        raise ValueError("0xADDRESS@tcp:host:port expected")
    return peer.address, Endpoint(host, port, peer.address)


_PEER: Final = ParamType({"type": "string", "maxLength": 512}, _read_peer)
_ADDRESS: Final = Param("address", ADDRESS, "The peer.")
_BOOLEAN: Final = {"type": "boolean"}
_DRAIN: Final = obj(
    {
        "draining": _BOOLEAN, "taken_back": _BOOLEAN, "stops_when_empty": _BOOLEAN, "empty": _BOOLEAN,
        "offered": _BOOLEAN, "tasks": NUMBER, "checks": NUMBER, "running": NUMBER, "transactions": NUMBER,
        "serving": _BOOLEAN,
    }
)  # fmt: skip


def _method(name: str, summary: str, handle: Any, result: dict[str, Any], *params: Param) -> Method:
    return Method(name, summary, handle, result, params, has_min_height=False, group="admin")


async def _discover(_node: RunningNode) -> Json:
    return DOCUMENT


TABLE: Final[Mapping[str, Method]] = {
    method.name: method
    for method in (
        _method("admin_status", "How the node is doing, as `dekube status` shows it", _status, {"type": "object"}),
        _method(
            "admin_getPeers",
            "Connections, with what is thought of them",
            _peers,
            array(
                obj(
                    {
                        "address": ADDRESS_OUT, "endpoint": STRING, "outbound": _BOOLEAN, "roles": array(STRING),
                        "latency_us": nullable(NUMBER), "score": {"type": "number"}, "age_s": NUMBER,
                        "bytes_in": NUMBER, "bytes_out": NUMBER,
                    }
                )
            ),
        ),
        _method(
            "admin_getBans", "Who is kept away, and for how long", _bans,
            array(obj({"address": ADDRESS_OUT, "left_s": NUMBER})),
        ),
        _method(
            "admin_banPeer", "Drop a peer and keep it away", _ban, obj({"left_s": NUMBER}), _ADDRESS,
            Param("reason", text(REASON_CHARACTERS), "For the log.", required=False, default=""),
            Param("seconds", natural(1, BAN_S_MAX), "For how long; absent: as for a fault.", required=False),
        ),
        _method("admin_unbanPeer", "Let a peer in again", _unban, obj({"was_banned": _BOOLEAN}), _ADDRESS),
        _method(
            "admin_connectPeer", "Dial a peer now", _connect, obj({"connected": _BOOLEAN}),
            Param("peer", _PEER, "0xADDRESS@tcp:host:port"),
        ),
        _method(
            "admin_disconnectPeer", "End a connection; the peer may come back", _disconnect,
            obj({"was_connected": _BOOLEAN}), _ADDRESS,
        ),
        _method(
            "admin_setLogLevel", "Log more or less from now on", _log_level,
            obj({"before": STRING, "level": STRING}),
            Param("level", choice(*LOG_LEVELS), "The least that is logged."),
        ),
        _method(
            "admin_dropTransaction", "Take a transaction out of this node's mempool", _drop_transaction,
            obj({"dropped": _BOOLEAN}), Param("hash", HASH, "Its hash."),
        ),
        _method("admin_clearMempool", "Empty this node's mempool", _clear_mempool, obj({"dropped": NUMBER})),
        _method(
            "admin_makeSnapshot", "Make the snapshot that is due now; the newest one where none is", _snapshot,
            obj({"snapshot": nullable(obj({"height": NUMBER, "pieces": NUMBER}))}),
        ),
        _method(
            "admin_getValidator", "The node's vote keys and its seat", _validator,
            obj(
                {
                    "address": ADDRESS_OUT, "stake": AMOUNT_OUT, "jail": JAIL_OUT,
                    "vote_keys": array(HASH_OUT), "signer": nullable(STRING),
                    "epoch": NUMBER, "view": NUMBER, "height": NUMBER, "last_height_of_epoch": NUMBER,
                    "seat": nullable(NUMBER), "seat_key": nullable(HASH_OUT), "seats": NUMBER, "leader": NUMBER,
                    "listens_before_voting": _BOOLEAN, "listens_s_max": NUMBER,
                }
            ),
        ),
        _method(
            "admin_drain",
            "Take no new work and no requests, finish what runs; ask again to see how far it is",
            _drain, _DRAIN,
            Param("on", BOOLEAN, "false: go back to work.", required=False, default=True),
            Param("stop", BOOLEAN, "End the node when it is empty.", required=False, default=False),
            Param(
                "leave", BOOLEAN, "End containers within the notice, and store their checkpoints.",
                required=False, default=False,
            ),
        ),
        _method("admin_getDrain", "What is under way, and whether the node drains", _get_drain, _DRAIN),
        _method(
            "admin_getDisputes", "Disputes that this machine plays", _disputes,
            array(
                obj(
                    {
                        "task": HASH_OUT, "window": NUMBER, "number": NUMBER, "segment": NUMBER, "side": STRING,
                        "other": ADDRESS_OUT, "phase": STRING, "our_turn": _BOOLEAN, "moves": NUMBER,
                        "left_ms": NUMBER,
                    }
                )
            ),
        ),
        _method(
            "admin_challenge", "Re-run the open windows of a task, and challenge what differs", _challenge,
            obj({"windows": array(NUMBER)}), Param("task", HASH, "The task."),
            Param("window", natural(0, 2**32 - 1), "Only this window.", required=False),
            Param("check_only", BOOLEAN, "true: challenge nothing.", required=False, default=False),
        ),
        _method(
            "admin_getChallenges", "Where the checks that were asked for stand", _challenges,
            array(
                obj(
                    {
                        "window": NUMBER, "state": STRING, "segments": NUMBER, "done": NUMBER,
                        "segment": nullable(NUMBER), "detail": STRING,
                    }
                )
            ),
            Param("task", HASH, "The task."),
        ),
        _method("admin_stop", "End the node in order", _stop, obj({})),
        _method("rpc.discover", "This document", _discover, {"type": "object"}),
    )
}  # fmt: skip
"""Every method of the owner by its name; used for dispatch."""
DOCUMENT: Final = describe(
    TABLE,
    title="DEKUBE node, for its owner",
    description="Served on the loopback interface alone, with the token of run/admin.token. Errors carry a stable "
    "`data.reason`.",
)


class Admin:
    """Answers the owner's requests, on the node's event loop."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node

    async def call(self, name: str, params: Any) -> Json:
        """Return the result of a method. Raises DekubeError."""
        method = TABLE.get(name)
        if method is None:
            asked = name[:64]
            message = f"the method {asked} does not exist/is not available"
            raise RpcError("method_not_found", message, method=asked)
        return await method.handle(self._node, *bind(method.params, params))

    async def command(self, request: Mapping[str, Any]) -> Json:
        """Return the result of a request at the control socket. Raises DekubeError."""
        try:
            return await self.call(str(request["method"]), request.get("params"))
        except RpcError as error:
            raise ControlRefused(error.reason, error.message) from None

    async def answer(self, body: bytes) -> Json:
        """Return the answer to a request. Every failure has a code; none ends the node."""
        identifier: Any = None
        try:
            try:
                request = orjson.loads(body)  # its depth is bounded, whatever the interpreter's limit is
            except ValueError:
                raise RpcError("parse_error", "parse error") from None
            match request:
                case {"jsonrpc": "2.0", "method": str(name), **rest} if type(rest.get("id")) in _IDENTIFIERS:
                    identifier = rest.get("id")
                    result = await self.call(name, rest.get("params"))
                    return {"jsonrpc": "2.0", "id": identifier, "result": result}
                case _:
                    raise RpcError("invalid_request", "invalid request: one request of JSON-RPC 2.0 expected")
        except RpcError as error:
            failure = error.to_json()
        except DekubeError as error:
            failure = RpcError(error.code, str(error) or error.code).to_json()
        except Exception:
            _log.exception("a request of the owner failed")
            failure = RpcError("internal_error", "internal error").to_json()
        return {"jsonrpc": "2.0", "id": identifier, "error": failure}


# The port


class _Refused(ProtocolError):
    code = "refused"

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Server(BoundedServer):
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, listener: socket.socket, admin: Admin, token: str) -> None:
        self.admin = admin
        self.token = token
        self.loop = trio.lowlevel.current_trio_token()
        super().__init__(listener, _Handler, connections_max=CONNECTIONS_MAX)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a disconnected client is not an event."""


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server: _Server
    server_version = "dekube"
    sys_version = ""

    def do_POST(self) -> None:
        """Answer a request."""
        try:
            body = self._read()
            answer = trio.from_thread.run(self.server.admin.answer, body, trio_token=self.server.loop)
            self._say(200, answer)
        except _Refused as error:
            self._say(error.status, {"error": str(error)})
        except (trio.RunFinishedError, trio.Cancelled):
            self.close_connection = True  # the node ends

    def _read(self) -> bytes:
        headers = self.headers
        host = headers.get("host", "").lower()
        name, _, port = host.rpartition(":")
        # A page that rebinds its name to this machine has another host, and every page has an origin.
        if (name if name and port.isdigit() else host) not in LOOPBACK_NAMES or "origin" in headers:
            raise _Refused(403, "not for web pages")
        given = headers.get("authorization", "")
        if not hmac.compare_digest(given.encode("latin-1", "replace"), f"Bearer {self.server.token}".encode()):
            raise _Refused(401, "Authorization: Bearer and the token expected")
        if self.path != "/":
            raise _Refused(404, "POST / expected")
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()) or len(length) > 9 or int(length) > BODY_LIMIT_BYTES:
            raise _Refused(413, f"Content-Length missing or above {BODY_LIMIT_BYTES}")
        return self.rfile.read(int(length))

    def _say(self, status: int, document: Json) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the methods themselves log what they do."""


def _write_token(path: Path) -> str:
    """Write a new token with mode 0600, replacing the previous one, and return it."""
    token = secrets.token_hex(TOKEN_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    new.replace(path)
    return token


async def serve_admin(
    admin: Admin, listen: str, token_file: Path, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer at ``listen`` until cancelled; reports the port through ``task_status``. Raises ConfigError.

    The library's server runs in threads of its own; the methods run on the node's loop. A new token is written at
    each start and removed at the end.
    """
    listeners = listen_at("admin.listen", listen)
    try:
        token = _write_token(token_file)
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise cannot_listen("admin.listen", listen, error) from None
    servers = [_Server(listener, admin, token) for listener in listeners]
    with serving(servers):
        try:
            task_status.started(servers[0].server_address[1])
            await trio.sleep_forever()
        finally:
            token_file.unlink(missing_ok=True)  # noqa: ASYNC240  the node ends
