"""The check of the check: every fault put into the rules is found, and most of them fork the chain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.chain_check import explore
from tests.model.interleaving_check import Interleavings
from tests.model.liveness_check import check_no_dead_end
from tests.model.rules import Broken, Change, Rules, committees
from tests.model.view_check import reachable

UNSAFE = {
    Change.QUORUM_SHORT: "two NOTARIZE quorums",
    Change.NOTARIZE_TWICE: "two NOTARIZE quorums",
    Change.FINALIZE_AFTER_NULLIFY: "FINALIZE and NULLIFY quorums",
    Change.NULLIFY_AFTER_FINALIZE: "FINALIZE and NULLIFY quorums",
    Change.FINALIZE_WITHOUT_NOTARIZATION: "final and not notarized",
    Change.SKIP_WITHOUT_NULLIFICATION: "skips a view that is not nullified",
    Change.PARENT_WITHOUT_NOTARIZATION: "has not notarized",
    Change.CHILD_OF_BOUNDARY: "above the boundary",
    Change.SIBLING_OF_BOUNDARY: "has not notarized",
}
STUCK = {
    Change.NO_REPROPOSAL: "nothing may be proposed",
    Change.NO_NULLIFY_AFTER_NOTARIZE: "a view cannot end",
    Change.IDLE_FOR_EVER: "a view cannot end",
}
HARMLESS = {Change.NOTARIZE_AFTER_NULLIFY}


def test_every_change_is_judged() -> None:
    assert {*UNSAFE, *STUCK, *HARMLESS} == set(Change)


@pytest.mark.parametrize(("change", "invariant"), UNSAFE.items(), ids=str)
def test_an_unsafe_change_breaks_its_invariant(change: Change, invariant: str) -> None:
    with pytest.raises(Broken, match=invariant) as broken:
        explore(Rules().with_changes(change), 4)
    assert "view 1:" in str(broken.value), "the way there is told"


@pytest.mark.parametrize("change", UNSAFE, ids=str)
def test_an_unsafe_change_ends_in_two_final_blocks(change: Change) -> None:
    with pytest.raises(Broken, match="final block"):
        explore(Rules().with_changes(change), 4, agreement_only=True)


@pytest.mark.parametrize(("change", "reason"), STUCK.items(), ids=str)
def test_a_change_that_blocks_is_a_dead_end_and_nothing_worse(change: Change, reason: str) -> None:
    rules = Rules().with_changes(change)
    explore(rules, 4)
    with pytest.raises(Broken, match=reason):
        check_no_dead_end(rules, 4)


@pytest.mark.parametrize("faulty", [Rules((1, 1), 2), Rules((1, 1, 2), 3)], ids=str)
def test_what_two_quorums_share_forks_the_chain_when_it_is_faulty(faulty: Rules) -> None:
    with pytest.raises(Broken, match="final block"):
        explore(faulty, 4, agreement_only=True)


@pytest.mark.parametrize("faulty", [Rules((1, 1, 1), 2), Rules((1, 1, 2), 2)], ids=str)
def test_a_third_of_the_weight_can_stop_the_chain_before_it_can_fork_it(faulty: Rules) -> None:
    explore(faulty, 4)
    with pytest.raises(Broken, match="a view cannot end"):
        check_no_dead_end(faulty, 1)


def test_a_notarize_after_a_nullify_changes_nothing_that_can_be_certified() -> None:
    # NULLIFY after NOTARIZE is allowed, so the other order makes the same sets of votes. The rule stays: it costs
    # nothing, and a seat that has given a view up need not check its block.
    for committee in committees(20):
        for candidates in range(4):
            changed = committee.with_changes(Change.NOTARIZE_AFTER_NULLIFY)
            assert reachable(changed, candidates).keys() == reachable(committee, candidates).keys()


def test_vote_by_vote_an_honest_seat_is_caught_contradicting_itself() -> None:
    with pytest.raises(Broken, match="E3"):
        Interleavings(Rules().with_changes(Change.FINALIZE_AFTER_NULLIFY), 1).run()


def test_a_seat_that_never_goes_back_cannot_nullify_what_it_finalized() -> None:
    # FINALIZE needs a certificate that ends the view (R2). The guard forbids the other order once more, for a seat
    # that a crash has put back; the chain forks when both locks are open, see the changes above.
    changed = Interleavings(Rules().with_changes(Change.NULLIFY_AFTER_FINALIZE), 2).run()
    assert changed == Interleavings(Rules(), 2).run()


@pytest.mark.parametrize(
    "change", [Change.SKIP_WITHOUT_NULLIFICATION, Change.SIBLING_OF_BOUNDARY, Change.CHILD_OF_BOUNDARY], ids=str
)
def test_the_last_block_alone_shows_the_faults_of_the_boundary(change: Change) -> None:
    with pytest.raises(Broken):
        explore(replace(Rules(), last_height=1).with_changes(change), 3)
