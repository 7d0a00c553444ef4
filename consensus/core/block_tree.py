"""The tree of blocks above the last committed block, by their headers.

Each index exists so that no event visits all blocks: a replica that catches up holds thousands of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from consensus.core.limits import LINEAGE_BLOCKS
from consensus.events import Root
from state.primitives.blocks import Header

__all__ = ["BlockTree"]


class BlockTree:
    """The held blocks of one epoch. ``root`` is the last committed block; ``headers`` are the blocks above it.

    Other parts read ``root``, ``headers`` and ``uncertified``; only the tree changes them.
    """

    def __init__(self, root: Root, last_height: int) -> None:
        self.root = root
        self.last_height = last_height
        """The height at which the epoch ends."""
        self.has_ended = False
        """Whether the epoch's last block is committed."""
        self._headers: dict[bytes, Header] = {}
        self.headers: Mapping[bytes, Header] = self._headers
        self._children: dict[bytes, list[bytes]] = {}
        self._at_height: dict[int, dict[bytes, None]] = {}
        self._uncertified: dict[bytes, None] = {}
        self.uncertified: Mapping[bytes, None] = self._uncertified
        """Held blocks without a certificate of their own or of a descendant."""
        self._lineage: dict[bytes, tuple[bytes, int]] = {}
        """Parent and view of the newest committed blocks of this epoch."""

    def children(self, block_hash: bytes) -> Sequence[bytes]:
        """Return the held blocks whose parent is ``block_hash``."""
        return self._children.get(block_hash, ())

    def height_of(self, block_hash: bytes) -> int:
        """Return the height of the root or of a held block."""
        if block_hash == self.root.block_hash:
            return self.root.height
        return self._headers[block_hash].height

    def origin_of(self, block_hash: bytes) -> tuple[bytes, int] | None:
        """Return the parent and the first view of a block of this epoch, if it is known."""
        header = self._headers.get(block_hash)
        return (header.parent_hash, header.view) if header is not None else self._lineage.get(block_hash)

    def path(self, block_hash: bytes) -> list[bytes] | None:
        """Return the held blocks from the root's child up to ``block_hash``; None when one is missing."""
        path: list[bytes] = []
        while block_hash != self.root.block_hash:
            header = self._headers.get(block_hash)
            if header is None:
                return None
            path.append(block_hash)
            block_hash = header.parent_hash
        path.reverse()
        return path

    def add(self, block_hash: bytes, header: Header, *, is_certified: bool) -> None:
        """Hold a new block above the root."""
        self._headers[block_hash] = header
        self._children.setdefault(header.parent_hash, []).append(block_hash)
        self._at_height.setdefault(header.height, {})[block_hash] = None
        self._uncertified[block_hash] = None
        # Blocks arrive in any order: a certified child, or one with a certified descendant, may be here already.
        if is_certified or any(child not in self._uncertified for child in self._children.get(block_hash, ())):
            self.mark_certified(block_hash)

    def mark_certified(self, block_hash: bytes) -> None:
        """Note that a certificate names the block: the block and its ancestors are kept."""
        while block_hash in self._uncertified:
            del self._uncertified[block_hash]
            block_hash = self._headers[block_hash].parent_hash

    def advance(self, root: Root, path: list[bytes]) -> None:
        """Make ``root`` the last committed block; ``path`` are the held blocks from the old root up to it."""
        self.root = root
        self.has_ended = root.height == self.last_height
        for committed in path[-LINEAGE_BLOCKS:]:
            header = self._headers[committed]
            self._lineage[committed] = (header.parent_hash, header.view)
        while len(self._lineage) > 2 * LINEAGE_BLOCKS:
            del self._lineage[next(iter(self._lineage))]

    def dead_below_root(self, from_height: int) -> tuple[bytes, ...]:
        """Return what can no longer become final, parents first; ``from_height`` was the root's height before."""
        root = self.root
        dead: dict[bytes, int] = {}
        for height in range(from_height + 1, root.height + 2):
            for block_hash in self._at_height.get(height, ()):
                if height <= root.height or self._headers[block_hash].parent_hash != root.block_hash:
                    dead[block_hash] = height
        following = deque(dead)
        while following:
            parent_hash = following.popleft()
            for child in self._children.get(parent_hash, ()):
                height = self._headers[child].height
                if child not in dead and (parent_hash, height) != (root.block_hash, root.height + 1):
                    dead[child] = height
                    following.append(child)
        return tuple(sorted(dead, key=dead.__getitem__))

    def stale_candidates(self, oldest_view: int, promised: Iterable[bytes]) -> tuple[bytes, ...]:
        """Return the uncertified blocks of older views, without the ``promised`` ones and their ancestors."""
        needed: set[bytes] = set()
        for block_hash in promised:
            while block_hash in self._uncertified and block_hash not in needed:
                needed.add(block_hash)
                block_hash = self._headers[block_hash].parent_hash
        return tuple([h for h in self._uncertified if self._headers[h].view < oldest_view and h not in needed])

    def remove(self, block_hash: bytes) -> None:
        """Drop a held block."""
        header = self._headers.pop(block_hash)
        siblings = self._children[header.parent_hash]
        siblings.remove(block_hash)
        if not siblings:
            del self._children[header.parent_hash]
        level = self._at_height[header.height]
        del level[block_hash]
        if not level:
            del self._at_height[header.height]
        self._uncertified.pop(block_hash, None)
