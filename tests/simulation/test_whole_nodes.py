"""Whole nodes under one seed: the real state, store, epochs and evidence below the real consensus."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise

import pytest

from consensus.simulation.cluster import Cluster
from consensus.simulation.oracle import Violation
from consensus.wire import decode_certificate
from node.simulation.scenarios import WHOLE_KINDS, run_whole
from node.simulation.world import WholeMachine, WholeWorld
from state.primitives.blocks import decode_header
from state.primitives.votes import NULLIFY

SEEDS = 100
"""A sample for every run of the tests; `make nightly` plays 100,000."""
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_schedule_breaks_a_promise(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        try:
            found = run_whole(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        seen += Counter(found._asdict() | {"outcome": 0, "state_root": 0, "epochs": found.outcome.epochs})
    # A run that nobody joins, leaves or rotates a key in would prove little.
    assert min(seen["joined"], seen["rotated"]) > 0
    assert seen["epochs"] > 2 * CHUNK


@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_the_same_seed_gives_the_same_state(kind: str) -> None:
    assert run_whole(3, kind=kind) == run_whole(3, kind=kind)


def test_a_fault_that_is_found_is_punished_on_chain_and_no_other() -> None:
    assert sum(run_whole(seed, kind="adversary").slashed for seed in range(4)) >= 2
    assert sum(run_whole(seed, kind="calm").slashed for seed in range(2)) == 0


def test_who_is_away_is_jailed_for_a_while() -> None:
    def away(cluster: Cluster) -> None:
        cluster.call_at(150, partial(cluster.crash, cluster.nodes[1], 10**9))

    assert sum(run_whole(seed, kind="calm", mutate=away).jailed for seed in range(3)) > 0


def test_what_a_skipped_view_rests_on_is_in_every_database_that_was_there() -> None:
    clusters: list[Cluster] = []

    def away(cluster: Cluster) -> None:
        cluster.call_at(150, partial(cluster.crash, cluster.nodes[1], 10**9))
        clusters.append(cluster)

    for seed in (1, 2):
        run_whole(seed, kind="calm", mutate=away)
    skipped = 0
    for node in [node for cluster in clusters for node in cluster.nodes]:
        if node.number == 1 or not node.honest:
            continue
        assert isinstance(node.machine, WholeMachine)
        store = node.machine.store
        tips = [store.height(height) for height in range(1, store.tip.height + 1)]
        headers = [decode_header(tip.header) for tip in tips if tip is not None]
        for below, header in pairwise(headers):
            first = below.view + 1 if below.epoch == header.epoch else 1
            for view in range(first, header.view):
                null = store.views.nullified(header.epoch, view)
                assert null is not None, (node.number, header.epoch, view)
                found = decode_certificate(null)
                assert (found.kind, found.epoch, found.view) == (NULLIFY, header.epoch, view)
                skipped += 1
    assert skipped > 3


def test_a_database_that_is_not_synced_is_found() -> None:
    """The test of the test: a commit that only the page cache has is lost with the power."""

    def unsynced(cluster: Cluster) -> None:
        for node in cluster.nodes:
            assert isinstance(node.machine, WholeMachine)
            node.machine.ignore_syncs()

    with pytest.raises(Violation, match="has lost final blocks"):
        for seed in range(10):
            run_whole(seed, kind="blackout", mutate=unsynced)


def test_a_committee_that_is_selected_otherwise_is_found() -> None:
    """The test of the test: one node that draws another committee."""

    def other(cluster: Cluster) -> None:
        machine = cluster.nodes[1].machine
        assert isinstance(machine, WholeMachine) and isinstance(cluster.world, WholeWorld)
        original = machine.info

        def drawn(epoch: int):  # type: ignore[no-untyped-def]
            info = original(epoch)
            if info is None or epoch < 1:
                return info
            seats = info.committee.seats
            committee = type(info.committee)(seats[::-1])
            return info._replace(committee=committee)

        machine.info = drawn  # type: ignore[method-assign]

    with pytest.raises(Violation, match="another committee"):
        run_whole(2, kind="calm", mutate=other)
