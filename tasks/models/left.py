"""What a task of training has left, as another job takes it: its adapters, or its whole model."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple, Protocol

from state.primitives.manifests import manifest_of
from tasks.engines.errors import UnsupportedJob
from tasks.engines.pass_plan import adapter_plan_of
from tasks.engines.state import TrainingState
from tasks.kinds.adapters import TunedAdapter
from tasks.kinds.decoder import DecoderModel, DecoderPart
from tasks.kinds.finetune import FinetunePart, family_of
from tasks.models.llama import Model, expanded
from tasks.programs.llama_shape import Adapter, LlamaShape, parameters_of
from tasks.programs.looped import has_result, layout_of
from tasks.spec import JobSpec

__all__ = [
    "Begin", "Tuned", "begin_of_files", "begin_of_task", "check_base", "name_of", "tuned_adapter", "whole_model",
]  # fmt: skip


class Tuned(Protocol):
    """What a task that trains has left: its job, and its state after a final window."""

    @property
    def spec(self) -> JobSpec:
        """The job of the task."""

    @property
    def state(self) -> TrainingState:
        """The state with the adapters, or with all weights of a model."""


def tuned_adapter(tuned: Tuned) -> TunedAdapter:
    """Return the adapters that a task has left. Raises UnsupportedJob."""
    part = tuned.spec.part
    if not isinstance(part, FinetunePart):
        raise UnsupportedJob(
            f"a task of kind {tuned.spec.kind} has no adapters; name one that fine-tuned the model"
        )
    plan = part.plan(tuned.spec.seed, tuned.spec.schedule.total_steps)
    if not has_result(plan.shape, tuned.state.tensors):
        raise UnsupportedJob("no evaluation of that task was complete, so it has no best adapters yet")
    return TunedAdapter(
        name_of(tuned.state.encode()),
        tuned.state.root(plan),
        *part.adapters,
        tuned.state.step,
        layout_of(plan.shape),
    )


def whole_model(trained: Tuned) -> TunedAdapter:
    """Return the state that a task has left, in the place of adapters. Raises UnsupportedJob."""
    part, state = trained.spec.part, trained.state
    if not isinstance(part, DecoderPart):
        raise UnsupportedJob(
            f"a task of kind {trained.spec.kind} has no model of its own: name one that trained a language model"
        )
    if not has_result(part.shape, state.tensors):
        raise UnsupportedJob("no evaluation of that task was complete, so it has no best model yet")
    root, layout = state.root(trained.spec.plan()), layout_of(part.shape)
    return TunedAdapter(name_of(state.encode()), root, 0, 0, (), state.step, layout)


class WholeFiles(Protocol):
    """An open model (``tasks.models.opening``)."""

    @property
    def shape(self) -> LlamaShape:
        """Its shape."""

    @property
    def load(self) -> Callable[[], Model]:
        """Freezes its weights."""


class Begin(NamedTuple):
    """The weights with which a training of a whole model begins: its model, and the state that has them.

    ``named`` is what a specification says of that state (R133).
    """

    model: DecoderModel
    named: TunedAdapter
    state: TrainingState


def begin_of_task(start: Tuned, vocabulary: int) -> Begin:
    """Return the model that a task has trained. Raises UnsupportedJob for one of another vocabulary."""
    named, part = whole_model(start), start.spec.part
    assert isinstance(part, DecoderPart)
    if part.model.vocabulary != vocabulary:
        raise UnsupportedJob(
            f"the model has {part.model.vocabulary} tokens, and this tokeniser {vocabulary}: name the folder that "
            "it was trained on (tokenizer)"
        )
    return Begin(part.model, named, start.state)


def begin_of_files(opened: WholeFiles) -> Begin:
    """Return the weights of a model's files as a state after no step: as jobs compute them, of 15 bits (R170).

    Raises UnsupportedJob for a model that no job trains as a whole, ModelError with file and remedy.
    """
    shape = opened.shape
    if shape.biased:
        raise UnsupportedJob("a model with biases of queries, keys and values: train adapters for it (finetune)")
    named = Adapter(0, 0, (), 0)
    plan = adapter_plan_of(shape, named)  # refused before a weight is read, if it is too large
    model, tensors = opened.load(), {name: bytes(kind.size_bytes) for name, kind in plan.tensors().items()}
    for name in parameters_of(shape):
        tensors[f"{named.group}/{name}"] = expanded(model, name).tobytes()
    state = TrainingState(0, tensors)
    numbers = (
        shape.vocabulary, shape.width, shape.layers, shape.heads, shape.key_heads, shape.head_width, shape.hidden,
        shape.context, shape.rotary_base, shape.epsilon_nano, int(shape.tied),
    )  # fmt: skip
    left = TunedAdapter(name_of(state.encode()), state.root(plan), *named)
    return Begin(DecoderModel(family_of(shape), *numbers), left, state)


def check_base(tuned: Tuned, root: bytes) -> None:
    """Raises UnsupportedJob unless adapters were trained on the frozen model of this root."""
    if tuned.spec.model_root() != root:
        raise UnsupportedJob("the adapters were trained on another model; name the model of their task")


def name_of(blob: bytes) -> bytes:
    """Return the content address of a blob."""
    return manifest_of(BytesIO(blob)).blob_id
