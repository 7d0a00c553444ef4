"""What a line of prompts says of its own decoding, beside its prompt (market.md R136).

A field that a line has goes before that of the job. Every fault is named with its line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tasks.engines.generating import Own, stop_columns
from tasks.models.errors import RowsInvalid
from tasks.models.rows import text_of
from tasks.programs.generate import STOP_COLUMNS_MAX
from tasks.programs.operators.row_sampling import KEY_COLUMNS, MICRO, TEMPERATURE_MICRO_MAX, key_of
from tasks.programs.operators.scalars import NANO
from tasks.programs.sampling import Sampling
from tasks.programs.tensors import DIMENSION_MAX

__all__ = ["OPTIONS", "RowOptions", "options_of", "own_of"]

SEED_CHARACTERS_MAX: Final = 128
STOPS_MAX: Final = 4
STOP_CHARACTERS_MAX: Final = 256
_INTEGER_MAX: Final = 1 << 63
OPTIONS: Final = ("temperature", "top_p", "top_k", "seed", "max_new_tokens", "stop")


class RowOptions(NamedTuple):
    """What a line says; None where it says nothing. ``temperature`` is in units of 10^-6, ``top_p`` of 10^-9."""

    temperature: int | None = None
    top_p: int | None = None
    top_k: int | None = None
    seed: str | None = None
    max_new_tokens: int | None = None
    stop: tuple[str, ...] | None = None


def options_of(line: int, fields: Mapping[str, Any]) -> tuple[RowOptions, dict[str, Any]]:
    """Return what a line says of its decoding, and its other fields. Raises RowsInvalid."""
    rest = {name: value for name, value in fields.items() if name not in OPTIONS}
    return (
        RowOptions(
            _fraction(line, fields, "temperature", TEMPERATURE_MICRO_MAX // MICRO, MICRO),
            _fraction(line, fields, "top_p", 1, NANO),
            _whole(line, fields, "top_k", 0, DIMENSION_MAX),
            _seed(line, fields),
            _whole(line, fields, "max_new_tokens", 1, DIMENSION_MAX),
            _stops(line, fields),
        ),
        rest,
    )


def own_of(
    one: RowOptions, row: int, *, seed: bytes, new_tokens: int, sampling: Sampling | None, line: int
) -> Own:  # fmt: skip
    """Return the numbers of row ``row``: its own ones, and otherwise those of its job. Raises RowsInvalid."""
    if sampling is not None:
        usual = (sampling.temperature // (NANO // MICRO), sampling.top_p, sampling.top_k)
    else:
        usual = (0, NANO, 0)
    temperature = usual[0] if one.temperature is None else one.temperature
    if not temperature and one.temperature is None and (one.top_p is not None or one.top_k is not None):
        name = "top_p" if one.top_p is not None else "top_k"
        raise RowsInvalid(f"{name}: without a temperature the likeliest token is taken; add temperature", line)
    text = b"\x00" + seed + row.to_bytes(8, "big") if one.seed is None else b"\x01" + one.seed.encode()
    return Own(
        limit=new_tokens if one.max_new_tokens is None else one.max_new_tokens,
        temperature=temperature,
        top_k=(usual[2] if one.top_k is None else one.top_k) or DIMENSION_MAX,
        top_p=usual[1] if one.top_p is None else one.top_p,
        key=key_of(text) if temperature else (0,) * KEY_COLUMNS,
        stops=one.stop or (),
    )


def _fraction(line: int, fields: Mapping[str, Any], name: str, most: int, unit: int) -> int | None:
    if name not in fields:
        return None
    value: Any = fields[name]
    if type(value) not in (int, float) or not 0 <= value <= most:
        raise RowsInvalid(f"{name}: a number from 0 to {most} expected", line)
    found = round(value * unit)
    if abs(found - value * unit) > 1e-3:
        raise RowsInvalid(f"{name}: at most {len(str(unit)) - 1} digits after the point", line)
    return int(found)


def _whole(line: int, fields: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = fields.get(name)
    if name not in fields:
        return None
    if type(value) is not int or not least <= value <= most:
        raise RowsInvalid(f"{name}: a whole number from {least} to {most} expected", line)
    return value


def _seed(line: int, fields: Mapping[str, Any]) -> str | None:
    value = fields.get("seed")
    if "seed" not in fields:
        return None
    if type(value) is int and -_INTEGER_MAX <= value < _INTEGER_MAX:
        return str(value)
    if type(value) is str and 0 < len(value) <= SEED_CHARACTERS_MAX:
        return text_of(line, fields, "seed")
    raise RowsInvalid(f"seed: a whole number or a text of {SEED_CHARACTERS_MAX} characters at most expected", line)


def _stops(line: int, fields: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = fields.get("stop")
    if "stop" not in fields:
        return None
    found = [value] if type(value) is str else value
    if type(found) is not list or len(found) > STOPS_MAX:
        raise RowsInvalid(f"stop: a text, or a list of {STOPS_MAX} texts at most expected", line)
    if not all(type(one) is str and 0 < len(one) <= STOP_CHARACTERS_MAX for one in found):
        raise RowsInvalid(f"stop: texts of 1 to {STOP_CHARACTERS_MAX} characters expected", line)
    stops = tuple(text_of(line, {"stop": one}, "stop") for one in found)
    if stop_columns([stops]) > STOP_COLUMNS_MAX:
        raise RowsInvalid("stop: too many control characters, each takes six bytes", line)
    return stops
