"""Blobs over a gateway: uploads authorised by the paying account, downloads verified piece by piece.

The gateway is not trusted: a manifest must match the requested blob ID, and each piece the hash in the manifest.
Interrupted transfers resume, at another gateway if necessary.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from rpc.client.arguments import check_hash, check_key
from rpc.client.core import Core, Fetch, Flow, Pause, ReadClock, Reply, RunBlocking, hexed
from rpc.client.errors import AnswerMalformed, ArgumentInvalid, ClientError, GatewayUnreachable
from rpc.client.flow_methods import FlowMethod
from rpc.client.results import ChainInfo, Head, read_result
from rpc.protocol.grants import grant_digest, make_grant
from state.primitives.errors import DecodeError, DekubeError, StoreError
from state.primitives.keys import SecretKey
from state.primitives.manifests import MANIFEST_BYTES_MAX, PIECE_BYTES, Manifest, manifest_of

__all__ = ["BlobApi", "Progress", "blob_of_file", "check_file", "download", "is_held", "upload"]

Progress = Callable[[int, int], None]
"""Progress callback: bytes done and bytes in all."""

PIECES_AT_ONCE_MAX: Final = 8
FAST_S: Final = 2.0
"""Seconds. After a faster download the next request is twice as large."""
WAIT_S_MAX: Final = 900.0
"""Seconds that a gateway may fetch a blob from the network without progress."""
LOOK_S: Final = 1.0
GRANT_BLOCKS: Final = 600
ERROR_LIMIT_BYTES: Final = 65_536
PAUSE_S_MIN: Final = 0.25
PAUSE_S_MAX: Final = 10.0


def check_file(name: str, value: object) -> None:
    """Check that the argument ``name`` is the path of a file. Raises ArgumentInvalid."""
    if not isinstance(value, Path):
        raise ArgumentInvalid(f"{name}: a pathlib.Path expected, not {type(value).__name__}")


def blob_of_file(file: Path) -> Manifest:
    """Return the manifest of a file: its ``blob_id`` is the file's name for the network. Raises StoreError."""
    try:
        with file.open("rb") as source:
            return manifest_of(source)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from None


# Requests


def _ask(core: Core, method: str, path: str, **options: Any) -> Flow[Reply]:
    """Return the first answer with a status below 300.

    After a refusal each other gateway is asked once; a busy or silent one is asked again. Raises ClientError,
    GatewayUnreachable.
    """
    refusals = 0
    for attempt in range(1, core.options.rounds * core.gateways + 1):
        url = core.url
        error: DekubeError
        wait_s = core.options.pause_s * attempt
        try:
            reply: Reply = yield _fetch(core, method, url, path, **options)
            if reply.status < 300:
                return reply
            error = _refusal(reply)
            if reply.status in (429, 503):
                wait_s = max(wait_s, _seconds(reply))
            else:
                refusals += 1
        except GatewayUnreachable as failed:
            error = failed
        core.leave_gateway(url)
        if refusals >= core.gateways or attempt == core.options.rounds * core.gateways:
            raise error
        if attempt % core.gateways == 0:
            yield Pause(wait_s)
    raise AssertionError("at least one try")


def _fetch(
    core: Core, method: str, url: str, path: str, *, body: bytes = b"",
    headers: tuple[tuple[str, str], ...] = (), limit_bytes: int = ERROR_LIMIT_BYTES,
) -> Fetch:  # fmt: skip
    where = url.rstrip("/") + "/blobs" + path
    return Fetch(method, where, core.options.timeout_s, body, headers, max(limit_bytes, ERROR_LIMIT_BYTES))


def _refusal(reply: Reply) -> DekubeError:
    try:
        document = orjson.loads(reply.body)
    except ValueError:
        document = None
    match document:
        case {"error": dict() as fields}:
            return ClientError(fields)
        case _:
            return GatewayUnreachable(f"HTTP status {reply.status}")


def _seconds(reply: Reply) -> float:
    text = reply.headers.get("retry-after", "")
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        return LOOK_S
    return min(max(float(text), PAUSE_S_MIN), PAUSE_S_MAX)


# Out of the network


