"""Changes of a configuration in the text that a person has written: comments, order and spelling stay.

A program that changes one option must not lose what its owner noted beside the others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from node.home.config import DUMP_HEAD, flat_options, read_table, toml_value
from state.primitives.errors import ConfigError

if TYPE_CHECKING:
    from node.home.config import HomeOptions

__all__ = ["edit_options"]

_TEXT: Final = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
_VALUE: Final = rf"(?:{_TEXT}|\[(?:[^\]\"'#]|{_TEXT})*\]|[^#\"'\[\]{{}}\n]+?)"
_HEADER: Final = re.compile(r"^[ \t]*\[[ \t]*(\w+)[ \t]*\][ \t]*(?:#.*)?$", re.MULTILINE)


def edit_options(text: str, options: HomeOptions) -> str | None:
    """Return ``text`` changed so that it says ``options``, and all else of it as it was.

    None where it is written in a way that cannot be changed so: the result is read again before it is returned.
    """
    try:
        before = flat_options(read_table(text, type(options)))
        for name, value in flat_options(options).items():
            if before[name] != value:
                table, _, key = name.rpartition(".")
                text = _set(text, table, key, toml_value(value))
        return text if read_table(text, type(options)) == options else None
    except ConfigError:
        return None


def _set(text: str, table: str, key: str, value: str) -> str:
    """Return the text with one option set: where it stands, else first in its table, else in a new one."""
    start, end = _span(text, table)
    if start < 0:
        return f"{text.rstrip()}\n\n[{table}]\n{key} = {value}\n"
    line = re.compile(rf"^([ \t]*{key}[ \t]*=[ \t]*){_VALUE}([ \t]*(?:#.*)?)$", re.MULTILINE)
    found = line.search(text, start, end)
    if found is not None:
        return f"{text[: found.start()]}{found[1]}{value}{found[2]}{text[found.end() :]}"
    return f"{text[:start]}{key} = {value}\n{text[start:]}"


def _span(text: str, table: str) -> tuple[int, int]:
    """Return where the lines of a table begin and end, of the text before all tables for none; -1 without it."""
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers] + [len(text)]
    if not table:
        return (len(DUMP_HEAD) + 1 if text.startswith(DUMP_HEAD + "\n") else 0), ends[0]
    for header, end in zip(headers, ends[1:], strict=True):
        if header[1] == table:
            return min(header.end() + 1, len(text)), end
    return -1, -1
