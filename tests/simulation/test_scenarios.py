"""Thousands of schedules of whole replicas; a seed that fails here is a bug, and none is left out."""

from __future__ import annotations

import pytest

from consensus.simulation.scenarios import KINDS, run_scenario

SEEDS = 2_000
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_schedule_breaks_a_promise(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            run_scenario(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("seed", [5_693, 6_888, 12_614, 13_813, 16_924])
def test_what_long_campaigns_have_found_stays_mended(seed: int) -> None:
    """Votes recorded and not sent when the power failed; a window of blocks that nobody took up again.

    The last one was the simulator's own: a seat with two thirds of the weight alone had lost a block that it alone
    had certified, which is no fault that any committee stands.
    """
    run_scenario(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_trace(kind: str) -> None:
    assert run_scenario(7, kind=kind) == run_scenario(7, kind=kind)


def test_different_seeds_give_different_traces() -> None:
    traces = {run_scenario(seed, kind="calm").trace for seed in range(5)}
    assert len(traces) == 5


def test_above_the_bound_chains_fork_and_the_proofs_name_more_than_a_third() -> None:
    """What is named is checked in each run; here, that there is something to name."""
    assert sum(run_scenario(seed, kind="above_f").is_forked for seed in range(40)) >= 5
