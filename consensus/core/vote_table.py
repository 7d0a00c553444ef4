"""The votes of all seats for the views around the current one."""

from __future__ import annotations

from collections.abc import Mapping

from consensus.core.limits import EVIDENCE_VIEWS
from consensus.votes import VoteSet
from state.primitives.committee import Committee

__all__ = ["VoteTable"]


class VoteTable:
    """One set of votes for each view."""

    def __init__(self, committee: Committee) -> None:
        self._committee = committee
        self._sets: dict[int, VoteSet] = {}
        self.sets: Mapping[int, VoteSet] = self._sets
        """The votes by view; other parts only read it."""

    def of(self, view: int) -> VoteSet:
        """Return the votes of a view, to add one."""
        votes = self._sets.get(view)
        if votes is None:
            votes = self._sets[view] = VoteSet(self._committee)
        return votes

    def entered_view(self, view: int) -> None:
        """Drop the views that are too old for evidence."""
        for old in [known for known in self._sets if known < view - EVIDENCE_VIEWS]:
            del self._sets[old]

    def __len__(self) -> int:
        """Return how many views have votes."""
        return len(self._sets)
