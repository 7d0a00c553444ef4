"""Every request that a gateway sends to its node, each declared once.

A request is a method of one of the protocols below: its name, the bounded types of its arguments, the type of its
answer, and whether it runs on the node's event loop or in a worker thread. From these declarations derive

* the gateway's client: ``await node.request(PoolRequests.pool_of, address)``,
* the dispatch of the backend (``rpc.backend.server``),
* the interfaces that the chain's view (``rpc.backend.store_view``) and the running node implement.

Arguments are positional. A typed error (DekubeError) of a request reaches the user with its code. Any other
exception is a bug, and the request fails with ``internal_error``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypeVar, get_type_hints

from rpc.protocol.frames import REQUEST_LIMIT_BYTES
from rpc.protocol.records import (
    BlobStatus,
    BlockRecord,
    Description,
    Network,
    Peer,
    PooledTransaction,
    PoolStatus,
    Sync,
    UploadStatus,
)
from rpc.protocol.task_views import QUESTION_BYTES_MAX
from rpc.protocol.wire_types import Codec, Encoded, Length, Range, codec_of
from state.primitives.accepted_evidence import AcceptedEvidence
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.heads import Head
from state.view.overlay import KEY_BYTES_MAX
from tasks.ledger.screening import DatasetFacts

__all__ = [
    "HEIGHT_LIMIT",
    "KEYS_MAX",
    "POOL_ARRIVALS_MAX",
    "POOL_MAX",
    "REQUESTS",
    "BlobRequests",
    "ChainRequests",
    "LiveNode",
    "LiveRequests",
    "NodeView",
    "PoolRequests",
    "Request",
    "TaskViewRequests",
    "TaskViewSource",
    "awaiting_handler_of",
    "handler_of",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])

KEYS_MAX: Final = 256
"""Keys, addresses or hashes of one request."""
SCAN_MAX: Final = 1024
HISTORY_MAX: Final = 256
POOL_MAX: Final = 1024
POOL_ARRIVALS_MAX: Final = 4096
HEIGHT_LIMIT: Final = 2**63
EPOCH_LIMIT: Final = 2**32
INDEX_LIMIT: Final = 2**32
HEADERS_MAX: Final = 512
RECORDS_MAX: Final = 32
KNOWN_MAX: Final = 1_000
FORK_CERTIFICATES_MAX: Final = 2
FIELD_LIMIT: Final = 2**256
"""Above any number of a transaction."""

Height = Annotated[int, Range(0, HEIGHT_LIMIT)]
Epoch = Annotated[int, Range(0, EPOCH_LIMIT)]
Key = Annotated[bytes, Length(1, KEY_BYTES_MAX)]
Keys = Annotated[list[Key], Length(0, KEYS_MAX)]
Bound = Annotated[bytes, Length(0, REQUEST_LIMIT_BYTES)]
Hash = Annotated[bytes, Length(HASH_BYTES, HASH_BYTES)]
Hashes = Annotated[list[Hash], Length(0, KEYS_MAX)]
Addresses = Annotated[list[bytes], Length(0, KEYS_MAX)]
Index = Annotated[int, Range(0, INDEX_LIMIT)]
PoolLimit = Annotated[int, Range(1, POOL_MAX + 1)]

_threaded: dict[Callable[..., Any], bool] = {}
"""The declared requests, and whether each runs in a worker thread."""
_awaited: set[Callable[..., Any]] = set()
"""Declared requests that wait for another node."""


def _on_loop(function: _Function) -> _Function:
    """Declare a request that the node answers on its event loop; it must return at once."""
    _threaded[function] = False
    return function


def _in_thread(function: _Function) -> _Function:
    """Declare a request that may block on the disk; it runs in a worker thread, several at a time."""
    _threaded[function] = True
    return function


def _of_another_node(function: _Function) -> _Function:
    """Declare a request that the node answers after it has asked another one; it waits on the event loop."""
    _threaded[function] = False
    _awaited.add(function)
    return function


class ChainRequests(Protocol):
    """Requests that are answered from the stored chain. Heights are those of finalised blocks.

    A request about the state or a block raises Pruned below the oldest that is stored. Above the newest, one about
    the state raises HeightUnknown.
    """

    @_on_loop
    def description(self) -> Description:
        """Return what does not change while the node runs."""
        ...

    @_on_loop
    def head(self) -> Head:
        """Return the newest finalised block."""
        ...

    @_on_loop
    def read(self, height: Height, keys: Keys, /) -> list[bytes | None]:
        """Return the values of ``keys`` in the newest state, that after ``height``."""
        ...

    @_in_thread
    def read_old(self, height: Height, keys: Keys, /) -> list[bytes | None]:
        """Return the values of ``keys`` in an older state, which has to be restored from undo records."""
        ...

    @_in_thread
    def scan(
        self, height: Height, start: Bound, stop: Bound, limit: Annotated[int, Range(1, SCAN_MAX + 1)], /
    ) -> list[tuple[bytes, bytes]]:
        """Return at most ``limit`` keys from ``start`` to before ``stop`` after ``height``, with their values."""
        ...

    @_in_thread
    def block(self, height: Height, /) -> BlockRecord | None:
        """Return the block at ``height``, None above the newest."""
        ...

    @_on_loop
    def block_hash(self, height: Height, /) -> bytes | None:
        """Return the hash of the block at ``height``, None above the newest."""
        ...

    @_on_loop
    def height_of(self, block_hash: Hash, /) -> int | None:
        """Return the height of a finalised block."""
        ...

    @_on_loop
    def locate(self, transactions: Hashes, /) -> list[tuple[int, int] | None]:
        """Return height and index of each finalised transaction, None for an unknown one."""
        ...

    @_in_thread
    def history(
        self,
        address: bytes,
        before: tuple[Height, Index] | None,
        limit: Annotated[int, Range(1, HISTORY_MAX + 1)],
        /,
    ) -> list[tuple[int, int]]:
        """Return height and index of the transactions that touch ``address``, the newest first.

        With ``before`` only those older than that place.
        """
        ...

    @_in_thread
    def prove(self, height: Height, key: Key, /) -> bytes:
        """Return the encoded proof of ``key`` in the state after ``height``."""
        ...

    @_in_thread
    def header_path(
        self, height: Height, limit: Annotated[int, Range(1, HEADERS_MAX + 1)], to_certificate: bool, /
    ) -> tuple[list[bytes], bytes | None]:
        """Return headers from ``height`` up to the first that a stored certificate names, and that certificate.

        If none of the first ``limit`` headers has a certificate, or ``to_certificate`` is False, return ``limit``
        headers without one. There are no headers above the newest block.
        """
        ...

    @_in_thread
    def epoch_records(self, first: Epoch, limit: Annotated[int, Range(1, RECORDS_MAX + 1)], /) -> list[bytes]:
        """Return the records of at most ``limit`` epochs from ``first`` on (consensus.light)."""
        ...

    @_in_thread
    def leaders(self, epoch: Epoch, /) -> list[bytes]:
        """Return the address of each seat of an epoch's committee, nothing if the epoch is unknown."""
        ...

    @_in_thread
    def simulate(
        self,
        sender: bytes,
        kind: int,
        payload: Annotated[list[Any], Encoded(REQUEST_LIMIT_BYTES)],
        price: Annotated[int, Range(0, FIELD_LIMIT)] | None,
        /,
    ) -> bytes:
        """Return the encoded receipt that a transaction would have on the newest state.

        ``price`` is the most that it pays for a unit of gas: None means the base fee; with 0 the sender is given
        the gas. Raises InvalidTransaction for a kind or payload that no block may carry.
        """
        ...


