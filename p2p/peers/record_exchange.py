"""Publishes and renews the own peer record; requests, verifies and keeps those of others.

See network.md 2.5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf
from pathlib import Path
from typing import Final

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.errors import PeerUnreachable, RecordInvalid, RecordOutOfTime, RequestFailed, RequestRefused
from p2p.base.limits import NetworkLimits
from p2p.base.randomness import RandomSource
from p2p.gossip.core import Verdict
from p2p.records.addrbook import AddressBook
from p2p.records.records import RECORD_BYTES_MAX, PeerRecord, sign_record, verify_record
from p2p.records.revocations import REVOCATIONS_BYTES_MAX, Revocations
from p2p.secure.identity import Identity, NodeCertificate
from p2p.session.peer import Peer
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, ProtocolError
from state.primitives.token_bucket import RateLimiter

__all__ = ["METHOD_PEERS", "TOPIC_RECORD", "RecordExchange"]

METHOD_PEERS: Final = "peers"
TOPIC_RECORD: Final = "record"
"""The gossip topic of peer records."""
_BOOK_BYTES_MAX: Final = 4 * 1024 * 1024
_SAVE_INTERVAL_S: Final = 60.0
_RECORD_INTERVAL_S: Final = 1_800.0
_OUTDONE_INTERVAL_S: Final = 60.0
"""Minimum interval of new signatures because others know a later own record: the clock was set back, or the
identity runs twice."""
_SEQUENCE_MAX: Final = 2**62


class RecordExchange:
    """The known peer records, and the own one.

    ``publish`` gossips a record. ``blame`` takes points from a peer whose answer broke a rule. The newest
    certificate of an address that ``is_kept`` is never dropped.
    """

    def __init__(
        self,
        book: AddressBook,
        *,
        path: Path | None,
        identity: Callable[[], Identity],
        limits: NetworkLimits,
        random: RandomSource,
        now_ms: Callable[[], int],
        publish: Callable[[bytes], None],
        blame: Callable[[bytes], None],
        is_kept: Callable[[bytes], bool],
        log: Callable[..., None],
    ) -> None:
        self.book = book
        self.own: PeerRecord | None = None
        """Our own record, once it has been signed."""
        self._told = -1
        """The highest own sequence known to others; an earlier run of this node may have published it."""
        self._path = path
        self._certificates = None if path is None else path.with_name("certificates")
        self._identity = identity
        self._limits = limits
        self._random = random
        self._now_ms = now_ms
        self._publish = publish
        self._blame = blame
        self._on_news: Callable[[], None] = lambda: None
        self._is_kept = is_kept
        self._on_revoked: Callable[[bytes], None] = lambda _address: None
        self._revocations = Revocations(is_kept=is_kept)
        self._log = log
        self._endpoints: dict[str, tuple[Endpoint, ...]] = {}
        self._record_rate = RateLimiter(per_s=limits.records_per_peer_per_s, burst=limits.records_per_peer_burst)
        self._stranger_rate = RateLimiter(
            per_s=limits.unknown_authors_per_peer_per_s, burst=limits.unknown_authors_per_peer_burst
        )
        self._author_rate = RateLimiter(
            per_s=limits.records_per_author_per_s, burst=limits.records_per_author_burst
        )
        self._exchange_rate = RateLimiter(per_s=2 / limits.exchange_interval_s, burst=4)

    def watch(self, *, on_news: Callable[[], None], on_revoked: Callable[[bytes], None]) -> None:
        """Call ``on_news()`` when the book has grown, and ``on_revoked(address)`` when an address has new keys."""
        self._on_news, self._on_revoked = on_news, on_revoked

    def advertise(self, source: str, endpoints: tuple[Endpoint, ...]) -> bool:
        """Set where this node is reachable by way of ``source``; return whether that is new."""
        is_new = self._endpoints.get(source, ()) != endpoints
        if endpoints:
            self._endpoints[source] = endpoints
        else:
            self._endpoints.pop(source, None)  # a relay of long ago, say: there are ever more of those
        return is_new

    def sign(self) -> None:
        """Sign the own record and publish it."""
        endpoints = tuple(dict.fromkeys(e for group in self._endpoints.values() for e in group))
        # Two in one millisecond, or after the clock was set back, still follow one upon the other.
        self.own = sign_record(self._identity(), endpoints, now_ms=self._now_ms(), above=self._told)
        self._told = self.own.sequence
        self._publish(self.own.data)

    def verify(self, data: bytes) -> PeerRecord:
        """Return the record of these bytes if it is of this chain and valid now. Raises RecordInvalid."""
        return verify_record(data, genesis_hash=self._identity().genesis_hash, now_ms=self._now_ms())

    async def validate(self, sender: bytes, payload: bytes) -> Verdict:
        """Decide whether a gossiped record is new.

        Anybody can sign any number of records, and honest peers forward them. So records of unknown nodes have a
        rate limit. A record of a known node passes even if the same peer sends many others. A record above a limit
        may arrive again later.
        """
        now = trio.current_time()
        if not self._record_rate.allows(sender, now):
            return Verdict.LATER
        try:
            record = self.verify(payload)
        except RecordOutOfTime:
            # Its author chose the expiry: it was valid for the forwarding peer a moment ago, or by its clock.
            return Verdict.IGNORE
        except RecordInvalid:
            return Verdict.REJECT
        author = record.address
        is_known = author == sender or self._is_kept(author) or self.book.has_met(author)
        if not is_known and not self._stranger_rate.allows(sender, now):
            return Verdict.LATER
        # Old words of an author, which anybody may send again, take nothing of the ration of its next one.
        if self._may_be_news(record) and not self._author_rate.allows(author, now):
            return Verdict.IGNORE
        return Verdict.ACCEPT if self._note(record, sender) else Verdict.IGNORE

    def _may_be_news(self, record: PeerRecord) -> bool:
        if self._revocations.is_revoked(record.address, record.certificate):
            return False
        known = self.book.get(record.address)
        return known is None or record.supersedes(known)

    def _note(self, record: PeerRecord, source: bytes) -> bool:
        if record.address == self._identity().address:
            self._told = max(self._told, min(record.sequence, _SEQUENCE_MAX))
            return False
        if self._revocations.is_revoked(record.address, record.certificate):
            return False
        if self._revocations.note(record.address, record.certificate, is_met=False):
            self._on_revoked(record.address)
        is_news = self.book.add(record, source=source)
        if is_news:
            self._on_news()
        return is_news

    def is_revoked(self, address: bytes, certificate: NodeCertificate) -> bool:
        """Whether a later certificate of an address, for other keys, is known."""
        return self._revocations.is_revoked(address, certificate)

    def note_certificate(self, address: bytes, certificate: NodeCertificate) -> None:
        """Note the certificate of a node that has proved its keys."""
        self._revocations.note(address, certificate, is_met=True)

    async def serve(self, sender: bytes, body: bytes) -> bytes:
        """Answer a peer that requests records."""
        if not self._exchange_rate.allows(sender, trio.current_time()):
            raise RequestRefused("requests exceed the rate limit")
        own = [] if self.own is None else [self.own]
        records = own + self.book.sample(self._random, self._limits.exchange_records_max - len(own))
        now_ms = self._now_ms()
        return encode([record.data for record in records if record.expiry_ms > now_ms])

    async def run(self, peers: Callable[[], Collection[Peer]], changed: Callable[[], trio.Event]) -> None:
        """Request records from peers, renew the own one and save the book, until cancelled."""
        again_at: dict[Peer, float] = {}
        signed_at = saved_at = asked_at = trio.current_time()
        while True:
            again_at = {peer: at for peer, at in again_at.items() if peer in peers()}
            for peer in list(peers()):
                # Twice: what it says between its first answer and our meeting in the mesh would pass us by.
                if again_at.setdefault(peer, 0.0) <= trio.current_time():
                    again_at[peer] = inf if again_at[peer] else trio.current_time() + self._limits.exchange_again_s
                    await self._exchange(peer)
            now = trio.current_time()
            if peers() and now - asked_at >= self._limits.exchange_interval_s:
                asked_at = now
                await self._exchange(self._random.choice(list(peers())))
            is_outdone = self.own is not None and self.own.sequence < self._told
            if now - signed_at >= (_OUTDONE_INTERVAL_S if is_outdone else _RECORD_INTERVAL_S):
                signed_at = now
                self.sign()
            if now - saved_at >= _SAVE_INTERVAL_S:
                saved_at = now
                self.book.expire(self._now_ms())
                self._revocations.expire(self._now_ms())
                await self.save()
            look_at = now + min(_SAVE_INTERVAL_S, _OUTDONE_INTERVAL_S) / 4
            with trio.move_on_at(min([look_at, *again_at.values()])):
                await changed().wait()

    async def _exchange(self, peer: Peer) -> None:
        limit_bytes = (self._limits.exchange_records_max + 1) * (RECORD_BYTES_MAX + 8)
        try:
            answer = await peer.requests.ask(METHOD_PEERS, b"", timeout_s=5.0, limit_bytes=limit_bytes)
            items = decode(answer, limit_bytes=limit_bytes)
            if not isinstance(items, list) or len(items) > self._limits.exchange_records_max + 1:
                raise DecodeError("not a list of records")
            for item in items:
                if not isinstance(item, bytes):
                    raise DecodeError("not a record")
                try:
                    record = self.verify(item)
                except RecordOutOfTime:
                    continue  # the peer's book is looked through once in a while, by its own clock
                if self._note(record, peer.address):
                    self._publish(item)  # what is news to us may be to others
        except (RequestFailed, PeerUnreachable):
            return
        except ProtocolError:
            self._blame(peer.address)

    async def load(self) -> None:
        """Load the book and the certificates of the last run, if they exist."""
        book, now_ms = self.book, self._now_ms()
        for path, limit, load in (
            (self._path, _BOOK_BYTES_MAX, book.load),
            (self._certificates, REVOCATIONS_BYTES_MAX, self._revocations.load),
        ):
            if path is None or not path.exists():
                continue
            try:
                data = await trio.to_thread.run_sync(_content_of, path, limit)
                load(data, now_ms=now_ms)
            except (OSError, DecodeError) as error:
                self._log("a file cannot be read; the node starts without it", file=path.name, error=str(error))

    async def save(self) -> None:
        """Write the book, and the certificates if they changed."""
        if self._path is None or self._certificates is None:
            return
        files = {self._path: self.book.encode()}
        if self._revocations.has_changed:
            files[self._certificates] = self._revocations.encode()
        try:
            await trio.to_thread.run_sync(_replace_files, files)
        except OSError as error:  # a full disk costs what was learnt of peers, not the node
            self._log("the address book cannot be written; check the disk", error=str(error))


def _content_of(path: Path, limit_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(limit_bytes)


def _replace_files(files: Mapping[Path, bytes]) -> None:
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".new")
        temporary.write_bytes(data)
        temporary.replace(path)
