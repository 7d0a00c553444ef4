"""What a container is asked to be: image, process, inputs, outputs and limits, all checked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tasks.custody.secrets import NO_SECRETS, ContainerSecrets
from tasks.executor.containers.errors import RequestInvalid
from tasks.kinds.egress import egress_fault

__all__ = [
    "ARGUMENTS_MAX",
    "DIGEST_BYTES",
    "MOUNTS_MAX",
    "NOBODY",
    "OUTPUT_PATH",
    "RESTORED",
    "SCRATCH_PATH",
    "ContainerRequest",
    "Image",
    "InputMount",
    "Limits",
    "is_among",
]

DIGEST_BYTES: Final = 32
ARGUMENTS_MAX: Final = 256
ARGUMENT_BYTES_MAX: Final = 32 << 10
"""Bytes of all arguments together, and of all of the environment."""
VARIABLES_MAX: Final = 128
MOUNTS_MAX: Final = 32
PATH_BYTES_MAX: Final = 255
REPOSITORY_BYTES_MAX: Final = 255
NOBODY: Final = 65_534
IDENTITIES: Final = 1 << 16
CORES_MAX: Final = 1_024
MEMORY_MIB_MIN: Final = 16
MEMORY_MIB_MAX: Final = 1 << 24
DISK_MIB_MIN: Final = 16
DISK_MIB_MAX: Final = 1 << 24
OUTPUT_BYTES_LIMIT: Final = 1 << 40
TIME_LIMIT_S_MAX: Final = 366 * 86_400
GRACE_S_MAX: Final = 600

SCRATCH_PATH: Final = "/scratch"
"""Where a container may write, besides its output: HOME, TMPDIR and caches lie in it."""
OUTPUT_PATH: Final = "/output"
RESTORED: Final = "restored"
"""The folder below that of a task with what its checkpoint holds at the start."""
RESERVED_PATHS: Final = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", SCRATCH_PATH)  # noqa: S108  names

_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST: Final = (
    r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*(?::[0-9]{1,5})?"
)
_REPOSITORY: Final = re.compile(rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*")
_VARIABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_OWN_VARIABLES: Final = "DEKUBE_"


@dataclass(frozen=True)
class Image:
    """An image by its content: ``digest`` is the SHA-256 of its manifest, or of its configuration (image id)."""

    repository: str
    digest: bytes

    def __post_init__(self) -> None:
        """Raise RequestInvalid for another form."""
        size = len(self.repository)
        if size > REPOSITORY_BYTES_MAX or not _REPOSITORY.fullmatch(self.repository):
            raise RequestInvalid(f"image: {self.repository[:80]!r} is not a repository")
        if len(self.digest) != DIGEST_BYTES:
            raise RequestInvalid(f"image: a digest has {DIGEST_BYTES} bytes")

    @property
    def name(self) -> str:
        """The digest as engines and registries write it."""
        return f"sha256:{self.digest.hex()}"

    @property
    def reference(self) -> str:
        """Repository and digest."""
        return f"{self.repository}@{self.name}"

    @property
    def registry(self) -> str:
        """Host, with its port, that serves the repository; by the field's rule of the first component."""
        first, slash, _ = self.repository.partition("/")
        return first if slash and (first == "localhost" or "." in first or ":" in first) else "docker.io"


@dataclass(frozen=True)
class InputMount:
    """A blob of ``size_bytes`` at ``path``, read-only: a file, or (``is_folder``) the contents of a tar."""

    blob: bytes
    path: str
    size_bytes: int = 0
    is_folder: bool = False


