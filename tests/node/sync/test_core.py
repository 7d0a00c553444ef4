"""State sync in a simulated network: liars, loss, peers that come and go, and a crash after any effect."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from consensus.light import EpochRecord, decode_epoch_record, encode_epoch_record
from node.home.config import Checkpoint, parse_checkpoint
from node.sync import core as c
from node.sync.core import NoSnapshots, SyncCore
from node.sync.messages import (
    CHUNK,
    MANIFEST,
    OFFERS,
    RECORDS,
    Manifest,
    Offer,
    decode_asked,
    decode_manifest,
    decode_offers,
    decode_records,
    encode_manifest,
    encode_offers,
    encode_records,
)
from node.sync.service import trust_root
from node.sync.snapshot_keeper import SnapshotKeeper
from state.primitives.blocks import header_hash
from state.primitives.committee import Committee
from state.primitives.errors import ConfigError, DekubeError, ProtocolError
from state.store import Restore, Store, Tip, install
from state.transition.epochs import genesis_committee
from state.trie import RangeOfMap, decode_range, encode_range
from tests.node.sync.world import EPOCH_BLOCKS, GENESIS, NOW_MS, World, certify, open_store, state_of

HEIGHT = 3 * EPOCH_BLOCKS


@dataclass
class Source:
    """What honest peers have."""

    offers: bytes
    records: tuple[bytes, ...]
    manifests: dict[int, bytes]
    pieces: dict[tuple[int, int], bytes]
    state: dict[bytes, bytes]
    checkpoint: Checkpoint

    def answer(self, method: str, body: bytes) -> bytes | str:
        match method:
            case "sync/offers":
                return self.offers
            case "sync/records":
                (epoch,) = decode_asked(body, 1)
                return encode_records(self.records[epoch : epoch + 2])
            case "sync/manifest":
                (height,) = decode_asked(body, 1)
                return self.manifests.get(height, "snapshot_unknown")
            case "sync/chunk":
                height, number = decode_asked(body, 2)
                return self.pieces.get((height, number), "snapshot_unknown")
            case _:
                raise AssertionError(method)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    world = World(tmp_path_factory.mktemp("source"))
    keeper = SnapshotKeeper(world.store, world.path / "snapshots", kept=2, piece_bytes=600)
    manifests: dict[int, bytes] = {}
    pieces: dict[tuple[int, int], bytes] = {}
    state, boundary = {}, None
    for epoch in range(3):
        world.mint(EPOCH_BLOCKS if not epoch else EPOCH_BLOCKS - 1, accounts=8)
        state = state_of(world.store)
        boundary = world.store.tip
        world.mint()
        height = keeper.due()
        assert height == (epoch + 1) * EPOCH_BLOCKS
        offer = keeper.make(height)
        assert offer is not None
        manifests[height] = keeper.manifest(height) or b""
        pieces |= {(height, number): keeper.piece(height, number) or b"" for number in range(offer.pieces)}
    first = world.store.height(2 * EPOCH_BLOCKS)
    assert first is not None and boundary is not None and boundary.height == HEIGHT
    found = Source(
        encode_offers(keeper.offers()),
        tuple(world.store.epoch_records(0, limit_bytes=1 << 20)),
        manifests, pieces, state, Checkpoint(first.height, first.block_hash),
    )  # fmt: skip
    world.store.close()
    return found


# Peers


Behaviour = Callable[[Source, str, bytes, random.Random], bytes | str | None]


def honest(source: Source, method: str, body: bytes, _rng: random.Random) -> bytes | str | None:
    return source.answer(method, body)


def lossy(source: Source, method: str, body: bytes, rng: random.Random) -> bytes | str | None:
    return rng.choice([None, "busy", source.answer(method, body), source.answer(method, body)])


def silent(_source: Source, _method: str, _body: bytes, _rng: random.Random) -> bytes | str | None:
    return None


def without(_source: Source, _method: str, _body: bytes, _rng: random.Random) -> bytes | str | None:
    return "unknown_method"


def stale(source: Source, method: str, body: bytes, _rng: random.Random) -> bytes | str | None:
    """Offers what it has no more."""
    return "snapshot_unknown" if method == CHUNK else source.answer(method, body)


def lies(where: str, source: Source, method: str, body: bytes, rng: random.Random) -> bytes | str | None:
    """Is honest but for one kind of answer."""
    answer = source.answer(method, body)
    if method != where or isinstance(answer, str):
        return answer
    match method, rng.randrange(3):
        case _, 0:  # garbage
            data = bytearray(answer)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(data)
        case "sync/chunk", 1:  # an entry is left out
            content = decode_range(answer)
            return encode_range(RangeOfMap(content.items[1:], content.nodes))
        case "sync/chunk", _:  # an account is richer than it is
            content = decode_range(answer)
            items = tuple((key, b"\xff" * len(value)) for key, value in content.items)
            return encode_range(RangeOfMap(items or ((b"k", b"v"),), content.nodes))
        case "sync/records", 1:
            return encode_records([])
        case "sync/records", _:  # another committee, with the old certificate
            records = [decode_epoch_record(record) for record in decode_records(answer)]
            return encode_records([encode_epoch_record(forged(record)) for record in records])
        case "sync/manifest", 1:
            manifest = decode_manifest(answer)
            header = manifest.headers[0]._replace(state_root=rng.randbytes(32))
            return encode_manifest(manifest._replace(headers=(header, *manifest.headers[1:])))
        case "sync/manifest", _:
            manifest = decode_manifest(answer)
            return encode_manifest(manifest._replace(starts=manifest.starts[:-1]))
        case _, _:  # offers of a height that does not exist yet
            return encode_offers([Offer(HEIGHT * 50, rng.randbytes(32), 9), *decode_offers(answer)])


def forged(record: EpochRecord) -> EpochRecord:
    return record._replace(header=record.header._replace(time_ms=record.header.time_ms + 1))


def impostor(source: Source, method: str, body: bytes, rng: random.Random) -> bytes | str | None:
    """Offers the same heights cut in its own way, and serves nothing."""
    if method != OFFERS:
        return source.answer(method, body) if method == RECORDS else None
    return encode_offers([Offer(HEIGHT, rng.randbytes(32), 3)])


LIARS: dict[str, Behaviour] = {
    "offers": partial(lies, OFFERS), "records": partial(lies, RECORDS), "manifest": partial(lies, MANIFEST),
    "chunk": partial(lies, CHUNK), "impostor": impostor, "silent": silent, "without": without, "stale": stale,
}  # fmt: skip


class Crashed(Exception):
    """The process ended after an effect."""


@dataclass
class Run:
    """One syncing node in virtual time; ``crash_after`` effects it ends, and begins again from its disk."""

    source: Source
    path: Path
    behaviours: list[Behaviour]
    rng: random.Random
    checkpoint: Checkpoint | None = None
    crash_after: int | None = None
    comings: bool = False
    """Peers come and go; when all that is left is of no use for a minute, the node begins again a little later."""
    now_ms: int = 0
    effects: int = 0
    bans: list[tuple[int, str]] = field(default_factory=list)
    asked: int = 0
    taken: int = 0
    target: Tip | None = None

    def live(self) -> None:
        """Run to the end, however often it crashes."""
        while True:
            restore = Restore.open(self.path / "sync", GENESIS)
            try:
                if restore.is_whole:
                    self.target = restore.target
                else:
                    self._drive(restore)
                self._count()
                restore.finish()
                self._count()
            except Crashed:
                continue
            except NoSnapshots:
                if not self.comings:
                    raise
                self.now_ms += 10_000
                continue
            finally:
                restore.close()
            install(self.path / "sync", self.path / "chain")
            return

    def _count(self) -> None:
        self.effects += 1
        if self.effects == self.crash_after:
            raise Crashed

    def _drive(self, restore: Restore) -> None:
        root, trust = trust_root(GENESIS, (1,))
        core = SyncCore(
            root, trust, checkpoint=self.checkpoint, records=restore.records(), now_ms=NOW_MS + self.now_ms,
            begun=0 if restore.target is None else restore.target.height,
        )  # fmt: skip
        here: set[int] = set()
        pending: list[tuple[int, int, c.Event]] = []
        order = 0

        def later(delay_ms: int, event: c.Event) -> None:
            nonlocal order
            order += 1
            heapq.heappush(pending, (self.now_ms + delay_ms, order, event))

        names = [bytes([number]) * 20 for number in range(len(self.behaviours))]
        later(0, c.PeersChanged(frozenset(names)))
        here = set(range(len(names)))
        later(500, c.Tick())
        while True:
            self.now_ms, _, event = heapq.heappop(pending)
            assert self.now_ms < 3 * 3_600_000, "the sync does not end"
            if isinstance(event, c.Tick):
                later(500, event)
                if self.comings and self.rng.random() < 0.05:
                    here ^= {self.rng.randrange(len(names))}
                    later(0, c.PeersChanged(frozenset(names[number] for number in here)))
            for effect in core.step(event, NOW_MS + self.now_ms):
                match effect:
                    case c.Ask(number, peer, method, body, limit_bytes, timeout_ms):
                        self.asked += 1
                        assert sum(isinstance(e, c.Answered | c.Unanswered) for _, _, e in pending) < 60
                        index = names.index(peer)
                        answer = None
                        if index in here:
                            answer = self.behaviours[index](self.source, method, body, self.rng)
                        match answer:
                            case bytes():
                                assert len(answer) <= limit_bytes
                                later(self.rng.randrange(20, 400), c.Answered(number, answer))
                            case str():
                                later(self.rng.randrange(20, 400), c.Unanswered(number, answer))
                            case None:
                                later(timeout_ms, c.Unanswered(number, None))
                    case c.KeepRecord(epoch, record):
                        restore.keep_record(epoch, record)
                    case c.Begin(target, ranges):
                        restore.begin(target)
                        missing = [number for number, ends in enumerate(ranges) if not restore.has(*ends)]
                        later(5, c.Begun(frozenset(missing)))
                    case c.TakePiece(piece, peer, start, stop, data):
                        try:
                            restore.add(start, stop, data)
                            self.taken += 1
                            later(5, c.PieceTaken(piece))
                        except ProtocolError:
                            later(5, c.PieceFalse(piece, peer))
                    case c.Ban(peer, reason):
                        self.bans.append((names.index(peer), reason))
                    case c.Finish(target):
                        self.target = target
                        return
                    case c.Failed(error):
                        raise error
                    case _:
                        raise AssertionError(effect)
                self._count()


def check(run: Run, source: Source) -> None:
    """The node has the whole state of the newest snapshot and can go on with it."""
    assert run.target is not None and run.target.height == HEIGHT
    runtime_path = run.path / "chain"
    with opened(runtime_path) as store:
        assert store.tip == run.target
        assert state_of(store) == source.state
        assert store.verify() == len(source.state)
        first = 0 if run.checkpoint is None else run.checkpoint.height // EPOCH_BLOCKS - 1
        assert store.epoch_records(first, limit_bytes=1 << 20) == list(source.records[first:])


def opened(path: Path) -> Store:
    from state.transition.runtime import Runtime

    return open_store(path, Runtime(GENESIS))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_honest_peers_share_the_work(source: Source, tmp_path: Path, checkpoint: bool) -> None:
    run = Run(source, tmp_path, [honest] * 3, random.Random(1), source.checkpoint if checkpoint else None)
    run.live()
    check(run, source)
    assert not run.bans
    pieces = len([key for key in source.pieces if key[0] == HEIGHT])
    assert run.taken == pieces > 8
    assert run.asked == pieces + 3 + 1 + 2 - checkpoint  # offers, manifest, records two at a time


@pytest.mark.parametrize("seed", [0, 1, 3, 4])
@pytest.mark.parametrize("liar", sorted(LIARS))
def test_liars_cost_time_and_no_more(source: Source, tmp_path: Path, liar: str, seed: int) -> None:
    rng = random.Random(seed)
    behaviours = [honest if seed % 2 else lossy, *[LIARS[liar]] * (1 + seed % 3)]
    run = Run(source, tmp_path, behaviours, rng, comings=seed > 3)
    run.live()
    check(run, source)
    assert all(index > 0 for index, _ in run.bans), run.bans
    if liar == "chunk" and seed in (1, 3):
        assert run.bans


@pytest.mark.parametrize("seed", range(4))
def test_all_kinds_of_peers_at_once(source: Source, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    run = Run(source, tmp_path, [honest, lossy, *LIARS.values()], rng, comings=True)
    run.live()
    check(run, source)
    assert all(index > 1 for index, _ in run.bans), run.bans


def test_a_crash_after_any_effect_is_made_good(source: Source, tmp_path: Path) -> None:
    whole = Run(source, tmp_path / "whole", [honest, honest], random.Random(7))
    whole.path.mkdir()
    whole.live()
    for crash in range(1, whole.effects + 1):
        path = tmp_path / str(crash)
        path.mkdir()
        run = Run(source, path, [honest, LIARS["chunk"]], random.Random(crash), crash_after=crash)
        run.live()
        check(run, source)
        assert run.taken <= whole.taken  # no piece is fetched twice


def test_records_are_not_asked_for_again_after_a_crash(source: Source, tmp_path: Path) -> None:
    asked: list[bytes] = []

    def listening(source: Source, method: str, body: bytes, rng: random.Random) -> bytes | str | None:
        if method == RECORDS:
            asked.append(body)
        return honest(source, method, body, rng)

    run = Run(source, tmp_path, [listening], random.Random(1), crash_after=12)
    run.live()
    check(run, source)
    assert len(asked) == len(set(asked)) == 2


@pytest.mark.parametrize("nothing_ms", [60_000, 8_000])
def test_alone_it_waits_as_long_as_it_is_told_to(nothing_ms: int) -> None:
    root, trust = trust_root(GENESIS, (1,))
    core = SyncCore(root, trust, now_ms=NOW_MS, nothing_ms=nothing_ms)
    core.step(c.PeersChanged(frozenset()), NOW_MS)
    over = None
    for passed_ms in range(500, 100_000, 500):
        if any(isinstance(effect, c.Failed) for effect in core.step(c.Tick(), NOW_MS + passed_ms)):
            over = passed_ms
            break
    assert over == nothing_ms


@pytest.mark.parametrize("behaviours", [[], [without], [without, silent]])
def test_with_no_snapshots_it_says_so(source: Source, tmp_path: Path, behaviours: list[Behaviour]) -> None:
    run = Run(source, tmp_path, behaviours, random.Random(1))
    with pytest.raises(NoSnapshots):
        run.live()
    assert run.now_ms <= 10 * 60_000


def test_a_lone_liar_does_not_hold_a_node_for_ever(source: Source, tmp_path: Path) -> None:
    for name in ("impostor", "stale"):
        (tmp_path / name).mkdir()
        run = Run(source, tmp_path / name, [LIARS[name]], random.Random(1))
        with pytest.raises(NoSnapshots):
            run.live()


@pytest.mark.parametrize("height", [HEIGHT, HEIGHT * 50])
@pytest.mark.parametrize("method", [RECORDS, MANIFEST, CHUNK])
def test_liars_that_agree_on_a_snapshot_and_never_serve_it_are_left(
    source: Source, tmp_path: Path, height: int, method: str
) -> None:
    """Identities cost nothing: as many as the honest peers offer the same, and are silent from ``method`` on."""

    def liar(source: Source, asked: str, body: bytes, _rng: random.Random) -> bytes | str | None:
        if asked == OFFERS:
            offer = Offer(height, b"\xff" * 32, 9)
            return encode_offers([offer] if method != CHUNK else decode_offers(source.offers)[:1])
        if asked == method or (asked == MANIFEST and method == RECORDS):
            return None
        return source.answer(asked, body)

    run = Run(source, tmp_path, [honest, honest, liar, liar, liar], random.Random(1))
    run.live()
    check(run, source)
    assert not [index for index, _ in run.bans if index < 2]
    assert run.now_ms < 15 * 60_000


def test_liars_alone_end_the_sync_so_that_the_blocks_can_be_synced(source: Source, tmp_path: Path) -> None:
    def liar(source: Source, asked: str, body: bytes, _rng: random.Random) -> bytes | str | None:
        return encode_offers([Offer(HEIGHT * 50, b"\xff" * 32, 9)]) if asked == OFFERS else None

    run = Run(source, tmp_path, [liar] * 3, random.Random(1))
    with pytest.raises(NoSnapshots):
        run.live()


def test_a_false_checkpoint_bans_nobody_and_is_told(source: Source, tmp_path: Path) -> None:
    run = Run(source, tmp_path, [honest, honest], random.Random(1), Checkpoint(EPOCH_BLOCKS, b"x" * 32))
    with pytest.raises(NoSnapshots, match="another block at the checkpoint"):
        run.live()
    assert not run.bans


def test_any_number_of_liars_is_banned_and_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c, "BANNED_MAX", 3)
    core = SyncCore(*trust_root(GENESIS, (1,)), now_ms=NOW_MS)

    def ask_of(liar: bytes, now_ms: int) -> list[int]:
        effects = core.step(c.PeersChanged(frozenset({liar})), now_ms)
        return [effect.number for effect in effects if isinstance(effect, c.Ask) and effect.peer == liar]

    liars = [bytes([number + 1]) * 20 for number in range(6)]
    for now_ms, liar in enumerate(liars, NOW_MS):
        asked = ask_of(liar, now_ms)
        assert asked
        effects = [effect for number in asked for effect in core.step(c.Answered(number, b"\xff"), now_ms)]
        assert [effect.peer for effect in effects if isinstance(effect, c.Ban)] == [liar]
    assert [bool(ask_of(liar, NOW_MS + 99)) for liar in reversed(liars)] == [False] * 3 + [True] * 3
    assert len(core._banned) == 3


def test_old_trust_is_refused(source: Source, tmp_path: Path) -> None:
    run = Run(source, tmp_path, [honest], random.Random(1))
    run.now_ms = 0
    root, trust = trust_root(GENESIS, (1,))
    late = root.time_ms + (trust.trusting_period_ms or 0) + 1
    core = SyncCore(root, trust, now_ms=late)
    effects: list[Any] = core.step(c.PeersChanged(frozenset({b"p" * 20})), late)
    seen: list[DekubeError] = []
    for _ in range(20):
        following = []
        for effect in effects:
            match effect:
                case c.Ask(number, _, method, body):
                    answer = source.answer(method, body)
                    assert isinstance(answer, bytes)
                    following += core.step(c.Answered(number, answer), late)
                case c.Failed(error):
                    seen.append(error)
                case _:
                    pass
        late += 5_000
        effects = following or core.step(c.Tick(), late)
    assert [error.code for error in seen] == ["trust_expired"]


def test_checkpoints_are_read_strictly() -> None:
    text = "8:0x" + "ab" * 32
    assert parse_checkpoint(text) == Checkpoint(8, b"\xab" * 32)
    assert parse_checkpoint(" 8:" + "AB" * 32 + "\n") == Checkpoint(8, b"\xab" * 32)
    digits = "ab" * 32
    for bad in (
        "", "8", "8:", f":{digits}", f"0:{digits}", f"x:{digits}", f"8:{digits[2:]}", f"-8:{digits}",
        f"8:{'ab ' * 32}", f"{'9' * 30}:{digits}", f"8:0x0x{digits}",
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            parse_checkpoint(bad)
    root, trust = trust_root(GENESIS, (1,))
    with pytest.raises(ConfigError):
        SyncCore(root, trust, checkpoint=Checkpoint(EPOCH_BLOCKS + 1, bytes(32)), now_ms=0)


def richer(manifest: Manifest) -> Manifest:
    """Return one for another state than the certified one."""
    *before, last = manifest.headers
    return manifest._replace(headers=(*before, last._replace(state_root=b"\1" * 32)))


def unsigned(manifest: Manifest) -> Manifest:
    certificate = manifest.certificate
    return manifest._replace(certificate=certificate._replace(signatures=bytes(len(certificate.signatures))))


def of_one_seat(manifest: Manifest) -> Manifest:
    """Return one with the good signature of a single seat, which is no quorum."""
    header, founders = manifest.headers[-1], genesis_committee(GENESIS, 100)
    orders = (Committee(founders.seats, order) for order in permutations(range(founders.size)))  # drawn each epoch
    committee = next(known for known in orders if known.hash == header.committee_hash)
    assert committee.weights[0] < committee.quorum
    certificate = certify(
        committee, header_hash(header), header.epoch, header.view,
        genesis_hash=header.genesis_hash, seats=(0,),
    )  # fmt: skip
    return manifest._replace(certificate=certificate)


@pytest.mark.parametrize("change", [richer, unsigned, of_one_seat])
def test_the_certificate_of_a_manifest_must_be_a_quorum_s_for_its_block(
    source: Source, tmp_path: Path, change: Callable[[Manifest], Manifest]
) -> None:
    given: set[int] = set()

    def false(index: int, source: Source, method: str, body: bytes, _rng: random.Random) -> bytes | str | None:
        answer = source.answer(method, body)
        if method != MANIFEST or isinstance(answer, str):
            return answer
        given.add(index)
        return encode_manifest(change(decode_manifest(answer)))

    behaviours: list[Behaviour] = [partial(false, index) for index in range(6)]
    run = Run(source, tmp_path, [*behaviours, honest], random.Random(1))
    run.live()
    check(run, source)
    assert given and {index for index, _ in run.bans} == given
