"""Bodies of JSON-RPC against the real table: an answer of the protocol to each, and never "internal error"."""

from __future__ import annotations

import asyncio
import json
import os
from random import Random
from typing import Any, cast

import orjson

from rpc.gateway.dispatch import Caller, Dispatcher, DispatchOptions, PendingAnswer
from rpc.gateway.method_table import METHOD_TABLE
from rpc.methods.method import NodeApi
from rpc.methods.schema import make_cursor
from rpc.protocol.errors import NodeUnavailable
from tests.fuzz.mutate import mutate
from tests.fuzz.targets.samples import RAW

INPUTS = int(os.environ.get("FUZZ_INPUTS", "1000"))
HASH, ADDRESS = "0x" + "ab" * 32, "0x" + "cd" * 20


class Away:
    """A node that does not answer, as every node may at any moment: what is left is reading the request."""

    def __getattr__(self, name: str) -> Any:
        raise NodeUnavailable


def dispatcher() -> Dispatcher:
    options = DispatchOptions(rate_per_s=0, burst=0)
    return Dispatcher(cast(NodeApi, Away()), METHOD_TABLE, options, lambda: 0.0)


def request(method: str, params: Any, identifier: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identifier, "method": method, "params": params}


def samples() -> list[bytes]:
    values: tuple[Any, ...] = (
        HASH, ADDRESS, 7, "latest", True, "5", make_cursor([1, b"x"]), "0x" + RAW.hex(), None, [], {}, "validate",
        "0x5", {"to": ADDRESS, "from": ADDRESS, "value": "0x1", "input": "0x"}, {"blockHash": HASH},
        {"fromBlock": "0x1", "address": [ADDRESS], "topics": [None, [HASH]]}, "newHeads", [20.0, 50],
    )  # fmt: skip
    random = Random(1)
    found = []
    for name, method in METHOD_TABLE.items():
        for _ in range(4):
            listed = [random.choice(values) for _ in method.all_params]
            found.append(request(name, listed))
            found.append(request(name, {p.name: v for p, v in zip(method.all_params, listed, strict=True)}))
    return [json.dumps(item).encode() for item in found] + [json.dumps(found[:20]).encode(), b"[]", b"{}"]


def check(answer: bytes | None, body: bytes) -> None:
    if answer is None:
        return
    decoded = orjson.loads(answer)
    for one in decoded if type(decoded) is list else [decoded]:
        assert one["jsonrpc"] == "2.0"
        assert one.keys() in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
        if "error" in one:
            assert type(one["error"]["code"]) is int
            data = one["error"]["data"]
            [fields] = data if type(data) is list else [data]
            assert fields["reason"] != "internal_error", body


def test_any_body_gets_an_answer_of_the_protocol() -> None:
    known = samples()

    async def run() -> None:
        random, asked = Random("bodies"), dispatcher()
        for body in known:
            check(await asked.answer(body, Caller("x")), body)
        for number in range(INPUTS):
            body = mutate(random, random.choice(known), known)
            if number % 2:
                check(await asked.answer(body, Caller("x")), body)
                continue
            begun = asked.begin(body, Caller("x"))
            if isinstance(begun, PendingAnswer):
                told = asyncio.Event()
                begun.then(lambda _one, told=told: told.set())  # type: ignore[misc]
                await told.wait()
            check(begun.answer if isinstance(begun, PendingAnswer) else begun, body)

    asyncio.run(run())


def test_depth_size_and_strange_numbers_are_answered() -> None:
    async def run() -> None:
        asked = dispatcher()
        for body in (
            b"[" * 100_000, b'{"a":' * 50_000, b"[" + b"1," * 2_000 + b"1]", b"1" * 100_000, b"NaN", b"-0", b'"x"',
            b'{"jsonrpc":"2.0","id":1e400,"method":"dekube_head"}', b"\xff\xfe", b"\xef\xbb\xbf{}", b"",
            b'{"jsonrpc":"2.0","id":"' + b"x" * 300 + b'","method":"dekube_head"}',
            json.dumps(request("dekube_head", [2**70])).encode(), bytes(5 * 1024 * 1024),
        ):  # fmt: skip
            answer = await asked.answer(body, Caller("x"))
            assert answer is not None
            assert b"error" in answer
            check(answer, body[:100])

    asyncio.run(run())
