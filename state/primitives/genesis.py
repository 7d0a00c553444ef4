"""The genesis: balances and validators at height 0 and all parameters; its hash names the chain (chain.md 4)."""

from __future__ import annotations

import dataclasses
import difflib
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
    "check_bounds",
    "check_name",
    "genesis_from_json",
    "genesis_hash",
    "genesis_to_json",
    "read_parameters",
]

GENESIS_LIMIT_BYTES: Final = 256 * 1024 * 1024
FORMAT: Final = "dekube-genesis/1"
NAME_CHARACTERS_MAX: Final = 64
DIGITS_MAX: Final = 40
"""Of a number in a genesis: amounts stay below 2^127, which has 39 digits."""
TIME_MS_LIMIT: Final = 1 << 48
_FIELDS: Final = ("format", "chain_id", "name", "time_ms", "testnet", "parameters", "validators", "allocations")
_VALIDATOR_FIELDS: Final = ("address", "vote_key", "vrf_key", "stake")
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
    """Lowest base fee. It is positive because the records of a transaction stay in the state."""
    base_fee_change_denominator: int = 8
    block_interval_ms_min: int = 1_000
    steady_interval_ms_max: int = 10_000
    """Most that a block adds to the steady time: deadlines stop while no block comes for longer."""
    time_ahead_ms_max: int = 2_000
    time_behind_ms_max: int = 30_000
    epoch_blocks: int = 3_600
    evidence_epochs: int = 333
    """Epochs in which a fault can be proven after its own epoch. For the same time faults of several seats
    correlate and committees stay in the state. ``unbonding_ms`` is at least three epochs longer: a seat may still
    vote for that time after its stake was withdrawn."""
    downtime_blocks_min: int = 16
    """Counted blocks of an epoch below which missing votes prove no downtime."""
    unbonding_ms: int = 14 * 24 * 3_600_000
    stake_min: int = 1_000 * 10**18
    validators_max: int = 100
    validators_min: int = 4
    """A validator cannot withdraw its whole stake when fewer others would be left; down to ``stake_min`` it can.
    Four is the least number that tolerates a faulty one."""
    unstake_percent_max: int = 33
    """Percentage of the stake at the start of an epoch that can be withdrawn within that epoch."""
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
    """The content of the genesis, on which all nodes agree before the first block.

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


_last_hashed: list[tuple[Genesis, bytes] | None] = [None]


def genesis_hash(genesis: Genesis) -> bytes:
    """Return the genesis hash, which is part of every header and every vote of this chain.

    The last result is cached: a starting node needs it several times, and its cost grows with the allocations.
    """
    remembered = _last_hashed[0]
    if remembered is not None and remembered[0] is genesis:
        return remembered[1]
    value: Value = [
        genesis.chain_id,
        genesis.name,
        genesis.time_ms,
        int(genesis.testnet),
        [[address, balance] for address, balance in genesis.allocations],
        [list(validator) for validator in genesis.validators],
        [[name, number] for name, number in genesis.parameters],
    ]
    found = digest(b"genesis", encode(value))
    _last_hashed[0] = genesis, found
    return found


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
            near = difflib.get_close_matches(name, names, 1)
            told = f"; did you mean {prefix}.{near[0]}?" if near else ""
            raise ConfigError(f"genesis: unknown parameter {dotted}{told}")
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


def check_bounds(prefix: str, parameters: object, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Raise ConfigError, which names the parameter and its range, where one of ``parameters`` is out of bounds."""
    for name, (least, most) in bounds.items():
        number = getattr(parameters, name)
        if not least <= number <= most:
            raise ConfigError(f"genesis: {prefix}.{name} is {number}, but must be from {least} to {most}")


def check_name(name: str) -> None:
    """Raise ConfigError unless ``name`` can name a chain: on one line, and readable on every terminal."""
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or name.isspace():
        raise ConfigError(f"genesis: name: 1 to {NAME_CHARACTERS_MAX} characters expected, not {len(name)}")
    if not name.isprintable():  # neither are the halves of characters that JSON and arguments can spell
        raise ConfigError(f"genesis: name: {name!a} has characters that cannot be printed")


def genesis_from_json(text: str, *, is_draft: bool = False) -> Genesis:
    """Return the genesis of a file's text; a draft has no validators. Raises ConfigError naming what is wrong."""
    if len(text) > GENESIS_LIMIT_BYTES:
        raise ConfigError("genesis: file too large")
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not valid JSON (line {error.lineno}, column {error.colno}: {error.msg})") from None
    except RecursionError:
        raise ConfigError("not valid JSON (nested too deeply)") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise ConfigError(f"not valid JSON ({str(error)[:200]})") from None
    return _from_document(document, is_draft)


