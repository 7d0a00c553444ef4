"""A request to run a container: an image, a command, what it reads and leaves, and for how long (R93)."""

from __future__ import annotations

import math
import posixpath
import re
from typing import Any, Final, NamedTuple

from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from tasks.kinds.container import (
    ARCHIVED,
    CHECKPOINT_BYTES_MAX,
    CHECKPOINT_EVERY_S_MAX,
    CHECKPOINT_EVERY_S_MIN,
    CODE_MAX,
    CORES_MAX,
    DISK_MIB_MAX,
    DISK_MIB_MIN,
    GRACE_S_MAX,
    GRACE_S_MIN,
    IDLE_S_MAX,
    KIND_CONTAINER,
    LEVEL_METERED,
    LEVEL_QUORUM,
    MEMORY_MIB_MIN,
    METER_PROGRESS,
    METER_RESERVED,
    OUTPUT_BYTES_MAX,
    RETRIES_MAX,
    SECONDS_MAX,
    TICK_S_MAX,
    TICK_S_MIN,
    USER_MAX,
    Allowance,
    Checkpoint,
    ContainerPart,
    Image,
    Metering,
    Process,
    Storage,
    check_container,
    is_container_path,
)
from tasks.kinds.egress import EGRESS_MAX, entry_of
from tasks.kinds.gpus import GPU_WORDS_MAX, PART_WORD, gpu_words, is_profile
from tasks.requests.fields import JobFields
from tasks.requests.sources import is_url
from tasks.spec import GPUS_MAX, WINDOWS_MAX

__all__ = [
    "ContainerRequest", "ContainerSettings", "MountRequest", "SealRequest", "SecretRequest", "SecretSource",
    "containing_of",
]  # fmt: skip

