"""What a method is, and what it may ask of the node: the shapes that dispatch, discovery and REST share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from rpc.methods.poll_filters import PollFilters
from rpc.methods.queues import QueueKind
from rpc.methods.schema import HEIGHT, Param, Schema
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import RpcError
from rpc.protocol.node_view import Description, Head, Network, Peer, PoolStatus, Submitted, Sync, Waiting
from rpc.protocol.waiter import Waiter
from state.primitives.bounded_cache import BoundedCache
from state.primitives.errors import DekubeError
from state.primitives.receipts import EventType

if TYPE_CHECKING:
    from tasks.ledger.screening import DatasetFacts

__all__ = ["MIN_HEIGHT", "Json", "Method", "Node", "Posting", "bind"]

Json = Any
_T = TypeVar("_T")


class Node(Protocol):
    """The node as a method sees it. Every call may raise NodeUnavailable; heights are finalised ones."""

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
        """Kept blooms of the logs of final blocks, by height."""
        ...

    @property
    def filters(self) -> PollFilters:
        """The filters that clients poll."""
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
        """Return the JSON of ``item`` of each transaction of a block; ``part`` names it, as it may be kept."""
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
        """Let other requests have their turn; called by who looks through much that is at hand."""
        ...

    async def wait_height(self, height: int) -> None:
        """Wait a little for the head to be at ``height``. Raises HeightNotReached."""
        ...

    async def history(self, address: bytes, before: tuple[int, int] | None, limit: int) -> list[tuple[int, int]]:
        """Return places of transactions that touch ``address``, newest first."""
        ...

    async def prove(self, height: int, key: bytes) -> bytes:
        """Return the encoded proof of ``key`` in the state after ``height``. Raises Pruned."""
        ...

    async def header_path(
        self, height: int, limit: int, *, to_certificate: bool = True
    ) -> tuple[list[bytes], bytes | None]:
        """Return headers from ``height`` up to the first that a kept certificate names, and that certificate.

        At most ``limit`` headers, then without one, as many where no certificate is wanted; none above the newest
        block.
        """
        ...

    async def epoch_records(self, first: int, limit: int) -> list[bytes]:
        """Return the records of at most ``limit`` epochs from ``first`` on, as far as there are any."""
        ...

    async def pending_nonce(self, address: bytes) -> int:
        """Return the nonce of the next transaction of ``address``."""
        ...

    async def pool_status(self) -> PoolStatus:
        """Return the mempool in numbers."""
        ...

    async def pool_transactions(self, limit: int) -> list[Waiting]:
        """Return transactions of the mempool, the best first."""
        ...

    async def pool_page(self, before: int | None, limit: int) -> list[tuple[int, Waiting]]:
        """Return transactions of the mempool with the numbers of their arrival, the newest first."""
        ...

    async def pool_queued(self, limit: int) -> list[Waiting]:
        """Return transactions of the mempool that wait for an earlier nonce."""
        ...

    async def pool_of(self, address: bytes) -> list[Waiting]:
        """Return what waits from one sender, in the order of the nonces."""
        ...

    async def pool_news(self, since: int | None) -> tuple[int, list[bytes]]:
        """Return where the mempool is now, and the hashes of what came in after ``since`` (None: nothing)."""
        ...

    async def pool_get(self, transaction_hash: bytes) -> Waiting | None:
        """Return a waiting transaction."""
        ...

    async def submit(self, raw: bytes, sender: bytes) -> bytes:
        """Hand a transaction and whom its signature is of to the mempool; return its hash.

        Raises RpcError with the rule's code; the bytes need not be those of a transaction.
        """
        ...

    def post(self, raw: bytes, sender: bytes, waiter: Waiter[bytes]) -> None:
        """Do what ``submit`` does, and tell ``waiter`` how it ends."""
        ...

    async def submit_evidence(self, raw: bytes) -> Submitted:
        """Hand evidence of a fault to the node. Raises RpcError with the code of what is wrong with it."""
        ...

    async def submit_fork(self, certificates: list[bytes], reporter: bytes | None) -> list[Submitted]:
        """Hand certificates that prove a fork to the node; return who is convicted. Raises as above."""
        ...

    async def simulate(self, sender: bytes, kind: int, payload: list[Any], price: int | None = None) -> bytes:
        """Return the encoded receipt of a dry run on the newest state; see ``NodeView.simulate``."""
        ...

    async def dataset_facts(self, blob: bytes) -> DatasetFacts | None:
        """Return what a blob is as a data set, None where the node does not hold all of it."""
        ...

    async def peers(self) -> list[Peer]:
        """Return the connected peers."""
        ...

    async def network(self, after: bytes, limit: int) -> Network:
        """Return how the node is reached, and some whom it knows; see ``NodeView.network``."""
        ...

    async def sync(self) -> Sync:
        """Return how far the node is."""
        ...


class Posting(NamedTuple):
    """The halves of a method that takes a transaction, before and after the node is asked; none of them waits.

    With them a call needs no coroutine. It answers exactly as ``handle`` does.
    """

    prepare: Callable[[Node, bytes], tuple[bytes, Any] | None]
    """Returns the sender and what the other halves need to know; None leaves the call to ``handle``."""
    result: Callable[[Any, bytes], Json]
    """Returns the result, of what ``prepare`` returned and of the transaction's hash."""
    error: Callable[[Any, DekubeError], DekubeError]
    """Returns the error that the node's refusal stands for."""


class Method(NamedTuple):
    """One line of the dispatch table.

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
    """``handle`` gets, after the node, the name of the caller's budget."""
    weigh: Callable[..., int] | None = None
    """What a call costs beside ``cost``, by the node and the parameters: where these ask for much or little."""
    group: str = "chain"
    """Heading in the documentation."""
    queue: QueueKind | None = None
    """Where a call waits for its turn, if it takes long or much memory."""
    may_revert: bool = False
    """Some failures are reverts, whose data is bytes. The data of all others is then a list of one object: clients
    (web3.py) take an object there for a revert, whatever code and text say."""
    posting: Posting | None = None
    """How a call is answered whose only parameter that is given is a transaction; no ``weigh``, no ``queue``."""

    @property
    def all_params(self) -> tuple[Param, ...]:
        """The parameters with ``min_height`` as the last one where the method takes it."""
        return (*self.params, MIN_HEIGHT) if self.has_min_height else self.params


MIN_HEIGHT: Final = Param(
    "min_height",
    HEIGHT,
    "Answer only from this height on: the gateway waits a little for it, then fails with height_not_reached.",
    required=False,
)


def bind(params: Sequence[Param], given: Any) -> list[Any]:
    """Return the values for ``params`` of what a request carried: an array, an object or nothing.

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
