"""``dekube tx``: a validator's transactions. Payments are in `dekube wallet`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from node.cli.arguments import AMOUNT, PathName
from node.cli.commands import CommandGroup
from node.cli.confirm import send, yes_option
from node.cli.files import read_json
from node.cli.options import ask_passphrase
from node.cli.output import json_option, show_amount, show_receipt, show_time
from node.cli.session import Session, session_options
from node.home.keyring import random_key
from node.home.load import load_node_options
from node.home.paths import Home
from rpc.client import Client, TransactionRefused
from state.primitives.codec import Value
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from state.transition.staking import STAKE_KIND, UNSTAKE_KIND, stake_payload

__all__ = ["read_possession", "tx"]

POSSESSION_LIMIT_BYTES: Final = 64 * 1024
EXPECTED: Final = "what `dekube signer possession --json` writes"
SEATED_AFTER_EPOCHS: Final = 3
"""Committees are selected from stakes and keys at the end of an epoch, and vote two epochs later."""


@click.group(cls=CommandGroup)
def tx() -> None:
    """Stake, unstake or rotate a validator's keys.

    For payments use `dekube wallet send`.
    """


@tx.command()
@session_options
@click.argument("amount", type=AMOUNT)
@click.option(
    "--possession",
    type=PathName(),
    help="Use the vote key in this file, the output of `dekube signer possession --json`.",
)
@yes_option
@json_option
def stake(session: Session, amount: int, possession: Path | None, yes: bool, as_json: bool) -> None:
    """Stake AMOUNT (DKB) as a validator with the vote key in --home.

    A vote key in a signer needs --possession. A validator with stake adds AMOUNT under its registered vote
    key. AMOUNT 0 registers another vote key for the existing stake.

    \b
    Examples:
      dekube tx stake 100000
      dekube tx stake 0 --possession possession.json
    """
    passphrase = ""
    proofs = None if possession is None else read_possession(possession)
    if proofs is not None:
        key = session.key()
    else:
        key, passphrase = _keys(session)
    with session.client() as client:
        staked = _account(client, key)["stake"]
        current = None if staked is None else bytes.fromhex(staked["vote_key"].removeprefix("0x"))
        if amount:
            _check_left((int(staked["amount"]) if staked else 0) + amount, client)
        elif staked is None:
            raise TransactionRefused("the account has no stake; AMOUNT 0 only replaces the vote key of a stake")
        registered = current if amount else None
        if proofs is not None:
            payload = [amount, *proofs]
            if registered not in (None, payload[1]):
                raise ConfigError(
                    f"{possession}: the account votes with 0x{registered.hex()}, not with this key. To change the "
                    "key, use AMOUNT 0; to add stake, give the possession of the registered key"
                )
        else:
            vote = _vote_key(session.home, passphrase, registered)
            chain = client.chain().genesis_hash
            payload = stake_payload(amount, vote, genesis_hash=chain, address=key.address)
        if not amount and payload[1] == current:
            raise TransactionRefused("this vote key is already registered; AMOUNT 0 would change nothing")
        chain_now = client.call("dekube_getCommittee")
        what = {
            "does": "stakes" if amount else "registers another vote key, stakes nothing more",
            "amount": show_amount(amount),
            "vote key": payload[1],
            "counts": _seated_from(chain_now),
        }
        receipt = send(client, key, STAKE_KIND, payload, what, yes=yes)
    show_receipt(receipt, as_json)
    if not as_json and receipt.succeeded:
        click.echo(f"\nIt counts {_seated_from(chain_now)}.")


def _seated_from(committee: dict[str, Any]) -> str:
    """Return the epoch from which a registration made now is effective, and its first block."""
    epoch, first, last = committee["epoch"], committee["first_height"], committee["last_height"]
    height = first + SEATED_AFTER_EPOCHS * (last - first + 1)
    return f"from epoch {epoch + SEATED_AFTER_EPOCHS} on (block {height:,})"


@tx.command(name="rotate-keys")
@session_options
@yes_option
@json_option
def rotate_keys(session: Session, yes: bool, as_json: bool) -> None:
    """Replace the vote key and VRF key of the validator in --home.

    The command generates and registers a new key. The new key votes from the third epoch on; until then the
    old key votes. Restart the node before that epoch, so that it loads both keys. Run the command again
    only when the new key votes. Before that it registers the same new key again.

    \b
    Example:
      dekube tx rotate-keys
    """
    from node.home.create import rewrite_options
    from node.home.guards import begin_guard
    from node.home.keys import load_key, save_key

    home, (key, passphrase) = session.home, _keys(session)
    options = load_node_options(home)
    with session.client() as client:
        if _account(client, key)["stake"] is None:
            raise TransactionRefused(
                "the account has no stake, so no key to replace; stake first (dekube tx stake)"
            )
        chain = client.chain().genesis_hash
        committee = client.call("dekube_getCommittee")
        following = load_key(home.path(options.keys.vote_next), passphrase) if options.keys.vote_next else None
        sitting = {seat["vote_key"] for seat in committee["seats"]}
        if following is not None and "0x" + following.vote_key.hex() in sitting:
            options = replace(options, keys=replace(options.keys, vote=options.keys.vote_next, vote_next=""))
            following = None
        is_new = following is None
        chosen = following or random_key()
        file = f"keys/vote-{chosen.vote_key[:8].hex()}.json"

        def keep() -> None:
            """Write the key before it is registered on chain: a registered key that is lost can never vote."""
            if is_new:
                save_key(home.path(file), chosen, passphrase)
                begin_guard(home.own_guard_of(chosen.vote_key), chain, chosen.vote_key)
                rewrite_options(home, replace(options, keys=replace(options.keys, vote_next=file)))

        payload = stake_payload(0, chosen, genesis_hash=chain, address=key.address)
        what = {
            "does": "registers another vote key",
            "vote key": f"0x{chosen.vote_key.hex()} ({home.path(file) if is_new else options.keys.vote_next})",
            "counts": _seated_from(committee),
        }
        receipt = send(client, key, STAKE_KIND, payload, what, yes=yes, prepare=keep)
    show_receipt(receipt, as_json)
    if not as_json:
        click.echo(f"\nThe new key sits {_seated_from(committee)}: start the node again before that.")


@tx.command()
@session_options
@click.argument("amount", type=AMOUNT)
@yes_option
@json_option
def unstake(session: Session, amount: int, yes: bool, as_json: bool) -> None:
    """Unstake AMOUNT (DKB): the whole stake, or leave at least the minimum stake.

    The amount returns to the account after the unbonding time (default: two weeks). Until then it can still
    be slashed.

    \b
    Example:
      dekube tx unstake 5000
    """
    if not amount:
        raise click.BadParameter("the amount must be above zero", param_hint="AMOUNT")
    key = session.key()
    with session.client() as client:
        staked = _account(client, key)["stake"]
        held = int(staked["amount"]) if staked else 0
        if amount > held:
            raise TransactionRefused(f"only {show_amount(held)} are staked; unstake at most this amount")
        _check_left(held - amount, client)
        unbonding_ms = int(client.call("dekube_genesis")["parameters"]["chain.unbonding_ms"])
        release = show_time(client.head().time_ms + unbonding_ms)
        what = {
            "does": "takes stake out" if held > amount else "takes the whole stake out: the account votes no more",
            "amount": show_amount(amount),
            "stake left": show_amount(held - amount),
            "takes effect": _seated_from(client.call("dekube_getCommittee")),
            "returns": f"{release} or later, by itself; until then it can still be slashed",
        }
        try:
            receipt = send(client, key, UNSTAKE_KIND, [amount], what, yes=yes)
        except TransactionRefused as error:
            if (why := _why_not(error.reason, client)) is not None:
                raise TransactionRefused(f"{why}; nothing was sent", reason=error.reason) from None
            raise
        returning = _account(client, key)["unbonding"]
    show_receipt(receipt, as_json)
    if not as_json and returning:
        release = show_time(max(item["release_time_ms"] for item in returning))
        click.echo(f"\nIt is on the account again from {release} on, by itself (dekube wallet balance).")


def _account(client: Client, key: SecretKey) -> dict[str, Any]:
    account: dict[str, Any] = client.call("dekube_getAccount", address="0x" + key.address.hex())
    return account


def _check_left(staked: int, client: Client) -> None:
    """Raise TransactionRefused if the chain would refuse the transaction: a failed one still costs its fee."""
    least = int(client.call("dekube_genesis")["parameters"]["chain.stake_min"])
    if 0 < staked < least:
        raise TransactionRefused(
            f"{show_amount(staked)} would be staked; the stake must be at least {show_amount(least)}, or zero"
        )


def _why_not(reason: str, client: Client) -> str | None:
    """Return why a stake cannot be changed now, and what to do."""
    parameters = client.call("dekube_genesis")["parameters"]
    if reason == "too_few_validators":
        return (
            f"fewer than {parameters['chain.validators_min']} other validators would be left "
            f"(chain.validators_min): all but {show_amount(int(parameters['chain.stake_min']))} can be taken out, "
            "and the rest when another validator has staked (dekube validators)"
        )
    if reason == "unstake_limit_reached":
        left = int(client.call("dekube_getValidators")["withdrawable"])
        last = client.call("dekube_getEpoch")["last_height"]
        return (
            f"within one epoch {parameters['chain.unstake_percent_max']} % of all stake can be taken out "
            f"(chain.unstake_percent_max): {show_amount(left)} of it are left, more from block {last + 1:,} on"
        )
    return None


def _keys(session: Session) -> tuple[SecretKey, str]:
    """Return the signing key and the passphrase of the home's keys; prompt for it at most once.

    Raises ConfigError, KeystoreError.
    """
    from node.home.keys import load_key

    home = session.home
    options = load_node_options(home).keys
    file = (session.passphrase_file if session.key_name is None else None) or home.passphrase_file(options)
    passphrase = ask_passphrase(file, f"Passphrase of the keys in {home.root}")
    if session.key_name is not None:
        return session.key(), passphrase
    return load_key(home.path(options.account), passphrase), passphrase


def _vote_key(home: Home, passphrase: str, registered: bytes | None) -> SecretKey:
    """Return the home's vote key; of several, the registered one, because another one would replace it.

    Raises ConfigError, KeystoreError.
    """
    from node.home.keys import load_key

    options = load_node_options(home).keys
    files = [file for file in (options.vote, options.vote_next) if file]
    if registered is None:
        return load_key(home.path(files[0]), passphrase)
    for file in files:
        vote = load_key(home.path(file), passphrase)
        if vote.vote_key == registered:
            return vote
    raise ConfigError(
        f"{home.root}: the account votes with 0x{registered.hex()}, which is not in this home. To change "
        "the key, use AMOUNT 0; if a signer has the registered key, use --possession"
    )


def read_possession(file: Path) -> list[Value]:
    """Return vote key, VRF key and the proof of possession of each. Raises ConfigError."""
    document = read_json(file, POSSESSION_LIMIT_BYTES, EXPECTED)
    if not isinstance(document, dict):
        raise ConfigError(f"{file}: not a JSON object; expected {EXPECTED}")
    found: list[Value] = []
    for name in ("vote_key", "possession", "vrf_key", "vrf_possession"):
        if name not in document:
            raise ConfigError(f"{file}: {name} is missing; expected {EXPECTED}")
        try:
            found.append(bytes.fromhex(document[name].removeprefix("0x")))
        except (ValueError, AttributeError):
            raise ConfigError(f"{file}: {name}: not 0x and hex digits") from None
    return found
