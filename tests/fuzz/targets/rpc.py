"""Decoders of the gateway, its clients, and the socket between it and the node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

from websockets.utils import accept_key

from relay.protocol.errors import RelayProtocolError
from rpc.client.api import read_grant
from rpc.client.block_stream import notification_of
from rpc.client.contracts import functions_of, parse_argument, read_revert
from rpc.client.control import ControlRefused, ControlUnavailable
from rpc.client.control import read_answer as read_control_answer
from rpc.client.core import read_answers
from rpc.client.errors import AnswerMalformed, ClientError, GatewayUnreachable
from rpc.client.results import Account, Contract, Notification, Task, Window, read_result
from rpc.client.results import Receipt as ShownReceipt
from rpc.client.websocket import WebSocketConnection
from rpc.faucet.service import FaucetRefused, read_address
from rpc.gateway.node.client import read_submitted
from rpc.gateway.process import GatewayOptions, options_from_json, options_to_json
from rpc.protocol.frames import (
    REQUEST_LIMIT_BYTES,
    FrameBuffer,
    encode_answer,
    encode_failure,
    encode_push,
    encode_request,
    read_answer,
    read_request,
)
from rpc.protocol.records import PoolStatus
from rpc.protocol.requests import REQUESTS, handler_of
from rpc.protocol.wire_types import read_record, record_value
from state.primitives.codec import decode, encode
from state.primitives.errors import (
    ConfigError,
    DecodeError,
)
from state.primitives.heads import Head
from state.transition.calls import SYSTEM_PREFIX
from tests.fuzz import blobs
from tests.fuzz.targets.base import Target, of_text

HEAD = Head(7, b"h" * 32, 1, b"s" * 32, 10, 11, 0, 0)


def read_unix_frames(data: bytes) -> None:
    """Cut and read what comes over the node's Unix socket, from either end."""
    for value in FrameBuffer(REQUEST_LIMIT_BYTES).feed(data):
        for reader in (read_request, read_answer):
            try:
                reader(value)
            except DecodeError:
                continue


def read_unix_records(data: bytes) -> None:
    """Read the records in answers of the node's socket."""
    value = decode(data, limit_bytes=1 << 16)
    for kind in (Head, PoolStatus):
        try:
            assert record_value(read_record(kind, value)) == value
        except DecodeError:
            continue


def read_unix_request(data: bytes) -> None:
    """Read one value as the arguments, and each of its parts as each argument, of every request of a gateway."""
    value = decode(data, limit_bytes=1 << 16)
    for request in REQUESTS.values():
        with suppress(DecodeError):
            handler_of(request, _answer_nothing)(value)
        for codec, part in product(request.codecs, value if type(value) is list else (value,)):
            with suppress(DecodeError):
                codec.read(part)


def _answer_nothing(*_arguments: object) -> None:
    raise DecodeError("read")


def read_control_line(data: bytes) -> None:
    """Read what a node answers at its control socket."""
    read_control_answer(data, Path("control"))


def read_faucet(data: bytes) -> None:
    """Read what a faucet is asked, and what it answers."""
    for reader in (read_address, read_grant):
        try:
            assert len(reader(data)) in (20, 32)
        except (FaucetRefused, AnswerMalformed, ClientError):
            continue


def read_gateway_answer(data: bytes) -> None:
    """Read what a gateway answers, as every record that a client knows."""
    results = []
    for count, is_batch in ((1, False), (2, True)):
        try:
            results += read_answers(data, count, is_batch=is_batch)
        except AnswerMalformed:
            continue
    for result in results:
        if isinstance(result, ClientError):
            assert isinstance(result.reason, str)
            read_revert(result.data)
            continue
        for cls in (Account, Contract, Notification, ShownReceipt, Task, Window):
            try:
                found = read_result(cls, result)
            except AnswerMalformed:
                continue
            assert found.document == result
        for kind in ("heads", "events"):
            try:
                notification_of(result, None if kind == "heads" else result, kind, {})
            except AnswerMalformed:
                continue


