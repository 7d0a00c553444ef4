"""Verifiers that do not run what they are drawn for, or that do not say what they found."""

from __future__ import annotations

from typing import Final

from billing.prices import BPS, share
from state.primitives.hashing import digest
from tasks.dispute.game import Side
from tasks.dispute.shares import ONE_VERIFIER_BPS
from tasks.ledger.queries import CheckDuty, DisputeDuty
from tasks.proofs import Code, Finding
from tasks.simulation.actions import Account, Action, Offer
from tasks.simulation.agents.base import Machine, computed, unavailable
from tasks.simulation.agents.players import false_play
from tasks.simulation.agents.plot import Plot
from tasks.simulation.dice import Dice
from tasks.simulation.market import View
from tasks.simulation.work import CHECK, JURY, Costs, OffChain

__all__ = ["LAZY_WAYS", "BribableVerifier", "FreezingVerifier", "Friend", "LazyVerifier"]

LAZY_WAYS: Final = ("silent", "guess", "unavailable", "juror copies", "juror silent")


class LazyVerifier(Machine):
    """Spares itself the work in one of several ways, in a share of its checks."""

    way = "guess"
    rate = 1.0

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain, dice: Dice) -> None:
        super().__init__(account, offer, costs, off)
        self._dice = dice

    def find(self, view: View, duty: CheckDuty) -> tuple[Finding, ...] | None:
        """Return a finding that cost nothing."""
        if duty.is_delivery or not self._dice.chance(self.rate):
            return super().find(view, duty)
        leaves = self.off.leaves(duty.task, duty.window, self.address, JURY if duty.is_jury else CHECK)
        if self.way.startswith("juror"):
            opened = view.window(duty.task, duty.window).opened
            if not duty.is_jury or duty.segments[0] not in (shown.segment for shown in opened):
                return super().find(view, duty)
            if self.way == "juror silent":
                return None
            # The worker's opening stands on chain before the jury is drawn.
            (result,) = [shown for shown in opened if shown.segment == duty.segments[0]]
            return (
                Finding(
                    result.segment, Code.COMPUTED, result.work_digest, result.state_root_after, result.loss_bits
                ),
            )
        if self.way == "unavailable":
            return unavailable(duty.segments)
        if self.way == "silent" or leaves is None:
            return None
        # States are public, work digests are sealed: it can only guess these.
        guess = digest(b"sim-guess", self.address)
        return tuple(Finding(at, Code.COMPUTED, guess, leaves[at].state_root_after, 0) for at in duty.segments)


class Friend(Machine):
    """A verifier that agrees with its friends' windows without running them, and is honest with all others."""

    lies_about_others = False
    """Whether it calls the windows of all others unavailable."""

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain, plot: Plot) -> None:
        super().__init__(account, offer, costs, off)
        self.plot = plot

    def find(self, view: View, duty: CheckDuty) -> tuple[Finding, ...] | None:
        """Agree with friends; accuse whom the plot accuses."""
        made = self.plot.made_of(view.window(duty.task, duty.window))
        if duty.task in self.plot.accused and (duty.is_delivery or self.lies_about_others):
            return unavailable(duty.segments)
        if duty.is_delivery or made is None:
            return super().find(view, duty)
        return computed(made, duty.segments)


class BribableVerifier(Machine):
    """Agrees with a forgery of the plot for a bribe above what the truth would earn it, as far as it asks that.

    The truth earns a drawn verifier or juror a share of the liar's bond, and who runs segments again after a
    silence nothing but its fee. To agree it risks its fee and its fine.
    """

    ask = 1.0
    """The part of its share in the liar's bond that it asks for a verdict."""

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain, plot: Plot) -> None:
        super().__init__(account, offer, costs, off)
        self.plot = plot

    def find(self, view: View, duty: CheckDuty) -> tuple[Finding, ...] | None:
        """Take a bribe that is high enough. The plot pays what is asked, if it is for a forged segment."""
        window = view.window(duty.task, duty.window)
        made = self.plot.made_of(window)
        if made is None or duty.is_delivery or made.forged.isdisjoint(duty.segments):
            return super().find(view, duty)
        bond = view.worker_bond(duty.task, window.worker)
        asks = 2 * window.fee + 1
        if not window.rerun:
            asks += int(self.ask * share(bond, ONE_VERIFIER_BPS))
        if asks > bond * self.plot.bribe_bps // BPS:
            return super().find(view, duty)
        self.plot.bribes_paid += asks
        return computed(made, duty.segments)


class FreezingVerifier(Machine):
    """Reports an own forgery of a segment, and delays the game that it opens by that."""

    rate = 1.0
    """Share of the windows that it does this to."""
    way = "silent"
    for_own = False
    """Whether it does this to windows of its plot, and not to those of others."""

    def __init__(
        self, account: Account, offer: Offer, costs: Costs, off: OffChain, plot: Plot, dice: Dice
    ) -> None:
        super().__init__(account, offer, costs, off)
        self.plot = plot
        self._dice = dice
        self._frozen: set[tuple[bytes, int]] = set()

    def find(self, view: View, duty: CheckDuty) -> tuple[Finding, ...] | None:
        """Report a forgery of the lowest segment."""
        leaves = self.off.leaves(duty.task, duty.window, self.address, CHECK)
        is_own = view.window(duty.task, duty.window).worker in self.plot.members
        if duty.is_delivery or is_own is not self.for_own or leaves is None or not self._dice.chance(self.rate):
            return super().find(view, duty)
        self._frozen.add((duty.task, duty.window))
        job, findings = view.job(duty.task), []
        for at in duty.segments:
            leaf = leaves[at]
            end = self.off.run(job, duty.task, leaf.state_root_before, leaf.step_from, self.address).end
            findings.append(Finding(at, Code.COMPUTED, end.work_digest, end.state_root, end.loss_total))
        return tuple(findings)

    def play(self, view: View, duty: DisputeDuty) -> list[Action]:
        """Play its false game in its way."""
        if (duty.task, duty.window) not in self._frozen or duty.side is Side.ACCUSED:
            return super().play(view, duty)
        return false_play(view, self.off, self.address, duty, self.way, self.address, self.wait)
