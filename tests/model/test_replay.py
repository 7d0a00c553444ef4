"""Kept traces of the Quint model, replayed against the core, with and without the idle wait."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from consensus.core.core import Core
from consensus.core.proposing import Parent, Proposer
from consensus.core.voting import Voter
from consensus.guard import GuardRefused
from state.primitives.votes import NULLIFY, Candidate
from tests.model.quint import RECORDED, TRACES, TRACES_EACH
from tests.model.replay import WORLDS, Replay, World, load_trace

PATHS = sorted(TRACES.iterdir())


def world_of(name: str) -> World:
    return WORLDS[name.partition("-")[0]]


@pytest.mark.parametrize(("idle", "by_votes"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name.partition(".")[0])
def test_the_core_goes_the_way_of_the_model(path: Any, idle: bool, by_votes: bool) -> None:
    Replay(world_of(path.name), idle=idle, by_votes=by_votes).run(load_trace(path))


def test_the_kept_traces_go_everywhere() -> None:
    assert len(PATHS) == TRACES_EACH * len(RECORDED)
    seen: Counter[str] = Counter()
    for path in PATHS:
        seen += Replay(world_of(path.name), by_votes=True).run(load_trace(path))
    print(seen)
    assert seen.keys() >= {
        "learn", "notarize", "nullify", "finalize", "finalize late", "refuse", "commit", "epoch ended",
        "propose", "propose again", "propose on a skipped view", "build in vain", "learn by votes",
    }  # fmt: skip


class AcceptsAnythingOnTheBoundary(Core):
    class voter_type(Voter):
        def _judge(self, candidate: Candidate) -> bool | None:
            return True if super()._judge(candidate) is False else super()._judge(candidate)


class ForgetsThatItNullified(Core):
    class voter_type(Voter):
        def try_finalize(self, view: int) -> None:
            self._own._cast.get(view, {}).pop(NULLIFY, None)
            super().try_finalize(view)


class StartsFromTheRoot(Core):
    class proposer_type(Proposer):
        def _choose_parent(self) -> Parent | None:
            chosen, root = super()._choose_parent(), self._tree.root
            return chosen and Parent(root.block_hash, root.view, root.certificate, chosen.nulls)


class ProposesOnTheBoundary(Core):
    class proposer_type(Proposer):
        def try_propose(self) -> None:
            tree = self._tree
            last, tree.last_height = tree.last_height, 1_000
            super().try_propose()
            tree.last_height = last


class StaysInItsView(Core):
    def _enter(self, view: int) -> None:
        super()._enter(min(view, self.view + 1))


class NeverFinalizesThePast(Core):
    class voter_type(Voter):
        def try_finalize(self, view: int) -> None:
            if view >= self._view.number - 1:
                super().try_finalize(view)


@pytest.mark.parametrize(
    "core_type",
    [
        AcceptsAnythingOnTheBoundary,
        ForgetsThatItNullified,
        StartsFromTheRoot,
        ProposesOnTheBoundary,
        StaysInItsView,
        NeverFinalizesThePast,
    ],
)
def test_a_core_that_goes_another_way_is_found(core_type: type[Core]) -> None:
    found = 0
    for path in PATHS:
        try:
            Replay(world_of(path.name), core_type=core_type).run(load_trace(path))
        except (AssertionError, GuardRefused):
            found += 1
    assert found > 0
