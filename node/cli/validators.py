"""``dekube validators``: stake, seats and performance of the validators in this epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from node.cli.output import json_option, show, show_amount, show_rows
from node.cli.session import Session, reading_options

if TYPE_CHECKING:
    from rpc.client import Client

__all__ = ["validators"]

_COLUMNS: Final = ("validator", "stake", "seat", "weight", "voted", "led", "missed", "state")


@click.command()
@reading_options
@json_option
def validators(session: Session, as_json: bool) -> None:
    """List validators with their stake, weight and performance, largest first.

    `state` shows from which block a validator votes or stops. Unstaked coins vote for up to three more
    epochs. New stake votes from the third epoch.

    `voted` counts the epoch's final blocks with the seat's vote. `led` counts blocks it proposed; `missed`
    counts views it failed to lead.

    \b
    Examples:
      dekube validators
      dekube validators --rpc https://rpc.example --json
    """
    with session.client() as client:
        epoch = client.call("dekube_getEpoch")
        number = epoch["epoch"]
        committee = client.call("dekube_getCommittee", epoch=number)
        answer = client.call("dekube_getValidators")
        following = _committee_after(client, number)
    staked, leaving = answer["validators"], {known["address"]: known for known in answer["leaving"]}
    seats = {seat["address"]: seat for seat in committee["seats"]}
    deeds = {seat["address"]: seat for seat in epoch["seats"]}
    next_seats = None if following is None else {seat["address"]: seat for seat in following["seats"]}
    with_stake = {known["address"] for known in staked}
    staked += [
        {"address": address, "vote_key": seat["vote_key"], "vrf_key": seat["vrf_key"], "stake": "0", "jail": None}
        for address, seat in ((next_seats or {}) | seats).items()
        if address not in with_stake
    ]
    staked.sort(key=lambda known: (-int(known["stake"]), known["address"]))
    if as_json:
        found = [
            known
            | {
                "seat": seats.get(known["address"]),
                "epoch": deeds.get(known["address"]),
                "leaves": leaving.get(known["address"]),
                "sits_next": None if next_seats is None else known["address"] in next_seats,
            }
            for known in staked
        ]
        show(
            {
                "epoch": number,
                "last_height": epoch["last_height"],
                "withdrawable": answer["withdrawable"],
                "validators": found,
            }
        )
        return
    rows = [
        _row(known, seats.get(known["address"]), deeds.get(known["address"]), epoch, int(committee["weight"]))
        | {"state": _state(known, epoch, seats, next_seats, leaving.get(known["address"]))}
        for known in staked
    ]
    title = f"Validators in epoch {number}, which ends with block {epoch['last_height']:,}"
    show_rows(rows, _COLUMNS, as_json=False, title=title)


def _row(
    known: dict[str, Any], seat: dict[str, Any] | None, deed: dict[str, Any] | None, epoch: dict[str, Any],
    weight: int,
) -> dict[str, Any]:  # fmt: skip
    row: dict[str, Any] = {"validator": known["address"], "stake": show_amount(int(known["stake"]))}
    if seat is not None:
        row |= {"seat": seat["seat"], "weight": f"{100 * int(seat['weight']) / weight:.1f} %"}
    if deed is not None:
        voted = f"{deed['finalised']} of {epoch['counted_blocks']}"
        row |= {"voted": voted, "led": deed["led"], "missed": deed["missed"]}
    return row


def _committee_after(client: Client, number: int) -> dict[str, Any] | None:
    """Return the next committee; None if the gateway does not report it."""
    from rpc.protocol.errors import RpcError

    try:
        found: dict[str, Any] = client.call("dekube_getCommittee", epoch=number + 1)
    except RpcError:
        return None
    return found


def _state(
    known: dict[str, Any], epoch: dict[str, Any], seats: dict[str, Any], next_seats: dict[str, Any] | None,
    leaves: dict[str, Any] | None,
) -> str:  # fmt: skip
    """Return since or until when a validator votes, and why it has no seat."""
    address, jail, said = known["address"], known["jail"], []
    if jail is not None and jail["until_epoch"] is None:
        said.append("out for ever")
    elif jail is not None and jail["until_epoch"] > epoch["epoch"]:
        said.append(f"jailed until epoch {jail['until_epoch']}")
    if leaves is not None:
        said.append(f"leaves with block {leaves['last_height']:,}")
    elif address in seats and next_seats is not None and address not in next_seats:
        said.append(f"leaves with block {epoch['last_height']:,}")
    elif address not in seats and next_seats is not None and address in next_seats:
        said.append(f"votes from block {epoch['last_height'] + 1:,} on")
    elif address not in seats and not said:
        said.append("does not vote yet")
    return ", ".join(said)
