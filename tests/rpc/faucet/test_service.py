"""The faucet: its limits over restarts, what it refuses, and the whole of it against a gateway."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import orjson
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from node.home.keys import save_key
from rpc.client import AnswerMalformed, AsyncClient, ClientError, ClientOptions, GatewayUnreachable, OtherChain
from rpc.client.api import Api, read_grant
from rpc.client.core import Flow
from rpc.client.results import ChainInfo, read_result
from rpc.faucet.service import (
    DAY_MS,
    NOT_TAKEN,
    UNDER_WAY_MAX,
    UNDER_WAY_MS,
    Application,
    FaucetOptions,
    FaucetRefused,
    GrantLog,
    caller_of,
    read_address,
)
from rpc.faucet.service import Faucet as Giver
from rpc.gateway.limits import caller_key
from rpc.protocol.errors import RpcError
from state.primitives.errors import ConfigError
from state.primitives.genesis import genesis_to_json
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from state.transition.transfer import TRANSFER_KIND
from tests.rpc.client.answers import HASH, at
from tests.rpc.client.world import Answer, World
from tests.rpc.harness import ALICE, COIN, DAVE, Gateway, Node, gateway, genesis, hexed, served

_T = TypeVar("_T")
OPTIONS = FaucetOptions((), Path("unused"), per_address=2, per_caller=3, per_day=5)
HOUR_MS = 3_600_000


def people(number: int) -> bytes:
    return bytes((number,)) * 20


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from("abc"), st.integers(0, 9 * HOUR_MS), st.booleans()),
        max_size=40,
    )
)
def test_the_limits_hold_in_every_day_over_restarts(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, str, int, bool]]
) -> None:
    path = tmp_path_factory.mktemp("faucet") / "grants.db"
    grants, now_ms = GrantLog(path, OPTIONS), 10**12
    given_: list[tuple[int, bytes, str]] = []
    for who, caller, passed_ms, restarts in requests:
        now_ms += passed_ms
        if restarts:
            grants.close()
            grants = GrantLog(path, OPTIONS)
        recent = [entry for entry in given_ if entry[0] > now_ms - DAY_MS]
        is_free = (
            sum(entry[1] == people(who) for entry in recent) < 2
            and sum(entry[2] == caller for entry in recent) < 3
            and len(recent) < 5
        )
        try:
            grants.record(people(who), caller, now_ms)
        except FaucetRefused as error:
            assert not is_free
            assert error.status == 429
            assert error.retry_after_s is not None and 0 < error.retry_after_s <= DAY_MS // 1000
        else:
            assert is_free
            given_.append((now_ms, people(who), caller))
        assert grants.count() <= OPTIONS.per_day
    grants.close()


def test_what_was_not_given_is_struck_and_the_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "grants.db"
    grants = GrantLog(path, OPTIONS)
    assert path.stat().st_mode & 0o777 == 0o600
    for _ in range(10):
        grants.revoke(grants.record(people(1), "a", 1))
    assert grants.count() == 0
    grants.close()


@pytest.mark.parametrize(
    ("passed_ms", "words"),
    [(0, "24 hours"), (22 * HOUR_MS, "120 minutes"), (DAY_MS - 90_500, "91 s"), (DAY_MS - 1, "1 s")],
)
def test_who_asks_too_often_is_told_when_to_come_again(tmp_path: Path, passed_ms: int, words: str) -> None:
    grants = GrantLog(tmp_path / "grants.db", OPTIONS)
    for _ in range(OPTIONS.per_address):
        grants.record(people(1), "a", 10**12)
    with pytest.raises(FaucetRefused, match=f"2 a day: address limit; come again in {words}$"):
        grants.record(people(1), "a", 10**12 + passed_ms)
    grants.close()


def test_a_limit_that_was_lowered_says_when_it_is_kept_again(tmp_path: Path) -> None:
    path = tmp_path / "grants.db"
    grants = GrantLog(path, replace(OPTIONS, per_address=3))
    for hour in (0, 5, 10):
        grants.record(people(1), "a", 10**12 + hour * HOUR_MS)
    grants.close()
    grants = GrantLog(path, OPTIONS)
    with pytest.raises(FaucetRefused) as caught:
        grants.record(people(1), "b", 10**12 + 11 * HOUR_MS)
    assert caught.value.retry_after_s == 18 * 3600, "two have to go"
    grants.record(people(1), "b", 10**12 + 29 * HOUR_MS)
    grants.close()


@pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_book_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "grants.db"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        GrantLog(path, OPTIONS)
    with pytest.raises(ConfigError):
        GrantLog(tmp_path / "other.db", FaucetOptions((), path, per_day=0))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b"null", b"\xff", b"[" * 900, b'{"address": 5}', b'{"address": "0x12"}',
        b'{"address": "0x19855D03FB6de1Af856B89e8bd0bb0A6cD0485fF"}',
        orjson.dumps({"address": "0x" + "11" * 20, "amount": "5"}),
        orjson.dumps({"address": "0x" + "00" * 20}),
        orjson.dumps({"address": "0x" + "00" * 18 + "0704"}),
    ],
)  # fmt: skip
def test_what_asks_for_no_account_is_refused(body: bytes) -> None:
    with pytest.raises(FaucetRefused) as caught:
        read_address(body)
    assert caught.value.status == 400


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"hash": "0x12"}', b'{"error": {}}', b'{"hash": 5}'])
def test_what_is_no_answer_of_a_faucet_is_refused(data: bytes) -> None:
    with pytest.raises(AnswerMalformed):
        read_grant(data)


# Grants


class Pool:
    """A gateway with a mempool, whose blocks take nothing until they are told to."""

    def __init__(self, chain_id: int = 5) -> None:
        self.chain_id = chain_id
        self.final = 3
        self.is_away = False
        self.raws: list[str] = []

    def answer(self, method: str, params: Any) -> Any:
        if self.is_away:
            raise GatewayUnreachable("away")
        match method:
            case "dekube_sendTransaction":
                if params["raw"] in self.raws:
                    raise RpcError("already_known", "already known")
                self.raws.append(params["raw"])
                return {"at": at(5), "hash": "0x" + keccak(bytes.fromhex(params["raw"][2:])).hex()}
            case "dekube_getNonce":
                pending = self.final
                while pending in self.nonces:
                    pending += 1
                return {"at": at(5), "nonce": self.final, "pending_nonce": pending}
            case "dekube_getReceipt":
                return {"at": at(5), "receipt": None}
            case "dekube_quote":
                kind = {"kind": TRANSFER_KIND, "name": "transfer", "gas": 21_000, "fee": "5"}
                fees = {"base_fee_next": "7", "max_fee_per_gas": "9", "max_priority_fee_per_gas": "1"}
                return {"at": at(5), **fees, "kinds": [kind]}
            case _:
                return {"at": at(5), **chain_info(self.chain_id)}

    @property
    def nonces(self) -> list[int]:
        return [decode_transaction(bytes.fromhex(raw[2:])).nonce for raw in self.raws]


def chain_info(chain_id: int) -> dict[str, Any]:
    return {"chain_id": chain_id, "name": "a", "genesis_hash": HASH, "testnet": True, "version": "1"}


class WorldClient(Api):
    """The client of a world without I/O."""

    def __init__(self, world: World) -> None:
        self.core = world.core
        self._world = world

    async def aperform(self, flow: Flow[_T]) -> _T:
        return self._world.run(flow)


class Giving:
    """A faucet of chain 5 that asks gateways which are functions."""

    def __init__(self, path: Path, *answers: Answer, chain_id: int | None = None) -> None:
        options = FaucetOptions((), path / "grants.db", per_caller=1_000)
        self.now_ms = 10**12
        self.world = World(*answers, options=ClientOptions(chain_id=chain_id))
        self.grants = GrantLog(options.book, options)
        chain: ChainInfo = read_result(ChainInfo, {"at": at(5), **chain_info(5)})
        client: Any = WorldClient(self.world)
        self.faucet = Giver(ALICE, chain, client, self.grants, options, lambda: self.now_ms)
        self.application = Application(self.faucet)

    def give(self, who: int) -> str:
        """Return what came of a grant: the reason why there is none, or nothing."""
        try:
            asyncio.run(self.faucet.grant(people(who), "a"))
        except FaucetRefused as error:
            return error.reason
        return ""

    def post(self, body: bytes) -> tuple[int, Any]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/", "client": ("192.0.2.7", 1), "headers": []}
        asyncio.run(self.application(scope, receive, send))
        return sent[0]["status"], orjson.loads(sent[1]["body"])

    def refused(self, reason: str) -> float:
        name = f'dekube_faucet_refused_total{{reason="{reason}"}} '
        lines = self.faucet.metrics().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def refusing(pool: Pool, *reasons: str | None, is_taken: bool = False) -> Answer:
    """Return a gateway that answers what is handed in with each reason in turn; None is an answer that is lost."""
    left = list(reasons)

    def answer(method: str, params: Any) -> Any:
        if method != "dekube_sendTransaction" or not left:
            return pool.answer(method, params)
        if is_taken and params["raw"] not in pool.raws:
            pool.answer(method, params)
        if (reason := left.pop(0)) is None:
            raise GatewayUnreachable("no answer")
        raise RpcError(reason, "no", **({"retry_after_s": 1} if reason == "limit_exceeded" else {}))

    return answer


@pytest.mark.parametrize(
    "reasons",
    [
        ("node_unavailable",) * 3,
        ("node_unavailable", "insufficient_funds"),
        ("limit_exceeded", "mempool_full"),
        ("height_not_reached",) * 3,
        ("nonce_too_low",),
        ("internal_error",),
        (None,),
    ],
)
def test_a_grant_that_may_have_been_taken_counts_as_given(tmp_path: Path, reasons: tuple[str | None, ...]) -> None:
    pool = Pool()
    it = Giving(tmp_path, refusing(pool, *reasons, is_taken=True))
    assert it.give(1) in ("node_unavailable", "faucet_empty")
    assert it.give(1) == "address_limit"
    assert pool.nonces == [3]


@pytest.mark.parametrize("reason", ["node_unavailable", "insufficient_funds", "mempool_full"])
def test_another_gateway_that_refuses_says_nothing_of_the_first(tmp_path: Path, reason: str) -> None:
    first, second = Pool(), Pool()
    it = Giving(tmp_path, refusing(first, None, None, None, is_taken=True), refusing(second, *[reason] * 3))
    assert it.give(1)
    assert it.give(1) == "address_limit"
    assert (first.nonces, second.nonces) == ([3], [])


@pytest.mark.parametrize("reason", sorted(NOT_TAKEN))
def test_a_grant_that_a_mempool_refused_is_struck_and_leaves_its_nonce(tmp_path: Path, reason: str) -> None:
    pool = Pool()
    it = Giving(tmp_path, refusing(pool, reason))
    told = {"insufficient_funds": "faucet_empty", "wrong_chain_id": "wrong_chain"}
    assert it.give(1) == told.get(reason, "node_unavailable")
    assert it.grants.count() == 0
    assert it.give(1) == ""
    assert pool.nonces == [3]


def gone_after_the_chain(pool: Pool) -> Callable[[str, Any], Any]:
    def answer(method: str, params: Any) -> Any:
        found = pool.answer(method, params)
        pool.is_away = True
        return found

    return answer


@pytest.mark.parametrize("chain_id", [None, 5])
def test_nothing_is_signed_for_another_chain_than_the_one_checked(tmp_path: Path, chain_id: int | None) -> None:
    first, second = Pool(5), Pool(9)
    it = Giving(tmp_path, gone_after_the_chain(first), second.answer, chain_id=chain_id)
    status, body = it.post(orjson.dumps({"address": hexed(people(1))}))
    assert (status, body["error"]["reason"]) == (503, "wrong_chain")
    assert (first.raws, second.raws, it.grants.count()) == ([], [], 0)
    assert it.refused("wrong_chain") == 1


def test_a_chain_without_transfers_is_another_one(tmp_path: Path) -> None:
    pool = Pool()

    def answer(method: str, params: Any) -> Any:
        return pool.answer(method, params) | ({"kinds": []} if method == "dekube_quote" else {})

    it = Giving(tmp_path, answer)
    assert (it.give(1), it.grants.count()) == ("wrong_chain", 0)


def test_fees_that_no_transaction_can_name_cost_no_grant(tmp_path: Path) -> None:
    pool = Pool()

    def answer(method: str, params: Any) -> Any:
        return pool.answer(method, params) | ({"max_fee_per_gas": str(2**128)} if method == "dekube_quote" else {})

    it = Giving(tmp_path, answer)
    assert (it.give(1), it.grants.count()) == ("node_unavailable", 0)


def test_a_faucet_is_of_the_chain_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(OtherChain):
        Giving(tmp_path, Pool().answer, chain_id=9)


def test_grants_at_two_gateways_have_nonces_of_their_own(tmp_path: Path) -> None:
    first, second = Pool(), Pool()
    it = Giving(tmp_path, first.answer, second.answer)
    assert it.give(1) == ""
    first.is_away = True
    assert it.give(2) == it.give(3) == ""
    assert (first.nonces, second.nonces) == ([3], [3, 4, 5]), "the first is handed in again, once"
    assert second.raws[0] == first.raws[0]


def test_a_grant_in_doubt_is_handed_in_before_the_next(tmp_path: Path) -> None:
    pool = Pool()
    it = Giving(tmp_path, refusing(pool, None))
    assert it.give(1) == "node_unavailable"
    assert it.give(2) == ""
    assert pool.nonces == [3, 4]


def test_nonces_under_way_are_bounded_and_free_when_they_are_final_or_lost(tmp_path: Path) -> None:
    pool = Pool()
    it = Giving(tmp_path, pool.answer)
    for who in range(UNDER_WAY_MAX):
        assert it.give(who + 1) == ""
    assert it.give(200) == "busy"
    assert it.grants.count() == len(it.world.core._nonces) == UNDER_WAY_MAX
    pool.final += UNDER_WAY_MAX - 1
    assert it.give(200) == ""
    assert len(it.world.core._nonces) == 2
    pool.raws.clear()
    it.now_ms += UNDER_WAY_MS
    assert it.give(201) == ""
    assert pool.nonces == [pool.final], "who waits behind what is lost waits for ever"
    assert len(it.world.core._nonces) == 1


def test_all_that_is_refused_is_counted_once(tmp_path: Path) -> None:
    it = Giving(tmp_path, Pool().answer)
    body = orjson.dumps({"address": hexed(people(1))})
    assert [it.post(body)[0] for _ in range(2)] == [200, 429]
    statuses = [it.post(b"{")[0] for _ in range(25)]
    assert it.refused("address_limit") == 1
    assert it.refused("invalid_request") == statuses.count(400) > 0
    assert it.refused("too_often") == statuses.count(429) > 0


# The process


class Faucet:
    """A running faucet and a client of it."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.url = url
        self.http = http

    async def ask(self, body: Any, **headers: str) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        response = await self.http.post(self.url, content=content, headers=headers)
        return response.status_code, response.json()

    async def give(self, key: SecretKey, **headers: str) -> tuple[int, Any]:
        return await self.ask({"address": hexed(key.address)}, **headers)

    async def metric(self, name: str) -> float:
        text = (await self.http.get(self.url + "/metrics")).text
        return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name + " ")))


