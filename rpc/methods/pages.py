"""Lists in pages: parameters, cursors, and the error for a cursor of another list (rpc.md R10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from rpc.methods.heights import stamp
from rpc.methods.method import Json, NodeApi
from rpc.methods.schema import CURSOR, LIMIT, LIMIT_DEFAULT, STRING, Param, Schema, make_cursor, natural, nullable
from rpc.protocol.errors import RpcError
from state.view import Reader

__all__ = [
    "CURSOR_PARAM",
    "FIRST_PARAM",
    "LIMIT_PARAM",
    "NEXT_OUT",
    "cursor_mismatch",
    "cursor_of",
    "next_number",
    "number_after",
    "numbered_page",
    "start_of_page",
]

_T = TypeVar("_T")

NUMBER_MAX: Final = 2**32 - 1
"""Last number that a change or a window of a task can have."""
_NUMBER_BYTES: Final = 8

CURSOR_PARAM: Final = Param("cursor", CURSOR, "`next` of the page before.", required=False)
LIMIT_PARAM: Final = Param("limit", LIMIT, "Items of a page.", required=False, default=LIMIT_DEFAULT)
FIRST_PARAM: Final = Param(
    "first", natural(0, NUMBER_MAX), "First number, if no cursor is given.", required=False, default=0
)
NEXT_OUT: Final[Schema] = nullable(STRING)


def cursor_mismatch() -> RpcError:
    """Return the error for a cursor of another method or of other parameters."""
    return RpcError("invalid_params", "invalid params: cursor: not one of this method", param="cursor")


# A cursor of the market names the height that its list is of, so a list never moves under its reader.


def start_of_page(node: NodeApi, subject: bytes, cursor: list[Any] | None) -> tuple[int, bytes | None]:
    """Return the height of the list of ``subject`` and the key after which the page starts. Raises RpcError."""
    match cursor:
        case None:
            return node.head.height, None
        case ["market", bytes(of), int(height), bytes(after)] if of == subject and 0 <= height <= node.head.height:
            return height, after  # a height that is gone by now is answered as pruned
        case _:
            raise cursor_mismatch()


def cursor_of(height: int, subject: bytes, after: bytes | None) -> str | None:
    """Return the cursor of the next page of ``subject``; None after the last page."""
    return None if after is None else make_cursor(["market", subject, height, after])


# What of a task has numbers: a cursor is the number that comes next.


async def numbered_page(
    node: NodeApi, subject: bytes, cursor: list[Any] | None, limit: int, first: int,
    find: Callable[[Reader, bytes, int, int], list[_T]], task: bytes, show: Callable[[_T], Json],
) -> Json:  # fmt: skip
    """Return a page of a task's numbered records, from ``first`` on or after the page before."""
    height, after = start_of_page(node, subject, cursor)
    start = number_after(after, first)
    found = await node.query(height, find, task, start, limit + 1)
    return {
        "at": await stamp(node, height),
        "items": [show(item) for item in found[:limit]],
        "next": cursor_of(height, subject, next_number(start, limit, len(found))),
    }


def number_after(after: bytes | None, first: int = 0) -> int:
    """Return the number that a page begins with."""
    # A cursor comes from outside: one that nobody made names what is not there.
    return first if after is None else min(int.from_bytes(after[:_NUMBER_BYTES], "big"), NUMBER_MAX)


def next_number(start: int, limit: int, found: int) -> bytes | None:
    """Return where the next page begins, None where ``found`` is no more than the ``limit`` of this one."""
    return (start + limit).to_bytes(_NUMBER_BYTES, "big") if found > limit else None
