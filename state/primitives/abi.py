"""Call data as Solidity's tools make it: functions, their selectors and arguments, and the data of a revert.

See chain.md 6.3.

The types are those of the system contracts: integers, ``bool``, ``address``, ``bytes32`` and its shorter kin, and
``bytes`` and ``string``. Reading is strict: only what encoding the values again gives is accepted, so an argument
has one spelling, nothing follows the last, and the unused part of a word is zero.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.errors import DecodeError
from state.primitives.hashing import keccak

__all__ = [
    "CALL_LIMIT_BYTES",
    "SELECTOR_BYTES",
    "AbiValue",
    "Function",
    "Parameter",
    "decode_values",
    "encode_values",
    "revert_data",
]

AbiValue = int | bytes | str
"""What an argument is here: ``bool`` and every integer an int, ``address`` 20 bytes, ``string`` a str."""

SELECTOR_BYTES: Final = 4
CALL_LIMIT_BYTES: Final = 64 * 1024
_WORD: Final = 32
_DECLARATION: Final = re.compile(r"([A-Za-z_]\w*)\(([^()]*)\)")
_TYPE: Final = re.compile(r"address|bool|string|bytes(?:[1-9]|[12]\d|3[0-2])?|u?int(?:8|16|32|64|128|256)")
_ERROR: Final = keccak(b"Error(string)")[:SELECTOR_BYTES]


class Parameter(NamedTuple):
    """A named argument; ``type`` as Solidity writes it, integers with their width."""

    name: str
    type: str

    @property
    def is_dynamic(self) -> bool:
        """Whether the head has an offset to the value in the tail."""
        return self.type in ("bytes", "string")


class Function:
    """A function declared as in Solidity: ``Function("stake(uint256 amount, bytes32 voteKey)")``.

    ``results`` are the types of what a view returns, declared alike: ``"(uint256 amount, uint64 nonce)"``.
    """

    __slots__ = ("name", "parameters", "results", "selector", "signature")

    def __init__(self, declaration: str, results: str = "()") -> None:
        found = _DECLARATION.fullmatch(declaration)
        returned = _DECLARATION.fullmatch("r" + results)
        if found is None or returned is None:
            raise AssertionError(f"not a declaration: {declaration} {results}")
        self.name: Final = found[1]
        self.parameters: Final = _parameters(found[2])
        self.results: Final = _parameters(returned[2])
        self.signature: Final = f"{self.name}({','.join(parameter.type for parameter in self.parameters)})"
        self.selector: Final = keccak(self.signature.encode())[:SELECTOR_BYTES]

    def __repr__(self) -> str:
        return f"Function({self.signature})"

    def encode(self, *values: AbiValue) -> bytes:
        """Return the call data with ``values``, which are of the declared types."""
        return self.selector + encode_values(self.parameters, values)

    def decode(self, data: bytes) -> list[AbiValue]:
        """Return the arguments of call data. Raises DecodeError."""
        if data[:SELECTOR_BYTES] != self.selector:
            raise DecodeError(f"not a call of {self.name}")
        return decode_values(self.parameters, data[SELECTOR_BYTES:])


def _parameters(text: str) -> tuple[Parameter, ...]:
    found = []
    for part in text.split(",") if text.strip() else ():
        type_, name = part.split()
        if _TYPE.fullmatch(type_) is None:
            raise AssertionError(f"not a type of a system contract: {type_}")
        found.append(Parameter(name, type_))
    return tuple(found)


def encode_values(parameters: Sequence[Parameter], values: Sequence[AbiValue]) -> bytes:
    """Return heads and tails of ``values``. An AssertionError is a value that is not of its type."""
    head, tail = [], []
    at = _WORD * len(parameters)
    for parameter, value in zip(parameters, values, strict=True):
        if parameter.is_dynamic:
            content = value.encode() if isinstance(value, str) else value
            assert isinstance(content, bytes), f"{parameter.name} is {parameter.type}"
            padded = content.ljust(-(-len(content) // _WORD) * _WORD, b"\0")
            head.append(at.to_bytes(_WORD, "big"))
            tail.append(len(content).to_bytes(_WORD, "big") + padded)
            at += _WORD + len(padded)
        else:
            head.append(_word(parameter.type, value))
    return b"".join(head + tail)


def decode_values(parameters: Sequence[Parameter], data: bytes) -> list[AbiValue]:
    """Decode ``data``, which must be the canonical ABI encoding. Raises DecodeError."""
    if len(data) > CALL_LIMIT_BYTES:
        raise DecodeError(f"call data of {len(data)} bytes, limit {CALL_LIMIT_BYTES}")
    if len(data) < _WORD * len(parameters):
        raise DecodeError("call data that ends before its last argument")
    values: list[AbiValue] = []
    for number, parameter in enumerate(parameters):
        word = data[number * _WORD : (number + 1) * _WORD]
        if parameter.is_dynamic:
            at = int.from_bytes(word, "big")
            size = int.from_bytes(data[at : at + _WORD], "big") if at <= len(data) - _WORD else len(data)
            content = data[at + _WORD : at + _WORD + size]
            values.append(_text(content) if parameter.type == "string" else content)
        else:
            values.append(_value(parameter.type, word))
    # What was read beyond the end, overlaps, is not in its order or has something after it encodes otherwise.
    if encode_values(parameters, values) != data:
        raise DecodeError("call data that is not the one encoding of its arguments")
    return values


def revert_data(reason: str) -> bytes:
    """Return what a reverted call carries for ``reason``: the selector of Error(string) and the text."""
    return _ERROR + encode_values((Parameter("reason", "string"),), (reason,))


def _bits(type_: str) -> int:
    return 1 if type_ == "bool" else int(type_.lstrip("uint"))


def _word(type_: str, value: AbiValue) -> bytes:
    if type_ == "address" and isinstance(value, bytes) and len(value) == ADDRESS_BYTES:
        return bytes(_WORD - ADDRESS_BYTES) + value
    if type_.startswith("bytes") and isinstance(value, bytes) and len(value) == int(type_[5:]):
        return value.ljust(_WORD, b"\0")
    if type_[0] in "ub" and isinstance(value, int) and 0 <= value < 1 << _bits(type_):
        return int(value).to_bytes(_WORD, "big")
    if type_[0] == "i" and isinstance(value, int) and -(1 << _bits(type_) - 1) <= value < 1 << _bits(type_) - 1:
        return value.to_bytes(_WORD, "big", signed=True)
    raise AssertionError(f"{value!r} is not a {type_}")


def _value(type_: str, word: bytes) -> AbiValue:
    if type_ == "address":
        return word[_WORD - ADDRESS_BYTES :]
    if type_.startswith("bytes"):
        return word[: int(type_[5:])]
    bits, number = _bits(type_), int.from_bytes(word, "big", signed=type_[0] == "i")
    if type_[0] == "i":
        return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)  # what does not fit encodes otherwise
    return number % (1 << bits)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise DecodeError("a string that is not UTF-8") from None
