"""The finalised chain and state on disk."""

from state.store.database import check_free
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
from state.store.options import StoreOptions
from state.store.readers import StateView, StoredReader
from state.store.records import (
    NO_VIEWS,
    FinalisedBlock,
    Tip,
    TransactionPosition,
    ViewCertificate,
    ViewCertificates,
)
from state.store.restore import Restore, install
from state.store.snapshots import Piece, cut_state, piece_key
from state.store.store import StateProof, Store

__all__ = [
    "NO_VIEWS",
    "FinalisedBlock",
    "HeightUnknown",
    "Piece",
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
    "TransactionPosition",
    "ViewCertificate",
    "ViewCertificates",
    "check_free",
    "cut_state",
    "install",
    "piece_key",
]
