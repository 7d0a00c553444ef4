"""Types of parameters and results: each reads JSON strictly and says in JSON Schema what it takes (rpc.md 4.1).

Conventions of the native namespace: amounts (units of 10^-18 DKB) and other wide integers are decimal strings, as
in the genesis file, because most JSON readers round numbers above 2^53 and people cannot read hex amounts.
Heights, nonces, counts, gas and milliseconds are JSON numbers; hashes and bytes are lower-case 0x hex. Addresses
carry the checksum of EIP-55 on output; on input they may be in one case, or mixed with the right checksum.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from rpc.protocol.errors import RpcError
from state.primitives.address import parse_address
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError

__all__ = [
    "ADDRESS",
    "AMOUNT",
    "BLOCK",
    "BOOLEAN",
    "CURSOR",
    "EARLIEST",
    "HASH",
    "HEIGHT",
    "LIMIT",
    "LIMIT_DEFAULT",
    "LIMIT_MAX",
    "NULL",
    "NUMBER",
    "STRING",
    "Param",
    "ParamType",
    "Schema",
    "array",
    "choice",
    "data",
    "make_cursor",
    "natural",
    "nullable",
    "obj",
    "read_hex",
    "ref",
    "text",
]

Schema = dict[str, Any]
_T = TypeVar("_T")

LIMIT_MAX: Final = 100
LIMIT_DEFAULT: Final = 20
CURSOR_LIMIT_CHARACTERS: Final = 512
SAFE_INTEGER_MAX: Final = 2**53 - 1
EARLIEST: Final = -1
"""Stands for the oldest block that the node keeps."""

NULL: Final[Schema] = {"type": "null"}
STRING: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": SAFE_INTEGER_MAX}
_HASH: Final = re.compile(r"0x[0-9a-fA-F]{64}")


class ParamType(NamedTuple, Generic[_T]):
    """``read`` turns JSON into a value, or raises a ValueError or DecodeError that says what was expected."""

    schema: Schema
    read: Callable[[Any], _T]


class Param(NamedTuple):
    """One parameter of a method; one that is not ``required`` and is absent or null has the value ``default``."""

    name: str
    type: ParamType[Any]
    text: str
    required: bool = True
    default: Any = None

    def read(self, value: Any) -> Any:
        """Return the value of JSON ``value``, which is not null. Raises RpcError."""
        try:
            return self.type.read(value)
        except (ValueError, DecodeError) as error:
            message = f"invalid params: {self.name}: {error}"
            raise RpcError("invalid_params", message, param=self.name) from None


def obj(properties: Mapping[str, Schema], *, optional: Sequence[str] = (), description: str = "") -> Schema:
    """Return the schema of an object with exactly these properties."""
    schema: Schema = {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }
    if description:
        schema["description"] = description
    return schema


def array(items: Schema, *, maximum: int | None = None) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": items} | ({} if maximum is None else {"maxItems": maximum})


def nullable(schema: Schema) -> Schema:
    """Return the schema of a value or null."""
    return {"anyOf": [schema, NULL]}


def ref(name: str) -> Schema:
    """Return a reference to a schema among the components of the OpenRPC document."""
    return {"$ref": f"#/components/schemas/{name}"}


def _read_hash(value: Any) -> bytes:
    if type(value) is not str or not _HASH.fullmatch(value):
        raise ValueError("0x and 64 hex digits expected")
    return bytes.fromhex(value[2:])


def _read_address(value: Any) -> bytes:
    if type(value) is not str:
        raise ValueError("an address expected")
    return parse_address(value)


def _read_boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("true or false expected")
    return value


def _read_amount(value: Any) -> int:
    if (
        type(value) is not str
        or not (value.isascii() and value.isdigit())
        or len(value) > 78
        or value != str(int(value))
    ):
        raise ValueError("an amount as a decimal string without leading zeros expected")
    return int(value)


def _read_block(value: Any) -> int | bytes | None:
    if value == "latest":
        return None
    if value == "earliest":
        return EARLIEST
    if type(value) is int and 0 <= value <= SAFE_INTEGER_MAX:
        return value
    if type(value) is str and _HASH.fullmatch(value):
        return bytes.fromhex(value[2:])
    raise ValueError('a height, a block hash, "latest" or "earliest" expected')


def natural(minimum: int, maximum: int) -> ParamType[int]:
    """Return the type of an integer within bounds."""

    def read(value: Any) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise ValueError(f"an integer from {minimum} to {maximum} expected")
        return value

    return ParamType({"type": "integer", "minimum": minimum, "maximum": maximum}, read)


def read_hex(value: Any, bytes_max: int, bytes_min: int = 0) -> bytes:
    """Return bytes in 0x hex. Raises ValueError."""
    if type(value) is str and 2 * bytes_min <= len(value) - 2 <= 2 * bytes_max and value.startswith("0x"):
        try:
            return binascii.unhexlify(value[2:])  # ``fromhex`` takes twice as long, and spaces
        except ValueError:
            pass
    span = f"{bytes_min} to" if bytes_min else "at most"
    raise ValueError(f"0x and {span} {bytes_max} bytes of hex expected")


def data(bytes_max: int, *, bytes_min: int = 0) -> ParamType[bytes]:
    """Return the type of bytes in 0x hex."""

    times = f"{{{bytes_min},}}" if bytes_min else "*"
    schema = {"type": "string", "pattern": f"^0x([0-9a-fA-F]{{2}}){times}$", "maxLength": 2 + 2 * bytes_max}
    return ParamType(schema, partial(read_hex, bytes_max=bytes_max, bytes_min=bytes_min))


def choice(*names: str) -> ParamType[str]:
    """Return the type of one of some words."""

    def read(value: Any) -> str:
        if type(value) is not str or value not in names:
            raise ValueError(f"one of {', '.join(names)} expected")
        return value

    return ParamType({"type": "string", "enum": list(names)}, read)


def text(characters_max: int) -> ParamType[str]:
    """Return the type of a bounded string."""

    def read(value: Any) -> str:
        if type(value) is not str or len(value) > characters_max:
            raise ValueError(f"a string of at most {characters_max} characters expected")
        return value

    return ParamType({"type": "string", "maxLength": characters_max}, read)


def _read_cursor(value: Any) -> list[Any]:
    if type(value) is not str or len(value) > CURSOR_LIMIT_CHARACTERS:
        raise ValueError("a cursor that this method returned expected")
    try:
        padded = value + "=" * (-len(value) % 4)
        items = decode(
            base64.b64decode(padded, altchars=b"-_", validate=True), limit_bytes=CURSOR_LIMIT_CHARACTERS
        )
    except (binascii.Error, ValueError, DecodeError):
        raise ValueError("a cursor that this method returned expected") from None
    if type(items) is not list:
        raise ValueError("a cursor that this method returned expected")
    return items


def make_cursor(items: list[Value]) -> str:
    """Return an opaque cursor; what a method puts in it, it checks when the cursor comes back."""
    return base64.urlsafe_b64encode(encode(items)).rstrip(b"=").decode()


HASH: Final = ParamType({"type": "string", "pattern": "^0x[0-9a-fA-F]{64}$"}, _read_hash)
ADDRESS: Final = ParamType({"type": "string", "pattern": "^0x[0-9a-fA-F]{40}$"}, _read_address)
BOOLEAN: Final = ParamType({"type": "boolean"}, _read_boolean)
AMOUNT: Final = ParamType({"type": "string", "pattern": "^(0|[1-9][0-9]*)$", "maxLength": 78}, _read_amount)
HEIGHT: Final = natural(0, SAFE_INTEGER_MAX)
LIMIT: Final = natural(1, LIMIT_MAX)
CURSOR: Final = ParamType({"type": "string", "maxLength": CURSOR_LIMIT_CHARACTERS}, _read_cursor)
BLOCK: Final[ParamType[int | bytes | None]] = ParamType(
    {
        "anyOf": [
            NUMBER,
            {"type": "string", "pattern": "^(latest|earliest|0x[0-9a-fA-F]{64})$"},
        ]
    },
    _read_block,
)
