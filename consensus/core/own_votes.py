"""The own seat's votes: the requested ones, which bind later votes, and the signed ones, which are repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from consensus.core.limits import EVIDENCE_VIEWS, RESENT_VIEWS
from consensus.events import OwnVotes
from consensus.min_key_dict import MinKeyDict
from consensus.wire import VIEWS_MAX
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote

__all__ = ["OwnVoteRecord"]

_NOTHING_CAST: Final[Mapping[int, Candidate]] = {}


class OwnVoteRecord:
    """This seat's votes in this epoch.

    A vote binds from the moment that the core requests it (``cast``), not from its signature: in between the core
    must not request a contradicting vote.
    """

    def __init__(self) -> None:
        self._cast: MinKeyDict[int, dict[int, Candidate]] = MinKeyDict()
        self._signed: MinKeyDict[int, OwnVotes] = MinKeyDict()

    def cast(self, view: int) -> Mapping[int, Candidate]:
        """Return this seat's votes in a view, by kind."""
        return self._cast.get(view, _NOTHING_CAST)

    def bind(self, kind: int, candidate: Candidate) -> None:
        """Note that the core requests a vote, or that the guard has one."""
        self._cast.setdefault(candidate.view, {})[kind] = candidate

    def keep(self, vote: Vote) -> None:
        """Keep a signed own vote, to repeat it."""
        own = self._signed.get(vote.view, OwnVotes())
        if vote.kind == NOTARIZE:
            own = own._replace(notarize=vote)
        elif vote.kind == NULLIFY:
            own = own._replace(nullify=vote)
        else:
            assert vote.kind == FINALIZE, vote
            own = own._replace(finalize=vote)
        self._signed[vote.view] = own

    def promises(self, view: int, block_hash: bytes) -> bool:
        """Tell whether this seat voted NOTARIZE for the block, which promises that others can fetch it here."""
        candidate = self._cast.get(view, _NOTHING_CAST).get(NOTARIZE)
        return candidate is not None and candidate.block_hash == block_hash

    def all(self) -> tuple[Vote, ...]:
        """Return the signed own votes above the root, in the order of views."""
        return tuple(_given(own for _, own in sorted(self._signed.items())))

    def to_repeat(self, view: int) -> tuple[Vote, ...]:
        """Return the signed votes to repeat in ``view``, newest views first; of old views only FINALIZE."""
        recent = sorted(self._signed, reverse=True)[:VIEWS_MAX]
        oldest = view - RESENT_VIEWS
        return tuple(_given(self._signed[at] if at >= oldest else self._signed[at][2:] for at in recent))

    def retire(self, root_view: int) -> None:
        """Drop what the commit of ``root_view`` has settled; cast votes are kept for the evidence age."""
        self._signed.take(root_view)
        self._cast.take(root_view - EVIDENCE_VIEWS - 1)

    def __len__(self) -> int:
        """Return how many views have a vote."""
        return len(self._cast)


def _given(views: Iterable[tuple[Vote | None, ...]]) -> list[Vote]:
    return [vote for own in views for vote in own if vote is not None]
