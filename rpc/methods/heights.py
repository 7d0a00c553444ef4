"""The height of a query, and the block reference (height and hash) of its answer."""

from __future__ import annotations

from typing import Final

from rpc.methods.method import Json, NodeApi
from rpc.methods.render import at, hexed
from rpc.methods.schema import HEIGHT, Param
from rpc.protocol.errors import HeightUnknown, Pruned
from state.primitives.heads import Head

__all__ = ["AT_HEIGHT", "found_at", "stamp", "state_height", "state_unavailable"]

AT_HEIGHT: Final = Param("height", HEIGHT, "The state after this block; absent: the newest.", required=False)


def state_height(node: NodeApi, height: int | None) -> int:
    """Return the height that a state query is for. Raises Pruned or HeightUnknown."""
    head = node.head
    if height is None:
        return head.height
    if not head.oldest_state <= height <= head.height:
        raise state_unavailable(head, height)
    return height


def state_unavailable(head: Head, height: int) -> HeightUnknown | Pruned:
    """Return the error for a height without a readable state."""
    if height > head.height:
        return HeightUnknown(height=height, newest_height=head.height)
    return Pruned(height=height, oldest_height=head.oldest_state)


async def stamp(node: NodeApi, height: int) -> Json:
    """Return the stamp of an answer that holds for ``height``."""
    head = node.head
    if height == head.height:
        return at(head)
    return {"height": height, "hash": hexed(await node.hash_of(height))}


def found_at(node: NodeApi, asked_at: Head, found: Json) -> Json:
    """Return the block reference of a search that began at ``asked_at``.

    A block that arrived during the search may contain what was not found.
    """
    return at(asked_at if found is None else node.head)
