"""The faucet of a test network: grants coins, with daily limits by address, by caller and in all.

``POST /`` with ``{"address": "0x..."}`` answers ``{"hash": ...}``. It is a process with a key of its own that
speaks to the network as any client does, and starts for a chain alone whose genesis says that it is for tests.
What it gives is written down before, so its limits hold over restarts and crashes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
import structlog
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest

from p2p.base.listening import open_sockets
from rpc.client.aio import AsyncClient
from rpc.client.core import Call, ClientOptions, hexed
from rpc.client.errors import ClientError, OtherChain
from rpc.client.results import ChainInfo, Nonce, read_result
from rpc.gateway.app import allowed_headers
from rpc.gateway.asgi_only import AsgiOnly
from rpc.gateway.connections import ConnectionLimiter, ConnectionOptions
from rpc.gateway.limits import Proxies, caller_key, caller_limiter
from rpc.gateway.protocols import make_protocols
from rpc.gateway.unsent_bytes import bound_kernel
from rpc.process.log_output import LogCollector
from state.primitives.address import format_address, parse_address
from state.primitives.amounts import format_amount
from state.primitives.errors import ConfigError, DecodeError, DekubeError
from state.primitives.keys import SecretKey
from state.primitives.listen import parse_listen
from state.primitives.transactions import decode_transaction
from state.transition.calls import SYSTEM_PREFIX
from state.transition.transfer import TRANSFER_KIND

__all__ = ["Faucet", "FaucetOptions", "FaucetRefused", "GrantLog", "caller_of", "read_address", "serve"]

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)

BODY_LIMIT_BYTES: Final = 1024
BODY_DEADLINE_S: Final = 10.0
REQUESTS_PER_S: Final = 2.0
REQUESTS_BURST: Final = 20.0
"""Requests of one caller, granted or not."""
WAITING_MAX: Final = 64
"""Requests that wait to be signed; further ones are refused with a time to retry."""
DAY_MS: Final = 24 * 3600 * 1000
BALANCE_EVERY_S: Final = 10.0
GRANTS_PER_DAY_MAX: Final = 1_000_000
UNDER_WAY_MAX: Final = 64
"""Submitted grants that are not final: as many as a mempool queues behind a missing nonce."""
UNDER_WAY_MS: Final = 10 * 60 * 1000
"""A grant that is not final after so long is lost, and its nonce is free again."""
NOT_TAKEN: Final = frozenset(
    (
        "fee_cap_too_low", "insufficient_funds", "mempool_full", "nonce_too_high", "replacement_underpriced",
        "sender_limit", "wrong_chain_id",
    )
)  # fmt: skip
"""Reasons by which a mempool refuses a transaction for certain. A used nonce is none: it may be this grant's."""
_OF_ADDRESS: Final = "FROM grants WHERE address = ?"
_OF_CALLER: Final = "FROM grants WHERE caller = ?"
_OF_ALL: Final = "FROM grants WHERE time_ms > ?"
_PROXIES: Final = Proxies(("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"))
"""Networks of one's own proxy; X-Forwarded-For from elsewhere is ignored."""
AGAIN_S: Final = 5
"""Retry time for callers that found the faucet busy, or its node away."""


@dataclass(frozen=True, slots=True)
class FaucetOptions:
    """Options of a faucet: amounts, limits, and where it listens."""

    gateways: tuple[str, ...]
    book: Path
    """The file with the record of grants."""
    chain_id: int | None = None
    """Of the chain whose coins are given; None: that which a gateway names at the start."""
    listen: str = "127.0.0.1:8600"
    """Without a host on all addresses of IPv4 and IPv6; several with commas."""
    amount: int = 10 * 10**18
    per_address: int = 1
    """Grants a day to one address."""
    per_caller: int = 5
    """Grants a day to one IPv4 address, or /64 of IPv6."""
    per_day: int = 1_000
    """Grants a day in all."""
    alarm: int = 1_000 * 10**18
    """A balance below raises an alarm in the metrics and the log."""
    proxied: bool = False
    """Behind a proxy on an inner network: callers are whom it names last in X-Forwarded-For."""
    ready_file: Path | None = None
    """Written when it listens (JSON with process id and port)."""


