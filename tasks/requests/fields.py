"""The fields of a request, each read strictly; errors name the field, and file and line where there is a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from tasks.programs.operators.scalars import NANO
from tasks.requests.errors import RequestInvalid
from tasks.requests.sources import SourceInvalid, is_output, located, output_of, place_of

__all__ = ["BY_TASK", "FieldPath", "JobFields"]

_INTEGER_MAX: Final = 1 << 31
BY_TASK: Final = "task:"
"""A value that begins so names the result of a task."""
FieldPath = tuple[str | int, ...]
"""Names of fields and numbers of items, from the outermost to the innermost one."""


class JobFields:
    """The fields of a request, each read with its type."""

    def __init__(
        self, values: Mapping[str, Any], *, file: str = "", lines: Mapping[FieldPath, int] | None = None,
        place: FieldPath = (),
    ) -> None:  # fmt: skip
        """``file`` is named in errors, and relative paths start at its folder. ``lines`` are those of its fields,
        of which these are at ``place``.
        """
        self._values, self._file, self._lines = dict(values), file, lines or {}
        self._places: dict[str, FieldPath] = {name: (*place, name) for name in self._values}
        self._place = place

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
        every = (*known, table) if table else known
        for name in self._values:
            if name not in known:
                raise self.unknown(name, every)
        for name in found:
            self._places[name] = (*self._place, table, name)
            if name not in inner:
                raise self.unknown(name, inner, before=f"{table}.")
        self._values |= found

    def unknown(self, name: str, known: Sequence[str], before: str = "") -> RequestInvalid:
        """Return the error about a field that is not known, with the nearest one that is."""
        near = get_close_matches(name, known, 1)
        what = f"did you mean {before}{near[0]}?" if near else f"known are {', '.join(known)}"
        return self.wrong(name, f"{before}{name} is not a known field; {what}")

    def wrong(self, name: str, what: str) -> RequestInvalid:
        """Return the error about a field, with its line."""
        place = self._places.get(name)
        line = None if place is None else self._lines.get(place)
        return RequestInvalid(what, file=self._file, line=line, field=name)

    def has(self, name: str) -> bool:
        """Tell whether a field is there."""
        return name in self._values

    def value(self, name: str) -> Any:
        """Return the value of a field that is there, whatever it is."""
        return self._values[name]

    def drop(self, names: Iterable[str]) -> None:
        """Remove fields that were read: ``expect`` does not know them."""
        for name in names:
            self._values.pop(name, None)

    def text(self, name: str, otherwise: str | None = None) -> str:
        """Return a text."""
        value = self._values.get(name, otherwise)
        if value is None:
            line = self._lines.get(self._place) if self._place else None
            raise RequestInvalid(f"{name} is missing", file=self._file, line=line, field=name)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(name, f"{name}: a text expected, in quotes if it looks like a number")
        return value

    def path(self, name: str) -> str:
        """Return a path, or the URL of a store; a relative path starts at the folder of the file."""
        if self.text(name).startswith(BY_TASK):
            raise self.wrong(name, f"{name}: a file expected; the result of a task cannot be one here")
        return self.located(name, self.text(name))

    def located(self, name: str, source: str) -> str:
        """Return a source that the field ``name`` names; a relative path starts at the folder of the file."""
        try:
            if name == "mounts" and is_output(source):
                output_of(source)
            else:
                place_of(source)
        except SourceInvalid as error:
            wrong = self.wrong(name, f"{name}: {error}")
            wrong.code = error.code  # type: ignore[misc]
            raise wrong from None
        return located(self._file, source)

    def whole(self, name: str, otherwise: int, least: int = 1) -> int:
        """Return a whole number."""
        value = self._values.get(name, otherwise)
        if type(value) is not int or not (least <= value < _INTEGER_MAX or value == otherwise):
            raise self.wrong(name, f"{name}: a whole number of {least} or more expected")
        return int(value)

    def nano(self, name: str, otherwise: int, most: int = 1_000) -> int:
        """Return a number from 0 to ``most`` as a multiple of 10^-9."""
        value = self._values.get(name)
        if value is None:
            return otherwise
        if type(value) not in (int, float) or not 0 <= value <= most:
            raise self.wrong(name, f"{name}: a number from 0 to {most} expected")
        found = round(value * NANO)
        if abs(found - value * NANO) > 1e-3:
            raise self.wrong(name, f"{name}: at most nine digits after the point")
        return int(found)

    def truth(self, name: str, *, otherwise: bool = False) -> bool:
        """Return true or false."""
        value = self._values.get(name, otherwise)
        if type(value) is not bool:
            raise self.wrong(name, f"{name}: true or false expected")
        return value

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
