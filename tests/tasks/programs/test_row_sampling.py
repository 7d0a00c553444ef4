"""Rows that say how they are decoded: each is drawn as a job of its own would draw it (market.md R136)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from tasks.engines.generating import Own, completions, prompt_contents, stop_columns, stops_in
from tasks.programs.bounds import Integers, Magnitudes
from tasks.programs.errors import ProgramInvalid, SourceInvalid
from tasks.programs.generate import STOP_COLUMNS_MAX, STOPS, ByRow, generate_program
from tasks.programs.generate_units import generate_cost
from tasks.programs.llama_shape import Adapter
from tasks.programs.operators import Context
from tasks.programs.operators.row_sampling import KEY_COLUMNS, MICRO, TEMPER, drawn_by, key_of
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import SourceKind
from tasks.programs.running import ResultRunner, Runner
from tasks.programs.sampling import Sampling, row_computation, sampling_computation
from tasks.programs.tensors import DIMENSION_MAX
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.generations import SEED, Generation, generation
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.llamas import BIASED
from tests.tasks.programs.test_generate import SMALL, decoded, run, steps_alone
from tests.tasks.programs.values import computed, fractions, patterns, referred, whole_numbers

NONE: Final = (0,) * KEY_COLUMNS
GREEDY: Final = Own(6, 0, DIMENSION_MAX, NANO, NONE)
WARM: Final = Own(6, 7 * MICRO // 10, 5, 9 * NANO // 10, key_of(b"a"))
HOT: Final = Own(4, 3 * MICRO, DIMENSION_MAX, NANO, key_of(b"b"), ("end", "\u00e9\n"))


def own_job(*own: Own, **fields: Any) -> Generation:
    made = generation(SMALL, rows=len(own), ends=(2, 7), **fields)
    return replace(made, shape=replace(made.shape, by_row=ByRow(stop_columns(one.stops for one in own))), own=own)


def tokens(logits: np.ndarray, own: list[Own], name: str = "numpy") -> list[int]:
    """Return the tokens of rows of logits, all at place 3."""
    arrays = engine(name)
    columns = [[one.temperature for one in own], [one.top_k for one in own], [one.top_p for one in own]]
    loaded = [arrays.load(np.array(one, dtype=np.float64).reshape(-1, 1)) for one in (*columns, [3] * len(own))]
    keys = arrays.load(np.array([one.key for one in own], dtype=np.float64))
    runner = ResultRunner(row_computation(*logits.shape), arrays)
    (found,) = runner.run([arrays.load(logits), *loaded[:3], keys, loaded[3]], Context(0, bytes(32)))
    return [int(token) for token in arrays.store(found)[:, 0]]


def drawn_alone(logits: np.ndarray, how: Sampling) -> set[int]:
    """Return the tokens that a job with these numbers for all rows can draw from one row of logits."""
    arrays, many = engine("numpy"), np.tile(logits, (600, 1))
    columns = [arrays.load(np.arange(600.0).reshape(-1, 1)) for _ in range(2)]
    runner = ResultRunner(sampling_computation(how, *many.shape), arrays)
    (found,) = runner.run([arrays.load(many), *columns], Context(0, SEED))
    return {int(token) for token in arrays.store(found)[:, 0]}


@pytest.mark.parametrize(
    "how", [Sampling(NANO, NANO, 3), Sampling(NANO // 2, NANO // 2), Sampling(2 * NANO)], ids=str
)
def test_a_row_is_drawn_from_the_tokens_that_a_job_with_its_numbers_keeps(how: Sampling) -> None:
    logits = np.array([0.5, 2.0, 1.9, -1.0, 0.0, 1.0, -3.0])
    own = [
        Own(
            1, how.temperature // 1000, how.top_k or DIMENSION_MAX, how.top_p, key_of(bytes([at % 251, at // 251]))
        )
        for at in range(600)
    ]
    assert set(tokens(np.tile(logits, (600, 1)), own)) == drawn_alone(logits, how)


@pytest.mark.parametrize("name", NAMES)
def test_a_temperature_of_zero_takes_the_first_of_the_likeliest_whatever_else_stands_there(name: str) -> None:
    logits = np.array([[1.0, 4.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-(2.0**60), -5.0, 2.0**60, 2.0**60]])
    assert tokens(logits, [GREEDY, GREEDY._replace(top_k=3), GREEDY._replace(top_p=0)], name) == [1, 0, 2]


@pytest.mark.parametrize("name", NAMES)
def test_temperatures_of_six_digits_divide_to_the_bit_on_every_engine(name: str) -> None:
    """Also on one that multiplies by the reciprocal of a plain number, as a GPU does."""
    rows = 300
    values = fractions(1, rows, 2, Magnitudes(-3, 3, zero=False))
    temperatures = whole_numbers(2, rows, 1, Integers(0, 2 * MICRO))
    wanted = patterns(referred(TEMPER, (values, temperatures), ()))
    assert patterns(computed(TEMPER, engine(name), (values, temperatures), ())) == wanted


def test_random_integers_follow_from_key_and_place_alone() -> None:
    assert drawn_by(NONE, 3, 1 << 40) == 0 == drawn_by(key_of(b"x"), 3, 0)
    found = {drawn_by(key_of(bytes([row])), place, 1 << 46) for row in range(20) for place in range(20)}
    assert len(found) == 400 and max(found) < 1 << 46
    assert all(0 <= part < 1 << 31 for part in key_of(b"")) and key_of(b"a") != key_of(b"b")


def test_rows_of_one_job_have_what_each_has_alone_in_any_batch() -> None:
    made = own_job(GREEDY, WARM, HOT, WARM._replace(limit=2))
    state, _ = steps_alone(made)
    whole = completions(made.shape, made.data, state)
    assert [len(one) for one in whole][2:] == [len(whole[2]), len(whole[3])] and len(whole[2]) <= 4 >= len(
        whole[3]
    )
    greedy = generation(SMALL, rows=4, ends=(2, 7))
    assert whole[0] == decoded(greedy)[0]
    alone = replace(made, shape=replace(made.shape, batch=1))
    found = run(alone)
    found.run_steps(alone.shape.steps)
    assert completions(alone.shape, alone.data, found.state()) == whole
    turned = replace(made, prompts=made.prompts[::-1], own=made.own[::-1])
    found = run(turned)
    found.run_steps(turned.shape.steps)
    assert completions(turned.shape, turned.data, found.state()) == whole[::-1]


@pytest.mark.parametrize("name", ["contrary", "torch"])
def test_a_job_is_the_same_step_by_step_in_one_pass_and_by_every_engine(name: str) -> None:
    made = own_job(GREEDY, WARM, HOT, WARM, length=3, new=4)
    state, results = steps_alone(made)
    assert (state, results) == steps_alone(made, name)
    whole = run(made)
    segment = whole.run_segment(made.shape.steps)
    assert whole.state() == state
    checked = run(made, name, claimed=state)
    assert checked.run_segment(made.shape.steps) == segment


def test_each_element_of_a_step_is_what_the_judge_computes() -> None:
    small = generation(
        replace(BIASED, layers=1), length=3, new=3, ends=(1,), adapter=Adapter(2, 3, ("key",), 4)
    )  # fmt: skip
    own = (GREEDY, WARM, HOT, WARM)
    made = replace(
        small, shape=replace(small.shape, by_row=ByRow(stop_columns(one.stops for one in own))), own=own
    )
    halfway = run(made)
    halfway.run_steps(7)
    program, arrays = made.plan.program, engine("numpy")
    runner = Runner(program, arrays)
    model = runner.load(SourceKind.MODEL, made.model) | runner.load(SourceKind.ADAPTER, made.model)
    state = runner.load(SourceKind.STATE, halfway.state().tensors)
    loaded = runner.sources(state, runner.load(SourceKind.DATA, made.data), model)
    check_elements(program, [np.asarray(arrays.store(one)) for one in loaded], Context(7, SEED), 6)


def test_units_are_known_without_the_program_and_stops_change_none() -> None:
    made = own_job(GREEDY, WARM)
    program = generate_program(made.shape)
    assert generate_cost(made.shape) == (program.units, len(program.calls))
    assert generate_cost(replace(made.shape, by_row=ByRow(9))) == generate_cost(made.shape)


def test_stops_stand_with_their_rows_and_other_bytes_are_refused() -> None:
    made = own_job(GREEDY, HOT, WARM, HOT._replace(stops=("x" * 200,)))
    assert stops_in(made.shape, made.data) == [(), HOT.stops, (), ("x" * 200,)]
    assert stops_in(own_job(GREEDY, WARM).shape, {}) == [(), ()]
    width = made.shape.by_row.stop_columns if made.shape.by_row else 0
    for first in ([5, 1 << 30], [5, -1], [2, int.from_bytes(b"[1]", "big")], [3, int.from_bytes(b"[1]", "big")]):
        table = np.zeros((4, width), dtype="<i4")
        table[0, :2] = first
        with pytest.raises(SourceInvalid):
            stops_in(made.shape, {STOPS: table.tobytes()})
    with pytest.raises(SourceInvalid):
        prompt_contents(made.shape, made.prompts, made.own[:3])
    for change in ({"by_row": ByRow(-1)}, {"by_row": ByRow(STOP_COLUMNS_MAX + 1)}, {"sampling": Sampling(NANO)}):
        fields: dict[str, Any] = change
        with pytest.raises(ProgramInvalid):
            replace(made.shape, **fields)