class PoolRequests(Protocol):
    """Requests about the mempool."""

    @_on_loop
    def pending_nonces(self, addresses: Addresses, /) -> list[int]:
        """Return the nonce of each address after its executed transactions and consecutive ones of the mempool."""
        ...

    @_on_loop
    def pool_status(self) -> PoolStatus:
        """Return the mempool in numbers."""
        ...

    @_on_loop
    def pool_transactions(self, limit: PoolLimit, /) -> list[PooledTransaction]:
        """Return transactions of the mempool in the order in which a leader would take them."""
        ...

    @_on_loop
    def pool_page(self, before: int | None, limit: PoolLimit, /) -> list[tuple[int, PooledTransaction]]:
        """Return transactions of the mempool with their arrival numbers, the newest first.

        With ``before`` only those that arrived before that number.
        """
        ...

    @_on_loop
    def pool_queued(self, limit: PoolLimit, /) -> list[PooledTransaction]:
        """Return transactions of the mempool that wait for an earlier nonce."""
        ...

    @_on_loop
    def pool_of(self, address: bytes, /) -> list[PooledTransaction]:
        """Return the transactions of one sender in the order of their nonces."""
        ...

    @_on_loop
    def pool_arrivals(
        self, since: Height, limit: Annotated[int, Range(0, POOL_ARRIVALS_MAX + 1)], /
    ) -> tuple[int, list[bytes]]:
        """Return the mempool's newest arrival number, and the hashes of what arrived after ``since``.

        The newest ``limit`` of them that still wait, the oldest first.
        """
        ...

    @_on_loop
    def pool_get(self, transaction_hash: Hash, /) -> PooledTransaction | None:
        """Return a transaction that waits in the mempool."""
        ...


