"""Reads the fields of a request's object strictly: types, ranges, and no name that the format does not have."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from node.api.errors import ApiError, encodable, unsupported, wrong

__all__ = ["Fields", "read_json"]

METADATA_KEYS_MAX: Final = 16
METADATA_KEY_CHARACTERS_MAX: Final = 64
METADATA_VALUE_CHARACTERS_MAX: Final = 512


def read_json(body: bytes, what: str = "The body") -> dict[str, Any]:
    """Return the object of a JSON text. Raises ApiError."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise wrong(f"{what} is not valid JSON ({error}).", reason="invalid_json") from None
    if type(found) is not dict:
        raise wrong(f"{what} is not a JSON object.", reason="invalid_json")
    return found


class Fields:
    """The fields of one object; ``within`` is its own name in the request. Null stands for an absent field."""

    def __init__(self, values: Mapping[str, Any], known: Collection[str], within: str = "") -> None:
        """Raises ApiError for a name that the format does not have."""
        self._values, self._within = values, within
        for name in values:
            if name not in known:
                place = self.param(name)
                raise wrong(f"Unknown parameter: '{place[:80]}'.", place[:80], "unknown_parameter")

    def param(self, name: str) -> str:
        """Return the name of a field in the whole request."""
        return f"{self._within}.{name}" if self._within else name

    def raw(self, name: str) -> Any:
        """Return a value as it was sent, None where it is absent."""
        return self._values.get(name)

    def missing(self, name: str) -> ApiError:
        """Return the error of a field that has to be there."""
        param = self.param(name)
        return wrong(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")

    def invalid(self, name: str, expected: str) -> ApiError:
        """Return the error of a value."""
        param = self.param(name)
        return wrong(f"Invalid value for '{param}': {expected} expected.", param, "invalid_value")

    def text(self, name: str, *, most: int = 256) -> str | None:
        """Return a text of ``most`` characters at most, None where it is absent."""
        value = self.raw(name)
        if value is None:
            return None
        if type(value) is not str or not 0 < len(value) <= most or value != encodable(value):
            raise self.invalid(name, f"a string of 1 to {most} characters")
        return value

    def needed(self, name: str, *, most: int = 256) -> str:
        """Return a text that has to be there."""
        value = self.text(name, most=most)
        if value is None:
            raise self.missing(name)
        return value

    def whole(self, name: str, least: int, most: int, *, auto: bool = False) -> int | None:
        """Return a whole number; None where it is absent, or the word auto and that is allowed."""
        value = self.raw(name)
        if value is None or (auto and value == "auto"):
            return None
        if type(value) is not int or not least <= value <= most:
            raise self.invalid(name, f"a whole number from {least} to {most}" + ' or "auto"' * auto)
        return value

    def number(self, name: str, least: float, most: float, *, auto: bool = False) -> float | None:
        """Return a number; None as of ``whole``."""
        value = self.raw(name)
        if value is None or (auto and value == "auto"):
            return None
        if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
            raise self.invalid(name, f"a number from {least:g} to {most:g}" + ' or "auto"' * auto)
        return float(value)

    def inner(self, name: str, known: Collection[str]) -> Fields | None:
        """Return the fields of an object in this one."""
        value = self.raw(name)
        if value is None:
            return None
        if type(value) is not dict:
            raise self.invalid(name, "an object")
        return Fields(value, known, self.param(name))

    def metadata(self) -> dict[str, str] | None:
        """Return the field ``metadata``: few short pairs of strings."""
        value = self.raw("metadata")
        if value is None:
            return None
        if type(value) is not dict or len(value) > METADATA_KEYS_MAX:
            raise self.invalid("metadata", f"an object of {METADATA_KEYS_MAX} keys at most")
        for key, one in value.items():
            if len(key) > METADATA_KEY_CHARACTERS_MAX or type(one) is not str:
                raise self.invalid("metadata", "short keys and string values")
            if len(one) > METADATA_VALUE_CHARACTERS_MAX:
                raise self.invalid("metadata", f"values of {METADATA_VALUE_CHARACTERS_MAX} characters at most")
        return dict(value)

    def only(self, name: str, allowed: Sequence[Any], what: str) -> None:
        """Refuse a value that asks for something that no job does. Absent, null and ``allowed`` are taken.

        A value of another type is no equal: ``1`` does not stand for ``true``.
        """
        value = self.raw(name)
        if value is None or any(type(value) is type(one) and value == one for one in allowed):
            return
        raise unsupported(f"'{self.param(name)}': {what}.", self.param(name))
