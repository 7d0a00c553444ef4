"""``dekube bench programs``: what it tries are programs that jobs can have, and every kind runs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from node.bench.programs import KINDS, UNITS_MAX, Sizes, _changed, _drawn, program_of, search, units_ratio
from tasks.programs.checks import check_bounds

SMALL = Sizes(
    vocabulary=9, head_width=4, heads=2, grouped=2, layers=2, hidden=12, length=5, slots=3, batch=2, rank=3
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_of_each_kind_is_in_the_exact_range_and_runs(kind: str) -> None:
    program = program_of(kind, SMALL)
    assert program is not None
    check_bounds(program)
    assert 0 < program.units <= UNITS_MAX
    assert units_ratio(program, 1e9) > 0


def test_what_takes_too_long_or_is_no_program_is_left_out() -> None:
    assert program_of("train", replace(SMALL, vocabulary=8_192, hidden=1_024, batch=32, length=256)) is None
    assert program_of("evaluate", replace(SMALL, head_width=3)) is None


def test_sizes_stay_what_a_program_may_have_however_often_they_are_changed() -> None:
    random = Random(4)
    sizes = _drawn(random)
    for _ in range(200):
        sizes = _changed(sizes, random)
        assert sizes.head_width % 2 == 0
        assert sizes.model.heads == sizes.heads * sizes.grouped


def test_the_worst_program_of_a_search_is_one_that_can_be_run_again() -> None:
    ratio, sizes = search("embed", 1e9, drawn=3, changes=2)
    program = program_of("embed", sizes)
    assert ratio > 0 and program is not None and units_ratio(program, 1e9) > 0