@dataclass(frozen=True)
class Limits:
    """What a container may use. ``disk_mib`` holds scratch and outputs; ``output_bytes`` bounds what is kept."""

    cores: int
    memory_mib: int
    disk_mib: int
    output_bytes: int
    time_limit_s: int
    gpus: int = 0
    grace_s: int = 10

    def __post_init__(self) -> None:
        """Raise RequestInvalid for a limit outside its range."""
        for name, low, high in (
            ("cores", 1, CORES_MAX), ("memory_mib", MEMORY_MIB_MIN, MEMORY_MIB_MAX),
            ("disk_mib", DISK_MIB_MIN, DISK_MIB_MAX), ("output_bytes", 0, OUTPUT_BYTES_LIMIT),
            ("time_limit_s", 1, TIME_LIMIT_S_MAX), ("gpus", 0, 64), ("grace_s", 0, GRACE_S_MAX),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise RequestInvalid(f"{name}: {getattr(self, name)} is not between {low} and {high}")


@dataclass(frozen=True)
class ContainerRequest:
    """One container. An empty ``command`` runs the image's own; otherwise it replaces entry point and command.

    ``environment`` has texts ``NAME=value``. ``user`` is both user and group. An empty ``checkpoint_path`` is no
    folder for checkpoints; packed, one has ``checkpoint_bytes`` at most. ``is_resumed``: it begins with one.
    ``egress`` are the names that it may reach (``tasks.kinds.egress``).
    """

    image: Image
    limits: Limits
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    mounts: tuple[InputMount, ...] = ()
    output_path: str = OUTPUT_PATH
    user: int = NOBODY
    checkpoint_path: str = ""
    checkpoint_bytes: int = 0
    is_resumed: bool = False
    secrets: ContainerSecrets = field(default=NO_SECRETS, repr=False)
    is_private: bool = False
    """Its inputs came sealed: what is plain of them is overwritten at the end."""
    egress: tuple[str, ...] = ()
    archive: bytes = b""
    """For whom the image comes as an archive: its blob, or the hash of a private task's key; empty: pulled."""
    archive_bytes: int = 0
    gpu_words: tuple[str, ...] = ()
    gpu_memory_mib: int = 0
    """What each of its GPUs has in its name, and at least (``tasks.kinds.gpus``)."""

    def __post_init__(self) -> None:
        """Raise RequestInvalid for a container that no machine runs."""
        _check_texts("command", self.command, ARGUMENTS_MAX)
        _check_texts("environment", self.environment, VARIABLES_MAX)
        names = [_variable(text) for text in self.environment]
        if len(set(names)) != len(names):
            raise RequestInvalid("environment: a name occurs twice")
        if both := sorted(set(names) & {name for name, _ in self.secrets.variables}):
            raise RequestInvalid(f"secrets: {both[0]} is in the environment too")
        if not 0 <= self.user < IDENTITIES:
            raise RequestInvalid(f"user: {self.user} is not between 0 and {IDENTITIES - 1}")
        if fault := egress_fault(self.egress):
            raise RequestInvalid(f"egress: {fault}")
        if len(self.mounts) > MOUNTS_MAX:
            raise RequestInvalid(f"mounts: more than {MOUNTS_MAX}")
        for mount in self.mounts:
            if len(mount.blob) != DIGEST_BYTES:
                raise RequestInvalid(f"mounts: a blob's address has {DIGEST_BYTES} bytes")
        paths = [mount.path for mount in self.mounts]
        if self.output_path:
            paths.append(self.output_path)
        if self.checkpoint_path:
            paths.append(self.checkpoint_path)
        for path in paths:
            check_path(path)
        for path in paths:
            if sum(_is_inside(other, path) for other in paths) > 1:
                raise RequestInvalid(f"mounts: {path} and another path overlap")


def is_among(repository: str, patterns: Iterable[str]) -> bool:
    """Whether a repository is one of ``patterns``; one that ends with ``*`` stands for all that begin so."""
    return any(repository.startswith(one[:-1]) if one.endswith("*") else repository == one for one in patterns)


def check_path(path: str) -> None:
    """Raise RequestInvalid unless ``path`` is absolute, in its shortest form and free for a job."""
    parts = path.split("/")
    if (
        not path.isascii() or not path.isprintable() or not 1 < len(path) <= PATH_BYTES_MAX or parts[0] != ""
        or {"", ".", ".."} & set(parts[1:]) or set(':,"\\') & set(path)
    ):  # fmt: skip
        raise RequestInvalid(f"path {path[:80]!r}: not absolute, or with dots, colons or control letters")
    for reserved in RESERVED_PATHS:
        if _is_inside(path, reserved) or _is_inside(reserved, path):
            raise RequestInvalid(f"path {path}: {reserved} is the engine's")


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _check_texts(name: str, texts: tuple[str, ...], count_max: int) -> None:
    if len(texts) > count_max:
        raise RequestInvalid(f"{name}: more than {count_max} items")
    if any("\0" in text for text in texts):
        raise RequestInvalid(f"{name}: a zero byte")
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError:
        raise RequestInvalid(f"{name}: not Unicode") from None
    if size > ARGUMENT_BYTES_MAX:
        raise RequestInvalid(f"{name}: {size} bytes, limit {ARGUMENT_BYTES_MAX}")


def _variable(text: str) -> str:
    found = _VARIABLE.match(text)
    if found is None:
        raise RequestInvalid(f"environment: {text[:40]!r} is not NAME=value")
    if found[1].startswith(_OWN_VARIABLES):
        raise RequestInvalid(f"environment: names with {_OWN_VARIABLES} are the machine's")
    return found[1]
