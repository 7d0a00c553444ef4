"""Sponsors that bond for machines of their own plot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tasks.simulation.actions import Account, Action, Terms
from tasks.simulation.agents.base import Agent, Machine
from tasks.simulation.market import View

__all__ = ["Sponsor", "succeed"]


class Sponsor(Agent):
    """Bonds for machines that registered without a bond, as soon as they accept it; they are all its friends."""

    def __init__(self, account: Account, machines: Sequence[Machine], bond: int, terms: Terms) -> None:
        super().__init__(account)
        self.terms: Final = terms
        self._bond = bond
        self._machines = machines
        self._accepted: set[bytes] = set()
        self._bonded: set[bytes] = set()

    def act(self, view: View) -> list[Action]:
        """Have each machine accept the terms, then bond for it."""
        actions: list[Action] = []
        for machine in self._machines:
            address = machine.address
            if view.node(address) is None or address in self._bonded:
                continue
            if address in self._accepted:
                self._bonded.add(address)
                actions.append(view.sponsor(self.address, address, self.terms, self._bond))
            else:
                self._accepted.add(address)
                actions.append(view.accept_sponsor(address, self.address, self.terms))
        return actions


def succeed(machines: Sequence[Machine]) -> None:
    """Let each machine register when the one before it has work: its key is ready when that one has failed."""
    for before, after in pairwise(machines):
        after.predecessor = before.address
