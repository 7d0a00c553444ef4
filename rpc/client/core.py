"""The client without I/O: flows yield effects; a shell performs them and returns their results.

The same flows serve both shells: blocking (``rpc.client.sync``) and asynchronous on trio and asyncio
(``rpc.client.aio``). This module selects among several gateways: which one is asked, when the next is tried, and
how old its state may be.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

import orjson

from rpc.client.errors import (
    AnswerMalformed,
    ArgumentInvalid,
    ClientClosed,
    ClientError,
    GatewayUnreachable,
    OtherChain,
)
from state.primitives.errors import ConfigError, DekubeError

__all__ = [
    "ANSWER_BYTES_PER_S_MIN",
    "ANSWER_LIMIT_BYTES",
    "Call",
    "ClientOptions",
    "Core",
    "DeadlineExceeded",
    "Effect",
    "Fetch",
    "Flow",
    "Item",
    "OpenWebSocket",
    "Pages",
    "Pause",
    "Post",
    "ReadClock",
    "ReceiveMessage",
    "Reply",
    "RunBlocking",
    "SendMessage",
    "Steps",
    "Stream",
    "gather",
    "hexed",
    "http_url",
    "read_answers",
    "read_json",
    "through",
    "within",
]

_T = TypeVar("_T")
_E = TypeVar("_E")

TURN_PAUSE_S: Final = 0.02
PAGES_MAX: Final = 1_000_000
EMPTY_PAGES_MAX: Final = 1_000
ANSWER_LIMIT_BYTES: Final = 64 * 1024 * 1024
ANSWER_BYTES_PER_S_MIN: Final = 16 * 1024
"""The time for an answer grows by a second for each so many received bytes."""
DEFAULT_PORT: Final = 8545
_PATH: Final = re.compile("[!-~]+")
ELSEWHERE: Final = frozenset(("node_unavailable", "height_not_reached"))
"""Reasons after which another gateway, or the same one later, may answer."""
RATION: Final = "limit_exceeded"
WITHOUT_MIN_HEIGHT: Final = frozenset(("dekube_sendTransaction", "dekube_subscribe", "dekube_unsubscribe"))
RATION_PAUSE_S_MAX: Final = 10.0
BATCH_MAX: Final = 1_000
"""Calls of one request; the default limit of gateways."""


class Call(NamedTuple):
    """One request of a batch."""

    method: str
    params: Any = None


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Time limits and retries of a client."""

    timeout_s: float = 70.0
    """Time for one answer; longer than the minute that a gateway waits for a receipt. A long answer has more time:
    ``ANSWER_BYTES_PER_S_MIN``."""
    rounds: int = 3
    """How often each gateway is tried before a call fails. A single unreachable gateway is not tried again."""
    pause_s: float = 0.25
    """Pause between rounds, doubled each time."""
    chain_id: int | None = None
    """Chain ID to sign for; None: the one that the first gateway reports. A gateway of another chain is refused:
    transactions signed for it could be replayed there."""


# Effects


class Post(NamedTuple):
    """Send ``body`` by HTTP POST; returns the answer's bytes, or raises GatewayUnreachable in the flow.

    An HTTP status other than 200 counts as unreachable, unless ``any_status``.
    """

    url: str
    body: bytes
    timeout_s: float
    any_status: bool = False
    whole_s: float | None = None
    """Time for the whole answer, however long it is."""


class Fetch(NamedTuple):
    """Send an HTTP request; returns its Reply with any status, or raises GatewayUnreachable."""

    method: str
    url: str
    timeout_s: float
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    limit_bytes: int = ANSWER_LIMIT_BYTES
    whole_s: float | None = None
    """Time for the whole answer, however long it is."""


class Reply(NamedTuple):
    """The response to a Fetch; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Pause(NamedTuple):
    """Wait."""

    seconds: float


class ReadClock(NamedTuple):
    """Return the seconds of a monotonic clock."""


class RunBlocking(NamedTuple):
    """Run ``do``, which may block (a file, a local socket, a long computation), and return its result."""

    do: Callable[[], Any]


class OpenWebSocket(NamedTuple):
    """Open the flow's WebSocket, closing the one that was open. Raises GatewayUnreachable."""

    url: str
    timeout_s: float


class SendMessage(NamedTuple):
    """Send a message over the WebSocket. Raises GatewayUnreachable."""

    text: bytes
    timeout_s: float


class ReceiveMessage(NamedTuple):
    """Return the next message of the WebSocket, or None when the time is over. Raises GatewayUnreachable."""

    timeout_s: float


class Item(NamedTuple, Generic[_T]):
    """Yield ``item`` to the caller of the stream."""

    item: _T


Effect = Post | Fetch | Pause | ReadClock | RunBlocking | OpenWebSocket | SendMessage | ReceiveMessage
Flow = Generator[Effect, Any, _T]
Stream = Generator[Effect | Item[_T], Any, None]


