"""Decoders around containers: logs and archives of an engine, a file of logins, lines of a pull."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress

from node.market.container_checkpoints import (
    CheckpointNote,
    decode_checkpoint_note,
    encode_checkpoint_note,
)
from node.market.container_files import ContainerNote, decode_container_note, encode_container_note
from node.market.gpu_use import parse_gpu_use
from node.market.task_views import decode_view_request
from rpc.protocol.task_views import (
    Gpu,
    SeriesPoint,
    TaskView,
    ViewQuestion,
    decode_question,
    decode_view,
    encode_question,
    encode_view,
)
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from tasks.custody.container_keys import LOG as LOG_RESULT
from tasks.custody.container_keys import earlier_key, open_checkpoint, open_result, seal_checkpoint, seal_terms
from tasks.custody.errors import SecretsInvalid, StreamInvalid, WrapInvalid
from tasks.custody.secrets import ContainerSecrets, decode_secrets, encode_secrets
from tasks.custody.streams import open_stream, seal_stream
from tasks.executor.containers.egress.client_hello import HelloReader
from tasks.executor.containers.egress.targets import read_authority, read_url
from tasks.executor.containers.engine import decode_answer
from tasks.executor.containers.errors import BadOutputs, ContainerRefused, EngineError, ImageTooLarge
from tasks.executor.containers.gpu_devices import parse_devices
from tasks.executor.containers.images import PullTotals
from tasks.executor.containers.log_entries import (
    LogEntry,
    LogPart,
    LogPlace,
    pack_entries,
    unpack_entries,
)
from tasks.executor.containers.log_lines import parse_entry
from tasks.executor.containers.log_stream import LogFrames
from tasks.executor.containers.logins import decode_logins
from tasks.executor.containers.masking import masked
from tasks.executor.containers.outputs import pack_outputs
from tasks.executor.containers.progress_pattern import ProgressPattern
from tasks.executor.containers.progress_report import decode_report
from tasks.executor.containers.settings import image_facts
from tasks.executor.containers.watchdog_use import read_process_table
from tasks.kinds.container import ExitKind
from tasks.kinds.egress import egress_fault
from tasks.ledger.meter_records import ContainerEnd
from tests.fuzz.targets.base import Target, canonical

OUTPUT_BYTES = 1 << 16
STREAM_KEY = b"k" * 32
TERMS = seal_terms(STREAM_KEY, b"s" * 32, is_private=True, blob=bytes(32), size_bytes=0)
SEALED_LOG = bytes.fromhex(
    "913445df103cecf9a0663649829cbf5894ec78cfd96b56d5dd00b69f2aad7e430280e23cb0f17ce18a725ae850c43abd05e0ddf1de91ed"
    "82bc8d00ce4ed07320ac3865e3299af7b0c52c71d8dac5400873737373737373737373737373737373737373737373737373737373737373"
    "739e36e4e5a00fe47abdf3a53d08029ef0b5988b"
)
"""A log that was sealed to the results' key of TERMS."""
SECRETS = (
    ContainerSecrets(), ContainerSecrets([("A", "x"), ("B", "y")], [("/run/secrets/k", b"z")], ("user", "pass")),
)  # fmt: skip
_EXTENSIONS = b"\0\0\0\x0a\0\x08\0\0\x05a.b.c"
_BODY = b"\x03\x03" + bytes(32) + b"\0\0\x02\x13\x01\x01\0\0\x0e" + _EXTENSIONS
HELLO = b"\x16\x03\x01\0" + bytes([len(_BODY) + 4]) + b"\x01\0\0" + bytes([len(_BODY)]) + _BODY
END = ContainerEnd(ExitKind.EXITED, 3, b"o" * 32, 10_240, b"", 0, b"")
NOTES = ContainerNote(), ContainerNote(60, 5, END), ContainerNote(60, 5, END, b"s" * 32)
LOG = b"\x01\0\0\0\0\0\0\x05begun\x02\0\0\0\0\0\0\x06failed"
LOGINS = b'{"auths": {"registry.test:5000": {"auth": "a2VlcGVyOmNvcnJlY3QgaG9yc2U="}}}'
ENTRIES = (LogEntry(1, 1, b"begun\n"), LogEntry(2, 2, b""))
LINE = b"2025-01-31T10:00:00.123456789Z begun\n"
REPORT = b'{"progress": 5, "total": 9, "message": "epoch 1", "metrics": {"loss": 0.25}}'
QUESTION = ViewQuestion(b"p" * 32, 900, b"s" * 65, LogPlace(5, 1), 4_096, 3)
VIEW = TaskView(
    "running", (5, 9), 60, 3, 980, 1 << 20, (Gpu(50, 1_024),), 5, 9, "epoch 1", {"loss": 0.25},
    (SeriesPoint(1, 5, 4, {"loss": 0.5}),), LogPart(ENTRIES, LogPlace(2, 1), False, True),
)  # fmt: skip
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


def _targets(data: bytes) -> None:
    for read in (read_authority, lambda url: read_url(url)[0]):
        with suppress(DecodeError):
            assert egress_fault((read(data).entry,)) == "", "a target that is no entry"


