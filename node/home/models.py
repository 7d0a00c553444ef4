"""Models of a requester, by name: each in a folder of the home, with a record of where it came from (JOBS 6).

A model is taken in by ``add_model``: its files are copied or fetched beside the others, read whole and checked,
and only then do they get their name. Requests name a model by it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from node.home.files import read_bounded
from node.home.hub import FILES_BYTES_MAX, TEXTS, ModelFetchFailed, fetch_model
from node.home.paths import Home
from state.primitives.errors import ConfigError
from tasks.engines.input_blobs import MODEL_SENT_BYTES_MAX, join_tensors
from tasks.models.errors import TokenizersMissing
from tasks.models.huggingface import CONFIG, ENDS, INDEX, TOKENISER, WEIGHTS, shards_of
from tasks.models.jobs import name_of
from tasks.models.opening import PARTS, POOLING, OpenEmbedder, open_embedder
from tasks.programs.embed import frozen_bytes, frozen_tensors

__all__ = [
    "HUB",
    "MODELS_MAX",
    "PACKAGE",
    "ModelFile",
    "ModelRecord",
    "add_model",
    "find_model",
    "models_of",
    "name_from",
    "remove_model",
]  # fmt: skip

HUB, PACKAGE = "hf:", "pypi:"
"""Prefixes of sources that are no path: a repository of a Hub, and an installed Python package."""
MODELS_MAX: Final = 256
RECORD: Final = "model.json"
RECORD_BYTES_MAX: Final = 1 << 20
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
PART_AGE_S_MAX: Final = 7 * 86_400
"""How long a fetch that was cut off can be gone on with."""
_PART: Final = ".part-"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a model, as it lies in its folder."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model of the home. ``blob`` is the content address that tasks give its weights, in hex digits."""

    name: str
    source: str
    revision: str
    """Commit of the repository, or version of the package; empty for files of a disk."""
    licence: str
    """As the source names it; empty if it does not."""
    added_ms: int
    parameters: int
    layers: int
    width: int
    vocabulary: int
    context: int
    blob: str
    blob_bytes: int
    files: tuple[ModelFile, ...]
    notes: tuple[str, ...]
    """What was changed as the weights were read."""


def folder_of(home: Home) -> Path:
    """Return the folder of all models of a home."""
    return home.root / "models"


def name_from(source: str) -> str:
    """Return the name that a source suggests: the last part of it in small letters. Raises ConfigError."""
    if source.startswith(HUB):
        source = source.partition("@")[0]
    last = re.split("[/:]", source.rstrip("/"))[-1].removesuffix(".gguf").lower()
    return check_name(re.sub(r"[^a-z0-9._-]+", "-", last).strip("-._")[:64])


