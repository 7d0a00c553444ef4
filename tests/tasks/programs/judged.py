"""Elements of a whole program, as the judge computes them one by one."""

from __future__ import annotations

import numpy as np

from tasks.programs.operators import Context
from tasks.programs.program import Computation, Program
from tasks.programs.tensors import Number, TensorType
from tests.tasks.programs.engines import engine
from tests.tasks.programs.values import bits


def check_elements(
    program: Computation | Program, sources: list[np.ndarray], context: Context, tries: int
) -> None:
    """Check ``tries`` random elements of every call against the reference, from what the kernels gave before."""
    arrays, random, values = engine("numpy"), np.random.default_rng(4), list(sources)
    for number, call in enumerate(program.calls, len(values)):
        inputs = [values[at] for at in call.inputs]
        operator, kinds = program.operators[call.operator], [program.types[at] for at in call.inputs]
        values.append(np.array(operator.run(arrays, inputs, call.attributes, context)))
        found, kind = values[-1], program.types[number]
        assert found.shape == (kind.rows, kind.columns), call

        def read(
            at: int, row: int, column: int, inputs: list[np.ndarray] = inputs, kinds: list[TensorType] = kinds
        ) -> Number:
            value = float(inputs[at][row, column])
            return int(value) if kinds[at].element.is_integer else value

        for _ in range(tries):
            row, column = int(random.integers(kind.rows)), int(random.integers(kind.columns))
            wanted = operator.element(read, kinds, call.attributes, context, row, column)
            given = float(found[row, column])
            assert bits(int(given) if kind.element.is_integer else given) == bits(wanted), call
