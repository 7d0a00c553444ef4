"""Arguments that no chain can take are refused before anything is asked, signed or opened."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from rpc.client import AsyncClient, Client, ClientOptions, errors
from rpc.client.core import Core, Steps
from rpc.client.errors import ArgumentInvalid, ClientClosed, GatewayUnreachable
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from tests.rpc.client.world import World

KEY = SecretKey(b"\x05" * 32)
TO = b"\x52" * 20
TASK = b"\xab" * 32
TEXT = "0x52908400098527886E0F7030069857D2E4169EE7"

Use = Callable[[Any], Any]
WRONG: list[tuple[str, Use]] = [
    ("key: a SecretKey expected, not NoneType", lambda c: c.transfer(None, TO, 1)),
    ("key: a SecretKey expected, not bytes", lambda c: c.send(b"\x05" * 32, 1, [])),
    ("key: a SecretKey expected", lambda c: c.create_task("me", b"")),
    ("key: a SecretKey expected", lambda c: c.upload(Path("x"), key=b"me")),
    ("key: a SecretKey expected", lambda c: c.sign_call(None, TO)),
    ("spec: bytes expected, not str", lambda c: c.quote_task("0x")),
    ("spec: bytes expected, not NoneType", lambda c: c.create_task(KEY, None)),
    ("raw: bytes expected, not str", lambda c: c.submit("0x")),
    ("raw: bytes expected, not NoneType", lambda c: c.wait(None)),
    ("raw: bytes expected", lambda c: c.simulate("0x")),
    ("data: bytes expected", lambda c: c.sign_call(KEY, TO, data="0x")),
    ("file: a pathlib.Path expected, not str", lambda c: c.upload("x", key=KEY)),
    ("file: a pathlib.Path expected, not str", lambda c: c.download(TASK, "x")),
    ("calls: a list of Call expected", lambda c: c.batch("x")),
    ("calls: a list of Call expected", lambda c: c.batch([("dekube_head", None)])),
    ("kind: one of heads, events, tasks expected, not 'nonsense'", lambda c: c.subscribe("nonsense")),
    ("function: what `function` returns is expected", lambda c: c.view(None, [])),
    ("function: what `function` returns is expected", lambda c: c.write(KEY, "stake", [])),
    ("to: an address is 20 bytes, not str", lambda c: c.transfer(KEY, TEXT, 1)),
    ("to: an address is 20 bytes, not 1", lambda c: c.transfer(KEY, b"1", 1)),
    (r"amount: an amount is from 0 to 2\^256 - 1, not -1", lambda c: c.transfer(KEY, TO, -1)),
    ("amount: an amount is from 0", lambda c: c.transfer(KEY, TO, 2**256)),
    ("amount: an amount is an int of 10\\^-18 DKB, not float", lambda c: c.transfer(KEY, TO, 1.5)),
    ("amount: an amount is an int of 10\\^-18 DKB, not bool", lambda c: c.transfer(KEY, TO, True)),
    ("max_fee_per_gas: an amount", lambda c: c.sign(KEY, 1, [], max_fee_per_gas=-1)),
    ("max_priority_fee_per_gas: an amount", lambda c: c.sign_call(KEY, TO, max_priority_fee_per_gas="1")),
    ("to: an address", lambda c: c.sign_call(KEY, TEXT)),
    ("value: an amount", lambda c: c.sign_call(KEY, TO, value=-1)),
    ("value: an amount", lambda c: c.write(KEY, None, [], value=-1)),
    ("address: an address", lambda c: c.balance(TEXT)),
    ("address: an address", lambda c: c.account(bytes(21))),
    ("address: an address", lambda c: c.history(TEXT)),
    ("address: an address", lambda c: c.machine(TEXT)),
    ("address: an address", lambda c: c.faucet("http://127.0.0.1:9", TEXT)),
    ("hash_: a hash is 32 bytes, not 20", lambda c: c.transaction(TO)),
    ("hash_: a hash is 32 bytes, not str", lambda c: c.receipt("0x")),
    ("block: a hash", lambda c: c.block(b"")),
    ("timeout_s: seconds from 0", lambda c: c.wait(b"", timeout_s=math.nan)),
    ("timeout_s: seconds from 0 to 1000000000 expected, not nan", lambda c: c.subscribe(timeout_s=math.nan)),
    ("timeout_s: seconds from 0", lambda c: c.subscribe(timeout_s=-1.0)),
    ("timeout_s: seconds from 0", lambda c: c.subscribe(timeout_s=math.inf)),
    ("timeout_s: seconds from 0", lambda c: c.subscribe(timeout_s="5")),
    ("address: an address", lambda c: c.subscribe("events", address=TEXT)),
    ("topic: a hash", lambda c: c.subscribe("events", topic=TO)),
    ("task: a hash", lambda c: c.subscribe("tasks", task=TO)),
    ("task: a hash", lambda c: c.task("0x")),
    ("task: a hash", lambda c: c.task_changes(TO)),
    ("task: a hash", lambda c: c.task_windows(TO)),
    ("task: a hash", lambda c: c.disputes(TO, 0)),
    ("task: a hash", lambda c: c.dispute(TO, 0, 0)),
    ("task: a hash", lambda c: c.custody(TO, 0)),
    ("task: a hash", lambda c: c.bill(TO)),
    ("task: a hash", lambda c: c.result(TO)),
    ("task: a hash", lambda c: c.follow(TO)),
    ("timeout_s: seconds from 0", lambda c: c.follow(TASK, timeout_s=math.nan)),
    ("requester: an address", lambda c: c.tasks(requester=TEXT)),
    ("worker: an address", lambda c: c.tasks(worker=TASK)),
    ("task: a hash", lambda c: c.cancel_task(KEY, TO)),
    ("task: a hash", lambda c: c.resume_task(KEY, TO)),
    ("task: a hash", lambda c: c.top_up_task(KEY, TO, 1)),
    ("amount: an amount", lambda c: c.top_up_task(KEY, TASK, -1)),
    ("amount: an amount", lambda c: c.demand_result(KEY, TASK, -1)),
    ("payout: an address", lambda c: c.set_payout(KEY, KEY.address, b"short")),
    ("sponsor: an address", lambda c: c.set_terms(KEY, KEY.address, sponsor=b"short")),
    ("share_bps: an amount", lambda c: c.set_terms(KEY, KEY.address, sponsor=TO, share_bps=-1)),
    ("amount: an amount", lambda c: c.withdraw_sponsor(KEY, TO, -1)),
    (
        "machine: an address",
        lambda c: c.sponsor_machine(KEY, TASK, 1, share_bps=0, withhold_bps=0, withhold_until=0),
    ),
    ("blob: a hash", lambda c: c.is_held(TO)),
    ("blob: a hash", lambda c: c.download(TEXT, Path("unused"))),
    ("task: a hash", lambda c: c.download(TASK, Path("unused"), task=TO)),
]


class Flows(Client):
    """A client whose methods are flows."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def perform(self, flow: Any) -> Any:
        return flow

    def iterate(self, stream: Any) -> Any:
        return stream


