"""The state as a map from keys to values, seen through overlays, and the tables that share it."""

from state.view.overlay import EMPTY, Empty, Overlay, Reader
from state.view.tables import TABLES, Table

__all__ = ["EMPTY", "TABLES", "Empty", "Overlay", "Reader", "Table"]
