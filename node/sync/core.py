"""State sync without I/O: chooses requests and peers, checks answers, bans liars. Pure (chain.md R9).

The root of trust is the genesis or a checkpoint. From there, epoch records lead to the committee of the newest
epoch (``consensus.light``). A manifest proves that a header of that epoch is final and carries the state root
after the last block of the epoch before. Each piece of the state proves itself against that root. So every answer
is checked on arrival, and a lie costs one request.

The shell performs the effects in order and answers with events. ``now_ms`` is the wall clock; trust in old
committees depends on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from consensus.light import (
    CommitteeUnknown,
    EpochRecord,
    Fork,
    ForkFound,
    HeaderAhead,
    LightClient,
    LightOptions,
    RecordInvalid,
    TrustedState,
    TrustExpired,
    VersionUnknown,
    checkpoint_root,
    decode_epoch_record,
)
from node.home.config import Checkpoint
from node.sync.messages import (
    CHUNK,
    MANIFEST,
    MANIFEST_LIMIT_BYTES,
    OFFERS,
    OFFERS_LIMIT_BYTES,
    RECORDS,
    RECORDS_LIMIT_BYTES,
    RECORDS_MAX,
    Manifest,
    Offer,
    decode_manifest,
    decode_offers,
    decode_records,
    encode_asked,
)
from state.primitives.blocks import encode_header, header_hash
from state.primitives.errors import ConfigError, DekubeError, ProtocolError
from state.store import Tip
from state.trie import RANGE_LIMIT_BYTES

__all__ = [
    "Answered",
    "Ask",
    "Ban",
    "Begin",
    "Begun",
    "Effect",
    "Event",
    "Failed",
    "Finish",
    "KeepRecord",
    "NoSnapshots",
    "PeersChanged",
    "PieceFalse",
    "PieceTaken",
    "Stage",
    "SyncCore",
    "SyncProgress",
    "TakePiece",
    "Tick",
    "Unanswered",
]

TIMEOUT_MS: Final = 20_000
OFFERS_TIMEOUT_MS: Final = 5_000
GATHER_MS: Final = 4_000
"""Offers are compared when every peer has answered, or this long after the first answer."""
OFFERS_FRESH_MS: Final = 60_000
"""Interval of new offer requests, so that a long sync finds a replacement for a lost snapshot."""
SETTLE_MS: Final = 8_000
"""If no peer offers anything, time to wait for other peers."""
NOTHING_MS: Final = 60_000
"""If no useful snapshot was offered for this long, the sync ends without one."""
NOTHING_FOUNDER_MS: Final = SETTLE_MS
"""The same for a founding validator: its peers most likely belong to the network that it is about to start."""
SUPPORT_SHARE: Final = 3
"""A newer snapshot is preferred if this share of the offering peers has it."""
IN_FLIGHT_MAX: Final = 8
IN_FLIGHT_OF_ONE_MAX: Final = 2
TAKING_MAX: Final = 8
"""Pieces that arrived and are not on disk yet. At this number no more are requested."""
REST_MS: Final = 2_000
REST_MS_MAX: Final = 120_000
BUSY_MS: Final = 1_000
AWAY_MAX: Final = 256
BANNED_MAX: Final = 4_096
"""Banned peers that are remembered, newest first. The network has its own list of bans."""
STALLED_MS: Final = 60_000
"""A snapshot without a new piece for this long is replaced by another one, if better peers offer one."""
FAILURES_MAX: Final = 6
"""A peer's offers are ignored after this many failures in a row."""
RECORDS_AHEAD_MAX: Final = 2**20
_BUSY: Final = ("busy", "too_many_requests")


class NoSnapshots(DekubeError):
    """No peer has a usable snapshot. The node can sync the blocks instead."""

    code = "no_snapshots"


class _NotOurCheckpoint(ProtocolError):
    """The epoch record has another block at the checkpoint. It is unknown which side is wrong."""


class Stage:
    """Stage of the sync, for display."""

    OFFERS = "looking for snapshots"
    CHECKPOINT = "fetching the checkpoint"
    RECORDS = "following epochs"
    MANIFEST = "fetching the list of pieces"
    BEGIN = "preparing the database"
    PIECES = "fetching the state"
    DONE = "done"


class SyncProgress(NamedTuple):
    """Progress of the sync. ``target`` is 0 until a snapshot is chosen."""

    stage: str
    target: int
    epoch: int
    pieces_done: int
    pieces: int
    bytes_taken: int
    peers: int


