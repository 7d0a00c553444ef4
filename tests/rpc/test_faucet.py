"""The faucet: its limits over restarts, what it refuses, and the whole of it against a gateway."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from node.home import save_key
from rpc.client import AnswerMalformed, AsyncClient, ClientError
from rpc.client.api import read_grant
from rpc.faucet import DAY_MS, FaucetOptions, FaucetRefused, GrantBook, caller_of, read_address
from rpc.limits import caller_key
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from tests.rpc.harness import ALICE, COIN, DAVE, Gateway, Node, gateway, hexed, served

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
    path = tmp_path_factory.mktemp("faucet") / "book.db"
    book, now_ms = GrantBook(path, OPTIONS), 10**12
    given_: list[tuple[int, bytes, str]] = []
    for who, caller, passed_ms, restarts in requests:
        now_ms += passed_ms
        if restarts:
            book.close()
            book = GrantBook(path, OPTIONS)
        recent = [entry for entry in given_ if entry[0] > now_ms - DAY_MS]
        is_free = (
            sum(entry[1] == people(who) for entry in recent) < 2
            and sum(entry[2] == caller for entry in recent) < 3
            and len(recent) < 5
        )
        try:
            book.enter(people(who), caller, now_ms)
        except FaucetRefused as error:
            assert not is_free
            assert error.status == 429
            assert error.retry_after_s is not None and 0 < error.retry_after_s <= DAY_MS // 1000
        else:
            assert is_free
            given_.append((now_ms, people(who), caller))
        assert book.count() <= OPTIONS.per_day
    book.close()


def test_what_was_not_given_is_struck_and_the_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "book.db"
    book = GrantBook(path, OPTIONS)
    assert path.stat().st_mode & 0o777 == 0o600
    for _ in range(10):
        book.strike(book.enter(people(1), "a", 1))
    assert book.count() == 0
    book.close()


@pytest.mark.parametrize(
    ("passed_ms", "words"),
    [(0, "24 hours"), (22 * HOUR_MS, "120 minutes"), (DAY_MS - 90_500, "91 s"), (DAY_MS - 1, "1 s")],
)
def test_who_asks_too_often_is_told_when_to_come_again(tmp_path: Path, passed_ms: int, words: str) -> None:
    book = GrantBook(tmp_path / "book.db", OPTIONS)
    for _ in range(OPTIONS.per_address):
        book.enter(people(1), "a", 10**12)
    with pytest.raises(FaucetRefused, match=f"2 a day: address limit; come again in {words}$"):
        book.enter(people(1), "a", 10**12 + passed_ms)
    book.close()


@pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_book_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "book.db"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        GrantBook(path, OPTIONS)
    with pytest.raises(ConfigError):
        GrantBook(tmp_path / "other.db", FaucetOptions((), path, per_day=0))


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
    """Hold what HEAD answers, byte for byte, against what GET does."""
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


async def test_a_chain_that_is_not_for_tests_gets_no_faucet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tests.rpc.harness

    keys(tmp_path)
    plain = tests.rpc.harness.genesis
    monkeypatch.setattr(tests.rpc.harness, "genesis", lambda **p: _serious(plain(**p)))
    async with chain(tmp_path) as (_, it):
        run = partial(subprocess.run, command(tmp_path, it), capture_output=True, text=True, timeout=60)
        done = await trio.to_thread.run_sync(run)
    assert done.returncode == 1
    assert "no test network" in done.stderr
    assert done.stderr.rstrip().endswith("[config_error]")
    assert "Traceback" not in done.stderr


def _serious(genesis: Any) -> Any:
    from dataclasses import replace

    return replace(genesis, testnet=False)


def test_a_proxy_is_believed_on_an_inner_network_alone() -> None:
    def caller(host: str, *, proxied: bool = True, named: bytes = b"6.6.6.6, 192.0.2.7") -> str:
        return caller_of({"client": (host, 1), "headers": [(b"x-forwarded-for", named)]}, proxied=proxied)

    assert caller("127.0.0.1") == caller("10.1.2.3") == caller_key("192.0.2.7")
    assert caller("203.0.113.5") == caller_key("203.0.113.5"), "a stranger names whom he likes"
    assert caller("127.0.0.1", proxied=False) == caller_key("127.0.0.1")
    assert caller("127.0.0.1", named=b"nobody") == caller_key("127.0.0.1")
