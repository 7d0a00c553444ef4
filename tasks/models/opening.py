"""Opening a model that lies on a disk: one GGUF file, or a folder (or a file in it) of safetensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tasks.models.encoders import (
    ENCODER,
    EncoderFiles,
    FrozenModel,
    PlainTokens,
    TextTokens,
    encoder_tokens,
    pooling_of,
)
from tasks.models.errors import ModelError, ModelInvalid
from tasks.models.gguf import read_gguf
from tasks.models.huggingface import (
    CONFIG,
    CONFIG_BYTES_MAX,
    ENDS,
    INDEX,
    INDEX_BYTES_MAX,
    TOKENISER,
    WEIGHTS,
    Checkpoint,
    ends_of,
    read_settings,
    shards_of,
)
from tasks.models.llama import Model, model_from_gguf, shape_of_gguf
from tasks.models.safetensors import read_safetensors
from tasks.models.tokens import JSON_BYTES_MAX, Tokeniser, tokeniser_from_gguf, tokeniser_from_json
from tasks.programs.embed import ModelShape
from tasks.programs.llama_shape import LlamaShape

__all__ = ["PARTS", "POOLING", "FileContent", "OpenEmbedder", "OpenModel", "open_embedder", "open_model"]

PARTS: Final = "modules.json"
POOLING: Final = "1_Pooling/config.json"
"""Files of sentence-transformers: its modules, and what a vector is."""

_FOLDER: Final = f"A folder needs {CONFIG}, {TOKENISER}, and {WEIGHTS} or {INDEX}"


class FileContent:
    """A file that is read a slice at a time. Raises OSError where it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size, self._name = os.fstat(self._file).st_size, path.name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes:
        """Return bytes. Raises ModelInvalid if the file has become shorter since it was opened."""
        start, end, step = part.indices(self._size)
        assert step == 1, step
        found, at = bytearray(max(end - start, 0)), 0
        while at < len(found):
            taken = os.preadv(self._file, [memoryview(found)[at:]], start + at)
            if not taken:
                raise ModelInvalid("the file was changed while it was read", file=self._name)
            at += taken
        return bytes(found)


@dataclass(frozen=True)
class OpenModel:
    """A model whose files are open. ``load`` freezes its weights, ``tokeniser`` needs the extra ``models``."""

    shape: LlamaShape
    load: Callable[[], Model]
    tokeniser: Callable[[], Tokeniser]


@contextmanager
def open_model(path: Path) -> Iterator[OpenModel]:
    """Open the files of a model. Raises ModelInvalid and ModelUnsupported, which name file and remedy."""
    with ExitStack() as opened:
        if path.is_file() and path.suffix == ".gguf":
            yield _gguf(path, opened)
        else:
            yield _folder(path if path.is_dir() else path.parent, opened, None if path.is_dir() else path.name)


def _content(path: Path, opened: ExitStack) -> FileContent:
    try:
        return opened.enter_context(FileContent(path))
    except OSError as error:
        raise ModelInvalid(f"not readable: {error.strerror}", file=path.name, remedy=_FOLDER) from None


def _bytes(path: Path, limit: int, opened: ExitStack) -> bytes:
    """Return a whole file and at most one byte more than allowed: whoever reads it refuses that by name."""
    return _content(path, opened)[: limit + 1]


def _gguf(path: Path, opened: ExitStack) -> OpenModel:
    content = _content(path, opened)
    with _named(path.name):
        file = read_gguf(content)
        shape = shape_of_gguf(file)

    def load() -> Model:
        with _named(path.name):
            return model_from_gguf(file)

    def tokeniser() -> Tokeniser:
        with _named(path.name):
            return tokeniser_from_gguf(file.settings)

    return OpenModel(shape, load, tokeniser)


def _folder(folder: Path, opened: ExitStack, weights: str | None) -> OpenModel:
    config = _bytes(folder / CONFIG, CONFIG_BYTES_MAX, opened)
    shards = None
    if weights is None and not (folder / WEIGHTS).exists():
        shards = shards_of(_bytes(folder / INDEX, INDEX_BYTES_MAX, opened))
    files = {}
    for name in shards or [weights or WEIGHTS]:
        with _named(name):
            files[name] = read_safetensors(_content(folder / name, opened))
    checkpoint = Checkpoint(config, files, shards)

    def tokeniser() -> Tokeniser:
        settings = [(CONFIG, config)]
        if (folder / ENDS).exists():
            settings.append((ENDS, _bytes(folder / ENDS, CONFIG_BYTES_MAX, opened)))
        data = _bytes(folder / TOKENISER, JSON_BYTES_MAX, opened)
        with _named(TOKENISER):
            return tokeniser_from_json(data, checkpoint.shape.vocabulary, ends_of(*settings))

    return OpenModel(checkpoint.shape, checkpoint.model, tokeniser)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Give errors the name of the file that they are about."""
    try:
        yield
    except ModelError as error:
        raise error.within(name) from None


@dataclass(frozen=True)
class OpenEmbedder:
    """A model that makes vectors of texts. ``pooling`` and ``normalised`` are what its files say."""

    shape: ModelShape
    load: Callable[[], FrozenModel]
    tokens: Callable[[], TextTokens]
    pooling: str
    normalised: bool


@contextmanager
def open_embedder(path: Path) -> Iterator[OpenEmbedder]:
    """Open the files of an encoder, or of a decoder of the Llama family. Raises ModelInvalid, ModelUnsupported."""
    if not path.is_dir() or not _is_encoder(path):
        with open_model(path) as opened:

            def load() -> FrozenModel:
                found = opened.load()
                return FrozenModel(found.shape, found.tensors, found.notes)

            yield OpenEmbedder(opened.shape, load, lambda: PlainTokens(opened.tokeniser()), "last", True)
        return
    with ExitStack() as opened_files:
        config = _bytes(path / CONFIG, CONFIG_BYTES_MAX, opened_files)
        with _named(WEIGHTS):
            weights = read_safetensors(_content(path / WEIGHTS, opened_files))
        files = EncoderFiles(config, {WEIGHTS: weights})
        pooling, normalised = "mean", True
        if (path / POOLING).exists():
            pooling = pooling_of(_bytes(path / POOLING, CONFIG_BYTES_MAX, opened_files), POOLING)
            modules = path / PARTS
            normalised = modules.exists() and b"models.Normalize" in _bytes(
                modules, CONFIG_BYTES_MAX, opened_files
            )

        def tokens() -> TextTokens:
            data = _bytes(path / TOKENISER, JSON_BYTES_MAX, opened_files)
            with _named(TOKENISER):
                return encoder_tokens(data, files.shape.vocabulary)

        yield OpenEmbedder(files.shape, files.model, tokens, pooling, normalised)


def _is_encoder(folder: Path) -> bool:
    """Tell whether the settings of a folder are those of an encoder. Raises ModelInvalid."""
    with ExitStack() as opened:
        config = _bytes(folder / CONFIG, CONFIG_BYTES_MAX, opened)
        return read_settings(CONFIG, config, CONFIG_BYTES_MAX).get("model_type") == ENCODER
