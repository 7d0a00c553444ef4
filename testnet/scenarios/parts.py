"""Names of the parts that cheats play."""

from __future__ import annotations

from typing import Final

__all__ = ["LAZY", "LIAR", "OVERLOADER", "SWINDLER"]

LIAR: Final = "liar"
LAZY: Final = "lazy"
SWINDLER: Final = "swindler"
OVERLOADER: Final = "overloader"
"""A requester; it has no machine."""
