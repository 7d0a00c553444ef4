"""What an operator sees of a replica, told event by event: no clock and no event loop are needed."""

from __future__ import annotations

from collections import Counter

import pytest
import structlog

from consensus import events as c
from consensus.core.limits import EVIDENCE_VIEWS
from consensus.metrics import METRICS, ReplicaMetrics
from consensus.votes import Certificate
from state.primitives.address import format_address
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate
from tests.consensus.test_replica import FOUR, replica_of


class Kept:
    """Figures as they were told."""

    def __init__(self) -> None:
        self.counted = Counter[tuple[str, ...]]()
        self.gauges: dict[str, float] = {}
        self.observed: dict[str, list[float]] = {}

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        self._check(name, "counter", labels)
        self.counted[(name, *labels.values())] += amount

    def set(self, name: str, value: float, **labels: str) -> None:
        self._check(name, "gauge", labels)
        self.gauges[name] = value

    def observe(self, name: str, value: float) -> None:
        self._check(name, "histogram", {})
        self.observed.setdefault(name, []).append(value)

    def clear(self, name: str) -> None:
        assert METRICS[name][1], "only what has labels is forgotten"

    @staticmethod
    def _check(name: str, kind: str, labels: dict[str, str]) -> None:
        assert METRICS[name] == (kind, tuple(labels))


def certificate(kind: int, view: int) -> c.KeepCertificate:
    return c.KeepCertificate(Certificate(kind, 0, view, 1, b"h" * 32, b"\x07", bytes(192)), is_formed=False)


def test_latencies_count_from_the_entry_of_the_view_and_only_where_it_was_entered() -> None:
    kept = Kept()
    watch = ReplicaMetrics(replica_of(), kept)
    watch.begin_epoch()
    watch.note(c.EnterView(1, 0, 2), 10.0)
    watch.note(certificate(NOTARIZE, 1), 10.25)
    watch.note(certificate(FINALIZE, 1), 11.0)
    watch.note(certificate(NOTARIZE, 2), 12.0)
    assert kept.observed == {"notarization_latency_seconds": [0.25], "finalization_latency_seconds": [1.0]}
    assert kept.gauges["view"] == 1 and kept.gauges["backoff_exponent"] == 2
    watch.note(c.EnterView(2 + EVIDENCE_VIEWS, 0, 0), 20.0)
    watch.note(certificate(FINALIZE, 1), 21.0)
    assert len(kept.observed["finalization_latency_seconds"]) == 1, "what is long past is forgotten"


@pytest.mark.parametrize(("reason", "told"), [("leader", "leader"), (None, "others")])
def test_a_nullified_view_names_its_leader_and_why_it_was_given_up(reason: str | None, told: str) -> None:
    kept = Kept()
    watch = ReplicaMetrics(replica_of(), kept)
    if reason is not None:
        watch.note(c.CastVote(NULLIFY, Candidate(0, 3, 0, bytes(32)), reason), 1.0)
    with structlog.testing.capture_logs() as lines:
        watch.note(certificate(NULLIFY, 3), 2.0)
    leader = FOUR.leader(3)
    assert [(line["event"], line["leader"], line["reason"]) for line in lines] == [
        ("view nullified", leader, told)
    ]
    assert kept.counted["nullifications_total", format_address(FOUR.seats[leader].address)] == 1
    assert kept.counted["view_timeouts_total", "leader"] == int(reason is not None)
