"""Bulk connections that a peer opens on request, for a peer that this node cannot reach: offered paths by number.
See network.md 4.6.

Only the peer knows the endpoints of its paths. It offers each as a number with a length, and opens bulk
connections to this node only. This node plans how many to request on which path (``p2p.path.bulk_plan``), because
it has the bulk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from p2p.base.endpoint import Endpoint
from p2p.base.errors import FrameInvalid

__all__ = [
    "ANY_PATH",
    "OFFERED_PATHS_MAX",
    "OfferedPath",
    "PathNumbers",
    "decode_offer",
    "decode_request",
    "encode_offer",
    "encode_request",
]

ANY_PATH: Final = 0
"""Stands for the peer's best path; a request for it is answered with an offer of all paths."""
OFFERED_PATHS_MAX: Final = 16
_NUMBER_MAX: Final = 255
_NUMBERS_MAX: Final = 64
"""Remembered numbers, including paths that are not offered now."""
_RELAYS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class OfferedPath:
    """A path from the peer to this node, by its number in this conversation."""

    number: int
    relays: int

    @property
    def hops(self) -> range:
        """One placeholder for each relay of the path."""
        return range(self.relays)


def encode_offer(paths: Iterable[OfferedPath]) -> bytes:
    """Return the body of an offer of at most OFFERED_PATHS_MAX paths."""
    return b"".join(bytes((path.number, path.relays)) for path in paths)


def decode_offer(body: bytes) -> tuple[OfferedPath, ...]:
    """Return the offered paths, the best first. Raises FrameInvalid."""
    pairs = _pairs(body)
    if any(number == ANY_PATH or relays > _RELAYS_MAX for number, relays in pairs):
        raise FrameInvalid("impossible path number or length")
    return tuple(OfferedPath(number, relays) for number, relays in pairs)


def encode_request(wishes: Mapping[int, int]) -> bytes:
    """Return the body of a request: how many bulk connections on which path."""
    return b"".join(bytes((number, count)) for number, count in wishes.items())


def decode_request(body: bytes) -> dict[int, int]:
    """Return how many bulk connections a peer requests on which path. Raises FrameInvalid."""
    return dict(_pairs(body))


def _pairs(body: bytes) -> list[tuple[int, int]]:
    pairs = list(zip(body[::2], body[1::2], strict=False))
    if len(body) % 2 or len(pairs) > OFFERED_PATHS_MAX or len({number for number, _ in pairs}) != len(pairs):
        raise FrameInvalid("malformed list of paths")
    return pairs


class PathNumbers:
    """The numbers by which a peer may request own paths to it."""

    def __init__(self) -> None:
        self._numbers: dict[Endpoint, int] = {}
        self._offered: dict[int, Endpoint] = {}
        self._last = 0
        self.told: tuple[OfferedPath, ...] | None = None
        """The last offer to the peer."""

    def offer(self, paths: Iterable[Endpoint]) -> tuple[OfferedPath, ...]:
        """Return the paths to offer from now on; a path keeps its number."""
        offered = list(dict.fromkeys(paths))[:OFFERED_PATHS_MAX]
        for path in offered:
            self._numbers[path] = self._numbers.pop(path, 0) or self._free()
        while len(self._numbers) > _NUMBERS_MAX:
            del self._numbers[next(iter(self._numbers))]  # those offered stand last
        self._offered = {self._numbers[path]: path for path in offered}
        return tuple(
            OfferedPath(number, min(len(path.hops), _RELAYS_MAX)) for number, path in self._offered.items()
        )

    def _free(self) -> int:
        taken = set(self._numbers.values())
        while True:
            self._last = self._last % _NUMBER_MAX + 1
            if self._last not in taken:
                return self._last

    @property
    def first(self) -> int:
        """The number of the best path; ANY_PATH if there is none."""
        return next(iter(self._offered), ANY_PATH)

    def number(self, path: Endpoint) -> int:
        """Return the number of an offered path."""
        return self._numbers[path]

    def path(self, number: int) -> Endpoint | None:
        """Return the offered path of a number."""
        return self._offered.get(number)
