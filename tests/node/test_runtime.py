"""The runtime table of a node: which versions of the protocol it takes for known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node.runtime import make_runtime
from state.primitives.blocks import VERSION
from state.primitives.errors import ConfigError
from state.transition.epochs import UpgradeRequired
from tests.node.world import World


def test_an_upgrade_is_rehearsed_on_test_networks_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.close()
    genesis = world.genesis
    assert genesis.testnet
    own = make_runtime(genesis)
    assert (own.versions, own.signal) == (frozenset((VERSION,)), VERSION)
    newer = make_runtime(genesis, protocol_version=VERSION + 2)
    assert newer.signal == VERSION + 2
    newer.require_version(VERSION + 1)
    with pytest.raises(UpgradeRequired):
        own.require_version(VERSION + 1)
    assert newer.genesis_changes() == own.genesis_changes()
    real = replace(genesis, testnet=False)
    assert make_runtime(real).versions == {VERSION}
    with pytest.raises(ConfigError, match="test networks"):
        make_runtime(real, protocol_version=VERSION + 1)
