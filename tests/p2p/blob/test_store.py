from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

import p2p.blob.store
from p2p.base.errors import BlobUnavailable, PeerUnreachable, RequestRefused, RequestTimeout
from p2p.base.limits import NetworkLimits
from p2p.blob.store import PIECE_BYTES, BlobStore, Manifest, PieceInvalid
from p2p.blob.transfer import METHOD_MANIFEST, METHOD_PIECE, BlobTransfer
from state.primitives.errors import DecodeError, DekubeError, StoreError

CONTENT = Random(5).randbytes(5 * PIECE_BYTES + 3)
MIB = 1024 * 1024


def store(root: Path, budget_bytes: int = 64 * MIB) -> BlobStore:
    return BlobStore(root, budget_bytes=budget_bytes)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_what_is_added_is_there_under_its_content_s_name(tmp_path: Path, size: int) -> None:
    blobs = store(tmp_path / "blobs")
    name = blobs.add(CONTENT[:size])
    (tmp_path / "file").write_bytes(CONTENT[:size])
    assert blobs.add_file(tmp_path / "file") == name
    assert blobs.read(name) == blobs.path(name).read_bytes() == CONTENT[:size]
    again = store(tmp_path / "blobs")
    assert again.blobs() == [name] and again.read(name) == CONTENT[:size]


def test_all_pieces_that_a_drive_has_damaged_are_found_at_once(tmp_path: Path) -> None:
    """Who reads the file of a blob and no piece of it would take what is damaged for the content."""
    blobs = store(tmp_path / "blobs")
    name = blobs.add(CONTENT)
    assert blobs.is_whole(name) and not blobs.is_whole(bytes(32))
    with blobs.path(name).open("r+b") as file:
        for index in (1, 4):
            file.seek(index * PIECE_BYTES)
            file.write(bytes([CONTENT[index * PIECE_BYTES] ^ 1]))
    assert not blobs.is_whole(name) and blobs.missing(name) == [1, 4] and not blobs.is_complete(name)


def test_only_verified_pieces_are_written_and_a_restart_resumes(tmp_path: Path) -> None:
    source, target = store(tmp_path / "source"), store(tmp_path / "target")
    name = source.add(CONTENT)
    manifest = source.manifest(name)
    assert manifest is not None
    with pytest.raises(PieceInvalid):
        target.begin(manifest.encode() + b"x", name=name)
    target.begin(manifest.encode(), name=name)
    for index in (0, 3):
        piece = source.read_piece(name, index)
        assert piece is not None
        with pytest.raises(PieceInvalid):
            target.write_piece(name, index, piece[:-1] + b"?")
        with pytest.raises(PieceInvalid):
            target.write_piece(name, index + 1, piece)
        assert not target.write_piece(name, index, piece)
    with pytest.raises(PieceInvalid):
        target.write_piece(name, 99, b"")
    # A machine that stopped: a piece noted as written whose bytes never reached the disk.
    with (tmp_path / "target" / name.hex() / "data").open("r+b") as file:
        file.seek(3 * PIECE_BYTES)
        file.write(bytes(100))
    resumed = store(tmp_path / "target")
    assert resumed.missing(name) == [1, 2, 3, 4, 5]
    with pytest.raises(BlobUnavailable):
        resumed.path(name)
    for index in resumed.missing(name):
        piece = source.read_piece(name, index)
        assert piece is not None
        resumed.write_piece(name, index, piece)
    assert resumed.read(name) == CONTENT


