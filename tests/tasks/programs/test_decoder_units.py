"""What is known of a step that trains a decoder without its program agrees with the whole program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.programs.adamw import Rates
from tasks.programs.decoder import DecoderShape, decoder_program
from tasks.programs.decoder_units import check_decoder, decoder_cost
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import CLIPPED_MAX, FinetuneRates
from tasks.programs.layered import LAYERS, layered_program
from tasks.programs.llama_shape import LlamaShape, parameters_of
from tasks.programs.operators.scalars import NANO
from tests.tasks.programs.test_finetune_units import RATE_CHANGES, SMOL, models
from tests.tasks.programs.test_layered import check_equal
from tests.tasks.programs.trainings import training_pattern

RATES = FinetuneRates(Rates(1_000_000, weight_decay_nano=10_000_000), "cosine", 2, 30, NANO)


@st.composite
def decoders(draw: st.DrawFn) -> DecoderShape:
    """Shapes of small jobs."""
    model = replace(draw(models()), biased=False)
    every = draw(st.integers(0, 3))
    loop = (draw(st.integers(1, 3)), every, draw(st.integers(0, 1)) if every else 0)
    rows = draw(st.integers(1, 19 if every else 20))
    batch, length, recompute = draw(st.integers(1, 4)), draw(st.integers(1, 12)), draw(st.integers(0, 1))
    return DecoderShape(model, batch, length, 20, rows, *loop, recompute)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(decoders(), RATE_CHANGES)
def test_units_and_calls_of_a_program_are_known_without_it(shape: DecoderShape, rates: FinetuneRates) -> None:
    program = decoder_program(shape, rates)
    check_decoder(shape, rates)
    assert decoder_cost(shape, rates) == (program.units, len(program.calls))


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(decoders(), RATE_CHANGES, st.integers(LAYERS + 1, 13))
def test_every_call_type_and_place_of_a_deep_model_follows_from_four_layers(
    shape: DecoderShape, rates: FinetuneRates, layers: int
) -> None:
    """From 11 layers on, layer 10 comes before layer 2 in the order of names."""
    deep = replace(shape, model=replace(shape.model, layers=layers))
    lazy = layered_program(training_pattern(shape, rates), layers)
    check_equal(lazy, decoder_program(deep, rates, checks_bounds=False))


def test_a_model_of_thirty_layers_has_the_same_units_and_hash() -> None:
    job = DecoderShape(SMOL, 4, 64, 40, 40)
    whole = decoder_program(job, RATES, checks_bounds=False)
    assert decoder_cost(job, RATES) == (whole.units, len(whole.calls))
    assert layered_program(training_pattern(job, RATES), 30).hash == whole.hash


@pytest.mark.parametrize("clip", [1, 1_000 * NANO])
def test_as_many_tensors_as_may_be_clipped_together_stay_in_the_exact_range(clip: int) -> None:
    """The widest sums of squares: the limit holds for all shapes."""
    layers = (CLIPPED_MAX - 3) // 9
    model = LlamaShape(1 << 10, 1 << 20, layers, 1, 1, 2, 1 << 16, 32, 10_000, 1, tied=False)
    shape = DecoderShape(model, 1, 1, 1, 1)
    assert CLIPPED_MAX - 9 < len(parameters_of(model)) <= CLIPPED_MAX
    rates = FinetuneRates(Rates(NANO, 0, 0, 1, NANO), "constant", 0, 1, clip)
    # Three layers pass and the whole program does: what its sum of squares may be is all that grows.
    check_decoder(shape, rates)
    decoder_program(shape, rates)
    more = replace(shape, model=replace(model, layers=layers + 1))
    for refused in (decoder_program, check_decoder):
        with pytest.raises(ProgramInvalid, match="clipped"):
            refused(more, rates)


def test_a_program_of_too_many_calls_is_refused_without_it() -> None:
    deep = DecoderShape(replace(SMOL, layers=200), 4, 64, 40, 40)
    for refused in (decoder_program, check_decoder):
        with pytest.raises(ProgramInvalid, match="calls"):
            refused(deep, RATES._replace(clip_nano=0))
