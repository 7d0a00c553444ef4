"""Bounds of the core: how far ahead, how long and how much a replica keeps and requests."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BACKOFF_EXPONENT_MAX",
    "CATCH_UP_COMMIT_BLOCKS",
    "EVIDENCE_VIEWS",
    "FETCHES_MAX",
    "KEPT_CANDIDATE_VIEWS",
    "LINEAGE_BLOCKS",
    "POWERS_OF_3",
    "PULL_TRIES_MAX",
    "RESENT_VIEWS",
    "SYNC_GAP_BLOCKS",
    "VIEWS_AHEAD",
]

VIEWS_AHEAD: Final = 2
"""Votes and proposals are admitted up to this many views above the current one (consensus.md R8)."""
EVIDENCE_VIEWS: Final = 256
"""Votes are kept this many views below the current one, for evidence and late finality (consensus.md R6, R8)."""
FETCHES_MAX: Final = 64
"""Concurrently requested blocks."""
SYNC_GAP_BLOCKS: Final = 2
"""A replica that is behind by more blocks requests windows of final blocks instead of single blocks."""
CATCH_UP_COMMIT_BLOCKS: Final = 64
"""While more final blocks than this wait for execution, this many are committed at once, because each commit has a
fixed cost. A replica that catches up by windows alone has no certificates for fewer blocks."""
PULL_TRIES_MAX: Final = 8
"""After this many requests without progress the replica ignores the highest view that a vote claimed."""
RESENT_VIEWS: Final = 8
"""NOTARIZE and NULLIFY votes are repeated this many views long, FINALIZE votes until the view is final."""
KEPT_CANDIDATE_VIEWS: Final = 8
"""Blocks without a certificate are kept for this many views."""
LINEAGE_BLOCKS: Final = 2
"""Committed blocks whose parent and view a leader may still need."""
BACKOFF_EXPONENT_MAX: Final = 64
POWERS_OF_3: Final[tuple[int, ...]] = tuple(3**power for power in range(BACKOFF_EXPONENT_MAX + 1))
