"""The plan of a test network: keys, genesis and options of every member, as a pure function of a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from node.home.options import (
    ExecutorOptions,
    LogOptions,
    MetricsOptions,
    NetworkOptions,
    NodeOptions,
    ProcessOptions,
    RegistryOptions,
    RpcOptions,
    UploadOptions,
)
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.vrf import vrf_key_of
from tasks.ledger.parameters import TaskParameters

__all__ = ["COIN", "MEMBERS_MAX", "TRIAL_PARAMETERS", "Member", "Placement", "Plan", "make_plan"]

COIN: Final = 10**18
MEMBERS_MAX: Final = 100
CHAIN_ID: Final = 19_888
STAKE: Final = 100_000 * COIN
"""A validator's stake."""

# Short enough to watch on one machine, long enough for two loaded cores. Everything else keeps its default.
TESTNET_PARAMETERS: Final[dict[str, int]] = {
    "consensus.leader_ms": 1_500,
    "consensus.advance_ms": 3_000,
    "consensus.idle_ms": 1_000,
    "consensus.doppelganger_ms": 0,
    # The demonstration is a few seconds of work: with the usual gas and least fee its checks cost many times that.
    "chain.base_fee_initial": 1_000_000,
    "chain.base_fee_min": 1_000_000,
    "tasks.check_fee_min": 5_000_000_000_000,
    "tasks.draw_blocks": 3,
    "tasks.call_ms": 1_500,
    "tasks.accept_ms": 30_000,
    "tasks.prepare_ms": 60_000,
    "tasks.window_grace_ms": 120_000,
    "tasks.window_extra_ms": 60_000,
    "tasks.opening_extra_ms": 60_000,
    "tasks.serve_ms": 60_000,
    "tasks.replace_ms": 60_000,
    "tasks.cool_down_ms": 10_000,
    "tasks.draw_retry_ms": 2_000,
    "tasks.seal_ms_min": 60_000,
    "tasks.reveal_ms": 20_000,
    "tasks.final_ms": 2_000,
    "tasks.bond_release_ms": 5_000,
    "tasks.retire_ms": 10_000,
    "tasks.presence_ms": 60_000,
    "tasks.custody_ms": 3_600_000,
    "tasks.custody_sign_ms": 20_000,
    "tasks.custody_answer_ms": 30_000,
    "tasks.custody_fee_min": 5_000_000_000_000,
}


TRIAL_PARAMETERS: Final[dict[str, int]] = {
    "tasks.trial_ms": 2_000,
    "tasks.trial_slack_ms": 4_000,
    "tasks.trial_step_ms": 30_000,
    "tasks.trial_pause_ms": 60_000,
    "tasks.trial_first_ms": 30_000,
    "tasks.trial_valid_ms": 3_600_000,
    "tasks.trial_blocks": 900,
    "tasks.trial_samples": 2,
}
"""Speed trials, which `dekube testnet up` has by default: some seconds long, a round in a quarter of an hour."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A member's addresses: the host that others dial, and the host and ports that it binds."""

    host: str
    bind: str
    p2p_port: int
    rpc_port: int
    metrics_port: int


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the network. ``options`` is None for a relay, which has its own daemon."""

    name: str
    role: str
    """validator, worker or relay."""
    account: SecretKey
    vote: SecretKey | None
    placement: Placement
    options: NodeOptions | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole network. ``requester`` is a funded account that posts the first task."""

    genesis: Genesis
    members: tuple[Member, ...]
    requester: SecretKey
    passphrase: str


def derive_key(seed: int, purpose: str) -> SecretKey:
    """Return the key of ``purpose`` in a test network of ``seed``. Everybody who knows the seed can derive it."""
    return SecretKey(digest(b"testnet-key", f"{seed}/{purpose}".encode()))


