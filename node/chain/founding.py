"""Several founders create one chain: a draft of the genesis, each founder's contribution, and the resulting
genesis.

A draft is a genesis without validators. The draft and the founders' files always give the same genesis, byte for
byte. So no founder has to trust the one who seals it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from node.chain.runtime import make_runtime
from state.primitives.address import format_address, parse_address
from state.primitives.amounts import format_amount
from state.primitives.codec import encode
from state.primitives.errors import ConfigError, DecodeError, DekubeError
from state.primitives.genesis import (
    ChainParameters,
    Genesis,
    GenesisValidator,
    genesis_from_json,
    genesis_hash,
    genesis_to_json,
    read_parameters,
)
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.keys import (
    SIGNATURE_BYTES,
    VOTE_KEY_BYTES,
    VOTE_SIGNATURE_BYTES,
    SecretKey,
    recover_address,
    verify_vote,
)
from state.primitives.vrf import VRF_KEY_BYTES, VRF_PROOF_BYTES, vrf_verify
from state.transition.staking import possession_digest, stake_payload
from state.view.accounts import SUPPLY_LIMIT

__all__ = [
    "FOUNDERS_MAX",
    "FOUNDER_LIMIT_BYTES",
    "Founder",
    "check_founder",
    "check_genesis",
    "found",
    "founder_from_json",
    "founder_to_json",
    "make_founder",
]

FOUNDER_LIMIT_BYTES: Final = 4_096
FOUNDERS_MAX: Final = 1_000
FORMAT: Final = "dekube-founder/1"
_DIGITS_MAX: Final = 40
_SIZES: Final = {
    "draft": HASH_BYTES,
    "vote_key": VOTE_KEY_BYTES,
    "vrf_key": VRF_KEY_BYTES,
    "possession": VOTE_SIGNATURE_BYTES,
    "vrf_possession": VRF_PROOF_BYTES,
    "signature": SIGNATURE_BYTES,
}
"""Byte fields of a founder's file (hex), with their sizes."""


class Founder(NamedTuple):
    """A founder's contribution to the draft whose hash is ``draft``: a validator, and ``coins`` for its account.

    ``possession`` and ``vrf_possession`` prove, as in a stake transaction, that the account may use the keys.
    ``signature`` is the account's signature over all fields.
    """

    draft: bytes
    validator: GenesisValidator
    coins: int
    possession: bytes
    vrf_possession: bytes
    signature: bytes


def make_founder(draft: Genesis, account: SecretKey, vote: SecretKey, *, stake: int, coins: int) -> Founder:
    """Return the contribution to ``draft`` of the owner of both keys; amounts in 10^-18 DKB.

    Raises ConfigError.
    """
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
    """Check a founder's contribution to this draft and its signature.

    Raises ConfigError, which names the founder.
    """
    validator = founder.validator
    who = f"founder {format_address(validator.address)}"
    if founder.draft != genesis_hash(draft):
        raise ConfigError(f"{who}: made for another draft, 0x{founder.draft.hex()}")
    minimum = read_parameters(ChainParameters, "chain", draft).stake_min
    if validator.stake < minimum:
        raise ConfigError(f"{who}: stakes {format_amount(validator.stake)}; the least is {format_amount(minimum)}")
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
    """Return the genesis of a draft and its founders; their order does not matter. Raises ConfigError."""
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
    allocated = {address for address, _ in draft.allocations}
    for first, second in pairwise(ordered):
        if first.validator.address == second.validator.address:
            raise ConfigError(f"founder {format_address(first.validator.address)}: two of the files are its")
    for address, _ in coins:
        if address in allocated:
            raise ConfigError(
                f"founder {format_address(address)}: the draft allocates to it already, so it is allocated twice: "
                "make its file with --coins 0, or a draft without it"
            )
    return check_genesis(genesis)


def check_genesis(genesis: Genesis, *, is_draft: bool = False) -> Genesis:
    """Return ``genesis`` as its file will be read. Raises ConfigError if no chain can start from it."""
    owned = sum(balance for _, balance in genesis.allocations) + sum(v.stake for v in genesis.validators)
    if owned >= SUPPLY_LIMIT:
        raise ConfigError(
            f"genesis: {format_amount(owned)} in all; there may never be more than {format_amount(SUPPLY_LIMIT)}"
        )
    make_runtime(genesis)
    return genesis_from_json(genesis_to_json(genesis), is_draft=is_draft)


def founder_to_json(founder: Founder) -> str:
    """Return the text of a founder's file. Amounts are decimal strings."""
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
    """Return the founder from a file's text, not yet checked. Raises ConfigError."""
    if len(text) > FOUNDER_LIMIT_BYTES:
        raise ConfigError("founder: too large")
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"not valid JSON (line {error.lineno}, column {error.colno}: {error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not valid JSON ({str(error)[:200]})") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(
            f'founder: an object with "format": "{FORMAT}" expected; `dekube genesis found` makes one'
        )
    try:
        return _from_document(document)
    except ConfigError as error:
        raise ConfigError(f"founder: {error}") from None


def _from_document(document: dict[str, Any]) -> Founder:
    expected = {"format", *_SIZES, "address", "stake", "coins"}
    if wrong := sorted(set(document) ^ expected):
        raise ConfigError(f"{ascii(wrong[0])[1:-1]}: " + ("missing" if wrong[0] in expected else "unknown field"))
    data = {name: _bytes(name, document[name], size) for name, size in _SIZES.items()}
    try:
        address = parse_address(str(document["address"]))
    except DecodeError as error:
        raise ConfigError(f"address: {error}") from None
    stake, coins = (_natural(name, document[name]) for name in ("stake", "coins"))
    validator = GenesisValidator(address, data["vote_key"], data["vrf_key"], stake)
    return Founder(
        data["draft"], validator, coins, data["possession"], data["vrf_possession"], data["signature"]
    )  # fmt: skip


def _bytes(name: str, text: Any, size: int) -> bytes:
    try:
        data = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        data = b""
    if len(data) != size:
        raise ConfigError(f"{name}: {2 * size} hex digits expected")
    return data


def _natural(name: str, text: Any) -> int:
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX:
        raise ConfigError(
            f"{name}: {ascii(text)[:100]}: a natural number in quotes expected, of at most {_DIGITS_MAX} digits"
        )
    return int(text)
