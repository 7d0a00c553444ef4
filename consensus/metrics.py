"""Metrics and log lines of a replica, as docs/operations.md lists them.

``ReplicaMetrics`` reads no clock: each event is passed with its time.
"""

from __future__ import annotations

from typing import Final, Protocol

import structlog

from consensus import events as c
from consensus import replica as r
from consensus.core.limits import EVIDENCE_VIEWS
from consensus.votes import Certificate
from state.primitives.address import format_address
from state.primitives.votes import FINALIZE, KINDS, NULLIFY, Vote

__all__ = ["METRICS", "Metrics", "NoMetrics", "ReplicaMetrics"]

_log = structlog.get_logger("consensus")

TAIL_BLOCKS: Final = 16
"""The last blocks of an epoch. A leader that withholds one chooses among random values, so misses are counted."""

METRICS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "epoch": ("gauge", ()),
    "view": ("gauge", ()),
    "finalized_height": ("gauge", ()),
    "finalized_view_lag": ("gauge", ()),
    "backoff_exponent": ("gauge", ()),
    "notarization_latency_seconds": ("histogram", ()),
    "finalization_latency_seconds": ("histogram", ()),
    "proposal_build_seconds": ("histogram", ()),
    "block_execute_seconds": ("histogram", ()),
    "vote_guard_fsync_seconds": ("histogram", ()),
    "view_timeouts_total": ("counter", ("reason",)),
    "nullifications_total": ("counter", ("leader",)),
    "votes_total": ("counter", ("kind", "result")),
    "late_votes_total": ("counter", ("kind",)),
    "seat_last_vote_view": ("gauge", ("seat",)),
    "missing_weight_ratio": ("gauge", ()),
    "equivocations_total": ("counter", ("type",)),
    "evidence_pending": ("gauge", ()),
    "guard_refusals_total": ("counter", ("rule",)),
    "certificates_total": ("counter", ("kind", "source")),
    "retransmits_total": ("counter", ()),
    "blocksync_lag_blocks": ("gauge", ()),
    "statesync_chunks_total": ("counter", ("result",)),
    "epoch_tail_misses_total": ("counter", ("seat",)),
    "committee_lottery_weight_ratio": ("gauge", ()),
    "messages_dropped_total": ("counter", ("reason",)),
    "state_divergence": ("gauge", ()),
    "signer_connected": ("gauge", ()),
}
"""Every metric of docs/operations.md, without its prefix ``sdbft_``: its type and its labels. A ``leader`` or
``seat`` is identified by its address, because its number changes with the epoch. In ``votes_total`` the result
``stale`` arrived too late to be requested, and ``unanswered`` was not answered by a remote signer.
``guard_refusals_total`` counts only refusals of a guard. The node sets ``evidence_pending``, ``signer_connected``
and ``statesync_chunks_total``; consensus sets all others."""


class Metrics(Protocol):
    """Destination of the figures in METRICS."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""
        ...

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, name: str, value: float) -> None:
        """Add to a histogram, in seconds."""
        ...

    def clear(self, name: str) -> None:
        """Remove all values of a metric with labels."""
        ...


class NoMetrics:
    """Discards all figures."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Forget."""

    def set(self, name: str, value: float, **labels: str) -> None:
        """Forget."""

    def observe(self, name: str, value: float) -> None:
        """Forget."""

    def clear(self, name: str) -> None:
        """Forget."""


