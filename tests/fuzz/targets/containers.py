"""Decoders around containers: logs and archives of an engine, a file of logins, lines of a pull."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator

from node.market.container_files import ContainerNote, decode_container_note, encode_container_note
from tasks.executor.containers.engine import decode_answer
from tasks.executor.containers.errors import BadOutputs, ContainerRefused, EngineError, ImageTooLarge
from tasks.executor.containers.images import PullTotals
from tasks.executor.containers.log_stream import LogFrames
from tasks.executor.containers.logins import decode_logins
from tasks.executor.containers.outputs import pack_outputs
from tasks.executor.containers.settings import image_facts
from tasks.executor.containers.watchdog_use import read_process_table
from tasks.kinds.container import ExitKind
from tasks.ledger.meter_records import ContainerEnd
from tests.fuzz.targets.base import Target, canonical

OUTPUT_BYTES = 1 << 16
END = ContainerEnd(ExitKind.EXITED, 3, b"o" * 32, 10_240, b"", 0, b"")
LOG = b"\x01\0\0\0\0\0\0\x05begun\x02\0\0\0\0\0\0\x06failed"
LOGINS = b'{"auths": {"registry.test:5000": {"auth": "a2VlcGVyOmNvcnJlY3QgaG9yc2U="}}}'
PULL = b'{"status": "Downloading", "id": "ab", "progressDetail": {"current": 5, "total": 10}}'
IMAGE = (
    b'{"Id": "sha256:00", "RepoDigests": ["a@sha256:11"], "RepoTags": ["a:1"], "Size": 5,'
    b' "Config": {"Volumes": {"/data": {}}}}'
)


def _archive() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as packed:
        for name, kind, size in (
            ("output", tarfile.DIRTYPE, 0), ("output/a", tarfile.REGTYPE, 5), ("output/l", tarfile.SYMTYPE, 0),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, size, "/etc/passwd"
            packed.addfile(info, io.BytesIO(bytes(size)))
    return file.getvalue()


def _pack(data: bytes) -> None:
    packed = io.BytesIO()
    told = pack_outputs(io.BytesIO(data), packed, OUTPUT_BYTES)
    assert packed.tell() == told.size_bytes <= OUTPUT_BYTES
    packed.seek(0)
    with tarfile.open(fileobj=packed) as found:
        for one in found:
            assert one.isreg() or one.isdir(), "a link or a device among outputs"
            assert not one.name.startswith("/") and ".." not in one.name.split("/"), "a way out of the folder"


def targets() -> Iterator[tuple[str, Target]]:
    yield "log of a container", Target(
        lambda data: LogFrames().feed(data), (LOG,), ("tasks.executor.containers.log_stream:LogFrames.feed",),
        (EngineError,),
    )  # fmt: skip
    yield "note of a container", Target(
        canonical(decode_container_note, encode_container_note),
        tuple(encode_container_note(note) for note in (ContainerNote(), ContainerNote(60, 5, END))),
        ("node.market.container_files:decode_container_note",),
    )  # fmt: skip
    yield "outputs of a container", Target(
        _pack, (_archive(),), ("tasks.executor.containers.outputs:pack_outputs",), (BadOutputs,), cost=8,
        memory=60,
    )  # fmt: skip
    yield "logins for registries", Target(
        decode_logins, (LOGINS,),
        ("tasks.executor.containers.logins:decode_logins", "tasks.executor.containers.logins:_login"),
        (ContainerRefused,),
    )  # fmt: skip
    yield "processes of a card", Target(
        lambda data: list(read_process_table(data.decode(errors="replace"))),
        (b"# gpu pid type sm fb command\n# Idx # C/G % MB name\n 0 77 C+G 41 6000 game\n 0 - - - - -\n",),
        ("tasks.executor.containers.watchdog_use:read_process_table",),
    )  # fmt: skip
    yield "a line of a pull", Target(
        lambda data: PullTotals().take(decode_answer(data)), (PULL,),
        ("tasks.executor.containers.engine:decode_answer",), (EngineError, ImageTooLarge),
    )  # fmt: skip
    yield "an image of an engine", Target(
        lambda data: image_facts(decode_answer(data)), (IMAGE, json.dumps({"Id": "x"}).encode()),
        ("tasks.executor.containers.settings:image_facts",), (EngineError, ContainerRefused),
    )  # fmt: skip
