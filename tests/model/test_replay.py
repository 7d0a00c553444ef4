"""Kept traces of the Quint model, replayed against the core, with and without the idle wait."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from consensus.core import Core
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
    def _judge(self, candidate: Candidate) -> bool | None:
        return True if super()._judge(candidate) is False else super()._judge(candidate)


class ForgetsThatItNullified(Core):
    def _try_finalize(self, view: int) -> None:
        self._cast.get(view, {}).pop(NULLIFY, None)
        super()._try_finalize(view)


class StartsFromTheRoot(Core):
    def _choose_parent(self) -> Any:
        chosen = super()._choose_parent()
        return chosen and (self.root.block_hash, self.root.view, self.root.certificate, chosen[3])


class ProposesOnTheBoundary(Core):
    def _try_propose(self) -> None:
        last, self._last_height = self._last_height, 1_000
        super()._try_propose()
        self._last_height = last


class StaysInItsView(Core):
    def _enter(self, view: int) -> None:
        super()._enter(min(view, self._view + 1))


class NeverFinalizesThePast(Core):
    def _try_finalize(self, view: int) -> None:
        if view >= self._view - 1:
            super()._try_finalize(view)


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
