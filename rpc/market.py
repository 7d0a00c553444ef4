"""Methods over the compute market: machines, tasks, proofs of work, bills."""

from __future__ import annotations

from typing import Final

from rpc.table import Method

__all__ = ["MARKET_METHODS"]

MARKET_METHODS: Final[tuple[Method, ...]] = ()
