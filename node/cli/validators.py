"""``dekube validators``: who has stake, who sits, and how each does in this epoch."""

from __future__ import annotations

from typing import Any, Final

import click

from node.cli.output import json_option, show, show_amount, show_rows
from node.cli.session import Session, reading_options

__all__ = ["validators"]

_COLUMNS: Final = ("validator", "stake", "seat", "weight", "voted", "led", "missed", "state")


@click.command()
@reading_options
@json_option
def validators(session: Session, as_json: bool) -> None:
    """List who has stake, the largest first: the seat and its weight, and how it does in this epoch.

    `voted` counts final blocks of the epoch with the seat's vote, `led` blocks that it made, `missed` views that
    it was to lead and did not. A stake counts from the third epoch on.

    \b
    Examples:
      dekube validators
      dekube validators --rpc https://rpc.example --json
    """
    with session.client() as client:
        epoch = client.call("dekube_getEpoch")
        number = epoch["epoch"]
        committee = client.call("dekube_getCommittee", epoch=number)
        staked = client.call("dekube_getValidators")["validators"]
    seats = {seat["address"]: seat for seat in committee["seats"]}
    deeds = {seat["address"]: seat for seat in epoch["seats"]}
    staked.sort(key=lambda known: (-int(known["stake"]), known["address"]))
    if as_json:
        found = [
            known | {"seat": seats.get(known["address"]), "epoch": deeds.get(known["address"])} for known in staked
        ]
        show({"epoch": number, "last_height": epoch["last_height"], "validators": found})
        return
    rows = [
        _row(known, seats.get(known["address"]), deeds.get(known["address"]), epoch, int(committee["weight"]))
        for known in staked
    ]
    title = f"Validators in epoch {number}, which ends with block {epoch['last_height']:,}"
    show_rows(rows, _COLUMNS, as_json=False, title=title)


def _row(
    known: dict[str, Any], seat: dict[str, Any] | None, deed: dict[str, Any] | None, epoch: dict[str, Any],
    weight: int,
) -> dict[str, Any]:  # fmt: skip
    row = {"validator": known["address"], "stake": show_amount(int(known["stake"])), "state": _state(known, epoch)}
    if seat is not None:
        row |= {"seat": seat["seat"], "weight": f"{100 * int(seat['weight']) / weight:.1f} %"}
    if deed is not None:
        voted = f"{deed['finalised']} of {epoch['counted_blocks']}"
        row |= {"voted": voted, "led": deed["led"], "missed": deed["missed"]}
    return row


def _state(known: dict[str, Any], epoch: dict[str, Any]) -> str:
    jail = known["jail"]
    if jail is None or (jail["until_epoch"] is not None and jail["until_epoch"] <= epoch["epoch"]):
        return ""
    return "out for ever" if jail["until_epoch"] is None else f"jailed until epoch {jail['until_epoch']}"
