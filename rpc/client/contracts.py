"""System contracts by name: their functions from the ABI that a gateway publishes, arguments from text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rpc.client.errors import AnswerMalformed
from rpc.client.results import Contract
from state.primitives.abi import AbiValue, Function, Parameter, decode_values, encode_values, revert_data
from state.primitives.address import format_address, parse_address
from state.primitives.errors import ConfigError, DecodeError
from state.transition.calls import SYSTEM_PREFIX

__all__ = ["ContractFunction", "find_function", "functions_of", "parse_argument", "read_revert", "show_value"]

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TYPE: Final = re.compile(r"address|bool|string|bytes(?:[1-9]|[12]\d|3[0-2])?|u?int(?:8|16|32|64|128|256)")
_SELECTOR: Final = revert_data("")[:4]
PARAMETERS_MAX: Final = 64
INTEGER_CHARACTERS_MAX: Final = 80


@dataclass(frozen=True)
class ContractFunction:
    """A function of a system contract."""

    contract: str
    address: bytes
    name: str
    mutability: str
    """``view``, ``nonpayable`` or ``payable``."""
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{p.type} {p.name}' for p in self.inputs)})"

    @property
    def is_view(self) -> bool:
        """Whether it reads only."""
        return self.mutability == "view"

    def encode(self, arguments: Sequence[AbiValue]) -> bytes:
        """Return the call data. Raises ConfigError for other numbers or types of arguments."""
        if len(arguments) != len(self.inputs):
            count = len(self.inputs)
            raise ConfigError(f"{self} takes {count} argument{'s' * (count != 1)}, not {len(arguments)}")
        declared = ", ".join(f"{parameter.type} a{n}" for n, parameter in enumerate(self.inputs))
        try:
            return Function(f"{self.name}({declared})").selector + encode_values(self.inputs, arguments)
        except AssertionError as error:
            raise ConfigError(f"{self}: {error}") from None

    def decode(self, answer: Any) -> dict[str, AbiValue]:
        """Return the results in what a call answered, by name. Raises AnswerMalformed."""
        try:
            values = decode_values(self.outputs, _bytes(answer))
        except (ValueError, DecodeError) as error:
            raise AnswerMalformed(f"{self.contract}.{self.name}: {error}") from None
        return {
            p.name or f"result{n}": value for n, (p, value) in enumerate(zip(self.outputs, values, strict=True))
        }


def functions_of(contract: Contract) -> list[ContractFunction]:
    """Return the functions of a contract.

    Raises AnswerMalformed for an ABI that is none, and for an address that is not the chain's own: what is sent to
    a contract must not go to whomever a gateway names.
    """
    if not contract.address.startswith(SYSTEM_PREFIX):
        raise AnswerMalformed(f"{contract.name}: {format_address(contract.address)} is no system contract")
    found = []
    for item in contract.abi:
        match item:
            case {
                "type": "function",
                "name": str(name),
                "stateMutability": ("view" | "nonpayable" | "payable") as mutability,
                "inputs": list() as inputs,
                "outputs": list() as outputs,
            } if _IDENTIFIER.fullmatch(name):
                parts = _parameters(inputs), _parameters(outputs)
                found.append(ContractFunction(contract.name, contract.address, name, mutability, *parts))
            case {"type": "event"}:
                continue
            case _:
                raise AnswerMalformed(f"{contract.name}: not an ABI")
    return found


def _parameters(items: list[Any]) -> tuple[Parameter, ...]:
    found = []
    for item in items[:PARAMETERS_MAX]:
        match item:
            case {"name": str(name), "type": str(type_)} if _TYPE.fullmatch(type_) and (
                not name or _IDENTIFIER.fullmatch(name)
            ):
                found.append(Parameter(name, type_))
            case _:
                raise AnswerMalformed("not a parameter of an ABI that is supported")
    return tuple(found)


def find_function(contracts: Iterable[Contract], contract: str, function: str) -> ContractFunction:
    """Return a function by the names of its contract and its own. Raises ConfigError."""
    by_name = {item.name: item for item in contracts}
    if contract not in by_name:
        raise ConfigError(f"no contract {contract!r}; there are {', '.join(by_name)}")
    known = {item.name: item for item in functions_of(by_name[contract])}
    if function not in known:
        raise ConfigError(f"{contract} has no function {function!r}; it has {', '.join(map(str, known.values()))}")
    return known[function]


def parse_argument(parameter: Parameter, text: str) -> AbiValue:
    """Return the value of a parameter that ``text`` spells: decimal or 0x integers, true, false, 0x bytes.

    Raises ConfigError.
    """
    type_, words = parameter.type, text.strip()
    try:
        if type_ == "string":
            return text
        if type_ == "bool":
            return {"true": 1, "false": 0}[words.lower()]
        if type_ == "address":
            return parse_address(words)
        if type_.startswith("bytes"):
            data = _bytes(words)
            if type_ != "bytes" and len(data) != int(type_[5:]):
                raise ConfigError(f"{parameter.name}: {type_} expected, not {len(data)} bytes")
            return data
        if len(words) > INTEGER_CHARACTERS_MAX or not words.isascii() or "_" in words:
            raise ValueError
        value = int(words, 16 if words.lower().startswith("0x") else 10)
        encode_values((parameter,), (value,))
        return value
    except (ValueError, KeyError, AssertionError, DecodeError):
        raise ConfigError(f"{parameter.name}: {text[:80]!r} is not a {type_}") from None


def show_value(parameter: Parameter, value: AbiValue) -> str | bool:
    """Return a value of a parameter as JSON and people read it; integers as decimal strings."""
    if parameter.type == "bool":
        return bool(value)
    if isinstance(value, bytes):
        return format_address(value) if parameter.type == "address" else "0x" + value.hex()
    return str(value)


def shown(parameters: Sequence[Parameter], values: Mapping[str, AbiValue]) -> dict[str, str | bool]:
    """Return the results of a call as JSON and people read them."""
    return {
        name: show_value(parameter, value)
        for parameter, (name, value) in zip(parameters, values.items(), strict=True)
    }


def read_revert(data: str | None) -> str | None:
    """Return the reason in the data of a revert, or None."""
    if data is None:
        return None
    try:
        raw = _bytes(data)
        if raw[:4] != _SELECTOR:
            return None
        [reason] = decode_values((Parameter("reason", "string"),), raw[4:])
    except (ValueError, DecodeError):
        return None
    return reason if isinstance(reason, str) else None


def _bytes(text: Any) -> bytes:
    if type(text) is not str or not re.fullmatch(r"0x(?:[0-9a-fA-F]{2})*", text):
        raise ValueError("0x and hex digits expected")
    return bytes.fromhex(text[2:])