def targets() -> Iterator[tuple[str, Target]]:
    yield "log of a container", Target(
        lambda data: LogFrames().feed(data), (LOG,), ("tasks.executor.containers.log_stream:LogFrames.feed",),
        (EngineError,),
    )  # fmt: skip
    yield "note of a container", Target(
        canonical(decode_container_note, encode_container_note),
        tuple(encode_container_note(note) for note in NOTES),
        ("node.market.container_files:decode_container_note",),
    )  # fmt: skip
    yield "note of a checkpoint", Target(
        canonical(decode_checkpoint_note, encode_checkpoint_note),
        tuple(
            encode_checkpoint_note(CheckpointNote(5, leaves, blobs))
            for leaves, blobs in ((False, ()), (True, (b"a" * 32, b"b" * 32)))
        ),
        ("node.market.container_checkpoints:decode_checkpoint_note",),
    )  # fmt: skip
    yield "secrets of a container", Target(
        canonical(decode_secrets, encode_secrets), tuple(map(encode_secrets, SECRETS)),
        ("tasks.custody.secrets:decode_secrets",), (SecretsInvalid,),
    )  # fmt: skip
    yield "a sealed stream", Target(
        lambda data: b"".join(open_stream(STREAM_KEY, [data])),
        (b"".join(seal_stream(STREAM_KEY, b"s" * 32, [b"content" * 9])),),
        ("tasks.custody.streams:open_stream",), (StreamInvalid,),
    )  # fmt: skip
    yield "a sealed result", Target(
        lambda data: b"".join(open_result(STREAM_KEY, TERMS, [data], task=b"t" * 32, what=LOG_RESULT)),
        (SEALED_LOG,),
        ("tasks.custody.container_keys:open_result", "tasks.custody.wraps:unwrap_result_key"),
        (StreamInvalid, WrapInvalid), cost=4,
    )  # fmt: skip
    yield "a sealed checkpoint", Target(
        lambda data: b"".join(open_checkpoint(STREAM_KEY, 2, [data])),
        tuple(
            b"".join(seal_checkpoint(earlier_key(STREAM_KEY, 2 - run), run, b"s" * 32, [b"state" * 9]))
            for run in (0, 2)
        ),
        ("tasks.custody.container_keys:open_checkpoint",), (StreamInvalid,),
    )  # fmt: skip
    yield "a log with secrets", Target(
        lambda data: masked((b"secret-value", b"another secret"), data), (b"a secret-value, a bm90aGVyIHNlY3Jl",),
        ("tasks.executor.containers.masking:Masker.feed",), (),
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
    yield "the first bytes of TLS", Target(
        lambda data: HelloReader().feed(data), (HELLO, HELLO[:9]),
        ("tasks.executor.containers.egress.client_hello:HelloReader.feed",),
    )  # fmt: skip
    yield "what a proxy is asked for", Target(
        _targets, (b"files.example.net:443", b"http://files.example.net/x"),
        (
            "tasks.executor.containers.egress.targets:read_authority",
            "tasks.executor.containers.egress.targets:read_url",
        ),
    )  # fmt: skip
    yield "an entry of a log", Target(
        lambda data: parse_entry(1, data), (LINE,),
        ("tasks.executor.containers.log_lines:parse_entry",), (EngineError,),
    )  # fmt: skip
    yield "entries of a log", Target(
        lambda data: unpack_entries(data), (pack_entries(ENTRIES),),
        ("tasks.executor.containers.log_entries:unpack_entries", "node.market.container_logs:ContainerLogs._load"),
    )  # fmt: skip
    yield "a counter in a log", Target(
        lambda data: ProgressPattern("step ").feed(data), (b"step 12 of 90\n",),
        ("tasks.executor.containers.progress_pattern:ProgressPattern.feed",),
    )  # fmt: skip
    yield (
        "a report of a container",
        Target(decode_report, (REPORT,), ("tasks.executor.containers.progress_report:decode_report",)),
    )
    yield "a question about a container", Target(
        canonical(decode_question, encode_question), (encode_question(QUESTION),),
        ("rpc.protocol.task_views:decode_question",),
    )  # fmt: skip
    yield "a request about a container", Target(
        decode_view_request, (encode([b"t" * 32, encode_question(QUESTION)]),),
        ("node.market.task_views:decode_view_request",),
    )  # fmt: skip
    yield (
        "what a machine says of a container",
        Target(lambda data: decode_view(data), (encode_view(VIEW),), ("rpc.protocol.task_views:decode_view",)),
    )
    yield "the use of GPUs", Target(
        lambda data: parse_gpu_use(data.decode("utf-8", "replace"), ("GPU-1", "0")), (b"GPU-1, 0, 51, 1024",),
        ("node.market.gpu_use:parse_gpu_use",),
    )  # fmt: skip
    yield "devices of GPUs", Target(
        lambda data: parse_devices(data.decode("utf-8", "replace"), "0, 40960"),
        (b"GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n  MIG 1g.5gb      Device  0: (UUID: MIG-2)\n",),
        ("tasks.executor.containers.gpu_devices:parse_devices",),
    )  # fmt: skip
