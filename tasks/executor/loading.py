"""What a job's process makes of an order's bytes: checked contents, a run, and the first state of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tasks.engines import decoder_training, generating
from tasks.engines.arrays import Arrays
from tasks.engines.datasets import Dataset
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.decoder_training import DecoderTrainer
from tasks.engines.errors import DatasetInvalid
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.input_blobs import check_adapter, model_root, read_model, read_rows, rows_root, split_tensors
from tasks.engines.pass_plan import PassPlan, root_of
from tasks.engines.passing import RowPass
from tasks.engines.plan import TrainingPlan
from tasks.engines.state import TrainingState
from tasks.engines.steps import Steps
from tasks.engines.training import Evaluation, Trainer, initial_state
from tasks.engines.tuning import Tuner, TuningPlan, first_state
from tasks.programs.errors import SourceInvalid
from tasks.programs.llama_shape import frozen_bytes

__all__ = ["beginning_of", "contents_of", "make_run", "rows_of"]

RunnablePlan: TypeAlias = TrainingPlan | DecoderPlan | TuningPlan | GeneratingPlan | PassPlan


def beginning_of(plan: RunnablePlan) -> TrainingState:
    """Return the state before the first step."""
    if isinstance(plan, PassPlan):
        return plan.first_state()
    if isinstance(plan, GeneratingPlan):
        return generating.first_state(plan)
    if isinstance(plan, DecoderPlan):
        return decoder_training.first_state(plan)
    return first_state(plan) if isinstance(plan, TuningPlan) else initial_state(plan)


def rows_of(plan: DecoderPlan, dataset: bytes, *, dataset_root: bytes) -> Mapping[str, bytes]:
    """Return the tensors of rows by name. Raises DatasetInvalid where the blob has another root."""
    rows = read_rows(plan.shape, dataset)
    if rows_root(plan.shape, rows) != dataset_root:
        raise DatasetInvalid("the rows are not those the job names")
    return rows


def contents_of(
    plan: TuningPlan | GeneratingPlan | PassPlan, dataset: bytes, model: bytes, *, dataset_root: bytes,
    root_of_model: bytes, root_of_adapter: bytes,
) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:  # fmt: skip
    """Return the tensors of rows, and of model and adapters, by name.

    Raises DatasetInvalid where blobs have other roots.
    """
    if isinstance(plan, PassPlan):
        return _passed(plan, dataset, model, dataset_root, root_of_model, root_of_adapter)
    rows, weights = read_rows(plan.shape, dataset), read_model(plan.shape, model)
    if rows_root(plan.shape, rows) != dataset_root:
        raise DatasetInvalid("the rows are not those the job names")
    if model_root(plan.shape, weights) != root_of_model:
        raise DatasetInvalid("the model is not the one the job names")
    if root_of_adapter and isinstance(plan, GeneratingPlan):
        check_adapter(plan.shape, root_of_adapter, model[frozen_bytes(plan.shape.model, plan.shape.adapter) :])
    return rows, weights


def _passed(
    plan: PassPlan, dataset: bytes, model: bytes, dataset_root: bytes, root_of_model: bytes, root_of_adapter: bytes
) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
    """Return the tensors of rows, and of model and adapters, by name. Raises DatasetInvalid."""
    kinds, weights = plan.row_tensors(), plan.weight_tensors()
    rows, found = split_tensors(kinds, dataset), split_tensors(weights, model[: plan.model_bytes])
    if root_of(kinds, rows) != dataset_root:
        raise DatasetInvalid("the rows are not those the job names")
    if (root_of(weights, found) if weights else b"") != root_of_model:
        raise DatasetInvalid("the model is not the one the job names")
    rest = model[plan.model_bytes :]
    if not root_of_adapter:
        if rest:
            raise DatasetInvalid("adapters of a job that has none")
        return rows, found
    plan.check_adapter(root_of_adapter, rest)
    return rows, {**found, **plan.read_adapter(rest).tensors}


def make_run(
    arrays: Arrays, plan: RunnablePlan, state: TrainingState,
    dataset: bytes, model: list[bytes], *, dataset_root: bytes, root_of_model: bytes, root_of_adapter: bytes = b"",
    claimed: TrainingState | None = None,
) -> tuple[Steps, Callable[[], Evaluation]]:  # fmt: skip
    """Return a run that stands at ``state``, and what evaluates it. Raises DatasetInvalid, StateInvalid.

    ``model`` has one blob, which is taken out: it ends once its tensors are split, and is not held beside them.

    Runs of decoders have no test split: they answer none of no questions. ``claimed`` is a later state
    that may be right, for a run that decodes.
    """
    if isinstance(plan, TuningPlan | GeneratingPlan | PassPlan):
        roots = {
            "dataset_root": dataset_root, "root_of_model": root_of_model, "root_of_adapter": root_of_adapter,
        }  # fmt: skip
        rows, weights = contents_of(plan, dataset, model.pop(), **roots)
        try:
            if isinstance(plan, GeneratingPlan):
                run = generating.Generator(plan, weights, rows, arrays, state, claimed=claimed)
                return run, lambda: Evaluation(0, 0)
            if isinstance(plan, PassPlan):
                return RowPass(plan, weights, rows, arrays, state), lambda: Evaluation(0, 0)
            return Tuner(plan, weights, rows, arrays, state), lambda: Evaluation(0, 0)
        except SourceInvalid as error:  # the requester's own values: they come again
            raise DatasetInvalid(str(error)) from None
    if isinstance(plan, DecoderPlan):
        texts = rows_of(plan, dataset, dataset_root=dataset_root)
        try:
            return DecoderTrainer(plan, texts, arrays, state), lambda: Evaluation(0, 0)
        except SourceInvalid as error:
            raise DatasetInvalid(str(error)) from None
    data = Dataset.decode(dataset, checks_nodes=False)
    if data.root() != dataset_root:
        raise DatasetInvalid("the dataset is not the one the job names")
    trainer = Trainer(plan, data, arrays, state)
    return trainer, trainer.evaluate
