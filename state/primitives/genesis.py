"""The genesis: who owns what at height 0, who votes, every parameter; its hash names the chain."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from state.primitives.address import format_address, parse_address
from state.primitives.codec import Value, encode
from state.primitives.errors import ConfigError, DecodeError
from state.primitives.hashing import digest
from state.primitives.keys import VOTE_KEY_BYTES, is_vote_key
from state.primitives.vrf import VRF_KEY_BYTES, is_vrf_key

__all__ = [
    "GENESIS_LIMIT_BYTES",
    "ChainParameters",
    "Genesis",
    "GenesisValidator",
    "genesis_from_json",
    "genesis_hash",
    "genesis_to_json",
    "read_parameters",
]

GENESIS_LIMIT_BYTES: Final = 256 * 1024 * 1024
FORMAT: Final = "dekube-genesis/1"
_Parameters = TypeVar("_Parameters")


@dataclass(frozen=True, slots=True)
class ChainParameters:
    """Parameters of blocks, fees and stake (prefix ``chain.``); amounts in 10^-18 DKB, times in milliseconds."""

    body_bytes_max: int = 1024 * 1024
    transactions_max: int = 7_000
    block_gas_limit: int = 300_000_000
    """Sum of the weights of a block's transactions."""
    block_gas_target: int = 150_000_000
    base_fee_initial: int = 1_000_000_000
    base_fee_min: int = 100_000_000
    """Of an idle chain: what a transaction leaves in the state stays for ever, so it is never free."""
    base_fee_change_denominator: int = 8
    block_interval_ms_min: int = 1_000
    time_ahead_ms_max: int = 2_000
    time_behind_ms_max: int = 30_000
    epoch_blocks: int = 3_600
    evidence_epochs: int = 333
    """A fault can be proven for so many epochs after its own; as long, faults of several seats correlate, and the
    committees stay in the state. ``unbonding_ms`` is at least three epochs more, for which a seat may vote whose
    stake was withdrawn."""
    downtime_blocks_min: int = 16
    """Of fewer blocks in an epoch nobody's downtime is concluded from missing votes."""
    unbonding_ms: int = 14 * 24 * 3_600_000
    stake_min: int = 1_000 * 10**18
    validators_max: int = 100
    history_heights: int = 128
    """State is readable at this many heights below the newest."""


class GenesisValidator(NamedTuple):
    """A founding validator: its account, its vote key (x-only, BIP340), its VRF key (Ed25519) and its stake."""

    address: bytes
    vote_key: bytes
    vrf_key: bytes
    stake: int


@dataclass(frozen=True, slots=True)
class Genesis:
    """All that two nodes must agree on before the first block.

    ``parameters`` maps dotted names (``chain.*``, ``consensus.*``, ``tasks.*``, ...) to integers; a name that
    is absent has the default of its package's dataclass, and an unknown one is refused.
    """

    chain_id: int
    name: str
    time_ms: int
    testnet: bool
    allocations: tuple[tuple[bytes, int], ...]
    validators: tuple[GenesisValidator, ...]
    parameters: tuple[tuple[str, int], ...] = ()


def genesis_hash(genesis: Genesis) -> bytes:
    """Return the hash that stands in every header and under every vote of this chain."""
    value: Value = [
        genesis.chain_id,
        genesis.name,
        genesis.time_ms,
        int(genesis.testnet),
        [[address, balance] for address, balance in genesis.allocations],
        [list(validator) for validator in genesis.validators],
        [[name, number] for name, number in genesis.parameters],
    ]
    return digest(b"genesis", encode(value))


def read_parameters(cls: type[_Parameters], prefix: str, genesis: Genesis) -> _Parameters:
    """Return the frozen dataclass ``cls`` with the genesis's values for ``prefix.*`` over its defaults.

    Raises ConfigError for a name that ``cls`` does not have.
    """
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, int] = {}
    for dotted, number in genesis.parameters:
        package, _, name = dotted.partition(".")
        if package != prefix:
            continue
        if name not in names:
            raise ConfigError(f"genesis: unknown parameter {dotted}")
        values[name] = number
    return cls(**values)