# Events


class PeersChanged(NamedTuple):
    """The peers that are connected now."""

    addresses: frozenset[bytes]


class Answered(NamedTuple):
    """A peer's answer to the request with that number."""

    number: int
    data: bytes


class Unanswered(NamedTuple):
    """No answer. ``code`` is the peer's refusal, or None for a timeout or a lost connection."""

    number: int
    code: str | None


class Begun(NamedTuple):
    """The database is ready for the target's state. These pieces are missing."""

    missing: frozenset[int]


class PieceTaken(NamedTuple):
    """A piece is on disk."""

    piece: int


class PieceFalse(NamedTuple):
    """A piece does not match the target's state in its range."""

    piece: int
    peer: bytes


class Tick(NamedTuple):
    """Time has passed. Sent at least once a second."""


Event: TypeAlias = PeersChanged | Answered | Unanswered | Begun | PieceTaken | PieceFalse | Tick


# Effects


class Ask(NamedTuple):
    """Send a request. Exactly one Answered or Unanswered with the same number must follow."""

    number: int
    peer: bytes
    method: str
    body: bytes
    limit_bytes: int
    timeout_ms: int


class KeepRecord(NamedTuple):
    """Store a verified epoch record."""

    epoch: int
    record: bytes


class Begin(NamedTuple):
    """Prepare the database for the state of ``target``, split into ``ranges``. Begun must follow."""

    target: Tip
    ranges: tuple[tuple[bytes, bytes | None], ...]


class TakePiece(NamedTuple):
    """Check a piece and write it durably. PieceTaken or PieceFalse must follow."""

    piece: int
    peer: bytes
    start: bytes
    stop: bytes | None
    data: bytes


class Ban(NamedTuple):
    """Ban a peer: its message proves that it is faulty."""

    peer: bytes
    reason: str


class Finish(NamedTuple):
    """The state is complete: move the database to its place."""

    target: Tip


class Failed(NamedTuple):
    """The sync cannot continue, through no fault of a peer."""

    error: DekubeError


Effect: TypeAlias = Ask | KeepRecord | Begin | TakePiece | Ban | Finish | Failed


@dataclass(slots=True)
class _Peer:
    offers: dict[tuple[int, bytes], Offer] = field(default_factory=dict)
    asked_ms: int | None = None
    """Time of the last request for offers."""
    has_answered: bool = False
    rest_until_ms: int = 0
    failures: int = 0
    stalls: int = 0
    """Number of useless offers since its last useful answer."""
    in_flight: int = 0


class _Asked(NamedTuple):
    peer: bytes
    method: str
    target: tuple[int, bytes] | None
    item: int
    """The epoch of the first record, or the number of the piece."""


