"""Rows that share sequences: the same bits as alone, in any arrangement (R155)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.models.packing import packed, packed_rows_of, packed_with
from tasks.models.rows import Example, TokenRows, rows_of
from tasks.programs.adamw import Rates
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import FinetuneRates, FinetuneShape, adapter_tensors, finetune_program
from tasks.programs.llama_shape import LlamaShape, projections_of
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import SourceKind
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.gpt2s import GPT2
from tests.tasks.programs.judged import check_elements
from tests.tasks.programs.llamas import BIASED, TINY
from tests.tasks.programs.tunings import Tuning, tuning
from tests.tasks.programs.values import CONTEXT

NUMPY = engine("numpy")
RATES = FinetuneRates(Rates(20_000_000, beta1_nano=0), "constant", 0, 9)
"""Without a first moment of earlier steps, the moment that is stored is the gradient."""
MODELS = {"llama": TINY, "qwen2": BIASED, "gpt2": GPT2}


def examples(lengths: Sequence[int], vocabulary: int = 50, seed: int = 3) -> list[Example]:
    """Rows with so many tokens before another one; of each some are trained, and the last one."""
    random, found = np.random.default_rng(seed), list[Example]()
    for line, length in enumerate(lengths, 1):
        trained = random.random(length + 1) < 0.5
        trained[-1] = True
        tokens = random.integers(0, vocabulary, length + 1)
        found.append(Example(line, tuple(map(int, tokens)), tuple(map(bool, trained))))
    return found


def job(model: LlamaShape, rows: TokenRows, *, is_packed: bool) -> Tuning:
    """One step over all rows, with random adapters that are the same whatever the rows."""
    made = tuning(model, RATES, projections_of(model), spread=0.2)
    shape = FinetuneShape(
        model, 4, 8, projections_of(model), rows.rows, rows.length, rows.slots, rows.rows, rows.rows,
        packed=int(is_packed),
    )  # fmt: skip
    return replace(made, job=shape, data=rows.contents)


def after(made: Tuning, name: str = "numpy") -> tuple[float, dict[str, bytes]]:
    result, state = made.step(engine(name))
    return float(engine(name).store(result.loss)[0, 0]), state


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_any_arrangement_of_rows_gives_the_same_loss_and_state_to_the_bit(model: LlamaShape) -> None:
    """One row a sequence, pairs of any, all in one, in another order, with and without room at the end."""
    rows = examples([5, 3, 8, 2])
    one, two, three, four = rows
    arrangements = [
        [[one], [two], [three], [four]],
        [[one, two], [three, four]],
        [rows],
        [[four, three, one], [two]],
    ]
    found = [after(job(model, packed_rows_of(each), is_packed=True)) for each in arrangements]
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_rows_that_nothing_fills_up_give_the_bits_of_a_job_without_packing(model: LlamaShape) -> None:
    rows = examples([6, 6, 6, 6])
    alone = after(job(model, rows_of(rows), is_packed=False))
    assert after(job(model, packed_rows_of([rows[:2], rows[2:]]), is_packed=True)) == alone


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_rows_that_were_filled_up_differ_by_rounding_alone(model: LlamaShape) -> None:
    rows = examples([5, 3, 8, 2])
    made = [job(model, rows_of(rows), is_packed=False), job(model, packed_rows_of([rows]), is_packed=True)]
    (loss, state), (other, packed_state) = (after(one) for one in made)
    assert loss == other  # of tokens nothing depends on what fills a row
    for name in adapter_tensors(made[0].job):
        one, two = (np.frombuffer(each[f"adam_m/{name}"], "<f4") for each in (state, packed_state))
        assert np.abs(one - two).max() <= 1e-5 * np.abs(one).max(), name


def test_the_loss_is_divided_by_the_trained_tokens() -> None:
    """Not a mean of rows' means: a row with one trained token counts as one token."""
    rows = examples([5, 3, 8, 2])
    rows[1] = rows[1]._replace(trained=(False, False, False, True))
    alone = [after(job(TINY, packed_rows_of([[one]]), is_packed=True))[0] for one in rows]
    counts = [sum(one.trained[1:]) for one in rows]
    loss, _ = after(job(TINY, packed_rows_of([rows]), is_packed=True))
    assert loss == pytest.approx(np.dot(alone, counts) / sum(counts), rel=1e-12)


def test_a_row_sees_no_other_one() -> None:
    """Other tokens in the rows before and after change nothing of the gradient by its own tokens' loss."""
    first, second, third = examples([5, 4, 6])
    silent = [one._replace(trained=(False,) * len(one.tokens)) for one in (first, third)]
    others = [one._replace(tokens=tuple(49 - token for token in one.tokens)) for one in silent]
    found = [
        after(job(TINY, packed_rows_of([[before, second, behind]]), is_packed=True))[0]
        for before, behind in (silent, others)
    ]
    assert found[0] == found[1] == after(job(TINY, packed_rows_of([[second]]), is_packed=True))[0]


@pytest.mark.parametrize("name", NAMES[1:])
def test_engines_give_the_same_bits(name: str) -> None:
    made = job(TINY, packed_rows_of([examples([5, 3]), examples([2, 1, 4], seed=4)]), is_packed=True)
    assert after(made, name) == after(made)


def test_every_element_of_a_step_is_what_the_judge_computes() -> None:
    made = job(TINY, packed_rows_of([examples([5, 3]), examples([2, 1], seed=4)]), is_packed=True)
    program = finetune_program(made.job, made.rates)
    held = {SourceKind.STATE: made.state, SourceKind.DATA: made.data, SourceKind.MODEL: made.model}
    sources = list[Any]()
    for source in program.sources:
        content, kind = held[source.kind][source.key], source.type
        code = "<i4" if source.kind is SourceKind.DATA else "<f4" if len(content) == 4 * kind.values else "<i2"
        sources.append(np.frombuffer(content, code).reshape(kind.rows, kind.columns).astype(np.float64))
    check_elements(program, sources, CONTEXT, 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=40), st.integers(20, 50))
def test_every_row_is_in_one_sequence_that_has_room(lengths: list[int], most: int) -> None:
    rows = examples(lengths)
    found = packed(rows, most)
    assert sorted(one.line for row in found for one in row) == list(range(1, len(rows) + 1))
    sizes = [sum(len(one.tokens) - 1 for one in row) for row in found]
    assert max(sizes) <= most
    assert len(found) <= 2 * -(-sum(lengths) // most)  # at most one is half empty
    assert [min(one.line for one in row) for row in found] == sorted(min(one.line for one in row) for row in found)


def test_rows_for_validation_share_no_sequence_with_others() -> None:
    kept, held = examples([3, 4, 2]), examples([2, 2], seed=5)
    rows, count = packed_with(kept, held, (), 10)
    assert (rows.rows, count, rows.length) == (2, 1, 9)
    starts = np.frombuffer(rows.contents["starts"], "<i4").reshape(2, 9)
    assert starts.tolist() == [[0, 0, 0, 3, 3, 3, 3, 7, 7], [0, 0, 2, 2, 9, 9, 9, 9, 9]]
    positions = np.frombuffer(rows.contents["positions"], "<i4").reshape(2, 9)
    assert positions.tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 1], [0, 1, 0, 1, 0, 0, 0, 0, 0]]


def test_pairs_are_not_packed() -> None:
    for change in ({"packed": 2}, {"packed": -1}, {"packed": 1, "preference": NANO}):
        with pytest.raises(ProgramInvalid, match="packing"):
            FinetuneShape(TINY, 4, 8, ("query",), 1, 4, 2, 4, 4, **change)
