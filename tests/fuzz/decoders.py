"""Every decoder of the product with good samples: what reads it, what it may raise, what must come back.

``tests/fuzz/targets`` has a module for each package. ``covers`` of a target names the functions that it runs
(module:qualified name); ``test_registry`` finds them all.
"""

from __future__ import annotations

from itertools import chain

from tests.fuzz.targets import consensus, node, p2p, relay, rpc, state, tasks, testnet
from tests.fuzz.targets.base import Target

__all__ = ["TARGETS", "Target"]

_FOUND = tuple(
    chain.from_iterable(package.targets() for package in (state, consensus, p2p, relay, tasks, rpc, node, testnet))
)
TARGETS = dict(_FOUND)
assert len(TARGETS) == len(_FOUND), "two targets of one name"
