"""What a task of training has left, as another job takes it: its adapters, or its whole model."""

from __future__ import annotations

from io import BytesIO
from typing import Protocol

from state.primitives.manifests import manifest_of
from tasks.engines.errors import UnsupportedJob
from tasks.engines.state import TrainingState
from tasks.kinds.adapters import TunedAdapter
from tasks.kinds.decoder import DecoderPart
from tasks.kinds.finetune import FinetunePart
from tasks.programs.looped import has_result, layout_of
from tasks.spec import JobSpec

__all__ = ["Tuned", "check_base", "name_of", "tuned_adapter", "whole_model"]


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


def check_base(tuned: Tuned, root: bytes) -> None:
    """Raises UnsupportedJob unless adapters were trained on the frozen model of this root."""
    if tuned.spec.model_root() != root:
        raise UnsupportedJob("the adapters were trained on another model; name the model of their task")


def name_of(blob: bytes) -> bytes:
    """Return the content address of a blob."""
    return manifest_of(BytesIO(blob)).blob_id
