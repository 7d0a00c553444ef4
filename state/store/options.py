"""Options of a node's database."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreOptions"]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of a node's own database; none changes a state root."""

    block_heights: int = 0
    """Bodies, receipts, certificates and indexes are kept for this many heights; 0 keeps all.

    Headers and the records of epochs always stay."""
    index_addresses: bool = True
    """Keep the history of each address."""
    value_cache_entries: int = 400_000
    node_cache_entries: int = 160_000
    node_period_blocks: int = 64
    """A changed trie node is written at most this many blocks late. After a crash it is computed again."""
    late_nodes_max: int = 150_000
    """When more trie nodes wait than this, they are written faster."""
    undo_cache_entries: int = 200_000
    notarized_bytes_max: int = 1 << 30
    """The newest NOTARIZE certificates are kept up to this size and the evidence age, as evidence of forks."""
    proof_versions_max: int = 4
    """Tries of earlier heights that were needed for proofs stay in memory up to this number."""
    write_buffer_bytes: int = 64 * 1024 * 1024
    block_cache_bytes: int = 32 * 1024 * 1024
    open_files_max: int = 512
