"""The fields of a request, each read strictly; errors name the field, and file and line where there is a file."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tasks.programs.operators.scalars import NANO
from tasks.requests.errors import RequestInvalid

__all__ = ["JobFields"]

_INTEGER_MAX: Final = 1 << 31


class JobFields:
    """The fields of a request, each read with its type."""

    def __init__(
        self, values: Mapping[str, Any], *, file: str = "",
        line_of: Callable[[str], int | None] = lambda _name: None,
    ) -> None:  # fmt: skip
        """``file`` is named in errors, and relative paths start at its folder; ``line_of`` knows its lines."""
        self._values, self._file, self._line_of = dict(values), file, line_of

    @property
    def file(self) -> str:
        """The file; empty where there is none."""
        return self._file

    def expect(self, known: Sequence[str], table: str = "", inner: Sequence[str] = ()) -> None:
        """Take the fields of ``table`` to the others. Raises RequestInvalid for fields that are not known."""
        found: dict[str, Any] = {}
        if table:
            found = self._values.pop(table, {})
            if not isinstance(found, dict):
                raise self.wrong(table, f"{table}: fields expected: {', '.join(inner)}")
        for values, names, before in ((self._values, known, ""), (found, inner, f"{table}.")):
            for name in values:
                if name not in names:
                    raise self.wrong(name, f"{before}{name} is not a known field; known are {', '.join(names)}")
        self._values |= found

    def wrong(self, name: str, what: str) -> RequestInvalid:
        """Return the error about a field, with its line."""
        return RequestInvalid(what, file=self._file, line=self._line_of(name), field=name)

    def text(self, name: str, otherwise: str | None = None) -> str:
        """Return a text."""
        value = self._values.get(name, otherwise)
        if value is None:
            raise RequestInvalid(f"{name} is missing", file=self._file, field=name)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(name, f"{name}: a text expected")
        return value

    def path(self, name: str) -> str:
        """Return a path; a relative one starts at the folder of the file."""
        return posixpath.join(posixpath.dirname(self._file), self.text(name))

    def whole(self, name: str, otherwise: int, least: int = 1) -> int:
        """Return a whole number."""
        value = self._values.get(name, otherwise)
        if type(value) is not int or not (least <= value < _INTEGER_MAX or value == otherwise):
            raise self.wrong(name, f"{name}: a whole number of {least} or more expected")
        return int(value)

    def nano(self, name: str, otherwise: int) -> int:
        """Return a number as a multiple of 10^-9."""
        value = self._values.get(name)
        if value is None:
            return otherwise
        if type(value) not in (int, float) or not 0 <= value <= 1_000:
            raise self.wrong(name, f"{name}: a number from 0 to 1000 expected")
        found = round(value * NANO)
        if abs(found - value * NANO) > 1e-3:
            raise self.wrong(name, f"{name}: at most nine digits after the point")
        return int(found)

    def choice(self, name: str, choices: Sequence[str], otherwise: str) -> str:
        """Return one of several texts."""
        if (value := self.text(name, otherwise)) not in choices:
            raise self.wrong(name, f"{name}: {', '.join(choices)} expected, not {value[:40]!r}")
        return value

    def listed(self, name: str) -> list[Any] | None:
        """Return a list whose items the caller checks, None where it is absent."""
        value = self._values.get(name)
        if value is not None and type(value) is not list:
            raise self.wrong(name, f"{name}: a list expected, in brackets")
        return value

    def both(self, one: str, other: str) -> bool:
        """Tell whether both fields are there."""
        return one in self._values and other in self._values