def make_plan(
    *, validators: int, workers: int, seed: int, time_ms: int, placements: dict[str, Placement],
    parameters: dict[str, int] | None = None, allocations: tuple[tuple[bytes, int], ...] = (),
    founders: int | None = None, roles: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Plan:  # fmt: skip
    """Return the plan of a network: validators, one relay, and workers that accept no connections.

    ``placements`` has an entry for each of ``member_names``. ``allocations`` are balances of further accounts.
    ``founders`` of the validators (None: all) have seats from the first block. The others follow the chain and own
    enough to stake later. ``roles`` are those of some members, by name. Raises
    ConfigError for impossible numbers.
    """
    founders = validators if founders is None else founders
    if not 1 <= validators <= MEMBERS_MAX or not 0 <= workers <= MEMBERS_MAX:
        raise ConfigError(f"testnet: 1 to {MEMBERS_MAX} validators and 0 to {MEMBERS_MAX} workers")
    if not 1 <= founders <= validators:
        raise ConfigError(f"testnet: 1 to {validators} of the validators are founders")
    names = member_names(validators, workers)
    accounts = {name: derive_key(seed, f"{name}/account") for name in names}
    votes = {name: derive_key(seed, f"{name}/vote") for name in names if name.startswith("validator")}
    requester = derive_key(seed, "requester")
    founding = tuple(
        GenesisValidator(accounts[name].address, votes[name].vote_key, vrf_key_of(votes[name]).public, STAKE)
        for name in list(votes)[:founders]
    )
    joining = list(votes)[founders:]
    balances = (
        *((accounts[name].address, 10_000 * COIN + STAKE * (name in joining)) for name in names),
        (requester.address, 1_000_000 * COIN),
        *allocations,
    )
    genesis = Genesis(
        chain_id=CHAIN_ID,
        name=f"testnet-{seed}",
        time_ms=time_ms,
        testnet=True,
        allocations=balances,
        validators=founding,
        parameters=tuple(sorted({**TESTNET_PARAMETERS, **(parameters or {})}.items())),
    )
    relay_at = placements["relay-0"]
    relay = f"{format_address(accounts['relay-0'].address)}@{relay_at.host}:{relay_at.p2p_port}"
    bootstrap = tuple(
        f"{format_address(accounts[name].address)}@tcp:{placements[name].host}:{placements[name].p2p_port}"
        for name in names
        if name.startswith("validator")
    )
    members = []
    for name in names:
        role = name.rpartition("-")[0]
        at = placements[name]
        keeps = bool((parameters or {}).get("tasks.custody_copies", TaskParameters().custody_copies))
        options = None if role == "relay" else _options(role, at, bootstrap, relay, accounts[name], keeps=keeps)
        if options is not None and name in roles:
            options = replace(options, roles=roles[name])
        members.append(Member(name, role, accounts[name], votes.get(name), at, options))
    passphrase = digest(b"testnet-key", f"{seed}/passphrase".encode()).hex()
    return Plan(genesis, tuple(members), requester, passphrase)


def member_names(validators: int, workers: int) -> list[str]:
    """Return the names of a network's members in the order of their start."""
    return [
        "relay-0",
        *(f"validator-{i}" for i in range(validators)),
        *(f"worker-{i}" for i in range(workers)),
    ]


def _options(
    role: str, at: Placement, bootstrap: tuple[str, ...], relay: str, own: SecretKey, *, keeps: bool
) -> NodeOptions:
    """Return a member's options; ``keeps``: it also has role storage."""
    mine = format_address(own.address)
    others = tuple(peer for peer in bootstrap if not peer.startswith(mine))
    is_worker = role == "worker"
    return NodeOptions(
        roles=(
            *(("compute", "verify") if is_worker else ("validator", "verify")),
            *(("storage",) if keeps else ()),
        ),
        p2p=NetworkOptions(
            listen="" if is_worker else f"{at.bind}:{at.p2p_port}",
            advertise=() if is_worker else (f"tcp:{at.host}:{at.p2p_port}",),
            bootstrap=others,
            relays=(relay,) if is_worker else (),
        ),
        rpc=RpcOptions(listen=f"{at.bind}:{at.rpc_port}", hosts=(at.host,), ready_peers_min=1 if others else 0),
        metrics=MetricsOptions(listen=f"{at.bind}:{at.metrics_port}"),
        uploads=UploadOptions(enabled=not is_worker),
        executor=ExecutorOptions(),
        registry=RegistryOptions(stake=1_000 * COIN),
        processes=ProcessOptions(signature_workers=0 if is_worker else 1),
        log=LogOptions(format="json"),
    )