_IMAGE: Final = re.compile(r"(?P<repository>[^@\s]+)@sha256:(?P<digest>[0-9a-f]{64})")
_FIELDS: Final = (
    "kind", "image", "command", "environment", "mounts", "output", "output_mib", "user", "cores", "memory_mib",
    "disk_mib", "gpus", "gpu", "mig", "rate", "hours", "minutes", "tick_s", "grace_s", "retries", "retry_codes",
    "checkpoint", "interruptible", "allow", "deterministic", "idle_minutes", "progress_pattern", "private",
    "secrets", "registry", "egress",
)  # fmt: skip
ALLOWED: Final = {"unisolated": Allowance.UNISOLATED}
"""What ``allow`` may name."""
SECRETS_MAX: Final = 64
SOURCES: Final = ("env", "file", "keyring")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_SECRET_FILE: Final = re.compile(r"/run/secrets/[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_UNNAMEABLE: Final = re.compile("[\0\ud800-\udfff]")
"""What no variable or path has: halves of characters come from programs and JSON."""
RATE_DEFAULT: Final = 10**10
RATE_MAX: Final = 1 << 45
USER_DEFAULT: Final = 65_534
MIB: Final = 1 << 20
GPU_GB_MAX: Final = 1_000
"""10^9 bytes of memory of a GPU, as its maker names them."""
_CHECKPOINT_NUMBERS: Final = {"every_s": 300, "minutes": 5, "max_mib": 1_024}
"""What a checkpoint may say beside its path, and what holds where it does not."""
_SPAN_S: Final = {"hours": 3_600, "minutes": 60}


class MountRequest(NamedTuple):
    """A file or folder of this machine, or the URL of a store, and where the container has it, read only."""

    source: str
    path: str


class ContainerSettings(NamedTuple):
    """What is reserved and for how long: ``ticks`` of ``tick_s`` seconds. ``rate`` is that of one GPU or core.

    At ``level`` 1 several machines run it. ``gpu_words`` and ``gpu_memory_mib`` are of each GPU
    (``tasks.kinds.gpus``).
    """

    cores: int
    memory_mib: int
    gpus: int
    rate: int
    ticks: int
    tick_s: int
    level: int = LEVEL_METERED
    gpu_words: tuple[str, ...] = ()
    gpu_memory_mib: int = 0


class SecretSource(NamedTuple):
    """Where a value comes from: ``env`` a variable of the requester, ``file`` a file, ``keyring`` the system's."""

    kind: str
    name: str


class SecretRequest(NamedTuple):
    """A secret: a variable of the container, or a file of it, and where its value comes from."""

    target: str
    is_file: bool
    source: SecretSource


class SealRequest(NamedTuple):
    """What is sealed: mounts and results (``is_private``), secrets, and the login for the image's registry."""

    is_private: bool = False
    secrets: tuple[SecretRequest, ...] = ()
    login: tuple[SecretSource, SecretSource] | None = None

    @property
    def has_any(self) -> bool:
        """Whether anything is sealed."""
        return bool(self.is_private or self.secrets or self.login)


class ContainerRequest(NamedTuple):
    """What is asked for; ``part`` is all of the specification but for the mounts, which are not packed yet.

    ``file`` names the request. ``image`` is the file or URL of an image that comes as an archive; else empty.
    """

    file: str
    part: ContainerPart
    mounts: tuple[MountRequest, ...]
    settings: ContainerSettings
    seal: SealRequest = SealRequest()
    image: str = ""

    @property
    def kind(self) -> str:
        """The kind of job that is asked for."""
        return KIND_CONTAINER

    @property
    def model(self) -> str:
        """It has no model."""
        return ""

    @property
    def data(self) -> str:
        """It has no rows."""
        return ""


def containing_of(fields: JobFields) -> ContainerRequest:
    """Return what is asked for. Raises RequestInvalid."""
    fields.expect(_FIELDS)
    image, image_file = _image(fields)
    mounts = _mounts(fields)
    output = fields.text("output") if fields.has("output") else ""
    output_mib = _bounded(fields, "output_mib", 1024 if output else 0, 1 if output else 0, OUTPUT_BYTES_MAX // MIB)
    storage = Storage(
        (), output, output_mib * MIB, _bounded(fields, "disk_mib", 10_240, DISK_MIB_MIN, DISK_MIB_MAX)
    )
    process = Process(
        _command(fields),
        _environment(fields),
        _bounded(fields, "user", USER_DEFAULT, 0, USER_MAX),
        _egress(fields),
    )
    tick_s = _bounded(fields, "tick_s", 60, TICK_S_MIN, TICK_S_MAX)
    checkpoint = _checkpoint(fields)
    metering = Metering(
        METER_RESERVED, _bounded(fields, "grace_s", 120, GRACE_S_MIN, GRACE_S_MAX),
        # Each machine goes on where the one before was; without a checkpoint each one begins from nothing.
        _bounded(fields, "retries", 1 if checkpoint is None else RETRIES_MAX, 0, RETRIES_MAX),
        *_idle(fields, tick_s), _again(fields),
    )  # fmt: skip
    if metering.idle_s:
        metering = metering._replace(name=METER_PROGRESS)
    part = ContainerPart(
        image, process, storage, _bounded(fields, "cores", 1, 1, CORES_MAX), metering, checkpoint,
        _allows(fields),
    )  # fmt: skip
    settings = ContainerSettings(
        part.cores, _bounded(fields, "memory_mib", 2_048, MEMORY_MIB_MIN, 1 << 24),
        _gpus(fields), _rate(fields), _ticks(fields, tick_s), tick_s,
        _level(fields, output, process), *_card(fields),
    )  # fmt: skip
    _check(fields, part, mounts)
    seal = _seal(fields, part)
    if image_file and seal.login is not None:
        raise fields.wrong("registry", "registry: the image is a file, so nothing is pulled")
    return ContainerRequest(fields.file, part, mounts, settings, seal, image_file)


def _image(fields: JobFields) -> tuple[Image, str]:
    """Return the image, and the file that it comes as: then the image stands for one that is not read yet."""
    text = fields.text("image")
    if (found := _IMAGE.fullmatch(text)) is not None:
        return Image(found["repository"], bytes.fromhex(found["digest"])), ""
    if is_url(text) or text.startswith(("./", "../", "/")) or text.endswith(".tar"):
        unread = bytes(HASH_BYTES)
        return Image(ARCHIVED, unread, unread, 1), fields.located("image", text)
    raise fields.wrong(
        "image",
        "image: REPOSITORY@sha256:DIGEST expected, as docker.io/library/python@sha256:..., "
        "or a file of `docker save`, as ./image.tar",
    )


def _gpus(fields: JobFields) -> int:
    """Return the number of GPUs: one, where a model or a part is ordered and no number is said."""
    is_ordered = fields.has("gpu") or fields.has("mig")
    return _bounded(fields, "gpus", int(is_ordered), int(is_ordered), GPUS_MAX)


def _card(fields: JobFields) -> tuple[tuple[str, ...], int]:
    """Return the words of the model of each GPU, and its least MiB."""
    words, memory_mib = set[str](), 0
    if fields.has("gpu"):
        value: Any = fields.value("gpu")
        is_known = isinstance(value, dict) and bool(value) and set(value) <= {"model", "memory_gb"}
        model: Any = value.get("model", "") if is_known else None
        memory_gb: Any = value.get("memory_gb", 0) if is_known else None
        if type(model) is not str or type(memory_gb) not in (int, float) or not 0 <= memory_gb <= GPU_GB_MAX:
            raise fields.wrong("gpu", f"gpu: {{model: WORDS, memory_gb: NUMBER up to {GPU_GB_MAX}}} expected")
        words |= set(gpu_words(model))
        memory_mib = math.floor(memory_gb * 10**9 / MIB)
        if PART_WORD in words or not (words or memory_mib):
            raise fields.wrong(
                "gpu", "gpu: words of a model as `model: H100` expected; `mig` orders parts of cards"
            )
        if len(words) > GPU_WORDS_MAX:
            raise fields.wrong("gpu", f"gpu: a model of {GPU_WORDS_MAX} words at most")
    if fields.has("mig"):
        profile = fields.text("mig").lower().replace("+", ".")
        if not is_profile(profile):
            raise fields.wrong("mig", "mig: a profile as 1g.10gb expected")
        words |= {PART_WORD, profile}
    if len(words) > GPU_WORDS_MAX:
        raise fields.wrong("gpu", f"gpu: with `mig` a model of {GPU_WORDS_MAX - 2} words at most")
    return tuple(sorted(words)), memory_mib


def _egress(fields: JobFields) -> tuple[str, ...]:
    """Return the names that the container may reach."""
    found = set()
    for item in fields.listed("egress") or ():
        entry = entry_of(item) if type(item) is str else None
        if entry is None:
            raise fields.wrong(
                "egress",
                f"egress: a list of names as pypi.org or '*.pypi.org:443' expected, not {str(item)[:60]!r}; "
                "addresses and single words are none",
            )
        found.add(entry)
    if len(found) > EGRESS_MAX:
        raise fields.wrong(
            "egress", f"egress: {len(found)} names, at most {EGRESS_MAX}: '*.name' covers all below it"
        )
    return tuple(sorted(found))


def _level(fields: JobFields, output: str, process: Process) -> int:
    """Return the level of assurance: 1 for an image that is declared deterministic."""
    if not fields.truth("deterministic"):
        return LEVEL_METERED
    if process.egress:
        raise fields.wrong(
            "egress",
            "egress: not with deterministic: what others answer may differ; bring it by mounts",
        )
    if not output:
        raise fields.wrong("deterministic", "deterministic: an output folder is needed: what is in it is compared")
    return LEVEL_QUORUM


def _check(fields: JobFields, part: ContainerPart, mounts: tuple[MountRequest, ...]) -> None:
    """Check the whole as the chain does, and name the field. Raises RequestInvalid."""
    paths = [mount.path for mount in mounts]
    for path in paths:
        if not is_container_path(path):
            raise fields.wrong(
                "mounts", f"mounts: {path[:80]!r} is no path that a container may have something at"
            )
    try:
        check_container(part)
    except DecodeError as error:
        said = str(error).removeprefix("not a job specification: ")
        name = said.partition(":")[0].rpartition(".")[2]
        known = {
            "repository": "image", "storage": "output", "output_bytes_max": "output_mib", "path": "checkpoint",
            "pattern": "progress_pattern", "again": "retry_codes",
            "bytes_max": "checkpoint",
        }.get(name, name)  # fmt: skip
        raise fields.wrong(known, f"{known}: {said.partition(': ')[2]}") from None
    own = [part.storage.output] if part.storage.output else []
    own += [] if part.checkpoint is None else [part.checkpoint.path]
    for one in (*paths, *own):
        others = [path for path in (*paths, *own) if path != one]
        if [*paths, *own].count(one) > 1 or any(one.startswith(path + "/") for path in others):
            raise fields.wrong("mounts", f"mounts: {one[:80]} is there twice, or lies in another one")


def _checkpoint(fields: JobFields) -> Checkpoint | None:
    """Return the folder that is stored again and again, if one is asked for."""
    if not fields.has("checkpoint"):
        return None
    value = fields.value("checkpoint")
    wanted = "checkpoint: {path: PATH IN CONTAINER, every_s: SECONDS or minutes: MINUTES, max_mib: MIB} expected"
    if not isinstance(value, dict) or "path" not in value or set(value) - {"path", *_CHECKPOINT_NUMBERS}:
        raise fields.wrong("checkpoint", wanted)
    if type(value["path"]) is not str or ("every_s" in value and "minutes" in value):
        raise fields.wrong("checkpoint", wanted)
    every_s, minutes, max_mib = (value.get(name, other) for name, other in _CHECKPOINT_NUMBERS.items())
    if "every_s" not in value and type(minutes) in (int, float):
        every_s = round(60 * minutes) if 0 < minutes < CHECKPOINT_EVERY_S_MAX else 0
    for name, number, least, most in (
        ("every_s", every_s, CHECKPOINT_EVERY_S_MIN, CHECKPOINT_EVERY_S_MAX),
        ("max_mib", max_mib, 1, CHECKPOINT_BYTES_MAX // MIB),
    ):
        if type(number) is not int or not least <= number <= most:
            raise fields.wrong("checkpoint", f"checkpoint.{name}: a whole number from {least} to {most} expected")
    return Checkpoint(value["path"], every_s, max_mib * MIB)


def _allows(fields: JobFields) -> int:
    """Return what is put up with: a machine that leaves when its owner wishes, one that does not isolate."""
    may_leave = fields.truth("interruptible", otherwise=True)
    allowed = fields.listed("allow") or []
    if any(type(one) is not str or one not in ALLOWED for one in allowed) or len(set(allowed)) != len(allowed):
        raise fields.wrong("allow", f"allow: a list of {', '.join(ALLOWED)} expected, each once")
    return int(sum(ALLOWED[one] for one in allowed)) + int(Allowance.LEAVING if may_leave else 0)


def _bounded(fields: JobFields, name: str, otherwise: int, least: int, most: int) -> int:
    value = fields.whole(name, otherwise, least)
    if not least <= value <= most:
        raise fields.wrong(name, f"{name}: a whole number from {least} to {most} expected")
    return value


def _idle(fields: JobFields, tick_s: int) -> tuple[int, str]:
    """Return how long the counter may stand still, in whole ticks, and the text before it in the log."""
    pattern = fields.text("progress_pattern") if fields.has("progress_pattern") else ""
    if not fields.has("idle_minutes"):
        if pattern:
            raise fields.wrong("progress_pattern", "progress_pattern: give idle_minutes too")
        return 0, ""
    value: Any = fields.value("idle_minutes")
    if type(value) not in (int, float) or not 0 < value <= IDLE_S_MAX / 60:
        raise fields.wrong("idle_minutes", f"idle_minutes: a number above 0 expected, {IDLE_S_MAX // 60} at most")
    ticks = max(1, math.ceil(value * 60 / tick_s))
    return min(ticks, IDLE_S_MAX // tick_s) * tick_s, pattern


def _again(fields: JobFields) -> tuple[int, ...]:
    """Return the exit codes after which another machine goes on, ascending."""
    value = fields.listed("retry_codes") if fields.has("retry_codes") else None
    if not all(type(code) is int and 1 <= code <= CODE_MAX for code in value or ()):
        raise fields.wrong("retry_codes", f"retry_codes: a list of exit codes from 1 to {CODE_MAX} expected")
    return tuple(sorted(set(value or ())))


def _rate(fields: JobFields) -> int:
    if not fields.has("rate"):
        return RATE_DEFAULT
    value = fields.value("rate")
    if type(value) is not int or not 1 <= value <= RATE_MAX:
        raise fields.wrong("rate", f"rate: work units a second of a GPU or core expected, from 1 to {RATE_MAX}")
    return value


def _ticks(fields: JobFields, tick_s: int) -> int:
    """Return the ticks of the time that is said, rounded up; an hour if nothing is said."""
    if fields.both("hours", "minutes"):
        raise fields.wrong("minutes", "minutes and hours: give one of them")
    seconds = 3_600
    for name, span_s in _SPAN_S.items():
        if fields.has(name):
            value: Any = fields.value(name)
            if type(value) not in (int, float) or not 0 < value <= SECONDS_MAX / span_s:
                raise fields.wrong(name, f"{name}: a number above 0 expected, {SECONDS_MAX // span_s} at most")
            seconds = max(1, round(value * span_s))
    ticks = -(-seconds // tick_s)
    if ticks > WINDOWS_MAX or ticks * tick_s > SECONDS_MAX:
        raise fields.wrong("tick_s", f"tick_s: {ticks} ticks, at most {WINDOWS_MAX}: give longer ones")
    return ticks


def _command(fields: JobFields) -> tuple[str, ...]:
    value = fields.listed("command")
    if value is None:
        return ()
    if not all(type(word) is str for word in value):
        raise fields.wrong("command", "command: a list of texts expected, in quotes if they look like numbers")
    return tuple(value)


def _environment(fields: JobFields) -> tuple[str, ...]:
    if not fields.has("environment"):
        return ()
    value = fields.value("environment")
    if not isinstance(value, dict) or not all(type(item) is str for item in value.values()):
        raise fields.wrong(
            "environment", "environment: names with texts expected, in quotes if they look like numbers"
        )
    return tuple(f"{name}={value[name]}" for name in sorted(value))


def _seal(fields: JobFields, part: ContainerPart) -> SealRequest:
    """Return what is sealed. Raises RequestInvalid, which shows no value: it might be the secret itself."""
    is_private = fields.truth("private")
    secrets = tuple(_secret(fields, item) for item in fields.listed("secrets") or ())
    targets = [secret.target for secret in secrets]
    if len(targets) > SECRETS_MAX or len(set(targets)) != len(targets):
        raise fields.wrong("secrets", f"secrets: {SECRETS_MAX} at most, each name once")
    if both := sorted({item.partition("=")[0] for item in part.process.environment} & set(targets)):
        raise fields.wrong("secrets", f"secrets: {both[0]} is in the environment too, which is public")
    return SealRequest(is_private, secrets, _login(fields))


def _secret(fields: JobFields, item: Any) -> SecretRequest:
    match item:
        case {"env": str(name), "from": str(source)} if len(item) == 2 and _VARIABLE.fullmatch(name):
            if not name.startswith("DEKUBE_"):
                return SecretRequest(name, False, _source(fields, "secrets", source))
        case {"path": str(path), "from": str(source)} if len(item) == 2 and _SECRET_FILE.fullmatch(path):
            return SecretRequest(path, True, _source(fields, "secrets", source))
    raise fields.wrong(
        "secrets", "secrets: a list of {env: NAME, from: SOURCE} or {path: /run/secrets/NAME, from: SOURCE}"
    )


def _source(fields: JobFields, field: str, text: str) -> SecretSource:
    kind, _, name = text.partition(":")
    is_known = kind in SOURCES and bool(name) and not _UNNAMEABLE.search(name)
    if not is_known or (kind == "keyring" and not all(name.rpartition("/")[::2])):
        raise fields.wrong(
            field, f"{field}: env:NAME, file:PATH or keyring:SERVICE/USER says where a value comes from"
        )
    if kind == "file":
        name = posixpath.join(posixpath.dirname(fields.file), name)
    return SecretSource(kind, name)


def _login(fields: JobFields) -> tuple[SecretSource, SecretSource] | None:
    if not fields.has("registry"):
        return None
    match fields.value("registry"):
        case {"user": str(user), "password": str(password), **more} if not more:
            return _source(fields, "registry", user), _source(fields, "registry", password)
    raise fields.wrong("registry", "registry: {user: SOURCE, password: SOURCE} expected")


def _mounts(fields: JobFields) -> tuple[MountRequest, ...]:
    found = []
    for item in fields.listed("mounts") or ():
        match item:
            case {"source": str(source), "path": str(path)} if len(item) == 2 and source and "\0" not in source:
                found.append(MountRequest(fields.located("mounts", source), path))
            case _:
                raise fields.wrong("mounts", "mounts: a list of {source: FILE OR FOLDER, path: PATH IN CONTAINER}")
    return tuple(sorted(found, key=lambda mount: mount.path))
