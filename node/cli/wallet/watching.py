"""``dekube wallet watch``: follows an account or a transaction live."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import click

from node.cli.arguments import SECONDS, parse_hash
from node.cli.output import json_option, show_amount
from node.cli.progress_client import NotFinal
from node.cli.session import Session, reading_options
from node.cli.terminal import printable
from node.cli.wallet.views import HISTORY_MAX, change_text
from rpc.client import Client
from rpc.client.core import hexed
from rpc.client.results import HistoryEntry, Receipt

__all__ = ["wait_for_receipt", "watch"]

_INDENT: Final = " " * 16
_MORE_THAN_ADDRESS: Final = re.compile(r"0[xX][0-9a-fA-F]{41,}")


@click.command()
@reading_options
@click.argument("what", required=False)
@click.option("--timeout", "timeout_s", type=SECONDS, help="Stop after this many seconds.  [default: never]")
@json_option
def watch(session: Session, what: str | None, timeout_s: float | None, as_json: bool) -> None:
    """Follow an account (NAME or ADDRESS) or a transaction (HASH).

    Each change prints one line; with --json each line is a JSON document. An account is followed until
    Ctrl-C or --timeout. A transaction is followed until it is final. The exit status is 1 if it failed.

    \b
    Examples:
      dekube wallet watch savings
      dekube wallet watch 0xHASH --timeout 60
    """
    with session.client() as client:
        if what is not None and _MORE_THAN_ADDRESS.fullmatch(what):
            _watch_transaction(client, parse_hash(what, "WHAT"), timeout_s, as_json)
            return
        for line in _account_news(client, session.address(what, known=False), timeout_s):
            first, *more = _account_lines(line)
            _say(line, as_json, f"height {line['height']:>7}  {first}", *more)


def _account_news(client: Client, who: bytes, timeout_s: float | None) -> Iterator[dict[str, Any]]:
    before = client.account(who)
    yield {
        "height": before.at.height, "balance": str(before.balance), "nonce": before.nonce, "transactions": [],
        "changes": [],
    }  # fmt: skip
    for news in client.subscribe("heads", from_height=before.at.height + 1, timeout_s=timeout_s):
        now = client.account(who)
        if now.at.height <= before.at.height:
            continue  # told already with a block before
        if (now.balance, now.nonce, now.document.get("stake")) != (
            before.balance, before.nonce, before.document.get("stake"),
        ):  # fmt: skip
            fresh = _since(client, who, before.at.height)
            yield {
                "height": now.at.height,
                "balance": str(now.balance),
                "change": str(now.balance - before.balance),
                "nonce": now.nonce,
                "transactions": [found.transaction.document for found in fresh if found.transaction is not None],
                "changes": [change.document for found in fresh for change in found.changes],
            }
        before = now
        del news


def _since(client: Client, who: bytes, height: int) -> list[HistoryEntry]:
    found = []
    for item in islice(client.history(who), HISTORY_MAX):  # newest first
        if item.block.height <= height:
            break
        found.append(item)
    return found[::-1]


def _account_lines(line: dict[str, Any]) -> list[str]:
    text = f"{show_amount(int(line['balance']))}, nonce {line['nonce']}"
    if "change" in line:
        change = int(line["change"])
        text += f"  ({'+' if change >= 0 else '-'}{show_amount(abs(change))})"
    return [
        text,
        *(f"{_INDENT}{found['kind_name']} {found['hash']} from {found['from']}" for found in line["transactions"]),
        *(_INDENT + change_text(found) for found in line["changes"]),
    ]


def wait_for_receipt(client: Client, hash_: bytes, timeout_s: float) -> Receipt:
    """Return the receipt of a submitted transaction. Raises NotFinal."""
    start = client.head().at.height
    receipt = client.receipt(hash_)
    if receipt is not None:
        return receipt
    for _ in client.subscribe("heads", from_height=start + 1, timeout_s=timeout_s):
        receipt = client.receipt(hash_)
        if receipt is not None:
            return receipt
    raise NotFinal(f"{hexed(hash_)} is not final after {timeout_s:.10g} s; it may still become final", hash_=hash_)


def _watch_transaction(client: Client, hash_: bytes, timeout_s: float | None, as_json: bool) -> None:
    told = ""
    start = client.head().at.height

    def look() -> Receipt | None:
        nonlocal told
        receipt = client.receipt(hash_)
        state = "final" if receipt else "waiting" if client.transaction(hash_) else "unknown"
        if state != told and receipt is None:
            _say({"hash": hexed(hash_), "state": state}, as_json, f"{hexed(hash_)} is {state}")
        told = state
        return receipt

    receipt = look()
    if receipt is None:
        for _ in client.subscribe("heads", from_height=start + 1, timeout_s=timeout_s):
            receipt = look()
            if receipt is not None:
                break
    if receipt is None:
        raise NotFinal(f"not final in {timeout_s or 0:.10g} s", hash_=hash_)
    text = "succeeded" if receipt.succeeded else f"failed: {receipt.reason}"
    line = {"hash": hexed(hash_), "state": "final", "receipt": receipt.document}
    _say(line, as_json, f"{hexed(hash_)} is final at height {receipt.block.height} and {text}")
    if not receipt.succeeded:
        raise click.exceptions.Exit(1)


def _say(document: dict[str, Any], as_json: bool, *lines: str) -> None:
    click.echo(json.dumps(document) if as_json else "\n".join(map(printable, lines)))
    sys.stdout.flush()
