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
from state.store.readers import StateView, StoredReader
from state.store.records import NO_VIEWS, FinalisedBlock, Place, Tip, ViewCertificate, ViewCertificates
from state.store.restore import Restore, install
from state.store.snapshots import Piece, cut_state, place_of
from state.store.store import StateProof, Store

__all__ = [
    "NO_VIEWS",
    "FinalisedBlock",
    "HeightUnknown",
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
    "ViewCertificate",
    "ViewCertificates",
    "check_free",
    "cut_state",
    "install",
    "place_of",
]
