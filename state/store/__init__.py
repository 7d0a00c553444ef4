"""The finalised chain and state on disk."""

from state.store.database import StoreOptions
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
from state.store.store import StateProof, StateView, Store, StoredReader

__all__ = [
    "FinalisedBlock",
    "HeightUnknown",
    "Place",
    "Pruned",
    "StateProof",
    "StateView",
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
