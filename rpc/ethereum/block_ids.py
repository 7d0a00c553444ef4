"""Resolves block parameters to heights and blocks, and renders the genesis, which has no block (rpc.md R11)."""

from __future__ import annotations

from typing import Final

from rpc.ethereum import render
from rpc.ethereum.params import BLOCK, QUANTITY, BlockParam
from rpc.methods.heights import state_unavailable
from rpc.methods.method import Json, NodeApi
from rpc.methods.schema import EARLIEST, HASH, Param
from rpc.protocol.blocks import LoadedBlock
from rpc.protocol.errors import RpcError
from state.primitives.heads import Head

__all__ = [
    "AT_PARAM",
    "BLOCK_PARAM",
    "HASH_PARAM",
    "INDEX_PARAM",
    "block_height",
    "find_block",
    "genesis_at",
    "height_of",
    "oldest_shown",
]

AT_PARAM: Final = Param("block", BLOCK, "A number in hex, a tag, or {blockHash}; absent: latest.", required=False)
BLOCK_PARAM: Final = Param("block", BLOCK, "A number in hex, or a tag.")
HASH_PARAM: Final = Param("blockHash", HASH, "Hash of the block.")
INDEX_PARAM: Final = Param("index", QUANTITY, "Index in the block.")


async def height_of(node: NodeApi, block: BlockParam) -> int:
    """Return the height whose state is asked for. Raises Pruned, HeightUnknown or not_found."""
    head = node.head
    if block is None:
        return head.height
    if isinstance(block, bytes):
        found = await node.height_of(block)
        if found is None:
            raise RpcError("not_found", "header not found")
        height = found
    else:
        height = 0 if block == EARLIEST else block  # the same block that it names elsewhere
    if not head.oldest_state <= height <= head.height:
        raise state_unavailable(head, height)
    return height


def block_height(node: NodeApi, block: BlockParam) -> int:
    """Return the height of a block that is asked for by number or tag."""
    assert not isinstance(block, bytes)
    if block is None:
        return node.head.height
    if block == EARLIEST:
        return oldest_shown(node.head)
    return block


async def find_block(node: NodeApi, block: BlockParam, *, senders: bool = False) -> LoadedBlock | None:
    """Return a block; None for one that there is not, and for the genesis, which has no bytes."""
    height = await node.height_of(block) if isinstance(block, bytes) else block_height(node, block)
    if height is None or not 0 < height <= node.head.height:
        return None
    return await (node.block_with_senders(height) if senders else node.block(height))


def oldest_shown(head: Head) -> int:
    """Return the height of the oldest block that is shown: the genesis where all blocks above it are kept."""
    return head.oldest_block if head.oldest_block > 1 else 0


async def genesis_at(node: NodeApi, block: BlockParam) -> Json:
    """Return what stands for the genesis where ``block`` is that, else None."""
    if isinstance(block, bytes):
        is_genesis = block == node.description.genesis_hash
    else:
        is_genesis = block_height(node, block) == 0
    return render.genesis_block(node.description.genesis_hash, node.description) if is_genesis else None
