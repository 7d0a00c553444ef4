"""A run of a job that passes once over its rows with a frozen model (``PassPlan``)."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.engines.arrays import Arrays
from tasks.engines.errors import StateInvalid
from tasks.engines.pass_plan import PassPlan
from tasks.engines.state import TrainingState
from tasks.engines.steps import Steps
from tasks.programs.errors import SourceInvalid
from tasks.programs.program import SourceKind
from tasks.programs.running import Runner

__all__ = ["RowPass"]


class RowPass(Steps):
    """One run of ``plan`` over rows and a model with its adapters, given as contents by name."""

    def __init__(
        self, plan: PassPlan, model: Mapping[str, bytes], rows: Mapping[str, bytes], arrays: Arrays,
        state: TrainingState, *, wide: bool = False,
    ) -> None:  # fmt: skip
        """``wide`` holds the model as binary64: four times the memory, no conversion at each use.

        Raises StateInvalid, SourceInvalid, UnsupportedJob.
        """
        plan.check()
        runner = Runner(plan.program, arrays)
        held = runner.load(SourceKind.MODEL, model) | runner.load(SourceKind.ADAPTER, model)
        if wide:
            held = {name: arrays.to_doubles(values) for name, values in held.items()}
        try:
            loaded = runner.load(SourceKind.STATE, state.tensors)
        except SourceInvalid as error:
            raise StateInvalid(str(error)) from None
        super().__init__(
            plan, arrays, runner, state=loaded, data=runner.load(SourceKind.DATA, rows), model=held,
            step=state.step,
        )  # fmt: skip
