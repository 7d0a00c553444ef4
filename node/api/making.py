"""Makes the job of a request from a model's own files: the same one each time, also after a restart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from node.api.batches import TextBatch, VectorBatch
from node.api.errors import ApiError, not_found, unsupported, wrong
from node.api.lines import Fault, parse_lines
from node.api.prompting import plan_batch
from node.api.records import TUNING, JobRecord
from node.api.requests import CHAT, DPO, EMBEDDINGS
from node.api.store import Store
from node.api.vectors import plan_vectors
from node.home.models import find_model, models_of
from node.home.paths import Home
from rpc.client.jobs import make_job
from state.primitives.errors import ConfigError
from state.primitives.hashing import digest
from tasks.engines.errors import EngineMissing, StateInvalid
from tasks.engines.state import TrainingState
from tasks.kinds.embed import KIND_EMBED
from tasks.kinds.finetune import KIND_FINETUNE
from tasks.kinds.generate import KIND_GENERATE
from tasks.models.errors import ModelError, RowsInvalid
from tasks.models.jobs import LazyTokens, TuningSettings
from tasks.models.opening import open_embedder, open_model
from tasks.models.rows import Example, Pair, examples_of, objects_of, pairs_of
from tasks.models.tokens import Tokeniser
from tasks.programs.operators.scalars import NANO
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import request_of
from tasks.requests.tuning import BETA_NANO
from tasks.spec import JobSpec, decode_spec

if TYPE_CHECKING:
    from rpc.client.making import MadeJob
    from tasks.programs.loop import Loop

__all__ = ["Maker", "MakerOptions", "ModelFile", "parse_model", "trained_tokens"]

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,95}")
_TURN: Final = ("<|im_start|>", "<|im_end|>")
"""Tokens of the one form of chats that there is (ChatML)."""
_USUAL: Final = TuningSettings()


class ModelFile(NamedTuple):
    """A model of this machine under a name: a folder of safetensors, or a GGUF file."""

    name: str
    path: Path

    def check(self) -> None:
        """Raises ConfigError if there is no such model, or it is of another architecture."""
        try:
            with open_embedder(self.path):  # decoders too
                pass
        except ModelError as error:
            raise ConfigError(f"--model {self.name}: {self.path}: {error}") from None


def parse_model(text: str) -> ModelFile:
    """Return the model of NAME=PATH. Raises ConfigError."""
    name, equals, path = text.partition("=")
    if not equals or not path or not NAME.fullmatch(name) or name.startswith("ft:"):
        raise ConfigError(f"{text!r}: NAME=PATH expected; a name has letters, digits, dots, slashes and hyphens")
    return ModelFile(name, Path(path))


class MakerOptions(NamedTuple):
    """Terms of all jobs."""

    max_price: int
    match_ms: int


class Adapters(NamedTuple):
    """The adapters of a tuned model."""

    spec: JobSpec
    state: TrainingState


class Maker:
    """Makes jobs; it reads whole models, so it runs in a thread."""

    def __init__(self, models: Sequence[ModelFile], home: Home, store: Store, options: MakerOptions) -> None:
        """``models`` go before those of ``home`` (``dekube model add``)."""
        self._named, self._home = {model.name: model for model in models}, home
        self._store, self._options = store, options
        self._last: tuple[str, MadeJob] | None = None
        """The last job: it is made to be priced, and a moment later to be posted."""

    def models(self) -> list[tuple[str, int]]:
        """Return the names of all models of this machine, and since when each is there; 0: since the start.

        Raises ApiError for a damaged folder of models.
        """
        try:
            found = {model.name: model.added_ms // 1000 for model in models_of(self._home)}
        except ConfigError as error:
            raise ApiError(str(error), status=500, kind="server_error", retry=False) from None
        return list((found | dict.fromkeys(self._named, 0)).items())

    def _find(self, model: str) -> ModelFile | None:
        path = find_model(self._home, model)
        return self._named.get(model) or (None if path is None else ModelFile(model, path))

    def base_of(
        self, model: str, param: str = "model", *, is_deleted_too: bool = False
    ) -> tuple[ModelFile, JobRecord | None]:
        """Return the files of a model, and the job that tuned it. Raises ApiError.

        A job that was created goes on with a model that was deleted since.
        """
        found = self._find(model)
        if found is not None:
            return found, None
        job = self._store.tuned(model, is_deleted_too=is_deleted_too)
        if job is None:
            error = not_found("model", model, param)
            error.reason = "model_not_found"
            raise error
        base = self.base_name(model)
        if (found := self._find(base)) is None:
            raise wrong(f"The base model {base} is not served any more.", param, "model_not_found")
        return found, job

    def base_name(self, model: str) -> str:
        """Return the name of a model, or of the base model that one job or several have tuned it from.

        The base model may not be served any more.
        """
        while self._find(model) is None and (job := self._store.tuned(model, is_deleted_too=True)) is not None:
            model = job.model
        return model

    def settled(self, job: JobRecord, **settings: Any) -> JobRecord:
        """Return a fine-tuning job with numbers for what its request left open. Raises ApiError."""
        model, _ = self.base_of(job.model)
        factor = settings["rate_factor"] or 1.0
        is_dpo = job.request.get("method") == DPO
        read = list[list[Example] | list[Pair]]()
        try:
            with open_model(model.path) as opened:
                tokens = LazyTokens(opened)
                for file in job.files:
                    data = self._store.content(file)
                    if any({"messages", "input"} & fields.keys() for _, fields in objects_of(data)):
                        check_chat(opened.tokeniser())
                    if is_dpo:
                        read.append(list(pairs_of(data, tokens, opened.shape.vocabulary)))
                    else:
                        read.append(list(examples_of(data, tokens, opened.shape.vocabulary)))
        except RowsInvalid as error:
            raise _of_rows(error, "validation_file" if read else "training_file") from None
        except (ModelError, EngineMissing) as error:
            raise wrong(str(error), "model", error.code) from None
        numbers = {
            "epochs": settings["epochs"] or _USUAL.epochs,
            "batch": min(settings["batch"] or _USUAL.batch, len(read[0])),
            "rate_factor": factor,
            "tokens": sum(_tokens_of(one) for one in read[0]),
        }
        if is_dpo:
            numbers["beta"] = settings.get("beta") or BETA_NANO / NANO
        return replace(job, settings=numbers)

    def make(self, job: JobRecord) -> MadeJob:
        """Return the job of a record. Raises ApiError."""
        if self._last is not None and self._last[0] == job.id:
            return self._last[1]
        self._last = None
        made = self._tuning(job) if job.kind == TUNING else self._batch(job)
        self._last = job.id, made
        return made

    def forget(self) -> None:
        """Free the last job."""
        self._last = None

    def _tuning(self, job: JobRecord) -> MadeJob:
        rate = round(_USUAL.learning_rate_nano * float(job.settings["rate_factor"])) / NANO
        values: dict[str, Any] = {
            "kind": KIND_FINETUNE, "epochs": job.settings["epochs"], "batch": job.settings["batch"],
            "learning_rate": rate,
        }  # fmt: skip
        if "beta" in job.settings:
            values |= {"preference": DPO, "beta": job.settings["beta"]}
        if job.validation_file is not None:  # once an epoch
            values["validation"] = str(self._store.path(job.validation_file).absolute())
        adapters = self._tuned(job, "model", values)
        return self._make(job, self._store.content(job.data_file), "training_file", values, adapters)

    def _batch(self, job: JobRecord) -> MadeJob:
        asked = self.plan(job)
        values: dict[str, Any]
        if isinstance(asked, VectorBatch):
            values = {"kind": KIND_EMBED}
            adapters = self._tuned(job, "body.model", values)
            return self._make(job, asked.plan.data(), "input_file_id", values, adapters)
        plan, text = asked.plan, asked.text
        values = {"kind": KIND_GENERATE, "new_tokens": plan.new_tokens, "ends": sorted(text.ends)}
        adapters = self._tuned(job, "body.model", values)
        return self._make(job, plan.data(), "input_file_id", values, adapters)

    def _tuned(self, job: JobRecord, param: str, values: dict[str, Any]) -> Adapters | None:
        """Return the adapters of the model of a job, and name them; None for a base model. Raises ApiError."""
        _, tuned = self.base_of(job.model, param, is_deleted_too=True)
        if tuned is None or tuned.signed is None:
            return None
        values["adapter"] = f"task:0x{tuned.signed.task}"
        return self._adapters(tuned)

    def _adapters(self, job: JobRecord) -> Adapters:
        """Return what a fine-tuning job has left. Raises ApiError if it is not what the chain has."""
        spec = decode_spec(bytes.fromhex(job.spec))
        plan = spec.plan()
        try:
            state = TrainingState.decode(self._store.state(job.id), plan)
        except StateInvalid as error:
            raise ApiError(
                f"The state of {job.id} is damaged: {error}.", status=500, kind="server_error"
            ) from None
        if state.root(plan).hex() != job.state_root:
            raise ApiError(f"The state of {job.id} is damaged.", status=500, kind="server_error")
        return Adapters(spec, state)

    def _make(
        self, job: JobRecord, data: bytes, param: str, values: Mapping[str, Any], adapters: Adapters | None = None
    ) -> MadeJob:
        model, _ = self.base_of(job.model, is_deleted_too=True)
        try:
            request = request_of({**values, "model": str(model.path.absolute()), "data": job.data_file})
            return make_job(
                request, seed=digest(b"task-seed", str(job.seed).encode()), match_ms=self._options.match_ms,
                max_price_per_tera_unit=self._options.max_price, data=data, tuned=adapters,
            )  # fmt: skip
        except RequestInvalid as error:
            where = {"model": "model", "data": param, "validation": "validation_file"}.get(error.field)
            raise wrong(_place(error.line) + error.text, where, error.code) from None

    def lines(self, job: JobRecord) -> tuple[str, list[Fault]]:
        """Return the model of a batch's file, or what is wrong with the file."""
        lines, faults = parse_lines(self._store.content(job.data_file), job.request["endpoint"])
        if faults:
            return "", faults
        try:
            self.base_of(lines[0].model, "body.model")
        except ApiError as error:
            return "", [Fault("model_not_found", str(error), lines[0].line, "body.model")]
        return lines[0].model, []

    def plan(self, job: JobRecord) -> TextBatch | VectorBatch:
        """Return what a batch asks for. Raises ApiError."""
        endpoint = job.request["endpoint"]
        lines, faults = parse_lines(self._store.content(job.data_file), endpoint)
        assert not faults, faults
        model, _ = self.base_of(job.model, "body.model", is_deleted_too=True)
        try:
            if endpoint == EMBEDDINGS:
                with open_embedder(model.path) as embedder:
                    shape = embedder.shape
                    return VectorBatch(plan_vectors(lines, embedder.tokens(), shape.vocabulary, shape.context))
            with open_model(model.path) as opened:
                text = opened.tokeniser()
                if endpoint == CHAT:
                    check_chat(text)
                plan = plan_batch(lines, text, opened.shape.vocabulary, opened.shape.context)
                return TextBatch(plan, text, endpoint)
        except (ModelError, EngineMissing) as error:
            raise wrong(str(error), "model", error.code) from None


def _tokens_of(row: Example | Pair) -> int:
    return len(row.tokens) if isinstance(row, Example) else sum(len(one.tokens) for one in row)


def check_chat(text: Tokeniser) -> None:
    """Raise ApiError for a model whose vocabulary has no turns of chats in the one form that there is."""
    if any(len(text.encode(name)) != 1 for name in _TURN):
        raise unsupported(
            f"The model has no tokens {' and '.join(_TURN)}: it takes prompts and completions, no chats.", "model"
        )


def _of_rows(error: RowsInvalid, param: str) -> ApiError:
    return wrong(f"The {param.replace('_', ' ')} is invalid: {error}.", param, f"invalid_{param}")


def _place(line: int | None) -> str:
    return "" if line is None else f"line {line}: "


def trained_tokens(job: JobRecord, loop: Loop, steps: int) -> int:
    """Return how many tokens a job was trained on: those of its rows, as often as they were read."""
    return int(job.settings["tokens"]) * loop.trained(loop.updated_by(steps)) // loop.epoch_steps
