from __future__ import annotations

from typing import Any

import orjson
import pytest

from rpc.gateway.method_table import DOCUMENT
from tests.wallets.tap import Judge, Verdict, Wire

CHAIN = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"}


def http(*bodies: Any, line: bytes) -> bytearray:
    found = bytearray()
    for body in bodies:
        text = orjson.dumps(body)
        found += line + b"\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text)
    return found


def judged(request: Any, answer: Any) -> Verdict:
    asked = http(CHAIN, request, line=b"POST / HTTP/1.1\r\nhost: localhost")
    told = http({"jsonrpc": "2.0", "id": 1, "result": "0x7"}, answer, line=b"HTTP/1.1 200 OK")
    return Judge(DOCUMENT).judge([Wire(asked, told)])


def answer_of(**content: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 2} | content


def test_answers_of_one_connection_are_held_against_the_schemas_of_their_methods() -> None:
    verdict = judged(CHAIN | {"id": 2}, answer_of(result="0x7"))
    assert (verdict.answers["eth_chainId"], verdict.faults) == (2, [])
    batch = [{"jsonrpc": "2.0", "id": n, "method": m} for n, m in ((2, "eth_chainId"), (3, "eth_accounts"))]
    told = [{"jsonrpc": "2.0", "id": 3, "result": []}, answer_of(result="0x7")]
    assert judged(batch, told).faults == []


@pytest.mark.parametrize(
    "answer",
    [
        answer_of(result="0x07"),
        answer_of(result=7),
        answer_of(result="0x7", more=1),
        answer_of(error={"code": -32603, "message": "a bug"}),
        answer_of(error={"code": -1, "message": "no such number"}),
        {"jsonrpc": "2.0", "id": 3, "result": "0x7"},
    ],
)
def test_another_answer_is_a_fault(answer: Any) -> None:
    assert len(judged(CHAIN | {"id": 2}, answer).faults) == 1


def frame(message: Any, *, mask: bytes = b"", opcode: int = 1) -> bytes:
    text = orjson.dumps(message)
    size = bytes([len(text)]) if len(text) < 126 else b"\x7e" + len(text).to_bytes(2, "big")
    head = bytes([0x80 | opcode, size[0] | (0x80 if mask else 0)]) + size[1:]
    return head + mask + bytes(byte ^ mask[at % 4] if mask else byte for at, byte in enumerate(text))


@pytest.mark.parametrize("opcode", [1, 2])
def test_messages_of_a_websocket_are_read_masked_or_not(opcode: int) -> None:
    asked = b"GET /ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    told = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    news = {"jsonrpc": "2.0", "method": "eth_subscription", "params": {"subscription": "0x1", "result": {}}}
    wire = Wire(
        bytearray(asked + frame(CHAIN, mask=b"mask", opcode=opcode)),
        bytearray(told + frame({"jsonrpc": "2.0", "id": 1, "result": "0x7"}) + frame(news)),
    )
    verdict = Judge(DOCUMENT).judge([wire])
    assert verdict.answers["eth_chainId"] == 1
    assert verdict.notifications["newHeads"] == 1
    assert len(verdict.faults) == 1  # a head without anything in it
