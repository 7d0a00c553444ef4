"""Validation losses in proofs: they are those of the state that a window leaves, and a false one is refused."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import pytest

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from tasks.engines.state import TrainingState
from tasks.engines.tuning import Tuner, first_state
from tasks.evaluations import (
    ended_by,
    evaluations_of,
    is_end,
    least_steps,
    show_losses,
    shows_losses,
)
from tasks.kinds.finetune import TrainingLoop
from tasks.ledger.lifecycle import Phase
from tasks.ledger.records import load_window
from tasks.ledger.transitions import SUBMIT_WINDOW
from tasks.programs.loop import EVALUATIONS_MAX
from tasks.programs.looped import EVALUATION_LOSSES
from tasks.programs.states import state_leaves, tensor_leaf
from tasks.programs.tensors import tensor_root
from tasks.proofs import ShownLosses, WindowProof, window_proof_from_value, window_proof_to_value
from tasks.spec import JobSpec
from tests.tasks.programs.engines import engine
from tests.tasks.tuned import tuned
from tests.tasks.world import World, leaves_of, proof_of

ARRAYS = engine("numpy")
LOOP = TrainingLoop(accumulate=2, evaluate_every=2, keeps_best=1)
SPEC, PLAN, MADE = tuned(updates=4, samples=3, loop=LOOP, window=6)
LOOPS = [
    TrainingLoop(accumulate, every, best)
    for accumulate in (1, 2) for every in (1, 3) for best in (0, 1)
]  # fmt: skip


@cache
def after(steps: int) -> TrainingState:
    tuner = Tuner(PLAN, MADE.model, MADE.data, ARRAYS, first_state(PLAN))
    tuner.run_steps(steps)
    return tuner.state()


def proof(spec: JobSpec, task: bytes, window: int, state: TrainingState | None = None) -> WindowProof:
    """Return a proof whose window leaves a state that was computed; all else in it is made up."""
    step_from, step_to = spec.window_range(window)
    made = proof_of(spec, task, window, leaves_of(spec, window, after(step_from).root(PLAN)))
    left = state or after(step_to)
    return made._replace(state_root_out=left.root(PLAN), losses=show_losses(spec, left))


@pytest.mark.parametrize("layers", [1, 12])
@pytest.mark.parametrize("loop", LOOPS, ids=str)
def test_the_place_of_losses_in_a_state_is_known_without_its_names(loop: TrainingLoop, layers: int) -> None:
    _, plan, _ = tuned(layers, samples=3, loop=loop)
    state = first_state(plan)
    kinds = {name: (kind, tensor_root(kind, state.tensors[name])) for name, kind in plan.tensors().items()}
    leaves = state_leaves(0, kinds)
    place, count = plan.shape.losses_place
    assert count == len(leaves)
    assert leaves[place] == tensor_leaf(EVALUATION_LOSSES, *kinds[EVALUATION_LOSSES])


def test_shown_losses_are_those_of_the_state() -> None:
    """Two updates of two batches, then an evaluation of one step: five steps, twice."""
    assert (PLAN.loop.steps, SPEC.windows) == (10, 2)
    shown = proof(SPEC, bytes(32), 1)
    assert shows_losses(SPEC, shown)
    losses = struct.unpack(f"<{EVALUATIONS_MAX}f", after(10).tensors[EVALUATION_LOSSES])
    assert shown.losses is not None
    found = evaluations_of(SPEC, 10, shown.losses.content)
    assert [(one.update, one.step) for one in found] == [(2, 5), (4, 10)]
    assert [one.loss for one in found] == list(losses[:2]) and min(losses[:2]) > 0
    assert evaluations_of(SPEC, 6, shown.losses.content) == found[:1]
    plain, _, _ = tuned()
    assert show_losses(plain, first_state(plain.plan())) is None  # type: ignore[arg-type]
    for spec, content in ((plain, shown.losses.content), (SPEC, shown.losses.content[1:]), (SPEC, b"")):
        with pytest.raises(DecodeError):
            evaluations_of(spec, 6, content)


def test_other_losses_than_those_of_the_state_are_refused() -> None:
    shown = proof(SPEC, bytes(32), 1)
    assert shown.losses is not None
    content, siblings = shown.losses
    lower = struct.pack("<f", 0.5) + content[4:]
    for losses in (
        None, ShownLosses(lower, siblings), ShownLosses(content[:-4], siblings),
        ShownLosses(content, siblings[:-1]), ShownLosses(content, (*siblings, bytes(32))),
        ShownLosses(struct.pack("<f", float("nan")) + content[4:], siblings), ShownLosses(content, siblings[::-1]),
    ):  # fmt: skip
        assert not shows_losses(SPEC, shown._replace(losses=losses))
    assert not shows_losses(SPEC, shown._replace(state_root_out=after(6).root(PLAN)))
    plain, _, _ = tuned()
    assert not shows_losses(plain, shown) and shows_losses(plain, shown._replace(losses=None))


def test_a_proof_without_losses_has_the_encoding_that_it_always_had() -> None:
    shown = proof(SPEC, bytes(32), 1)
    for one, fields in ((shown, 13), (shown._replace(losses=None), 12)):
        value: Any = decode(encode(window_proof_to_value(one)), limit_bytes=4096)
        assert len(value) == fields and window_proof_from_value(value) == one
    good: Any = decode(encode(window_proof_to_value(shown)), limit_bytes=4096)
    for wrong in ([], [b"", []], [b"x" * 513, []], [b"x", [b"short"]], [b"x", [bytes(32)] * 25], [b"x"], 0):
        with pytest.raises(DecodeError):
            window_proof_from_value([*good[:-1], wrong])
    with pytest.raises(DecodeError):
        window_proof_from_value([*good, good[-1]])


def test_the_ledger_takes_a_window_with_the_losses_of_its_state_alone() -> None:
    world = World()
    worker, _ = world.add_machine(1), world.add_machine(2)
    task = world.create(SPEC)
    world.run_to(task, Phase.RUNNING)
    good = proof(SPEC, task, 0)
    assert good.losses is not None
    false = good.losses._replace(content=struct.pack("<f", 0.5) + good.losses.content[4:])
    for bad in (good._replace(losses=None), good._replace(losses=false)):
        assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(bad)]) == "proof_mismatch"
    assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(good)]) is None
    assert load_window(world.state, task, 0).proof == good


def test_where_a_job_ends_follows_from_the_losses_of_the_states_that_proofs_show() -> None:
    """Of a real job: its fifth evaluation, after 25 of 30 steps, is the first one that is no better (R87)."""
    spec, plan, made = tuned(updates=12, samples=3, loop=LOOP._replace(patience=1), window=10)
    tuner = Tuner(plan, made.model, made.data, ARRAYS, first_state(plan))
    for window, step in ((0, 10), (1, 20), (2, 25)):
        tuner.run_steps(step - tuner.step)
        shown = proof(spec, bytes(32), window, tuner.state())._replace(step_to=step)
        assert shows_losses(spec, shown)
        assert ended_by(spec, shown) == (25 if step == 25 else 0)
        assert is_end(spec, tuner.state()) == tuner.is_over == (step == 25)
    assert least_steps(spec) == 10
    for other in (LOOP, LOOP._replace(patience=2), LOOP._replace(patience=128)):
        same = spec.changed(loop=other)
        assert ended_by(same, shown) == 0 and not is_end(same, after(6))
    assert least_steps(spec.changed(loop=LOOP)) == least_steps(spec.changed(loop=LOOP._replace(patience=5))) == 30
    assert spec.program() == spec.changed(loop=LOOP).program(), "no program depends on it"
