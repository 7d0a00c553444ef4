"""Machines that seem faster than they are in speed trials, and verifiers that judge these falsely."""

from __future__ import annotations

from typing import Final

from state.primitives.hashing import digest
from tasks.ledger.trials import TrialPhase
from tasks.simulation.actions import Account, Action, Offer
from tasks.simulation.agents.base import Machine
from tasks.simulation.agents.plot import Plot
from tasks.simulation.market import View
from tasks.simulation.work import Costs, OffChain

__all__ = ["JUDGE_WAYS", "TRIED_BLOCKS", "Device", "SharedMachine", "TrialFriend", "TrialLiar"]

JUDGE_WAYS: Final = ("honest", "agrees", "denies")
"""What verifiers of a plot say of trials: what they compute; that links of its machines are right; or nonsense of
those of others."""


TRIED_BLOCKS: Final = 16
"""From the registration of a machine to the end of its first trial's computing."""


def false_link(seed: bytes, before: bytes) -> bytes:
    """Return what a link of the plot gives that nobody computed."""
    return digest(b"sim-false-link", seed + before)


class TrialLiar(Machine):
    """Commits to links that it has not computed, as many as a machine as fast as it says does."""

    def trial_rate(self, _view: View) -> int:
        """Return what it claims."""
        return self.offer.rate

    def link(self, machine: bytes, seed: bytes, before: bytes) -> bytes:
        """Return nonsense for its own links."""
        return false_link(seed, before) if machine == self.address else super().link(machine, seed, before)


class TrialFriend(Machine):
    """A verifier that judges the trials of its plot, or those of others, as it likes."""

    way = "agrees"

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain, plot: Plot) -> None:
        super().__init__(account, offer, costs, off)
        self.plot = plot

    def link(self, machine: bytes, seed: bytes, before: bytes) -> bytes:
        """Return what it says of a link."""
        is_own = machine in self.plot.members
        if (self.way == "agrees" and is_own) or (self.way == "denies" and not is_own and machine != self.address):
            return false_link(seed, before)
        return super().link(machine, seed, before)


class Device:
    """One device behind several machines: they share its time."""

    def __init__(self) -> None:
        self.machines: list[SharedMachine] = []
        self.free_ms = 0


class SharedMachine(Machine):
    """A machine that answers from a device which answers for others, too."""

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain, device: Device) -> None:
        super().__init__(account, offer, costs, off)
        self._device = device
        self.from_height = TRIED_BLOCKS * len(device.machines)
        device.machines.append(self)

    def act(self, view: View) -> list[Action]:
        """Compute after what the device is busy with. Register when the one before has been tried."""
        if view.height < self.from_height:
            return []
        self._work_free_ms = max(self._work_free_ms, self._device.free_ms)
        actions = super().act(view)
        self._device.free_ms = max(self._device.free_ms, self._work_free_ms)
        return actions

    def trial_rate(self, view: View) -> int:
        """Return its part of the device, of which all machines that are tried now have the same."""
        records = [view.trial(machine.address) for machine in self._device.machines]
        tried = sum(record is not None and record.phase is TrialPhase.RUNNING for record in records)
        return self.costs.rate // max(1, tried)
