"""The authenticated state: roots, batch updates and proofs. Pure; nodes come from and go to the caller."""

from state.trie.proof import PROOF_LIMIT_BYTES, prove, verify_proof
from state.trie.ranges import (
    RANGE_LIMIT_BYTES,
    RangeInvalid,
    RangeOfMap,
    decode_range,
    encode_range,
    prove_range,
    verify_range,
)
from state.trie.trie import (
    BUCKET_ENTRIES_MAX,
    EMPTY_ROOT,
    NO_NODES,
    NodeLayer,
    NodeReader,
    Trie,
    TrieDamaged,
    TrieUpdate,
    entry_of,
    root_of_entries,
    update_below,
)

__all__ = [
    "BUCKET_ENTRIES_MAX",
    "EMPTY_ROOT",
    "NO_NODES",
    "PROOF_LIMIT_BYTES",
    "RANGE_LIMIT_BYTES",
    "NodeLayer",
    "NodeReader",
    "RangeInvalid",
    "RangeOfMap",
    "Trie",
    "TrieDamaged",
    "TrieUpdate",
    "decode_range",
    "encode_range",
    "entry_of",
    "prove",
    "prove_range",
    "root_of_entries",
    "update_below",
    "verify_proof",
    "verify_range",
]
