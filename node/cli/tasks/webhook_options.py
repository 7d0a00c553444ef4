"""The options ``--webhook`` and ``--webhook-key`` of commands that wait for the end of tasks."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

import click

from node.cli.arguments import OUTPUT_FILE
from node.cli.terminal import printable
from node.workflows.notices import Webhook, open_secret_file

__all__ = ["webhook_options"]


def _say(line: str) -> None:
    click.echo(printable(line), err=True)


def webhook_options(function: Any) -> Any:
    """Add the options; the function gets ``webhook``, the sender or None, which tells of its tries."""

    @click.option(
        "--webhook",
        "url",
        metavar="URL",
        envvar="DEKUBE_WEBHOOK",
        help="Post a signed message to this address at the end.",
    )
    @click.option(
        "--webhook-key", "key_file", type=OUTPUT_FILE, metavar="FILE",
        help="The key of these messages; made if FILE does not exist. The receiver needs it too.",
    )  # fmt: skip
    @wraps(function)
    def with_webhook(*args: Any, url: str | None, key_file: Path | None, **named: Any) -> Any:
        if (url is None) != (key_file is None):
            raise click.UsageError("--webhook and --webhook-key are given together.")
        if url is None or key_file is None:
            return function(*args, webhook=None, **named)
        secret = open_secret_file(key_file)
        return function(*args, webhook=Webhook(url, secret, _say), **named)

    return with_webhook
