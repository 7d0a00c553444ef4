"""What a requester sees of its running container: the question that it signs, and the sealed answer (R109).

The machine answers the account that has created the task, and nobody else. It seals the answer to a one-time key
of the question, so the gateway's node that carries it reads nothing, nor does a relay.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, DekubeError, SignatureInvalid
from state.primitives.hashing import digest
from state.primitives.keys import SIGNATURE_BYTES, recover_address
from tasks.executor.containers.log_entries import (
    NS_MAX,
    NUMBER_MAX,
    LogPart,
    LogPlace,
    pack_entries,
    unpack_entries,
)

__all__ = [
    "ANSWER_BYTES_MAX",
    "LOG_BYTES_MAX",
    "POINTS_MAX",
    "QUESTION_BYTES_MAX",
    "VIEW_BLOCKS_MAX",
    "Gpu",
    "SeriesPoint",
    "TaskView",
    "ViewQuestion",
    "ViewRefused",
    "decode_question",
    "decode_view",
    "encode_question",
    "encode_view",
    "open_view",
    "requester_of",
    "seal_view",
    "view_digest",
]

QUESTION_BYTES_MAX: Final = 256
ANSWER_BYTES_MAX: Final = 1 << 20
LOG_BYTES_MAX: Final = 256 << 10
"""Bytes of the log in one answer, with what each entry takes beside its text."""
POINTS_MAX: Final = 128
"""Points of the series in one answer."""
VIEW_BLOCKS_MAX: Final = 3_600
"""Blocks for which a question may be signed: about an hour."""
BLOCKS_BEHIND_MAX: Final = 16
"""A machine may be so many blocks ahead of the one that the question was made at."""
KEY_BYTES: Final = 32
STAGES: Final = ("waiting", "pulling", "inputs", "running", "ended")
NUMBER_LETTERS_MAX: Final = 32
NAME_LETTERS_MAX: Final = 64
MESSAGE_LETTERS_MAX: Final = 256
NAMES_MAX: Final = 64
GPUS_MAX: Final = 64
HEIGHT_LIMIT: Final = 1 << 63
_OVERHEAD_BYTES: Final = 48
_SUITE: Final = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)


class ViewRefused(DekubeError):
    """Nobody but a task's requester sees its container; or the question is too old, or asked too often."""

    code = "view_refused"


class ViewQuestion(NamedTuple):
    """A question, signed until a height: ``public`` is the one-time key, ``after`` where the log is read from.

    ``log_bytes`` of 0 asks for no log, ``points_from`` None for no series.
    """

    public: bytes
    until_height: int
    signature: bytes
    after: LogPlace = LogPlace()
    log_bytes: int = 0
    points_from: int | None = None


class Gpu(NamedTuple):
    """A GPU of a container: percent of the time in use, MiB of its memory."""

    percent: int
    memory_mib: int


class SeriesPoint(NamedTuple):
    """A point of what a container reports."""

    number: int
    time_ms: int
    progress: int | None
    metrics: dict[str, float]


class TaskView(NamedTuple):
    """What a machine says of a container; nobody has checked it.

    ``pull`` has the bytes of the image that arrived, and those that are known. ``idle_s`` is how long the counter
    has not moved. Processor load is in thousandths of a core.
    """

    stage: str
    pull: tuple[int, int]
    up_s: int
    idle_s: int
    cpu_permille: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    progress: int | None
    total: int | None
    message: str
    metrics: dict[str, float]
    points: tuple[SeriesPoint, ...]
    log: LogPart


def view_digest(genesis_hash: bytes, task: bytes, public: bytes, until_height: int) -> bytes:
    """Return what a requester signs to see ``task`` up to a block of the chain of ``genesis_hash``."""
    return digest(b"task view", encode([genesis_hash, task, public, until_height]))


def encode_question(question: ViewQuestion) -> bytes:
    """Return a question as bytes."""
    return encode([*question[:3], list(question.after), *question[4:]])


def decode_question(data: bytes) -> ViewQuestion:
    """Return the question of bytes. Raises DecodeError."""
    match decode(data, limit_bytes=QUESTION_BYTES_MAX):
        case [
            bytes(public), int(until), bytes(signature), [int(ns), int(number)], int(log_bytes),
            (int() | None) as points_from,
        ] if (
            (len(public), len(signature)) == (KEY_BYTES, SIGNATURE_BYTES) and 0 <= until < HEIGHT_LIMIT
            and 0 <= ns < NS_MAX and 0 <= number < NUMBER_MAX and 0 <= log_bytes <= LOG_BYTES_MAX
            and (points_from is None or 0 <= points_from < NUMBER_MAX)
        ):  # fmt: skip
            return ViewQuestion(public, until, signature, LogPlace(ns, number), log_bytes, points_from)
        case _:
            raise DecodeError("[key, height, signature, [ns, number], bytes of log, points from] expected")


