"""The training loop of any step is that of a plain program that goes through all of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.programs.errors import ProgramInvalid
from tasks.programs.loop import EVALUATIONS_MAX, UPDATES_MAX, Loop, Moment, updates_of
from tasks.programs.operators import Context
from tasks.programs.operators.loops import LOOP_ROWS, LOOP_WEIGHTS
from tests.tasks.programs.engines import engine

SEED = bytes(range(32))


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    rows = draw(st.integers(2, 30))
    every = draw(st.sampled_from((0, 1, 2, 3, 5, 50)))
    train_rows = draw(st.integers(1, rows - 1)) if every else rows
    return Loop(
        draw(st.integers(1, 8)), rows, train_rows, draw(st.integers(1, 5)), every, draw(st.integers(1, 25))
    ).check()


def plain(loop: Loop) -> Iterator[Moment]:
    """As a trainer writes it: epochs of batches, an update when enough of them are added up."""
    updates = epoch = evaluations = 0

    def evaluation() -> Iterator[Moment]:
        count = loop.rows - loop.train_rows
        for first in range(0, count, loop.batch):
            ends = first + loop.batch >= count
            yield Moment(updates - 1, epoch, first, min(loop.batch, count - first), ends, evaluations)

    while updates < loop.updates:
        added = 0
        for first in range(0, loop.train_rows, loop.batch):
            added += 1
            ends = added == loop.accumulate or first + loop.batch >= loop.train_rows
            yield Moment(updates, epoch, first, min(loop.batch, loop.train_rows - first), ends)
            if ends:
                added, updates = 0, updates + 1
                is_due = loop.evaluate_every and updates % loop.evaluate_every == 0
                if is_due or (loop.evaluate_every and updates == loop.updates):
                    yield from evaluation()
                    evaluations += 1
            if updates == loop.updates:
                return
        epoch += 1


@settings(max_examples=150)
@given(loops())
def test_each_step_is_that_of_a_plain_loop(loop: Loop) -> None:
    wanted = list(plain(loop))
    assert loop.steps == len(wanted)
    assert [loop.at(step) for step in range(loop.steps)] == wanted
    assert updates_of(loop._replace(updates=1), loop.steps) == loop.updates
    updates = evaluations = 0
    for step, moment in enumerate(wanted):
        assert (loop.updated_by(step), loop.evaluated_by(step)) == (updates, evaluations)
        updates += moment.ends and moment.evaluation < 0
        evaluations += moment.ends and moment.evaluation >= 0
    assert (loop.updated_by(loop.steps), loop.evaluated_by(loop.steps)) == (updates, evaluations)
    assert (updates, evaluations) == (loop.updates, loop.evaluations)
    assert loop.at(loop.steps + 7) == wanted[-1]


@settings(max_examples=60)
@given(loops())
def test_steps_that_end_within_an_update_are_refused(loop: Loop) -> None:
    ends = {loop._replace(updates=updates).steps for updates in range(1, loop.updates + 1)}
    for steps in range(1, loop.steps + 1):
        if steps in ends:
            assert loop._replace(updates=updates_of(loop, steps)).steps == steps
        else:
            with pytest.raises(ProgramInvalid):
                updates_of(loop, steps)


@settings(max_examples=60)
@given(loops())
def test_an_epoch_has_every_row_once(loop: Loop) -> None:
    """Rows that fill a batch up do not count, and repeat a row that does."""
    arrays, seen = engine("numpy"), list[int]()
    whole = loop._replace(updates=loop.epoch_updates)
    for step in range(whole.steps):
        moment, context = whole.at(step), Context(step, SEED)
        rows = LOOP_ROWS.run(arrays, [], tuple(whole), context).reshape(-1).astype(int).tolist()
        weights = LOOP_WEIGHTS.run(arrays, [], (*whole, 2), context)
        assert np.array_equal(weights[:, 0], np.repeat(np.arange(loop.batch) < moment.counted, 2))
        assert set(rows[moment.counted :]) <= {rows[moment.counted - 1]}
        if moment.evaluation < 0:
            seen += rows[: moment.counted]
        else:
            first = loop.train_rows + moment.first
            assert rows[: moment.counted] == list(range(first, first + moment.counted))
    assert sorted(seen) == list(range(loop.train_rows))


def test_the_largest_loop_takes_no_time() -> None:
    loop = Loop(3, 1 << 28, (1 << 28) - 7, 5, UPDATES_MAX // EVALUATIONS_MAX + 1, UPDATES_MAX).check()
    assert loop.at(loop.steps - 1).evaluation == loop.evaluations - 1
    assert updates_of(loop, loop.steps) == UPDATES_MAX


@pytest.mark.parametrize(
    "change",
    [{"batch": 0}, {"rows": 0}, {"train_rows": 0}, {"train_rows": 11}, {"accumulate": 0}, {"updates": 0},
     {"accumulate": (1 << 16) + 1}, {"updates": UPDATES_MAX + 1}, {"evaluate_every": -1},
     {"evaluate_every": 1, "train_rows": 10}, {"evaluate_every": 1, "updates": EVALUATIONS_MAX + 1}],
    ids=str,
)  # fmt: skip
def test_numbers_that_are_no_loop_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ProgramInvalid):
        Loop(2, 10, 8)._replace(**change).check()


@settings(max_examples=150)
@given(loops(), st.lists(st.sampled_from((0.5, 1.0, 2.0, 3.0)), min_size=50, max_size=50), st.integers(1, 6))
def test_a_job_ends_as_a_plain_trainer_stops(loop: Loop, losses: list[float], patience: int) -> None:
    """Of all steps that may be done, those after the end and those before it: the end is the same one."""
    ended, best, in_vain, number = 0, float("inf"), 0, 0
    for step, moment in enumerate(plain(loop), 1):
        if moment.evaluation < 0 or not moment.ends:
            continue
        in_vain = 0 if losses[number] < best else in_vain + 1
        best, number = min(best, losses[number]), number + 1
        if in_vain >= patience and step < loop.steps:
            ended = step
            break
    for steps in range(loop.steps + 1):
        assert loop.ended_by(steps, losses, patience) == (ended if ended and ended <= steps else 0)
        assert loop.ended_by(steps, losses, 0) == 0


@settings(max_examples=150)
@given(loops(), st.integers(1, 12))
def test_states_that_are_as_far_apart_are_those_of_updates(loop: Loop, every: int) -> None:
    """Where it is 0, some of them are not as far apart as the others, or an evaluation is under way."""
    done, ends, updates = list(plain(loop._replace(updates=30))), dict[int, int](), 0
    for step, moment in enumerate(done, 1):
        updates += moment.ends and moment.evaluation < 0
        ends[updates] = step  # the last one of an update is that of its evaluation
    between = [ends[n * every] - ends.get((n - 1) * every, 0) for n in range(1, (updates - 1) // every + 1)]
    found = loop.steps_between(every)
    if found:
        assert set(between) <= {found}
    elif loop.evaluate_every == 0 and len(between) > 2 * loop.epoch_updates:
        assert len(set(between)) > 1
