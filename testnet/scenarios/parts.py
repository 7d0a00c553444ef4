"""Names of the parts that cheats play."""

from __future__ import annotations

from typing import Final

__all__ = ["COARSE", "COPIER", "FAST", "LAZY", "LIAR", "OVERLOADER", "SKIPPER", "SWINDLER"]

LIAR: Final = "liar"
LAZY: Final = "lazy"
SWINDLER: Final = "swindler"
FAST: Final = "fast"
COARSE: Final = "coarse"
SKIPPER: Final = "skipper"
COPIER: Final = "copier"
OVERLOADER: Final = "overloader"
"""A requester; it has no machine."""
