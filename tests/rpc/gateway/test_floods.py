"""Floods of what is small, heaps of what is never finished or read: bounded, and others are served meanwhile."""

from __future__ import annotations

import json
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from rpc.gateway.connections import ConnectionOptions
from rpc.gateway.dispatch import DispatchOptions
from rpc.gateway.fast_path import PIECE_BYTES_MIN, PIECES_FREE
from rpc.gateway.http_protocol import PIPELINE_MAX
from rpc.gateway.process import GatewayOptions
from tests.rpc.gateway.test_hostile import CHAIN, FREE, NOWHERE, Place, attacked, rss_mib
from tests.rpc.harness import Gateway
from tests.rpc.raw import Wire, call, chunked, post

MIB = 1024 * 1024
OPTIONS = GatewayOptions("", dispatch=FREE)
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n"
)
CONTINUATION, TEXT, BINARY, PING = 0, 1, 2, 9


def frame(kind: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """A client's frame, with a mask of zeros."""
    size = len(data)
    if size < 126:
        length = bytes((0x80 | size,))
    else:
        length = b"\xfe" + struct.pack("!H", size) if size < 2**16 else b"\xff" + struct.pack("!Q", size)
    return bytes((fin << 7 | kind,)) + length + b"\0\0\0\0" + data


async def websocket(it: Gateway, address: str = "127.0.0.1") -> Wire:
    wire = Wire(await trio.open_tcp_stream("127.0.0.1", it.port, local_address=address))
    await wire.send(UPGRADE)
    assert (await wire.answer()).status == 101
    return wire


async def read(wire: Wire) -> tuple[int, bytes]:
    """Return kind and content of the server's next frame."""
    data = wire._buffer

    async def have(count: int) -> None:
        nonlocal data
        while len(data) < count:
            part = await wire.stream.receive_some(65_536)
            if not part:
                raise EOFError
            data += part

    with trio.fail_after(120):
        await have(2)
        size, at = data[1] & 127, 2
        if size == 126:
            await have(4)
            size, at = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            await have(10)
            size, at = int.from_bytes(data[2:10], "big"), 10
        await have(at + size)
    wire._buffer = data[at + size :]
    return data[0] & 15, data[at : at + size]


async def closing(wire: Wire) -> int:
    """Return the code with which the server closes."""
    while True:
        kind, content = await read(wire)
        if kind == 8:
            return int.from_bytes(content[:2], "big")


async def flood(wire: Wire, data: bytes, times: int) -> None:
    """Send until it is all sent or the other side has enough."""
    try:
        for _ in range(times):
            await wire.send(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


async def other_answers(place: Place) -> None:
    """Another client is served while the attack goes on."""
    async with Wire(await trio.open_tcp_stream("127.0.0.1", place.it.port, local_address="127.0.0.9")) as wire:
        for _ in range(20):
            await wire.send(post(CHAIN))
            assert (await wire.answer()).json["result"] == "0x7"


async def chunks_of_a_byte(place: Place) -> None:
    async with await Wire.open(place.it) as wire, trio.open_nursery() as nursery:
        nursery.start_soon(flood, wire, chunked(*[b" "] * 1_500_000), 1)
        nursery.start_soon(other_answers, place)
        answer = (await wire.answer()).json
        assert answer["error"]["code"] == -32600 and "too many parts" in answer["error"]["message"]
    async with await Wire.open(place.it) as wire:  # what is larger may come in many pieces
        body = CHAIN + b" " * (PIECE_BYTES_MIN * 4_000)
        size = PIECE_BYTES_MIN + 16
        await wire.send(chunked(*[body[at : at + size] for at in range(0, len(body), size)]))
        assert (await wire.answer()).json["result"] == "0x7"
        await wire.send(chunked(*[bytes((byte,)) for byte in CHAIN]))
        assert (await wire.answer()).json["result"] == "0x7"


async def trailers_without_end(place: Place) -> None:
    async with await Wire.open(place.it) as wire:
        body = chunked(CHAIN)[:-2]
        await wire.send(body + b"a: b\r\n" * 10 + b"\r\n")
        assert (await wire.answer()).json["result"] == "0x7"
        await flood(wire, body + b"a: b\r\n" * 10_000, 1)
        assert await wire.is_closed()


async def fragments_of_nothing(place: Place) -> None:
    wire = await websocket(place.it)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood, wire, frame(TEXT, b"[", fin=False) + frame(CONTINUATION, fin=False) * 200_000, 1)
        nursery.start_soon(other_answers, place)
        assert await closing(wire) == 1008
    await trio.aclose_forcefully(wire.stream)
    wire = await websocket(place.it)
    pieces = [frame(CONTINUATION, bytes((byte,)), fin=False) for byte in CHAIN[1:]]
    await wire.send(frame(TEXT, CHAIN[:1], fin=False) + b"".join(pieces) + frame(PING, b"x") + frame(CONTINUATION))
    assert await read(wire) == (10, b"x")
    kind, content = await read(wire)
    assert (kind, json.loads(content)["result"]) == (1, "0x7")
    large = CHAIN + b" " * 2 * MIB
    size = len(large) // (PIECES_FREE + 500)
    pieces = [frame(CONTINUATION, large[at : at + size], fin=False) for at in range(0, len(large), size)]
    await wire.send(frame(BINARY, fin=False) + b"".join(pieces) + frame(CONTINUATION) + frame(BINARY, CHAIN))
    for _ in range(2):
        assert json.loads((await read(wire))[1])["result"] == "0x7"
    await trio.aclose_forcefully(wire.stream)


async def many_messages_in_one_piece(place: Place) -> None:
    """Each waits for its turn, in the order in which they came."""
    wire = await websocket(place.it)
    count = 5_000
    async with trio.open_nursery() as nursery:
        messages = [frame(BINARY, call("eth_chainId", identifier=number)) for number in range(count)]
        nursery.start_soon(flood, wire, b"".join(messages), 1)
        found = [json.loads((await read(wire))[1])["id"] for _ in range(count)]
    assert sorted(found) == list(range(count))
    await trio.aclose_forcefully(wire.stream)


async def pings_that_nobody_reads(place: Place) -> None:
    wire = await websocket(place.it)
    before = rss_mib(place.it.process.pid)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other_answers, place)
            await flood(wire, frame(PING, b"x" * 125) * 500, 800)  # 50 MB: more than any buffer
    assert rss_mib(place.it.process.pid) - before < 30
    await trio.aclose_forcefully(wire.stream)