class Silent(Client):
    """A client that may ask nothing."""

    def perform(self, flow: Any) -> Any:
        for effect in Steps(flow):
            raise AssertionError(effect)

    def iterate(self, stream: Any) -> Any:
        return self.perform(stream)


@pytest.mark.parametrize(("text", "use"), WRONG)
def test_what_cannot_be_is_refused_before_anything_is_asked(text: str, use: Use) -> None:
    with pytest.raises(ArgumentInvalid, match=text) as caught:
        use(Silent("http://127.0.0.1:9"))
    assert isinstance(caught.value, ValueError)
    assert caught.value.code == caught.value.reason == "argument_invalid"


def test_the_asynchronous_client_refuses_the_same() -> None:
    async def main() -> None:
        async with AsyncClient("http://127.0.0.1:9") as client:
            with pytest.raises(ArgumentInvalid):
                await client.balance(TEXT)  # type: ignore[arg-type]
            with pytest.raises(ArgumentInvalid):
                await anext(client.subscribe(timeout_s=math.nan))

    asyncio.run(main())


@pytest.mark.parametrize("timeout_s", [math.nan, math.inf, -1, None])
def test_a_client_has_a_timeout(timeout_s: Any) -> None:
    options = ClientOptions(timeout_s=timeout_s)
    for cls in (Client, AsyncClient):
        with pytest.raises(ArgumentInvalid, match="timeout_s: seconds"):
            cls("http://127.0.0.1:9", options=options)
    if timeout_s is not None:
        with pytest.raises(ArgumentInvalid):
            Client("http://127.0.0.1:9", timeout_s=timeout_s)


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"rounds": 1.5}, {"rounds": 10**9}, {"pause_s": -1}])
def test_a_client_asks_a_number_of_times(wrong: dict[str, Any]) -> None:
    for cls in (Client, AsyncClient):
        with pytest.raises(ArgumentInvalid, match=next(iter(wrong))):
            cls("http://127.0.0.1:9", options=ClientOptions(**wrong))


