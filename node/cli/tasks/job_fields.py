"""The fields of a file that describes a job (TOML), each read strictly; errors name file and line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from state.primitives.errors import ConfigError
from tasks.programs.operators.scalars import NANO

__all__ = ["EXPECTED", "JobFields"]

EXPECTED: Final = "a job in TOML (docs/tasks.md, Fine-tuning and Generating)"
_INTEGER_MAX: Final = 1 << 31


class JobFields:
    """The fields of a file, each read with its type; errors name file and line."""

    def __init__(self, file: Path, text: str) -> None:
        """Raises ConfigError."""
        self._file, self._lines = file, text.splitlines()
        try:
            self._values: dict[str, Any] = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
            raise ConfigError(f"{file}: not valid TOML ({error}); expected {EXPECTED}") from None

    @property
    def file(self) -> Path:
        """The file."""
        return self._file

    def expect(self, known: Sequence[str], table: str = "", inner: Sequence[str] = ()) -> None:
        """Take the fields of ``table`` to the others. Raises ConfigError for fields that are not known."""
        found: dict[str, Any] = {}
        if table:
            found = self._values.pop(table, {})
            if not isinstance(found, dict):
                raise self.wrong(table, f"a table expected: [{table}] with {', '.join(inner)}")
        for values, names, before in ((self._values, known, ""), (found, inner, f"{table}.")):
            for name in values:
                if name not in names:
                    raise self.wrong(name, f"{before}{name} is not a known field; known are {', '.join(names)}")
        self._values |= found

    def wrong(self, name: str, what: str) -> ConfigError:
        """Return the error about a field, with its line."""
        pattern = re.compile(rf"\s*\[?\s*[\"']?{re.escape(name)}[\"']?\s*[]=]")
        line = next((number for number, text in enumerate(self._lines, 1) if pattern.match(text)), None)
        place = "" if line is None else f" line {line}:"
        return ConfigError(f"{self._file}:{place} {what}")

    def text(self, name: str, otherwise: str | None = None) -> str:
        """Return a text."""
        value = self._values.get(name, otherwise)
        if value is None:
            raise ConfigError(f"{self._file}: {name} is missing; expected {EXPECTED}")
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(name, f"{name}: a text expected, in quotes")
        return value

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