class ReplicaMetrics:
    """Reports to ``metrics`` and the log what ``replica`` does."""

    def __init__(self, replica: r.Replica, metrics: Metrics) -> None:
        self._replica = replica
        self._metrics = metrics
        self._entered_s: dict[int, float] = {}
        self._reasons: dict[int, str] = {}
        """Why this replica gave up a view."""

    def begin_epoch(self) -> None:
        """Reset the figures of views and seats: the replica is in another epoch."""
        epoch = self._replica.epoch
        self._entered_s.clear()
        self._reasons.clear()
        self._metrics.clear("seat_last_vote_view")
        self._metrics.set("epoch", epoch.number)
        self._metrics.set("committee_lottery_weight_ratio", epoch.lottery_weight / epoch.committee.weight)

    def note(self, action: r.Action, now_s: float) -> None:
        """Record an action."""
        metrics, core = self._metrics, self._replica.core
        match action:
            case c.EnterView(view, _, backoff_exponent):
                metrics.set("view", view)
                metrics.set("backoff_exponent", backoff_exponent)
                self.tell_standing(now_s)
                self._entered_s[view] = now_s
                for old in [known for known in self._entered_s if known < view - EVIDENCE_VIEWS]:
                    del self._entered_s[old]
                for old in [known for known in self._reasons if known < view - EVIDENCE_VIEWS]:
                    del self._reasons[old]
            case c.CastVote(kind, candidate, reason):
                metrics.count("votes_total", kind=KINDS[kind], result="cast")
                if kind == NULLIFY:
                    metrics.count("view_timeouts_total", reason=reason)
                    self._reasons[candidate.view] = reason
            case c.KeepCertificate(certificate, is_formed):
                self._note_certificate(certificate, "formed" if is_formed else "received", now_s)
            case c.FoundFork(certificate):
                _log.critical("the chain has forked", epoch=certificate.epoch, view=certificate.view)
            case c.EpochEnded():
                _log.info("epoch ended", epoch=core.epoch, height=core.root.height, view=core.root.view)
            case r.Refused(rule):
                metrics.count("guard_refusals_total", rule=rule)
            case c.Resend():
                metrics.count("retransmits_total")
            case _:
                pass

    def note_vote(self, vote: Vote) -> None:
        """Record a verified vote of this epoch."""
        self._metrics.count("votes_total", kind=KINDS[vote.kind], result="counted")
        if self._replica.core.is_late(vote):
            self._metrics.count("late_votes_total", kind=KINDS[vote.kind])
        self._metrics.set("seat_last_vote_view", vote.view, seat=self._address_of(vote.seat))

    def tell_lag(self, now_s: float) -> None:
        """Record how far this replica is behind what it has received."""
        progress = self._replica.progress(int(now_s * 1000))
        self._metrics.set("blocksync_lag_blocks", max(0, progress.claimed_height - progress.height))

    def tell_standing(self, now_s: float) -> None:
        """Record the state of the epoch, also between views: in an outage no view ends."""
        core = self._replica.core
        final = core.final_certificate
        missing = core.activity.missing_weight(int(now_s * 1000))
        self._metrics.set("finalized_view_lag", max(0, core.view - 1 - (final.view if final is not None else 0)))
        self._metrics.set("missing_weight_ratio", missing / core.committee.weight)

    def _note_certificate(self, certificate: Certificate, source: str, now_s: float) -> None:
        metrics = self._metrics
        metrics.count("certificates_total", kind=KINDS[certificate.kind], source=source)
        entered_s = self._entered_s.get(certificate.view)
        if certificate.kind == NULLIFY:
            self._note_nullified(certificate)
        elif entered_s is not None:
            name = "finalization" if certificate.kind == FINALIZE else "notarization"
            metrics.observe(f"{name}_latency_seconds", now_s - entered_s)
        self.tell_lag(now_s)

    def _note_nullified(self, certificate: Certificate) -> None:
        """Log one line that names the failed leader, and why this replica gave up its view."""
        core, view = self._replica.core, certificate.view
        leader = core.committee.leader(view)
        self._metrics.count("nullifications_total", leader=self._address_of(leader))
        if core.root.height >= self._replica.epoch.last_height - TAIL_BLOCKS:
            self._metrics.count("epoch_tail_misses_total", seat=self._address_of(leader))
        _log.warning(
            "view nullified",
            epoch=core.epoch,
            view=view,
            leader=leader,
            address=core.committee.seats[leader].address,
            reason=self._reasons.get(view, "others"),
        )

    def _address_of(self, seat: int) -> str:
        return format_address(self._replica.core.committee.seats[seat].address)