class LiveRequests(Protocol):
    """Requests that only the running node can answer."""

    @_on_loop
    def submit_evidence(self, raw: bytes, /) -> AcceptedEvidence:
        """Accept evidence of a fault and gossip it. Raises EvidenceRefused or DecodeError."""
        ...

    @_in_thread
    def submit_fork(
        self, certificates: Annotated[list[bytes], Length(1, FORK_CERTIFICATES_MAX)], reporter: bytes | None, /
    ) -> list[AcceptedEvidence]:
        """Accept certificates that prove a fork, and gossip evidence against whom they convict.

        Raises ForkUnproven or DecodeError.
        """
        ...

    @_on_loop
    def peers(self) -> list[Peer]:
        """Return the connected peers."""
        ...

    @_on_loop
    def network(
        self,
        after: Annotated[bytes, Length(0, ADDRESS_BYTES)],
        limit: Annotated[int, Range(0, KNOWN_MAX + 1)],
        /,
    ) -> Network:
        """Return how the node is reached, and at most ``limit`` known nodes whose addresses follow ``after``."""
        ...

    @_on_loop
    def sync(self) -> Sync:
        """Return how far the node has synchronised."""
        ...


class BlobRequests(Protocol):
    """Requests about blobs: reading them, fetching what a task names, and uploads of requesters."""

    @_on_loop
    def blob_fetch(self, blob: Hash, task: Hash | None, window: Index | None, /) -> BlobStatus:
        """Return the status of a blob, and fetch it if ``task`` (and its ``window``) names it.

        Raises BlobUnavailable.
        """
        ...

    @_in_thread
    def blob_piece(self, blob: Hash, index: Index, /) -> bytes | None:
        """Return a piece of a blob, None if the node does not have it."""
        ...

    @_in_thread
    def upload_begin(
        self, manifest: bytes, account: Annotated[bytes, Length(ADDRESS_BYTES, ADDRESS_BYTES)], caller: str, /
    ) -> UploadStatus:
        """Begin or continue an upload of ``account``. Raises UploadRefused or DecodeError."""
        ...

    @_in_thread
    def upload_lacks(self, blob: Hash, index: int, /) -> bool:
        """Return whether a piece of an upload is missing. Raises UploadRefused or DecodeError."""
        ...

    @_in_thread
    def upload_put(self, blob: Hash, index: int, piece: bytes, /) -> bool:
        """Store a piece of an upload; return whether the blob is complete. Raises UploadRefused."""
        ...

    @_in_thread
    def dataset_facts(self, blob: Hash, /) -> DatasetFacts | None:
        """Return what a blob is as a data set, None if the node does not have all of it."""
        ...


