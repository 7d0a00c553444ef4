"""Dispatches JSON-RPC 2.0 requests, independent of the transport: body in, answer out (rpc.md 3, 5 and 10)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog

from rpc.gateway.fair_queue import FairQueue
from rpc.gateway.limits import caller_limiter
from rpc.gateway.memory_quota import MEMORY_EXCEEDED, UNCOUNTED_BYTES_MAX, HeldBytes, MemoryQuota, shrink_to_fit
from rpc.methods.method import Json, Method, NodeApi, Submission, bind
from rpc.methods.queues import QueueKind
from rpc.methods.schema import Param
from rpc.protocol.errors import RpcError, as_rpc_error
from state.primitives.errors import DekubeError

__all__ = [
    "FIRST_CALL_BYTES",
    "Caller",
    "DispatchOptions",
    "Dispatcher",
    "PendingAnswer",
    "PendingTransaction",
    "SuspendedCall",
    "start",
]

_log = structlog.get_logger(__name__)

IDENTIFIER_LIMIT_CHARACTERS: Final = 256
IDENTIFIER_LIMIT: Final = 2**53
YIELD_EVERY: Final = 16
"""Requests of a batch that are started before other callers are served."""
BYTES_OF_UNIT: Final = 16 * 1024
"""Bytes of a body that cost as much as reading one record."""
VALUES_OF_UNIT: Final = 256
VALUES_MAX: Final = 65_536
"""JSON values of one body, counted by separators: far more than a full batch of the largest requests has.

Each costs a fraction of a microsecond and some hundred bytes, and the event loop is blocked until all are parsed.
"""
VALUE_BYTES: Final = 128
WIDTH: Final = 5
"""Memory for each byte of a body that is not ASCII: the body, and a string of four bytes for each character."""
IDENTIFIER_WITHIN_BYTES: Final = 1_024
"""Bytes at both ends of an unparsed body in which the request's identifier is looked for."""
FIRST_CALL_BYTES: Final = BYTES_OF_UNIT
"""Bytes of an unparsed batch in which the identifier of its first call is looked for."""
CALLS_LOOKED_AT: Final = 64
"""Elements of such a batch that are looked at: notifications and invalid ones may precede the first call."""
_BETWEEN: Final = re.compile(r"[ \t\r\n,]*")
_SCALAR: Final = rb'(-?[0-9][0-9.eE+-]*|"(?:[^"\\]|\\.)*"|null)'
_MEMBERS: Final = rb'"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*'
_IDENTIFIER_FIRST: Final = re.compile(rb"\s*\[?\s*\{\s*(?:" + _MEMBERS + rb',\s*)*"id"\s*:\s*' + _SCALAR)
_IDENTIFIER_LAST: Final = re.compile(rb'"id"\s*:\s*' + _SCALAR + rb"\s*(?:,\s*" + _MEMBERS + rb")*\}\s*\Z")
ANSWER_BYTES_OF_UNIT: Final = 1024
"""Bytes of an answer, beyond as many free ones, that cost as much as reading one record."""


POLICY_VIOLATION: Final = 1008
_CLOSE_CODES: Final[Mapping[str, int]] = {"limit_exceeded": 1013}
"""Close codes of WebSockets (RFC 6455, 7.4) by the reason of the refusal: 1013 is to try again later."""


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """Limits of requests; ``rate_per_s`` and ``burst`` are units of cost for one address (0: no limit)."""

    batch_max: int = 1_000
    body_bytes_max: int = 4 * 1024 * 1024
    answer_bytes_max: int = 25 * 1024 * 1024
    rate_per_s: int = 5_000
    burst: int = 20_000
    requests_max: int = 20_000
    """Running requests in the whole gateway."""
    requests_per_caller_max: int = 2_000
    """The same for one address, which could otherwise occupy all with waiting requests. 0: no limit."""
    views_max: int = 48
    """Calls of ``QueueKind.VIEW`` that run at once; more are queued."""
    views_per_caller_max: int = 8
    """The same for one address. Without ``requests_per_caller_max`` there is no such limit."""
    blocks_max: int = 32
    """The same for ``QueueKind.BLOCK``."""
    blocks_per_caller_max: int = 8
    lookups_max: int = 1_024
    """The same for ``QueueKind.LOOKUP``: the node answers requests in their order."""
    lookups_per_caller_max: int = 64
    listings_max: int = 16
    """The same for ``QueueKind.LISTING``, each of which may use some ten megabytes of memory."""
    listings_per_caller_max: int = 4