class Steps(Generic[_E]):
    """Iterates over the effects of a flow or stream; ``resume`` passes the result of each effect except Item."""

    def __init__(self, run: Generator[_E, Any, Any]) -> None:
        self._run = run
        self._answer: Any = None
        self._error: DekubeError | None = None
        self.result: Any = None
        """The return value, set at the end."""

    def resume(self, answer: Any, error: DekubeError | None) -> None:
        """Make the effect return ``answer``, or raise ``error`` if it is not None."""
        self._answer, self._error = answer, error

    def __iter__(self) -> Iterator[_E]:
        while True:
            answer, error = self._answer, self._error
            self._answer = self._error = None
            try:
                effect = self._run.send(answer) if error is None else self._run.throw(error)
            except StopIteration as end:
                self.result = end.value
                return
            yield effect


def through(stream: Stream[_T], handle: Callable[[_T], Generator[Any, Any, bool]]) -> Generator[Any, Any, None]:
    """Pass each item of ``stream`` to ``handle`` until it returns True; ``handle`` is a stream as well."""
    steps = Steps(stream)
    for effect in steps:
        if isinstance(effect, Item):
            if (yield from handle(effect.item)):
                stream.close()
                return
        else:
            try:
                steps.resume((yield effect), None)
            except DekubeError as failed:
                steps.resume(None, failed)


class DeadlineExceeded(Exception):
    """The operation did not complete in time."""


def within(run: Generator[Any, Any, _T], timeout_s: float) -> Generator[Any, Any, _T]:
    """Perform the effects of a flow or stream for at most ``timeout_s`` in all.

    Returns the result of ``run``. Raises DeadlineExceeded.
    """
    deadline = (yield ReadClock()) + timeout_s
    steps = Steps(run)
    try:
        for effect in steps:
            if isinstance(effect, Item):
                yield effect
                continue
            left_s = deadline - (yield ReadClock())
            if left_s <= 0:
                raise DeadlineExceeded
            try:
                steps.resume((yield _shortened(effect, left_s)), None)
            except DekubeError as failed:
                steps.resume(None, failed)
    except GatewayUnreachable:
        if (yield ReadClock()) >= deadline:
            raise DeadlineExceeded from None
        raise
    finally:
        run.close()
    result: _T = steps.result
    return result


def _shortened(effect: Effect, left_s: float) -> Effect:
    match effect:
        case Post() | Fetch():
            return effect._replace(timeout_s=min(effect.timeout_s, left_s), whole_s=left_s)
        case OpenWebSocket() | SendMessage() | ReceiveMessage():
            return effect._replace(timeout_s=min(effect.timeout_s, left_s))
        case Pause(seconds):
            return Pause(min(seconds, left_s))
        case _:
            return effect


def gather(stream: Stream[_T]) -> Flow[list[_T]]:
    """Return all items of ``stream``."""
    found: list[_T] = []

    def keep(item: _T) -> Generator[Any, Any, bool]:
        found.append(item)
        return False
        yield  # a stream that finds nothing

    yield from through(stream, keep)
    return found


def hexed(data: bytes) -> str:
    """Return ``data`` as 0x hex."""
    return "0x" + data.hex()


