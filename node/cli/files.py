"""Files given by the user. Errors name the file, the position in it, and the expected content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click

from node.cli.options import is_at_terminal, read_input
from node.cli.terminal import STDIO
from state.primitives.errors import ConfigError

__all__ = ["check_overwrite", "check_regular", "overwrite_option", "parse_json", "read_json", "read_text"]

NAMED_STDIN: Final = "standard input"


def read_text(file: Path, limit_bytes: int, expected: str) -> str:
    """Return the text of ``file`` ("-": standard input) without a byte order mark. Raises ConfigError."""
    return _decoded(read_input(file, limit_bytes), _name(file), expected)


def read_json(file: Path, limit_bytes: int, expected: str) -> Any:
    """Return the JSON document in ``file`` ("-": standard input). Raises ConfigError naming file and line."""
    return parse_json(read_input(file, limit_bytes), _name(file), expected)


def parse_json(data: bytes, name: str, expected: str) -> Any:
    """Return the JSON document ``data`` of the file ``name``; ``expected`` describes it. Raises ConfigError."""
    text = _decoded(data, name, expected)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{name}: not valid JSON ({place}: {error.msg}); expected {expected}") from None
    except RecursionError:
        raise ConfigError(f"{name}: JSON nested too deeply; expected {expected}") from None
    except ValueError as error:  # a number of more digits than the interpreter takes
        raise ConfigError(f"{name}: not valid JSON ({error}); expected {expected}") from None


def _name(file: Path) -> str:
    return NAMED_STDIN if str(file) == STDIO else str(file)


def _decoded(data: bytes, name: str, expected: str) -> str:
    if not data.strip():
        raise ConfigError(f"{name}: the file is empty; expected {expected}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}: not UTF-8 text (line {line}); expected {expected}") from None


def overwrite_option(function: Any) -> Any:
    """Add ``--yes`` to a command that writes a file; the function gets ``yes``."""
    return click.option("--yes", "-y", is_flag=True, help="Overwrite an existing file without asking.")(function)


def check_overwrite(file: Path | None, *, yes: bool, option: str = "--out") -> None:
    """Check that ``file`` does not exist or may be overwritten: with ``yes``, or confirmed at a terminal.

    A command writes its file at the end, so it calls this first. Raises ConfigError, also for a folder.
    """
    if file is None:
        return
    if not file.parent.is_dir():
        raise ConfigError(f"{file.parent}: the folder of {option} does not exist; create it first")
    if not file.exists() or not (file.is_file() or file.is_dir()):  # what is written to a device stays there
        return
    if file.is_dir():
        raise ConfigError(f"{file}: a folder; give a file name to {option}")
    if yes:
        return
    if not is_at_terminal():
        raise ConfigError(f"{file}: the file exists; add --yes to overwrite it. Nothing was changed")
    click.confirm(f"{file} exists. Overwrite it?", abort=True, err=True)


def check_regular(file: Path) -> None:
    """Check that ``file`` has an end, unlike a device or a pipe. Raises ConfigError."""
    if not file.is_file():
        raise ConfigError(f"{file}: not a regular file; give a file whose size is known")
