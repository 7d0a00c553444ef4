"""Bulk data over gateways that lie, forget, refuse and go away: what is written is the blob, or nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpc.client import AnswerMalformed, ClientError, ClientOptions, GatewayUnreachable, OtherChain
from rpc.client.blobs import PAUSE_S_MIN, WAIT_S_MAX, blob_of_file, download, is_held, upload
from rpc.client.core import Fetch, Reply
from rpc.client.jobs import JobApi
from rpc.protocol.grants import read_grant
from state.primitives.errors import StoreError
from state.primitives.keys import SecretKey
from state.primitives.manifests import PIECE_BYTES, Manifest, piece_hash
from tasks.requests.reading import request_of
from tests.rpc.client.answers import at
from tests.rpc.client.world import World

KEY = SecretKey(b"k" * 32)
GENESIS = b"g" * 32
SIZE = 4 * PIECE_BYTES + 77
CONTENT = Random(1).randbytes(SIZE)
PIECES = [CONTENT[first : first + PIECE_BYTES] for first in range(0, SIZE, PIECE_BYTES)]
MANIFEST = Manifest(SIZE, tuple(map(piece_hash, PIECES)))
BLOB = MANIFEST.blob_id
ABSENT = Reply(
    404, {}, json.dumps({"error": {"code": -1, "message": "no", "data": {"reason": "not_here"}}}).encode()
)
BUSY = Reply(503, {"retry-after": "2"}, b"{}")


def answer(method: str, _params: Any) -> Any:
    match method:
        case "dekube_chainInfo":
            return {
                "at": at(9), "chain_id": 7, "name": "test", "genesis_hash": "0x" + GENESIS.hex(), "testnet": True,
                "version": "1",
            }  # fmt: skip
        case "dekube_head":
            return {
                "at": at(9), "time_ms": 1, "state_root": "0x" + bytes(32).hex(), "base_fee": "1",
                "base_fee_next": "1",
            }  # fmt: skip
        case _:
            raise AssertionError(method)


def serve(fetch: Fetch) -> Reply:
    """Answer as an honest gateway does that has the blob."""
    if "/manifest" in fetch.url:
        return Reply(200, {}, MANIFEST.encode())
    first, end = map(int, dict(fetch.headers)["range"].removeprefix("bytes=").split("-"))
    return Reply(206, {}, CONTENT[first : end + 1])


def world(*serving: Callable[[Fetch], Reply]) -> World:
    made = World(*[answer] * len(serving))
    for gateway, one in zip(made.all, serving, strict=True):
        gateway.serve = one
    return made


def get(made: World, file: Path, **options: Any) -> list[tuple[int, int]]:
    told: list[tuple[int, int]] = []
    size = made.run(download(made.core, BLOB, file, progress=lambda *done: told.append(done), **options))
    assert size == SIZE
    assert file.read_bytes() == CONTENT
    assert not file.with_name(file.name + ".part").exists()
    assert told[-1] == (SIZE, SIZE)
    assert [done for done, _ in told] == sorted(done for done, _ in told), "never back"
    return told


def test_a_blob_comes_in_growing_parts(tmp_path: Path) -> None:
    asked: list[str] = []

    def noting(fetch: Fetch) -> Reply:
        asked.append(dict(fetch.headers).get("range", ""))
        return serve(fetch)

    get(world(noting), tmp_path / "deep" / "file")
    mib = PIECE_BYTES
    assert asked == ["", f"bytes=0-{mib - 1}", f"bytes={mib}-{3 * mib - 1}", f"bytes={3 * mib}-{SIZE - 1}"]


def test_a_blob_is_a_source_of_a_job_and_fetched_once(tmp_path: Path) -> None:
    image = "a.test/image@sha256:" + "ab" * 32
    mounts = [{"source": f"blob:{BLOB.hex()}", "path": "/data/file"}, {"source": "main.py", "path": "/main.py"}]
    request = request_of({"kind": "container", "image": image, "mounts": mounts})
    made = world(serve)
    found: Any = made.run(JobApi.fetch_blobs._make(made.core, request, cache=tmp_path))
    assert Path(found.mounts[0].source).read_bytes() == CONTENT and found.mounts[1].source == "main.py"

    def gone(fetch: Fetch) -> Reply:
        raise GatewayUnreachable("gone")

    made = world(gone)
    again: Any = made.run(JobApi.fetch_blobs._make(made.core, request, cache=tmp_path))
    assert again == found
    Path(found.mounts[0].source).write_bytes(b"damaged")
    with pytest.raises(GatewayUnreachable):
        made.run(JobApi.fetch_blobs._make(made.core, request, cache=tmp_path))


def test_what_came_before_is_not_asked_for_again_and_what_is_damaged_is(tmp_path: Path) -> None:
    file = tmp_path / "file"
    asked: list[str] = []

    def leaving(fetch: Fetch) -> Reply:
        if asked:
            raise GatewayUnreachable("gone")
        asked.append(fetch.url)
        return serve(fetch)

    with pytest.raises(GatewayUnreachable):
        get(world(leaving), file)
    assert not file.exists()
    part = file.with_name("file.part")
    part.write_bytes(PIECES[0] + b"?" * PIECE_BYTES + PIECES[2] + PIECES[3][:-1] + b"?")
    told = get(world(serve), file)
    assert told[0] == (2 * PIECE_BYTES, SIZE)


def test_a_gateway_that_lies_is_left_for_another(tmp_path: Path) -> None:
    def other_manifest(fetch: Fetch) -> Reply:
        return Reply(200, {}, Manifest(1, (piece_hash(b"x"),)).encode())

    def other_pieces(fetch: Fetch) -> Reply:
        return serve(fetch) if "/manifest" in fetch.url else Reply(206, {}, bytes(PIECE_BYTES))

    def cut_off(fetch: Fetch) -> Reply:
        return serve(fetch) if "/manifest" in fetch.url else Reply(206, {}, serve(fetch).body[:-1])

    for number, liar in enumerate((other_manifest, other_pieces, cut_off)):
        get(world(liar, serve), tmp_path / f"file {number}")
        with pytest.raises(AnswerMalformed):
            get(world(liar), tmp_path / f"none {number}")
        assert not (tmp_path / f"none {number}").exists()


def test_refusals_are_another_gateways_to_overrule_and_silence_is_tried_again(tmp_path: Path) -> None:
    get(world(lambda _fetch: ABSENT, serve), tmp_path / "a")
    with pytest.raises(ClientError) as refused:
        get(world(lambda _fetch: ABSENT, lambda _fetch: ABSENT), tmp_path / "b")
    assert refused.value.reason == "not_here"
    busy = [BUSY, BUSY]
    made = world(lambda fetch: busy.pop() if busy else serve(fetch))
    get(made, tmp_path / "c")
    assert made.pauses == [2.0, 2.0]


def test_whether_a_node_holds_a_blob_is_known_or_not() -> None:
    def held(*serving: Callable[[Fetch], Reply]) -> bool | None:
        made = world(*serving)
        answer: bool | None = made.run(is_held(made.core, BLOB))
        return answer

    def silent(_fetch: Fetch) -> Reply:
        raise GatewayUnreachable("gone")

    refused = json.dumps({"error": {"code": -1, "message": "no", "data": {"reason": "blob_unavailable"}}}).encode()
    assert held(serve) is True
    assert held(lambda _fetch: Reply(404, {}, refused)) is False
    assert held(lambda _fetch: Reply(404, {}, refused), serve) is True, "one of them has it"
    for nothing in (
        silent,
        lambda _fetch: ABSENT,
        lambda _fetch: Reply(202, {}, b"{}"),
        lambda _fetch: Reply(404, {}, b"<html>"),
    ):
        assert held(nothing) is None


def test_a_blob_that_is_fetched_first_is_waited_for_and_one_that_never_comes_is_not(tmp_path: Path) -> None:
    states = [(0, 0), (0, 5), (3, 5), (3, 5)]

    def fetching(fetch: Fetch) -> Reply:
        assert "task=0x" + "74" * 32 in fetch.url and "window=3" in fetch.url
        if not states:
            return serve(fetch)
        done, every = states.pop(0)
        return Reply(202, {"retry-after": "1"}, json.dumps({"pieces_done": done, "pieces": every}).encode())

    get(world(fetching), tmp_path / "file", task=b"t" * 32, window=3)

    def for_ever(_fetch: Fetch) -> Reply:
        return Reply(202, {}, b'{"pieces_done": 1, "pieces": 5}')

    made = world(for_ever)
    with pytest.raises(ClientError) as refused:
        get(made, tmp_path / "none")
    assert refused.value.reason == "blob_unavailable"
    assert WAIT_S_MAX <= made.now_s < WAIT_S_MAX + 10


def fetched(done: int, every: int = 5, after: str = "1") -> Reply:
    document = {"pieces_done": done, "pieces": every}
    return Reply(202, {"retry-after": after}, json.dumps(document).encode())


def absent(made: World, file: Path) -> None:
    with pytest.raises(ClientError) as refused:
        get(made, file)
    assert refused.value.reason == "blob_unavailable"


@pytest.mark.parametrize("keeps_manifest", [False, True])
def test_a_gateway_that_wants_no_pause_is_left_one(tmp_path: Path, keeps_manifest: bool) -> None:
    asked = 0

    def hurrying(fetch: Fetch) -> Reply:
        nonlocal asked
        asked += 1
        assert asked <= WAIT_S_MAX / PAUSE_S_MIN + 10, "without end"
        return serve(fetch) if keeps_manifest and "/manifest" in fetch.url else fetched(1, after="0")

    made = world(hurrying)
    absent(made, tmp_path / "file")
    assert min(made.pauses) == PAUSE_S_MIN


def test_only_more_pieces_than_ever_are_news(tmp_path: Path) -> None:
    asked = 0

    def wavering(_fetch: Fetch) -> Reply:
        nonlocal asked
        asked += 1
        assert asked <= WAIT_S_MAX + 10, "without end"
        return fetched(3 + asked % 2, 5 + asked % 3)

    made = world(wavering)
    absent(made, tmp_path / "file")
    assert WAIT_S_MAX <= made.now_s < WAIT_S_MAX + 10


def test_a_gateway_that_takes_over_begins_anew(tmp_path: Path) -> None:
    made = World(answer, answer)

    def first(_fetch: Fetch) -> Reply:
        if made.now_s > 10:
            raise GatewayUnreachable("gone")
        return fetched(4)

    def second(fetch: Fetch) -> Reply:
        done = int(made.now_s / (WAIT_S_MAX / 2))
        return fetched(done) if done < 5 else serve(fetch)

    made.all[0].serve, made.all[1].serve = first, second
    get(made, tmp_path / "file")
    assert made.now_s > 2 * WAIT_S_MAX


@pytest.mark.parametrize("comes_later", [False, True])
def test_what_a_link_leads_to_is_not_written(tmp_path: Path, comes_later: bool) -> None:
    other, part = tmp_path / "other", tmp_path / "file.part"
    other.write_bytes(b"precious")

    def linking(fetch: Fetch) -> Reply:
        if comes_later and "/manifest" not in fetch.url:
            part.unlink()
            part.symlink_to(other)
        return serve(fetch)

    if not comes_later:
        part.symlink_to(other)
    with pytest.raises(StoreError, match=r"file\.part: a symbolic link"):
        get(world(linking), tmp_path / "file")
    assert other.read_bytes() == b"precious"
    assert not (tmp_path / "file").is_symlink()


def test_more_than_was_expected_is_not_fetched(tmp_path: Path) -> None:
    with pytest.raises(AnswerMalformed):
        get(world(serve), tmp_path / "file", limit_bytes=SIZE - 1)
    assert not list(tmp_path.iterdir())
    get(world(serve), tmp_path / "file", limit_bytes=SIZE)
    with pytest.raises(StoreError):
        get(world(serve), tmp_path / "file" / "below a file")


@pytest.mark.slow
@settings(max_examples=60)
@given(st.binary(max_size=64), st.sampled_from((200, 202, 204, 206, 301, 400, 404, 416, 429, 500, 503)))
def test_any_answer_is_a_typed_error(tmp_path_factory: pytest.TempPathFactory, body: bytes, status: int) -> None:
    file = tmp_path_factory.mktemp("any") / "file"
    for keeps_manifest in (False, True):

        def anything(fetch: Fetch, keeps_manifest: bool = keeps_manifest) -> Reply:
            return serve(fetch) if keeps_manifest and "/manifest" in fetch.url else Reply(status, {}, body)

        with pytest.raises((ClientError, GatewayUnreachable)):
            get(world(anything), file)
        with pytest.raises((ClientError, GatewayUnreachable)):
            made = world(anything)
            made.run(upload(made.core, _file_of(file), KEY))


def _file_of(file: Path) -> Path:
    file.with_name("content").write_bytes(CONTENT)
    return file.with_name("content")


# In


class Taking:
    """A gateway that takes uploads."""

    def __init__(self) -> None:
        self.pieces: dict[int, bytes] = {}
        self.grants: list[str] = []
        self.breaks_at = -1
        self.forgets = False

    def __call__(self, fetch: Fetch) -> Reply:
        if fetch.method == "POST":
            assert fetch.body == MANIFEST.encode()
            self.grants.append(dict(fetch.headers)["authorization"])
            missing = [[number, 1] for number in range(len(PIECES)) if number not in self.pieces]
            return Reply(200, {}, json.dumps({"missing": missing}).encode())
        number = int(fetch.url.rpartition("/")[2])
        assert fetch.url.endswith(f"/blobs/{BLOB.hex()}/{number}")
        if number == self.breaks_at:
            self.breaks_at = -1
            raise GatewayUnreachable("gone")
        assert MANIFEST.is_piece(number, fetch.body)
        if not self.forgets:
            self.pieces[number] = fetch.body
        return Reply(200, {}, b"{}")


def put(made: World, folder: Path) -> list[tuple[int, int]]:
    told: list[tuple[int, int]] = []
    name = made.run(upload(made.core, _file_of(folder / "x"), KEY, progress=lambda *done: told.append(done)))
    assert name == BLOB
    assert told == sorted(told)
    assert told[-1] == (SIZE, SIZE)
    return told


def test_an_upload_is_signed_for_and_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    taking = Taking()
    taking.breaks_at = 2
    put(world(taking), tmp_path)
    assert taking.pieces == dict(enumerate(PIECES))
    assert read_grant(taking.grants[0], genesis_hash=GENESIS, blob=BLOB, height=9) == KEY.address
    put(world(taking), tmp_path)


def test_an_upload_goes_on_at_another_gateway(tmp_path: Path) -> None:
    first, second = Taking(), Taking()
    first.breaks_at = 3
    put(world(first, second), tmp_path)
    assert second.pieces == dict(enumerate(PIECES)), "a blob is whole at one node"
    put(world(lambda _fetch: ABSENT, second), tmp_path)


def test_a_gateway_that_keeps_nothing_is_given_up(tmp_path: Path) -> None:
    taking = Taking()
    taking.forgets = True
    with pytest.raises(AnswerMalformed):
        put(world(taking), tmp_path)
    assert len(taking.grants) < 10


def test_a_gateway_that_lacks_another_piece_each_time_is_given_up(tmp_path: Path) -> None:
    asked: list[str] = []

    def wavering(fetch: Fetch) -> Reply:
        asked.append(fetch.method)
        assert len(asked) < 20, "without end"
        return Reply(200, {}, json.dumps({"missing": [[asked.count("POST") % 2, 1]]}).encode())

    with pytest.raises(AnswerMalformed):
        put(world(wavering), tmp_path)
    with pytest.raises(AnswerMalformed):
        asked.clear()
        put(world(wavering, wavering), tmp_path)


def test_a_piece_that_did_not_go_through_is_sent_again(tmp_path: Path) -> None:
    taking = Taking()
    taking.breaks_at = 0  # what is missing is the same then, and no lie
    made = world(taking)
    put(made, tmp_path)
    assert len(taking.grants) == 3
    assert taking.pieces == dict(enumerate(PIECES))


def test_nothing_is_signed_for_another_chain(tmp_path: Path) -> None:
    taking = Taking()
    made = World(answer, options=ClientOptions(chain_id=5))
    made.all[0].serve = taking
    with pytest.raises(OtherChain):
        put(made, tmp_path)
    assert not taking.grants


@pytest.mark.parametrize(
    "missing", [[[0, 6]], [[-1, 1]], [[5, 1]], [[0, 0]], [["0", 1]], [[0]], "x", [[0, 1]] * 6]
)
def test_nonsense_about_what_is_missing_is_told(tmp_path: Path, missing: Any) -> None:
    with pytest.raises(AnswerMalformed):
        put(world(lambda _fetch: Reply(200, {}, json.dumps({"missing": missing}).encode())), tmp_path)


def test_a_file_that_changes_is_not_sent(tmp_path: Path) -> None:
    file = _file_of(tmp_path / "x")
    taking = Taking()

    def changing(fetch: Fetch) -> Reply:
        if fetch.method == "POST":
            file.write_bytes(bytes(SIZE))
        return taking(fetch)

    made = world(changing)
    with pytest.raises(StoreError):
        made.run(upload(made.core, file, KEY))
    assert not taking.pieces
    with pytest.raises(StoreError):
        blob_of_file(tmp_path / "none")