def download(
    core: Core, blob: bytes, file: Path, *, task: bytes | None = None, window: int | None = None,
    progress: Progress | None = None, limit_bytes: int | None = None,
) -> Flow[int]:  # fmt: skip
    """Download a blob into ``file`` and return its size; pieces in ``file``.part are not downloaded again.

    If the gateway does not have the blob, its node finds it in the network by ``task`` and ``window``. Raises
    ClientError if it is not available, AnswerMalformed if all gateways send wrong bytes, StoreError.
    """
    check_hash("blob", blob)
    check_file("file", file)
    if task is not None:
        check_hash("task", task)
    manifest = yield from _manifest(core, blob, task, window, progress, limit_bytes)
    part = file.with_name(file.name + ".part")
    missing = yield RunBlocking(partial(_prepare, part, manifest))
    tell = progress or (lambda _done, _all: None)
    done = manifest.size_bytes - sum(map(manifest.piece_bytes, missing))
    tell(done, manifest.size_bytes)
    at_once, forged = 1, 0
    news = yield ReadClock()
    query = _query(task, window)
    while missing:
        run = _run(missing, at_once)
        first, end = run[0] * PIECE_BYTES, run[-1] * PIECE_BYTES + manifest.piece_bytes(run[-1])
        began = yield ReadClock()
        headers = (("range", f"bytes={first}-{end - 1}"),)
        reply = yield from _ask(core, "GET", f"/{blob.hex()}{query}", headers=headers, limit_bytes=end - first)
        url = core.url
        if reply.status == 202:  # it was dropped there meanwhile, and is fetched again
            if began - news > WAIT_S_MAX:
                raise _absent()
            yield Pause(_seconds(reply))
            continue
        good = [
            (number, data)
            for number in run
            if manifest.is_piece(number, data := reply.body[number * PIECE_BYTES - first :][:PIECE_BYTES])
        ]
        if good:
            yield RunBlocking(partial(_write, part, good))
            found = {number for number, _ in good}
            missing = [number for number in missing if number not in found]
            done += sum(len(data) for _, data in good)
            tell(done, manifest.size_bytes)
            news = began
        if len(good) < len(run):
            forged += 1
            core.leave_gateway(url)
            if forged >= core.options.rounds * core.gateways:
                raise AnswerMalformed(f"what the gateways send is not the blob {hexed(blob)}")
        took_s = (yield ReadClock()) - began
        at_once = min(2 * at_once, PIECES_AT_ONCE_MAX) if took_s < FAST_S else max(1, at_once // 2)
    yield RunBlocking(partial(_finish, part, file))
    return manifest.size_bytes


def _manifest(
    core: Core, blob: bytes, task: bytes | None, window: int | None, progress: Progress | None,
    limit_bytes: int | None,
) -> Flow[Manifest]:  # fmt: skip
    """Wait until a gateway has a whole blob; return its manifest."""
    forged, before = 0, (-1, -1)
    most: dict[str, int] = {}
    since = yield ReadClock()
    while True:
        reply = yield from _ask(
            core, "GET", f"/{blob.hex()}/manifest{_query(task, window)}", limit_bytes=MANIFEST_BYTES_MAX
        )
        url = core.url
        if reply.status == 202:
            told = _told(reply)
            if told != before and progress is not None and told[1] > 0:
                progress(0, told[1] * PIECE_BYTES)
            before = told
            if told[0] > most.get(url, -1):  # no other change is news: some could be told for ever
                most[url], since = told[0], (yield ReadClock())
            elif (yield ReadClock()) - since > WAIT_S_MAX:
                raise _absent()
            yield Pause(_seconds(reply))
            continue
        manifest = _manifest_of(reply.body)
        if manifest is not None and manifest.blob_id == blob:
            if limit_bytes is not None and manifest.size_bytes > limit_bytes:
                raise AnswerMalformed(f"blob {hexed(blob)}: {manifest.size_bytes} bytes, limit {limit_bytes}")
            return manifest
        forged += 1
        core.leave_gateway(url)
        if forged >= core.gateways:
            raise AnswerMalformed(f"what the gateways send is not the manifest of {hexed(blob)}")


def _manifest_of(data: bytes) -> Manifest | None:
    try:
        return Manifest.decode(data)
    except DecodeError:
        return None


def is_held(core: Core, blob: bytes) -> Flow[bool | None]:
    """Return whether the gateway's node has the whole blob; None if no gateway tells.

    Other nodes may have it: a node serves blobs of a task to the machines of that task only.
    """
    check_hash("blob", blob)
    try:
        reply = yield from _ask(core, "GET", f"/{blob.hex()}/manifest", limit_bytes=MANIFEST_BYTES_MAX)
    except GatewayUnreachable:
        return None
    except ClientError as error:
        return False if error.reason == "blob_unavailable" else None
    return True if reply.status == 200 else None


def _absent() -> ClientError:
    return ClientError({"message": "the blob does not come", "data": {"reason": "blob_unavailable"}})


def _told(reply: Reply) -> tuple[int, int]:
    """Return the numbers of fetched pieces and of all pieces."""
    try:
        document = orjson.loads(reply.body)
    except ValueError:
        document = None
    match document:
        case {"pieces_done": int(done), "pieces": int(every)} if 0 <= done <= every < 2**32:
            return done, every
        case _:
            raise AnswerMalformed("not the state of a blob")


def _query(task: bytes | None, window: int | None) -> str:
    if task is None:
        return ""
    return f"?task={hexed(task)}" + (f"&window={window}" if window is not None else "")


def _run(missing: Sequence[int], count: int) -> list[int]:
    """Return the first run of consecutive pieces in ``missing``."""
    run = [missing[0]]
    for number in missing[1:count]:
        if number != run[-1] + 1:
            break
        run.append(number)
    return run


def _prepare(part: Path, manifest: Manifest) -> list[int]:
    """Allocate ``part`` for a blob; return the missing pieces."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with _open(part, os.O_CREAT) as file:
            missing = [
                number
                for number in range(len(manifest.hashes))
                if not manifest.is_piece(number, file.read(manifest.piece_bytes(number)))
            ]
            file.truncate(manifest.size_bytes)
    except OSError as error:
        raise _not_kept(part, error) from None
    return missing


def _write(part: Path, pieces: list[tuple[int, bytes]]) -> None:
    try:
        with _open(part) as file:
            for number, data in pieces:
                file.seek(number * PIECE_BYTES)
                file.write(data)
    except OSError as error:
        raise _not_kept(part, error) from None


def _open(part: Path, flags: int = 0) -> BinaryIO:
    """Open ``part`` for reading and writing, without following symbolic links. Raises OSError."""
    return os.fdopen(os.open(part, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600), "r+b")


def _not_kept(part: Path, error: OSError) -> StoreError:
    is_link = error.errno == errno.ELOOP
    return StoreError(f"{part}: {'a symbolic link, which is not followed' if is_link else error.strerror}")


def _finish(part: Path, file: Path) -> None:
    try:
        part.replace(file)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from None


# Into the network


def upload(core: Core, file: Path, key: SecretKey, *, progress: Progress | None = None) -> Flow[bytes]:
    """Upload a file to a gateway's node, authorised by ``key``; return its blob ID. Workers fetch it there.

    Pieces that the node has are not sent again. Raises ClientError if no gateway accepts it (``uploads_off``,
    ``account_quota``, ``balance_too_low``, ...), GatewayUnreachable, OtherChain, StoreError.
    """
    check_key("key", key)
    manifest: Manifest = yield RunBlocking(partial(blob_of_file, file))
    name = manifest.blob_id
    chain = read_result(ChainInfo, (yield from core.call("dekube_chainInfo")))
    core.check_chain(chain.chain_id)
    tries = core.options.rounds * core.gateways
    pieces = _Sent(manifest, progress or (lambda _done, _all: None))
    taken: dict[str, int] = {}  # how many pieces each gateway lacked when it last took all that it lacked
    while True:
        head = read_result(Head, (yield from core.call("dekube_head")))
        until = head.at.height + GRANT_BLOCKS
        grant = make_grant(until, key.sign(grant_digest(chain.genesis_hash, name, until)))
        reply = yield from _ask(
            core, "POST", "", body=manifest.encode(), headers=(("authorization", grant),), limit_bytes=2**20
        )
        missing = _missing(reply, len(manifest.hashes))
        if not missing:
            pieces.tell(manifest.size_bytes)
            return name
        failed: DekubeError | None = None
        url = core.url
        if url in taken and len(missing) >= taken[url]:
            failed = AnswerMalformed("a gateway that lacks what it has taken")
        for number in missing if failed is None else ():
            pieces.tell(manifest.size_bytes - sum(manifest.piece_bytes(n) for n in missing if n >= number))
            data: bytes = yield RunBlocking(partial(_read, file, manifest, number))
            try:
                # To the node that knows of the upload, and no other.
                reply = yield _fetch(core, "PUT", url, f"/{name.hex()}/{number}", body=data)
            except GatewayUnreachable as error:
                failed = error
                break
            if reply.status >= 300:
                failed = _refusal(reply)
                break
        if failed is None:
            taken[url] = len(missing)
            continue
        tries -= 1
        if tries <= 0:
            raise failed
        core.leave_gateway(url)
        yield Pause(_seconds(reply) if reply.status in (429, 503) else core.options.pause_s)


class _Sent:
    """Progress of an upload; never decreases."""

    def __init__(self, manifest: Manifest, progress: Progress) -> None:
        self._size_bytes = manifest.size_bytes
        self._progress = progress
        self._told = -1

    def tell(self, done: int) -> None:
        if done > self._told:
            self._told = done
            self._progress(done, self._size_bytes)


def _missing(reply: Reply, pieces: int) -> list[int]:
    """Return the pieces that a gateway does not have."""
    try:
        document = orjson.loads(reply.body)
    except ValueError:
        document = None
    match document:
        case {"missing": list() as ranges} if len(ranges) <= pieces:
            pass
        case _:
            raise AnswerMalformed("not the state of an upload")
    missing: list[int] = []
    for item in ranges:
        match item:
            case [int(first), int(count)] if first >= 0 and 0 < count <= pieces - first:
                missing += range(first, first + count)
            case _:
                raise AnswerMalformed("not the state of an upload")
    return sorted(set(missing))


def _read(file: Path, manifest: Manifest, number: int) -> bytes:
    try:
        with file.open("rb") as source:
            source.seek(number * PIECE_BYTES)
            data = source.read(PIECE_BYTES)
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from None
    if not manifest.is_piece(number, data):
        raise StoreError(f"{file}: it changes while it is sent")
    return data


class BlobApi:
    """Methods of both clients about blobs."""

    download = FlowMethod(download)
    is_held = FlowMethod(is_held)
