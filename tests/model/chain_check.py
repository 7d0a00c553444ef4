"""Every chain of views: what certificates a whole epoch can have, view after view.

Why views may be taken in turn. What an honest seat may vote in view v depends on certificates of views up to v
and on its own votes in v, and never on votes in later views; certificates only appear, they never go. So sort
any run by view, keeping the order inside each view: every vote of it is still allowed where it now stands, and
the run ends in the same votes. Hence no set of votes is missed when all of view 1 comes first, then all of view
2, and so on; and of a finished view nothing matters later but its certificates. ``interleaving_check`` takes no
such short cut and finds the same certificates in as many views as it can do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, permutations
from typing import NamedTuple

from tests.model.rules import MARKS_PER_VIEW, Broken, Candidate, Chain, Rules, ViewRecord
from tests.model.view_check import Outcome, ViewState, check_own_votes, outcomes, path, reachable


class Explored(NamedTuple):
    """What a check has been through."""

    chains: list[Chain]
    """The chains of the full length, where the last view may still run."""
    chains_seen: int
    states: int
    """Sets of votes, each of which stands for those that differ in names of equal candidates or in past votes."""
    final_heights: int
    """The greatest height that became final."""


def records(rules: Rules, chain: Chain) -> dict[ViewRecord, tuple[int, ViewState]]:
    """Every set of certificates that the next view can have, each with a number of candidates and votes for it."""
    view = len(chain) + 1
    candidates, count = rules.candidates(chain, len(rules.honest)), _count(rules, chain)
    found: dict[ViewRecord, tuple[int, ViewState]] = {}
    for made, state in outcomes(rules, count).items():
        for record in _named(made, candidates, count):
            if _is_least(record, view):
                found.setdefault(record, (count, state))
    return found


def _count(rules: Rules, chain: Chain) -> int:
    """How many candidates of the next view can matter: each honest seat backs at most one."""
    return min(len(rules.candidates(chain, len(rules.honest))), len(rules.honest))


def _named(made: Outcome, candidates: list[Candidate], count: int) -> Iterator[ViewRecord]:
    """Put candidates in the place of numbers, in every way."""
    used = [name for name in range(count) if (made.notarized | made.finalized) >> name & 1]
    for chosen in permutations(candidates, len(used)):
        yield ViewRecord(
            tuple(sorted(c for name, c in zip(used, chosen, strict=True) if made.notarized >> name & 1)),
            made.is_null,
            tuple(sorted(c for name, c in zip(used, chosen, strict=True) if made.finalized >> name & 1)),
        )


def _is_least(record: ViewRecord, view: int) -> bool:
    """Whether the new blocks of the view bear the least marks: blocks that differ in the mark alone are alike."""
    marks: dict[tuple[int, tuple[int, ...]], set[int]] = {}
    for parent_view, block in {*record.notarized, *record.finalized}:
        if block and block[-1] // MARKS_PER_VIEW == view:
            marks.setdefault((parent_view, block[:-1]), set()).add(block[-1] % MARKS_PER_VIEW)
    return all(used == set(range(len(used))) for used in marks.values())


def explore(rules: Rules, views: int, *, agreement_only: bool = False) -> Explored:
    """Go through every chain of up to ``views`` views, breadth first. Raises Broken with the way there.

    ``agreement_only`` looks away from every other invariant, to see whether its breach can fork the chain.
    """
    level: list[Chain] = [()]
    seen = states = height = 0
    for _ in range(views):
        following: list[Chain] = []
        for chain in level:
            if chain and not chain[-1].is_over:
                continue
            made = records(rules, chain)
            states += len(reachable(rules, _count(rules, chain)))
            for record in made:
                longer = (*chain, record)
                try:
                    if agreement_only:
                        rules.check_agreement(longer)
                    else:
                        rules.check(longer)
                except Broken as broken:
                    raise Broken(f"{broken}\n{describe(rules, longer)}") from None
                height = max([height, *(len(candidate.block) for candidate in record.finalized)])
                following.append(longer)
        seen += len(following)
        level = following
    if not agreement_only:
        for count in range(len(rules.honest) + 1):
            for state in reachable(rules, count):
                check_own_votes(state.seats)
    return Explored(level, seen, states, height)


def describe(rules: Rules, chain: Chain) -> str:
    """The way to a chain in words: votes of honest seats in order; the faulty weight votes for everything."""
    lines = [f"weights {rules.honest} honest, {rules.faulty} faulty, quorum {rules.quorum}"]
    for view, record in enumerate(chain, 1):
        count, state = records(rules, chain[: view - 1])[record]
        way = path(reachable(rules, count), state)
        lines.append(f"view {view}:")
        for before, after in pairwise(way):
            for seat, (old, new) in enumerate(zip(before.seats, after.seats, strict=True)):
                if new.notarized != old.notarized:
                    lines.append(
                        f"  seat {seat} NOTARIZE candidate {(new.notarized ^ old.notarized).bit_length()}"
                    )
                if new.nullified != old.nullified:
                    lines.append(f"  seat {seat} NULLIFY")
                if new.finalized != old.finalized:
                    lines.append(
                        f"  seat {seat} FINALIZE candidate {(new.finalized ^ old.finalized).bit_length()}"
                    )
        for word, certified in (("NOTARIZE", record.notarized), ("FINALIZE", record.finalized)):
            lines += [f"  {word} quorum: block {block} on view {parent}" for parent, block in certified]
        if record.is_null:
            lines.append("  NULLIFY quorum")
    return "\n".join(lines)
