"""``dekube blob``: uploads and downloads bulk data over a gateway or this machine's node."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from node.cli.arguments import OutputFile, PathName, WholeNumber
from node.cli.commands import CommandGroup
from node.cli.files import check_overwrite, check_regular, overwrite_option
from node.cli.option_conflicts import only_with, refuse_given
from node.cli.output import json_option, show_fields
from node.cli.session import Session, reading_options, session_options
from rpc.client.blobs import Progress
from rpc.client.core import hexed
from state.primitives.hashing import HASH_BYTES

__all__ = ["blob", "download_folder", "show_progress"]

_MIB: Final = 1024 * 1024
_CLEAR: Final = "\r\x1b[K"


def show_progress(label: str) -> Progress | None:
    """Return a function that shows progress on a terminal; None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        return None

    def tell(done: int, every: int) -> None:
        if done >= every:
            click.echo(_CLEAR, nl=False, err=True)
        else:
            share = f"{100 * done // every} % of {every / _MIB:.1f} MiB"
            click.echo(f"{_CLEAR}{label}: {share}", nl=False, err=True)

    return tell


def download_folder() -> Path:
    """Return the folder of this user's unfinished downloads."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "dekube" / "blobs"


class _Name(click.ParamType[bytes]):
    name = "blob"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        digits = str(value).strip().removeprefix("0x").lower()
        if len(digits) != 2 * HASH_BYTES or any(digit not in "0123456789abcdef" for digit in digits):
            self.fail(f"{value!r} is not a blob name; write 0x and 64 hex digits", param, ctx)
        return bytes.fromhex(digits)


NAME: Final = _Name()


@click.group(cls=CommandGroup)
def blob() -> None:
    """Upload data sets and download bulk data.

    \b
    Examples:
      dekube blob put train.dataset --rpc https://gateway.example --key me
      dekube blob get 0x1234... --out train.dataset --rpc https://gateway.example
    """


@blob.command()
@session_options
@click.argument("file", type=PathName(exists=True, dir_okay=False))
@json_option
def put(session: Session, file: Path, as_json: bool) -> None:
    """Upload FILE to the node in --home, or to a gateway.

    A gateway (--rpc) requires a signature of an account that can pay for a task. It keeps the blob for one
    day, or while the account's task needs it. Pieces that are already there are not sent again.

    \b
    Example:
      dekube blob put train.dataset --rpc https://gateway.example --key me
    """
    check_regular(file)
    control = session.control()
    if control is not None:
        refuse_given(
            ("--key", "--passphrase-file", "--chain-id"),
            f"the node in {session.home.root} takes the blob unsigned; they go with --rpc",
        )
    key = None if control is not None else session.key()
    with session.client() as client:
        name = client.upload(file, control=control, key=key, progress=show_progress("Uploading"))
    show_fields({"blob": hexed(name), "bytes": file.stat().st_size}, as_json=as_json)


@only_with(("--window",), "--task")
@blob.command()
@reading_options
@click.argument("name", type=NAME, metavar="BLOB")
@click.option("--out", required=True, type=OutputFile(dir_okay=False), help="File to write.")
@click.option("--task", type=NAME, metavar="TASK", help="Task that uses the blob; helps the gateway to find it.")
@click.option("--window", type=WholeNumber(0), help="Window of --task whose work uses the blob.")
@overwrite_option
@json_option
def get(
    session: Session, name: bytes, out: Path, task: bytes | None, window: int | None, yes: bool, as_json: bool
) -> None:  # fmt: skip
    """Download BLOB from the gateway into a file.

    Every piece is verified. An interrupted download resumes.

    \b
    Example:
      dekube blob get 0x1234... --out train.dataset --rpc https://gateway.example
    """
    check_overwrite(out, yes=yes)
    with session.client() as client:
        size = client.download(name, out, task=task, window=window, progress=show_progress("Fetching"))
    show_fields({"file": str(out), "bytes": size}, as_json=as_json)
