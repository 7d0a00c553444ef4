"""The current view and its time-outs, which grow while no view becomes final (consensus.md R2, consensus.md 6)."""

from __future__ import annotations

from consensus.core.certificates import CertificateTable
from consensus.core.limits import BACKOFF_EXPONENT_MAX, POWERS_OF_3
from consensus.core.outbox import Outbox
from consensus.core.setup import Setup
from consensus.events import ADVANCE, LEADER, EnterView, SetTimer

__all__ = ["CurrentView"]


class CurrentView:
    """The number of the view this replica is in, and the timers LEADER and ADVANCE.

    Other parts read the public attributes; only this part and the core change them.
    """

    def __init__(self, setup: Setup, certificates: CertificateTable, outbox: Outbox, *, root_view: int) -> None:
        self._parameters = setup.parameters
        self._committee = setup.committee
        self._certificates = certificates
        self._outbox = outbox
        self.number = root_view
        self.has_idle_time = False
        """Whether the time-outs of this view include the wait of a leader that has no transactions."""
        self.leader_timed_out = 0
        """The last view whose LEADER timer fired."""

    def enter(self, view: int) -> int:
        """Begin a view; return its leader."""
        self.number = view
        leader = self._committee.leader(view)
        self._outbox.emit(EnterView(view, leader, self._backoff_exponent()))
        return leader

    def arm(self, idle_ms: int = 0) -> None:
        """Set both time-outs from now; ``idle_ms`` is what the leader may wait for a transaction."""
        parameters = self._parameters
        self.leader_timed_out = 0
        interval_ms = parameters.block_interval_ms + idle_ms
        for name, base_ms in ((LEADER, parameters.leader_ms), (ADVANCE, parameters.advance_ms)):
            self._outbox.emit(SetTimer(name, self._backed_off(base_ms) + interval_ms))

    def _backoff_exponent(self) -> int:
        return max(0, self.number - self._certificates.final_view - 2)

    def _backed_off(self, base_ms: int) -> int:
        """Return a time-out times 1.5 to the power of the views without finality, in integers and bounded."""
        exponent = min(self._backoff_exponent(), BACKOFF_EXPONENT_MAX)
        parameters = self._parameters
        grown = min(base_ms * POWERS_OF_3[exponent] >> exponent, base_ms * parameters.backoff_factor_max)
        return min(grown, parameters.timeout_ms_max)
