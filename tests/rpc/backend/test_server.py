"""The node's side of the socket answers whatever a gateway asks: behind it stands the public."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import trio
import trio.testing

from rpc.gateway.dispatch import Caller, Dispatcher, DispatchOptions
from rpc.methods.method import Method
from rpc.methods.schema import make_cursor
from rpc.protocol.errors import RpcError
from rpc.protocol.frames import (
    ANSWER_LIMIT_BYTES,
    Answer,
    Failure,
    FrameBuffer,
    Reply,
    encode_request,
    read_answer,
)
from rpc.protocol.requests import REQUESTS
from state.primitives.codec import Value, encode
from state.primitives.hashing import ZERO_HASH, keccak
from state.view.accounts import account_key
from tests.rpc.harness import ALICE, BOB, Node, gateway, hexed, served, transfer

NUMBERS = (-1, 0, 2**31, 2**32, 2**53, 2**63, 2**64, 2**255, -(2**255))


class Asker:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = FrameBuffer(ANSWER_LIMIT_BYTES)
        self._number = 0

    async def ask(self, method: str, *params: Value) -> Reply:
        self._number += 1
        await self._stream.send_all(encode_request(self._number, method, list(params)))
        while True:
            data = await self._stream.receive_some(65536)
            assert data, f"{method} {params}: the node closed the connection"
            for value in self._buffer.feed(data):
                return read_answer(value)


async def test_no_question_ends_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.mint(3)
    questions: list[tuple[str, list[Value]]] = []
    odd: list[list[Value]] = [[], [None], [b""], [""], [[]], [b"", b""], [[[[]]]], [0, 0]]
    for a, b in itertools.product(NUMBERS, NUMBERS):
        questions += [
            ("history", [ALICE.address, [a, b], 10]),
            ("scan", [a, b"", b"\xff", b]),
            ("pool_page", [a, b]),
            ("pool_arrivals", [a, b]),
            ("submit", [a, b]),
            ("submit", [b"", b"", b"", b"\0" * 20]),
            ("locate", [[a, b]]),
            ("read", [a, [b"k"]]),
            ("read_old", [a, [b"k"]]),
            ("prove", [a, b"k"]),
            ("header_path", [a, b, 1]),
            ("epoch_records", [a, b]),
            ("simulate", [ALICE.address, a, encode([b]), b]),
            ("simulate", [ALICE.address, a, [b]]),
        ]
    questions += [("simulate", [ALICE.address, 1, b"\x81" * depth + b"\x80", None]) for depth in range(40)]
    for a in NUMBERS:
        questions += [("pool_transactions", [a]), ("pool_queued", [a]), ("leaders", [a]), ("pool_page", [None, a])]
        questions += [("block", [a]), ("block_hash", [a]), ("history", [b"", None, a]), ("pending_nonces", [[a]])]
    for method in ("serving", "submit", *(request.name for request in REQUESTS.values())):
        questions += [(method, params) for params in odd]
    async with served(node, tmp_path / "s"):
        asker = Asker(await trio.open_unix_socket(str(tmp_path / "s")))
        codes = set()
        with trio.fail_after(120):
            for method, params in questions:
                match await asker.ask(method, *params):
                    case Failure(_, code):
                        codes.add(code)
                    case _:
                        pass
            assert isinstance(await asker.ask("head"), Answer)
    assert "internal_error" not in codes and "decode_error" in codes


async def test_a_bug_behind_a_question_costs_that_question_only(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with served(node, tmp_path / "s") as backend:
        backend._threaded["history"] = lambda params: params[7]
        backend._inline["head"] = lambda params: params[7]
        asker = Asker(await trio.open_unix_socket(str(tmp_path / "s")))
        for method in ("history", "head"):
            answer = await asker.ask(method)
            assert isinstance(answer, Failure) and answer.code == "internal_error"
        assert isinstance(await asker.ask("pool_status"), Answer)


async def test_a_frame_that_cannot_be_read_costs_its_own_question_only(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    deep: Value = []
    for _ in range(20):
        deep = [deep]
    async with served(node, tmp_path / "s"):
        stream = await trio.open_unix_socket(str(tmp_path / "s"))
        asker = Asker(stream)
        for odd in (deep, 2**300, [deep] * 9):
            answer = await asker.ask("block_hash", odd)
            assert isinstance(answer, Failure) and answer.code == "decode_error"
            assert isinstance(await asker.ask("head"), Answer)
        await stream.send_all((2).to_bytes(4, "big") + b"\x81\x00")  # nobody's question: another protocol
        with trio.fail_after(120):
            assert await stream.receive_some(10) == b""


async def test_forged_cursors_are_refused(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.mint(2)
    who = hexed(ALICE.address)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        for height, index in itertools.product(NUMBERS, NUMBERS):
            cursor = make_cursor(["history", ALICE.address, height, index])
            if height == 0 and 0 <= index < 2**32:
                assert (await it.call("dekube_getAccountHistory", who, cursor))["items"] == []
            else:
                error = await it.error("dekube_getAccountHistory", who, cursor)
                assert error["data"]["reason"] == "invalid_params"
        assert (await it.call("dekube_head"))["at"]["height"] == 2


async def test_one_caller_cannot_hold_all_places_of_requests_that_wait() -> None:
    import asyncio

    def run() -> None:
        async def main() -> None:
            over = asyncio.Event()

            async def wait(_node: object) -> str:
                await over.wait()
                return "done"

            method = Method("wait", "Waits", wait, {"type": "string"}, (), has_min_height=False)
            dispatcher = Dispatcher(
                None,  # type: ignore[arg-type]
                {"wait": method},
                DispatchOptions(requests_per_caller_max=3),
                asyncio.get_running_loop().time,
            )
            held = [asyncio.ensure_future(dispatcher.call("wait", None, Caller("greedy"))) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(RpcError, match="under way"):
                await dispatcher.call("wait", None, Caller("greedy"))
            other = asyncio.ensure_future(dispatcher.call("wait", None, Caller("modest")))
            await asyncio.sleep(0)
            over.set()
            assert await asyncio.gather(*held, other) == ["done"] * 4
            assert await dispatcher.call("wait", None, Caller("greedy")) == "done"

        asyncio.run(main())

    await trio.to_thread.run_sync(run)


async def test_answers_keep_their_order_when_the_socket_takes_only_a_part_of_them(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    keys: list[Value] = [account_key(ALICE.address)] * 256  # 7 kB an answer: a socket's buffer holds thirty
    async with served(node, tmp_path / "s"):
        stream = await trio.open_unix_socket(str(tmp_path / "s"))
        read: tuple[str, list[Value]] = ("read", [0, keys])
        # First such as are answered at once, which alone fill the socket; then threads bring others between them.
        questions = [read] * 120 + [read, ("read_old", [0, keys]), ("head", [])] * 60
        frames = [encode_request(number, *question) for number, question in enumerate(questions, 1)]
        await stream.send_all(b"".join(frames))
        await trio.testing.wait_all_tasks_blocked(0.01)
        buffer = FrameBuffer(ANSWER_LIMIT_BYTES)
        found: list[int] = []
        with trio.fail_after(120):
            while len(found) < len(frames):
                for value in buffer.feed(await stream.receive_some(5_000)):
                    answer = read_answer(value)
                    assert isinstance(answer, Answer)
                    found.append(answer.identifier)
    assert sorted(found) == list(range(1, len(frames) + 1))
    inline = [number for number in found if questions[number - 1][0] != "read_old"]
    assert inline == sorted(inline), "those that no thread looks up"


async def test_each_transaction_of_a_frame_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path / "db")
    raws = [transfer(ALICE, nonce, BOB.address, 1) for nonce in range(3)]
    submit = node.submit

    def broken(raw: bytes, sender: bytes) -> bytes:
        if raw == raws[2]:
            raise ZeroDivisionError
        return submit(raw, sender)

    monkeypatch.setattr(node, "submit", broken)
    async with served(node, tmp_path / "s"):
        asker = Asker(await trio.open_unix_socket(str(tmp_path / "s")))
        params: list[Value] = []
        for raw in (raws[0], raws[0], raws[2], b"", raws[1]):
            params += raw, ALICE.address
        answer = await asker.ask("submit", *params)
        assert isinstance(answer, Answer)
        hashes, failures = answer.value
        assert hashes == keccak(raws[0]) + 3 * ZERO_HASH + keccak(raws[1])
        assert [(position, code) for position, code, _, _ in failures] == [
            (1, "already_known"), (2, "internal_error"), (3, "decode_error"),
        ]  # fmt: skip
        assert isinstance(await asker.ask("submit", *params * 13), Failure), "more than one frame may bring"
        assert isinstance(await asker.ask("submit", *params, b""), Failure), "one without a sender"
        assert isinstance(await asker.ask("submit", *params, b"", None), Failure)
        assert isinstance(await asker.ask("submit", raws[1], BOB.address[1:]), Failure)
    assert node.pool.pending_count == 2
