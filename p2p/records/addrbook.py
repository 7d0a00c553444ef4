"""The address book: a bounded table of peer records that an attacker in one part of the network cannot fill.

A keyed hash assigns a record to one of a fixed number of buckets, by its endpoints (the /16 of an IPv4 address,
the /32 of an IPv6 one, a host name, a relay) and by the peer that sent it. So one source reaches only a few
buckets. In a full bucket the least useful record is replaced. A node that was never connected never replaces one
that was.

The endpoints of a record are an unproven claim. Once a node was reached, its bucket is that of the endpoint that
worked. Otherwise one host could appear under names all over the world, and fill all buckets.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from p2p.base.endpoint import Endpoint
from p2p.base.errors import RecordInvalid
from p2p.base.randomness import RandomSource
from p2p.records.records import PeerRecord, verify_record
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError

__all__ = ["ANCHORS_MAX", "BUCKETS", "BUCKET_ENTRIES_MAX", "AddressBook", "group_of"]

BUCKETS: Final = 64
BUCKET_ENTRIES_MAX: Final = 32
_BUCKETS_OF_GROUP: Final = 8
"""Number of buckets that the endpoints of one group can reach, from any source."""
_KEPT_MAX: Final = 512
"""Entries in the file that may exceed full buckets."""
_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
_FAILURES_MAX: Final = 8
ANCHORS_MAX: Final = 2
_ANCHOR: Final = 2
"""Marks an anchor in the file; 1: tried, 0: not."""


@dataclass(slots=True)
class _Entry:
    record: PeerRecord
    bucket: int
    source: bytes
    is_tried: bool = False
    is_anchor: bool = False
    """Connected when the book was last written; dialled first after a restart."""
    failures: int = 0
    changed: int = 0
    """A counter that increases with every change of the book; lower means unchanged for longer."""


class AddressBook:
    """Verified records by address. ``key`` is this node's secret, so no two nodes use the same buckets.

    A record that ``is_kept`` (the committee) is always stored, and never replaced.
    """

    def __init__(
        self, *, key: bytes, genesis_hash: bytes, is_kept: Callable[[bytes], bool] = lambda _address: False
    ) -> None:
        self._key = key
        self._is_kept = is_kept
        self._genesis_hash = genesis_hash
        self._entries: dict[bytes, _Entry] = {}
        self._sizes = [0] * BUCKETS
        self._changes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, address: object) -> bool:
        return address in self._entries

    def get(self, address: bytes) -> PeerRecord | None:
        """Return the newest record known of an address."""
        entry = self._entries.get(address)
        return None if entry is None else entry.record

    def add(self, record: PeerRecord, *, source: bytes) -> bool:
        """Add a verified record from ``source`` (an address, or empty for this node).

        Returns whether it was added. An older record of the address is not, nor one without room in its bucket.
        """
        entry = self._entries.get(record.address)
        if entry is not None:
            if not record.supersedes(entry.record):
                return False
            entry.record = record
            self._touch(entry)
            return True
        if not record.endpoints:
            return False
        bucket = self._bucket(record.endpoints[0], source)
        if not self._has_room(bucket) and not self._is_kept(record.address):
            return False
        entry = self._entries[record.address] = _Entry(record, bucket, source)
        self._sizes[bucket] += 1
        self._touch(entry)
        return True

    def succeeded(self, address: bytes, endpoint: Endpoint | None = None) -> None:
        """Note a successful connection to the address at this endpoint.

        If tried nodes fill its bucket there, it is dropped: enough nodes of that network are known.
        """
        entry = self._entries.get(address)
        if entry is None:
            return
        entry.is_tried, entry.failures = True, 0
        self._touch(entry)
        if endpoint is None or endpoint.is_punched:
            return  # nobody names such a place
        bucket = self._bucket(endpoint, entry.source)
        if bucket != entry.bucket:
            if not self._has_room(bucket) and not self._is_kept(address):
                self.remove(address)
                return
            self._sizes[entry.bucket] -= 1
            self._sizes[bucket] += 1
            entry.bucket = bucket

    def failed(self, address: bytes) -> None:
        """Note a failed connection attempt."""
        entry = self._entries.get(address)
        if entry is not None:
            entry.failures += 1
            if entry.failures >= _FAILURES_MAX:
                self.remove(address)

    def has_met(self, address: bytes) -> bool:
        """Whether a connection to the address was ever made."""
        entry = self._entries.get(address)
        return entry is not None and entry.is_tried

    def remove(self, address: bytes) -> None:
        """Remove an address."""
        entry = self._entries.pop(address, None)
        if entry is not None:
            self._sizes[entry.bucket] -= 1

    def expire(self, now_ms: int) -> None:
        """Remove expired records."""
        for address in [a for a, e in self._entries.items() if e.record.expiry_ms <= now_ms]:
            self.remove(address)

    def candidates(self, random: RandomSource, *, exclude: Iterable[bytes]) -> list[bytes]:
        """Return addresses to dial, in a random order that prefers few failures and mixes the buckets."""
        excluded = set(exclude)
        entries = [(address, entry) for address, entry in self._entries.items() if address not in excluded]
        random.shuffle(entries)
        taken = [0] * BUCKETS
        ranked: list[tuple[int, int, bool, int, bytes]] = []
        for address, entry in entries:
            ranked.append((entry.failures, taken[entry.bucket], not entry.is_tried, len(ranked), address))
            taken[entry.bucket] += 1
        return [address for *_, address in sorted(ranked)]

    @property
    def anchors(self) -> list[bytes]:
        """Return the peers to reconnect to first, so that a forced restart does not change the peers."""
        return [address for address, entry in self._entries.items() if entry.is_anchor]

    def set_anchors(self, addresses: Iterable[bytes]) -> None:
        """Set the anchors; at most ANCHORS_MAX are kept."""
        kept = list(addresses)[:ANCHORS_MAX]
        for address, entry in self._entries.items():
            entry.is_anchor = address in kept

    def untried(self, random: RandomSource, *, exclude: Iterable[bytes]) -> bytes | None:
        """Return an untried address, for a feeler."""
        excluded = set(exclude)
        found = [a for a, e in self._entries.items() if not e.is_tried and not e.failures and a not in excluded]
        return random.choice(sorted(found)) if found else None

    def sample(self, random: RandomSource, count: int) -> list[PeerRecord]:
        """Return records for a peer that requests some."""
        addresses = sorted(self._entries)
        chosen = random.sample(addresses, min(count, len(addresses)))
        return [self._entries[address].record for address in chosen]

    def records(self) -> Iterator[PeerRecord]:
        """Yield every record."""
        return (entry.record for entry in self._entries.values())

    def encode(self) -> bytes:
        """Return the content of the file."""
        items: list[Value] = [
            [e.record.data, _ANCHOR if e.is_anchor else int(e.is_tried)] for e in self._entries.values()
        ]
        return encode(items)

    def load(self, data: bytes, *, now_ms: int) -> None:
        """Add the file's records that are still valid.

        Raises DecodeError for a file that is not an address book.
        """
        items = decode(data, limit_bytes=_FILE_BYTES_MAX)
        if not isinstance(items, list) or len(items) > BUCKETS * BUCKET_ENTRIES_MAX + _KEPT_MAX:
            raise DecodeError("not an address book")
        for item in items:
            match item:
                case [bytes(record), 0 | 1 | 2 as rank]:
                    try:
                        found = verify_record(record, genesis_hash=self._genesis_hash, now_ms=now_ms)
                    except RecordInvalid:
                        continue  # expired meanwhile
                    # Spread as what many have told: who told of it is not kept, and was this node before.
                    if self.add(found, source=found.address) and rank:
                        self.succeeded(found.address)
                        self._entries[found.address].is_anchor = (
                            rank == _ANCHOR and len(self.anchors) < ANCHORS_MAX
                        )
                case _:
                    raise DecodeError("not an address book")

    def _touch(self, entry: _Entry) -> None:
        self._changes += 1
        entry.changed = self._changes

    def _bucket(self, endpoint: Endpoint, source: bytes) -> int:
        group = group_of(endpoint)
        slot = self._hash(group + b"\0" + source) % _BUCKETS_OF_GROUP
        return self._hash(group + b"\1" + bytes((slot,))) % BUCKETS

    def _hash(self, data: bytes) -> int:
        return int.from_bytes(blake2b(data, digest_size=8, key=self._key, person=b"address book").digest(), "big")

    def _has_room(self, bucket: int) -> bool:
        """Whether a bucket has room, made by evicting its least useful entry if need be."""
        if self._sizes[bucket] < BUCKET_ENTRIES_MAX:
            return True
        entries = [(a, e) for a, e in self._entries.items() if e.bucket == bucket and not self._is_kept(a)]
        worst = min(entries, key=lambda item: (item[1].is_tried, -item[1].failures, item[1].changed), default=None)
        if worst is None or (worst[1].is_tried and not worst[1].failures):
            return False
        self.remove(worst[0])
        return True


def group_of(endpoint: Endpoint) -> bytes:
    """Return the part of the network of an endpoint."""
    if endpoint.relay is not None:
        return b"relay " + endpoint.relay
    try:
        address = ipaddress.ip_address(endpoint.host)
    except ValueError:
        return b"host " + endpoint.host.encode()
    return address.packed[: 2 if address.version == 4 else 4]
