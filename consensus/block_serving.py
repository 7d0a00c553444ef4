"""Limits on serving stored blocks: concurrent requests, and bytes in one answer. Pure (consensus.md 13.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from consensus.votes import Certificate
from consensus.wire import WINDOW_BYTES_MAX, BlocksReply, decode_certificate

__all__ = ["SERVES_MAX", "SERVES_OF_ONE_MAX", "SERVES_OF_STRANGERS_MAX", "ServingSlots", "window"]

SERVES_MAX: Final = 8
"""Requests for stored blocks that are answered at the same time. More are dropped; the peer asks another node."""
SERVES_OF_ONE_MAX: Final = 2
"""Maximum for one peer. Otherwise one peer could cheaply keep all others from catching up."""
SERVES_OF_STRANGERS_MAX: Final = 6
"""Maximum for all peers without a seat together, so that a validator that is behind is always served."""


class ServingSlots:
    """Counts the requests being answered, by peer; ``is_seat`` tells whether a peer has a seat."""

    def __init__(self, is_seat: Callable[[bytes], bool]) -> None:
        self._is_seat = is_seat
        self._serving: Counter[bytes] = Counter()

    def take(self, asker: bytes) -> bool:
        """Reserve a slot for a peer's request; False when the limits are reached."""
        is_seat = self._is_seat
        strangers = sum([count for known, count in self._serving.items() if not is_seat(known)])
        if (
            self._serving.total() >= SERVES_MAX
            or self._serving[asker] >= SERVES_OF_ONE_MAX
            or (strangers >= SERVES_OF_STRANGERS_MAX and not is_seat(asker))
        ):
            return False
        self._serving[asker] += 1
        return True

    def give_back(self, asker: bytes) -> None:
        """Release a slot."""
        self._serving[asker] -= 1
        if not self._serving[asker]:
            del self._serving[asker]


def window(from_height: int, blocks: Iterable[tuple[bytes, bytes, bytes | None]]) -> BlocksReply | None:
    """Return the answer with final blocks from ``from_height`` on: hash, bytes and stored certificate of each.

    It ends at the last block within the limit that has its own certificate; None if there is none. It never
    crosses the last block of an epoch, which always has one: the receiver may not know the next committee.
    """
    size, raws, end = 0, list[bytes](), 0
    proof: Certificate | None = None
    for block_hash, raw, certificate in blocks:
        size += len(raw)
        if raws and size > WINDOW_BYTES_MAX and end:
            break
        if size > 2 * WINDOW_BYTES_MAX and raws:
            break
        raws.append(raw)
        known = decode_certificate(certificate) if certificate else None
        if known is not None and known.block_hash == block_hash:
            if proof is not None and proof.epoch != known.epoch:
                break
            end, proof = len(raws), known
    return None if proof is None else BlocksReply(from_height, proof, tuple(raws[:end]))
