"""A program by need is the program that is built whole: every source, call, type, place and sum."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import FinetuneRates, FinetuneShape, finetune_program
from tasks.programs.generate import GenerateShape, generate_program, marked_program
from tasks.programs.layered import LAYERS, LayeredProgram, Pattern, layered_program
from tasks.programs.program import CALLS_MAX, Program, SourceKind
from tests.tasks.programs.generations import decodings
from tests.tasks.programs.test_finetune_units import JOB, RATE_CHANGES, RATES, SMOL, shapes
from tests.tasks.programs.tunings import pattern_of


def check_equal(lazy: Program, whole: Program) -> None:
    """Check that two programs have the same calls, types, places and sums."""
    assert tuple(lazy.sources) == tuple(whole.sources)
    assert tuple(lazy.calls) == tuple(whole.calls)
    assert tuple(lazy.types) == tuple(whole.types)
    assert tuple(lazy.places) == tuple(whole.places)
    assert tuple(lazy.stored) == tuple(whole.stored) and dict(lazy.stores) == whole.stores
    assert (lazy.probe, lazy.loss) == (whole.probe, whole.loss)
    assert (lazy.units, lazy.size_bytes) == (whole.units, whole.size_bytes)
    assert [lazy.count(kind) for kind in SourceKind] == [whole.count(kind) for kind in SourceKind]
    assert len(lazy.traced) == len(whole.traced)
    for at in (*range(0, len(whole.traced), 7), -1):
        assert lazy.traced[at] == whole.traced[at]


@pytest.mark.slow
@settings(max_examples=12)
@given(shapes(), RATE_CHANGES, st.integers(LAYERS + 1, 13))
def test_every_call_type_and_place_is_that_of_the_whole_program(
    shape: FinetuneShape, rates: FinetuneRates, layers: int
) -> None:
    """From 11 layers on, layer 10 comes before layer 2 in the order of names."""
    deep = replace(shape, model=replace(shape.model, layers=layers))
    check_equal(
        layered_program(pattern_of(shape, rates), layers), finetune_program(deep, rates, checks_bounds=False)
    )


def layers_of(shape: GenerateShape, layers: int) -> GenerateShape:
    return replace(shape, model=replace(shape.model, layers=layers))


def lazy_of(shape: GenerateShape, layers: int) -> LayeredProgram:
    return layered_program(Pattern(marked_program(layers_of(shape, LAYERS))), layers)


@settings(max_examples=12, deadline=None)
@given(decodings(), st.integers(LAYERS + 1, 13))
def test_decoding_by_need_is_that_of_the_whole_program(shape: GenerateShape, layers: int) -> None:
    """The state has a cache for each layer in the order of names, and one tensor for all of them."""
    check_equal(lazy_of(shape, layers), generate_program(layers_of(shape, layers), checks_bounds=False))


def test_decoding_with_thirty_layers_has_the_same_hash() -> None:
    shape = GenerateShape(SMOL, 4, 8, 32, 33, (2,))
    lazy, whole = lazy_of(shape, SMOL.layers), generate_program(shape, checks_bounds=False)
    check_equal(lazy, whole)
    assert lazy.hash == whole.hash


def test_a_model_of_thirty_layers_has_the_same_hash() -> None:
    lazy, whole = layered_program(pattern_of(JOB, RATES), 30), finetune_program(JOB, RATES, checks_bounds=False)
    check_equal(lazy, whole)
    assert lazy.hash == whole.hash


def test_a_tensor_that_is_not_there_is_refused() -> None:
    lazy = layered_program(pattern_of(JOB, RATES), 30)
    for at in (len(lazy.types), -len(lazy.types) - 1):
        for values in (lazy.types, lazy.places):
            with pytest.raises(IndexError):
                values[at]
        with pytest.raises(IndexError):
            lazy.call_of(at)


def test_too_many_calls_are_no_program() -> None:
    assert CALLS_MAX == 1 << 16
    with pytest.raises(ProgramInvalid, match="calls"):
        layered_program(pattern_of(JOB, RATES), 120)