async def text_that_is_none(place: Place) -> None:
    for message in (
        frame(TEXT, b"\xff\xfe{"),
        frame(TEXT, b'{"jsonrpc":"2.0","id":"', fin=False) + frame(CONTINUATION, b"\xed\xa0\x80"),
        frame(TEXT, b"\xff") * 50,
    ):
        wire = await websocket(place.it)
        await wire.send(message)
        assert await closing(wire) == 1007
        await trio.aclose_forcefully(wire.stream)


async def openings_that_are_none(place: Place) -> None:
    for upgrade in (
        UPGRADE.replace(b"/ws", b"/\xff\xfe"),
        UPGRADE.replace(b"/ws", b"/ws?\xc3\xa9=%ff"),
        UPGRADE.replace(b"\r\n\r\n", b"\r\nx: \xff\xfe\r\n\r\n"),
        UPGRADE.replace(b"\r\n\r\n", b"\r\n" + b"x: y\r\n" * 300 + b"\r\n"),
        UPGRADE.replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 30_000 + b"\r\n\r\n"),
        UPGRADE.replace(b"version: 13", b"version: 99"),
        UPGRADE.replace(b"AAAAAAAAAAAAAAAAAAAAAA==", b"\xff"),
        UPGRADE.replace(b"GET", b"POST"),
    ):
        async with await Wire.open(place.it) as wire:
            await wire.send(upgrade + frame(TEXT, CHAIN))
            await wire.stream.send_eof()
            try:
                while await wire.stream.receive_some(65_536):
                    pass
            except trio.BrokenResourceError:
                pass


async def who_leaves_behind_requests_in_line(place: Place) -> None:
    """What is answered when the client has gone is not written to what is closed."""
    slow = call("dekube_waitForReceipt", NOWHERE, 100)
    big = b"[" + b",".join([call("rpc.discover")] * 8) + b"]"
    get = b"GET /openrpc.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for line in (post(slow) + post(big) * 3, post(slow) + get * 3, get * 4 + post(slow) * 2, post(big) * 4):
        for _ in range(5):
            async with await Wire.open(place.it) as wire:
                await wire.send(line)
                with trio.move_on_after(0.15):
                    await wire.answer()


async def who_is_thrown_out_behind_a_request_that_waits(place: Place) -> None:
    slow = call("dekube_waitForReceipt", NOWHERE, 300) + b" " * MIB
    for behind in (post(CHAIN) * (PIPELINE_MAX + 10), post(CHAIN) * 400 + UPGRADE, post(CHAIN) + b"\0"):
        for _ in range(3):
            async with await Wire.open(place.it) as wire:
                await wire.send(post(slow))
                await flood(wire, behind, 1)
                with trio.move_on_after(1), suppress(trio.BrokenResourceError):
                    while await wire.stream.receive_some(65_536):
                        pass

    async def is_free() -> bool:
        return await held(place) == 0

    await until(is_free)
    await trio.sleep(0.4)  # until they would have been answered


async def a_line_without_end(place: Place) -> None:
    before = rss_mib(place.it.process.pid)
    async with await Wire.open(place.it) as wire:
        await wire.send(chunked(CHAIN)[:-2] + b"x: ")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other_answers, place)
            with pytest.raises(trio.BrokenResourceError):
                for _ in range(100):
                    await wire.send(b"a" * MIB)
        assert rss_mib(place.it.process.pid) - before < 30


