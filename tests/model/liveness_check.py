"""No dead end: whatever has happened, the honest seats alone can go on and make a block final.

From the moment on in which everything arrives and the faulty weight is silent. Two halves:
- A view always ends. Votes of a view only become more, so any run of it stops; where it stops, honest seats alone
  have made a certificate. Seats that have a certificate of the view are past it, so states with a FINALIZE are not
  asked for.
- The next honest leader's view becomes final, from any chain of certificates that an epoch can reach, of which the
  honest seats know any part that holds at least one for each view (they could not have come further without).
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from tests.model.chain_check import explore
from tests.model.rules import Broken, Candidate, Chain, Rules, ViewRecord
from tests.model.view_check import SeatVotes, ViewState, outcome, reachable, steps


class Live(NamedTuple):
    """What a check has been through."""

    view_states: int
    known_chains: int


def check_views_end(rules: Rules) -> int:
    """Check that no view can stop without a certificate; return the number of states. Raises Broken."""
    states = 0
    modes: list[tuple[int | None, bool]] = [(None, False), (None, True)]
    modes += [(leader, True) for leader in range(len(rules.honest))]
    for leader, waiting in modes:
        counts = range(len(rules.honest) + 1) if leader is None else (1,)
        for count in counts:
            for state in reachable(rules, count, leader=leader, waiting=waiting):
                if any(votes.finalized for votes in state.seats):
                    continue
                states += 1
                further = [
                    new
                    for new in steps(rules, state, count, leader)
                    if not any(votes.finalized for votes in new.seats)
                ]
                made = outcome(rules, state.seats, count, alone=True)
                if not further and not made.is_null and not made.notarized:
                    raise Broken(f"a view cannot end: {state}")
    return states


def check_no_dead_end(rules: Rules, views: int) -> Live:
    """Check both halves for epochs of up to ``views`` views. Raises Broken."""
    states = check_views_end(rules)
    known: set[Chain] = {()}
    for length in range(1, views + 1):
        for chain in explore(rules, length).chains:
            if chain[-1].is_over:
                known.update(product(*(_parts(record) for record in chain)))
    for chain in known:
        _finish(rules, chain)
    return Live(states, len(known))


def _parts(record: ViewRecord) -> list[ViewRecord]:
    """What honest seats may know of the certificates of a view that they have left."""
    parts = [ViewRecord(record.notarized, False)] if record.notarized else []
    if record.is_null:
        parts += [ViewRecord(notarized, True) for notarized in {record.notarized, ()}]
    return parts


def _finish(rules: Rules, known: Chain) -> None:
    """Let an honest leader propose by R1 and all honest seats vote. Raises Broken."""
    parent = rules.parents(known)[0]
    blocks = rules.blocks(parent, len(known) + 1, 1)
    if not blocks:
        raise Broken(f"nothing may be proposed on {parent.block} after {known}")
    chosen = Candidate(parent.parent_view, blocks[0])
    state = ViewState((SeatVotes(),) * len(rules.honest))
    if chosen not in rules.candidates(known, 1):
        raise Broken(f"what an honest leader proposes is refused: {chosen} after {known}")
    seats = state.seats
    for _ in range(2):
        made = outcome(rules, seats, 1, alone=True)
        seats = tuple(
            SeatVotes(1, False, 1)
            if rules.may_finalize(votes.nullified, votes.finalized, bool(made.notarized))
            else SeatVotes(1)
            if rules.may_notarize(votes.notarized, votes.nullified, 0)
            else votes
            for votes in seats
        )
    if not outcome(rules, seats, 1, alone=True).finalized:
        raise Broken(f"an honest leader's view does not become final after {known}")
