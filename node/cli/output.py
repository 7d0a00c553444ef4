"""Output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from node.cli.terminal import printable, printable_heading
from state.primitives.amounts import DECIMALS, format_amount, format_units

if TYPE_CHECKING:  # loaded where a table is shown: programs and health checks ask for JSON
    from rich.console import Console
    from rich.text import Text

    from rpc.client.results import Receipt

__all__ = [
    "counted",
    "in_words",
    "json_option",
    "log_field",
    "parse_amount",
    "show",
    "show_amount",
    "show_fields",
    "show_gwei",
    "show_receipt",
    "show_rows",
    "show_span",
    "show_time",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
AMOUNT_DIGITS_MAX = 30
"""Maximum number of digits before the decimal point; no amount has more."""
AMOUNT_SHOWN = 64
GWEI_DECIMALS = 9
TIME_MS_END = 253_402_300_800_000
"""The year 10000. Later times cannot occur in a chain, and some systems cannot format them."""


def json_option(function: _Function) -> _Function:
    """Add ``--json`` to a command; the function gets ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def show(document: Any) -> None:
    """Print ``document`` as JSON, bytes as 0x-prefixed hex."""
    click.echo(json.dumps(document, indent=2, default=lambda value: "0x" + value.hex()))


def counted(count: int, what: str) -> str:
    """Return a number with its noun: "1 block", "1,200 blocks"."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def show_time(time_ms: int) -> str:
    """Return a block time in readable form. Raises ValueError for a time outside the calendar."""
    if not 0 <= time_ms < TIME_MS_END:
        raise ValueError(f"not a time: {time_ms}")
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_ms // 1000))


def log_field(dropped: int, since_ms: int, reason: str = "") -> dict[str, str]:
    """Return the status line about a service's log; empty if every line was written.

    ``since_ms``: Unix time since which it cannot be written; 0 while it can.
    """
    if since_ms:
        why = f" ({reason})" if reason else ""
        return {"log": f"cannot be written since {show_time(since_ms)}{why}; lines dropped: {dropped:,}"}
    return {"log": f"written again; lines dropped: {dropped:,}"} if dropped else {}


def show_span(span_ms: int) -> str:
    """Return a duration in its two largest units."""
    seconds = span_ms // 1000
    if seconds < 60:
        return f"{span_ms / 1000:.1f} s"
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3_600} h {seconds % 3_600 // 60} min"
    return f"{counted(seconds // 86_400, 'day')} {seconds % 86_400 // 3_600} h"


def in_words(fields: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with times and durations (milliseconds) in readable form; the unit is removed from their
    names.
    """
    shown: dict[str, Any] = {}
    for name, value in fields.items():
        if name.endswith("_ms") and isinstance(value, int):
            shown[name.removesuffix("_ms")] = show_time(value) if name == "time_ms" else show_span(value)
        else:
            shown[name] = value
    return shown


def show_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, as_json: bool, title: str = "") -> None:
    """Print ``rows`` as a table of ``columns``, or all their fields as JSON."""
    if as_json:
        show(list(rows))
        return
    if not rows:
        click.echo(f"{printable_heading(title or 'Nothing')}: none.")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_plain(row.get(column)) for column in columns))
    console = _console()
    if title:  # not the table's own, which is broken where the table is narrower
        console.print(Text(printable_heading(title), style="italic"))
    console.print(table)


def show_fields(fields: dict[str, Any], *, as_json: bool, title: str = "", err: bool = False) -> None:
    """Print one record, one line per field, or as JSON; with ``err`` on standard error."""
    if as_json:
        show(fields)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(_plain(name), _plain(value))
    console = _console(err=err)
    if title:  # as above
        console.print(Text(printable_heading(title), style="italic"))
    console.print(table)


def show_amount(amount: int) -> str:
    """Return an amount of 10^-18 DKB in DKB, without rounding."""
    return format_amount(amount)


def show_gwei(fee: int) -> str:
    """Return a gas price in gwei (10^-9 DKB), without rounding."""
    return format_units(fee, GWEI_DECIMALS) + " gwei"


def parse_amount(text: str) -> int:
    """Return the amount in 10^-18 DKB of "1.5" or "1.5 DKB" (DKB), or "15000wei". Raises click.BadParameter."""
    cleaned = text.strip().removesuffix("DKB").strip()
    unit = DECIMALS
    if cleaned.endswith("wei"):
        cleaned, unit = cleaned.removesuffix("wei").strip(), 0
    whole, _, fraction = cleaned.partition(".")
    if why := _why_no_amount(cleaned, whole, fraction, unit):
        raise click.BadParameter(f"{text[:AMOUNT_SHOWN]!r} is not an amount: {why}; write 1.5 (DKB) or 1500wei")
    scale: int = 10**unit
    return int(whole or "0") * scale + (int((fraction or "0").ljust(unit, "0")) if unit else 0)


def _why_no_amount(cleaned: str, whole: str, fraction: str, unit: int) -> str:
    """Return what is wrong with the parts of an amount with ``unit`` decimals; empty if nothing is."""
    if not cleaned:
        return "it is empty"
    if cleaned.startswith("-"):
        return "it is negative"
    if "," in cleaned:
        return "the decimal point is a point, and digits are not grouped"
    if not (whole + fraction).isdigit() or not (whole + fraction).isascii():
        return "it has other characters than digits and one point"
    if fraction and not unit:
        return "wei is the smallest unit, it has no fraction"
    if len(fraction) > unit:
        return f"it has {len(fraction)} decimals, and 1 DKB has {DECIMALS} (1wei is the smallest amount)"
    if len(whole) > AMOUNT_DIGITS_MAX:
        return f"it is too large ({len(whole)} digits, at most {AMOUNT_DIGITS_MAX})"
    return ""


def _plain(value: Any) -> Text:
    from rich.text import Text

    return Text(printable(_cell(value)), overflow="fold")  # square brackets in untrusted text are no markup


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_inner(item)}" for name, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(_inner(item) for item in value)
    return str(value)


def _inner(value: Any) -> str:
    """Return a nested cell; a cell with parts is put in brackets."""
    return f"({_cell(value)})" if isinstance(value, Mapping | list | tuple) else _cell(value)


def _console(*, err: bool = False) -> Console:
    from rich.console import Console

    # A pipe has no width of its own; a narrow default would break every address in two.
    console = Console(stderr=err)
    return console if console.is_terminal else Console(width=200, stderr=err)


def show_receipt(receipt: Receipt, as_json: bool) -> None:
    """Show the receipt of a final transaction."""
    if as_json:
        show(dict(receipt.document))
        return
    fields = {
        "transaction": receipt.transaction_hash,
        "height": receipt.block.height,
        "kind": receipt.kind_name or f"{receipt.kind:#x}",
        "outcome": "succeeded" if receipt.succeeded else f"failed: {receipt.reason}",
        "fee": show_amount(receipt.fee),
        "gas": receipt.gas_used,
    }
    show_fields(fields, as_json=False, title="Final")
