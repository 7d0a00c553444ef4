"""The plain records that the node and its gateway exchange (``rpc.protocol.wire_types`` encodes them)."""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "BlobStatus",
    "BlockRecord",
    "Description",
    "KindInfo",
    "KnownNode",
    "Network",
    "Peer",
    "PoolStatus",
    "PooledTransaction",
    "Sync",
    "UploadStatus",
]


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


class BlobStatus(NamedTuple):
    """Whether the node has a blob: ``state`` is complete, fetching or waiting.

    ``manifest`` is empty unless the blob is complete; ``pieces`` is 0 while its manifest is unknown.
    """

    state: str
    manifest: bytes
    pieces_done: int
    pieces: int


class UploadStatus(NamedTuple):
    """An upload: how many pieces the blob has, and the first and the count of each missing run of pieces."""

    pieces: int
    missing: list[tuple[int, int]]


class PoolStatus(NamedTuple):
    """The mempool in numbers; ``queued`` wait for an earlier nonce."""

    pending: int
    queued: int
    bytes: int


class PooledTransaction(NamedTuple):
    """A transaction of the mempool: its bytes, and its sender, recovered when it arrived."""

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
    """A node known by its signed record; ``signed_ms`` is what the record claims."""

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


class Sync(NamedTuple):
    """How far the node has synchronised. ``highest`` is claimed by at least a third of its peers, or proven.

    ``disk_free_mib`` is the free space of the disk with the chain; -1: unknown.
    """

    syncing: int
    highest: int
    peers: int
    view: int
    epoch: int
    disk_free_mib: int = -1
