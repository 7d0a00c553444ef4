"""Makes the job of a request: one function for each kind (docs/decisions/0101-requests.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from rpc.client.containers import ContainerJob, make_container
from tasks.kinds.classifier import KIND_TRAIN
from tasks.kinds.container import KIND_CONTAINER
from tasks.kinds.embed import KIND_EMBED
from tasks.kinds.evaluate import KIND_EVALUATE
from tasks.kinds.finetune import KIND_FINETUNE
from tasks.kinds.generate import KIND_GENERATE
from tasks.models.byte_tokens import BYTES_VOCABULARY, ByteTokens
from tasks.models.embedding import EmbeddingJob, make_embedding
from tasks.models.evaluating import EvaluatingJob, make_evaluating
from tasks.models.generating import GeneratingJob, TrainedModel, Tuned, make_generating
from tasks.models.jobs import LazyTokens, TuningJob, make_tuning
from tasks.models.opening import open_embedder, open_model
from tasks.models.rows import FILE_BYTES_MAX
from tasks.models.training import TrainingJob, make_training
from tasks.requests.containing import ContainerRequest
from tasks.requests.embedding import EmbeddingRequest
from tasks.requests.errors import RequestInvalid
from tasks.requests.evaluating import EvaluatingRequest
from tasks.requests.generating import GeneratingRequest
from tasks.requests.references import TaskRef
from tasks.requests.training import BYTES, TrainingRequest
from tasks.requests.tuning import TuningRequest

__all__ = ["MAKERS", "JobTerms", "MadeJob", "Maker", "check_tuned", "file_of"]

MadeJob: TypeAlias = TrainingJob | TuningJob | GeneratingJob | ContainerJob | EmbeddingJob | EvaluatingJob


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


def check_tuned(file: str, adapter: TaskRef | None, tuned: Tuned | None) -> None:
    """Check that the result of the task that a request names is there. Raises RequestInvalid."""
    if adapter is not None and tuned is None:
        raise RequestInvalid("the result of its task is needed", file=file, field="adapter")


def file_of(name: str, request_file: str, field: str) -> bytes:
    """Return the rows of a file that a field of a request names. Raises RequestInvalid."""
    path = Path(name)
    try:
        if path.exists() and not path.is_file():
            raise RequestInvalid("not a file", file=name, field=field)
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)  # whoever reads them refuses more by name
    except OSError as error:
        where = f" in {request_file}" if request_file else ""
        text = f"{error.strerror}; {field}{where} names a file of JSON lines"
        raise RequestInvalid(text, file=name, field=field) from None


def _training(request: TrainingRequest, rows: bytes, _tuned: Tuned | None, terms: JobTerms) -> TrainingJob:
    if request.tokenizer == BYTES:
        tokens, vocabulary = ByteTokens(), BYTES_VOCABULARY
        return make_training(rows, request.data, tokens, vocabulary, request.settings, **terms.named)
    with open_model(Path(request.tokenizer)) as opened:
        made, vocabulary = LazyTokens(opened), opened.shape.vocabulary
        return make_training(rows, request.data, made, vocabulary, request.settings, **terms.named)


def _tuning(request: TuningRequest, rows: bytes, _tuned: Tuned | None, terms: JobTerms) -> TuningJob:
    held = file_of(request.validation, request.file, "validation") if request.validation else None
    with open_model(Path(request.model)) as opened:
        return make_tuning(opened, rows, request.settings, validation=held, **terms.named)


def _generating(request: GeneratingRequest, rows: bytes, tuned: Tuned | None, terms: JobTerms) -> GeneratingJob:
    check_tuned(request.file, request.adapter, tuned)
    if not request.model:
        return _asking(request, rows, tuned, terms)
    with open_model(Path(request.model)) as opened:
        return make_generating(opened, rows, request.settings, tuned=tuned, **terms.named)


def _asking(request: GeneratingRequest, rows: bytes, trained: Tuned | None, terms: JobTerms) -> GeneratingJob:
    """Return the job that asks a model of the task that has trained it."""
    assert trained is not None
    if not request.tokenizer:
        return make_generating(TrainedModel.of(trained, None), rows, request.settings, **terms.named)
    with open_model(Path(request.tokenizer)) as opened:
        model = TrainedModel.of(trained, opened.tokeniser)
        return make_generating(model, rows, request.settings, **terms.named)


def _containing(request: ContainerRequest, _rows: bytes, _tuned: Tuned | None, terms: JobTerms) -> ContainerJob:
    return make_container(request, max_price=terms.max_price, match_ms=terms.match_ms)


def _embedding(request: EmbeddingRequest, rows: bytes, _tuned: Tuned | None, terms: JobTerms) -> EmbeddingJob:
    with open_embedder(Path(request.model)) as opened:
        return make_embedding(opened, rows, request.settings, **terms.named)


def _evaluating(request: EvaluatingRequest, rows: bytes, tuned: Tuned | None, terms: JobTerms) -> EvaluatingJob:
    with open_model(Path(request.model)) as opened:
        check_tuned(request.file, request.adapter, tuned)
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