class SyncCore:
    """One sync, from its root of trust to a complete state.

    ``root`` is trusted without proof (``consensus.light.genesis_root``). With a ``checkpoint``, ``root`` only
    identifies the chain, and trust begins at the checkpoint. Only snapshots above the height ``above`` are useful.
    ``records`` are those stored by an earlier process. ``begun`` is the height whose state that process was
    fetching; it is continued if a peer still has that snapshot.

    The sync fails if no useful snapshot was offered for ``nothing_ms``. Raises ConfigError for a checkpoint that
    cannot be one of this chain.
    """

    def __init__(
        self,
        root: TrustedState,
        options: LightOptions,
        *,
        checkpoint: Checkpoint | None = None,
        above: int = 0,
        records: Iterable[tuple[int, bytes]] = (),
        begun: int = 0,
        nothing_ms: int = NOTHING_MS,
        now_ms: int,
    ) -> None:
        if checkpoint is not None and checkpoint.height % root.epoch_blocks:
            raise ConfigError(
                f"height {checkpoint.height} is not the last of an epoch (of {root.epoch_blocks} blocks)"
            )
        self._root = root
        self._options = options
        self._checkpoint = checkpoint
        self._above = above
        self._nothing_ms = nothing_ms
        self._last_height = begun
        self._light = LightClient(root, options) if checkpoint is None else None
        self._peers: dict[bytes, _Peer] = {}
        self._away: dict[bytes, _Peer] = {}
        """Banned peers that are disconnected. They stay banned when they return."""
        self._banned: dict[bytes, None] = {}
        self._asked: dict[int, _Asked] = {}
        self._next_number = 0
        self._hope_ms = now_ms
        """When a useful snapshot was last offered."""
        self._mismatches = 0
        self._first_offer_ms: int | None = None
        self._plan: tuple[int, bytes] | None = None
        self._moved_ms = now_ms
        """When the snapshot was chosen or its last piece arrived."""
        self._manifest: Manifest | None = None
        self._target: Tip | None = None
        self._ranges: tuple[tuple[bytes, bytes | None], ...] = ()
        self._begun = self._is_beginning = False
        self._missing: deque[int] = deque()
        self._open: set[int] = set()
        """Pieces that are not on disk: missing, requested, or being written."""
        self._taking = 0
        self._bytes_taken = 0
        self._is_over = False
        self._effects: list[Effect] = []
        self._resume(dict(records), now_ms)

    # What the shell asks.

    @property
    def target(self) -> Tip | None:
        """The block whose state is being fetched."""
        return self._target

    def progress(self) -> SyncProgress:
        """Return the progress of the sync."""
        light = self._light
        return SyncProgress(
            stage=self._stage(),
            target=self._plan[0] if self._plan else 0,
            epoch=light.trusted.epoch if light is not None else 0,
            pieces_done=len(self._ranges) - len(self._open) if self._begun else 0,
            pieces=len(self._ranges),
            bytes_taken=self._bytes_taken,
            peers=len(self._peers),
        )

    def _stage(self) -> str:
        if self._is_over:
            return Stage.DONE
        if self._plan is None:
            return Stage.OFFERS
        if self._light is None:
            return Stage.CHECKPOINT
        if self._light.trusted.height < self._plan[0]:
            return Stage.RECORDS
        if self._manifest is None:
            return Stage.MANIFEST
        return Stage.PIECES if self._begun else Stage.BEGIN

    # Events.

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Process an event; return the effects in order."""
        if self._is_over:
            return []
        match event:
            case PeersChanged(addresses):
                self._on_peers(addresses)
            case Answered(number, data):
                asked = self._asked.pop(number)
                try:
                    self._on_answer(asked, data, now_ms)
                except (TrustExpired, ForkFound, VersionUnknown, ConfigError) as error:
                    self._fail(error)
                except (HeaderAhead, _NotOurCheckpoint):  # this clock or this checkpoint may be what is wrong
                    self._distrust(asked.peer, now_ms)
                except ProtocolError as error:
                    self._ban(asked.peer, f"{asked.method}: {error}")
                    self._give_back(asked)
                except DekubeError:  # nobody's fault that could be told
                    self._distrust(asked.peer, now_ms)
            case Unanswered(number, code):
                self._on_silence(self._asked.pop(number), code, now_ms)
            case Begun(missing):
                self._begun, self._is_beginning = True, False
                self._moved_ms = now_ms
                self._open = set(missing)
                self._missing = deque(sorted(missing))
            case PieceTaken(piece):
                self._taking -= 1
                self._moved_ms = now_ms
                self._open.discard(piece)
            case PieceFalse(piece, peer):
                self._taking -= 1
                self._missing.appendleft(piece)
                self._ban(peer, f"piece {piece} of the state after block {self._plan and self._plan[0]} is false")
            case Tick():
                pass
            case _:
                raise AssertionError(event)
        self._move(now_ms)
        effects, self._effects = self._effects, []
        return effects

    def _on_peers(self, addresses: frozenset[bytes]) -> None:
        for gone in sorted(self._peers.keys() - addresses):
            peer = self._away[gone] = self._peers.pop(gone)
            peer.offers, peer.asked_ms, peer.has_answered = {}, None, False
            if len(self._away) > AWAY_MAX:
                del self._away[next(iter(self._away))]
        for address in sorted(addresses - self._peers.keys() - self._banned.keys()):
            self._peers[address] = self._away.pop(address, _Peer())

    def _on_answer(self, asked: _Asked, data: bytes, now_ms: int) -> None:
        self._landed(asked)
        peer = self._peers.get(asked.peer)
        match asked.method:
            case "sync/offers":
                if peer is not None:
                    offers = decode_offers(data)
                    peer.offers = {(offer.height, offer.plan_hash): offer for offer in offers}
                    peer.has_answered = True
                    if offers and self._first_offer_ms is None:
                        self._first_offer_ms = now_ms
            case "sync/records":
                self._on_records(asked, decode_records(data), now_ms)
            case "sync/manifest":
                if asked.target == self._plan and self._manifest is None:
                    self._on_manifest(decode_manifest(data), now_ms)
            case "sync/chunk":
                if asked.target != self._plan or asked.item not in self._open:
                    return
                if peer is not None:
                    peer.failures = peer.stalls = 0
                self._taking += 1
                self._bytes_taken += len(data)
                self._effects.append(TakePiece(asked.item, asked.peer, *self._ranges[asked.item], data))
            case _:
                raise AssertionError(asked)

    def _on_silence(self, asked: _Asked, code: str | None, now_ms: int) -> None:
        self._landed(asked)
        self._give_back(asked)
        peer = self._peers.get(asked.peer)
        if peer is None:
            return
        if asked.method == OFFERS and (code is None or code in _BUSY):
            peer.asked_ms = None  # again, when it has rested
            peer.rest_until_ms = now_ms + REST_MS
        elif code in _BUSY:
            peer.rest_until_ms = now_ms + BUSY_MS
        elif asked.method == OFFERS and code is not None:
            peer.has_answered = True  # a node that offers nothing, or knows no snapshots
            peer.offers = {}
        elif code is not None and asked.target is not None:
            peer.offers.pop(asked.target, None)  # it had the snapshot, and has replaced it since
            self._rest(peer, now_ms)
        else:
            self._rest(peer, now_ms)

    def _landed(self, asked: _Asked) -> None:
        peer = self._peers.get(asked.peer) or self._away.get(asked.peer)
        if peer is not None:
            peer.in_flight -= 1

    def _give_back(self, asked: _Asked) -> None:
        if asked.method == CHUNK and asked.target == self._plan and asked.item in self._open:
            self._missing.appendleft(asked.item)

    def _rest(self, peer: _Peer, now_ms: int) -> None:
        peer.rest_until_ms = now_ms + min(REST_MS << min(peer.failures, 16), REST_MS_MAX)
        peer.failures += 1

    def _distrust(self, address: bytes, now_ms: int) -> None:
        """Ignore a peer's offers for a while."""
        peer = self._peers.get(address)
        if peer is not None:
            peer.offers = {}
            self._rest(peer, now_ms)

    def _ban(self, address: bytes, reason: str) -> None:
        self._banned[address] = None
        if len(self._banned) > BANNED_MAX:
            del self._banned[next(iter(self._banned))]
        if self._peers.pop(address, None) is not None:
            self._effects.append(Ban(address, reason))

    def _fail(self, error: DekubeError) -> None:
        self._is_over = True
        self._effects.append(Failed(error))

    # The records of epochs.

    def _resume(self, records: Mapping[int, bytes], now_ms: int) -> None:
        """Use what an earlier process stored, as far as it is consistent. The rest is requested again."""
        epoch = 0 if self._checkpoint is None else self._checkpoint.height // self._root.epoch_blocks - 1
        while (record := records.get(epoch)) is not None:
            try:
                self._follow(decode_epoch_record(record), now_ms)
            except DekubeError:  # damaged, of another checkpoint, or too old: a peer's answer will say so
                return
            epoch += 1

    def _on_records(self, asked: _Asked, records: tuple[bytes, ...], now_ms: int) -> None:
        expected = self._next_epoch()
        if asked.item != expected:
            return  # another peer was faster
        if not records:
            self._distrust(asked.peer, now_ms)  # it offers what it cannot lead to
            return
        for data in records:
            if self._plan is not None and self._light and self._light.trusted.height >= self._plan[0]:
                break
            epoch = self._next_epoch()
            self._follow(decode_epoch_record(data), now_ms)
            self._effects.append(KeepRecord(epoch, data))
            self._moved_ms = now_ms
            peer = self._peers.get(asked.peer)
            if peer is not None:
                peer.failures = (
                    0  # records are the same for all snapshots: its own may still be one that nobody has
                )

    def _next_epoch(self) -> int:
        if self._light is not None:
            return self._light.trusted.epoch
        assert self._checkpoint is not None
        return self._checkpoint.height // self._root.epoch_blocks - 1

    def _follow(self, record: EpochRecord, now_ms: int) -> None:
        if self._light is not None:
            fork = self._light.follow(record, now_ms)
            if fork is not None:
                raise ForkFound(fork)
            return
        assert self._checkpoint is not None
        try:
            height, block_hash = self._checkpoint
            trusted = checkpoint_root(record, height=height, block_hash=block_hash)
        except RecordInvalid as error:
            self._mismatches += 1
            raise _NotOurCheckpoint(str(error)) from None
        if (trusted.genesis_hash, trusted.epoch_blocks) != (self._root.genesis_hash, self._root.epoch_blocks):
            raise ConfigError("the checkpoint is a block of another chain")
        light = LightClient(trusted, self._options, last=None)
        light.check_trust(now_ms)
        self._light = light

    # The manifest.

    def _on_manifest(self, manifest: Manifest, now_ms: int) -> None:
        light, plan = self._light, self._plan
        assert light is not None and plan is not None
        boundary_hash = header_hash(manifest.boundary)
        if (manifest.height, manifest.plan_hash) != plan:
            raise ProtocolError("a manifest of another snapshot than offered")
        if light.boundaries.get(manifest.boundary.epoch) != boundary_hash:
            raise ProtocolError("a manifest whose block is not the last of its epoch")
        following = manifest.headers[0]
        if following.parent_hash != boundary_hash or following.height != manifest.height + 1:
            raise ProtocolError("a manifest whose next header does not follow the boundary")
        try:
            proven = light.verify_headers(manifest.headers, manifest.certificate, now_ms)
        except CommitteeUnknown as error:
            raise ProtocolError(f"a manifest that a later epoch proves: {error}") from None
        if isinstance(proven, Fork):
            raise ForkFound(proven)
        boundary = manifest.boundary
        self._manifest = manifest
        self._ranges = manifest.ranges()
        self._target = Tip(
            height=boundary.height,
            block_hash=boundary_hash,
            state_root=following.state_root,
            receipt_root=following.receipt_root,
            next_base_fee=following.base_fee,
            time_ms=boundary.time_ms,
            header=encode_header(boundary),
        )
        self._is_beginning = True
        self._last_height = manifest.height
        self._effects.append(Begin(self._target, self._ranges))

    # What comes next.

    def _move(self, now_ms: int) -> None:
        if self._is_over:
            return
        self._ask_offers(now_ms)
        if self._plan is not None:
            self._hope_ms = now_ms
            if not (self._taking or self._is_beginning):
                if now_ms - self._moved_ms >= STALLED_MS:
                    self._leave_stalled()
                elif not self._has_supporters():
                    self._forget_plan()
        if self._plan is None:
            self._choose(now_ms)
        if self._plan is None or self._is_over:
            return
        light = self._light
        if light is None or light.trusted.height < self._plan[0]:
            self._ask_one(RECORDS, now_ms)
        elif self._manifest is None:
            self._ask_one(MANIFEST, now_ms)
        elif self._begun:
            self._ask_pieces(now_ms)
            if not self._open:
                assert self._target is not None
                self._is_over = True
                self._effects.append(Finish(self._target))

    def _ask_offers(self, now_ms: int) -> None:
        for address, peer in self._peers.items():
            if peer.rest_until_ms <= now_ms and (
                peer.asked_ms is None or peer.asked_ms + OFFERS_FRESH_MS <= now_ms
            ):
                peer.asked_ms = now_ms
                self._ask(address, OFFERS, b"", OFFERS_LIMIT_BYTES)

    def _has_supporters(self) -> bool:
        """Tell whether a connected peer still offers the chosen snapshot, resting or not."""
        return any(self._plan in peer.offers for peer in self._peers.values())

    def _leave_stalled(self) -> None:
        """Drop a snapshot that no peer serves, if others offer another one or its peers failed permanently."""
        mine = [peer for peer in self._peers.values() if self._plan in peer.offers]
        others = [peer for peer in self._peers.values() if peer.offers and self._plan not in peer.offers]
        patience = min((peer.stalls for peer in mine), default=0)
        is_hopeless = all(peer.failures > FAILURES_MAX for peer in mine)
        if is_hopeless or any(peer.stalls <= patience and peer.failures <= FAILURES_MAX for peer in others):
            for peer in mine:
                peer.stalls += 1
            self._forget_plan()

    def _forget_plan(self) -> None:
        """No peer has the snapshot any more: choose another one. Pieces of the same state are kept."""
        self._plan = self._manifest = None
        self._ranges, self._begun = (), False
        self._open, self._missing = set(), deque()
        for peer in self._peers.values():
            peer.asked_ms = None if not peer.offers else peer.asked_ms

    def _choose(self, now_ms: int) -> None:
        support: dict[tuple[int, bytes], int] = {}
        stalls: dict[tuple[int, bytes], int] = {}
        """The best supporter of each snapshot."""
        offering = 0
        lowest = self._checkpoint.height if self._checkpoint is not None else 0
        if self._light is not None:
            lowest = max(lowest, self._light.trusted.height)
        for peer in self._peers.values():
            usable = [key for key in peer.offers if self._is_usable(key[0], lowest)]
            if not usable or peer.failures > FAILURES_MAX:
                continue
            self._hope_ms = now_ms
            if peer.rest_until_ms <= now_ms:
                offering += 1
                for key in usable:
                    support[key] = support.get(key, 0) + 1
                    stalls[key] = min(stalls.get(key, peer.stalls), peer.stalls)
        if not support:
            self._give_up(now_ms)
            return
        is_settled = all(peer.has_answered or peer.rest_until_ms > now_ms for peer in self._peers.values())
        if not is_settled and (self._first_offer_ms is None or now_ms - self._first_offer_ms < GATHER_MS):
            return
        best = min(stalls.values())
        if best < max(stalls.values()):
            support = {key: count for key, count in support.items() if stalls[key] == best}
            offering = max(support.values())
        enough = -(-offering // SUPPORT_SHARE)
        wide = [key for key, count in support.items() if count >= enough]
        most = max(support.values())
        begun = [key for key in support if key[0] == self._last_height]
        likely = begun or wide or [key for key, count in support.items() if count == most]
        self._plan = max(likely, key=lambda key: (key[0], support[key], key[1]))
        self._moved_ms = now_ms

    def _give_up(self, now_ms: int) -> None:
        """End the sync if there is nothing to sync from."""
        waited = now_ms - self._hope_ms
        none_has = all(peer.has_answered and not peer.offers for peer in self._peers.values())
        if waited >= self._nothing_ms or (self._peers and none_has and not self._asked and waited >= SETTLE_MS):
            mismatches = f"; {self._mismatches} answers have another block at the checkpoint" * bool(
                self._mismatches
            )
            self._fail(NoSnapshots(f"no peer offers a snapshot of this chain that can be used{mismatches}"))

    def _is_usable(self, height: int, lowest: int) -> bool:
        blocks = self._root.epoch_blocks
        return (
            height > self._above
            and height >= lowest
            and height % blocks == 0
            and (height - lowest) // blocks <= RECORDS_AHEAD_MAX
        )

    def _ask_one(self, method: str, now_ms: int) -> None:
        """Keep one request for records or for the manifest under way, to a peer that has the snapshot."""
        assert self._plan is not None
        if any(asked.method == method for asked in self._asked.values()):
            return
        ready = self._ready(now_ms)
        if not ready:
            return
        address = ready[self._next_number % len(ready)]
        if method == RECORDS:
            epoch = self._next_epoch()
            limit = RECORDS_LIMIT_BYTES + 4 * RECORDS_MAX
            self._ask(address, RECORDS, encode_asked(epoch), limit, self._plan, epoch)
        else:
            self._ask(address, MANIFEST, encode_asked(self._plan[0]), MANIFEST_LIMIT_BYTES, self._plan)

    def _ask_pieces(self, now_ms: int) -> None:
        assert self._plan is not None
        in_flight = sum(asked.method == CHUNK for asked in self._asked.values())
        ready = deque(sorted(self._ready(now_ms), key=lambda address: self._peers[address].in_flight))
        while self._missing and ready and in_flight < IN_FLIGHT_MAX and self._taking < TAKING_MAX:
            address = ready.popleft()
            if self._peers[address].in_flight >= IN_FLIGHT_OF_ONE_MAX:
                continue
            piece = self._missing.popleft()
            body = encode_asked(self._plan[0], piece)
            self._ask(address, CHUNK, body, RANGE_LIMIT_BYTES, self._plan, piece)
            in_flight += 1
            ready.append(address)

    def _ready(self, now_ms: int) -> list[bytes]:
        return [
            address
            for address, peer in self._peers.items()
            if self._plan in peer.offers and peer.rest_until_ms <= now_ms
        ]

    def _ask(
        self,
        address: bytes,
        method: str,
        body: bytes,
        limit_bytes: int,
        target: tuple[int, bytes] | None = None,
        item: int = 0,
    ) -> None:
        number = self._next_number
        self._next_number += 1
        self._asked[number] = _Asked(address, method, target, item)
        self._peers[address].in_flight += 1
        timeout_ms = OFFERS_TIMEOUT_MS if method == OFFERS else TIMEOUT_MS
        self._effects.append(Ask(number, address, method, body, limit_bytes, timeout_ms))