def test_a_disk_that_is_full_at_the_last_moment_leaves_a_piece_to_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no piece missing and not complete, nothing would ever complete it before a restart."""
    source, target = store(tmp_path / "source"), store(tmp_path / "target")
    name = source.add(CONTENT)
    manifest = source.manifest(name)
    assert manifest is not None
    target.begin(manifest.encode(), name=name)
    pieces = [source.read_piece(name, index) or b"" for index in range(6)]
    for index in range(5):
        target.write_piece(name, index, pieces[index])
    with monkeypatch.context() as full:

        def refuse(_path: Path, _data: bytes) -> None:
            raise OSError("no space left on device")

        full.setattr(p2p.blob.store, "_write", refuse)
        with pytest.raises(StoreError):
            target.write_piece(name, 5, pieces[5])
    assert target.missing(name) == [5]
    assert target.write_piece(name, 5, pieces[5])
    assert target.read(name) == CONTENT


def test_damage_on_disk_is_noticed_not_served(tmp_path: Path) -> None:
    blobs = store(tmp_path)
    name = blobs.add(CONTENT)
    with (tmp_path / name.hex() / "data").open("r+b") as file:
        file.seek(2 * PIECE_BYTES)
        file.write(b"damage")
    assert blobs.read_piece(name, 1) is not None
    assert blobs.read_piece(name, 2) is None
    assert not blobs.is_complete(name) and blobs.missing(name) == [2]
    blobs.write_piece(name, 2, CONTENT[2 * PIECE_BYTES : 3 * PIECE_BYTES])
    assert blobs.is_complete(name)
    (tmp_path / name.hex() / "manifest").write_bytes(b"damage")
    assert store(tmp_path).blobs() == []


def test_the_budget_is_kept_and_the_least_recently_used_give_way(tmp_path: Path) -> None:
    blobs = store(tmp_path, budget_bytes=4 * MIB)
    first, second, third = (blobs.add(bytes([n]) * (MIB + n)) for n in range(3))
    blobs.read(first)
    blobs.pin(second)
    fourth = blobs.add(b"4" * 2 * MIB)
    assert set(blobs.blobs()) == {second, fourth, first} - ({first} if not blobs.is_complete(first) else set())
    assert not blobs.is_complete(third) and blobs.is_complete(second)
    assert blobs.used_bytes <= 4 * MIB
    with pytest.raises(BlobUnavailable):
        blobs.add(bytes(5 * MIB))
    assert blobs.is_complete(second)
    blobs.unpin(second)
    blobs.remove(second)
    assert sum(f.stat().st_size for f in tmp_path.rglob("data")) == blobs.used_bytes


@given(st.binary(max_size=200))
def test_manifests_decode_strictly(data: bytes) -> None:
    try:
        assert Manifest.decode(data).encode() == data
    except DecodeError:
        pass


@given(st.data())
def test_mutated_manifests_are_refused_or_another_blob(data: st.DataObject) -> None:
    manifest = Manifest(2 * PIECE_BYTES - 5, (b"a" * 32, b"b" * 32))
    raw = bytearray(manifest.encode())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert Manifest.decode(bytes(raw)).blob_id != manifest.blob_id
    except DecodeError:
        pass


class Sources:
    """Peers as the transfer sees them: functions from (method, body) to an answer."""

    def __init__(self, good: BlobTransfer) -> None:
        self.good = good.served()
        self.behaviour: dict[bytes, str] = {}
        self.asked: list[bytes] = []

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes:
        await trio.lowlevel.checkpoint()
        behaviour = self.behaviour.get(address, "good")
        if behaviour == "gone":
            raise PeerUnreachable("gone")
        if method == METHOD_PIECE:
            self.asked.append(address)
            if behaviour == "liar":
                return bytes(PIECE_BYTES)
            if behaviour == "busy twice" and self.asked.count(address) <= 2:
                raise RequestRefused("busy")
            if behaviour == "stuck":
                await trio.sleep_forever()
        try:
            return await self.good[method](b"me", body)
        except DekubeError as error:
            raise RequestRefused(error.code) from None


async def fetched(tmp_path: Path, behaviours: Sequence[str]) -> tuple[Path, Sources, list[int]]:
    source, target = store(tmp_path / "source"), store(tmp_path / "target")
    name = source.add(CONTENT)
    limits = NetworkLimits()
    sources = Sources(BlobTransfer(source, None, limits))  # type: ignore[arg-type]
    names = [bytes([n]) * 20 for n in range(len(behaviours))]
    sources.behaviour = dict(zip(names, behaviours, strict=True))
    steps: list[int] = []
    transfer = BlobTransfer(target, sources.request, limits)
    with trio.fail_after(120):
        path = await transfer.fetch(name, names, lambda done, _all: steps.append(done))
    return path, sources, steps


@pytest.mark.parametrize(
    "behaviours",
    [("good",), ("gone", "good"), ("liar", "good"), ("busy twice",), ("stuck", "good"), ("good",) * 4],
    ids="+".join,
)
async def test_pieces_come_from_whoever_has_them(tmp_path: Path, behaviours: Sequence[str]) -> None:
    path, sources, steps = await fetched(tmp_path, behaviours)
    assert path.read_bytes() == CONTENT
    assert steps[-1] == 6 and steps == sorted(steps)
    if "liar" in behaviours:
        assert sources.asked.count(bytes(20)) <= 2  # as many as were under way, and never again


async def test_without_an_honest_source_the_fetch_says_so(tmp_path: Path) -> None:
    with pytest.raises(BlobUnavailable):
        await fetched(tmp_path, ("gone", "liar"))
    with pytest.raises(BlobUnavailable):
        await fetched(tmp_path, ())


async def test_two_callers_share_one_fetch(tmp_path: Path) -> None:
    source, target = store(tmp_path / "source"), store(tmp_path / "target")
    name = source.add(CONTENT)
    limits = NetworkLimits(blob_requests_per_source=1)
    sources = Sources(BlobTransfer(source, None, limits))  # type: ignore[arg-type]
    transfer = BlobTransfer(target, sources.request, limits)
    paths: list[Path] = []

    async def fetch() -> None:
        paths.append(await transfer.fetch(name, [b"s" * 20], None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch)
        nursery.start_soon(fetch)
    assert len(set(paths)) == 1 and len(sources.asked) == 6
    assert paths[0].read_bytes() == CONTENT


async def test_a_blob_over_the_limit_is_not_begun(tmp_path: Path) -> None:
    """Whoever names a blob for us to fetch must not decide how much of the disk it takes."""
    theirs, ours = store(tmp_path / "theirs"), store(tmp_path / "ours")
    name = theirs.add(bytes(2 * MIB))
    sources = Sources(BlobTransfer(theirs, None, NetworkLimits()))  # type: ignore[arg-type]
    transfer = BlobTransfer(ours, sources.request, NetworkLimits())
    with pytest.raises(BlobUnavailable, match="limit"):
        await transfer.fetch(name, [bytes(20)], None, 2 * MIB - 1)
    assert ours.used_bytes == 0 and not list((tmp_path / "ours").iterdir())
    assert (await transfer.fetch(name, [bytes(20)], None, 2 * MIB)).stat().st_size == 2 * MIB
    with pytest.raises(BlobUnavailable):
        ours.missing(b"\1" * 32)  # evicted between two looks at the store


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call what else a thread would, on the loop."""
    return function(*arguments)


