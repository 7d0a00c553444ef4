"""Sampling as operators: what is drawn, how often, from which tokens, and that nothing else changes it (R83)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.engines.generating import Generator, completions, first_state
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.state import TrainingState
from tasks.programs.bounds import Integers, Magnitudes
from tasks.programs.errors import ProgramInvalid
from tasks.programs.generate import MADE, GenerateShape, generate_program
from tasks.programs.generate_units import generate_cost
from tasks.programs.llama_shape import LAYERS_MAX, Adapter
from tasks.programs.operators import Context
from tasks.programs.operators.sampling import TOTAL_MAX, WEIGHT_BITS, WEIGHT_MAX, drawn, share_of
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import CALLS_MAX, SourceKind
from tasks.programs.running import ResultRunner, Runner
from tasks.programs.sampling import TEMPERATURE_MAX, Sampling, sampling_computation
from tasks.programs.table import OPERATORS
from tasks.programs.tensors import ElementType, TensorType
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.generations import SAMPLINGS, SEED, Generation, generation
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.llamas import BIASED
from tests.tasks.programs.test_generate import SMALL, decoded, run, steps_alone
from tests.tasks.programs.values import CONTEXT, Tensor, computed, patterns, reader, referred

VOCABULARY: Final = 49_152
GREEDY_HASH: Final = "9e3ab3e86ff501a3c205ba440155af14c0f9af89a17aa4098d633e41b30a496c"
HOWS: Final = (
    Sampling(NANO), Sampling(7 * NANO // 10, 9 * NANO // 10, 5), Sampling(NANO, NANO // 2), Sampling(NANO, 0),
    Sampling(2 * NANO, NANO, 3), Sampling(1), Sampling(TEMPERATURE_MAX * NANO, NANO - 1, 1),
)  # fmt: skip


def draws(logits: Any, how: Sampling, places: Sequence[int], name: str = "numpy", seed: bytes = SEED) -> list[int]:
    """Return the tokens of rows of logits; their numbers count from 5."""
    values, arrays = np.array(logits, dtype=np.float64), engine(name)
    columns = [np.arange(5, 5 + len(values)), np.array(places)]
    sources = [arrays.load(values), *(arrays.load(one.astype(np.float64).reshape(-1, 1)) for one in columns)]
    (found,) = ResultRunner(sampling_computation(how, *values.shape), arrays).run(sources, Context(0, seed))
    return [int(token) for token in arrays.store(found)[:, 0]]


def tensor_of(values: list[list[Any]]) -> Tensor:
    element = ElementType.INT64 if type(values[0][0]) is int else ElementType.BINARY64
    return Tensor(TensorType(element, len(values), len(values[0])), np.array(values), Magnitudes(-900, 900))


def weights_of(logits: Sequence[float], how: Sampling) -> list[int]:
    """Return the weights of a row by the reference functions of the operators, one value after another."""

    def call(name: str, *inputs: list[list[Any]], attributes: tuple[int, ...] = ()) -> Any:
        return referred(OPERATORS[name], [tensor_of(one) for one in inputs], attributes)

    below = call("subtract", [list(logits)], [[max(logits)]])
    if how.temperature != NANO:
        below = call("divide", below, [[how.temperature / NANO]])
    powers = call("exp", below)
    exponents = call("row_exponent", powers, attributes=(WEIGHT_BITS,))
    found: list[int] = call("quantise", powers, exponents, attributes=(WEIGHT_BITS,))[0]
    return found


def kept(weights: Sequence[int], how: Sampling) -> list[int]:
    """Return the weights that remain: 0 for tokens that are cut. By sorting, as the definition is read."""
    least = sorted(weights, reverse=True)[how.top_k - 1] if 0 < how.top_k <= len(weights) else 0
    weights = [one if one >= least else 0 for one in weights]
    if how.top_p < NANO:
        goal = max(1, math.ceil(Fraction(sum(weights) * how.top_p, NANO)))
        ranked = sorted(weights, reverse=True)
        sums = list(accumulate(ranked))
        least = ranked[next(at for at, total in enumerate(sums) if total >= goal)]
        weights = [one if one >= least else 0 for one in weights]
    return weights


def told(logits: Sequence[float], how: Sampling, row: int, place: int) -> int:
    """Return the token that the rule says."""
    sums = list(accumulate(kept(weights_of(logits, how), how)))
    wanted = drawn(SEED, row, place, sums[-1])
    return next(at for at, total in enumerate(sums) if total > wanted)


LOGITS = st.lists(
    st.one_of(st.sampled_from((0.0, 1.0, -1.0, 3.5)), st.floats(-30.0, 30.0, allow_subnormal=False)), min_size=1,
    max_size=12,
)  # fmt: skip


@given(LOGITS, SAMPLINGS, st.integers(0, 1 << 20))
@settings(max_examples=150, deadline=None)
def test_the_token_is_the_one_that_the_rule_says(logits: list[float], how: Sampling, place: int) -> None:
    """The rule is written here by sorting, the program finds its threshold bit by bit."""
    assert draws([logits], how, [place]) == [told(logits, how, 5, place)]


@pytest.mark.parametrize("name", ["contrary", "torch"])
def test_every_engine_draws_the_same_tokens(name: str) -> None:
    random = np.random.default_rng(3)
    rows = [random.normal(0, 4, 300), np.zeros(300), np.where(np.arange(300) == 7, 500.0, -500.0)]
    rows += [np.round(random.normal(0, 2, 300)), np.where(np.arange(300) % 2, -(2.0**60), 2.0**60)]
    for how in HOWS:
        assert draws(rows, how, range(len(rows)), name) == draws(rows, how, range(len(rows)))


def test_a_token_depends_on_its_own_row_and_place_alone() -> None:
    logits, how = np.random.default_rng(4).normal(0, 3, (6, 40)), Sampling(NANO, 9 * NANO // 10, 20)
    whole = draws(logits, how, range(6))
    other = logits.copy()
    other[:5] = 1.0
    assert draws(other, how, range(6))[5] == whole[5]
    assert draws(logits[:2], how, range(2)) == whole[:2]
    same = np.tile(logits[0], (64, 1))
    assert len(set(draws(same, Sampling(NANO), range(64)))) > 4
    assert draws(same, Sampling(NANO), range(64)) != draws(same, Sampling(NANO), range(64), seed=bytes(32))


def chi_squared(counts: Counter[int], weights: Sequence[int], tries: int) -> float:
    total = sum(weights)
    assert all(weights[token] for token in counts)
    return sum(
        (counts[token] - tries * weight / total) ** 2 / (tries * weight / total)
        for token, weight in enumerate(weights) if weight
    )  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [Sampling(NANO), Sampling(NANO // 2), Sampling(3 * NANO), Sampling(NANO, 8 * NANO // 10),
     Sampling(NANO, NANO, 4)],
    ids=str,
)  # fmt: skip
def test_tokens_come_as_often_as_their_exact_probabilities_say(how: Sampling) -> None:
    """20,000 places of one row of logits. The bound is passed once in a million sets of places."""
    logits, tries = [0.1, 1.7, -2.0, 1.7, 0.9, -0.3, 2.2, -5.0], 20_000
    counts = Counter[int]()
    for first in range(0, tries, 4_000):
        counts += Counter(draws([logits] * 4_000, how, range(first, first + 4_000)))
    exact = kept(weights_of(logits, how), how)
    powers = [math.exp((one - max(logits)) / (how.temperature / NANO)) for one in logits]
    for weight, power in zip(weights_of(logits, how), powers, strict=True):
        assert abs(weight - power * 2**26) <= 0.51
    freedom = sum(one > 0 for one in exact) - 1
    bound = freedom + 2 * math.sqrt(14 * freedom) + 2 * 14  # Laurent and Massart: P < e^-14
    assert chi_squared(counts, exact, tries) < bound


def test_random_integers_are_spread_evenly() -> None:
    tries, total = 30_000, 97
    found = Counter(drawn(SEED, at % 50, at // 50, total) for at in range(tries))
    assert set(found) == set(range(total))
    freedom = total - 1
    assert chi_squared(found, [1] * total, tries) < freedom + 2 * math.sqrt(14 * freedom) + 28
    assert drawn(SEED, 1, 2, 0) == 0 and drawn(SEED, 1, 2, 1) == 0
    assert len({drawn(SEED, row, place, TOTAL_MAX) for row in range(30) for place in range(30)}) == 900


def test_a_share_is_rounded_up_in_integers() -> None:
    for total in (0, 1, 2, 3, 10**9, (1 << 46) + 1, TOTAL_MAX):
        for nano in (0, 1, NANO // 3, NANO - 1, NANO):
            found = share_of(total, nano)
            assert found >= 1 and found * NANO >= total * nano
            assert found == 1 or (found - 1) * NANO < total * nano


def test_edges_of_top_p_and_top_k() -> None:
    """Ties at the cut stay together. A share of 0 keeps the likeliest tokens, of 1 all of them."""
    logits = [2.0, 1.0, 2.0, 1.0, 0.0, -40.0]
    one, half = math.exp(-1.0), math.exp(-2.0)
    share = 2.0 / (2.0 + 2.0 * one + half)
    many = [logits] * 400

    def found(how: Sampling) -> set[int]:
        return set(draws(many, how, range(400)))

    assert found(Sampling(NANO, 0)) == found(Sampling(NANO, NANO, 1)) == found(Sampling(NANO, NANO, 2)) == {0, 2}
    assert found(Sampling(NANO, NANO, 3)) == found(Sampling(NANO, NANO, 4)) == {0, 1, 2, 3}
    assert found(Sampling(NANO, int((share - 1e-6) * NANO))) == {0, 2}
    assert found(Sampling(NANO, int((share + 1e-6) * NANO))) == {0, 1, 2, 3}
    assert found(Sampling(NANO)) == found(Sampling(NANO, NANO, 600)) == {0, 1, 2, 3, 4}  # 5 has a weight of 0
    assert found(Sampling(1)) == {0, 2}  # a temperature next to 0 chooses among the largest
    both = draws(many, Sampling(NANO, NANO // 2, 4), range(400))
    # Of the four that are kept first, the share 0.5 is that of the first two: 0.73 of their sum.
    assert set(both) == {0, 2}


def test_ids_that_no_text_has_are_not_drawn() -> None:
    """A vocabulary is padded with rows whose logits are far below: their weights are 0, with every temperature."""
    logits = np.full((200, 64), -200.0)
    logits[:, :3] = [0.0, 1.0, 2.0]
    assert set(draws(logits, Sampling(2 * NANO), range(200))) == {0, 1, 2}


EXTREME_ROWS: Final = {
    "all equal": np.full(VOCABULARY, 1 << 26),
    "all as large as they may be": np.full(VOCABULARY, WEIGHT_MAX),
    "one huge": np.where(np.arange(VOCABULARY) == 31_000, 1 << 26, 0),
    "ties": np.arange(VOCABULARY) % 3 << 25,
    "random": np.random.default_rng(8).integers(0, 1 << 26, VOCABULARY),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("row", EXTREME_ROWS)
def test_extreme_rows_of_a_whole_vocabulary_are_folded_exactly(row: str, name: str) -> None:
    values, arrays = EXTREME_ROWS[row].reshape(1, -1), engine(name)
    weights = Tensor(TensorType(ElementType.INT64, 1, VOCABULARY), values, Integers(0, WEIGHT_MAX))
    column = TensorType(ElementType.INT64, 1, 1)
    true = values[0].tolist()
    for threshold in (0, 1, 1 << 25, 1 << 26):
        limit = Tensor(column, np.array([[threshold]]), Integers(0, 1 << 26))
        for fold, wanted in (
            ("sum_from", sum(one for one in true if one >= threshold + 1)),
            ("count_from", sum(one >= threshold + 1 for one in true)),
        ):
            assert computed(OPERATORS[fold], arrays, (weights, limit), (1,)).tolist() == [[wanted]]
        sums = computed(OPERATORS["sum_up_to"], arrays, (weights, limit), ())
        assert sums[0].tolist() == list(accumulate(one if one >= threshold else 0 for one in true))
        total, operator = int(sums[0, -1]), OPERATORS["first_above"]
        summed = Tensor(weights.type, sums, Integers(0, TOTAL_MAX))
        for wanted in {0, total // 3, max(total - 1, 0), total}:
            asked = Tensor(column, np.array([[wanted]]), Integers(0, TOTAL_MAX))
            found = computed(operator, arrays, (summed, asked), ())
            assert found.tolist() == [[next((at for at, one in enumerate(sums[0]) if one > wanted), VOCABULARY)]]
    inputs = (weights, limit)
    types, operator = [one.type for one in inputs], OPERATORS["sum_up_to"]
    for at in (0, 31_000, VOCABULARY - 1):
        one = operator.element(reader(inputs), types, (), CONTEXT, 0, at)
        assert patterns([[one]]) == patterns([[int(sums[0, at])]])


# In a job


def sampled(made: Generation, how: Sampling) -> Generation:
    return replace(made, shape=replace(made.shape, sampling=how))


def test_a_greedy_program_is_the_one_that_it_always_was() -> None:
    made = generation(SMALL, ends=(2, 7))
    assert generate_program(made.shape).hash.hex() == GREEDY_HASH
    assert {call.operator for call in generate_program(made.shape).calls}.isdisjoint({"draw", "sum_from"})


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_a_job_samples_alike_step_by_step_in_one_pass_and_by_every_engine(how: Sampling) -> None:
    made = sampled(generation(SMALL, length=3, new=4, ends=(2, 7)), how)
    state, results = steps_alone(made)
    assert len(results) == made.shape.steps
    assert (state, results) == steps_alone(made, "torch")
    whole = run(made)
    segment = whole.run_segment(made.shape.steps)
    assert whole.state() == state
    checked = run(made, "torch", claimed=state)
    assert checked.run_segment(made.shape.steps) == segment
    if how.temperature == 1:
        assert completions(made.shape, made.data, state) == decoded(made)


def test_a_sampled_completion_does_not_depend_on_its_neighbours_or_on_padding() -> None:
    made = sampled(generation(SMALL, batch=4), HOWS[1])

    def told_by(one: Generation) -> list[list[int]]:
        found = run(one)
        found.run_steps(one.shape.steps)
        return completions(one.shape, one.data, found.state())

    whole = told_by(made)
    assert told_by(replace(made, shape=replace(made.shape, batch=1))) == whole
    wider = replace(made, shape=replace(made.shape, length=9))
    assert told_by(wider) == whole
    first = replace(made, shape=replace(made.shape, batch=1, rows=1, length=5), prompts=made.prompts[:1])
    assert told_by(first) == whole[:1]


def test_another_seed_gives_other_tokens() -> None:
    made, tables = sampled(generation(SMALL), Sampling(2 * NANO)), []
    for seed in (SEED, bytes(32)):
        plan = GeneratingPlan(made.shape, seed)
        found = Generator(plan, made.model, made.data, engine("numpy"), first_state(plan))
        found.run_steps(made.shape.steps)
        tables.append(found.state().tensors[MADE])
    assert tables[0] != tables[1]


def test_a_wrong_guess_about_a_drawn_token_changes_nothing() -> None:
    made = sampled(generation(SMALL, ends=(3,)), HOWS[0])
    right = run(made)
    segment = right.run_segment(made.shape.steps)
    table = np.frombuffer(right.state().tensors[MADE], dtype="<i2").copy()
    table[[3, 11, 25]] += 1
    false = TrainingState(made.shape.steps, {**right.state().tensors, MADE: (table % SMALL.vocabulary).tobytes()})
    found = run(made, claimed=false)
    assert found.run_segment(made.shape.steps) == segment
    assert found.state() == right.state()


def test_the_deepest_model_that_samples_has_no_more_calls_than_a_program() -> None:
    shape = GenerateShape(replace(BIASED, layers=LAYERS_MAX), 2, 4, 5, 6, (), None, HOWS[1])
    assert generate_cost(shape).calls < CALLS_MAX


def test_each_element_of_a_step_that_samples_is_what_the_judge_computes() -> None:
    made = sampled(
        generation(replace(BIASED, layers=1), length=3, new=3, ends=(1,), adapter=Adapter(2, 3, ("key",), 4)),
        HOWS[1],
    )
    halfway = run(made)
    halfway.run_steps(7)
    program, arrays = made.plan.program, engine("numpy")
    runner = Runner(program, arrays)
    model = runner.load(SourceKind.MODEL, made.model) | runner.load(SourceKind.ADAPTER, made.model)
    state = runner.load(SourceKind.STATE, halfway.state().tensors)
    loaded = runner.sources(state, runner.load(SourceKind.DATA, made.data), model)
    check_elements(program, [np.asarray(arrays.store(one)) for one in loaded], Context(7, SEED), 6)


@pytest.mark.parametrize(
    "change", [{"temperature": 0}, {"temperature": TEMPERATURE_MAX * NANO + 1}, {"top_p": -1}, {"top_p": NANO + 1},
               {"top_k": -1}, {"top_k": 1 << 40}], ids=str,
)  # fmt: skip
def test_samplings_that_no_program_has_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ProgramInvalid):
        GenerateShape(SMALL, 2, 4, 5, 6, (), None, Sampling(NANO)._replace(**change))


@pytest.mark.parametrize(
    "name",
    [
        "sum_from",
        "count_from",
        "sum_up_to",
        "first_above",
        "raise_threshold",
        "share_of",
        "draw",
        "share_by",
        "draw_by",
    ],
)
def test_numbers_that_may_be_too_large_are_refused_with_the_program(name: str) -> None:
    """A sum of them could leave the integers that every engine adds exactly."""
    column, whole = TensorType(ElementType.INT64, 2, 1), TensorType(ElementType.INT64, 2, 3)
    kinds, attributes = {
        "sum_from": ([whole, column], (1,)), "count_from": ([whole, column], (1,)),
        "sum_up_to": ([whole, column], ()), "first_above": ([whole, column], ()),
        "raise_threshold": ([column] * 3, (1,)), "share_of": ([column], (1,)), "draw": ([column] * 3, ()),
        "share_by": ([column] * 2, ()), "draw_by": ([column, column._replace(columns=4), column], ()),
    }[name]  # fmt: skip
    operator = OPERATORS[name]
    fine = [Integers(0, 9)] * len(kinds)
    operator.bounds(fine, kinds, attributes)
    for at in range(len(kinds)):
        for wrong in (Integers(0, TOTAL_MAX + 1), Integers(-TOTAL_MAX, 9)):
            with pytest.raises(ProgramInvalid):
                operator.bounds([*fine[:at], wrong, *fine[at + 1 :]], kinds, attributes)
