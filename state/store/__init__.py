"""The finalised chain and state on disk."""

from state.store.errors import (
    HeightUnknown,
    Pruned,
    StoreClosed,
    StoreDamaged,
    StoreIncompatible,
    StoreLocked,
    StoreOfAnotherChain,
    StoreUnavailable,
)
from state.store.records import FinalisedBlock, Place, Tip
from state.store.store import StateProof, Store, StoredReader, StoreOptions

__all__ = [
    "FinalisedBlock",
    "HeightUnknown",
    "Place",
    "Pruned",
    "StateProof",
    "Store",
    "StoreClosed",
    "StoreDamaged",
    "StoreIncompatible",
    "StoreLocked",
    "StoreOfAnotherChain",
    "StoreOptions",
    "StoreUnavailable",
    "StoredReader",
    "Tip",
]
