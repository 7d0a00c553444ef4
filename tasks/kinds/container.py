"""The kind ``container``: a command in an image, paid by the second, that nobody checks (market.md R93).

Assurance V0: no program, no segments, no state. A step is one second, and a window is a tick of the meter.
"""

from __future__ import annotations

import re
from enum import IntEnum, IntFlag
from itertools import pairwise
from typing import Any, Final, NamedTuple

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from tasks.engines.errors import UnsupportedJob
from tasks.kinds.egress import egress_fault
from tasks.kinds.fields import Found, KindFields
from tasks.kinds.plan import Input
from tasks.programs.program import Program
from tasks.programs.tensors import TensorType

__all__ = [
    "ARCHIVED",
    "CHECKPOINT_BYTES_MAX",
    "CHECKPOINT_EVERY_S_MAX",
    "CHECKPOINT_EVERY_S_MIN",
    "CONTAINER_FIELDS",
    "CONTAINER_NAMES",
    "IDLE_S_MAX",
    "KIND_CONTAINER",
    "LEVEL_METERED",
    "LEVEL_QUORUM",
    "LOG_BYTES_MAX",
    "MEMORY_MIB_MIN",
    "METER_PROGRESS",
    "METER_RESERVED",
    "OUTPUT_BYTES_MAX",
    "PROFILE_METERED_1",
    "SECONDS_MAX",
    "SECOND_UNITS_MAX",
    "SECRETS_SEALED_BYTES",
    "TICK_S_MAX",
    "TICK_S_MIN",
    "Allowance",
    "Checkpoint",
    "ContainerPart",
    "ContainerPlan",
    "ExitKind",
    "Image",
    "MachineLimit",
    "Metering",
    "Mount",
    "MountForm",
    "Process",
    "SealTerms",
    "Storage",
    "check_container",
    "is_container_path",
]

KIND_CONTAINER: Final = "container"
LEVEL_METERED: Final = 0
"""Assurance V0: seconds are metered, and nothing about the work is proven."""
LEVEL_QUORUM: Final = 1
"""Assurance V1: machines of different owners run it, and what most of them left counts (R113)."""
PROFILE_METERED_1: Final = "metered/1"
METER_RESERVED: Final = "reserved"
"""What is paid are seconds for which the machine is reserved, whether the container uses it or not."""
METER_PROGRESS: Final = "progress"
"""What is paid are seconds in which the container's counter moves; one that stands still is ended (R108)."""
PATTERN_LENGTH_MAX: Final = 64
IDLE_S_MAX: Final = 86_400
REPOSITORY_LENGTH_MAX: Final = 255
COMMAND_MAX: Final = 256
ENVIRONMENT_MAX: Final = 128
MOUNTS_MAX: Final = 16
PATH_LENGTH_MAX: Final = 255
MOUNT_BYTES_MAX: Final = 1 << 40
ARCHIVED: Final = "archive"
"""Stands for the repository of an image that comes as a blob."""
OUTPUT_BYTES_MAX: Final = 1 << 32
LOG_BYTES_MAX: Final = 1 << 20
"""The last bytes of what a container has printed are kept."""
DISK_MIB_MIN: Final = 16
DISK_MIB_MAX: Final = 1 << 24
MEMORY_MIB_MIN: Final = 16
CORES_MAX: Final = 1024
SECRETS_SEALED_BYTES: Final = (4_144, 16_432, 65_584)
"""Sizes of sealed secrets: so a size says little (``tasks.custody.secrets``)."""
USER_MAX: Final = 65_535
TICK_S_MIN: Final = 10
TICK_S_MAX: Final = 3_600
SECONDS_MAX: Final = 30 * 86_400
GRACE_S_MIN: Final = 10
GRACE_S_MAX: Final = 3_600
RETRIES_MAX: Final = 8
AGAIN_MAX: Final = 16
CODE_MAX: Final = 255
CHECKPOINT_EVERY_S_MIN: Final = 10
CHECKPOINT_EVERY_S_MAX: Final = 3_600
CHECKPOINT_BYTES_MAX: Final = 1 << 32
SECOND_UNITS_MAX: Final = 1 << 47
"""Work units that a second may count: a price of all seconds stays within the range of amounts."""

