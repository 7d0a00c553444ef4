"""The Quint model keeps its promises, breaks them where it must, and agrees with the core in fresh traces."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.model.quint import INSTANCES, SPEC, QuintFailed, quint_run, witnessed
from tests.model.replay import WORLDS, Replay, committee_of, load_trace

pytestmark = pytest.mark.slow

SAMPLES = int(os.environ.get("QUINT_SAMPLES", "12"))
SEED = int(os.environ.get("QUINT_SEED", "3"))

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="node and npm are not installed: the Quint model is not run, its kept traces are replayed all the same",
)


@needs_node
@pytest.mark.parametrize(
    "instance", [INSTANCES[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in INSTANCES[1:])]
)
def test_samples_keep_the_promises(instance: str, tmp_path: Path) -> None:
    output = quint_run(instance, samples=SAMPLES, seed=SEED, traces=tmp_path)
    print(output)
    seen = witnessed(output)
    assert seen["epochEnded"] > SAMPLES // 2
    assert seen["proposedAgain"] > 0
    if instance in WORLDS:
        for path in tmp_path.iterdir():
            for by_votes in (False, True):
                Replay(WORLDS[instance], by_votes=by_votes).run(load_trace(path))


@needs_node
def test_two_faulty_seats_of_four_break_the_promises() -> None:
    with pytest.raises(QuintFailed, match="Invariant violated"):
        quint_run("broken", samples=SAMPLES, seed=SEED)


@pytest.mark.parametrize("instance", INSTANCES)
def test_the_constants_of_the_model_are_those_of_a_committee(instance: str) -> None:
    text = SPEC.read_text()
    body = re.split(rf"^module {instance} {{", text, flags=re.MULTILINE)[1].split("\n}")[0]
    weights = tuple(int(weight) for weight in re.findall(r"\d+ -> (\d+)", body))
    leaders = [int(seat) for seat in re.findall(r"LEADERS = \[([\d, ]+)\]", body)[0].split(",")]
    committee = committee_of(weights)
    assert [committee.leader(view) for view in range(1, 2 * len(leaders) + 1)] == 2 * leaders
    if instance in WORLDS:
        world = WORLDS[instance]
        assert weights == world.weights
        assert f"FAULTY = Set({world.faulty})" in body
        assert f"LAST_HEIGHT = {world.last_height}," in body
