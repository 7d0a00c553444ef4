"""The settings of a model's config.json, each read with its type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tasks.models.errors import ModelInvalid, ModelUnsupported
from tasks.programs.operators.scalars import NANO

__all__ = ["CONFIG", "Settings"]

CONFIG: Final = "config.json"


class Settings:
    """The settings of config.json, each read with its type."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        """Tell whether a setting is there."""
        return key in self._values

    def get(self, key: str) -> Any:
        """Return a setting, None if it is not there."""
        return self._values.get(key)

    def number(self, key: str, otherwise: int | None = None) -> int:
        """Return a positive integer. Raises ModelInvalid."""
        value = self._values.get(key)
        if value is None:
            value = otherwise
        if type(value) is not int or not 1 <= value < 1 << 40:
            raise ModelInvalid(f"{key} is not a positive integer", file=CONFIG)
        return value

    def truth(self, key: str, *, otherwise: bool = False) -> bool:
        """Return a truth value, ``otherwise`` if it is not there. Raises ModelInvalid."""
        value = self._values.get(key, otherwise)
        if type(value) is not bool:
            raise ModelInvalid(f"{key} is neither true nor false", file=CONFIG)
        return value

    def nano(self, key: str, otherwise: float | None = None) -> int:
        """Return a number up to 1, in units of 10^-9. Raises ModelInvalid; ModelUnsupported for a finer one."""
        value = self._values.get(key, otherwise)
        if type(value) not in (int, float) or not 0 < value <= 1:
            raise ModelInvalid(f"{key} is not a number between 0 and 1", file=CONFIG)
        found: int = round(value * NANO)
        if abs(found - value * NANO) > 1e-6 * found:
            raise ModelUnsupported(f"{key} {value} is not a multiple of 10^-9", file=CONFIG)
        return found

    def refuse(self, key: str, *allowed: object) -> None:
        """Raises ModelUnsupported if a setting is there and has no value that a program computes."""
        value = self._values.get(key)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            hint = f", {' or '.join(map(str, allowed))} is" if allowed else ""
            raise ModelUnsupported(f"{key} {str(value)[:40]!r} is not supported{hint}", file=CONFIG)
