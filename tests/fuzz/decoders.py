"""Every decoder of the product with good samples: what reads it, what it may raise, what must come back.

``tests/fuzz/targets`` has a module for each package. ``covers`` of a target names the functions that it runs
(module:qualified name); ``test_registry`` finds them all.
"""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.targets import (
    api,
    commands,
    consensus,
    containers,
    disputes,
    kubernetes,
    node,
    p2p,
    passes,
    relay,
    rpc,
    state,
    stores,
    tasks,
    testnet,
)
from tests.fuzz.targets.base import Target

__all__ = ["SOURCES", "TARGETS", "Target"]

_PACKAGES = (
    state,
    consensus,
    p2p,
    passes,
    relay,
    tasks,
    containers,
    disputes,
    rpc,
    stores,
    kubernetes,
    node,
    api,
    testnet,
    commands,
)
_FOUND = tuple((name, target, package) for package in _PACKAGES for name, target in package.targets())
TARGETS = {name: target for name, target, _ in _FOUND}
SOURCES = {name: Path(str(package.__file__)) for name, _, package in _FOUND}
"""Where each target is written."""
assert len(TARGETS) == len(_FOUND), "two targets of one name"
