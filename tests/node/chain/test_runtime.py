"""The runtime table of a node: which versions of the protocol it takes for known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node.chain.runtime import make_runtime
from state.primitives.blocks import VERSION
from state.primitives.errors import ConfigError
from state.primitives.genesis import Genesis
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


@pytest.mark.parametrize(
    ("parameter", "number", "said"),
    [
        ("consensus.leader_ms", 0, "consensus.leader_ms is 0, but must be from 1 to "),
        ("consensus.window_ms", 10**30, "consensus.window_ms is 10{30}, but must be from 1 to "),
        ("tasks.samples", 17, "tasks.samples is 17, but must be from 1 to 16"),
        ("tasks.jury", 2, "tasks.jury is 2, but must be odd"),
        ("chain.validators_max", 0, "chain.validators_max is 0, but must be from 1 to "),
        ("chain.epoch_block", 5, "unknown parameter chain.epoch_block; did you mean chain.epoch_blocks"),
    ],
)
def test_a_parameter_that_no_network_works_with_is_named_with_its_range(
    parameter: str, number: int, said: str
) -> None:
    genesis = Genesis(1, "mine", 1, True, (), (), ((parameter, number),))
    with pytest.raises(ConfigError, match=f"genesis: {said}"):
        make_runtime(genesis)
