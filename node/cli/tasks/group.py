"""``dekube task create --members``: tasks that share one match, and how they are shown, watched and cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from node.cli.commands import next_command
from node.cli.confirm import send_signed
from node.cli.output import counted, show, show_amount, show_fields, show_rows
from node.cli.tasks.watch import WATCH_TIMEOUT_S, say
from node.market.posting import start_roots
from rpc.client import Client, TaskEnded
from rpc.client.core import hexed
from rpc.client.results import Group, Receipt, TaskQuote
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from tasks.ledger.group_records import MEMBERS_MAX, SPARES_PER, group_id_of
from tasks.ledger.group_transitions import CREATE_GROUP, spares_max
from tasks.ledger.groups import SEATS_PER_STEP
from tasks.spec import decode_spec

__all__ = ["MEMBERS_MAX", "check_seats", "post_group", "seats_price", "show_group", "tell_posted", "watch_group"]

POLL_S: Final = 1.0
_COLUMNS: Final = ("seat", "task", "phase", "windows", "worker")


def check_seats(members: int, spares: int | None) -> int:
    """Return the number of spares. Default: one for eight members. Raises BadParameter for too many."""
    found = members // SPARES_PER if spares is None else spares
    if found > spares_max(members):
        raise click.BadParameter(
            f"{counted(members, 'member')}: {counted(spares_max(members), 'spare')} at most", param_hint="--spares"
        )
    return found


def seats_price(quoted: TaskQuote, members: int, spares: int) -> int:
    """Return what all seats lock."""
    return members * quoted.total + spares * quoted.spare


def post_group(
    client: Client, key: SecretKey, raw: bytes, quoted: TaskQuote, members: int, spares: int,
    what: Mapping[str, Any], bring: Callable[[], None], *, yes: bool,
) -> tuple[bytes, Receipt]:  # fmt: skip
    """Create a group with all its seats; return its ID and the receipt of its first transaction.

    If adding seats fails, the group is never matched: it expires, and all that it has locked returns.
    """
    roots = [*start_roots(decode_spec(raw), members), *[b""] * spares]
    receipt, signed = send_signed(client, key, CREATE_GROUP, [raw, members, spares], what, yes=yes, prepare=bring)
    group = group_id_of(key.address, decode_transaction(signed).nonce)
    for at in range(0, len(roots), SEATS_PER_STEP):
        part = roots[at : at + SEATS_PER_STEP]
        standing = sum(not root for root in part)
        client.add_seats(key, group, part, seats_price(quoted, len(part) - standing, standing))
    return group, receipt


def _rows(group: Group) -> list[dict[str, Any]]:
    return [
        {
            "seat": f"{seat.seat}{' (spare)' if seat.is_spare else ''}",
            "task": hexed(seat.task),
            "phase": seat.phase,
            "windows": f"{seat.final_windows}/{seat.windows}",
            "worker": hexed(seat.worker) if seat.worker else None,
        }
        for seat in group.seats
    ]


def show_group(group: Group, *, as_json: bool) -> None:
    """Print a group and its seats."""
    if as_json:
        show({"group": group.document})
        return
    band = None if group.rate_min is None else f"{group.rate_min} to {group.rate_max} work units a second"
    show_fields(
        {
            "phase": f"{group.phase} ({group.reason.replace('_', ' ')})",
            "requester": hexed(group.requester),
            "members": f"{group.members}, of which {group.ended} have ended",
            "spares": f"{group.spares}, of which {group.standby} stand by",
            "speed": band,
            "without a machine": str(group.lost),
            "final windows": str(group.final_windows),
        },
        as_json=False,
        title="Group",
    )
    show_rows(_rows(group), _COLUMNS, as_json=False, title="Seats")


def watch_group(client: Client, group_id: bytes, *, as_json: bool) -> Group:
    """Follow a group until all its members have ended."""
    deadline, told = time.monotonic() + WATCH_TIMEOUT_S, ""
    while time.monotonic() < deadline:
        group = client.group(group_id)
        if group is None:
            raise TaskEnded(f"group {hexed(group_id)} is gone")
        line = (
            f"  {group.phase.upper():<9} {group.ended} of {group.members} ended, "
            f"{counted(group.final_windows, 'final window')}"
        )
        if line != told:
            told = line
            say(line, err=as_json)
        if group.has_ended:
            return group
        time.sleep(POLL_S)
    raise TaskEnded(f"group {hexed(group_id)} has not ended in time")


def tell_posted(
    client: Client, group: bytes, receipt: Receipt, locked: int, *, watches: bool, as_json: bool
) -> None:  # fmt: skip
    """Print what was posted, and follow it if asked to. Raises TaskEnded unless all members are settled."""
    answer: dict[str, Any] = {
        "group": hexed(group),
        "transaction": receipt.transaction_hash,
        "height": receipt.block.height,
        "locked": str(locked) if as_json else show_amount(locked),
    }
    if not watches:
        show_fields(answer, as_json=as_json)
        if not as_json:
            click.echo(f"\nFollow it: {next_command('task', 'show', hexed(group))}")
        return
    if not as_json:
        click.echo(f"Group {hexed(group)}")
    found = watch_group(client, group, as_json=as_json)
    show_group(found, as_json=as_json)
    if any(seat.phase != "settled" for seat in found.seats if not seat.is_spare):
        raise TaskEnded(f"not all members of group {hexed(group)} are settled")
