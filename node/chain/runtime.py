"""The runtime table: the rules, hooks and invariants of all packages, joined."""

from __future__ import annotations

from typing import Any, Final

from consensus.events import ConsensusParameters
from p2p.secure.identity import account_and_signer
from state.primitives.blocks import VERSION
from state.primitives.errors import ConfigError
from state.primitives.genesis import ChainParameters, Genesis, read_parameters
from state.transition.runtime import Runtime
from tasks.ledger.carriage import carriage_rules
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.transitions import HOLDINGS, INVARIANTS, endowments, hooks, rules

__all__ = ["PARAMETER_TABLES", "make_runtime"]

PARAMETER_TABLES: Final[dict[str, type[Any]]] = {
    "chain": ChainParameters,
    "consensus": ConsensusParameters,
    "tasks": TaskParameters,
}
"""Prefixes of genesis parameters, and the dataclass that each fills."""


def make_runtime(genesis: Genesis, *, check_invariants: bool = False, protocol_version: int = 0) -> Runtime:
    """Return the runtime of the chain with this ``genesis``.

    ``protocol_version`` is that of ``node.home.options.DeveloperOptions``. Raises ConfigError for unknown
    parameters, and for an upgrade rehearsal on a chain that is not a test network.
    """
    if protocol_version and not genesis.testnet:
        raise ConfigError("developer.protocol_version: upgrades can be rehearsed only on test networks")
    for name, _ in genesis.parameters:
        if name.partition(".")[0] not in PARAMETER_TABLES:
            raise ConfigError(f"genesis: unknown parameter {name}")
    for prefix, cls in PARAMETER_TABLES.items():
        read_parameters(cls, prefix, genesis)
    interval_ms = read_parameters(ChainParameters, "chain", genesis).block_interval_ms_min
    if read_parameters(ConsensusParameters, "consensus", genesis).block_interval_ms != interval_ms:
        raise ConfigError("genesis: consensus.block_interval_ms and chain.block_interval_ms_min must be equal")
    parameters = read_parameters(TaskParameters, "tasks", genesis)
    return Runtime(
        genesis,
        rules=(*rules(parameters), *carriage_rules(account_and_signer)),
        hooks=hooks(parameters),
        invariants=INVARIANTS,
        holdings=HOLDINGS,
        check_invariants=check_invariants,
        endowments=endowments(parameters),
        versions=range(1, max(VERSION, protocol_version) + 1),
    )
