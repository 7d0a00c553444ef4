"""The types of a method table, and the interface by which methods query the node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

from rpc.methods.poll_filters import PollFilters
from rpc.methods.queues import QueueKind
from rpc.methods.schema import HEIGHT, Param, Schema
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import RpcError
from rpc.protocol.records import Description
from rpc.protocol.waiter import Waiter
from state.primitives.bounded_cache import BoundedCache
from state.primitives.errors import DekubeError
from state.primitives.heads import Head
from state.primitives.receipts import EventType

if TYPE_CHECKING:
    pass

__all__ = ["MIN_HEIGHT", "Json", "Method", "NodeApi", "Submission", "bind"]

Json = Any
_T = TypeVar("_T")
_P = ParamSpec("_P")


class NodeApi(Protocol):
    """The node as methods see it. Every call may raise NodeUnavailable. Heights are those of finalised blocks."""

    @property
    def head(self) -> Head:
        """The newest finalised block that the gateway knows of."""
        ...

    @property
    def description(self) -> Description:
        """What does not change while the node runs."""
        ...

    @property
    def kinds(self) -> Mapping[int, str]:
        """Names of the kinds of transactions."""
        ...

    @property
    def events(self) -> Mapping[tuple[bytes, bytes], EventType]:
        """Known events by address and first topic."""
        ...

    @property
    def blooms(self) -> BoundedCache[int, int]:
        """Cached blooms of the logs of final blocks, by height."""
        ...

    @property
    def filters(self) -> PollFilters:
        """The filters that clients poll."""
        ...

    def request(
        self, function: Callable[Concatenate[Any, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> Awaitable[_T]:
        """Send the request that ``function`` declares in ``rpc.protocol.requests``; return its answer."""
        ...

    async def read(self, height: int, *keys: bytes) -> list[bytes | None]:
        """Return values of the state after ``height``. Raises Pruned or HeightUnknown."""
        ...

    async def query(self, height: int, function: Callable[..., _T], *args: Any) -> _T:
        """Return ``function(reader, *args)`` over the state after ``height``. Raises Pruned or HeightUnknown."""
        ...

    async def hash_of(self, height: int) -> bytes:
        """Return the hash of the block at ``height``. Raises Pruned or HeightUnknown."""
        ...

    async def block(self, height: int) -> LoadedBlock | None:
        """Return the block at ``height``, None above the newest. Raises Pruned."""
        ...

    async def block_with_senders(self, height: int) -> LoadedBlock | None:
        """Return the block at ``height`` with the senders of all its transactions."""
        ...

    async def rendered(self, part: str, loaded: LoadedBlock, item: Callable[[int], Json]) -> Json:
        """Return the JSON of ``item`` of each transaction of a block; ``part`` is its name in the cache."""
        ...

    async def height_of(self, block_hash: bytes) -> int | None:
        """Return the height of a finalised block."""
        ...

    async def locate(self, transaction_hash: bytes) -> tuple[int, int] | None:
        """Return height and index of a finalised transaction."""
        ...

    async def wait_transaction(self, transaction_hash: bytes, timeout_ms: int) -> tuple[int, int] | None:
        """Return height and index as soon as a transaction is final, None when the time is over."""
        ...

    async def yield_turn(self) -> None:
        """Let other requests run; called in long loops over cached data."""
        ...

    async def wait_height(self, height: int) -> None:
        """Wait a little for the head to be at ``height``. Raises HeightNotReached."""
        ...

    async def pending_nonce(self, address: bytes) -> int:
        """Return the nonce of the next transaction of ``address``."""
        ...

    async def submit(self, raw: bytes, sender: bytes) -> bytes:
        """Submit a transaction and its recovered sender to the mempool; return its hash.

        Raises RpcError with the rule's code; the bytes need not be those of a transaction.
        """
        ...

    def post(self, raw: bytes, sender: bytes, waiter: Waiter[bytes]) -> None:
        """Submit as ``submit`` does; ``waiter`` gets the hash or the error."""
        ...


class Submission(NamedTuple):
    """The steps of a method that submits a transaction, before and after the node answers; none of them waits.

    With them a call needs no coroutine. Its answer is the same as that of ``handle``.
    """

    prepare: Callable[[NodeApi, bytes], tuple[bytes, Any] | None]
    """Returns the sender and what the other steps need; None leaves the call to ``handle``."""
    result: Callable[[Any, bytes], Json]
    """Returns the result from what ``prepare`` returned and the transaction's hash."""
    error: Callable[[Any, DekubeError], DekubeError]
    """Returns the caller's error for an error of the node."""


class Method(NamedTuple):
    """One entry of the method table.

    ``handle`` gets the node and the parameters in their order. ``cost`` is what a call takes from the caller's
    budget; 1 is a read of one record. ``min_height`` is a parameter of every method that reads finalised data.
    """

    name: str
    summary: str
    handle: Callable[..., Awaitable[Json]]
    result: Schema
    params: tuple[Param, ...] = ()
    cost: int = 1
    has_min_height: bool = True
    needs_session: bool = False
    """Works over a WebSocket alone; ``handle`` then gets the caller's session instead of the node."""
    needs_caller: bool = False
    """``handle`` gets the caller's key after the node."""
    weigh: Callable[..., int] | None = None
    """The cost of a call beside ``cost``, where it depends on the parameters."""
    group: str = "chain"
    """Heading in the documentation."""
    queue: QueueKind | None = None
    """The queue of the call, if it takes long or much memory."""
    may_revert: bool = False
    """Some failures are reverts, whose data is bytes. The data of all others is then a list of one object: clients
    (web3.py) take an object there for a revert, whatever code and text say."""
    routes: tuple[str, ...] | None = None
    """REST paths (GET) that the method answers; its parameters are those of path and query. A native method states
    them, or that it has none: ``()``."""
    submission: Submission | None = None
    """How a call with nothing but a transaction is answered without a coroutine; no ``weigh``, no ``queue``."""

    @property
    def all_params(self) -> tuple[Param, ...]:
        """The parameters with ``min_height`` as the last one where the method takes it."""
        return (*self.params, MIN_HEIGHT) if self.has_min_height else self.params


MIN_HEIGHT: Final = Param(
    "min_height",
    HEIGHT,
    "Wait up to two seconds for this height; then fail with height_not_reached.",
    required=False,
)


def bind(params: Sequence[Param], given: Any) -> list[Any]:
    """Return the values for ``params`` from a request's params: an array, an object or nothing.

    Raises RpcError (invalid_params) for a missing, an unknown, a superfluous or a malformed one.
    """
    if type(given) is list or given is None:
        found = given or ()
        if len(found) > len(params):
            raise RpcError("invalid_params", f"invalid params: at most {len(params)} expected, got {len(found)}")
    elif type(given) is dict:
        unknown = given.keys() - {param.name for param in params}
        if unknown:
            name = min(unknown)[:64]
            raise RpcError("invalid_params", f"invalid params: unknown parameter {name}", param=name)
        found = [given.get(param.name) for param in params]
    else:
        raise RpcError("invalid_params", "invalid params: an array or an object expected")
    values = []
    for param, value in zip_longest(params, found):
        if value is not None:
            values.append(param.read(value))
        elif param.required:
            raise RpcError("invalid_params", f"invalid params: missing parameter {param.name}", param=param.name)
        else:
            values.append(param.default)
    return values