def test_what_may_be_is_asked() -> None:
    asked = []

    def answer(method: str, params: Any) -> Any:
        asked.append(method)
        return {"block": None, "receipt": None, "transaction": None, "items": [], "next": None}

    world = World(answer)
    client: Any = Flows(world.core)
    for stream in (client.history(TO), client.tasks(worker=TO), client.tasks(), client.task_changes(TASK)):
        assert world.take(stream) == []
    for flow in (client.block(TASK), client.block(7), client.block(), client.receipt(TASK)):
        assert world.run(flow) is None
    assert len(asked) == 8


@pytest.mark.parametrize("shell", [Client, AsyncClient])
def test_what_is_no_url_or_no_option_is_refused_when_the_client_is_made(shell: Any) -> None:
    for other in (None, 5, b"http://x", ["http://x"]):
        with pytest.raises(ArgumentInvalid, match="the URL of a gateway is a text, not"):
            shell(other)
    for url in (
        "foo bar",
        " http://x",
        "http://a\tb",
        "http://a\n",
        "http://a b/",
        "",
        "http://",
        "x" * 70_000 + " ",
    ):
        with pytest.raises(ConfigError, match="not the URL of a gateway") as caught:
            shell(url)
        assert len(str(caught.value)) < 300
    for options in (5, ClientOptions(chain_id=-1), ClientOptions(chain_id="7")):  # type: ignore[arg-type]
        with pytest.raises(ArgumentInvalid):
            shell("http://x", options=options)


def test_a_closed_client_says_that_it_is_closed() -> None:
    leaves: list[Use] = [Client.close, lambda client: client.__exit__(None, None, None)]
    for leave in leaves:
        client = Client("http://127.0.0.1:1")
        leave(client)
        uses: list[Use] = [lambda c: c.head(), lambda c: c.batch([]), lambda c: next(c.subscribe(timeout_s=0.1))]
        for use in uses:
            with pytest.raises(ClientClosed, match="closed"):
                use(client)
        client.close()

    async def main() -> None:
        async with AsyncClient("http://127.0.0.1:1") as client:
            with pytest.raises(GatewayUnreachable):
                await client.head()
        with pytest.raises(ClientClosed):
            await client.head()
        with pytest.raises(ClientClosed):
            await anext(aiter(client.subscribe()))
        await client.aclose()

    trio.run(main)
    asyncio.run(main())


def test_the_documents_name_every_error_that_the_client_exports() -> None:
    table = (Path(__file__).parents[3] / "docs" / "sdk.md").read_text()
    for name in errors.__all__:
        assert f"`{name}`" in table, name