def command(path: Path, it: Gateway, *options: object) -> list[str]:
    arguments = (
        "--home", path, "--rpc", it.url, "--key", path / "key.json", "--passphrase-file", path / "pass",
        "--listen", "127.0.0.1:0", "--ready-file", path / "ready.json", *options,
    )  # fmt: skip
    return [sys.executable, "-m", "node", "faucet", "run", *map(str, arguments)]


@asynccontextmanager
async def faucet(path: Path, it: Gateway, *options: object) -> AsyncIterator[Faucet]:
    ready = path / "ready.json"
    ready.unlink(missing_ok=True)
    process = await trio.to_thread.run_sync(subprocess.Popen, command(path, it, *options))
    try:
        with trio.fail_after(120):
            while not ready.exists() or not ready.read_text():
                assert process.poll() is None
                await trio.sleep(0.05)
        async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
            yield Faucet(f"http://127.0.0.1:{json.loads(ready.read_text())['port']}", http)
    finally:
        process.terminate()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(process.wait)
    assert process.returncode == 0 and not ready.exists(), "SIGTERM ends it in order"


@asynccontextmanager
async def chain(path: Path) -> AsyncIterator[tuple[Node, Gateway]]:
    node = Node(path / "db")
    node.mint()

    async def make_blocks() -> None:
        while True:
            await trio.sleep(0.1)
            node.mint()

    async with (
        served(node, path / "s") as backend,
        gateway(backend, path / "s") as it,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(make_blocks)
        yield node, it
        nursery.cancel_scope.cancel()


def keys(path: Path) -> None:
    (path / "pass").write_text("p\n")
    (path / "pass").chmod(0o600)
    save_key(path / "key.json", ALICE, "p", scrypt_n=2)


@pytest.mark.slow
async def test_coins_are_given_within_limits_that_outlive_the_process(tmp_path: Path) -> None:
    keys(tmp_path)
    fresh = [SecretKey(bytes((i + 100,)) * 32) for i in range(8)]
    limits = ("--amount", 5, "--per-ip", 4, "--per-day", 6, "--alarm", "20000", "--proxied")
    async with chain(tmp_path) as (_, it), AsyncClient(it.url) as client:
        async with faucet(tmp_path, it, *limits) as running:
            hash_ = await client.faucet(running.url, DAVE.address)
            answer = await client.call("dekube_waitForReceipt", hash=hexed(hash_), timeout_ms=30_000)
            assert answer["receipt"]["succeeded"]
            assert await client.balance(DAVE.address) == 5 * COIN
            with pytest.raises(ClientError) as caught:
                await client.faucet(running.url, DAVE.address)
            assert caught.value.reason == "address_limit"
            assert 0 < caught.value.fields["retry_after_s"] <= 24 * 3600

            # Many at once, of one caller: so many as one may have, each with a nonce of its own.
            results: list[tuple[int, Any]] = []

            async def ask(key: SecretKey) -> None:
                results.append(await running.give(key, **{"x-forwarded-for": "6.6.6.6, 192.0.2.7"}))

            async with trio.open_nursery() as nursery:
                for key in fresh[:6]:
                    nursery.start_soon(ask, key)
            given_ = [body["hash"] for status, body in results if status == 200]
            assert len(set(given_)) == len(given_) == 4
            assert {body["error"]["reason"] for status, body in results if status == 429} == {"caller_limit"}

            for body, status in (
                (b"{", 400), (b"x" * 5000, 413), ({"address": "0x"}, 400), ([], 400), (b"\xff" * 100, 400),
            ):  # fmt: skip
                assert (await running.ask(body))[0] == status
            statuses = [(await running.ask(b"{", **{"x-forwarded-for": "203.0.113.5"}))[0] for _ in range(25)]
            assert statuses[0] == 400 and 429 in statuses
            assert (await running.http.get(running.url + "/nothing")).status_code == 404
            about = (await running.http.get(running.url)).json()
            assert (about["chain_id"], about["amount"]) == (7, str(5 * COIN))
            assert await running.metric("dekube_faucet_grants_total") == 5
            await check_heads(running)
            assert await running.metric("dekube_faucet_balance_low") == 1

        async with faucet(tmp_path, it, *limits) as running:
            assert (await running.give(DAVE))[1]["error"]["reason"] == "address_limit"
            assert (await running.give(fresh[6], **{"x-forwarded-for": "2001:db8::1"}))[0] == 200
            status, body = await running.give(fresh[7], **{"x-forwarded-for": "198.51.100.1"})
            assert (status, body["error"]["reason"]) == (429, "day_limit")
    with sqlite3.connect(tmp_path / "faucet.db") as database:
        assert database.execute("SELECT count(*) FROM grants").fetchone() == (6,)


async def check_heads(running: Faucet) -> None:
    """Hold what HEAD answers, byte for byte, against what GET does; ask beforehand, as browsers do."""
    asked = {"origin": "https://x.example", "access-control-request-headers": "content-type,x-requested-with"}
    told = await running.http.options(running.url, headers=asked)
    assert told.status_code == 204
    assert told.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
    for path in ("/", "/healthz", "/metrics", "/nothing"):
        whole = await running.http.get(running.url + path)
        stream = await trio.open_tcp_stream("127.0.0.1", int(running.url.rpartition(":")[2]))
        lines = b"%s HTTP/1.1\r\nhost: localhost\r\n" % path.encode()
        async with stream:
            await stream.send_all(
                b"HEAD " + lines + b"\r\nGET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            )
            with trio.fail_after(120):
                data = b"".join([part async for part in stream])
        first, second, body = data.split(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 %d " % whole.status_code)
        assert second.startswith(b"HTTP/1.1 200 ") and json.loads(body) == {"status": "ok"}
        found = dict(line.decode().split(": ", 1) for line in first.split(b"\r\n")[1:])
        assert found.keys() == whole.headers.keys() and int(found["content-length"]) > 0
        if path in ("/healthz", "/nothing"):
            assert {**found, "date": ""} == {**whole.headers, "date": ""}


@pytest.mark.slow
async def test_a_chain_that_is_not_for_tests_gets_no_faucet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tests.rpc.harness

    keys(tmp_path)
    plain = tests.rpc.harness.genesis
    monkeypatch.setattr(tests.rpc.harness, "genesis", lambda **p: _serious(plain(**p)))
    await check_refused(tmp_path, (), "no test network", "config_error")


@pytest.mark.slow
@pytest.mark.parametrize("names", ["the command", "the genesis of the home"])
async def test_a_chain_that_is_not_the_one_named_gets_no_faucet(tmp_path: Path, names: str) -> None:
    keys(tmp_path)
    if names == "the command":
        options: tuple[object, ...] = ("--chain-id", 999)
    else:
        options = ()
        (tmp_path / "genesis.json").write_text(genesis_to_json(replace(genesis(), chain_id=999)))
    await check_refused(tmp_path, options, "chain 999 is signed for", "other_chain")


async def check_refused(path: Path, options: tuple[object, ...], text: str, code: str) -> None:
    """Check that a faucet does not start, and says why in a line."""
    async with chain(path) as (_, it):
        run = partial(subprocess.run, command(path, it, *options), capture_output=True, text=True, timeout=60)
        done = await trio.to_thread.run_sync(run)
    assert done.returncode == 1
    assert text in done.stderr
    assert done.stderr.rstrip().endswith(f"[{code}]")
    assert "Traceback" not in done.stderr


def _serious(genesis: Any) -> Any:
    return replace(genesis, testnet=False)


def test_a_proxy_is_believed_on_an_inner_network_alone() -> None:
    def caller(host: str, *, proxied: bool = True, named: bytes = b"6.6.6.6, 192.0.2.7") -> str:
        return caller_of({"client": (host, 1), "headers": [(b"x-forwarded-for", named)]}, proxied=proxied)

    assert caller("127.0.0.1") == caller("10.1.2.3") == caller_key("192.0.2.7")
    assert caller("203.0.113.5") == caller_key("203.0.113.5"), "a stranger names whom he likes"
    assert caller("127.0.0.1", proxied=False) == caller_key("127.0.0.1")
    assert caller("127.0.0.1", named=b"nobody") == caller_key("127.0.0.1")
