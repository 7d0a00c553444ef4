"""A disputed segment, run again from its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tasks.dispute.commitments import Question, start_record
from tasks.dispute.running import SegmentRun
from tasks.engines.datasets import Dataset
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.errors import DatasetInvalid, StateInvalid
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.pass_plan import PassPlan
from tasks.engines.state import TrainingState
from tasks.engines.tuning_plan import TuningPlan
from tasks.executor.loading import contents_of, rows_of
from tasks.executor.playing import Play, Player
from tasks.programs.arrays import Arrays

__all__ = ["make_player"]


def make_player(arrays: Arrays, order: Play, on_step: Callable[[int], None]) -> Player:
    """Run the segment of ``order``, and return the player of its side.

    ``on_step`` hears the number of the step done after each. Raises DatasetInvalid, StateInvalid, SourceInvalid.
    """
    spec, plan = order.spec, order.spec.plan()
    data: Mapping[str, bytes]
    model: Mapping[str, bytes] = {}
    if isinstance(plan, TuningPlan | GeneratingPlan | PassPlan):
        roots = {
            "dataset_root": spec.dataset.root, "root_of_model": spec.model_root(),
            "root_of_adapter": spec.adapter_root(),
        }  # fmt: skip
        data, model = contents_of(plan, order.dataset, order.model, **roots)
    elif isinstance(plan, DecoderPlan):
        data = rows_of(plan, order.dataset, dataset_root=spec.dataset.root)
    else:
        dataset = Dataset.decode(order.dataset, checks_nodes=False)
        if dataset.root() != spec.dataset.root:
            raise DatasetInvalid("the dataset is not the one the job names")
        data = dataset.contents
    state = TrainingState.decode(order.state, plan)
    if (state.step, state.root(plan)) != (order.step_from, order.state_root):
        raise StateInvalid("the state is not the one the segment starts from")
    run = SegmentRun(
        spec.program(), arrays, seed=spec.seed, state=state.tensors, data=data, model=model,
        step_from=order.step_from, steps=order.steps, secret=order.secret, claimed=order.diverged,
        on_step=lambda place: on_step(order.step_from + place),
    )  # fmt: skip
    question = Question(
        program=spec.program(),
        seed=spec.seed,
        data=spec.dataset.root,
        step_from=order.step_from,
        steps=order.steps,
        start=start_record(order.state_root),
        end=order.end,
        diverged=order.diverged,
        model=spec.model_root(),
        adapter=spec.adapter_root(),
    )
    return Player(question, order.side, run.witness())
