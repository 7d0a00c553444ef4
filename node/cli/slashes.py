"""``dekube slashes``: validators slashed for voting twice, and validators jailed for being offline."""

from __future__ import annotations

from typing import Any, Final

import click

from node.cli.output import json_option, show, show_amount, show_rows
from node.cli.session import Session, reading_options
from node.cli.status import FAULTS

__all__ = ["slashes"]

_SLASHES: Final = ("operator", "fault", "epoch", "view", "height", "taken", "reporter", "paid")
_JAILED: Final = ("operator", "until", "times in a row", "stake")


@click.command()
@reading_options
@json_option
def slashes(session: Session, as_json: bool) -> None:
    """List slashed and jailed validators, with reasons and amounts.

    A validator that voted twice is excluded for ever. A validator that was offline returns after some
    epochs; the number doubles each time.

    \b
    Examples:
      dekube slashes
      dekube slashes --rpc https://rpc.example --json
    """
    with session.client() as client:
        slashed = list(client.items("dekube_getSlashes"))
        epoch = client.call("dekube_status")["epoch"]
        validators = client.call("dekube_getValidators")["validators"]
    jailed = [
        {"operator": known["address"], **known["jail"], "stake": known["stake"]}
        for known in validators
        if known["jail"] is not None
        and (known["jail"]["until_epoch"] is None or known["jail"]["until_epoch"] > epoch)
    ]
    if as_json:
        show({"epoch": epoch, "slashes": slashed, "jailed": jailed})
        return
    show_rows([_slash(one) for one in slashed], _SLASHES, as_json=False, title="Slashed")
    show_rows([_jail(one, epoch) for one in jailed], _JAILED, as_json=False, title="Jailed")


def _slash(one: dict[str, Any]) -> dict[str, Any]:
    rate = one["rate_ppm"] / 10_000
    return one | {
        "fault": f"{one['fault']}: {FAULTS.get(one['fault'], 'another')}",
        "taken": f"{show_amount(int(one['taken']))} ({rate:g} %)",
        "paid": show_amount(int(one["reward"])),
    }


def _jail(one: dict[str, Any], epoch: int) -> dict[str, Any]:
    until = one["until_epoch"]
    return {
        "operator": one["operator"],
        "until": "for ever" if until is None else f"epoch {until}, {until - epoch} from now",
        "times in a row": one["times"],
        "stake": show_amount(int(one["stake"])),
    }
