"""The rules of consensus.md 4 and 12.2 without times, networks and bytes: what an honest seat may vote, and why.

Restated from the text and sharing nothing with ``consensus.core``. A state is the set of votes of honest seats;
the faulty weight has, from the beginning, cast every vote that anybody could name, so that it never has to be
scheduled: a certificate exists as soon as the honest votes for it reach the quorum together with the faulty
weight.

A block is the tuple of the marks on the way to it from the epoch's root (``()``), so an ancestor is a prefix
and a height is a length. The mark of a block tells the view it was built in and which of the leader's blocks it
is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

Block: TypeAlias = tuple[int, ...]
ROOT: Final[Block] = ()
MARKS_PER_VIEW: Final = 8


class Candidate(NamedTuple):
    """What a NOTARIZE or FINALIZE of one view is for."""

    parent_view: int
    block: Block


class ViewRecord(NamedTuple):
    """Which certificates exist (or are known) in one view."""

    notarized: tuple[Candidate, ...] = ()
    is_null: bool = False
    finalized: tuple[Candidate, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether a certificate lets replicas leave the view (R2)."""
        return bool(self.notarized or self.is_null or self.finalized)


Chain: TypeAlias = tuple[ViewRecord, ...]
"""The records of views 1, 2, ... in order."""


class Change(Enum):
    """A fault put into the rules, which the check has to find."""

    QUORUM_SHORT = auto()
    NOTARIZE_TWICE = auto()
    NOTARIZE_AFTER_NULLIFY = auto()
    FINALIZE_AFTER_NULLIFY = auto()
    NULLIFY_AFTER_FINALIZE = auto()
    FINALIZE_WITHOUT_NOTARIZATION = auto()
    SKIP_WITHOUT_NULLIFICATION = auto()
    PARENT_WITHOUT_NOTARIZATION = auto()
    CHILD_OF_BOUNDARY = auto()
    SIBLING_OF_BOUNDARY = auto()
    NO_REPROPOSAL = auto()
    NO_NULLIFY_AFTER_NOTARIZE = auto()
    IDLE_FOR_EVER = auto()


class Broken(Exception):
    """An invariant does not hold; the text names it and shows the way there."""


