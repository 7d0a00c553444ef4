"""The terms of a request: what may be paid, how long a machine is looked for, and the seed."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from state.primitives.address import parse_address
from state.primitives.amounts import DECIMALS, format_amount
from state.primitives.errors import DecodeError
from tasks.kinds.verifiers import ANYBODY, BOND_MAX, NAMES_MAX, Verifiers
from tasks.requests.fields import JobFields
from tasks.spec import MATCH_MS_MAX, PRICE_MAX

__all__ = ["TERMS", "Terms", "amount_field", "amount_of", "terms_of", "verifiers_of"]

TERMS: Final = ("budget", "max_price", "match_s", "seed", "custody", "verifiers")
ANYBODY_WORD: Final = "anybody"
SEED_LENGTH_MAX: Final = 256
_AMOUNT: Final = re.compile(r"([0-9]{1,24})(?:\.([0-9]{1,18}))? ?DKB")


class Terms(NamedTuple):
    """None: not said. ``budget`` is the most that all tasks of a file cost; ``max_price`` is per 10^12 units.

    ``custody`` says whether drawn machines keep the outputs, ``verifiers`` who may verify the work.
    """

    budget: int | None = None
    max_price: int | None = None
    match_ms: int | None = None
    seed: str | None = None
    custody: bool | None = None
    verifiers: Verifiers = ANYBODY


def amount_of(text: str) -> int | None:
    """Return an amount as in ``2.5 DKB``; None for another text."""
    found = _AMOUNT.fullmatch(text)
    if found is None:
        return None
    return int(found[1]) * 10**DECIMALS + int((found[2] or "").ljust(DECIMALS, "0"))


def terms_of(fields: JobFields) -> Terms:
    """Take the terms out of the fields. Raises RequestInvalid."""
    budget, price = amount_field(fields, "budget", None), amount_field(fields, "max_price", PRICE_MAX)
    match_s = None
    if fields.has("match_s"):
        match_s = fields.whole("match_s", 1)
        if match_s * 1000 > MATCH_MS_MAX:
            raise fields.wrong("match_s", f"match_s: {MATCH_MS_MAX // 1000} seconds at most")
    seed = None
    if fields.has("seed"):
        seed = fields.text("seed")
        if len(seed) > SEED_LENGTH_MAX:
            raise fields.wrong("seed", f"seed: a text of {SEED_LENGTH_MAX} characters at most")
    custody = fields.value("custody") if fields.has("custody") else None
    if custody is not None and type(custody) is not bool:
        raise fields.wrong("custody", "custody: true or false expected")
    verifiers = verifiers_of(fields)
    fields.drop(TERMS)
    return Terms(budget, price, None if match_s is None else match_s * 1000, seed, custody, verifiers)


def verifiers_of(fields: JobFields) -> Verifiers:
    """Return who may verify; anybody where nothing is said. Raises RequestInvalid."""
    if not fields.has("verifiers") or fields.value("verifiers") == ANYBODY_WORD:
        return ANYBODY
    match fields.value("verifiers"):
        case {"bond": str(text), **rest} if not rest and 0 < (amount_of(text) or 0) <= BOND_MAX:
            return Verifiers(amount_of(text) or 0)
        case {"operators": [*names], **rest} if not rest and 0 < len(names) <= NAMES_MAX:
            try:
                return Verifiers(0, tuple(sorted({parse_address(str(name)) for name in names})))
            except DecodeError as error:
                raise fields.wrong("verifiers", f"verifiers.operators: {error}") from None
    raise fields.wrong(
        "verifiers",
        f"verifiers: {ANYBODY_WORD}, {{bond: AMOUNT}} as 100 DKB, or {{operators: [ADDRESS, ...]}} with 1 to "
        f"{NAMES_MAX} addresses expected",
    )


def amount_field(fields: JobFields, name: str, most: int | None) -> int | None:
    """Return an amount, None where it is absent. Raises RequestInvalid."""
    if not fields.has(name):
        return None
    value: Any = fields.value(name)
    amount = amount_of(value) if isinstance(value, str) else None
    if amount is None or amount == 0:
        raise fields.wrong(name, f"{name}: an amount above 0 with its unit expected, as 2.5 DKB")
    if most is not None and amount > most:
        raise fields.wrong(name, f"{name}: {format_amount(most)} at most")
    return amount