def _from_document(document: object, is_draft: bool) -> Genesis:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(f'genesis: an object with "format": "{FORMAT}" expected')
    _check_fields("", document, _FIELDS)
    chain_id, name, time_ms, testnet = (document[field] for field in ("chain_id", "name", "time_ms", "testnet"))
    if type(chain_id) is not int or not 0 < chain_id < 2**31:
        raise ConfigError(f"genesis: chain_id: a number from 1 to {2**31 - 1} expected")
    if type(name) is not str:
        raise ConfigError("genesis: name: a text expected")
    check_name(name)
    if type(time_ms) is not int or not 0 <= time_ms < TIME_MS_LIMIT:
        raise ConfigError(f"genesis: time_ms: a number from 0 to {TIME_MS_LIMIT - 1} expected")
    if type(testnet) is not bool:
        raise ConfigError("genesis: testnet: true or false expected")
    for field, kind, what in (("parameters", dict, "an object"), ("allocations", dict, "an object"),
                              ("validators", list, "an array")):  # fmt: skip
        if type(document[field]) is not kind:
            raise ConfigError(f"genesis: {field}: {what} expected")
    parameters = tuple(
        sorted((parameter, _natural(f"parameters.{parameter}", number))
               for parameter, number in document["parameters"].items())
    )  # fmt: skip
    for parameter, _ in parameters:
        if not parameter.isascii():
            raise ConfigError(f"genesis: unknown parameter {parameter!a}")
    validators = tuple(_validator(f"validators[{i}]", one) for i, one in enumerate(document["validators"]))
    allocations = tuple(
        (_address("allocations", address), _natural(f"allocations.{address}", balance))
        for address, balance in document["allocations"].items()
    )
    if (twice := _twice(v.address for v in validators)) is not None:
        raise ConfigError(f"genesis: {format_address(twice)} is a validator twice")
    if (twice := _twice(v.vote_key for v in validators)) is not None:
        sharing = " and ".join(format_address(v.address) for v in validators if v.vote_key == twice)
        raise ConfigError(f"genesis: {sharing} share a vote key")
    for validator in validators:
        who = format_address(validator.address)
        if not is_vote_key(validator.vote_key):
            raise ConfigError(f"genesis: the vote key of {who} is no point of its curve: nobody can vote with it")
        if not is_vrf_key(validator.vrf_key):
            raise ConfigError(f"genesis: the VRF key of {who} is no point of its curve: nobody can prove with it")
    if (twice := _twice(address for address, _ in allocations)) is not None:
        raise ConfigError(f"genesis: {format_address(twice)} is allocated twice")
    if is_draft:
        if validators:
            raise ConfigError("genesis: a draft has no validators")
    elif not validators:
        raise ConfigError("genesis: validators: at least one validator is needed")
    for validator in validators:
        if not validator.stake:
            raise ConfigError(f"genesis: validator {format_address(validator.address)} has no stake")
    return Genesis(chain_id, name, time_ms, testnet, allocations, validators, parameters)


def _validator(where: str, found: object) -> GenesisValidator:
    if not isinstance(found, dict):
        raise ConfigError(f"genesis: {where}: an object expected")
    _check_fields(where + ".", found, _VALIDATOR_FIELDS)
    return GenesisValidator(
        _address(f"{where}.address", found["address"]),
        _hex(f"{where}.vote_key", found["vote_key"], VOTE_KEY_BYTES),
        _hex(f"{where}.vrf_key", found["vrf_key"], VRF_KEY_BYTES),
        _natural(f"{where}.stake", found["stake"]),
    )


def _check_fields(where: str, found: dict[str, Any], expected: tuple[str, ...]) -> None:
    if missing := [field for field in expected if field not in found]:
        raise ConfigError(f"genesis: {where}{missing[0]} is missing")
    if unknown := sorted(set(found) - set(expected)):
        raise ConfigError(f"genesis: {where}{ascii(unknown[0])[1:-1]}: unknown field")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ConfigError for a duplicate member, which parsers resolve differently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"genesis: {twice!a} stands twice in one object")
    return found


def _address(where: str, text: object) -> bytes:
    try:
        if not isinstance(text, str):
            raise DecodeError("a text expected")
        return parse_address(text)
    except DecodeError as error:
        raise ConfigError(f"genesis: {where}: {ascii(text)[:100]}: {error}") from None


def _natural(where: str, text: object) -> int:
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()) or len(text) > DIGITS_MAX:
        raise ConfigError(
            f"genesis: {ascii(where)[1:-1]}: {ascii(text)[:100]}: a natural number in quotes expected, of at most "
            f"{DIGITS_MAX} digits"
        )
    return int(text)


def _hex(where: str, text: object, size: int) -> bytes:
    try:
        data = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        data = b""
    if len(data) != size:
        raise ConfigError(f"genesis: {where}: {2 * size} hex digits expected")
    return data


def _twice(items: Iterable[bytes]) -> bytes | None:
    """Return the first duplicate of ``items``."""
    seen: set[bytes] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None