_HOST: Final = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]{1,5})?/)?"
_PATH_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(f"{_HOST}{_PATH_PART}(?:/{_PATH_PART})*", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_BARRED: Final = ("/proc", "/sys", "/dev", "/scratch", "/tmp", "/var/tmp", "/run")  # noqa: S108  names, not used
"""Folders of the machine's own in every container."""


class MountForm(IntEnum):
    """What the blob of a mount is."""

    FILE = 0
    FOLDER = 1
    """A packed folder (``tasks.kinds.folders``)."""
    SEALED_FILE = 2
    """A file, sealed under the task's key (``tasks.custody.streams``)."""
    SEALED_FOLDER = 3

    @property
    def is_folder(self) -> bool:
        """Whether it is a packed folder, sealed or not."""
        return self in (MountForm.FOLDER, MountForm.SEALED_FOLDER)

    @property
    def is_sealed(self) -> bool:
        """Whether only those who have the task's key can read it."""
        return self in (MountForm.SEALED_FILE, MountForm.SEALED_FOLDER)

    @property
    def sealed(self) -> MountForm:
        """The sealed form of the same content."""
        return MountForm.SEALED_FOLDER if self.is_folder else MountForm.SEALED_FILE


class ExitKind(IntEnum):
    """How a container ended; stable numbers."""

    EXITED = 1
    """``code`` is its exit code."""
    SIGNALLED = 2
    """``code`` is the number of the signal."""
    OUT_OF_MEMORY = 3
    OUT_OF_DISK = 4
    NOT_STARTED = 5
    """The image has no such command, or is for another kind of processor."""
    STOPPED = 6
    """Its requester stopped it, or its time was used up."""
    IDLE = 7
    """Its counter stood still for ``idle_s`` (R108)."""


class Allowance(IntFlag):
    """What a requester puts up with in a machine; stable numbers."""

    LEAVING = 1
    """It may leave at any time (R104)."""
    UNISOLATED = 2
    """Its containers may reach a network (R122)."""


class MachineLimit(IntFlag):
    """What the containers of a machine lack; bits among those of its roles (``tasks.ledger.registry``)."""

    UNISOLATED = 64
    """It was not seen that they reach no network."""
    NO_ROOT = 256
    """None of them has user 0."""
    NO_ARCHIVES = 512
    """None of them has an image that comes as a blob (R147)."""


class Image(NamedTuple):
    """An image: the repository that it is pulled from, and the SHA-256 of its manifest.

    With a ``blob`` of ``size_bytes`` it comes as an archive (``tasks.kinds.image_archives``), and its repository
    is ``ARCHIVED``.
    """

    repository: str
    digest: bytes
    blob: bytes = b""
    size_bytes: int = 0

    @property
    def reference(self) -> str:
        """The reference that container engines take."""
        return f"{self.repository}@sha256:{self.digest.hex()}"


class Process(NamedTuple):
    """What runs in the image. No ``command`` is that of the image; ``environment`` has ``NAME=value``, sorted.

    ``user`` is user and group. ``egress`` are the names that it may reach (``tasks.kinds.egress``), sorted.
    """

    command: tuple[str, ...]
    environment: tuple[str, ...]
    user: int
    egress: tuple[str, ...] = ()


class Mount(NamedTuple):
    """A blob at a path of the container, read only."""

    path: str
    blob: bytes
    size_bytes: int
    form: MountForm


class Storage(NamedTuple):
    """Mounts, the folder whose content is the result (empty: none) with its most bytes, and the reserved disk."""

    mounts: tuple[Mount, ...]
    output: str
    output_bytes_max: int
    disk_mib: int


class Metering(NamedTuple):
    """What is metered; how long the meter may be silent beyond a tick; how often another machine begins again.

    With the meter ``progress``: how long the counter may stand still, in whole ticks, and a text before it in the
    log (empty: only what the container says at its socket counts). After an exit code of ``again``, ascending,
    another machine goes on.
    """

    name: str
    grace_s: int
    retries: int
    idle_s: int = 0
    pattern: str = ""
    again: tuple[int, ...] = ()


class Checkpoint(NamedTuple):
    """A writable folder that is stored every ``every_s`` seconds, and is there again on the next machine (R103).

    As it is packed it has ``bytes_max`` at most.
    """

    path: str
    every_s: int
    bytes_max: int


class SealTerms(NamedTuple):
    """What a specification says of a sealed container: of its task's key, its results' key and its secrets (R98).

    The key follows from the requester's account and ``salt``. With ``is_private`` mounts and results are sealed,
    the results to ``results_key``. ``blob`` are the sealed secrets; ``size_bytes`` is 0 if there are none.
    """

    salt: bytes
    key_hash: bytes
    results_key: bytes
    is_private: int
    blob: bytes
    size_bytes: int


class ContainerPlan:
    """The plan of a container's seconds: no program and no state."""

    def __init__(self, second_units: int) -> None:
        """For seconds that count as ``second_units`` work units."""
        self.step_units = second_units
        self.state_limit_bytes = 0
        self.parameters = 0
        self.seed = bytes(HASH_BYTES)

    @property
    def program(self) -> Program:
        """There is none. Raises UnsupportedJob."""
        raise UnsupportedJob("a container has no program: nobody can check it")

    def check(self) -> None:
        """Nothing is computed that could leave a range."""

    def tensors(self) -> dict[str, TensorType]:
        """Return no tensors."""
        return {}

    def alike(self) -> tuple[tuple[int, str, TensorType], ...]:
        """Return no tensors."""
        return ()


class ContainerPart(NamedTuple):
    """What a specification of this kind has of its own."""

    image: Image
    process: Process
    storage: Storage
    cores: int
    metering: Metering
    checkpoint: Checkpoint | None = None
    allows: int = int(Allowance.LEAVING)
    """What its requester puts up with (``Allowance``)."""
    sealed: SealTerms | None = None

    @classmethod
    def of(cls, found: Found) -> ContainerPart:
        """Return the part of fields whose types are checked."""
        return cls(
            Image(*[found[f"image.{name}"] for name in Image._fields if f"image.{name}" in found]),
            Process(
                tuple(found["process.command"]), tuple(found["process.environment"]), found["process.user"],
                tuple(found.get("process.egress", ())),
            ),
            Storage(
                tuple(_mount(item) for item in found["storage.mounts"]), found["storage.output"],
                found["storage.output_bytes_max"], found["storage.disk_mib"],
            ),
            found["cores"],
            Metering(
                **{name: found[f"metering.{name}"] for name in Metering._fields[:-1]},
                again=tuple(found["metering.again"]),
            ),
            Checkpoint(*[found[f"checkpoint.{name}"] for name in Checkpoint._fields])
            if "checkpoint.path" in found else None,
            found["allows"],
            None if "sealed.salt" not in found
            else SealTerms(*[found[f"sealed.{name}"] for name in SealTerms._fields]),
        )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        """What must be named as this version runs it."""
        return (self.metering.name,)

    @property
    def dataset(self) -> Any:
        """A container has mounts and no rows. Raises UnsupportedJob."""
        raise UnsupportedJob("a container has no data set")

    @property
    def is_interruptible(self) -> bool:
        """Whether its machine may leave at any time; else only one that has offered to stay is matched (R104)."""
        return bool(self.allows & Allowance.LEAVING)

    @property
    def refused(self) -> MachineLimit:
        """The limits that a machine of this container may not have (R122)."""
        found = MachineLimit(0)
        if not self.allows & Allowance.UNISOLATED:
            found |= MachineLimit.UNISOLATED
        if self.process.user == 0:
            found |= MachineLimit.NO_ROOT
        if self.image.blob:
            found |= MachineLimit.NO_ARCHIVES
        return found

    @property
    def is_private(self) -> bool:
        """Whether its mounts and its results are sealed."""
        return self.sealed is not None and bool(self.sealed.is_private)

    @property
    def later_runs(self) -> int:
        """How many runs of other machines may follow on the first one, each with a key of its own (R127).

        Without a checkpoint that is sealed no machine reads what another one made: one key is for all.
        """
        return self.metering.retries if self.is_private and self.checkpoint is not None else 0

    @property
    def blobs(self) -> tuple[tuple[bytes, int], ...]:
        """Name and most bytes of each blob that its machine fetches: mounts, image and sealed secrets."""
        found = [(mount.blob, mount.size_bytes) for mount in self.storage.mounts]
        if self.image.blob:
            found.append((self.image.blob, self.image.size_bytes))
        if self.sealed is not None and self.sealed.size_bytes:
            found.append((self.sealed.blob, self.sealed.size_bytes))
        return tuple(found)

    @property
    def inputs_bytes(self) -> int:
        """Bytes of all mounts, and of an image that comes as a blob."""
        return self.image.size_bytes + sum(mount.size_bytes for mount in self.storage.mounts)

    def to_value(self) -> list[Value]:
        """Return the part's fields in their order."""
        mounts, output, most, disk = self.storage
        command, environment, user, egress = self.process
        return [
            [*self.image[: None if self.image.blob else 2]],
            [list(command), list(environment), user, *([[*egress]] if egress else ())],
            [[[*mount[:3], int(mount.form)] for mount in mounts], output, most, disk], self.cores,
            [*self.metering[:-1], list(self.metering.again)],
            [] if self.checkpoint is None else list(self.checkpoint), self.allows,
            [] if self.sealed is None else list(self.sealed),
        ]  # fmt: skip

    def inputs(self) -> tuple[Input, ...]:
        """Return nothing: no root of tensors names what a container reads."""
        return ()


def _mount(item: Any) -> Mount:
    match item:
        case [str(path), bytes(blob), int(size), int(form)] if (
            len(blob) == HASH_BYTES and 0 <= size <= MOUNT_BYTES_MAX and form in set(MountForm)
        ):
            return Mount(path, blob, size, MountForm(form))
        case _:
            raise DecodeError("not a job specification: storage.mounts: [path, blob, bytes, form] expected")


CONTAINER_NAMES: Final = (METER_RESERVED, METER_PROGRESS)
"""The meters; a job names one."""
CONTAINER_FIELDS: Final = KindFields(
    fields=(
        ("image", list, Image._fields), ("process", list, Process._fields), ("storage", list, Storage._fields),
        ("cores", int, ()), ("metering", list, Metering._fields), ("checkpoint", list, Checkpoint._fields),
        ("allows", int, ()), ("sealed", list, SealTerms._fields),
    ),
    ranges={
        "process.user": (0, USER_MAX), "cores": (1, CORES_MAX),
        "storage.output_bytes_max": (0, OUTPUT_BYTES_MAX), "storage.disk_mib": (DISK_MIB_MIN, DISK_MIB_MAX),
        "metering.grace_s": (GRACE_S_MIN, GRACE_S_MAX), "metering.retries": (0, RETRIES_MAX),
        "checkpoint.every_s": (CHECKPOINT_EVERY_S_MIN, CHECKPOINT_EVERY_S_MAX),
        "checkpoint.bytes_max": (1, CHECKPOINT_BYTES_MAX), "allows": (0, int(max(Allowance)) * 2 - 1),
        "metering.idle_s": (0, IDLE_S_MAX),
        "image.size_bytes": (1, MOUNT_BYTES_MAX),
        "sealed.is_private": (0, 1), "sealed.size_bytes": (0, SECRETS_SEALED_BYTES[-1]),
    },
    hashes=frozenset({
        "image.digest", "image.blob", "sealed.salt", "sealed.key_hash", "sealed.results_key", "sealed.blob",
    }),
    texts=frozenset({
        "image.repository", "storage.output", "metering.name", "metering.pattern", "checkpoint.path",
    }),
    integers=frozenset({"metering.again"}),
    names=frozenset({"process.command", "process.environment", "process.egress"}),
    trailing={"image": 2, "process": 1},
    optional=frozenset({"checkpoint", "sealed"}),
    lists=frozenset({"storage.mounts"}),
)  # fmt: skip


def _wrong(field: str, text: str) -> DecodeError:
    return DecodeError(f"not a job specification: {field}: {text}")


def check_container(part: ContainerPart) -> None:
    """Check what types alone do not: names, paths, and what they allow together. Raises DecodeError."""
    repository = part.image.repository
    if len(repository) > REPOSITORY_LENGTH_MAX or not _REPOSITORY.fullmatch(repository):
        raise _wrong("image.repository", "a repository as docker.io/library/python expected, without a tag")
    if (repository == ARCHIVED) != bool(part.image.blob):
        raise _wrong("image.repository", f"{ARCHIVED} with a blob, and only then")
    command, environment, _, egress = part.process
    if len(command) > COMMAND_MAX or any("\0" in word for word in command):
        raise _wrong("process.command", f"{COMMAND_MAX} words at most, without the byte 0")
    _check_environment(environment)
    if fault := egress_fault(egress):
        raise _wrong("process.egress", fault)
    _check_paths(part.storage, part.checkpoint)
    _check_metering(part.metering)
    _check_sealed(part)


def _check_metering(metering: Metering) -> None:
    pattern = metering.pattern
    if len(pattern) > PATTERN_LENGTH_MAX or not (pattern.isascii() and pattern.isprintable()):
        raise _wrong("metering.pattern", f"{PATTERN_LENGTH_MAX} printable letters of ASCII at most")
    if pattern[-1:].isdigit():
        raise _wrong("metering.pattern", "it ends before the number, not with a digit")
    if metering.name == METER_RESERVED and (metering.idle_s or pattern):
        raise _wrong("metering.idle_s", "it goes with the meter progress, and so does a pattern")
    if metering.name == METER_PROGRESS and not metering.idle_s:
        raise _wrong("metering.idle_s", "above 0 with the meter progress")
    codes = metering.again
    is_range = min(codes, default=1) >= 1 and max(codes, default=1) <= CODE_MAX
    if list(codes) != sorted(set(codes)) or len(codes) > AGAIN_MAX or not is_range:
        raise _wrong("metering.again", f"{AGAIN_MAX} codes from 1 to {CODE_MAX} at most, ascending")
    if codes and not metering.retries:
        raise _wrong("metering.again", "no other machine goes on: retries is 0")


def _check_sealed(part: ContainerPart) -> None:
    """Check what is sealed: all mounts or none, and secrets of one of few sizes (R98)."""
    if any(mount.form.is_sealed != part.is_private for mount in part.storage.mounts):
        raise _wrong("storage.mounts", "all sealed in a private container, none in another one")
    if part.sealed is None:
        return
    if part.sealed.size_bytes not in (0, *SECRETS_SEALED_BYTES):
        raise _wrong("sealed.size_bytes", f"0 or one of {SECRETS_SEALED_BYTES} expected")
    if bool(part.sealed.size_bytes) != any(part.sealed.blob):
        raise _wrong("sealed.blob", "zeros without secrets, and with them a name")
    if not part.sealed.is_private and not part.sealed.size_bytes:
        raise _wrong("sealed", "empty where nothing is sealed")


def _check_environment(environment: tuple[str, ...]) -> None:
    names = [item.partition("=")[0] for item in environment]
    if len(environment) > ENVIRONMENT_MAX or names != sorted(set(names)):
        raise _wrong("process.environment", f"{ENVIRONMENT_MAX} names at most, sorted, each once")
    for item, name in zip(environment, names, strict=True):
        if "=" not in item or "\0" in item or not _NAME.fullmatch(name):
            raise _wrong("process.environment", f"NAME=value expected, not {item[:40]!r}")
        if name.startswith("DEKUBE_"):
            raise _wrong("process.environment", f"{name[:40]}: names with DEKUBE_ are the machine's own")


def _check_paths(storage: Storage, checkpoint: Checkpoint | None) -> None:
    if len(storage.mounts) > MOUNTS_MAX:
        raise _wrong("storage.mounts", f"{MOUNTS_MAX} at most")
    if bool(storage.output) != bool(storage.output_bytes_max):
        raise _wrong("storage.output_bytes_max", "above 0 with an output folder, 0 without one")
    paths = [mount.path for mount in storage.mounts]
    if paths != sorted(paths):
        raise _wrong("storage.mounts", "sorted by their paths expected")
    if checkpoint is not None and not is_container_path(checkpoint.path):
        raise _wrong("checkpoint.path", f"{checkpoint.path[:80]!r} is no path that a container may have one at")
    if checkpoint is not None and checkpoint.bytes_max > storage.disk_mib << 20:
        raise _wrong("checkpoint.bytes_max", f"more than the disk of {storage.disk_mib} MiB")
    for path in (*paths, *([storage.output] if storage.output else [])):
        if not is_container_path(path):
            raise _wrong("storage", f"{path[:80]!r} is no path that a container may have something at")
    own = "" if checkpoint is None else checkpoint.path
    folders = sorted(path[1:].split("/") for path in (*paths, storage.output, own) if path)
    for one, other in pairwise(folders):
        if other[: len(one)] == one:
            name = "checkpoint.path" if own and own[1:].split("/") in (one, other) else "storage"
            raise _wrong(name, f"/{'/'.join(other)[:80]} lies in another mount, output or checkpoint")


def is_container_path(path: str) -> bool:
    """Tell whether a container may have a mount or its output at a path.

    It is absolute and normal, and no folder of the machine's own.
    """
    if not path.startswith("/") or path == "/" or len(path) > PATH_LENGTH_MAX or not path.isprintable():
        return False
    if ":" in path or "\\" in path or "," in path or any(part in ("", ".", "..") for part in path[1:].split("/")):
        return False
    return not any(path == barred or path.startswith(barred + "/") for barred in _BARRED)