def genesis_to_json(genesis: Genesis) -> str:
    """Return the genesis file's text; amounts are decimal strings, so that no JSON reader rounds them."""
    document = {
        "format": FORMAT,
        "chain_id": genesis.chain_id,
        "name": genesis.name,
        "time_ms": genesis.time_ms,
        "testnet": genesis.testnet,
        "parameters": {name: str(number) for name, number in genesis.parameters},
        "validators": [
            {
                "address": format_address(v.address),
                "vote_key": v.vote_key.hex(),
                "vrf_key": v.vrf_key.hex(),
                "stake": str(v.stake),
            }
            for v in genesis.validators
        ],
        "allocations": {format_address(address): str(balance) for address, balance in genesis.allocations},
    }
    return json.dumps(document, indent=1) + "\n"


def genesis_from_json(text: str, *, is_draft: bool = False) -> Genesis:
    """Return the genesis of a file's text; a draft has no validators. Raises ConfigError naming what is wrong."""
    if len(text) > GENESIS_LIMIT_BYTES:
        raise ConfigError("genesis: file too large")
    try:
        document = json.loads(text, object_pairs_hook=_unique)
        genesis = _from_document(document, is_draft)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, DecodeError) as error:
        raise ConfigError(f"genesis: {type(error).__name__}: {str(error)[:200]}") from None
    return genesis


def _from_document(document: Mapping[str, Any], is_draft: bool) -> Genesis:
    expected = {"format", "chain_id", "name", "time_ms", "testnet", "parameters", "validators", "allocations"}
    if set(document) != expected or document["format"] != FORMAT:
        raise ConfigError(f"genesis: expected the fields {sorted(expected)} and format {FORMAT}")
    validators = tuple(
        GenesisValidator(
            parse_address(v["address"]),
            _hex(v["vote_key"], VOTE_KEY_BYTES),
            _hex(v["vrf_key"], VRF_KEY_BYTES),
            _natural(v["stake"]),
        )
        for v in document["validators"]
    )
    allocations = tuple((parse_address(a), _natural(b)) for a, b in document["allocations"].items())
    parameters = tuple(sorted((str(name), _natural(number)) for name, number in document["parameters"].items()))
    chain_id, time_ms, testnet = document["chain_id"], document["time_ms"], document["testnet"]
    if not (type(chain_id) is int and 0 < chain_id < 2**31 and type(time_ms) is int and type(testnet) is bool):
        raise ConfigError("genesis: chain_id, time_ms or testnet has the wrong type or range")
    if not 0 <= time_ms < 2**48 or type(document["name"]) is not str:
        raise ConfigError("genesis: name or time_ms has the wrong type or range")
    for text in (document["name"], *document["parameters"]):
        text.encode()  # JSON can spell halves of characters; the hash of the genesis cannot
    if not _distinct(v.address for v in validators) or not _distinct(v.vote_key for v in validators):
        raise ConfigError("genesis: two validators share an address or a vote key")
    for validator in validators:
        who = format_address(validator.address)
        if not is_vote_key(validator.vote_key):
            raise ConfigError(f"genesis: the vote key of {who} is no point of its curve: nobody can vote with it")
        if not is_vrf_key(validator.vrf_key):
            raise ConfigError(f"genesis: the VRF key of {who} is no point of its curve: nobody can prove with it")
    if not _distinct(address for address, _ in allocations):
        raise ConfigError("genesis: an address is allocated twice")
    if is_draft:
        if validators:
            raise ConfigError("genesis: a draft has no validators")
    elif not validators or any(v.stake <= 0 for v in validators):
        raise ConfigError("genesis: at least one validator, each with a stake, is needed")
    return Genesis(chain_id, document["name"], time_ms, testnet, allocations, validators, parameters)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of JSON: of a name that is there twice, readers differ in which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice in one object")
    return found


def _natural(text: Any) -> int:
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()) or len(text) > 40:
        raise ConfigError(f"genesis: {text!r} is not a natural number in a string")
    return int(text)


def _hex(text: str, size: int) -> bytes:
    data = bytes.fromhex(text)
    if len(data) != size:
        raise ConfigError(f"genesis: {text!r} is not {size} bytes of hex")
    return data


def _distinct(items: Iterable[bytes]) -> bool:
    seen = list(items)
    return len(set(seen)) == len(seen)
