"""Inputs and outputs of a container in a cluster: pieces in, one archive out, over the API server's streams.

Both resume after an outage. The archive of the inputs has the same bytes each time it is made, so a restarted
node goes on with the piece that is missing. The archive of the outputs goes on at the missing byte, and its
checksum is compared at the end.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import IO, Final

import trio

from tasks.executor.containers.errors import BadOutputs, EngineError, EngineUnavailable
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.exec_stream import answer_of, answer_to, run_command
from tasks.executor.containers.kubernetes.manifests import HELPER, RECEIVER
from tasks.executor.containers.kubernetes.scripts import (
    agent_script,
    archive,
    checksum,
    end_pieces,
    put_piece,
    where_pieces_end,
)
from tasks.executor.containers.outages import through_outage
from tasks.executor.containers.outputs import archive_limit
from tasks.executor.containers.settings import CHECKPOINT_FOLDER

__all__ = ["AGAIN_S", "fetch_outputs", "send_inputs"]

PIECE_BYTES: Final = 32 << 20
READ_BYTES: Final = 1 << 20
AGAIN_S: Final = 1.0
READS_MAX: Final = 3
"""Times that outputs are read whole until their checksum agrees."""
_NOT_READY: Final = 3


class _Sink:
    """A file that keeps what was written since it was last emptied."""

    def __init__(self) -> None:
        self.kept = bytearray()

    def write(self, data: bytes) -> int:
        self.kept += data
        return len(data)


def archive_of(places: list[Path], restored: Path | None = None) -> Iterator[bytes]:
    """Yield the archive of inputs by number, and of a checkpoint; links do not occur and are left out.

    It always has the same bytes. Its names are those below the helper's root.
    """
    named = [(f"inputs/{number}", place) for number, place in enumerate(places)]
    if restored is not None:
        named.append((f"disk/{CHECKPOINT_FOLDER}", restored))
    sink = _Sink()
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT) as packed:  # type: ignore[call-overload]
        for name, place in named:
            for path in (place, *(sorted(place.rglob("*")) if place.is_dir() else ())):
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    continue
                inner = path.relative_to(place).as_posix()
                entry = tarfile.TarInfo(name if inner == "." else f"{name}/{inner}")
                found = path.stat()
                entry.mode = 0o755 if path.is_dir() or found.st_mode & 0o111 else 0o644
                if path.is_dir():
                    entry.type = tarfile.DIRTYPE
                    packed.addfile(entry)
                    continue
                entry.size = found.st_size
                with path.open("rb") as file:
                    yield from _add(packed, entry, file, sink)
    yield bytes(sink.kept)


def _add(packed: tarfile.TarFile, entry: tarfile.TarInfo, file: IO[bytes], sink: _Sink) -> Iterator[bytes]:
    """Add a file, and yield what the archive has so far: a large one never stands in memory."""
    header = entry.tobuf(packed.format, packed.encoding, packed.errors)
    stream = packed.fileobj
    assert stream is not None
    stream.write(header)
    left = entry.size
    while left:
        data = file.read(min(READ_BYTES, left))
        if not data:
            raise OSError(f"{entry.name}: the file became shorter")
        stream.write(data)
        left -= len(data)
        yield bytes(sink.kept)
        sink.kept.clear()
    stream.write(bytes(-entry.size % tarfile.BLOCKSIZE))
    packed.offset += len(header) + entry.size + -entry.size % tarfile.BLOCKSIZE


def pieces_of(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Cut a stream into pieces of the same size; the last one is shorter."""
    waiting = bytearray()
    for part in parts:
        waiting += part
        while len(waiting) >= PIECE_BYTES:
            yield bytes(waiting[:PIECE_BYTES])
            del waiting[:PIECE_BYTES]
    if waiting:
        yield bytes(waiting)


async def send_inputs(api: ClusterApi, pod: str, places: list[Path], restored: Path | None = None) -> int:
    """Send inputs and a checkpoint into a pod whose helper waits for them; return the bytes sent by this call.

    Raises EngineUnavailable where the stream breaks: the next call goes on. Raises EngineError, and OSError
    for files that are gone.
    """
    following = await _following(api, pod)
    if following is None:
        return 0
    sent = count = 0
    pieces = pieces_of(archive_of(places, restored))
    while (piece := await trio.to_thread.run_sync(next, pieces, None)) is not None:
        if count >= following:
            script = put_piece(count, len(piece), hashlib.sha256(piece).hexdigest())
            code, told = await answer_of(api, pod, RECEIVER, script, (piece,))
            if code:
                raise EngineUnavailable(f"piece {count} did not arrive (code {code}) {told[:100]!r}")
            sent += len(piece)
        count += 1
    code, told = await answer_of(api, pod, RECEIVER, end_pieces(count))
    if code:
        raise EngineUnavailable(f"the inputs could not be closed (code {code})")
    return sent


async def _following(api: ClusterApi, pod: str) -> int | None:
    """Return the first piece that is missing, None where all are there."""
    while True:
        code, told = await answer_of(api, pod, RECEIVER, where_pieces_end())
        if code == _NOT_READY:
            await trio.sleep(0.1)
            continue
        text = told.decode("ascii", "replace").strip()
        if code == 0 and text == "end":
            return None
        if code or not text.isdigit() or len(text) > 9:
            raise EngineError(200, f"the helper does not tell which piece is missing (code {code}): {text[:80]!r}")
        return int(text)


async def fetch_outputs(api: ClusterApi, pod: str, file: IO[bytes], output_bytes: int, patience_s: float) -> int:
    """Write the archive of the outputs to ``file``; return its bytes.

    Raises BadOutputs where it is beyond its limit, or its checksum differs each time that it is read, and
    EngineUnavailable where the API server has been away for ``patience_s``.
    """
    for _ in range(READS_MAX):
        file.seek(0)
        file.truncate()
        size, found = await _read_archive(api, pod, file, output_bytes, patience_s)
        if await _checksum(api, pod, patience_s) == found:
            return size
    raise BadOutputs("the outputs change while they are read")


async def _read_archive(
    api: ClusterApi, pod: str, file: IO[bytes], output_bytes: int, patience_s: float
) -> tuple[int, str]:  # fmt: skip
    """Write the archive, from the missing byte on after each outage; return its size and SHA-256.

    Raises like ``fetch_outputs``.
    """
    limit, size, heard_at = archive_limit(output_bytes), 0, trio.current_time()
    found = hashlib.sha256()
    while True:
        try:
            async with (
                run_command(api, pod, HELPER, agent_script(archive(size))) as command,
                aclosing(command.output()) as output,  # type: ignore[type-var]
            ):
                async for data in output:
                    size, heard_at = size + len(data), trio.current_time()
                    if size > limit:
                        raise BadOutputs(f"more than {output_bytes} bytes")
                    found.update(data)
                    await trio.to_thread.run_sync(file.write, data)
            if command.code:
                told = command.told.decode("utf-8", "replace")[:200]
                raise BadOutputs(f"the folder cannot be read (code {command.code}) {told}".rstrip())
            return size, found.hexdigest()
        except EngineUnavailable:
            if trio.current_time() - heard_at > patience_s:
                raise
            await trio.sleep(AGAIN_S)


async def _checksum(api: ClusterApi, pod: str, patience_s: float) -> str:
    """Return the SHA-256 of the archive as the helper reads it."""
    code, told = await through_outage(
        lambda: answer_to(api, pod, HELPER, agent_script(checksum())), patience_s, AGAIN_S
    )
    if code:
        raise BadOutputs(f"the outputs cannot be read (code {code})")
    return told.strip()[:64].decode("ascii", "replace")