class Caller:
    """The caller of a request: ``key`` identifies it for rate limits, ``session`` is its WebSocket, if any."""

    __slots__ = ("key", "session")

    def __init__(self, key: str, session: Any = None) -> None:
        self.key = key
        self.session = session


Observer = Callable[[str, str], None]
"""Called with the method and the outcome of each request: "ok" or the reason of its error."""


class Dispatcher:
    """Runs requests against the method table. ``clock`` gives seconds for the rate limits.

    ``hint_of`` returns a hint for the error about an unknown method.
    """

    def __init__(
        self,
        node: NodeApi,
        table: Mapping[str, Method],
        options: DispatchOptions,
        clock: Callable[[], float],
        observe: Observer = lambda _method, _outcome: None,
        hint_of: Callable[[str], str] = lambda _method: "",
        memory_quota: MemoryQuota | None = None,
    ) -> None:
        self._node = node
        self._table = {name: (method, method.all_params) for name, method in table.items()}
        self._submissions = {
            name: (method, method.submission, method.params[0])
            for name, method in table.items() if method.submission is not None
        }  # fmt: skip
        self._options = options
        self._clock = clock
        self._observe = observe
        self._hint_of = hint_of
        self._memory_quota = memory_quota or MemoryQuota()
        self._large_from = min(BYTES_OF_UNIT, options.body_bytes_max)
        self._answer_free = min(ANSWER_BYTES_OF_UNIT, options.answer_bytes_max)
        self._rates = caller_limiter(options.rate_per_s, options.burst)
        self._running = 0
        self._running_of: dict[str, int] = {}
        is_bounded = options.requests_per_caller_max > 0
        self._queues = {
            QueueKind.VIEW: FairQueue(options.views_max, options.views_per_caller_max * is_bounded),
            QueueKind.BLOCK: FairQueue(options.blocks_max, options.blocks_per_caller_max * is_bounded),
            QueueKind.LOOKUP: FairQueue(options.lookups_max, options.lookups_per_caller_max * is_bounded),
            QueueKind.LISTING: FairQueue(options.listings_max, options.listings_per_caller_max * is_bounded),
        }

    @property
    def body_bytes_max(self) -> int:
        """Longest body that is read."""
        return self._options.body_bytes_max

    def begin(self, body: bytes | bytearray, caller: Caller) -> bytes | PendingAnswer | None:
        """Answer as ``answer`` does, but without a task: return the answer, or one that is pending."""
        if len(body) <= self._large_from:
            try:
                parsed = orjson.loads(body)
            except ValueError:
                parsed = None  # ``answer`` says what is wrong
            if type(parsed) is dict:
                return self._begin(parsed, caller)
        return start(self.answer(body, caller))

    async def answer(self, body: bytes | bytearray, caller: Caller) -> bytes | None:
        """Return the answer to a request or batch; None if there are only notifications."""
        held: HeldBytes | None = None
        try:
            if len(body) > self._large_from:
                held = self._admit_large(body, caller)
            try:
                parsed = orjson.loads(body)
            except ValueError:  # malformed, not UTF-8, or nested deeper than the parser goes
                raise RpcError("parse_error", "parse error") from None
            if type(parsed) is dict:
                return await self._one(parsed, caller)
            if type(parsed) is list:
                return await self._batch(parsed, caller)
            raise RpcError("invalid_request", "invalid request: an object or an array expected")
        except RpcError as error:
            self._rates.spend(caller.key, 1, self._clock())
            if caller.session is not None and error.reason != "parse_error" and _asks_nobody_knows(body):
                # Its client waits for an answer with an identifier; of this one it would hear nothing.
                caller.session.close(_CLOSE_CODES.get(error.reason, POLICY_VIOLATION), error.message)
                return None
            return self.refuse(error, body)
        finally:
            if held is not None:
                held.resize(0)

    def _admit_large(self, body: bytes | bytearray, caller: Caller) -> HeldBytes:
        """Charge for a large body before it is parsed. Raises RpcError if it is refused."""
        if len(body) > self._options.body_bytes_max:
            raise RpcError("invalid_request", "request too large", limit=self._options.body_bytes_max)
        values = body.count(b",") + body.count(b"[") + body.count(b"{")
        self._charge(caller, len(body) // BYTES_OF_UNIT + values // VALUES_OF_UNIT)
        if values > VALUES_MAX:
            raise RpcError("invalid_request", f"invalid request: more than {VALUES_MAX} values", limit=VALUES_MAX)
        held = HeldBytes(self._memory_quota, caller.key)
        is_plain = body.isascii() and b"\\" not in body
        if not held.resize(len(body) * (1 if is_plain else WIDTH) + VALUE_BYTES * values):
            raise RpcError("limit_exceeded", MEMORY_EXCEEDED, retry_after_s=1)
        return held

    def charge_answer(self, caller: Caller, size: int) -> None:
        """Charge for an answer by its length, to which its cost is proportional."""
        self._rates.add_debt(caller.key, max(size // ANSWER_BYTES_OF_UNIT - 1, 0), self._clock())

    def charge(self, caller: str, units: int) -> float:
        """Charge ``units`` to a caller and return 0, or the seconds until that is possible."""
        return self._rates.spend(caller, units, self._clock())

    def add_debt(self, caller: str, units: int) -> None:
        """Charge ``units`` for work that is done; the caller's next requests wait for it."""
        self._rates.add_debt(caller, units, self._clock())

    def refuse(self, error: RpcError, body: bytes | bytearray = b"") -> bytes:
        """Return the error for a body that is refused as a whole; the beginning of ``body`` is enough.

        Clients match answers by identifiers, and expect an array for a batch: its first call gets the error.
        """
        self._observe("", error.reason)
        answer = _failure(_identifier_of(body), error.to_json())
        return b"[%s]" % answer if _is_batch(body) and error.reason != "parse_error" else answer

    async def call(self, name: str, params: Any, caller: Caller) -> Json:
        """Return the result of one call, for REST. Raises DekubeError."""
        method, expected = self._table[name]
        self._charge(caller, method.cost)
        return await self._run(method, bind(expected, params), caller)

    async def _batch(self, requests: list[Any], caller: Caller) -> bytes | None:
        if not requests:
            raise RpcError("invalid_request", "invalid request: an empty batch")
        if len(requests) > self._options.batch_max:
            limit = self._options.batch_max
            raise RpcError("invalid_request", f"invalid request: batch over {limit}", limit=limit)
        answers: list[bytes | PendingAnswer | None] = []
        late: dict[PendingAnswer, Any] = {}
        sum_ = _BatchSize(
            HeldBytes(self._memory_quota, caller.key), self._options.answer_bytes_max, self._failure_of
        )
        try:
            for index, request in enumerate(requests):
                if index % YIELD_EVERY == YIELD_EVERY - 1:
                    await asyncio.sleep(0)
                answer = self._begin(request, caller)
                if isinstance(answer, PendingAnswer):
                    late[answer] = request
                elif answer is not None:
                    answer = sum_.fit(request, answer)
                answers.append(answer)
            await _all_done(late, sum_)
            whole = [item.answer if isinstance(item, PendingAnswer) else item for item in answers]
            found = [item for item in whole if item is not None]
            return b"[" + b",".join(found) + b"]" if found else None
        finally:
            for one in late:
                one.cancel()
            sum_.held.resize(0)

    def _begin(self, request: Any, caller: Caller) -> bytes | PendingAnswer | None:
        """Answer as ``_one`` does. Transactions in the form in which clients send them need no coroutine."""
        if (
            type(request) is dict
            and type(name := request.get("method")) is str
            and (found := self._submissions.get(name)) is not None
            and len(request) == 4
            and request.get("jsonrpc") == "2.0"
            and (identifier := request.get("id")) is not None
            and (type(identifier) is int or _is_identifier(identifier))
            and type(params := request.get("params")) is list
            and len(params) == 1
            and type(params[0]) is str
            and self._has_room(caller.key)
            and not self._rates.spend(caller.key, found[0].cost, self._clock())
        ):
            return self._post(request, caller, *found)
        return start(self._one(request, caller))

    def _post(
        self, request: Any, caller: Caller, method: Method, submission: Submission, param: Param
    ) -> bytes | PendingAnswer | None:
        """Begin a call that submits a transaction; it is well-formed and charged for."""
        identifier = request["id"]
        try:
            raw = param.read(request["params"][0])
            prepared = submission.prepare(self._node, raw)
            if prepared is None:
                return start(self._one(request, caller, is_paid=True))
            sender, known = prepared
            posted = PendingTransaction(self, method.name, submission, known, identifier, caller)
            self._node.post(raw, sender, posted)
            self._enter(caller.key)
            return posted
        except Exception as error:
            return self._fail(method.name, identifier, error)

    def finish(self, posted: PendingTransaction, outcome: bytes | Exception) -> bytes:
        """Return the answer to a submission, from the node's answer."""
        try:
            if not isinstance(outcome, bytes):
                if isinstance(outcome, DekubeError):
                    outcome = posted.submission.error(posted.known, outcome)
                return self._fail(posted.name, posted.identifier, outcome)
            self._observe(posted.name, "ok")
            return self._say(posted.identifier, posted.submission.result(posted.known, outcome), posted.caller)
        except Exception as error:
            return self._fail(posted.name, posted.identifier, error)

    async def _one(self, request: Any, caller: Caller, *, is_paid: bool = False) -> bytes | None:
        identifier: Any = None
        name = ""
        wants_answer = True
        try:
            if type(request) is not dict:
                self._charge(caller, 1)
                raise RpcError("invalid_request", "invalid request: an object expected")
            wants_answer = "id" in request
            if not _is_identifier(asked := request.get("id")):
                self._charge(caller, 1)
                raise RpcError("invalid_request", "invalid request: id: a string, a number or null expected")
            identifier = asked
            if request.get("jsonrpc") != "2.0" or type(request.get("method")) is not str:
                wants_answer = True  # an invalid request is answered, whatever it was meant to be
                self._charge(caller, 1)
                raise RpcError("invalid_request", 'invalid request: jsonrpc "2.0" and a method expected')
            found = self._table.get(request["method"])
            if found is None:
                self._charge(caller, 1)
                unknown = request["method"][:64]
                message = f"the method {unknown} does not exist/is not available"
                if hint := self._hint_of(unknown):
                    message = f"{message}: {hint}"
                raise RpcError("method_not_found", message, method=unknown)
            method, expected = found
            name = method.name
            if not is_paid:
                self._charge(caller, method.cost)
            if method.needs_session and caller.session is None:  # before its parameters, which nobody can mend
                message = f"the method {name} does not exist/is not available over HTTP, use a WebSocket"
                raise RpcError("method_not_found", message, method=name)
            result = await self._run(method, bind(expected, request.get("params")), caller)
            self._observe(name, "ok")
            return self._say(identifier, result, caller) if wants_answer else None
        except Exception as error:
            failure = self._fail(name, identifier, error)
            return failure if wants_answer else None

    def _say(self, identifier: Any, result: Json, caller: Caller) -> bytes:
        answer = shrink_to_fit(orjson.dumps({"jsonrpc": "2.0", "id": identifier, "result": result}))
        if len(answer) > self._answer_free:
            if len(answer) > self._options.answer_bytes_max:
                raise RpcError("limit_exceeded", "limit exceeded: the answer is too large")
            self.charge_answer(caller, len(answer))
        return answer

    def _fail(self, name: str, identifier: Any, error: Exception) -> bytes:
        if isinstance(error, DekubeError):
            known = as_rpc_error(error)
        else:
            # A bug of ours, never a mistake of the caller: logged whole, told without its inside.
            _log.error("rpc method failed", method=name, exc_info=error)
            known = RpcError("internal_error", "internal error")
        self._observe(name, known.reason)
        return self._failure_of(name, identifier, known)

    def _failure_of(self, name: str, identifier: Any, error: RpcError) -> bytes:
        found = self._table.get(name)
        told = error.to_json()
        if found is not None and found[0].may_revert and type(told["data"]) is dict:
            told["data"] = [told["data"]]
        return _failure(identifier, told)

    def _charge(self, caller: Caller, cost: int) -> None:
        wait_s = self._rates.spend(caller.key, cost, self._clock())
        if wait_s:
            raise RpcError("limit_exceeded", "limit exceeded: too many requests", retry_after_s=round(wait_s, 3))

    async def _run(self, method: Method, values: list[Any], caller: Caller) -> Json:
        if self._running >= self._options.requests_max:
            raise RpcError("limit_exceeded", "limit exceeded: the gateway is busy", retry_after_s=1)
        mine = self._running_of.get(caller.key, 0)
        if self._options.requests_per_caller_max and mine >= self._options.requests_per_caller_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many requests under way", retry_after_s=1)
        self._enter(caller.key)
        entered = None
        try:
            if method.has_min_height:
                min_height = values.pop()
                if min_height is not None and self._node.head.height < min_height:
                    await self._node.wait_height(min_height)
            if method.weigh is not None:
                self._rates.add_debt(caller.key, method.weigh(self._node, *values), self._clock())
            if method.queue is not None:
                queue = self._queues[method.queue]
                await queue.acquire(caller.key)
                entered = queue
            if method.needs_session:
                return await method.handle(caller.session, *values)
            if method.needs_caller:
                return await method.handle(self._node, caller.key, *values)
            return await method.handle(self._node, *values)
        finally:
            if entered is not None:
                entered.release(caller.key)
            self.end_request(caller.key)

    def _has_room(self, caller: str) -> bool:
        most = self._options.requests_per_caller_max
        return self._running < self._options.requests_max and (not most or self._running_of.get(caller, 0) < most)

    def _enter(self, caller: str) -> None:
        self._running += 1
        self._running_of[caller] = self._running_of.get(caller, 0) + 1

    def end_request(self, caller: str) -> None:
        """Count a request as finished."""
        self._running -= 1
        left = self._running_of[caller] - 1
        if left:
            self._running_of[caller] = left
        else:
            del self._running_of[caller]


def _is_identifier(value: Any) -> bool:
    kind = type(value)
    return (
        kind is int
        or value is None
        or (kind is str and len(value) <= IDENTIFIER_LIMIT_CHARACTERS)
        or (kind is float and abs(value) < IDENTIFIER_LIMIT)  # beyond it the echo would be another number
    )


def _is_batch(body: bytes | bytearray) -> bool:
    """Tell whether a body is that of a batch that asks for something: an empty one is answered by one object."""
    head = body[:IDENTIFIER_WITHIN_BYTES].lstrip()
    return head[:1] == b"[" and not head[1:].lstrip().startswith(b"]")


def _identifier_of(body: bytes | bytearray) -> Any:
    """Return the identifier of a request or of a batch's first call, read from a part of it; None: not found."""
    found = _IDENTIFIER_FIRST.match(body, 0, IDENTIFIER_WITHIN_BYTES)
    if found is None and not _is_batch(body):
        found = _IDENTIFIER_LAST.search(body, max(len(body) - IDENTIFIER_WITHIN_BYTES, 0))
    if found is not None:
        return _as_identifier(found[1])
    return _identifier_of_first_call(body) if _is_batch(body) else None


def _identifier_of_first_call(body: bytes | bytearray) -> Any:
    text = body[:FIRST_CALL_BYTES].decode("utf-8", "replace")
    reader, at = json.JSONDecoder(), text.index("[") + 1
    try:
        for _ in range(CALLS_LOOKED_AT):
            found = _BETWEEN.match(text, at)
            assert found is not None  # it may be empty
            request, at = reader.raw_decode(text, found.end())
            if type(request) is dict and (identifier := _as_identifier(json.dumps(request.get("id")))) is not None:
                return identifier
    except (ValueError, RecursionError):  # it ends here, or is not JSON
        pass
    return None


def _as_identifier(text: bytes | str) -> Any:
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    return value if _is_identifier(value) else None


def _asks_nobody_knows(body: bytes | bytearray) -> bool:
    """Tell whether a body asks for an answer that its client could not match."""
    is_request = body[:IDENTIFIER_WITHIN_BYTES].lstrip()[:1] == b"{" or _is_batch(body)
    return is_request and _identifier_of(body) is None


def _failure(identifier: Any, error: Json) -> bytes:
    return shrink_to_fit(orjson.dumps({"jsonrpc": "2.0", "id": identifier, "error": error}))


class PendingAnswer:
    """An answer that is not known yet."""

    __slots__ = ("_then", "answer", "is_cancelled", "is_waiting")

    def __init__(self) -> None:
        self._then: Callable[[PendingAnswer], None] = _ignore
        self.answer: bytes | None = None
        self.is_cancelled = False
        self.is_waiting = True

    def then(self, function: Callable[[PendingAnswer], None]) -> None:
        """Call ``function`` as soon as the answer is known; a cancelled one may never call it."""
        self._then = function

    def notify(self) -> None:
        """Call the callback once and drop it: the two objects refer to each other, and would stay in memory."""
        then, self._then = self._then, _ignore
        then(self)

    def cancel(self) -> None:
        """Stop waiting; has no effect once the answer is known."""
        raise NotImplementedError


class PendingTransaction(PendingAnswer):
    """A submitted transaction that the node has not answered yet; a waiter of ``rpc.gateway.node.batcher``."""

    __slots__ = ("_dispatcher", "caller", "identifier", "known", "name", "submission")

    def __init__(
        self,
        dispatcher: Dispatcher,
        name: str,
        submission: Submission,
        known: Any,
        identifier: Any,
        caller: Caller,
    ) -> None:
        self._then = _ignore  # as in ``PendingAnswer``; calling its constructor would add a tenth to the cost
        self.answer = None
        self.is_cancelled = False
        self.is_waiting = True
        self._dispatcher = dispatcher
        self.name = name
        self.submission = submission
        self.known = known
        """What ``Submission.prepare`` returned for the other steps."""
        self.identifier = identifier
        self.caller = caller

    def done(self) -> bool:
        """Return whether the node's answer is no longer needed."""
        return not self.is_waiting

    def answered(self, outcome: bytes | Exception) -> None:
        """Take the node's answer."""
        self.is_waiting = False
        self._dispatcher.end_request(self.caller.key)
        self.answer = self._dispatcher.finish(self, outcome)
        self.notify()

    def cancel(self) -> None:
        """Stop waiting; the node may still have accepted the transaction."""
        if self.is_waiting:
            self.is_waiting = False
            self.is_cancelled = True
            self._dispatcher.end_request(self.caller.key)


class SuspendedCall(PendingAnswer):
    """A suspended coroutine that resumes in the callback of what it waits for, at half the cost of a task.

    It may wait for futures. Code that needs the current task, such as ``asyncio.timeout``, fails in it.
    """

    __slots__ = ("_coroutine", "_waiting_for")

    def __init__(
        self, coroutine: Coroutine[Any, Any, bytes | None], waiting_for: asyncio.Future[Any] | None
    ) -> None:
        super().__init__()
        self._coroutine = coroutine
        self._wait(waiting_for)

    def cancel(self) -> None:
        """Cancel the coroutine; has no effect once it has ended."""
        if not self.is_waiting:
            return
        self.is_cancelled = True
        if self._waiting_for is not None:
            self._waiting_for.cancel()

    def _wait(self, waiting_for: asyncio.Future[Any] | None) -> None:
        self._waiting_for = waiting_for
        if waiting_for is None:  # it only lets others have their turn
            asyncio.get_running_loop().call_soon(self._go_on)
            return
        waiting_for._asyncio_future_blocking = False
        waiting_for.add_done_callback(self._go_on)
        if self.is_cancelled:
            waiting_for.cancel()

    def _go_on(self, _waited_for: asyncio.Future[Any] | None = None) -> None:
        try:
            if self.is_cancelled:  # also where what it waited for came in the very moment, as in a task
                waiting_for = self._coroutine.throw(asyncio.CancelledError())
            else:
                waiting_for = self._coroutine.send(None)  # what the future failed with is raised within
        except StopIteration as done:
            self.answer = done.value
            self.is_cancelled = False
        except asyncio.CancelledError:
            self.is_cancelled = True
        else:
            self._wait(waiting_for)
            return
        self.is_waiting = False
        self.notify()


def _ignore(_late: PendingAnswer) -> None:
    pass


class _BatchSize:
    """Bounds the total size of the answers of one batch."""

    __slots__ = ("_failure_of", "_limit", "_noted", "_size", "held")

    def __init__(self, held: HeldBytes, limit: int, failure_of: Callable[[str, Any, RpcError], bytes]) -> None:
        self.held = held
        self._failure_of = failure_of
        self._limit = limit
        self._size = 0
        self._noted = UNCOUNTED_BYTES_MAX

    def fit(self, request: Any, answer: bytes) -> bytes:
        """Return ``answer``, or an error in its place if the batch would become too large."""
        size = self._size + len(answer)
        if size > self._noted:
            if size > self._limit or not self.held.resize(size):
                identifier, name = None, None
                if type(request) is dict:
                    identifier, name = request.get("id"), request.get("method")
                error = RpcError("limit_exceeded", "limit exceeded: the answer to the batch is too large")
                answer = self._failure_of(
                    name if type(name) is str else "", identifier if _is_identifier(identifier) else None, error
                )  # fmt: skip
                self._size += len(answer)  # a full batch of refusals is small
                return answer
            self._noted = self.held.counted
        self._size = size
        return answer


async def _all_done(late: Mapping[PendingAnswer, Any], sum_: _BatchSize) -> None:
    """Wait until all of ``late`` are answered; if one was cancelled, raise CancelledError.

    Each stands with its request; its answer is counted in ``sum_``.
    """
    left = 0
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(one: PendingAnswer) -> None:
        nonlocal left
        left -= 1
        if one.answer is not None:
            one.answer = sum_.fit(late[one], one.answer)
        if done.done():
            return
        if one.is_cancelled:
            done.cancel()
        elif not left:
            done.set_result(None)

    for one in late:
        if one.is_waiting:
            left += 1
            one.then(on_done)
        elif one.is_cancelled:
            raise asyncio.CancelledError
        elif one.answer is not None:
            one.answer = sum_.fit(late[one], one.answer)
    if left:
        await done


def start(coroutine: Coroutine[Any, Any, bytes | None]) -> bytes | SuspendedCall | None:
    """Run ``coroutine`` until it has to wait: most return their answer without waiting."""
    try:
        waiting_for = coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    return SuspendedCall(coroutine, waiting_for)
