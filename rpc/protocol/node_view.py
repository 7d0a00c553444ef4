"""What the node shows to its RPC backend: one protocol, and the plain records that cross the socket."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.view import Reader

__all__ = [
    "BlockRecord",
    "Description",
    "Head",
    "KindInfo",
    "KnownNode",
    "Network",
    "NodeView",
    "Peer",
    "PoolStatus",
    "Submitted",
    "Sync",
    "Waiting",
    "read_record",
    "record_value",
]

_Record = TypeVar("_Record", bound=tuple[Any, ...])


class KindInfo(NamedTuple):
    """One kind of transaction of the runtime: its number, name and fixed weight."""

    kind: int
    name: str
    gas: int


class Description(NamedTuple):
    """What does not change while the node runs. ``parameters`` are all chain parameters by dotted name."""

    chain_id: int
    chain_name: str
    genesis_hash: bytes
    genesis_time_ms: int
    testnet: int
    address: bytes
    roles: tuple[str, ...]
    version: str
    kinds: tuple[KindInfo, ...]
    parameters: tuple[tuple[str, int], ...]
    validators: tuple[tuple[bytes, bytes, bytes, int], ...]
    """Founding validators: address, vote key, VRF key, stake."""


class Head(NamedTuple):
    """The newest finalised block and what follows from it.

    ``state_root`` is the root after executing it (the next header carries it), ``base_fee_next`` the base fee
    of the next block. State is readable from ``oldest_state`` up, blocks from ``oldest_block``.
    """

    height: int
    hash: bytes
    time_ms: int
    state_root: bytes
    base_fee: int
    base_fee_next: int
    oldest_state: int
    oldest_block: int


class BlockRecord(NamedTuple):
    """A finalised block: its hash, canonical bytes, the FINALIZE certificate over it, and what execution left.

    ``receipts`` holds one encoded receipt for each transaction; ``hooks`` the encoded receipt of the block's
    own events, or None where there were none.
    """

    hash: bytes
    raw: bytes
    certificate: bytes
    receipts: tuple[bytes, ...]
    hooks: bytes | None


class PoolStatus(NamedTuple):
    """The mempool in numbers; ``queued`` wait for an earlier nonce."""

    pending: int
    queued: int
    bytes: int


class Waiting(NamedTuple):
    """A transaction of the mempool: its bytes, and its sender, who was recovered when it came in."""

    raw: bytes
    sender: bytes


class Peer(NamedTuple):
    """A connected node; ``path`` says how: "direct", "relay", and whether it dialled us."""

    address: bytes
    endpoint: str
    inbound: int
    path: str
    roles: tuple[str, ...]
    latency_us: int
    version: str


class KnownNode(NamedTuple):
    """A node that has told of itself by a signed record; ``signed_ms`` is its own word."""

    address: bytes
    roles: tuple[str, ...]
    endpoints: tuple[str, ...]
    signed_ms: int
    expires_ms: int
    is_connected: int


class Network(NamedTuple):
    """How the node is reached, and a page of those that it knows, by address; ``known`` counts them all.

    ``endpoints`` are the node's own, each with what others found: public, closed or unknown.
    """

    how: str
    why: str
    endpoints: tuple[tuple[str, str], ...]
    relays: tuple[str, ...]
    known: int
    nodes: tuple[KnownNode, ...]


class Submitted(NamedTuple):
    """Evidence that was taken in: who is convicted of which fault. ``is_new`` 0: the node knew one as good."""

    operator: bytes
    fault: int
    epoch: int
    view: int
    is_new: int


class Sync(NamedTuple):
    """How far the node is: ``highest`` is the height that a third of its peers claim at least, or a proven one.

    ``disk_free_mib`` is the room where the chain is kept; -1: not known.
    """

    syncing: int
    highest: int
    peers: int
    view: int
    epoch: int
    disk_free_mib: int = -1


class NodeView(Protocol):
    """What the backend asks of the node.

    Methods marked *thread* are called from worker threads, one call at a time or several, and may block on the
    disk; all others are called on the node's event loop and must return at once. Heights are finalised ones.
    Typed errors (``DekubeError``) reach the user with their code; anything else is a bug and ends the node.
    """

    def description(self) -> Description:
        """Return what does not change."""
        ...

    def head(self) -> Head:
        """Return the newest finalised block."""
        ...

    async def wait_head(self, height: int) -> Head:
        """Return the head as soon as it is above ``height``."""
        ...

    def changed_keys(self, height: int) -> tuple[bytes, ...] | None:
        """Return the keys of the state that the block at ``height`` changed, None where that is not at hand.

        With them a gateway keeps what it read over new heads.
        """
        ...

    def reader(self, height: int) -> Reader:
        """Return the state after the block at ``height``; its methods are *thread* safe.

        Raises Pruned below the oldest state, HeightUnknown above the newest.
        """
        ...

    def block(self, height: int) -> BlockRecord | None:
        """Return the block at ``height``, None above the newest; *thread*. Raises Pruned."""
        ...

    def block_hash(self, height: int) -> bytes | None:
        """Return the hash of the block at ``height``, None above the newest. Raises Pruned."""
        ...

    def height_of(self, block_hash: bytes) -> int | None:
        """Return the height of a finalised block."""
        ...

    def locate(self, transaction_hash: bytes) -> tuple[int, int] | None:
        """Return height and index of a finalised transaction."""
        ...

    def history(self, address: bytes, before: tuple[int, int] | None, limit: int) -> list[tuple[int, int]]:
        """Return (height, index) of the transactions that touch ``address``, newest first; *thread*.

        With ``before`` only those older than that place.
        """
        ...

    def prove(self, key: bytes, height: int) -> bytes:
        """Return the encoded proof of ``key`` in the state after ``height``; *thread*. Raises Pruned."""
        ...

    def header_path(
        self, height: int, limit: int, *, to_certificate: bool = True
    ) -> tuple[list[bytes], bytes | None]:
        """Return headers from ``height`` up to the first that a kept certificate names, and that certificate.

        At most ``limit`` headers, then without one, as many where no certificate is wanted; none above the newest
        block; *thread*.
        """
        ...

    def epoch_records(self, first: int, limit: int) -> list[bytes]:
        """Return the records of at most ``limit`` epochs from ``first`` on (consensus.light); *thread*."""
        ...

    def pending_nonce(self, address: bytes) -> int:
        """Return the nonce of the next transaction: executed ones and consecutive ones of the pool."""
        ...

    def pool_status(self) -> PoolStatus:
        """Return the mempool in numbers."""
        ...

    def pool_transactions(self, limit: int) -> list[Waiting]:
        """Return transactions of the mempool in the order in which a leader would take them."""
        ...

    def pool_page(self, before: int | None, limit: int) -> list[tuple[int, Waiting]]:
        """Return transactions of the mempool with the numbers of their arrival, the newest first.

        With ``before`` only those that came earlier than that number.
        """
        ...

    def pool_queued(self, limit: int) -> list[Waiting]:
        """Return transactions of the mempool that wait for an earlier nonce."""
        ...

    def pool_of(self, address: bytes) -> list[Waiting]:
        """Return what waits from one sender, in the order of the nonces."""
        ...

    def pool_news(self, since: int, limit: int) -> tuple[int, list[bytes]]:
        """Return where the pool is now, and the hashes of what came in after ``since``, which was that before.

        The newest ``limit`` of them, the oldest first, as far as they still wait.
        """
        ...

    def pool_get(self, transaction_hash: bytes) -> Waiting | None:
        """Return a transaction that waits in the mempool."""
        ...

    def leaders(self, epoch: int) -> list[bytes]:
        """Return the addresses of an epoch's seats in their order, none where that is not known; *thread*."""
        ...

    def admission(self) -> AbstractContextManager[Callable[[bytes, bytes], object]]:
        """Begin to admit transactions; who builds blocks looks at the mempool when the context is left.

        What the context gives takes a transaction's bytes and its sender, whom our own gateway recovered, puts it
        into the mempool and passes it on to peers. It raises InvalidTransaction or another ProtocolError,
        and then nothing has changed.
        """
        ...

    def submit_evidence(self, raw: bytes) -> Submitted:
        """Take in evidence of a fault and pass it on. Raises EvidenceRefused or DecodeError."""
        ...

    def submit_fork(self, certificates: list[bytes], reporter: bytes | None) -> list[Submitted]:
        """Take in certificates of a fork, and pass on proofs against those whom they convict; *thread*.

        Raises ForkUnproven or DecodeError.
        """
        ...

    def simulate(self, sender: bytes, kind: int, payload: list[Any], price: int | None = None) -> bytes:
        """Return the encoded receipt that the transaction would have on the newest state; *thread*.

        ``price`` is the most that it pays for a unit of gas, None the base fee; 0: gas is given to the sender.
        Raises InvalidTransaction for a kind or payload that no block may carry.
        """
        ...

    def peers(self) -> list[Peer]:
        """Return the connected peers."""
        ...

    def network(self, after: bytes, limit: int) -> Network:
        """Return how the node is reached, and at most ``limit`` known nodes whose addresses follow ``after``."""
        ...

    def sync(self) -> Sync:
        """Return how far the node is."""
        ...


def record_value(record: Any) -> Value:
    """Return a record of this module as a codec value."""
    if isinstance(record, tuple | list):
        return [record_value(item) for item in record]
    return record  # type: ignore[no-any-return]


def read_record(kind: type[_Record], value: Any) -> _Record:
    """Return the record of ``kind`` that stands in a codec value.

    The other side of the socket is our own node of the same version, so the check is of the shape: length and
    the outer types. Raises DecodeError.
    """
    if type(value) is not list or len(value) != len(kind._fields):  # type: ignore[attr-defined]
        raise DecodeError(f"not a {kind.__name__}")
    return kind(*(_tuples(item) for item in value))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if type(value) is list else value