def check_name(name: str) -> str:
    """Return ``name``. Raises ConfigError for one that names no model."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r}: a model's name has up to 64 of a-z, 0-9, dot, dash, underline; give --name")
    return name


def models_of(home: Home) -> list[ModelRecord]:
    """Return the models of a home by name. Raises ConfigError for a damaged record or folder."""
    try:
        places = sorted(folder_of(home).iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    found = [place for place in places if _NAME.fullmatch(place.name) and place.is_dir()]
    return [_record(place) for place in found[:MODELS_MAX]]


def find_model(home: Home, name: str) -> Path | None:
    """Return what ``open_model`` takes of a model of the home; None if there is none of this name."""
    place = folder_of(home) / name
    if not _NAME.fullmatch(name) or not (place / RECORD).is_file():
        return None
    return next((one for one in sorted(place.iterdir()) if one.suffix == ".gguf"), place)


def remove_model(home: Home, name: str) -> None:
    """Remove a model. Raises ConfigError if there is none of this name."""
    place = folder_of(home) / check_name(name)
    if not place.is_dir():
        raise ConfigError(f"{name}: no model of this home; see dekube model list")
    away = Path(tempfile.mkdtemp(prefix=_PART, dir=place.parent)) / name
    place.rename(away)  # from now on it is not there, however long the rest takes
    shutil.rmtree(away.parent)


def add_model(
    home: Home,
    source: str,
    name: str,
    *,
    token: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ModelRecord:
    """Take a model in and return its record; ``progress`` is told what is done.

    Whole files that a Hub has sent stay if it is cut off, and the next call goes on with the others. Raises
    ConfigError, ModelFetchFailed, and what reading raises (ModelInvalid, ModelUnsupported, TokenizersMissing).
    """
    folder = folder_of(home)
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / check_name(name)
    if place.exists():
        raise ConfigError(f"{name}: a model of this name is there; remove it first, or give --name")
    if len(models_of(home)) >= MODELS_MAX:
        raise ConfigError(f"a home has {MODELS_MAX} models at most; remove one first")
    _sweep(folder)
    part = _part_of(folder, source)
    try:
        if source.startswith(HUB):
            revision, licence = fetch_model(source.removeprefix(HUB), part, token=token, progress=progress)
        else:
            revision, licence = _copied(source, part)
        progress("reading the weights")
        record = _read(part, name, source, revision, licence)
        (part / RECORD).write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
        part.rename(place)
    except ModelFetchFailed:
        if not source.startswith(HUB):  # what a Hub has sent is gone on with
            shutil.rmtree(part, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise ConfigError(f"{error.filename or place}: {error.strerror}") from None
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return record


def _part_of(folder: Path, source: str) -> Path:
    """Return the folder in which a model comes together: for a repository always the same."""
    if not source.startswith(HUB):
        return Path(tempfile.mkdtemp(prefix=_PART, dir=folder))
    part = folder / f"{_PART}{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    part.mkdir(exist_ok=True)
    return part


def _sweep(folder: Path) -> None:
    """Remove what was begun and not gone on with for long."""
    for part in folder.glob(f"{_PART}*"):
        with suppress(OSError):
            if part.stat().st_mtime < time.time() - PART_AGE_S_MAX:
                shutil.rmtree(part, ignore_errors=True)


def _copied(source: str, part: Path) -> tuple[str, str]:
    """Copy the files of a path or an installed package; return revision and licence."""
    if source.startswith(PACKAGE):
        return _copied_package(source.removeprefix(PACKAGE), part)
    given = Path(source).expanduser()
    if given.is_file() and given.suffix == ".gguf":
        _copy(given, part)
    elif given.is_dir():
        names = {CONFIG, ENDS, TOKENISER, PARTS, POOLING, *TEXTS}
        if (given / WEIGHTS).is_file():
            names.add(WEIGHTS)
        elif (given / INDEX).is_file():
            names |= {INDEX, *shards_of(read_bounded(given / INDEX, FILES_BYTES_MAX))}
        for one in sorted(names):
            if (given / one).is_file():
                (part / one).parent.mkdir(exist_ok=True)
                _copy(given / one, (part / one).parent)
    else:
        raise ConfigError(
            f"{source}: no GGUF file and no folder; a source is one of these, {HUB}ORG/NAME or {PACKAGE}NAME"
        )
    return "", ""


def _copied_package(package: str, part: Path) -> tuple[str, str]:
    try:
        found = importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise ModelFetchFailed(
            f"{package}: this package is not installed here; install it beside dekube"
        ) from None
    files = [one for one in found.files or () if one.suffix == ".gguf"]
    if len(files) != 1:
        raise ModelFetchFailed(f"{package}: {len(files)} GGUF files; a package with one is expected")
    _copy(Path(str(found.locate_file(files[0]))), part)
    told = found.metadata.json
    return found.version, str(told.get("license_expression") or told.get("license") or "")[:64].split("\n")[0]


def _copy(given: Path, part: Path) -> None:
    """Copy a file; on one file system nothing is written. Raises ConfigError."""
    try:
        if sum(one.stat().st_size for one in part.iterdir()) + given.stat().st_size > FILES_BYTES_MAX:
            raise ConfigError(f"{given}: the files have more than {FILES_BYTES_MAX} bytes")
        shutil.copyfile(given, part / given.name)
    except OSError as error:
        raise ConfigError(f"{error.filename or given}: {error.strerror}") from None


def _read(part: Path, name: str, source: str, revision: str, licence: str) -> ModelRecord:
    """Return the record of a model whose files lie in a folder, after all its weights were read."""
    path = next((one for one in sorted(part.iterdir()) if one.suffix == ".gguf"), part)
    with open_embedder(path) as opened:  # decoders too
        shape = opened.shape
        if (size := frozen_bytes(shape)) > MODEL_SENT_BYTES_MAX:
            raise ConfigError(f"{source}: a model of {size} bytes; machines take {MODEL_SENT_BYTES_MAX} at most")
        model, notes = opened.load(), _tokeniser_notes(opened, path)
        kinds = frozen_tensors(shape)
        blob = join_tensors(kinds, model.contents())
    return ModelRecord(
        name=name, source=source, revision=revision, licence=licence, added_ms=time.time_ns() // 1_000_000,
        parameters=sum(kind.values for tensor, kind in kinds.items() if not tensor.endswith("/exponents")),
        layers=shape.layers, width=shape.width, vocabulary=shape.vocabulary, context=shape.context,
        blob=name_of(blob).hex(), blob_bytes=len(blob), files=tuple(_files(part)), notes=(*model.notes, *notes),
    )  # fmt: skip


def _tokeniser_notes(opened: OpenEmbedder, path: Path) -> tuple[str, ...]:
    """Return that a model has no tokeniser, if so. Raises ModelError for one that cannot be read."""
    if path.is_dir() and not (path / TOKENISER).exists():
        return (f"no {TOKENISER}, so rows and prompts must be numbers of tokens",)
    try:
        opened.tokens()
    except TokenizersMissing as error:
        return (f"the tokeniser was not read: {error}",)
    return ()


def _files(part: Path) -> list[ModelFile]:
    found = []
    for path in sorted(part.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                found.append(
                    ModelFile(
                        path.relative_to(part).as_posix(),
                        path.stat().st_size,
                        hashlib.file_digest(file, "sha256").hexdigest(),
                    )
                )
    return found


def _record(place: Path) -> ModelRecord:
    try:
        fields: dict[str, Any] = json.loads(read_bounded(place / RECORD, RECORD_BYTES_MAX))
        fields["files"] = tuple(ModelFile(**one) for one in fields["files"])
        fields["notes"] = tuple(fields["notes"])
        return ModelRecord(**fields)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{place / RECORD}: damaged ({error}); remove the folder and add the model again"
        ) from None
