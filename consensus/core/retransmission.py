"""Repetition of votes and certificates while a view makes no progress (consensus.md R7)."""

from __future__ import annotations

from consensus.core.certificates import CertificateTable
from consensus.core.current_view import CurrentView
from consensus.core.fetching import SeatRotation
from consensus.core.limits import BACKOFF_EXPONENT_MAX, POWERS_OF_3
from consensus.core.outbox import Outbox
from consensus.core.own_votes import OwnVoteRecord
from consensus.core.proposing import Proposer
from consensus.core.setup import Setup
from consensus.events import RETRANSMIT, AskCertificates, Resend, SetTimer
from consensus.wire import VIEWS_MAX

__all__ = ["Retransmission"]


class Retransmission:
    """Repeats the own votes and the newest certificates, at growing intervals within a view."""

    def __init__(
        self,
        setup: Setup,
        *,
        view: CurrentView,
        certificates: CertificateTable,
        own: OwnVoteRecord,
        proposer: Proposer,
        rotation: SeatRotation,
        outbox: Outbox,
    ) -> None:
        self._seat = setup.seat
        self._parameters = setup.parameters
        self._view = view
        self._certificates = certificates
        self._own = own
        self._proposer = proposer
        self._rotation = rotation
        self._outbox = outbox
        self._count = 0

    def entered_view(self) -> None:
        """Start again with the shortest interval."""
        self._count = 0
        self._arm()

    def timer_fired(self) -> None:
        """Repeat, and set the timer again."""
        self.send()
        self._count += 1
        self._arm()

    def _arm(self) -> None:
        parameters = self._parameters
        exponent = min(self._count, BACKOFF_EXPONENT_MAX)
        delay_ms = min(parameters.retransmit_ms * POWERS_OF_3[exponent] >> exponent, parameters.retransmit_ms_max)
        # Jitter of a fifth either way, so that replicas do not all send at once. It comes from the seat, the view
        # and the count by way of primes, not from a random number: the core must do the same for the same events.
        mixed = ((self._seat or 0) * 7_919 + self._view.number * 104_729 + self._count * 1_299_709) % 401
        extra_ms = parameters.idle_ms if self._view.has_idle_time and self._count == 0 else 0
        self._outbox.emit(SetTimer(RETRANSMIT, delay_ms * (800 + mixed) // 1000 + extra_ms))

    def send(self) -> None:
        """Repeat now."""
        view = self._view.number
        if self._seat is None:  # an observer has no votes to repeat: it asks
            self._outbox.emit(AskCertificates(self._rotation.next(), view, view + VIEWS_MAX - 1))
            return
        self._outbox.emit(
            Resend(
                self._own.to_repeat(view),
                self._certificates.newest(view),
                view if self._proposer.has_proposed else None,
            )
        )
