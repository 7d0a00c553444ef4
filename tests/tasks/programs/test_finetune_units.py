"""What is known of a step of fine-tuning without its program agrees with the whole program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.programs.adamw import Rates
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import (
    CLIPPED_MAX,
    PROJECTIONS,
    FinetuneRates,
    FinetuneShape,
    finetune_program,
)
from tasks.programs.finetune_units import check_finetune, finetune_cost
from tasks.programs.llama_shape import LlamaShape, projections_of
from tasks.programs.operators.scalars import NANO

SMOL = LlamaShape(49_152, 576, 30, 9, 3, 64, 1_536, 2_048, 10_000, 10_000)
JOB = FinetuneShape(SMOL, 8, 16, ("query", "key", "value", "output"), 4, 64, 32, 40, 40)
RATES = FinetuneRates(Rates(1_000_000, weight_decay_nano=10_000_000), "cosine", 2, 30, NANO)


@st.composite
def models(draw: st.DrawFn) -> LlamaShape:
    keys, own = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    is_gpt2 = draw(st.booleans())
    width = keys * own if is_gpt2 else draw(st.integers(1, 20))
    return LlamaShape(
        vocabulary=draw(st.integers(1, 60)), width=width, layers=draw(st.integers(1, 5)),
        heads=keys * (1 if is_gpt2 else draw(st.integers(1, 3))), key_heads=keys,
        head_width=own if is_gpt2 else 2 * own,
        hidden=draw(st.integers(1, 20)), context=32,
        rotary_base=0 if is_gpt2 else draw(st.sampled_from((500, 10_000))),
        epsilon_nano=draw(st.sampled_from((1, 1_000, NANO))), tied=draw(st.booleans()),
        biased=not is_gpt2 and draw(st.booleans()),
    )  # fmt: skip


@st.composite
def shapes(draw: st.DrawFn) -> FinetuneShape:
    model, length = draw(models()), draw(st.integers(1, 12))
    names = projections_of(model)
    targets, packed = draw(st.sets(st.sampled_from(names), min_size=1)), draw(st.integers(0, 1))
    return FinetuneShape(
        model=model, rank=draw(st.integers(1, 5)), alpha=draw(st.integers(1, 9)),
        targets=tuple(name for name in names if name in targets), batch=draw(st.integers(1, 4)),
        length=length, slots=draw(st.integers(1, length)), rows=20,
        preference=0 if packed else draw(st.sampled_from((0, 0, 1, 100_000_000, NANO))), packed=packed,
        recompute=draw(st.integers(0, 1)),
        **({"train_rows": draw(st.integers(1, 20))} | draw(loops())),
    )  # fmt: skip


@st.composite
def loops(draw: st.DrawFn) -> dict[str, int]:
    """Fields of a shape about its training loop; half of them are those of a job without one."""
    if draw(st.booleans()):
        return {}
    every = draw(st.sampled_from((0, 3, 1 << 20)))
    found = {"accumulate": draw(st.integers(1, 3)), "evaluate_every": every}
    if every:
        found |= {"train_rows": draw(st.integers(1, 19)), "keeps_best": draw(st.integers(0, 1))}
    return found


BETAS = st.sampled_from((0, 500_000_000, 900_000_000, 999_000_000))
OPTIMISERS = st.builds(
    Rates, st.sampled_from((1, 1_000_000, NANO)), BETAS, BETAS, st.sampled_from((1, 10, NANO)),
    st.sampled_from((0, 10_000_000, NANO)),
)  # fmt: skip
CLIPS = st.sampled_from((0, 1, NANO, 1_000 * NANO))
RATE_CHANGES = st.builds(
    FinetuneRates, OPTIMISERS, st.sampled_from(("constant", "cosine")), st.just(2), st.just(30), CLIPS
)


@pytest.mark.slow
@settings(max_examples=40)
@given(shapes(), RATE_CHANGES)
def test_units_and_calls_of_a_program_are_known_without_it(shape: FinetuneShape, rates: FinetuneRates) -> None:
    program = finetune_program(shape, rates)
    check_finetune(shape, rates)
    assert finetune_cost(shape, rates) == (program.units, len(program.calls))


def test_units_and_calls_of_a_model_of_thirty_layers_are_known_without_its_program() -> None:
    program = finetune_program(JOB, RATES)
    assert finetune_cost(JOB, RATES) == (program.units, len(program.calls))


@pytest.mark.parametrize("clip", [1, 1_000 * NANO])
def test_as_many_matrices_as_may_be_clipped_together_stay_in_the_exact_range(clip: int) -> None:
    """The widest sums of squares: the limit holds for all shapes. Rows of A have 2^17 values at most (R150)."""
    layers, rest = divmod(CLIPPED_MAX, 2 * len(PROJECTIONS))
    assert rest == 0
    model = LlamaShape(9, 1 << 17, layers, 1, 1, 2, 1 << 16, 32, 10_000, 1)
    shape = FinetuneShape(model, 256, 1 << 16, PROJECTIONS, 1, 1, 1, 1, 1)
    rates = FinetuneRates(Rates(NANO, 0, 0, 1, NANO), "constant", 0, 1, clip)
    # Three layers pass and the whole program does: what its sum of squares may be is all that grows.
    check_finetune(shape, rates)
    finetune_program(shape, rates)
    more = replace(shape, model=replace(model, layers=layers + 1))
    for refused in (finetune_program, check_finetune):
        with pytest.raises(ProgramInvalid, match="clipped"):
            refused(more, rates)
        with pytest.raises(ProgramInvalid, match="262144 terms, 132106 are allowed"):
            refused(replace(shape, model=replace(model, layers=1, width=1 << 18)), rates)


def test_a_program_of_too_many_calls_is_refused_without_it() -> None:
    deep = replace(JOB, model=replace(SMOL, layers=120))
    for refused in (finetune_program, check_finetune):
        with pytest.raises(ProgramInvalid):
            refused(deep, RATES._replace(clip_nano=0))