SCENARIOS = [
    who_leaves_behind_requests_in_line,
    who_is_thrown_out_behind_a_request_that_waits,
    a_line_without_end,
    chunks_of_a_byte,
    trailers_without_end,
    fragments_of_nothing,
    many_messages_in_one_piece,
    pings_that_nobody_reads,
    text_that_is_none,
    openings_that_are_none,
]


@pytest.mark.slow
async def test_what_is_small_comes_in_bounded_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with attacked(tmp_path, monkeypatch, OPTIONS) as place:
        for scenario in SCENARIOS:
            await scenario(place)
            await place.is_well()
        assert await held(place) == 0


async def held(place: Place) -> int:
    """Return the bytes that the gateway says it holds."""
    text = (await place.it.http.get(place.it.url + "/metrics")).text
    [line] = [line for line in text.splitlines() if line.startswith("dekube_rpc_held_bytes ")]
    return int(float(line.split()[1]))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(120):
        while not await condition():
            await trio.lowlevel.checkpoint()


BOUNDED = replace(
    OPTIONS, connections=ConnectionOptions(held_bytes_max=40 * MIB, held_bytes_per_address_max=16 * MIB)
)


@pytest.mark.slow
async def test_bodies_that_never_end_are_bounded_for_an_address_and_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attacked(tmp_path, monkeypatch, BOUNDED) as place:
        before = rss_mib(place.it.process.pid)
        body = b"[" + b" " * (3 * MIB)
        heads = [
            post(body, length=4 * MIB),
            post(body, version="1.0", length=4 * MIB),
            chunked(body)[:-5],
            frame(BINARY, body + b" " * MIB)[:-MIB],
            frame(BINARY, body, fin=False),
        ]
        attackers = []
        for number in range(30):
            head = heads[number % len(heads)]
            is_socket = number % len(heads) > 2
            wire = await websocket(place.it) if is_socket else await Wire.open(place.it)
            attackers.append(wire)
            await flood(wire, head, 1)
        assert 8 * MIB < await held(place) <= 16 * MIB
        assert rss_mib(place.it.process.pid) - before < 64, "90 MiB were sent"
        for number in range(24):
            local = f"127.0.0.{3 + number % 3}"
            wire = Wire(await trio.open_tcp_stream("127.0.0.1", place.it.port, local_address=local))
            attackers.append(wire)
            await flood(wire, post(body, length=4 * MIB), 1)

        async def is_full() -> bool:
            return await held(place) > 28 * MIB

        await until(is_full)
        assert await held(place) <= 40 * MIB
        for wire in attackers[30:]:
            await trio.aclose_forcefully(wire.stream)

        async def has_room() -> bool:
            return await held(place) <= 16 * MIB

        await until(has_room)
        error = (await place.it.raw([json.loads(CHAIN)] * 100))[0]
        assert error["result"] == "0x7", "what is small is served all the same"
        async with await Wire.open(place.it) as wire:
            await wire.send(post(CHAIN + b" " * 3 * MIB))
            answer = (await wire.answer()).json["error"]
            assert (answer["code"], answer["data"]["retry_after_s"]) == (-32005, 1)
        async with Wire(await trio.open_tcp_stream("127.0.0.1", place.it.port, local_address="127.0.0.2")) as wire:
            await wire.send(post(CHAIN + b" " * 3 * MIB))
            assert (await wire.answer()).json["result"] == "0x7"
        for wire in attackers:
            await trio.aclose_forcefully(wire.stream)

        async def is_free() -> bool:
            return await held(place) == 0

        await until(is_free)
        async with await Wire.open(place.it) as wire:
            await wire.send(post(CHAIN + b" " * 3 * MIB))
            assert (await wire.answer()).json["result"] == "0x7"


@pytest.mark.slow
async def test_answers_that_nobody_reads_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(BOUNDED, dispatch=DispatchOptions(rate_per_s=0, requests_per_caller_max=0))
    async with attacked(tmp_path, monkeypatch, options) as place:
        big = b"[" + b",".join([call("rpc.discover")] * 20) + b"]"
        before = rss_mib(place.it.process.pid)
        wires = [await websocket(place.it) for _ in range(6)]
        for wire in wires:
            for _ in range(8):
                await flood(wire, frame(BINARY, big), 1)
        others = [await Wire.open(place.it) for _ in range(6)]
        for wire in others:
            await flood(wire, post(big) * 4, 1)
        await other_answers(place)

        async def is_bounded() -> bool:
            return 0 < await held(place) <= 16 * MIB

        await until(is_bounded)
        assert rss_mib(place.it.process.pid) - before < 150
        for wire in (*wires, *others):
            await trio.aclose_forcefully(wire.stream)

        async def is_free() -> bool:
            return await held(place) == 0

        await until(is_free)
        async with await Wire.open(place.it) as wire:
            await wire.send(post(big))
            assert len((await wire.answer()).json) == 20
