"""Validation losses that stand in a window's proof, under the root of the state that it leaves (market.md R86)."""

from __future__ import annotations

import math
from typing import NamedTuple

from state.primitives.errors import DecodeError
from state.primitives.merkle import MerkleProof, merkle_proof, verify_merkle_proof
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.state import TrainingState
from tasks.engines.tuning_plan import TuningPlan
from tasks.kinds.decoder import DecoderPart
from tasks.kinds.finetune import FinetunePart
from tasks.programs.loop import EVALUATIONS_MAX
from tasks.programs.looped import EVALUATION_LOSSES, losses_in
from tasks.programs.states import state_leaves, tensor_leaf
from tasks.programs.tensors import ElementType, TensorType, tensor_root
from tasks.proofs import ShownLosses, WindowProof
from tasks.spec import JobSpec

__all__ = [
    "Evaluation", "ended_by", "evaluations_of", "is_end", "least_steps", "show_losses", "shows_losses",
]  # fmt: skip

_TYPE = TensorType(ElementType.BINARY32, 1, EVALUATIONS_MAX)


class Evaluation(NamedTuple):
    """A validation loss: after ``update`` updates of the weights, which is after ``step`` steps."""

    update: int
    step: int
    loss: float


def _plan(spec: JobSpec) -> TuningPlan | DecoderPlan | None:
    """Return the plan of a job that evaluates; None for every other one."""
    plan = spec.plan()
    return plan if isinstance(plan, TuningPlan | DecoderPlan) and plan.shape.evaluate_every else None


def show_losses(spec: JobSpec, state: TrainingState) -> ShownLosses | None:
    """Return the losses in a state with their path to its root; None for a job that does not evaluate."""
    plan = _plan(spec)
    if plan is None:
        return None
    kinds = {name: (kind, tensor_root(kind, state.tensors[name])) for name, kind in plan.tensors().items()}
    place, _ = plan.shape.losses_place
    path = merkle_proof(state_leaves(state.step, kinds), place)
    return ShownLosses(state.tensors[EVALUATION_LOSSES], path.siblings)


def shows_losses(spec: JobSpec, proof: WindowProof) -> bool:
    """Tell whether a proof has the losses of the state that it leaves; of a job that does not evaluate, none.

    Every validator asks that of every proof, so no plan is made: counting the calls of a step takes 0.2 ms.
    """
    part, shown = spec.part, proof.losses
    evaluates = isinstance(part, FinetunePart | DecoderPart) and part.loop.evaluate_every > 0
    if not isinstance(part, FinetunePart | DecoderPart) or not evaluates or shown is None:
        return not evaluates and shown is None
    if len(shown.content) != _TYPE.size_bytes or not all(map(math.isfinite, losses_in(shown.content))):
        return False
    leaf = tensor_leaf(EVALUATION_LOSSES, _TYPE, tensor_root(_TYPE, shown.content))
    return verify_merkle_proof(proof.result_root, leaf, MerkleProof(*part.shape.losses_place, shown.siblings))


def evaluations_of(spec: JobSpec, step: int, content: bytes) -> tuple[Evaluation, ...]:
    """Return the evaluations that are complete after ``step`` steps, of the losses in a proof.

    Raises DecodeError for other content than a job of this kind has.
    """
    plan = _plan(spec)
    if plan is None or len(content) != _TYPE.size_bytes:
        raise DecodeError(f"losses of {len(content)} bytes, of a job that has other ones or none")
    loop, losses = plan.loop, losses_in(content)
    found: list[Evaluation] = []
    for number in range(loop.evaluated_by(step)):
        update = min((number + 1) * loop.evaluate_every, loop.updates)
        found.append(Evaluation(update, loop.evaluated_at(number), losses[number]))
    return tuple(found)


def ended_by(spec: JobSpec, proof: WindowProof) -> int:
    """Return the steps after which a job ends early, by the losses that a proof shows; 0 if it goes on (R87).

    That they are those of the state is not asked here (``shows_losses``).
    """
    part, shown = spec.part, proof.losses
    if not isinstance(part, FinetunePart | DecoderPart) or not part.loop.patience or shown is None:
        return 0
    plan = _plan(spec)
    if plan is None or len(shown.content) != _TYPE.size_bytes:
        return 0
    return plan.loop.ended_by(proof.result_step, losses_in(shown.content), plan.patience)


def is_end(spec: JobSpec, state: TrainingState) -> bool:
    """Tell whether a job ends with a state: after its last step, or early (R87)."""
    plan = _plan(spec)
    is_early = plan is not None and plan.ends_at(state.step, state.tensors[EVALUATION_LOSSES])
    return is_early or state.step == spec.schedule.total_steps


def least_steps(spec: JobSpec) -> int:
    """Return the steps after which a job ends at the earliest: no evaluation after its first has a lower loss."""
    plan, total = _plan(spec), spec.schedule.total_steps
    if plan is None or not plan.patience:
        return total
    return plan.loop.ended_by(total, (0.0,) * EVALUATIONS_MAX, plan.patience) or total
