"""``dekube tx``: a validator's transactions; payments are `dekube wallet`'s."""

from __future__ import annotations

from dataclasses import replace

import click

from node.cli.options import AMOUNT
from node.cli.output import json_option
from node.cli.session import Session, session_options
from node.cli.wallet import show_receipt
from node.keyring import random_key
from state.transition.staking import STAKE_KIND, UNSTAKE_KIND, stake_payload

__all__ = ["tx"]


@click.group()
def tx() -> None:
    """Stake, withdraw the stake, rotate a validator's keys. Payments: `dekube wallet`."""


@tx.command()
@session_options
@click.argument("amount", type=AMOUNT)
@json_option
def stake(session: Session, amount: int, as_json: bool) -> None:
    """Stake AMOUNT as a validator, with the vote key of the node in --home."""
    from node.home import load_key, read_passphrase

    options = session.home.load_options().keys
    vote = load_key(session.home.path(options.vote), read_passphrase(session.home.path(options.passphrase_file)))
    key = session.key()
    with session.client() as client:
        chain = client.chain().genesis_hash
        payload = stake_payload(amount, vote, genesis_hash=chain, address=key.address)
        receipt = client.send(key, STAKE_KIND, payload)
    show_receipt(receipt, as_json)


@tx.command(name="rotate-keys")
@session_options
@json_option
def rotate_keys(session: Session, as_json: bool) -> None:
    """Replace the vote key (and the VRF key that comes with it) of the validator in --home.

    A new key is drawn and registered. It sits from the third epoch on; until then the old one votes, so start the
    node once again with both before that. Run again when the new key sits: the next rotation begins with it. A key
    that waits for its first seat already is registered once more.
    """
    from node.home import begin_guard, load_key, read_passphrase, rewrite_options, save_key

    home, key = session.home, session.key()
    options = home.load_options()
    passphrase = read_passphrase(home.path(options.keys.passphrase_file))
    with session.client() as client:
        chain = client.chain().genesis_hash
        committee = client.call("dekube_getCommittee")
        following = load_key(home.path(options.keys.vote_next), passphrase) if options.keys.vote_next else None
        sitting = {seat["vote_key"] for seat in committee["seats"]}
        if following is not None and "0x" + following.vote_key.hex() in sitting:
            options = replace(options, keys=replace(options.keys, vote=options.keys.vote_next, vote_next=""))
            following = None
        if following is None:
            following = random_key()
            file = f"keys/vote-{following.vote_key[:8].hex()}.json"
            save_key(home.path(file), following, passphrase)
            begin_guard(home, chain, following.vote_key, is_next=True)
            options = replace(options, keys=replace(options.keys, vote_next=file))
            rewrite_options(home, options)
        payload = stake_payload(0, following, genesis_hash=chain, address=key.address)
        receipt = client.send(key, STAKE_KIND, payload)
    show_receipt(receipt, as_json)
    if not as_json:
        click.echo(f"\nThe new key sits from epoch {committee['epoch'] + 3} on: start the node again before that.")


@tx.command()
@session_options
@click.argument("amount", type=AMOUNT)
@json_option
def unstake(session: Session, amount: int, as_json: bool) -> None:
    """Take AMOUNT out of the stake; it returns after the unbonding time."""
    with session.client() as client:
        receipt = client.send(session.key(), UNSTAKE_KIND, [amount])
    show_receipt(receipt, as_json)
