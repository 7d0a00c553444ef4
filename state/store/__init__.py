"""The finalised chain and state on disk."""

from state.store.database import StoreOptions, check_free
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
from state.store.records import FinalisedBlock, Nullification, Place, Tip
from state.store.restore import Restore, install
from state.store.snapshots import Piece, cut_state, place_of
from state.store.store import StateProof, StateView, Store, StoredReader

__all__ = [
    "FinalisedBlock",
    "HeightUnknown",
    "Nullification",
    "Piece",
    "Place",
    "Pruned",
    "Restore",
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
    "check_free",
    "cut_state",
    "install",
    "place_of",
]
