"""Typed data as wallets sign it (EIP-712), read strictly: every member of the document is signed.

Refused, although some wallets accept it: unknown, missing or duplicate members, null for a struct, numbers that
do not fit their type, and a message if only the domain is signed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from state.primitives.address import parse_address
from state.primitives.errors import DecodeError
from state.primitives.hashing import keccak

__all__ = ["TYPED_DATA_LIMIT_BYTES", "TypedData", "parse_typed_data"]

TYPED_DATA_LIMIT_BYTES: Final = 256 * 1024
TYPES_MAX: Final = 64
MEMBERS_MAX: Final = 64
DEPTH_MAX: Final = 32
INTEGER_CHARACTERS_MAX: Final = 80
_DOMAIN: Final = "EIP712Domain"
_DOMAIN_MEMBERS: Final = {
    "name": "string", "version": "string", "chainId": "uint256", "verifyingContract": "address", "salt": "bytes32",
}  # fmt: skip
_IDENTIFIER: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]{0,127}")
_ATOM: Final = re.compile(r"address|bool|string|bytes(?:[1-9]|[12][0-9]|3[0-2])?|u?int(?:[0-9]{1,3})")
_ARRAY: Final = re.compile(r"(.+)\[([0-9]{0,5})\]")
_INTEGER: Final = re.compile(r"-?[0-9]+|0x[0-9a-fA-F]+")
_HEX: Final = re.compile(r"0x(?:[0-9a-fA-F]{2})*")
_WORD: Final = 32
_Types = Mapping[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class TypedData:
    """A document whose ``digest`` is what is signed."""

    primary_type: str
    domain: Mapping[str, Any]
    message: Mapping[str, Any]
    digest: bytes


def parse_typed_data(text: str) -> TypedData:
    """Return the typed data in a JSON document. Raises DecodeError naming what is wrong."""
    if len(text) > TYPED_DATA_LIMIT_BYTES:
        raise DecodeError(f"typed data: more than {TYPED_DATA_LIMIT_BYTES} characters")
    try:
        document = json.loads(text, object_pairs_hook=_members)
    except (ValueError, RecursionError):
        raise DecodeError("typed data: not a JSON document") from None
    match document:
        case {"types": dict() as listed, "primaryType": str(primary), "domain": dict() as domain,
              "message": dict() as message} if len(document) == 4:  # fmt: skip
            pass
        case _:
            raise DecodeError("typed data: types, primaryType, domain and message are expected")
    types = _types(listed)
    if _DOMAIN not in types:
        unknown = set(domain) - set(_DOMAIN_MEMBERS)
        if unknown:
            raise DecodeError(f"typed data: the domain has no {min(unknown)!r}"[:200])
        types = {**types, _DOMAIN: tuple((n, t) for n, t in _DOMAIN_MEMBERS.items() if n in domain)}
    if primary not in types:
        raise DecodeError("typed data: the primary type is not among the types")
    coder = _Coder(types)
    digest = b"\x19\x01" + coder.hash_struct(_DOMAIN, domain, 0)
    if primary != _DOMAIN:
        digest += coder.hash_struct(primary, message, 0)
    elif message:
        raise DecodeError("typed data: a message, where the domain alone is signed")
    return TypedData(primary, domain, message, keccak(digest))


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of the document. Raises DecodeError for duplicate members."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise DecodeError("typed data: two members of one name")
    return members


def _types(listed: Mapping[str, Any]) -> dict[str, tuple[tuple[str, str], ...]]:
    if len(listed) > TYPES_MAX:
        raise DecodeError(f"typed data: more than {TYPES_MAX} types")
    types = {}
    for name, members in listed.items():
        if _IDENTIFIER.fullmatch(name) is None or _ATOM.fullmatch(name) or type(members) is not list:
            raise DecodeError("typed data: not a type")
        if len(members) > MEMBERS_MAX:
            raise DecodeError(f"typed data: more than {MEMBERS_MAX} members")
        found = []
        for member in members:
            match member:
                case {"name": str(label), "type": str(kind)} if len(member) == 2 and _IDENTIFIER.fullmatch(label):
                    found.append((label, kind))
                case _:
                    raise DecodeError(f"typed data: {name}: not a member")
        if len({label for label, _ in found}) != len(found):
            raise DecodeError(f"typed data: {name}: two members of one name")
        types[name] = tuple(found)
    for name, pairs in types.items():
        for label, kind in pairs:
            base = _base(kind)
            if base not in types and not _is_atom(base):
                raise DecodeError(f"typed data: {name}.{label}: no such type")
    return types


def _base(kind: str) -> str:
    for _ in range(DEPTH_MAX):
        found = _ARRAY.fullmatch(kind)
        if found is None:
            return kind
        kind = found[1]
    raise DecodeError("typed data: too many dimensions")


def _is_atom(kind: str) -> bool:
    if _ATOM.fullmatch(kind) is None:
        return False
    bits = kind.removeprefix("u").removeprefix("int") if "int" in kind else ""
    return not bits or (bits[0] != "0" and int(bits) % 8 == 0 and 8 <= int(bits) <= 256)


class _Coder:
    def __init__(self, types: _Types) -> None:
        self._types = types
        self._hashes: dict[str, bytes] = {}

    def hash_struct(self, name: str, value: Any, depth: int) -> bytes:
        members = self._types[name]
        if depth > DEPTH_MAX:
            raise DecodeError("typed data: nested too deeply")
        if type(value) is not dict or set(value) != {label for label, _ in members}:
            raise DecodeError(f"typed data: {name}: exactly the members of its type are expected")
        parts = [self._type_hash(name)]
        for label, kind in members:
            try:
                parts.append(self._word(kind, value[label], depth))
            except _Unfit:
                raise DecodeError(f"typed data: {name}.{label} is not a {kind}"[:200]) from None
        return keccak(b"".join(parts))

    def _type_hash(self, name: str) -> bytes:
        known = self._hashes.get(name)
        if known is None:
            needed = self._needed(name)
            order = [name, *sorted(needed - {name})]
            spelled = (f"{n}({','.join(f'{kind} {label}' for label, kind in self._types[n])})" for n in order)
            known = self._hashes[name] = keccak("".join(spelled).encode())
        return known

    def _needed(self, name: str) -> set[str]:
        found, waiting = {name}, [name]
        while waiting:
            for _, kind in self._types[waiting.pop()]:
                base = _base(kind)
                if base in self._types and base not in found:
                    found.add(base)
                    waiting.append(base)
        return found

    def _word(self, kind: str, value: Any, depth: int) -> bytes:
        array = _ARRAY.fullmatch(kind)
        if array is not None:
            if type(value) is not list or (array[2] and len(value) != int(array[2])):
                raise _Unfit
            return keccak(b"".join(self._word(array[1], item, depth + 1) for item in value))
        if kind in self._types:
            return self.hash_struct(kind, value, depth + 1)
        return _atom(kind, value)


class _Unfit(Exception):
    """A value that is not of its type."""


def _atom(kind: str, value: Any) -> bytes:
    if kind == "string":
        if type(value) is not str:
            raise _Unfit
        try:
            return keccak(value.encode())
        except UnicodeEncodeError:  # JSON can spell halves of characters
            raise _Unfit from None
    if kind == "bool":
        if type(value) is not bool:
            raise _Unfit
        return int(value).to_bytes(_WORD, "big")
    if kind == "address":
        try:
            return bytes(12) + parse_address(value if type(value) is str else "")
        except DecodeError:
            raise _Unfit from None
    if kind.startswith("bytes"):
        if type(value) is not str or _HEX.fullmatch(value) is None:
            raise _Unfit
        data = bytes.fromhex(value[2:])
        if kind == "bytes":
            return keccak(data)
        if len(data) != int(kind[5:]):
            raise _Unfit
        return data.ljust(_WORD, b"\0")
    number = _integer(value)
    bits, is_signed = int(kind.lstrip("uint") or 256), kind[0] == "i"
    low, high = (-(1 << bits - 1), 1 << bits - 1) if is_signed else (0, 1 << bits)
    if not low <= number < high:
        raise _Unfit
    return number.to_bytes(_WORD, "big", signed=is_signed)


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is not str or len(value) > INTEGER_CHARACTERS_MAX or _INTEGER.fullmatch(value) is None:
        raise _Unfit
    return int(value, 16 if value.startswith("0x") else 10)