def read_contract(data: bytes) -> None:
    """Read the ABI of a contract, and text as arguments of its functions."""
    [answer] = read_answers(data, 1, is_batch=False)
    if isinstance(answer, ClientError):
        return
    start = str(answer)[:100]
    for function in functions_of(read_result(Contract, answer)):
        for parameter in function.inputs:
            for text in (start, "1", "0x12", "true"):
                try:
                    parse_argument(parameter, text)
                except ConfigError:
                    continue
        try:
            function.decode("0x" + data[:64].hex())
        except AnswerMalformed:
            continue


_WHEN = {"height": 5, "hash": "0x" + "ab" * 32}
_EVENT = {
    "address": "0x" + "22" * 20, "topics": ["0x" + "33" * 32], "data": "0x", "name": None, "values": {"a": "1"},
}  # fmt: skip
_RECEIPT = {
    "transaction_hash": "0x" + "cd" * 32, "block": _WHEN | {"index": 0, "time_ms": 5}, "from": "0x" + "11" * 20,
    "kind": 1, "kind_name": "transfer", "succeeded": True, "reason": None, "gas_used": 21000,
    "effective_gas_price": "7", "fee": "147000",
    "events": [_EVENT],
}  # fmt: skip
GATEWAY_ANSWERS = tuple(
    json.dumps({"jsonrpc": "2.0", "id": 0, **answer}).encode()
    for answer in (
        {"result": {"at": _WHEN, "address": "0x" + "11" * 20, "balance": "5", "nonce": 1, "pending_nonce": 2}},
        {"result": _RECEIPT},
        {"result": {"receipts": [_RECEIPT]}},
        {"result": {"at": _WHEN, "items": [{"transaction_hash": None, "index": None, "event": _EVENT}]}},
        {"error": {"code": -32005, "message": "m", "data": {"reason": "limit_exceeded", "retry_after_s": 1}}},
        {"error": {"code": 3, "message": "m", "data": "0x08c379a0"}},
    )
)  # fmt: skip
CONTRACT_ANSWER = json.dumps(
    {
        "id": 0,
        "result": {
            "name": "staking", "address": "0x" + (SYSTEM_PREFIX + b"\1").hex(),
            "abi": [{"type": "function", "name": "stakeOf", "stateMutability": "view",
                     "inputs": [{"name": "who", "type": "address"}, {"name": "n", "type": "uint8"}],
                     "outputs": [{"name": "amount", "type": "uint256"}]}, {"type": "event"}],
        },
    }
).encode()  # fmt: skip


def read_web_socket(data: bytes) -> None:
    """Give a client what a gateway says, from its answer to the handshake on."""
    conversation = WebSocketConnection("ws://h:1/")
    key = re.search(rb"Sec-WebSocket-Key: (\S+)", conversation.outgoing())
    assert key is not None
    head = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    )
    if data[:1] == b"H":
        conversation.receive(data.replace(b"ACCEPT", accept_key(key[1].decode()).encode()))
    else:
        conversation.receive(head + accept_key(key[1].decode()).encode() + b"\r\n\r\n")
        conversation.receive(data)
    while (message := conversation.next_message()) is not None:
        assert len(message) <= len(data)
    conversation.outgoing()


SHAKEN = (
    b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ACCEPT\r\n\r\n\x81\1a"
)
WEB_SOCKET = (
    b"\x81\2hi" + b"\1\1a" + b"\x80\1b" + b"\x89\1p" + b"\x88\2\3\xe8", b"\x82\x7e\1\0" + bytes(256),
    SHAKEN + b"\x81\1a",
)  # fmt: skip


