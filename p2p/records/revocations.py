"""The newest node certificate known of each address, so that older ones are refused; without I/O.

See network.md 2.3.

A certificate with a higher sequence revokes the lower ones. A thief of a node's keys has a certificate that is
valid for up to 30 days. It must be refused also while the owner is not connected, and after a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from p2p.secure.identity import NodeCertificate
from p2p.secure.noise import KEY_BYTES
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError

__all__ = ["REVOCATIONS_BYTES_MAX", "Revocations"]

KNOWN_MAX: Final = 8_192
REVOCATIONS_BYTES_MAX: Final = 1024 * 1024


class _Newest(NamedTuple):
    sequence: int
    static_key: bytes
    not_after_ms: int
    """When it expires. The certificates that it revokes were issued earlier and have then expired too."""


class Revocations:
    """Proven certificates until they expire, of at most KNOWN_MAX addresses.

    Anybody can create any number of addresses. Beyond the limit, addresses without a connection are dropped first,
    and never one that ``is_kept`` (the committee).
    """

    def __init__(
        self, *, is_kept: Callable[[bytes], bool] = lambda _address: False, known_max: int = KNOWN_MAX
    ) -> None:
        self._is_kept = is_kept
        self._known_max = known_max
        self._met: OrderedDict[bytes, _Newest] = OrderedDict()
        self._heard: OrderedDict[bytes, _Newest] = OrderedDict()
        self.has_changed = False
        """Whether there are changes to save."""

    def __len__(self) -> int:
        return len(self._met) + len(self._heard)

    def is_revoked(self, address: bytes, certificate: NodeCertificate) -> bool:
        """Whether a later certificate of the address has other keys."""
        newest = self._met.get(address) or self._heard.get(address)
        return (
            newest is not None
            and newest.sequence > certificate.sequence
            and newest.static_key != certificate.static_key
        )

    def note(self, address: bytes, certificate: NodeCertificate, *, is_met: bool) -> bool:
        """Note a verified certificate, from a handshake or from a record.

        Returns whether it has other keys than the newest one known before, which it revokes.
        """
        known = self._met.get(address) or self._heard.get(address)
        newest = _Newest(certificate.sequence, certificate.static_key, certificate.not_after_ms)
        if known is not None and known.sequence >= newest.sequence:
            newest = known
        self.has_changed |= newest != known
        if is_met or address in self._met:
            self._heard.pop(address, None)
            self._met[address] = newest
            if is_met:
                self._met.move_to_end(address)
        else:
            self._heard[address] = newest
        self._bound()
        return known is not None and newest.static_key != known.static_key

    def expire(self, now_ms: int) -> None:
        """Remove expired certificates."""
        for known in (self._met, self._heard):
            for address in [address for address, newest in known.items() if newest.not_after_ms <= now_ms]:
                del known[address]
                self.has_changed = True

    def encode(self) -> bytes:
        """Return the content of the file."""
        self.has_changed = False
        items: list[Value] = [
            [address, *newest, is_met]
            for is_met, known in ((1, self._met), (0, self._heard))
            for address, newest in known.items()
        ]
        return encode(items)

    def load(self, data: bytes, *, now_ms: int) -> None:
        """Add the file's certificates that are still valid. Raises DecodeError; nothing is then added."""
        items = decode(data, limit_bytes=REVOCATIONS_BYTES_MAX)
        if not isinstance(items, list) or len(items) > self._known_max:
            raise DecodeError("not a list of known certificates")
        found: list[tuple[bytes, _Newest, int]] = []
        for item in items:
            match item:
                case [bytes(address), int(sequence), bytes(static_key), int(not_after_ms), 0 | 1 as is_met] if (
                    (len(address), len(static_key)) == (ADDRESS_BYTES, KEY_BYTES)
                    and 0 <= sequence < 2**63
                    and 0 <= not_after_ms < 2**63
                ):
                    found.append((address, _Newest(sequence, static_key, not_after_ms), is_met))
                case _:
                    raise DecodeError("not a list of known certificates")
        for address, newest, is_met in found:
            if newest.not_after_ms > now_ms and address not in self._met and address not in self._heard:
                (self._met if is_met else self._heard)[address] = newest

    def _bound(self) -> None:
        while len(self) > self._known_max:
            if not (self._drop_loose(self._heard) or self._drop_loose(self._met)):
                (self._heard or self._met).popitem(last=False)

    def _drop_loose(self, known: OrderedDict[bytes, _Newest]) -> bool:
        """Drop the first one that is not kept, if any.

        Those passed over move to the end, so none is passed twice.
        """
        for _ in range(len(known)):
            address = next(iter(known))
            if not self._is_kept(address):
                del known[address]
                return True
            known.move_to_end(address)
        return False