class Line:
    """A source behind a line of four megabytes a second and half a second of round trip."""

    def __init__(self, good: BlobTransfer) -> None:
        self.good = good.served()
        self.under_way = self.under_way_max = 0
        self.free_at = 0.0

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes:
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            answer = await self.good[method](b"me", body)
            self.free_at = max(self.free_at, trio.current_time() + 0.25) + len(answer) / 4e6
            await trio.sleep_until(self.free_at + 0.25)
        finally:
            self.under_way -= 1
        return answer


class Gone:
    """Sources of which only the last is there; a dial to the others takes as long as it may."""

    def __init__(self, good: BlobTransfer, there: bytes) -> None:
        self.good = good.served()
        self.there = there

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes:
        if address != self.there and method != METHOD_MANIFEST:
            await trio.sleep(timeout_s)
            raise PeerUnreachable("gone")
        return await self.good[method](b"me", body)


@pytest.mark.parametrize("gone", [1, 2, 5])
async def test_those_who_are_gone_hold_up_a_blob_for_seconds_only(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    source, target = store(tmp_path / "source"), store(tmp_path / "target")
    name = source.add(b"one piece")
    sources = [bytes([number]) * 20 for number in range(gone + 1)]
    line = Gone(BlobTransfer(source, None, NetworkLimits()), sources[-1])  # type: ignore[arg-type]
    transfer = BlobTransfer(target, line.request, NetworkLimits())
    monkeypatch.setattr("p2p.blob.transfer.trio.to_thread.run_sync", at_once)
    began = trio.current_time()
    await transfer.fetch(name, sources, None)
    assert trio.current_time() - began <= 2.0 * gone + 1.0


class Manifests:
    """Sources that answer the question for the manifest well, falsely, with a refusal, slowly or never."""

    def __init__(self, good: BlobTransfer, behaviours: Sequence[str]) -> None:
        self.good = good.served()
        self.behaviours = {bytes([n]) * 20: behaviour for n, behaviour in enumerate(behaviours)}
        self.asked: Counter[bytes] = Counter()
        self.under_way = self.under_way_max = 0

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes:
        if method != METHOD_MANIFEST:
            return await self.good[method](b"me", body)
        self.asked[address] += 1
        self.under_way += 1
        self.under_way_max = max(self.under_way, self.under_way_max)
        try:
            match self.behaviours[address]:
                case "mute":
                    await trio.sleep(timeout_s)
                    raise RequestTimeout("nothing")
                case "liar":
                    await trio.sleep(0.1)
                    return Manifest(1, (bytes(32),)).encode()
                case "refuses":
                    raise RequestRefused("blob_unavailable")
                case "slow":
                    await trio.sleep(timeout_s - 1)
                case _:
                    pass
            return await self.good[method](b"me", body)
        finally:
            self.under_way -= 1


@pytest.mark.parametrize(
    ("behaviours", "within_s"),
    [
        (("mute",) * 5 + ("good",), 2.6),
        (("liar",) * 20 + ("good",), 2.1),
        (("refuses",) * 20 + ("good",), 0.1),
        (("slow", "mute", "good"), 1.1),
        (("mute",) * 10 + ("good",), 12.0),
        (("slow",), 9.1),
    ],
)
async def test_the_first_true_manifest_wins_and_liars_cost_nothing_but_their_points(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch,
    behaviours: Sequence[str], within_s: float,
) -> None:  # fmt: skip
    source, target = store(tmp_path / "source"), store(tmp_path / "target")
    name = source.add(CONTENT)
    sources = Manifests(BlobTransfer(source, None, NetworkLimits()), behaviours)  # type: ignore[arg-type]
    blamed: list[bytes] = []
    thanked: set[bytes] = set()
    transfer = BlobTransfer(
        target, sources.request, NetworkLimits(), blame=blamed.append, credit=thanked.add
    )  # fmt: skip
    monkeypatch.setattr("p2p.blob.transfer.trio.to_thread.run_sync", at_once)
    began = trio.current_time()
    manifest = await transfer._fetch_manifest(name, [*sources.behaviours], None)
    assert manifest == source.manifest(name)
    assert trio.current_time() - began <= within_s
    assert sources.under_way_max <= 8 and not sources.under_way
    assert blamed == [address for address, what in sources.behaviours.items() if what == "liar"]
    await transfer.fetch(name, [*sources.behaviours], None)
    assert (await transfer.fetch(name, [], None)).read_bytes() == CONTENT
    assert thanked <= set(sources.behaviours) and thanked


async def test_a_liar_is_asked_once_and_who_refuses_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = store(tmp_path / "source"), store(tmp_path / "target")
    name = source.add(CONTENT)
    sources = Manifests(BlobTransfer(source, None, NetworkLimits()), ("liar", "refuses"))  # type: ignore[arg-type]
    monkeypatch.setattr("p2p.blob.transfer.trio.to_thread.run_sync", at_once)
    with pytest.raises(BlobUnavailable, match="blob_unavailable"):
        await BlobTransfer(target, sources.request, NetworkLimits()).fetch(name, [*sources.behaviours], None)
    assert [sources.asked[bytes([n]) * 20] for n in range(2)] == [1, 3]


@pytest.mark.slow
@pytest.mark.parametrize(("rtt_s", "least", "most"), [(0.5, 3, 8), (None, 2, 2), (0.001, 2, 2)])
async def test_as_much_is_asked_for_as_the_line_holds(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, rtt_s: float | None,
    least: int, most: int,
) -> None:  # fmt: skip
    source, target = store(tmp_path / "source"), store(tmp_path / "target")
    name = source.add(Random(1).randbytes(24 * PIECE_BYTES))
    line = Line(BlobTransfer(source, None, NetworkLimits()))  # type: ignore[arg-type]
    transfer = BlobTransfer(target, line.request, NetworkLimits(), rtt_s=lambda _address: rtt_s)
    monkeypatch.setattr(
        "p2p.blob.transfer.trio.to_thread.run_sync", at_once
    )  # threads take none of the virtual time
    await transfer.fetch(name, [b"s" * 20], None)
    assert least <= line.under_way_max <= most


async def test_few_peers_are_served_at_once_and_each_has_its_turn(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    source = store(tmp_path / "source")
    name = source.add(CONTENT)
    limits = NetworkLimits(blob_peers_served_max=2, blob_turn_s=10)
    serve = BlobTransfer(source, None, limits).served()[METHOD_PIECE]  # type: ignore[arg-type]

    async def asks(peer: bytes) -> bool:
        try:
            return bool(await serve(peer, name + bytes(4)))
        except RequestRefused:
            return False

    assert [await asks(peer) for peer in (b"a", b"b", b"c", b"a")] == [True, True, False, True]
    for _ in range(9):
        await trio.sleep(1)
        assert [await asks(peer) for peer in (b"a", b"b", b"c")] == [True, True, False]
    await trio.sleep(1)
    assert [await asks(peer) for peer in (b"b", b"c", b"a", b"b")] == [True, True, True, False], (
        "turns end in order"
    )
    await trio.sleep(3)
    assert await asks(b"d"), "who asks for nothing is not being served"


async def test_what_is_served_keeps_to_its_pace(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    source, target = store(tmp_path / "source"), store(tmp_path / "target")
    name = source.add(CONTENT)
    sources = Sources(BlobTransfer(source, None, NetworkLimits(blob_upload_bytes_per_s=MIB)))  # type: ignore[arg-type]
    began = trio.current_time()
    await BlobTransfer(target, sources.request, NetworkLimits()).fetch(name, [b"s" * 20], None)
    assert trio.current_time() - began >= 5