def targets() -> Iterator[tuple[str, Target]]:
    unix = (
        encode_request(1, "head", [1, b"x"]), encode_answer(1, [1, [b"a"]]), encode_push("head", [1]),
        encode_failure(2, RelayProtocolError("text")),
    )  # fmt: skip
    yield "unix frames", Target(
        read_unix_frames, (*unix, b"".join(unix)),
        ("rpc.protocol.frames:FrameBuffer.feed", "rpc.protocol.frames:read_request",
        "rpc.protocol.frames:read_answer"),
    )  # fmt: skip
    yield "unix submitted", Target(
        lambda data: read_submitted(decode(data, limit_bytes=len(data))),
        (
            encode([bytes(64), [[1, "nonce_too_low", "nonce too low", [["expected", 3]]]]]), encode([b"", []]),
            encode([bytes(32), [[1, "a", "b", []]]]),
        ),
        ("rpc.gateway.node.client:read_submitted",),
    )  # fmt: skip
    yield (
        "unix records",
        Target(
            read_unix_records, (encode(list(HEAD)), encode([1, 2, 3])), ("rpc.protocol.wire_types:read_record",)
        ),
    )
    yield "unix requests", Target(
        read_unix_request,
        (
            encode([1, [b"key"]]), encode([b"a" * 20, [1, 2], 10]), encode([b"a" * 20, 1, encode([1]), None]),
            encode([1, 2, 0]), encode([[b"certificate"], None]),
        ),
        (
            "rpc.protocol.wire_types:_read_encoded", "rpc.protocol.wire_types:_read_bool",
            "rpc.protocol.wire_types:_read_none",
        ),
        cost=4,
    )  # fmt: skip
    yield "gateway options", Target(
        of_text(options_from_json), (options_to_json(GatewayOptions("socket")).encode(),),
        ("rpc.gateway.process:options_from_json",), (ConfigError,), memory=400,
    )  # fmt: skip
    yield "control answer", Target(
        read_control_line, (b'{"result": {"a": 1}}\n', b'{"error": {"code": "x", "message": "y"}}\n'),
        ("rpc.client.control:read_answer", "rpc.client.control:ask_node"),
        (ControlUnavailable, ControlRefused), memory=400,
    )  # fmt: skip
    yield (
        "upload signature",
        Target(blobs.check_grant, blobs.GRANTS, ("rpc.protocol.grants:read_grant",), (), cost=2),
    )
    yield (
        "range of bytes",
        Target(blobs.check_range, blobs.RANGES, ("rpc.gateway.blobs:read_range",), (), memory=400),
    )
    yield "answers about blobs", Target(
        blobs.check_answer, blobs.ANSWERS,
        ("rpc.client.blobs:_missing", "rpc.client.blobs:_told", "rpc.client.blobs:_refusal"), (), memory=400,
    )  # fmt: skip
    yield "WebSocket of a client", Target(
        read_web_socket, WEB_SOCKET, ("rpc.client.websocket:WebSocketConnection.receive",), (GatewayUnreachable,),
        memory=400,
    )  # fmt: skip
    yield "faucet", Target(
        read_faucet, (b'{"address": "0x%s"}' % (b"11" * 20), b'{"hash": "0x%s"}' % (b"ab" * 32),
                      b'{"error": {"reason": "r", "message": "m", "retry_after_s": 5}}'),
        ("rpc.faucet.service:read_address", "rpc.client.api:read_grant"), (), memory=400,
    )  # fmt: skip
    yield "client answers", Target(
        read_gateway_answer, GATEWAY_ANSWERS,
        ("rpc.client.core:read_answers", "rpc.client.core:read_json", "rpc.client.results:read_result",
         "rpc.client.contracts:read_revert"), (), cost=2, memory=400,
    )  # fmt: skip
    yield "client contracts", Target(
        read_contract, (CONTRACT_ANSWER,),
        ("rpc.client.contracts:parse_argument", "rpc.client.contracts:ContractFunction.decode"),
        (AnswerMalformed,), cost=2, memory=400,
    )  # fmt: skip
