"""How several people found a chain: a draft of the genesis, what each founder adds to it, and the genesis of both.

A draft is a genesis without validators. Whoever has the draft and the founders' files makes the same genesis, byte
for byte, so nobody has to trust the one who puts it together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from node.runtime import make_runtime
from state.primitives.address import format_address, parse_address
from state.primitives.codec import encode
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.genesis import (
    ChainParameters,
    Genesis,
    GenesisValidator,
    genesis_from_json,
    genesis_hash,
    genesis_to_json,
    read_parameters,
)
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey, recover_address, verify_vote
from state.primitives.vrf import vrf_verify
from state.transition.staking import possession_digest, stake_payload
from state.view.accounts import SUPPLY_LIMIT

__all__ = [
    "FOUNDERS_MAX",
    "FOUNDER_LIMIT_BYTES",
    "Founder",
    "check_founder",
    "found",
    "founder_from_json",
    "founder_to_json",
    "make_founder",
]

FOUNDER_LIMIT_BYTES: Final = 4_096
FOUNDERS_MAX: Final = 1_000
FORMAT: Final = "dekube-founder/1"
_DIGITS_MAX: Final = 40


class Founder(NamedTuple):
    """What one founder adds to the draft whose hash is ``draft``: a validator, and ``coins`` that its account has.

    ``possession`` and ``vrf_possession`` show, as in a transaction that stakes, that the account may use the keys;
    ``signature`` is the account's, over all of it.
    """

    draft: bytes
    validator: GenesisValidator
    coins: int
    possession: bytes
    vrf_possession: bytes
    signature: bytes


def make_founder(draft: Genesis, account: SecretKey, vote: SecretKey, *, stake: int, coins: int) -> Founder:
    """Return what the owner of both keys adds to ``draft``; amounts in 10^-18 DKB. Raises ConfigError."""
    draft_hash = genesis_hash(draft)
    _, vote_key, possession, vrf_key, vrf_possession = stake_payload(
        stake, vote, genesis_hash=draft_hash, address=account.address
    )
    assert isinstance(vote_key, bytes) and isinstance(possession, bytes)
    assert isinstance(vrf_key, bytes) and isinstance(vrf_possession, bytes)
    validator = GenesisValidator(account.address, vote_key, vrf_key, stake)
    founder = Founder(draft_hash, validator, coins, possession, vrf_possession, b"")
    founder = founder._replace(signature=account.sign(_signed(founder)))
    check_founder(founder, draft)
    return founder


def _signed(founder: Founder) -> bytes:
    return digest(b"founder", encode([founder.draft, list(founder.validator), founder.coins]))


def check_founder(founder: Founder, draft: Genesis) -> None:
    """Raise ConfigError, which names the founder, unless it adds to this draft what it may and has signed."""
    validator = founder.validator
    who = f"founder {format_address(validator.address)}"
    if founder.draft != genesis_hash(draft):
        raise ConfigError(f"{who}: made for another draft, 0x{founder.draft.hex()}")
    minimum = read_parameters(ChainParameters, "chain", draft).stake_min
    if validator.stake < minimum:
        raise ConfigError(f"{who}: stakes {validator.stake}, the least is {minimum} (10^-18 DKB)")
    signed = possession_digest(founder.draft, validator.address, validator.vote_key)
    if not verify_vote(validator.vote_key, signed, founder.possession):
        raise ConfigError(f"{who}: does not prove that the vote key is its own")
    if vrf_verify(validator.vrf_key, signed, founder.vrf_possession) is None:
        raise ConfigError(f"{who}: does not prove that the VRF key is its own")
    try:
        signer = recover_address(_signed(founder), founder.signature)
    except DekubeError:
        signer = b""
    if signer != validator.address:
        raise ConfigError(f"{who}: the signature is not of its account")


def found(draft: Genesis, founders: Iterable[Founder]) -> Genesis:
    """Return the genesis of a draft and its founders, the same in whatever order they come. Raises ConfigError."""
    ordered = sorted(founders, key=lambda founder: founder.validator.address)
    if len(ordered) > FOUNDERS_MAX:
        raise ConfigError(f"at most {FOUNDERS_MAX} founders")
    for founder in ordered:
        check_founder(founder, draft)
    coins = tuple((founder.validator.address, founder.coins) for founder in ordered if founder.coins)
    genesis = replace(
        draft,
        validators=tuple(founder.validator for founder in ordered),
        allocations=(*draft.allocations, *coins),
    )
    if len({address for address, _ in genesis.allocations}) < len(genesis.allocations):
        raise ConfigError("genesis: an address is allocated twice")
    owned = sum(balance for _, balance in genesis.allocations) + sum(v.stake for v in genesis.validators)
    if owned >= SUPPLY_LIMIT:
        raise ConfigError(f"genesis: {owned} in all, more than there may ever be ({SUPPLY_LIMIT})")
    make_runtime(genesis)
    return genesis_from_json(genesis_to_json(genesis))  # what everybody else will read


def founder_to_json(founder: Founder) -> str:
    """Return the text of a founder's file; amounts are decimal strings."""
    validator = founder.validator
    document = {
        "format": FORMAT,
        "draft": founder.draft.hex(),
        "address": format_address(validator.address),
        "vote_key": validator.vote_key.hex(),
        "vrf_key": validator.vrf_key.hex(),
        "stake": str(validator.stake),
        "coins": str(founder.coins),
        "possession": founder.possession.hex(),
        "vrf_possession": founder.vrf_possession.hex(),
        "signature": founder.signature.hex(),
    }
    return json.dumps(document, indent=1) + "\n"


def founder_from_json(text: str) -> Founder:
    """Return the founder of a file's text, not yet checked. Raises ConfigError."""
    try:
        if len(text) > FOUNDER_LIMIT_BYTES:
            raise ConfigError("too large")
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ConfigError(f"expected the format {FORMAT}")
        founder = _from_document(document)
    except ConfigError as error:
        raise ConfigError(f"founder: {error}") from None
    except (ValueError, TypeError, RecursionError, DekubeError) as error:
        raise ConfigError(f"founder: {type(error).__name__}: {str(error)[:200]}") from None
    return founder


def _from_document(document: dict[str, Any]) -> Founder:
    expected = {
        *("format", "draft", "address", "vote_key", "vrf_key", "stake", "coins", "possession"),
        *("vrf_possession", "signature"),
    }
    if set(document) != expected:
        raise ConfigError(f"expected the fields {sorted(expected)}")
    validator = GenesisValidator(
        parse_address(document["address"]),
        bytes.fromhex(document["vote_key"]),
        bytes.fromhex(document["vrf_key"]),
        _natural(document["stake"]),
    )
    draft, possession, proof, signature = (
        bytes.fromhex(document[name]) for name in ("draft", "possession", "vrf_possession", "signature")
    )
    return Founder(draft, validator, _natural(document["coins"]), possession, proof, signature)


def _natural(text: Any) -> int:
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX:
        raise ConfigError(f"{text!r} is not a natural number in a string")
    return int(text)