@dataclass(frozen=True)
class Rules:
    """A committee and its rules. ``honest`` are the weights of seats, ``faulty`` is the weight of the rest."""

    honest: tuple[int, ...] = (1, 1, 1)
    faulty: int = 1
    last_height: int = 2
    changes: frozenset[Change] = frozenset()

    def with_changes(self, *changes: Change) -> Rules:
        """The same committee under other rules."""
        return replace(self, changes=frozenset(changes))

    @cached_property
    def quorum(self) -> int:
        """Smallest weight above two thirds."""
        weight = sum(self.honest) + self.faulty
        quorum = next(w for w in range(weight + 1) if 3 * w > 2 * weight)
        return quorum - (Change.QUORUM_SHORT in self.changes)

    @cached_property
    def certifies(self) -> tuple[bool, ...]:
        """For each set of honest seats (a bit mask): whether it is a quorum with the help of the faulty weight."""
        return tuple(self._weight(seats) + self.faulty >= self.quorum for seats in range(1 << len(self.honest)))

    @cached_property
    def certifies_alone(self) -> tuple[bool, ...]:
        """The same without that help."""
        return tuple(self._weight(seats) >= self.quorum for seats in range(1 << len(self.honest)))

    def _weight(self, seats: int) -> int:
        return sum(weight for seat, weight in enumerate(self.honest) if seats >> seat & 1)

    # R3: what may be notarized, by the certificates of the views before.

    def parents(self, chain: Chain) -> list[Candidate]:
        """What a block of the next view may stand on, newest first, as view and block."""
        found = []
        for view in range(len(chain), 0, -1):
            record = chain[view - 1]
            certified = record.notarized
            if Change.PARENT_WITHOUT_NOTARIZATION in self.changes and not certified:
                certified = (Candidate(0, (view * MARKS_PER_VIEW,)),)
            found += [Candidate(view, candidate.block) for candidate in certified]
            if not record.is_null and Change.SKIP_WITHOUT_NULLIFICATION not in self.changes:
                return found
        return [*found, Candidate(0, ROOT)]

    def blocks(self, parent: Candidate, view: int, variants: int) -> list[Block]:
        """The valid blocks of ``view`` on ``parent``: at the boundary the parent itself, nothing else.

        See consensus.md R16.
        """
        fresh = [(*parent.block, view * MARKS_PER_VIEW + variant) for variant in range(variants)]
        if len(parent.block) < self.last_height:
            return fresh
        again = [] if Change.NO_REPROPOSAL in self.changes else [parent.block]
        if Change.CHILD_OF_BOUNDARY in self.changes:
            again += fresh
        if Change.SIBLING_OF_BOUNDARY in self.changes:
            again += [(*parent.block[:-1], block[-1]) for block in fresh]
        return again

    def candidates(self, chain: Chain, variants: int) -> list[Candidate]:
        """Everything a leader, honest or not, can get notarized in the next view."""
        view = len(chain) + 1
        return [
            Candidate(parent.parent_view, block)
            for parent in self.parents(chain)
            for block in self.blocks(parent, view, variants)
        ]

    # What the own votes of a view exclude (R3, R4, R5, the table of the guard). Masks of candidates.

    def may_notarize(self, notarized: int, nullified: bool, candidate: int) -> bool:
        """One NOTARIZE a view, none after NULLIFY."""
        if notarized and (Change.NOTARIZE_TWICE not in self.changes or notarized >> candidate & 1):
            return False
        return not nullified or Change.NOTARIZE_AFTER_NULLIFY in self.changes

    def may_nullify(self, notarized: int, nullified: bool, finalized: int) -> bool:
        """One NULLIFY a view, none after FINALIZE; an own NOTARIZE does not stand in the way."""
        if notarized and Change.NO_NULLIFY_AFTER_NOTARIZE in self.changes:
            return False
        return not nullified and (not finalized or Change.NULLIFY_AFTER_FINALIZE in self.changes)

    def may_finalize(self, nullified: bool, finalized: int, is_notarized: bool) -> bool:
        """One FINALIZE a view, only of what a quorum notarized, none after NULLIFY; no own NOTARIZE needed."""
        if not is_notarized and Change.FINALIZE_WITHOUT_NOTARIZATION not in self.changes:
            return False
        return not finalized and (not nullified or Change.FINALIZE_AFTER_NULLIFY in self.changes)

    # What must never exist.

    def check(self, chain: Chain) -> None:
        """Check the invariants that the newest view of ``chain`` can break. Raises Broken."""
        view, record = len(chain), chain[-1]
        if len(record.notarized) > 1:
            raise Broken(f"view {view} has two NOTARIZE quorums")
        if record.finalized and record.is_null:
            raise Broken(f"view {view} has FINALIZE and NULLIFY quorums")
        for candidate in record.finalized:
            if candidate not in record.notarized:
                raise Broken(f"view {view} is final and not notarized")
        for parent_view, block in record.notarized:
            below = [candidate.block for candidate in chain[parent_view - 1].notarized] if parent_view else [ROOT]
            if block not in below and block[:-1] not in below:
                raise Broken(f"view {view} is notarized on a block that view {parent_view} has not notarized")
            if any(not skipped.is_null for skipped in chain[parent_view : view - 1]):
                raise Broken(f"view {view} skips a view that is not nullified")
            if len(block) > self.last_height:
                raise Broken(f"view {view} has a block of the old committee above the boundary")
        self.check_agreement(chain)

    def check_agreement(self, chain: Chain) -> None:
        """Check that of two final blocks one is above the other, and none above the boundary. Raises Broken."""
        finals = {candidate.block for record in chain for candidate in record.finalized}
        for one, other in combinations(finals, 2):
            if one[: len(other)] != other and other[: len(one)] != one:
                raise Broken("two final blocks, and neither stands on the other")
        if any(len(block) > self.last_height for block in finals):
            raise Broken("a final block of the old committee above the boundary")


def committees(weight_max: int, seats: int = 3) -> list[Rules]:
    """One committee for each way in which weights up to ``weight_max`` in all can make quorums.

    Two committees whose quorums consist of the same seats behave alike, with weights of anchors and lottery seats
    or with equal ones, so one of each kind stands for all. Faulty is less than a third.
    """
    found: dict[tuple[tuple[bool, ...], tuple[bool, ...]], Rules] = {}

    def split(rest: int, least: int, parts: int) -> list[tuple[int, ...]]:
        if parts == 0:
            return [()]
        return [
            (first, *others)
            for first in range(least, rest - parts + 2)
            for others in split(rest - first, first, parts - 1)
        ]

    for faulty in range(1, weight_max):
        for honest in split(weight_max - faulty, 1, seats):
            if 3 * faulty < sum(honest) + faulty:
                rules = Rules(honest=honest, faulty=faulty)
                found.setdefault((rules.certifies, rules.certifies_alone), rules)
    return list(found.values())