class TaskViewRequests(Protocol):
    """Requests about running containers, which their machines answer."""

    @_of_another_node
    def task_view(
        self, task: Hash, question: Annotated[bytes, Length(1, QUESTION_BYTES_MAX)], /
    ) -> tuple[bytes, bytes]:
        """Return the machine of a task, and its sealed answer to a signed question (rpc.protocol.task_views).

        Raises ViewRefused, TaskUnknown, PeerUnreachable, RequestFailed, DecodeError.
        """
        ...


class TaskViewSource(Protocol):
    """What answers them at the node."""

    async def task_view(self, task: bytes, question: bytes, /) -> tuple[bytes, bytes]:
        """Answer ``TaskViewRequests.task_view``."""
        ...


class NodeView(ChainRequests, PoolRequests, Protocol):
    """What the backend needs of the chain and the mempool."""

    async def wait_head(self, height: int) -> Head:
        """Return the head as soon as it is above ``height``."""
        ...

    def changed_keys(self, height: int) -> tuple[bytes, ...] | None:
        """Return the keys of the state that the block at ``height`` changed, None if they are no longer known.

        With them a gateway keeps the values that it has read over new heads.
        """
        ...


class LiveNode(LiveRequests, Protocol):
    """What the backend needs of the running node."""

    def admission(self) -> AbstractContextManager[Callable[[bytes, bytes], object]]:
        """Begin to admit transactions; block building looks at the mempool when the context is left.

        The context gives a function of a transaction's bytes and its sender, which our own gateway has recovered.
        It adds the transaction to the mempool and gossips it. It raises InvalidTransaction or another
        ProtocolError, and then nothing has changed.
        """
        ...


class Request(NamedTuple):
    """A declared request, compiled."""

    name: str
    arguments: tuple[str, ...]
    codecs: tuple[Codec, ...]
    answer: Codec
    is_threaded: bool
    is_awaited: bool
    answered_by: type
    writes: tuple[Callable[[Any], Value] | None, ...] | None
    """How the gateway writes each argument; None if all of them are written as they are."""


def _compile(function: Callable[..., Any], owner: type) -> Request:
    hints = get_type_hints(function, include_extras=True)
    answer = codec_of(hints.pop("return"))
    codecs = tuple(map(codec_of, hints.values()))
    writes = tuple(codec.write for codec in codecs)
    return Request(
        function.__name__,
        tuple(hints),
        codecs,
        answer,
        _threaded[function],
        function in _awaited,
        owner,
        writes if any(writes) else None,
    )


REQUESTS: Final[dict[Callable[..., Any], Request]] = {
    function: _compile(function, owner)
    for owner in (ChainRequests, PoolRequests, LiveRequests, BlobRequests, TaskViewRequests)
    for function in vars(owner).values()
    if callable(function) and function in _threaded
}
"""All requests by their declarations."""


def handler_of(request: Request, function: Callable[..., Any]) -> Callable[[Any], Value]:
    """Return what answers a request whose arguments came as codec values, by calling ``function``.

    It raises DecodeError for malformed arguments, and what ``function`` raises.
    """
    read, write = _reader_of(request), request.answer.write

    def handle(params: Any) -> Value:
        found = function(*read(params))
        return found if write is None else write(found)

    return handle


def awaiting_handler_of(
    request: Request, function: Callable[..., Awaitable[Any]]
) -> Callable[[Any], Awaitable[Value]]:
    """Return the same for a request that waits for another node."""
    read, write = _reader_of(request), request.answer.write

    async def handle(params: Any) -> Value:
        found: Any = await function(*read(params))
        return found if write is None else write(found)

    return handle


def _reader_of(request: Request) -> Callable[[Any], list[Any]]:
    readers = tuple(codec.read for codec in request.codecs)
    expected = ", ".join(request.arguments) or "no arguments"

    def read_all(params: Any) -> list[Any]:
        if type(params) is not list or len(params) != len(readers):
            raise DecodeError(f"{request.name}: expected {expected}")
        try:
            return [read(param) for read, param in zip(readers, params, strict=True)]
        except DecodeError as error:
            raise DecodeError(f"{request.name}: expected {expected}: {error}") from None

    return read_all
