"""Makes the job of a request: one function for each kind (docs/decisions/0101-requests.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

from rpc.client.containers import ContainerJob, make_container
from tasks.kinds.classifier import KIND_TRAIN
from tasks.kinds.container import KIND_CONTAINER
from tasks.kinds.embed import KIND_EMBED
from tasks.kinds.evaluate import KIND_EVALUATE
from tasks.kinds.finetune import KIND_FINETUNE
from tasks.kinds.generate import KIND_GENERATE
from tasks.models.byte_tokens import BYTES_VOCABULARY, ByteTokens
from tasks.models.embedding import EmbeddingJob, TrainedEmbedder, TunedEmbedder, make_embedding
from tasks.models.errors import RowsInvalid
from tasks.models.evaluating import EvaluatingJob, make_evaluating
from tasks.models.generating import GeneratingJob, TrainedModel, Tuned, byte_tokens, make_generating
from tasks.models.jobs import LazyTokens, TuningJob, make_tuning
from tasks.models.left import Begin, begin_of_files, begin_of_task
from tasks.models.llama import Model
from tasks.models.opening import open_embedder, open_model
from tasks.models.rows import FILE_BYTES_MAX, Tokens
from tasks.models.tables import is_table, lines_of
from tasks.models.texts import LINES
from tasks.models.training import TextFile, TrainingJob, make_training
from tasks.programs.llama_shape import LlamaShape
from tasks.requests.containing import ContainerRequest
from tasks.requests.embedding import EmbeddingRequest
from tasks.requests.errors import RequestInvalid
from tasks.requests.evaluating import EvaluatingRequest
from tasks.requests.generating import GeneratingRequest
from tasks.requests.references import TaskRef
from tasks.requests.training import BYTES, TrainingRequest
from tasks.requests.tuning import TuningRequest

__all__ = ["MAKERS", "JobTerms", "MadeJob", "Maker", "check_tuned", "file_of", "rows_of_file"]

PART_BYTES: Final = 1 << 20
"""Of a file that is too large, read at once to count its lines."""
MadeJob: TypeAlias = TrainingJob | TuningJob | GeneratingJob | ContainerJob | EmbeddingJob | EvaluatingJob


class OpenedFiles(NamedTuple):
    """The files of a model, and what makes its tokens."""

    shape: LlamaShape
    load: Callable[[], Model]
    tokeniser: Callable[[], Tokens]


class JobTerms(NamedTuple):
    """The seed of a job, its highest price per 10^12 work units, and how long a machine is looked for."""

    seed: bytes
    max_price: int
    match_ms: int

    @property
    def named(self) -> dict[str, Any]:
        """The terms as arguments."""
        return {"seed": self.seed, "max_price_per_tera_unit": self.max_price, "match_ms": self.match_ms}


Maker: TypeAlias = Callable[[Any, bytes, Tuned | None, JobTerms], MadeJob]


def check_tuned(file: str, adapter: TaskRef | None, tuned: Tuned | None, field: str = "adapter") -> None:
    """Check that the result of the task that a request names is there. Raises RequestInvalid."""
    if adapter is not None and tuned is None:
        raise RequestInvalid("the result of its task is needed", file=file, field=field)


@contextmanager
def _asked(
    request: GeneratingRequest | EvaluatingRequest | EmbeddingRequest, tuned: Tuned | None
) -> Iterator[TrainedModel | None]:
    """Open the model of the task that has trained it; None where a request names files."""
    check_tuned(request.file, request.adapter, tuned, "adapter" if request.model else "model")
    if request.model:
        yield None
        return
    assert tuned is not None
    if not request.tokenizer:
        yield TrainedModel.of(tuned, None)
        return
    with open_model(Path(request.tokenizer)) as opened:
        yield TrainedModel.of(tuned, opened.tokeniser)


@contextmanager
def _opened(
    request: TuningRequest | GeneratingRequest | EvaluatingRequest | EmbeddingRequest,
) -> Iterator[OpenedFiles]:
    """Open the files of a model. Those of a task (R169) have the tokens that the request names."""
    with ExitStack() as files:
        found = files.enter_context(open_model(Path(request.model)))
        tokeniser: Callable[[], Tokens] = found.tokeniser
        if request.tokenizer == BYTES:
            tokeniser = byte_tokens(found.shape.vocabulary)
        elif request.tokenizer:
            tokeniser = files.enter_context(open_model(Path(request.tokenizer))).tokeniser
        yield OpenedFiles(found.shape, found.load, tokeniser)


def file_of(name: str, request_file: str, field: str) -> bytes:
    """Return the rows of a file that a field of a request names. Raises RequestInvalid.

    A file that is too large is not read: only its lines are counted, up to the first that is too much.
    """
    path = Path(name)
    try:
        if path.exists() and not path.is_file():
            raise RequestInvalid("not a file", file=name, field=field)
        with path.open("rb") as file:
            if (size := os.fstat(file.fileno()).st_size) > FILE_BYTES_MAX:
                line = _line_at(file, FILE_BYTES_MAX)
                text = f"a file of {size} bytes, at most {FILE_BYTES_MAX}: divide it before this line (split)"
                raise RequestInvalid(text, file=name, line=line, field=field, code=RowsInvalid.code)
            return file.read(FILE_BYTES_MAX + 1)  # it may grow; whoever reads them refuses more by name
    except OSError as error:
        where = f" in {request_file}" if request_file else ""
        text = f"{error.strerror}; {field}{where} names a file of JSON lines"
        raise RequestInvalid(text, file=name, field=field) from None


def _line_at(file: BinaryIO, place: int) -> int:
    """Return the line that has the byte at ``place``."""
    line, left = 1, place
    while left and (part := file.read(min(left, PART_BYTES))):
        line, left = line + part.count(b"\n"), left - len(part)
    return line


def rows_of_file(request: Any, name: str, field: str) -> bytes:
    """Return the JSON lines of a file that a field of a request names; a text to train on stays one.

    Raises RequestInvalid; RowsInvalid with line and column.
    """
    data = file_of(name, request.file, field)
    if not is_table(name, is_text=request.kind == KIND_TRAIN):
        return data
    return lines_of(data, name, "prompt" if request.kind == KIND_GENERATE else "text")


def _validation(request: TrainingRequest | TuningRequest) -> bytes:
    """Return the rows for validation. Raises as ``rows_of_file``."""
    try:
        return rows_of_file(request, request.validation, "validation")
    except RowsInvalid as error:
        error.is_validation = True
        raise


def _named(name: str) -> str:
    """Return a name that says how what ``rows_of_file`` gives is read."""
    return name + LINES if is_table(name, is_text=True) else name


def _training(request: TrainingRequest, rows: bytes, start: Tuned | None, terms: JobTerms) -> TrainingJob:
    check_tuned(request.file, request.adapter, start, "model")
    with ExitStack() as files:
        if request.model:
            opened = files.enter_context(open_model(Path(request.model)))
            tokens: Tokens = LazyTokens(opened)
            return _trained_on(request, rows, tokens, opened.shape.vocabulary, begin_of_files(opened), terms)
        tokens, vocabulary = ByteTokens(), BYTES_VOCABULARY
        if request.tokenizer != BYTES:
            opened = files.enter_context(open_model(Path(request.tokenizer)))
            tokens, vocabulary = LazyTokens(opened), opened.shape.vocabulary
        begin = None if start is None else begin_of_task(start, vocabulary)
        return _trained_on(request, rows, tokens, vocabulary, begin, terms)


def _trained_on(
    request: TrainingRequest, rows: bytes, tokens: Tokens, vocabulary: int, begin: Begin | None, terms: JobTerms
) -> TrainingJob:
    held: TextFile | None = None
    if request.validation:
        held = TextFile(_validation(request), _named(request.validation))
    return make_training(
        TextFile(rows, _named(request.data)), tokens, vocabulary, request.settings, start=begin, validation=held,
        **terms.named,
    )  # fmt: skip


def _tuning(request: TuningRequest, rows: bytes, start: Tuned | None, terms: JobTerms) -> TuningJob:
    check_tuned(request.file, request.adapter, start)
    held = _validation(request) if request.validation else None
    with _opened(request) as opened:
        return make_tuning(opened, rows, request.settings, validation=held, start=start, **terms.named)


def _generating(request: GeneratingRequest, rows: bytes, tuned: Tuned | None, terms: JobTerms) -> GeneratingJob:
    with _asked(request, tuned) as trained:
        if trained is not None:
            return make_generating(trained, rows, request.settings, **terms.named)
    with _opened(request) as opened:
        return make_generating(opened, rows, request.settings, tuned=tuned, **terms.named)


def _containing(request: ContainerRequest, _rows: bytes, _tuned: Tuned | None, terms: JobTerms) -> ContainerJob:
    return make_container(request, max_price=terms.max_price, match_ms=terms.match_ms)


def _embedding(request: EmbeddingRequest, rows: bytes, tuned: Tuned | None, terms: JobTerms) -> EmbeddingJob:
    with _asked(request, tuned) as trained:
        if trained is not None:
            return make_embedding(TrainedEmbedder(trained), rows, request.settings, **terms.named)
    if request.tokenizer:  # a decoder that a task has trained (R169)
        with _opened(request) as files:
            return make_embedding(TunedEmbedder(files), rows, request.settings, tuned=tuned, **terms.named)
    with open_embedder(Path(request.model)) as opened:
        return make_embedding(opened, rows, request.settings, tuned=tuned, **terms.named)


def _evaluating(request: EvaluatingRequest, rows: bytes, tuned: Tuned | None, terms: JobTerms) -> EvaluatingJob:
    with _asked(request, tuned) as trained:
        if trained is not None:
            return make_evaluating(trained, rows, request.settings, **terms.named)
    with _opened(request) as opened:
        return make_evaluating(opened, rows, request.settings, tuned=tuned, **terms.named)


MAKERS: Final[Mapping[str, Maker]] = {
    KIND_TRAIN: _training,
    KIND_FINETUNE: _tuning,
    KIND_GENERATE: _generating,
    KIND_CONTAINER: _containing,
    KIND_EMBED: _embedding,
    KIND_EVALUATE: _evaluating,
}
"""What makes the job of a kind, of a request, its rows, the adapters that it names, and its terms."""
