"""Strict parsers of command line arguments: amounts, fees, times, addresses, hashes, files."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any, Final

import click

from billing.prices import BPS
from node.cli.output import parse_amount
from node.cli.terminal import STDIO, printable
from state.primitives.address import parse_address
from state.primitives.errors import DekubeError
from state.primitives.hashing import HASH_BYTES

__all__ = [
    "ADDRESS",
    "AMOUNT",
    "FEE",
    "FILE",
    "FOLDER_NAME",
    "OUTPUT_FILE",
    "SECONDS",
    "SHARE",
    "TASK",
    "OutputFile",
    "PathName",
    "WholeNumber",
    "parse_hash",
    "parse_hex",
    "parse_numbers",
]


NATURAL_DIGITS_MAX: Final = 40
VALUE_SHOWN: Final = 64
_WHOLE: Final = re.compile(rf"-?[0-9]{{1,{NATURAL_DIGITS_MAX}}}")


class _Amount(click.ParamType[int]):
    name = "amount"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return value if isinstance(value, int) else parse_amount(str(value))


AMOUNT: Final = _Amount()


GWEI_DIGITS: Final = 9
GWEI: Final = 10**GWEI_DIGITS
_FEE: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))? ?gwei|([0-9]{1,24}) ?wei")


class _Fee(click.ParamType[int]):
    name = "fee"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _FEE.fullmatch(str(value))
        if found is None:
            raise click.BadParameter(f"{value!r} is not a fee per unit of gas; write 2.5gwei or 2500000000wei")
        gwei, fraction, wei = found.groups()
        return int(wei) if wei else int(gwei) * GWEI + int((fraction or "").ljust(GWEI_DIGITS, "0"))


FEE: Final = _Fee()


_SHARE: Final = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,2}))?%?")


class _Share(click.ParamType[int]):
    name = "share"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SHARE.fullmatch(str(value))
        bps = 100 * int(found[1]) + int((found[2] or "").ljust(2, "0")) if found else BPS + 1
        if bps > BPS:
            self.fail(f"{value!r} is not a share; write a percentage from 0 to 100, as 10 or 2.5", param, ctx)
        return bps


SHARE: Final = _Share()
"""A percentage; in basis points."""


SECONDS_MAX: Final = 366 * 86_400
"""Upper bound of waiting times. Clocks and sockets do not accept larger numbers."""


class _Seconds(click.ParamType[float]):
    name = "seconds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= SECONDS_MAX:  # what is no number is not within
            self.fail(f"{value!r} is not a number of seconds up to one year; write 30 or 0.5", param, ctx)
        return seconds


SECONDS: Final = _Seconds()


class _TaskId(click.ParamType[bytes]):
    name = "task"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        digits = str(value).strip().removeprefix("0x").lower()
        if len(digits) != 2 * HASH_BYTES or any(digit not in "0123456789abcdef" for digit in digits):
            self.fail(f"{value!r} is not a task ID; write 0x and 64 hex digits", param, ctx)
        return bytes.fromhex(digits)


class _Address(click.ParamType[str]):
    name = "address"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return "0x" + parse_address(str(value)).hex()
        except DekubeError as error:
            self.fail(str(error), param, ctx)


TASK: Final = _TaskId()
ADDRESS: Final = _Address()


class PathName(click.Path):
    """The path of a file or a folder. Refuses an empty text, which Path reads as the current folder."""

    def __init__(self, **named: Any) -> None:
        super().__init__(path_type=Path, **named)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Return the Path. Raises BadParameter."""
        if not os.fspath(value):
            self.fail("the path is empty; name a file or folder", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(PathName):
    """The path of a file to write. Refuses "-": standard output gets the command's report."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Return the Path. Raises BadParameter."""
        if os.fspath(value) == STDIO:
            self.fail("'-' is not supported: name a file, standard output has the command's report", param, ctx)
        return super().convert(value, param, ctx)


class FolderName(PathName):
    """The name of a folder, shown in many lines. Refuses line breaks."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Return the Path. Raises BadParameter."""
        text = os.fspath(value)
        if not text.strip():
            self.fail("the path is empty; name a folder", param, ctx)
        if not text.isprintable():
            self.fail(f"{printable(text)!r} has control characters; give a folder without them", param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(click.IntRange):
    """A whole number within bounds, in decimal digits. int() also accepts spaces, underscores and other
    scripts.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises BadParameter."""
        if isinstance(value, str) and not _WHOLE.fullmatch(value):
            shown = value[:VALUE_SHOWN] + "..." * (len(value) > VALUE_SHOWN)
            self.fail(f"{shown!r} is not a whole number of at most {NATURAL_DIGITS_MAX} digits", param, ctx)
        return super().convert(value, param, ctx)


FILE: Final = PathName(allow_dash=True)
"""A file, or "-" for standard input."""
OUTPUT_FILE: Final = OutputFile()
FOLDER_NAME: Final = FolderName()
_HEX: Final = re.compile(r"0[xX](?:[0-9a-fA-F]{2})*")


def parse_numbers(texts: tuple[str, ...], param: str) -> dict[str, int]:
    """Return the numbers of NAME=NUMBER arguments of ``param``; each name once. Raises BadParameter."""
    found: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not (name and equals and number.isascii() and number.isdigit()):
            raise click.BadParameter(
                f"{printable(text)}: not NAME=NUMBER; write for example chain.epoch_blocks=600", param_hint=param
            )
        if len(number) > NATURAL_DIGITS_MAX:
            raise click.BadParameter(
                f"{printable(name)}: number too large: {len(number)} digits, at most {NATURAL_DIGITS_MAX}",
                param_hint=param,
            )
        if name in found:
            raise click.BadParameter(f"{printable(name)} is given twice", param_hint=param)
        found[name] = int(number)
    return found


def parse_hex(text: str, name: str) -> bytes:
    """Return the bytes of the argument ``name`` in 0x hex. Raises BadParameter."""
    if not _HEX.fullmatch(text):
        raise click.BadParameter("not 0x and hex digits", param_hint=name)
    return bytes.fromhex(text[2:])


def parse_hash(text: str, name: str) -> bytes:
    """Return the hash in the argument ``name`` in 0x hex. Raises BadParameter."""
    found = parse_hex(text, name)
    if len(found) != HASH_BYTES:
        raise click.BadParameter("not 0x and 64 hex digits", param_hint=name)
    return found