def requester_of(question: ViewQuestion, *, genesis_hash: bytes, task: bytes, height: int) -> bytes:
    """Return the account that has signed a question. Raises ViewRefused."""
    until = question.until_height
    if not height - BLOCKS_BEHIND_MAX <= until <= height + VIEW_BLOCKS_MAX + BLOCKS_BEHIND_MAX:
        raise ViewRefused(f"the question is good until block {until}, this is block {height}")
    try:
        return recover_address(view_digest(genesis_hash, task, question.public, until), question.signature)
    except SignatureInvalid as error:
        raise ViewRefused(str(error)) from None


def _info(task: bytes, worker: bytes) -> bytes:
    return encode(["dekube view", task, worker])


def seal_view(view: TaskView, public: bytes, *, task: bytes, worker: bytes) -> bytes:
    """Return a view that only the holder of the one-time key reads. Raises ViewRefused for a bad key."""
    try:
        return _SUITE.encrypt(encode_view(view), X25519PublicKey.from_public_bytes(public), _info(task, worker))
    except ValueError:
        raise ViewRefused("nothing can be sealed to this one-time key") from None


def open_view(sealed: bytes, secret: bytes, *, task: bytes, worker: bytes) -> TaskView:
    """Return the view of a sealed answer. Raises DecodeError."""
    if not _OVERHEAD_BYTES < len(sealed) <= ANSWER_BYTES_MAX:
        raise DecodeError(f"an answer of {len(sealed)} bytes")
    try:
        data = _SUITE.decrypt(sealed, X25519PrivateKey.from_private_bytes(secret), _info(task, worker))
    except (InvalidTag, ValueError):
        raise DecodeError("the answer does not open with the key of the question") from None
    return decode_view(data)


def _numbers_to_text(metrics: dict[str, float]) -> str:
    return " ".join(f"{name}={float(number)!r}" for name, number in sorted(metrics.items()))


def encode_view(view: TaskView) -> bytes:
    """Return a view as bytes."""
    log = view.log
    return encode([
        STAGES.index(view.stage), list(view.pull), view.up_s, view.idle_s, view.cpu_permille, view.memory_bytes,
        [list(gpu) for gpu in view.gpus], view.progress, view.total, view.message,
        _numbers_to_text(view.metrics),
        [[*point[:3], _numbers_to_text(point.metrics)] for point in view.points],
        [pack_entries(log.entries), list(log.place), int(log.is_cut), int(log.has_more)],
    ])  # fmt: skip


def decode_view(data: bytes) -> TaskView:
    """Return the view of bytes: they are a stranger's. Raises DecodeError."""
    match decode(data, limit_bytes=ANSWER_BYTES_MAX):
        case [
            int(stage), [int(here), int(known)], int(up_s), int(idle_s), int(cpu), int(memory), list(gpus),
            (int() | None) as progress, (int() | None) as total, str(message), str(metrics), list(points),
            [bytes(entries), [int(ns), int(number)], int(is_cut), int(has_more)],
        ] if (
            0 <= stage < len(STAGES) and min(here, known, up_s, idle_s, cpu, memory) >= 0
            and max(here, known, up_s, idle_s, cpu, memory) < 1 << 63 and len(message) <= MESSAGE_LETTERS_MAX
            and len(gpus) <= GPUS_MAX and len(points) <= POINTS_MAX
            and 0 <= ns < NS_MAX and 0 <= number < NUMBER_MAX and {is_cut, has_more} <= {0, 1}
        ):  # fmt: skip
            return TaskView(
                STAGES[stage], (here, known), up_s, idle_s, cpu, memory, tuple(map(_gpu, gpus)),
                _counter(progress), _counter(total), message, _numbers(metrics), tuple(map(_point, points)),
                LogPart(unpack_entries(entries), LogPlace(ns, number), is_cut == 1, has_more == 1),
            )  # fmt: skip
        case _:
            raise DecodeError("not what a machine says of a container")


def _counter(value: int | None) -> int | None:
    if value is not None and not 0 <= value < 1 << 63:
        raise DecodeError("not a counter")
    return value


def _gpu(value: Any) -> Gpu:
    match value:
        case [int(percent), int(memory)] if 0 <= percent <= 100 and 0 <= memory < 1 << 40:
            return Gpu(percent, memory)
        case _:
            raise DecodeError("not the use of a GPU")


def _point(value: Any) -> SeriesPoint:
    match value:
        case [int(number), int(time_ms), (int() | None) as progress, str(metrics)] if (
            0 <= number < NUMBER_MAX and 0 <= time_ms < 1 << 63
        ):
            return SeriesPoint(number, time_ms, _counter(progress), _numbers(metrics))
        case _:
            raise DecodeError("not a point of a series")


def _numbers(text: str) -> dict[str, float]:
    items = text.split(" ") if text else []
    if len(items) > NAMES_MAX or len(text) > NAMES_MAX * (NAME_LETTERS_MAX + NUMBER_LETTERS_MAX):
        raise DecodeError("too many numbers")
    found = {name: _number(number) for name, _, number in (item.partition("=") for item in items)}
    if len(found) != len(items) or any(not name for name in found):
        raise DecodeError("a number without a name, or one twice")
    return found


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DecodeError("not a finite number")
    return number