class FaucetRefused(DekubeError):
    """A refused request; ``reason`` is a stable code, ``retry_after_s`` says when to try again."""

    code = "faucet_refused"

    def __init__(self, reason: str, message: str, *, status: int, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = reason  # type: ignore[misc]
        self.reason = reason
        self.status = status
        self.retry_after_s = retry_after_s

    def to_json(self) -> dict[str, Any]:
        """Return the answer's body."""
        fields: dict[str, Any] = {"reason": self.reason, "message": str(self)}
        if self.retry_after_s is not None:
            fields["retry_after_s"] = self.retry_after_s
        return {"error": fields}


class GrantLog:
    """The grants of the last day in a small database. Older entries are deleted, so its size is bounded."""

    def __init__(self, path: Path, options: FaucetOptions) -> None:
        """Raises ConfigError for a file that is not a faucet's."""
        if not 0 < options.per_day <= GRANTS_PER_DAY_MAX:
            raise ConfigError(f"faucet: 1 to {GRANTS_PER_DAY_MAX} grants a day")
        self._options = options
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS grants (id INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, "
                "address BLOB NOT NULL, caller TEXT NOT NULL)"
            )
            self._database.execute("CREATE INDEX IF NOT EXISTS by_address ON grants (address)")
            self._database.execute("CREATE INDEX IF NOT EXISTS by_caller ON grants (caller)")
            self._database.execute("CREATE INDEX IF NOT EXISTS by_time ON grants (time_ms)")
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"{path}: {error}") from None

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def record(self, address: bytes, caller: str, now_ms: int) -> int:
        """Record a grant and return its number. Raises FaucetRefused where a limit is reached.

        A clock that was set back keeps entries longer, never shorter.
        """
        self._database.execute("DELETE FROM grants WHERE time_ms <= ?", (now_ms - DAY_MS,))
        options = self._options
        for query, value, limit, reason in (
            (_OF_ADDRESS, address, options.per_address, "address_limit"),
            (_OF_CALLER, caller, options.per_caller, "caller_limit"),
            (_OF_ALL, 0, options.per_day, "day_limit"),
        ):
            (count,) = self._database.execute(f"SELECT count(*) {query}", (value,)).fetchone()
            if count >= limit:
                # More than the limit are there after it was lowered: so many of them have to go first.
                last = self._database.execute(
                    f"SELECT time_ms {query} ORDER BY time_ms LIMIT 1 OFFSET ?", (value, count - limit)
                ).fetchone()
                wait_s = max(1, -(-(last[0] + DAY_MS - now_ms) // 1000)) if last else DAY_MS // 1000
                text = f"{limit} a day: {reason.replace('_', ' ')}; come again in {_in_words(wait_s)}"
                raise FaucetRefused(reason, text, status=429, retry_after_s=wait_s)
        made = self._database.execute(
            "INSERT INTO grants (time_ms, address, caller) VALUES (?, ?, ?)", (now_ms, address, caller)
        )
        return int(made.lastrowid or 0)

    def revoke(self, number: int) -> None:
        """Delete a grant that was certainly not sent."""
        self._database.execute("DELETE FROM grants WHERE id = ?", (number,))

    def count(self) -> int:
        """Return how many grants are kept."""
        return int(self._database.execute("SELECT count(*) FROM grants").fetchone()[0])


def _in_words(span_s: int) -> str:
    hours, minutes = -(-span_s // 3_600), -(-span_s // 60)
    return f"{hours} hours" if hours > 2 else f"{minutes} minutes" if minutes > 2 else f"{span_s} s"


def read_address(body: bytes) -> bytes:
    """Return the address that a request asks coins for. Raises FaucetRefused."""
    try:
        match orjson.loads(body):
            case {"address": str(text), **rest} if not rest:
                address = parse_address(text)
            case _:
                raise DecodeError('{"address": "0x..."} expected')
    except (ValueError, DecodeError) as error:
        text = str(error) if isinstance(error, DecodeError) else "not JSON"
        raise FaucetRefused("invalid_request", text, status=400) from None
    if address.startswith(SYSTEM_PREFIX) or not any(address):
        raise FaucetRefused("invalid_request", "coins sent there would be lost", status=400)
    return address


@dataclass(slots=True)
class _Grant:
    """A grant that was handed in and is not final, as far as is known."""

    raw: bytes
    time_ms: int
    url: str | None = None
    """The gateway that took it; None where that is in doubt."""


class Faucet:
    """Gives coins of ``key``."""

    def __init__(
        self, key: SecretKey, chain: ChainInfo, client: AsyncClient, book: GrantLog, options: FaucetOptions,
        now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        """Raises ConfigError for a chain that is not for tests, OtherChain for one that is not signed for."""
        if not chain.testnet:
            raise ConfigError(f"{chain.name} (id {chain.chain_id}) is no test network by its genesis: no faucet")
        # A gateway that takes over may be of another chain, and what it names may not be signed for.
        client.core.check_chain(chain.chain_id)
        self.options = options
        self.chain = chain
        self.address = key.address
        self._key = key
        self._client = client
        self._grants = book
        self._now_ms = now_ms
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._under_way: dict[int, _Grant] = {}
        """By nonce."""
        self._owned = 0
        self._registry = CollectorRegistry()
        self._given = Counter("dekube_faucet_grants", "Coins given.", registry=self._registry)
        self._refused = Counter("dekube_faucet_refused", "Requests refused.", ("reason",), registry=self._registry)
        self._balance = Gauge("dekube_faucet_balance_dkb", "What the faucet owns.", registry=self._registry)
        self._low = Gauge("dekube_faucet_balance_low", "Whether that is below the alarm.", registry=self._registry)
        self._kept = Gauge("dekube_faucet_grants_of_day", "Grants of the last day.", registry=self._registry)
        self._kept.set_function(book.count)
        self._registry.register(LogCollector())

    def metrics(self) -> bytes:
        """Return the metrics in Prometheus' format."""
        return generate_latest(self._registry)

    def about(self) -> dict[str, Any]:
        """Return what the faucet says of itself."""
        options = self.options
        return {
            "chain": self.chain.name,
            "chain_id": self.chain.chain_id,
            "address": format_address(self.address),
            "amount": str(options.amount),
            "balance": str(self._owned),
            "granted": self._grants.count(),
            "limits_per_day": {
                "address": options.per_address,
                "caller": options.per_caller,
                "all": options.per_day,
            },
        }

    def count_refused(self, error: FaucetRefused) -> None:
        """Count a request that was refused."""
        self._refused.labels(error.reason).inc()

    async def grant(self, address: bytes, caller: str) -> bytes:
        """Send coins to ``address``; return the transaction's hash. Raises FaucetRefused."""
        if self._waiting >= WAITING_MAX:
            raise FaucetRefused("busy", "too many ask at once", status=503, retry_after_s=AGAIN_S)
        self._waiting += 1
        try:
            async with self._turn:  # a nonce belongs to one transaction
                # What waits for its answer when the process ends counts as given.
                number = self._grants.record(address, caller, self._now_ms())
                try:
                    nonce, raw = await self._sign(address)
                except DekubeError as error:  # nothing is handed in
                    self._grants.revoke(number)
                    raise _told(error) from None
                found = await self._hand_in(nonce, raw, number)
        finally:
            self._waiting -= 1
        self._given.inc()
        return found

    async def _sign(self, address: bytes) -> tuple[int, bytes]:
        chain = await self._client.chain()
        if chain.genesis_hash != self.chain.genesis_hash:
            raise OtherChain(f"{chain.name} has another genesis")
        await self._forget_final()
        if len(self._under_way) >= UNDER_WAY_MAX:
            raise FaucetRefused("busy", "too many grants are not final", status=503, retry_after_s=AGAIN_S)
        raw = await self._client.sign(self._key, TRANSFER_KIND, [address, self.options.amount])
        nonce = decode_transaction(raw).nonce  # raises for fees that no transaction can name
        await self._hand_in_again()
        return nonce, raw

    async def _hand_in(self, nonce: int, raw: bytes, number: int) -> bytes:
        """Hand in the grant ``number``; return its hash. It is struck only where it was surely not taken."""
        grant = self._under_way[nonce] = _Grant(raw, self._now_ms())
        self._client.core.note_nonce(self.address, nonce)
        try:
            found = await self._client.submit(raw)
        except DekubeError as error:
            if isinstance(error, ClientError) and error.reason in NOT_TAKEN:
                self._forget(nonce)
                self._grants.revoke(number)
            raise _told(error) from None
        grant.url = self._client.core.url
        return found

    async def _forget_final(self) -> None:
        """Free the nonces of grants that are final, or lost."""
        if not self._under_way:
            return
        answer = await self._client.call("dekube_getNonce", address=hexed(self.address))
        place, now_ms = read_result(Nonce, answer), self._now_ms()
        for nonce, grant in list(self._under_way.items()):
            if nonce < place.nonce or not 0 <= now_ms - grant.time_ms < UNDER_WAY_MS:
                self._forget(nonce)

    def _forget(self, nonce: int) -> None:
        del self._under_way[nonce]
        self._client.core.drop_nonce(self.address, nonce)

    async def _hand_in_again(self) -> None:
        """Give the gateway that is asked now the grants before the next: without them that one would not be taken.

        The gateway that took them may have gone with them, and one in doubt counts as given.
        """
        url = self._client.core.url
        again = [grant for _, grant in sorted(self._under_way.items()) if grant.url != url]
        if not again:
            return
        calls = [Call("dekube_sendTransaction", {"raw": hexed(grant.raw)}) for grant in again]
        for grant, answer in zip(again, await self._client.batch(calls), strict=True):
            is_taken = not isinstance(answer, ClientError) or answer.reason == "already_known"
            grant.url = self._client.core.url if is_taken else None

    async def watch_balance(self) -> None:
        """Keep the metrics of the balance, until cancelled."""
        was_low = False
        while True:
            with suppress(DekubeError):
                owned = await self._client.balance(self.address)
                is_low = owned < self.options.alarm
                self._owned = owned
                self._balance.set(owned / 10**18)
                self._low.set(is_low)
                if is_low and not was_low:
                    _log.warning(
                        "the faucet runs dry", balance=format_amount(owned), address=format_address(self.address)
                    )
                was_low = is_low
            await asyncio.sleep(BALANCE_EVERY_S)


def _told(error: DekubeError) -> FaucetRefused:
    """Return the caller's error for an error between faucet and node."""
    if isinstance(error, FaucetRefused):
        return error
    if isinstance(error, ClientError) and error.reason == "insufficient_funds":
        return FaucetRefused("faucet_empty", "the faucet is empty", status=503)
    # A chain that does not know transfers is a ConfigError, and not the one of the start.
    if isinstance(error, OtherChain | ConfigError) or (
        isinstance(error, ClientError) and error.reason == "wrong_chain_id"
    ):
        return FaucetRefused("wrong_chain", "the node is of another chain now", status=503)
    return FaucetRefused("node_unavailable", "the node does not take it now", status=503, retry_after_s=AGAIN_S)


# HTTP

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Application:
    """The faucet as an ASGI application."""

    def __init__(self, faucet: Faucet) -> None:
        self._faucet = faucet
        self._rates = caller_limiter(REQUESTS_PER_S, REQUESTS_BURST)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        match scope["method"], scope["path"]:
            case "POST", "/":
                await self._post(scope, receive, send)
            case "OPTIONS", _:
                allowed = (b"access-control-allow-headers", allowed_headers(scope["headers"]))
                await _answer(send, 204, b"", extra=[allowed, (b"access-control-max-age", b"86400")])
            case "GET" | "HEAD", "/":  # of HEAD, uvicorn sends no body
                await _answer_json(send, 200, self._faucet.about())
            case "GET" | "HEAD", "/healthz":
                await _answer_json(send, 200, {"status": "ok"})
            case "GET" | "HEAD", "/metrics":
                await _answer(send, 200, self._faucet.metrics(), CONTENT_TYPE_LATEST)
            case _:
                refusal = FaucetRefused("not_found", "POST / or GET / is there", status=404)
                await _answer_json(send, refusal.status, refusal.to_json())

    async def _post(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        try:
            caller = caller_of(scope, proxied=self._faucet.options.proxied)
            if wait_s := self._rates.spend(caller, 1, time.monotonic()):
                raise FaucetRefused("too_often", "too many requests", status=429, retry_after_s=int(wait_s) + 1)
            hash_ = await self._faucet.grant(read_address(await _read_body(receive)), caller)
        except FaucetRefused as error:
            self._faucet.count_refused(error)
            extra = [(b"retry-after", b"%d" % error.retry_after_s)] if error.retry_after_s is not None else []
            await _answer_json(send, error.status, error.to_json(), extra)
            return
        await _answer_json(send, 200, {"hash": hexed(hash_), "amount": str(self._faucet.options.amount)})


def caller_of(scope: Mapping[str, Any], *, proxied: bool) -> str:
    """Return the key by which the grants of a caller are counted."""
    client = scope.get("client")
    host = str(client[0]) if client else ""
    if proxied and _PROXIES.include(host):
        named = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        host = (Proxies.client_of(named[-1]) if named else None) or host
    return caller_key(host) if host else ""


async def _read_body(receive: Receive) -> bytes:
    body = b""
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise FaucetRefused("invalid_request", "the body is not whole", status=400)
                body += message.get("body", b"")
                if len(body) > BODY_LIMIT_BYTES:
                    raise FaucetRefused("invalid_request", f"more than {BODY_LIMIT_BYTES} bytes", status=413)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise FaucetRefused("invalid_request", "the body takes too long", status=408) from None


async def _answer_json(
    send: Send, status: int, document: Any, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    await _answer(send, status, orjson.dumps(document), "application/json", extra)


async def _answer(
    send: Send, status: int, body: bytes, kind: str = "text/plain", extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"access-control-allow-origin", b"*"),
        *(extra or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve(key: SecretKey, options: FaucetOptions) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises ConfigError when the chain is not for tests or the address cannot be bound, OtherChain when it is not
    that of the options, GatewayUnreachable.
    """
    try:
        listeners = open_sockets(parse_listen(options.listen))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"faucet: cannot listen on {options.listen}: {error}") from None
    for listener in listeners:
        bound_kernel(listener)
    async with AsyncClient(*options.gateways, options=ClientOptions(chain_id=options.chain_id)) as client:
        book = GrantLog(options.book, options)
        faucet = Faucet(key, await client.chain(), client, book, options, lambda: time.time_ns() // 1_000_000)
        limiter = ConnectionLimiter(ConnectionOptions(connections_max=1_024, connections_per_address_max=32))
        http, _ = make_protocols(limiter, AsgiOnly(BODY_LIMIT_BYTES))
        server = uvicorn.Server(
            uvicorn.Config(
                Application(faucet), http=http, ws="none", lifespan="off", log_config=None, access_log=False,
                proxy_headers=False, server_header=False, timeout_keep_alive=5, timeout_graceful_shutdown=3,
            )
        )  # fmt: skip
        watching = [asyncio.ensure_future(part) for part in (faucet.watch_balance(), limiter.watch())]
        host, port = listeners[0].getsockname()[:2]
        _log.info("faucet listens", host=host, port=port, chain=faucet.chain.name, pid=os.getpid())
        if options.ready_file is not None:
            options.ready_file.parent.mkdir(parents=True, exist_ok=True)
            options.ready_file.write_text(json.dumps({"pid": os.getpid(), "port": port}))
        # uvicorn raises the signal that ended it once more. By default that would end the process before the rest.
        signal.signal(signal.SIGTERM, server.handle_exit)
        try:
            await server.serve(listeners)
        finally:
            for watch in watching:
                watch.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            book.close()
            if options.ready_file is not None:
                options.ready_file.unlink(missing_ok=True)
