"""``dekube task logs``: what a container prints, while it runs and after its end."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import Final

import click

from node.cli.arguments import TASK
from node.cli.output import json_option
from node.cli.session import Session, endorsing_options
from node.cli.tasks.watch import record_of, say
from node.cli.terminal import printable
from rpc.client import Client
from rpc.client.core import hexed
from rpc.client.errors import ClientError
from rpc.client.tasks import spec_of
from rpc.client.views import LogPiece
from state.primitives.errors import ConfigError
from tasks.executor.containers.log_entries import LogPlace
from tasks.kinds.container import KIND_CONTAINER
from tasks.spec import container_of

__all__ = ["logs"]

_SPAN: Final = re.compile(r"([0-9]{1,9})(s|m|h|d)")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_STREAM: Final = {1: "out", 2: "err"}


class Since(click.ParamType[LogPlace]):
    """A span of time before now, as 30s, 10m, 2h or 1d; the value is the place in a log at that time."""

    name = "span"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> LogPlace:
        """Return the place in a log."""
        if isinstance(value, LogPlace):
            return value
        found = _SPAN.fullmatch(str(value))
        if found is None:
            self.fail("a span as 30s, 10m, 2h or 1d expected", param, ctx)
        return LogPlace(max(0, time.time_ns() - int(found[1]) * _UNIT_S[found[2]] * 10**9))


@click.command()
@endorsing_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--follow", "-f", is_flag=True, help="Go on until the task ends.")
@click.option("--since", type=Since(), metavar="SPAN", help="Only what is newer, as 30s, 10m, 2h or 1d.")
@click.option("--timestamps", is_flag=True, help="Show the machine's time of each line.")
@json_option
def logs(
    session: Session, task_id: bytes, follow: bool, since: LogPlace | None, timestamps: bool, as_json: bool
) -> None:
    """Show the log of a container, while it runs and after its end.

    Only the task's requester sees it: the machine seals it for that account. It is what the machine says.

    \b
    Examples:
      dekube task logs 0xTASK --follow
      dekube task logs 0xTASK --since 10m --timestamps
    """
    with session.client() as client:
        record = record_of(client, task_id)
        if record.document["spec"]["kind"] != KIND_CONTAINER:
            raise ConfigError("only containers have logs; `dekube task metrics` shows the loss of other jobs")
        control = None if session.key_name is not None else session.control()
        key = session.key() if control is None else None
        try:
            for piece in client.task_logs(
                task_id, key=key, control=control, after=since or LogPlace(), follow=follow
            ):
                _show(piece, timestamps=timestamps, as_json=as_json)
        except ClientError as error:
            if error.reason != "view_refused" or not _show_kept(client, session, task_id, as_json=as_json):
                raise


def _show(piece: LogPiece, *, timestamps: bool, as_json: bool) -> None:
    if piece.is_cut:
        say("[the machine no longer has what stood here]")
    for entry in piece.entries:
        text = entry.text.decode("utf-8", "replace")
        if as_json:
            row = {"ns": entry.ns, "stream": _STREAM[entry.stream], "text": text}
            click.echo(json.dumps(row | {"worker": hexed(piece.worker)}))
            continue
        ends = text.endswith("\n")
        head = f"{_told(entry.ns)} " if timestamps else ""
        click.echo(head + printable(text.removesuffix("\n")), nl=ends, err=entry.stream == 2)


def _told(ns: int) -> str:
    moment = datetime.fromtimestamp(ns // 10**9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ns % 10**9 // 10**6:03d}Z"


def _show_kept(client: Client, session: Session, task_id: bytes, *, as_json: bool) -> bool:
    """Show the end of the log that an ended container has left; return whether there is one."""
    record = record_of(client, task_id)
    end = record.document["meter"]["exit"]
    if end is None or end["logs"] is None:
        return False
    say("[the machine no longer answers: this is the end of the log that it left]")
    key = session.key() if container_of(spec_of(record)).is_private else None
    found = client.container_result(task_id, control=session.control(), key=key)
    for line in found.logs.decode("utf-8", "replace").splitlines():
        click.echo(json.dumps({"text": line}) if as_json else printable(line))
    return True