class Pages:
    """Ensures that a paged list ends: no cursor repeats, and few consecutive pages are empty."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._seen: set[bytes] = set()
        self._empty = 0

    def check_next(self, cursor: str, items: Sequence[Any]) -> None:
        """Check the cursor that follows a page with ``items``. Raises AnswerMalformed."""
        name = hashlib.sha256(cursor.encode(errors="surrogatepass")).digest()
        self._empty = 0 if items else self._empty + 1
        if name in self._seen or self._empty > EMPTY_PAGES_MAX or len(self._seen) == PAGES_MAX:
            raise AnswerMalformed(f"{self._method}: pages without end")
        self._seen.add(name)


class Core:
    """The state of a client: its gateways, the current one, and the newest height of any answer.

    Answers never go back in time: a gateway that has not reached that height is asked to wait for it
    (``min_height``), or another gateway is asked.
    """

    def __init__(self, urls: Sequence[str], options: ClientOptions) -> None:
        """Raises ConfigError for an invalid URL."""
        if not urls:
            raise ConfigError("no gateway is named")
        self._is_closed = False
        self.options = options
        self._urls = tuple(map(http_url, urls))
        self._shown = [0] * len(urls)
        self._at = 0
        self.height = 0
        """The newest height in any answer."""
        self._chain_id = options.chain_id
        self._signing: set[bytes] = set()
        self._nonces: set[tuple[bytes, int]] = set()
        """Nonces of submitted transactions that are not final yet, by account."""

    def close(self) -> None:
        """Mark the client as closed."""
        self._is_closed = True

    def check_open(self) -> None:
        """Check that the client is not closed. Raises ClientClosed."""
        if self._is_closed:
            raise ClientClosed("this client was closed; make another one")

    def check_chain(self, chain_id: int) -> None:
        """Check that a gateway's chain is the one to sign for. Raises OtherChain."""
        if self._chain_id is None:
            self._chain_id = chain_id
        elif chain_id != self._chain_id:
            raise OtherChain(f"{self.url} is of chain {chain_id}, and chain {self._chain_id} is signed for")

    def lock_account(self, address: bytes) -> Flow[None]:
        """Wait until no other flow signs for an account; ``unlock_account`` after the submission.

        Two simultaneous flows would get the same nonce from a gateway.
        """
        while address in self._signing:
            yield Pause(TURN_PAUSE_S)
        self._signing.add(address)

    def unlock_account(self, address: bytes) -> None:
        """Allow the next flow to sign for an account."""
        self._signing.discard(address)

    def next_nonce(self, address: bytes, pending: int) -> int:
        """Return the next nonce of an account; ``pending`` is the next one for the current gateway.

        A gateway may not know yet what was submitted to another one.
        """
        while (address, pending) in self._nonces:
            pending += 1
        return pending

    def note_nonce(self, address: bytes, nonce: int) -> None:
        """Record the nonce of a submitted transaction; ``drop_nonce`` when no flow waits for it any more."""
        self._nonces.add((address, nonce))

    def drop_nonce(self, address: bytes, nonce: int) -> None:
        """Remove the nonce of a transaction."""
        self._nonces.discard((address, nonce))

    @property
    def gateways(self) -> int:
        """Number of gateways."""
        return len(self._urls)

    @property
    def url(self) -> str:
        """URL of the current gateway."""
        return self._urls[self._at]

    def leave_gateway(self, url: str) -> None:
        """Switch from the gateway ``url`` to the next one, unless another flow has already switched."""
        if self.url == url:
            self._at = (self._at + 1) % len(self._urls)

    # Calls

    def call(self, method: str, /, *params: Any, **named: Any) -> Flow[Any]:
        """Return the result of one call. Only named parameters can be extended by ``min_height``.

        Raises ClientError for an error answer, GatewayUnreachable if no gateway answers.
        """
        given = {name: value for name, value in named.items() if value is not None}
        [found] = yield from self._ask([Call(method, given or list(params) or None)], is_batch=False)
        if isinstance(found, ClientError):
            raise found
        return found

    def batch(self, calls: Sequence[Call]) -> Flow[list[Any]]:
        """Return the results in the order of ``calls``; a failed one is its ClientError.

        A batch above the gateway's limit is sent in parts, one after the other. Raises ClientError if the gateway
        refuses a whole part, GatewayUnreachable.
        """
        results: list[Any] = []
        for first in range(0, len(calls), BATCH_MAX):
            found = yield from self._ask(calls[first : first + BATCH_MAX], is_batch=True)
            if isinstance(found[0], _BatchRefused):
                raise found[0]
            results += found
        return results

    def _ask(self, calls: Sequence[Call], *, is_batch: bool) -> Flow[list[Any]]:
        results: list[Any] = [None] * len(calls)
        waiting = list(range(len(calls)))
        count, tries = len(self._urls), self.options.rounds * len(self._urls)
        for attempt in range(1, tries + 1):
            pause_s = 0.0
            if attempt % count == 0:
                pause_s = self.options.pause_s * 2 ** (attempt // count - 1)
            url = self.url
            try:
                answers = yield from self._exchange([calls[number] for number in waiting], is_batch=is_batch)
            except GatewayUnreachable:
                if attempt == tries or count == 1:
                    raise
                self.leave_gateway(url)
            else:
                for number, answer in zip(waiting, answers, strict=True):
                    results[number] = answer
                again = [n for n in waiting if _is_to_be_asked_again(results[n])]
                if not again or attempt == tries:
                    return results
                waiting = again
                rations_s = [_ration_s(results[n]) for n in waiting]
                self.leave_gateway(url)
                if count == 1 or attempt % count == 0:
                    pause_s = max(pause_s, *rations_s)
            if pause_s:
                yield Pause(pause_s)
        raise AssertionError("at least one round")

    def _exchange(self, calls: Sequence[Call], *, is_batch: bool) -> Flow[list[Any]]:
        requests = [self._request(number, call) for number, call in enumerate(calls)]
        at = self._at
        try:
            body = orjson.dumps(requests if is_batch else requests[0])
        except TypeError as error:  # a number of more than 64 bits among them
            raise ArgumentInvalid(f"{calls[0].method}: {error}") from None
        data = yield Post(self.url, body, self.options.timeout_s)
        results = read_answers(data, len(calls), is_batch=is_batch)
        for result in results:
            self._note(at, result)
        return results

    def _request(self, number: int, call: Call) -> dict[str, Any]:
        request: dict[str, Any] = {"jsonrpc": "2.0", "id": number, "method": call.method}
        params = call.params
        if (
            self.height > self._shown[self._at]
            and call.method.startswith("dekube_")
            and call.method not in WITHOUT_MIN_HEIGHT
            and (not params or isinstance(params, Mapping))
        ):
            params = {"min_height": self.height, **(params or {})}
        if params is not None:
            request["params"] = params
        return request

    def _note(self, at: int, result: Any) -> None:
        match result:
            case {"at": {"height": int(height)}}:
                self._shown[at] = max(self._shown[at], height)
                self.height = max(self.height, height)
            case _:
                pass

    def pages(self, method: str, /, **named: Any) -> Stream[Any]:
        """Yield all items of a paged method; all pages are bound to one height."""
        cursor: str | None = None
        pages = Pages(method)
        while True:
            page = yield from self.call(method, **named, cursor=cursor, limit=100)
            if type(page) is not dict or type(page.get("items")) is not list:
                raise AnswerMalformed(f"{method}: not a page")
            for item in page["items"]:
                yield Item(item)
            following = page.get("next")
            if not isinstance(following, str):
                return
            pages.check_next(following, page["items"])
            cursor = following


def read_answers(data: bytes, count: int, *, is_batch: bool) -> list[Any]:
    """Return the ``count`` results in a gateway's answer, a failed one as its ClientError.

    If the whole batch was refused, each result is that error. Raises AnswerMalformed.
    """
    answer = read_json(data)
    if not is_batch or type(answer) is dict:
        if not is_batch and type(answer) is dict and answer.get("id") not in (0, None):
            raise AnswerMalformed("an answer to what was not asked")
        result = _result(answer)
        if is_batch and not isinstance(result, ClientError):
            raise AnswerMalformed("one answer for a batch")
        return [_BatchRefused(answer["error"])] * count if is_batch else [result]
    results: list[Any] = [None] * count
    found = set()
    if type(answer) is not list:
        raise AnswerMalformed("not the answer to a batch")
    for item in answer:
        number = item.get("id") if type(item) is dict else None
        if type(number) is not int or not 0 <= number < count:
            raise AnswerMalformed("an answer to what was not asked")
        results[number] = _result(item)
        found.add(number)
    if len(found) != count:
        raise AnswerMalformed("the answer to a batch is not whole")
    return results


class _BatchRefused(ClientError):
    """The gateway refused a batch as a whole."""


def _result(answer: Any) -> Any:
    match answer:
        case {"error": error}:
            return ClientError(error)
        case {"result": result}:
            return result
        case _:
            raise AnswerMalformed("not an answer of a gateway")


def read_json(data: bytes) -> Any:
    """Return the parsed JSON of a gateway's answer. Raises AnswerMalformed."""
    try:
        return orjson.loads(data)
    except ValueError:
        raise AnswerMalformed("not JSON") from None


def _is_to_be_asked_again(result: Any) -> bool:
    return isinstance(result, ClientError) and (
        result.reason in ELSEWHERE or (result.reason == RATION and _ration_s(result) > 0)
    )


def _ration_s(result: Any) -> float:
    """Return the seconds to wait that a gateway's ``limit_exceeded`` error names."""
    seconds = result.fields.get("retry_after_s") if isinstance(result, ClientError) else None
    try:
        return min(max(float(seconds or 0), 0.0), RATION_PAUSE_S_MAX)
    except (TypeError, ValueError):
        return 0.0


def http_url(url: str) -> str:
    """Return ``url`` with scheme, port and path. Raises ConfigError.

    A host name alone gets the default port of a gateway; a URL without a port gets that of its scheme. Raises
    ArgumentInvalid for a value that is not a string.
    """
    if not isinstance(url, str):
        raise ArgumentInvalid(f"the URL of a gateway is a text, not {type(url).__name__}")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as the HTTP library does
    except ValueError:
        raise ConfigError(f"not the URL of a gateway: {url[:200]!r}; one is http://HOST:PORT") from None
    path = parts.path or "/"
    # Line ends and tabs are dropped by who splits URLs: what is asked would be another host than what is written.
    is_plain = not any(sign.isspace() or not sign.isprintable() for sign in url)
    if not is_plain or parts.scheme not in ("http", "https") or not host or port == 0 or not _PATH.fullmatch(path):
        raise ConfigError(f"not the URL of a gateway: {url[:200]!r}; one is http://HOST:PORT")
    if parts.query or parts.fragment or "@" in parts.netloc:  # not to be left out without a word
        raise ConfigError("the URL of a gateway has no query, fragment, name or password")
    usual = DEFAULT_PORT if "://" not in url else 443 if parts.scheme == "https" else 80
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port or usual}{path}"
