"""Decoding as a program: its results are those of the decoder, on every engine; its units and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.bench.plain_tuning import Rows
from tasks.engines.errors import Diverged
from tasks.engines.generating import Generator, completions, first_state
from tasks.engines.state import TrainingState
from tasks.models.decoding import Decoder
from tasks.programs.adamw import Rates
from tasks.programs.bounds import Integers
from tasks.programs.checks import check_bounds, integer_ranges
from tasks.programs.errors import ProgramInvalid, SourceInvalid
from tasks.programs.finetune import FinetuneRates, FinetuneShape, finetune_program
from tasks.programs.generate import (
    LENGTHS,
    MADE,
    PROMPTS,
    GenerateShape,
    generate_program,
    prompt_tensors,
    state_tensors,
)
from tasks.programs.generate_units import check_generate, generate_cost
from tasks.programs.llama_shape import KEEPS_BEST, LAYERS_MAX, PROJECTIONS, Adapter, LlamaShape
from tasks.programs.operators import Context
from tasks.programs.program import CALLS_MAX, PlaceKind, Program, SourceKind
from tasks.programs.running import Runner
from tests.tasks.programs.engines import engine
from tests.tasks.programs.generations import SEED, SMALL_MODELS, Generation, decodings, generation
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.llamas import BIASED, TINY
from tests.tasks.programs.tunings import row_contents

SMALL = replace(TINY, vocabulary=31, width=8, layers=1, heads=2, key_heads=1, head_width=4, hidden=12, context=24)


def run(made: Generation, name: str = "numpy", claimed: TrainingState | None = None) -> Generator:
    plan = made.plan
    return Generator(plan, made.model, made.data, engine(name), first_state(plan), claimed=claimed)


def decoded(made: Generation) -> list[list[int]]:
    """Return what the decoder outside of jobs gives, prompt by prompt."""
    decoder, ends = Decoder(made.frozen, engine("numpy")), frozenset(made.shape.ends)
    return [decoder.decode([prompt], made.shape.new, ends).tokens[0] for prompt in made.prompts]


def steps_alone(made: Generation, name: str = "numpy") -> tuple[TrainingState, list[tuple[bytes, bytes]]]:
    """Run the program step by step; return the last state, and probe and loss of each step."""
    found = run(made, name)
    found._takes_many = False
    results: list[tuple[bytes, bytes]] = []
    for _ in range(made.shape.steps):
        results += found._advance(1)
        found.step += 1
    return found.state(), results


@given(
    SMALL_MODELS, st.integers(1, 3), st.integers(1, 2), st.integers(1, 5), st.integers(1, 6),
    st.sets(st.integers(0, 2), max_size=2), st.integers(0, 99), st.booleans(),
)  # fmt: skip
@settings(max_examples=10, deadline=None)
def test_the_program_chooses_what_the_decoder_does(
    model: LlamaShape, batch: int, batches: int, length: int, new: int, ends: set[int], seed: int, twins: bool
) -> None:
    """With few tokens most rows meet an end. With twins choices are between equal logits: the lower is taken."""
    made = generation(
        model, batch=batch, rows=batch * batches, length=length, new=new, ends=tuple(sorted(ends)), seed=seed,
        twins=twins,
    )  # fmt: skip
    state, results = steps_alone(made)
    assert completions(made.shape, made.data, state) == decoded(made)
    assert len(results) == made.shape.steps
    whole = run(made)
    segment = whole.run_segment(made.shape.steps)
    assert whole.state() == state
    claimed = run(made, claimed=state)
    assert claimed.run_segment(made.shape.steps) == segment
    assert claimed.state() == state


@pytest.mark.parametrize("name", ["torch", "contrary"])
def test_every_engine_gives_the_same_bits(name: str) -> None:
    made = generation(SMALL, rows=2, length=2, new=2, ends=(2, 7))
    assert steps_alone(made, name) == steps_alone(made)
    one, other = run(made), run(made, name)
    assert one.run_segment(made.shape.steps) == other.run_segment(made.shape.steps)


ADAPTER = Adapter(3, 6, ("query", "output", "down"), 7)


def test_a_tuned_model_is_decoded_alike_step_by_step_in_one_pass_and_by_every_engine() -> None:
    made = generation(SMALL, ends=(3,), adapter=ADAPTER)
    state, results = steps_alone(made)
    assert len(results) == made.shape.steps
    whole = run(made)
    segment = whole.run_segment(made.shape.steps)
    assert whole.state() == state
    assert run(made, "torch").run_segment(made.shape.steps) == segment
    assert run(made, claimed=state).run_segment(made.shape.steps) == segment
    plain = run(replace(made, shape=replace(made.shape, adapter=None)))
    plain.run_steps(made.shape.steps)
    assert plain.state().tensors[MADE] != state.tensors[MADE]


def contents_of_step(program: Program, made: Mapping[SourceKind, Mapping[str, bytes]], step: int) -> list[bytes]:
    runner = Runner(program, engine("numpy"))
    model = runner.load(SourceKind.MODEL, made[SourceKind.MODEL]) | runner.load(
        SourceKind.ADAPTER, made[SourceKind.MODEL]
    )
    state, data = (runner.load(kind, made[kind]) for kind in (SourceKind.STATE, SourceKind.DATA))
    return runner.trace(runner.sources(state, data, model), Context(step, SEED))


def largest_logits(program: Program, contents: list[bytes], vocabulary: int) -> bytes:
    """Return the largest logit of each row."""
    (found,) = (
        number for number, call in enumerate(program.calls, len(program.sources))
        if call.operator == "row_maximum" and program.types[call.inputs[0]].columns == vocabulary
    )  # fmt: skip
    return contents[found]


def test_a_tuned_model_has_the_logits_of_its_training() -> None:
    """To the bit: the way forward of fine-tuning, in one pass, and decoding, place by place."""
    made = generation(SMALL, batch=1, rows=1, adapter=ADAPTER)
    assert made.adapter is not None
    state, shape = first_state(made.plan), made.shape
    decoded: list[bytes] = []
    for step in range(shape.steps):
        sources = {SourceKind.STATE: state.tensors, SourceKind.DATA: made.data, SourceKind.MODEL: made.model}
        decoded.append(largest_logits(made.plan.program, contents_of_step(made.plan.program, sources, step), 31))
        next_run = Generator(made.plan, made.model, made.data, engine("numpy"), state)
        next_run.run_steps(1)
        state = next_run.state()
    (prompt,), (answer,) = made.prompts, completions(shape, made.data, state)
    tokens = np.array([[*prompt, *answer[:-1]]])
    length = tokens.shape[1]
    assert length == shape.places
    job = FinetuneShape(SMALL, ADAPTER.rank, ADAPTER.alpha, ADAPTER.targets, 1, length, length, 1, 1)
    rows = Rows(tokens, np.arange(length).reshape(1, -1), np.zeros((1, length), dtype=np.int64))
    program = finetune_program(job, FinetuneRates(Rates(1_000_000)))
    sources = {
        SourceKind.STATE: made.adapter.tensors, SourceKind.DATA: row_contents(job, rows),
        SourceKind.MODEL: made.model,
    }  # fmt: skip
    assert largest_logits(program, contents_of_step(program, sources, ADAPTER.step), 31) == b"".join(decoded)


@pytest.mark.parametrize("layout", [1, 2, 3, 6, 7])
def test_a_state_may_hold_more_than_adapters_and_the_best_ones_are_asked(layout: int) -> None:
    """Its matrices are those of the group that its layout names; nothing else of the state counts."""
    plain, other = (generation(SMALL, adapter=ADAPTER._replace(layout=at)) for at in (0, layout))
    assert plain.adapter is not None and other.adapter is not None
    group = "best" if layout & KEEPS_BEST else "parameter"
    tensors = dict(other.adapter.tensors)
    for name, values in plain.adapter.tensors.items():
        if name.startswith("parameter/"):
            tensors[f"{group}/{name.removeprefix('parameter/')}"] = values
    other = replace(other, adapter=replace(other.adapter, tensors=tensors))
    one, two = run(plain), run(other)
    assert one.run_segment(plain.shape.steps) == two.run_segment(other.shape.steps)


def test_adapters_that_no_training_leaves_are_refused() -> None:
    made = generation(SMALL, adapter=ADAPTER)
    assert made.adapter is not None
    name = "parameter/layer/0/query/a"
    values = np.frombuffer(made.adapter.tensors[name], dtype="<f4").copy()
    values[0] = 2.0**21
    wrong = replace(made, adapter=replace(made.adapter, tensors={**made.adapter.tensors, name: values.tobytes()}))
    with pytest.raises(SourceInvalid):
        run(wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 0}, {"rank": 257}, {"alpha": 0}, {"targets": ()}, {"targets": ("down", "query")},
        {"targets": ("head",)}, {"step": -1}, {"step": 1 << 33}, {"layout": 8}, {"layout": -1}, {"layout": 4},
    ],
    ids=str,
)  # fmt: skip
def test_adapters_that_no_program_has_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProgramInvalid):
        GenerateShape(SMALL, 2, 4, 5, 6, (), ADAPTER._replace(**change))


def test_a_completion_does_not_depend_on_its_neighbours() -> None:
    made = generation(SMALL, batch=4)
    alone = replace(made, shape=replace(made.shape, batch=1))
    for each in (made, alone):
        whole = run(each)
        whole.run_steps(each.shape.steps)
        assert completions(each.shape, each.data, whole.state()) == decoded(made)


def test_a_run_may_stop_anywhere_and_go_on_from_its_state() -> None:
    made = generation(SMALL, ends=(3,))
    whole = run(made)
    whole.run_steps(made.shape.steps)
    state = first_state(made.plan)
    for count in (3, 1, made.shape.places, made.shape.steps - made.shape.places - 4):
        part = Generator(made.plan, made.model, made.data, engine("numpy"), state)
        part.run_steps(count)
        state = TrainingState.decode(part.state().encode(), made.plan)
    assert state == whole.state()


@given(st.integers(0, 2**32), st.integers(1, 20))
@settings(max_examples=6, deadline=None)
def test_a_wrong_guess_changes_nothing(seed: int, changes: int) -> None:
    made = generation(SMALL, ends=(3,))
    right = run(made)
    segment, random = right.run_segment(made.shape.steps), np.random.default_rng(seed)
    table = np.frombuffer(right.state().tensors[MADE], dtype="<i2").copy()
    table[random.integers(0, len(table), changes)] = random.integers(0, SMALL.vocabulary, changes)
    step = int(random.integers(0, 2 * made.shape.steps))
    false = TrainingState(step, {**right.state().tensors, MADE: table.tobytes()})
    found = run(made, claimed=false)
    assert found.run_segment(made.shape.steps) == segment
    assert found.state() == right.state()


def test_a_guess_is_not_read_by_the_first_step_of_a_row_without_a_prompt() -> None:
    """Whoever checks a false claim of end tokens, which repeat themselves, finds what was right."""
    made = generation(SMALL, ends=(3,))
    lengths = np.frombuffer(made.data[LENGTHS], dtype="<i4").copy()
    lengths[: made.shape.batch] = 0
    data = {**made.data, LENGTHS: lengths.tobytes()}

    def of(claimed: TrainingState | None) -> Generator:
        return Generator(
            made.plan, made.model, data, engine("numpy"), first_state(made.plan), claimed=claimed
        )  # fmt: skip

    right = of(None)
    segment, steps = right.run_segment(made.shape.steps), made.shape.steps
    ends = np.full((made.shape.rows, made.shape.places), 3, dtype="<i2")
    found = of(TrainingState(steps, {**right.state().tensors, MADE: ends.tobytes()}))
    assert found.run_segment(steps) == segment
    assert found.state() == right.state()


def test_a_right_guess_is_checked_in_one_pass_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made, passes = generation(SMALL), list[int]()
    whole = run(made)
    segment = whole.run_segment(made.shape.steps)
    checked, pass_of = run(made, claimed=whole.state()), Generator._pass

    def counted(self: Generator, tokens: np.ndarray, place: int) -> tuple[object, ...]:
        passes.append(tokens.shape[1])
        return pass_of(self, tokens, place)

    monkeypatch.setattr(Generator, "_pass", counted)
    assert checked.run_segment(made.shape.steps) == segment
    assert passes == [made.shape.places] * made.shape.batches


def test_a_model_that_diverges_does_so_with_the_same_step_in_one_pass_and_alone() -> None:
    """The pass over a prompt finds a value that is none, and leaves it to the program to say where."""
    made = generation(SMALL, batch=1, rows=1, length=5)
    made.prompts[0][:] = [1, 2, 3, 9, 4]
    tensors = {name: values.copy() for name, values in made.frozen.tensors.items()}
    # The first column of the stream is zero but for token 9. What is made of it there grows beyond what is stored.
    tensors["embedding"][np.arange(SMALL.vocabulary) != 9, 0] = 0
    tensors["layer/0/output"][0] = 0
    tensors["layer/0/hidden_norm"][0, 0] = 2.0**40
    made = replace(made, frozen=replace(made.frozen, tensors=tensors))
    ends: list[tuple[int, bytes, int]] = []
    for many in (True, False):
        found = run(made)
        found._takes_many = many
        with pytest.raises(Diverged) as caught:
            found.run_steps(made.shape.steps)
        ends.append((caught.value.step, caught.value.work_digest, caught.value.loss_bits))
        assert found.diverged_segment(0, caught.value).diverged is not None
    assert ends[0] == ends[1]
    assert ends[0][0] == 4


@pytest.mark.slow
@given(decodings(), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_units_and_calls_are_those_of_the_program(shape: GenerateShape, layers: int) -> None:
    shape = replace(shape, model=replace(shape.model, layers=layers))
    program = generate_program(shape)
    assert generate_cost(shape) == (program.units, len(program.calls))
    check_generate(shape)


def test_the_deepest_model_has_no_more_calls_than_a_program() -> None:
    adapter = Adapter(2, 4, PROJECTIONS, 0)
    shape = GenerateShape(replace(BIASED, layers=LAYERS_MAX), 2, 4, 5, 6, (), adapter)
    assert generate_cost(shape).calls < CALLS_MAX


def test_each_element_of_a_step_is_what_the_judge_computes() -> None:
    made = generation(
        replace(BIASED, layers=1), length=3, new=3, ends=(1,), adapter=Adapter(2, 3, ("key", "up"), 4)
    )
    halfway = run(made)
    halfway.run_steps(7)
    program, arrays = made.plan.program, engine("numpy")
    runner = Runner(program, arrays)
    loaded = [
        runner.load(kind, contents)
        for kind, contents in (
            (SourceKind.STATE, halfway.state().tensors), (SourceKind.DATA, made.data),
            (SourceKind.MODEL, made.model), (SourceKind.ADAPTER, made.model),
        )
    ]  # fmt: skip
    loaded[2:] = [loaded[2] | loaded[3]]
    sources = [np.asarray(arrays.store(one)) for one in runner.sources(*loaded)]
    check_elements(program, sources, Context(7, bytes(32)), 6)
    assert {place.kind for place in program.places} == set(PlaceKind)


def test_what_a_step_reads_of_the_state_is_what_steps_store() -> None:
    """An honest state never has an integer that its next step refuses."""
    program = generate_program(GenerateShape(SMALL, 2, 4, 5, 6, (2,)))
    bounds = check_bounds(program)
    ranges = integer_ranges(program)
    for at, source in enumerate(program.sources):
        if source.kind is SourceKind.STATE:
            number = program.stores[source.key]
            call, allowed, stored = program.call_of(number), ranges[at], bounds[number]
            assert program.types[number] == source.type
            assert call is not None and isinstance(allowed, Integers) and isinstance(stored, Integers)
            assert (allowed.low, allowed.high) == call.attributes
            assert allowed.low <= stored.low and stored.high <= allowed.high


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 0}, {"batch": 3}, {"batch": 8}, {"rows": 0}, {"length": 0}, {"new": 0}, {"length": 20},
        {"ends": (3, 2)}, {"ends": (2, 2)}, {"ends": (31,)}, {"ends": (-1,)}, {"ends": tuple(range(9))},
        {"batch": 1 << 13, "rows": 1 << 13}, {"rows": 1 << 40},
    ],
    ids=str,
)  # fmt: skip
def test_shapes_that_no_program_is_made_of_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProgramInvalid):
        replace(GenerateShape(SMALL, 2, 4, 5, 6), **change)


def test_tensors_have_the_sizes_that_the_shape_says() -> None:
    shape = GenerateShape(SMALL, 2, 4, 5, 6)
    assert {name: (kind.rows, kind.columns) for name, kind in prompt_tensors(shape).items()} == {
        PROMPTS: (4, 5), LENGTHS: (4, 1),
    }  # fmt: skip
    kinds = state_tensors(shape)
    assert (kinds[MADE].rows, kinds[MADE].columns) == (4, 10)
    assert len(kinds) == 1 + 4 * SMALL.layers
