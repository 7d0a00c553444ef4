"""Streams of blocks over a WebSocket: in order, each once, across reconnections and long pauses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from rpc.client.core import (
    ELSEWHERE,
    RATION,
    Call,
    Core,
    DeadlineExceeded,
    Flow,
    Item,
    OpenWebSocket,
    Pause,
    ReceiveMessage,
    SendMessage,
    Stream,
    hexed,
    read_answers,
    read_json,
    within,
)
from rpc.client.errors import AnswerMalformed, ClientError, GatewayUnreachable
from rpc.client.results import Block, Header, Notification, Receipt, read_result

__all__ = ["KINDS", "notification_of", "notifications"]

KINDS: Final = ("heads", "events", "tasks")
"""Kinds of subscriptions."""
IDLE_S: Final = 20.0
"""Seconds without a notification after which a ping is sent."""
RECONNECTS_MAX: Final = 12
"""Consecutive attempts, for each gateway, to resume a subscription."""
RECONNECT_PAUSE_S_MAX: Final = 5.0
REPLAY_MAX: Final = 900
"""Blocks to request as a replay. A gateway replays 1,000; new blocks arrive meanwhile."""
REPLAY_BATCH: Final = 25


def notifications(
    core: Core, kind: str, *, from_height: int | None = None, address: bytes | None = None,
    topic: bytes | None = None, task: bytes | None = None, timeout_s: float | None = None,
) -> Stream[Notification]:  # fmt: skip
    """Yield a notification for each block, in order and once, until ``timeout_s`` if given.

    Raises ClientError for blocks that are pruned, GatewayUnreachable if no gateway answers.
    """
    named = {"address": address, "topic": topic, "task": task}
    wanted = {name: hexed(value) for name, value in named.items() if value is not None}
    found = _follow(core, kind, wanted, from_height)
    if timeout_s is None:
        yield from found
        return
    try:
        yield from within(found, timeout_s)
    except DeadlineExceeded:
        return


def _follow(core: Core, kind: str, wanted: Mapping[str, str], following: int | None) -> Stream[Notification]:
    """Yield notifications from the height ``following`` on, or from the next block."""
    failures = 0
    while True:
        url = core.url
        try:
            while following is not None:
                # What is too long ago for a subscription is read block by block.
                told, after = yield from _replay(core, kind, wanted, following)
                if after == following:
                    break
                for one in told:
                    following = one.at.height + 1
                    yield Item(one)
                following, failures = after, 0
            request: dict[str, Any] = {"kind": kind, **wanted}
            if following is not None:
                request["from_height"] = following
            url = core.url
            yield OpenWebSocket(_socket_url(url), core.options.timeout_s)
            yield SendMessage(_message("dekube_subscribe", request), core.options.timeout_s)
            started = yield from _hear_answer(core)
            following = started if following is None else following
            while True:
                heard = yield from _hear_news()
                failures = 0
                core.height = max(core.height, heard.at.height)
                if heard.at.height >= following:
                    following = heard.at.height + 1
                    yield Item(heard)
        except GatewayUnreachable:
            failures += 1
            if failures > RECONNECTS_MAX * core.gateways:
                raise
        except ClientError as error:
            if error.reason not in ELSEWHERE and error.reason != RATION:
                raise
            failures += 1
            if failures > RECONNECTS_MAX * core.gateways:
                raise
        core.leave_gateway(url)
        yield Pause(min(core.options.pause_s * 2 ** min(failures, 16), RECONNECT_PAUSE_S_MAX))


def _hear_answer(core: Core) -> Flow[int]:
    """Return the first height of the subscription."""
    text = yield ReceiveMessage(core.options.timeout_s)
    if text is None:
        raise GatewayUnreachable("no answer over the WebSocket")
    [answer] = read_answers(text, 1, is_batch=False)
    if isinstance(answer, ClientError):
        raise answer
    match answer:
        case {"from_height": int(height)}:
            return height
        case _:
            raise AnswerMalformed("not an answer to a subscription")


def _hear_news() -> Flow[Notification]:
    """Return the next notification."""
    silent = False
    while True:
        text = yield ReceiveMessage(IDLE_S)
        if text is None:
            if silent:
                raise GatewayUnreachable("the WebSocket is silent")
            silent = True
            yield SendMessage(_message("dekube_head", {}), IDLE_S)
            continue
        silent = False
        match read_json(text):
            case {"method": "dekube_subscription", "params": {"result": result}}:
                return read_result(Notification, result)
            case {"id": _}:  # the sign of life
                continue
            case _:
                raise AnswerMalformed("not a notification")


def _replay(
    core: Core, kind: str, wanted: Mapping[str, str], following: int
) -> Flow[tuple[list[Notification], int]]:
    """Return the notifications of some blocks from ``following`` on, and the height after them.

    That height is ``following`` if a subscription can replay all missing blocks.
    """
    answer = yield from core.call("dekube_head")
    match answer:
        case {"at": {"height": int(newest)}}:
            pass
        case _:
            raise AnswerMalformed("dekube_head: not a head")
    if following > newest - REPLAY_MAX:
        return [], following
    heights = range(following, min(following + REPLAY_BATCH, newest - REPLAY_MAX // 2))
    calls = [Call("dekube_getBlock", {"block": height}) for height in heights]
    if kind != "heads":
        calls += [Call("dekube_getBlockReceipts", {"block": height}) for height in heights]
    answers = yield from core.batch(calls)
    told = []
    for number, height in enumerate(heights):
        block, receipts = answers[number], None if kind == "heads" else answers[len(heights) + number]
        for found in (block, receipts):
            if isinstance(found, ClientError):
                raise found
        if type(block) is dict and block.get("block", block) is None:
            # The genesis has none. A subscription that is asked for it is refused in this word.
            raise ClientError({"message": f"there is no block {height}", "data": {"reason": "pruned"}})
        if (one := notification_of(block, receipts, kind, wanted)) is not None:
            told.append(one)
    return told, heights.stop


def notification_of(block: Any, receipts: Any, kind: str, wanted: Mapping[str, str]) -> Notification | None:
    """Return the notification that a subscription would have sent for a block.

    It is made from the block and its receipts. Raises AnswerMalformed.
    """
    match block, receipts:
        case {"block": dict() as found}, None:
            header = read_result(Header, found)
            at = {"height": header.height, "hash": found["hash"]}
            return read_result(Notification, {"at": at, "header": found})
        case {"block": dict() as found}, {"receipts": list() as listed}:
            whole = read_result(Block, found)
            items: list[dict[str, Any]] = []
            for index, receipt in enumerate(listed):
                read_result(Receipt, receipt)
                hash_ = receipt["transaction_hash"]
                items += [
                    {"transaction_hash": hash_, "index": index, "event": event} for event in receipt["events"]
                ]
            items += [{"transaction_hash": None, "index": None, "event": event} for event in found["events"]]
            items = [item for item in items if _is_wanted(item["event"], kind, wanted)]
            if not items:
                return None
            return read_result(
                Notification, {"at": {"height": whole.height, "hash": found["hash"]}, "items": items}
            )
        case _:
            raise AnswerMalformed("not a block and its receipts")


LEDGERS: Final = frozenset(f"0x{number:040x}" for number in (0x702, 0x703))
"""Contracts whose events a subscription to tasks reports."""


def _is_wanted(event: Mapping[str, Any], kind: str, wanted: Mapping[str, str]) -> bool:
    source, topics = str(event["address"]).lower(), [str(topic).lower() for topic in event["topics"]]
    if kind == "tasks":
        return source in LEDGERS and ("task" not in wanted or topics[1:2] == [wanted["task"]])
    return wanted.get("address", source) == source and ("topic" not in wanted or topics[:1] == [wanted["topic"]])


def _message(method: str, params: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": 0, "method": method, "params": params})


def _socket_url(url: str) -> str:
    return "ws" + url.removeprefix("http")
