"""Every two-way split of 4 to 7 nodes, rings, one-way links, loss, slowness: progress soon after the heal."""

from __future__ import annotations

import pytest

from consensus.simulation.heal import WEIGHTS, Break, breaks, run_break, weighted_breaks

BREAKS = tuple(breaks())
WEIGHTED = tuple(weighted_breaks())
PARTS = 8
EACH = 4
"""Of so many breaks of unequal weights one; campaigns play all of them."""


@pytest.mark.parametrize("part", range(PARTS))
def test_progress_comes_within_two_time_outs_of_the_heal(part: int) -> None:
    for broken in BREAKS[part::PARTS]:
        run_break(broken)


@pytest.mark.parametrize("part", range(2))
def test_progress_comes_as_soon_with_unequal_weights(part: int) -> None:
    assert [broken._replace(weights=()) for broken in WEIGHTED] == list(BREAKS)
    for broken in WEIGHTED[EACH * part :: 2 * EACH]:
        run_break(broken)


def test_weights_decide_which_side_goes_on() -> None:
    """Of 23 the three heaviest of six hold 17, which is a quorum; any four of the lightest are none."""
    assert max(map(max, WEIGHTS.values())) * 3 <= sum(WEIGHTS[6])
    heavy = Break("split", 6, (True, True, True, False, False, False), WEIGHTS[6])
    light = Break("split", 6, (True, False, True, False, False, False), WEIGHTS[6])
    assert run_break(heavy).heights_while_broken > 2
    assert run_break(heavy._replace(weights=())).heights_while_broken <= 2
    assert run_break(light).heights_while_broken <= 2


def test_every_two_way_split_is_there() -> None:
    for size, count in ((4, 7), (5, 15), (6, 31), (7, 63)):
        splits = [broken.sides for broken in BREAKS if (broken.kind, broken.size) == ("split", size)]
        assert len({frozenset((sides, tuple(not side for side in sides))) for sides in splits}) == count


def test_nothing_is_final_in_a_half_and_all_goes_on_in_a_quorum() -> None:
    for broken in BREAKS:
        if broken.kind == "split" and broken.size == 4:
            held = max(sum(broken.sides), 4 - sum(broken.sides))
            # A leader of the other side costs its view: what a quorum of three makes final is less, not nothing.
            assert (run_break(broken).heights_while_broken > 2) == (held >= 3), broken
