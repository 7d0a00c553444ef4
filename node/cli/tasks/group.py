"""``dekube task create --members``: tasks that share one match, and how they are shown, watched and cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import click

from node.cli.commands import next_command
from node.cli.confirm import NONCE_USED, send_signed
from node.cli.output import counted, show, show_amount, show_fields, show_rows
from node.cli.tasks.watch import WATCH_TIMEOUT_S, say
from node.market.posting import start_roots
from rpc.client import Client, ClientError, GatewayUnreachable, TaskEnded, TransactionRefused
from rpc.client.core import hexed
from rpc.client.results import Bill, EscrowTotals, Group, Receipt, TaskQuote, read_result
from state.primitives.codec import Value
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.group_records import MEMBERS_MAX, SPARES_PER, group_id_of, seat_task
from tasks.ledger.group_transitions import ADD_SEATS, CREATE_GROUP, spares_max
from tasks.ledger.groups import SEATS_PER_STEP
from tasks.spec import decode_spec

__all__ = [
    "MEMBERS_MAX",
    "SeatTerms",
    "check_seats",
    "group_bill",
    "group_document",
    "group_lines",
    "post_group",
    "seats_price",
    "show_group",
    "tell_posted",
    "watch_group",
]

POLL_S: Final = 1.0
_MEMBER: Final = b"member"
"""Stands for the start of seat 0, which is in the job."""
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


def group_document(quoted: TaskQuote, members: int, spares: int) -> dict[str, Any]:
    """Return what a group of tasks locks, for programs."""
    return {
        "members": members,
        "spares": spares,
        "member": str(quoted.total),
        "spare": str(quoted.spare),
        "total": str(seats_price(quoted, members, spares)),
        "custody": str(members * quoted.custody),
    }


def group_lines(quoted: TaskQuote, members: int, spares: int) -> dict[str, str]:
    """Return what a group of tasks locks, as lines of its quote."""
    told = {"members": f"{members}, {show_amount(quoted.total)} each"}
    if spares:
        told["spares"] = f"{spares}, {show_amount(quoted.spare)} each"
    told["locked by the group"] = show_amount(seats_price(quoted, members, spares))
    if quoted.custody:
        told["custody of all members"] = f"{show_amount(members * quoted.custody)} more"
    return told


class SeatTerms(NamedTuple):
    """Custody of a group's seats: ``amount`` is locked for each member. All seats have the same keys (R79)."""

    key_root: bytes
    inputs: int
    amount: int

    def is_asked(self, root: bytes) -> bool:
        """Tell whether a seat with that start needs terms; a spare only needs the key of a private data set."""
        return bool(root) or self.inputs > 0

    def payload(self, task: bytes, root: bytes) -> list[Value]:
        """Return the payload of **ask_custody**."""
        return [task, self.key_root, self.inputs, self.amount if root else 0]


def post_group(
    client: Client, key: SecretKey, raw: bytes, quoted: TaskQuote, members: int, spares: int,
    what: Mapping[str, Any], bring: Callable[[], None], *, terms: SeatTerms | None = None, yes: bool,
) -> tuple[bytes, Receipt]:  # fmt: skip
    """Create a group with all its seats; return its ID and the receipt of its first transaction.

    If adding seats fails, the group is never matched: it expires, and all that it has locked returns. Custody of
    each seat is asked for with the transaction that makes it. If it is refused, the group is cancelled.
    """
    roots = [*start_roots(decode_spec(raw), members), *[b""] * spares]
    asks: list[_Ask] = []

    def ask_first(created: bytes) -> None:
        assert terms is not None
        first = group_id_of(key.address, decode_transaction(created).nonce)
        asks[:] = _submit_asks(client, key, created, [terms.payload(seat_task(first, 0), _MEMBER)])

    receipt, signed = send_signed(
        client, key, CREATE_GROUP, [raw, members, spares], what, yes=yes, prepare=bring,
        beside=ask_first if terms is not None else None,
    )  # fmt: skip
    group = group_id_of(key.address, decode_transaction(signed).nonce)
    _finish_asks(client, key, group, asks)
    for at in range(0, len(roots), SEATS_PER_STEP):
        part = roots[at : at + SEATS_PER_STEP]
        standing = sum(not root for root in part)
        amount = seats_price(quoted, len(part) - standing, standing)
        if terms is None:
            client.add_seats(key, group, part, amount)
            continue
        payloads = [
            terms.payload(seat_task(group, 1 + at + place), root)
            for place, root in enumerate(part)
            if terms.is_asked(root)
        ]
        raw_seats = client.sign(key, ADD_SEATS, [group, [*part], amount])
        asks = _submit_asks(client, key, raw_seats, payloads)
        try:
            client.wait(raw_seats)
        except ClientError as error:
            if error.reason not in NONCE_USED:
                raise
            client.add_seats(key, group, part, amount)  # the account's node has used the nonce
        _finish_asks(client, key, group, asks)
    return group, receipt


class _Ask(NamedTuple):
    """Terms of custody of a seat that were submitted, or could not be: ``raw`` is empty then."""

    payload: list[Value]
    raw: bytes


def _submit_asks(client: Client, key: SecretKey, made: bytes, payloads: Sequence[list[Value]]) -> list[_Ask]:
    """Submit the terms of seats with the nonces after that of ``made``, before ``made`` is.

    They wait for it in the pools of all nodes. So no machine is matched with a seat that has none.
    """
    nonce, asks = decode_transaction(made).nonce, []
    for payload in payloads:
        nonce, raw = nonce + 1, b""
        with suppress(ClientError, GatewayUnreachable):
            raw = client.sign(key, ASK_CUSTODY, payload, nonce=nonce)
            client.submit(raw)
        asks.append(_Ask(payload, raw))
    return asks


def _finish_asks(client: Client, key: SecretKey, group: bytes, asks: Sequence[_Ask]) -> None:
    """Wait until terms are final, and ask again for those that were not taken.

    A group is cancelled if one is refused: its seat would have no custody.
    """
    for payload, raw in asks:
        try:
            _finish_ask(client, key, payload, raw)
        except TransactionRefused as error:
            say(f"Custody was refused ({error.reason}); the group is cancelled.")
            with suppress(ClientError, TransactionRefused):
                client.cancel_group(key, group)
            raise TransactionRefused(
                f"group {hexed(group)} has no custody and was cancelled: {error}", reason=error.reason or "unknown"
            ) from None


def _finish_ask(client: Client, key: SecretKey, payload: list[Value], raw: bytes) -> None:
    task = payload[0]
    assert isinstance(task, bytes)
    if raw:
        with suppress(ClientError, TransactionRefused):
            client.wait(raw)
    if client.custody_terms(task) is None:
        client.send(key, ASK_CUSTODY, payload)


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


def group_bill(client: Client, group: Group) -> Bill:
    """Return the bills of all tasks of a group as one."""
    bills = [client.bill(seat.task) for seat in group.seats]
    sums = {
        name: str(sum(int(found.totals.document[name]) for found in bills))
        for name in ("deposited", "locked", "paid", "refunded", "burned")
    }
    lines = tuple(line for found in bills for line in found.lines)
    return Bill(lines=lines, totals=read_result(EscrowTotals, sums))


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
    client: Client, group: bytes, receipt: Receipt, locked: int, holders: Mapping[str, Any], *, watches: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Print what was posted, and follow it if asked to. Raises TaskEnded unless all members are settled."""
    answer: dict[str, Any] = {
        "group": hexed(group),
        "transaction": receipt.transaction_hash,
        "height": receipt.block.height,
        "locked": str(locked) if as_json else show_amount(locked),
        **holders,
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
