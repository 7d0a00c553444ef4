"""Votes for views that no replica has reached are legal, and their senders delay no replica."""

from __future__ import annotations

import pytest

from consensus.simulation.cluster import Cluster, sim_parameters
from consensus.wire import Votes, encode_message
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import NULLIFY, Vote

FAULTY, AWAY = 0, 3
HONEST = (1, 2, AWAY)
AWAY_VIEWS = 90
"""More than a proposal carries nullifications of: the one that comes back has to ask for the older ones."""
FAR = 1_000_000
BLOCKS = 5
PATIENCE_MS = 20_000


class _Script:
    """Four seats: one is away while another nullifies with those that stay, then tells the returned one alone."""

    def __init__(self, seed: int) -> None:
        self.cluster = Cluster(seed, (1, 1, 1, 1), frozenset(HONEST), parameters=sim_parameters())
        self.cluster.network.latency_ms_min, self.cluster.network.latency_ms_max = 5, 20
        self.cluster.network.blocked = self._is_blocked
        self.cluster.nodes[FAULTY].votes = False
        self._is_away = True
        self._is_speaking = False
        self.cluster.start_all()
        epoch = self.cluster.nodes[1].machine.epoch_view(0)
        assert epoch is not None
        seat = epoch.committee.seat_of(self.cluster.nodes[FAULTY].address)
        assert seat is not None
        self._seat = seat

    def _is_blocked(self, sender: int, target: int) -> bool:
        if self._is_speaking:
            return False
        return sender == FAULTY or (self._is_away and AWAY in (sender, target))

    def _nullify(self, view: int, targets: tuple[int, ...]) -> None:
        vote = self.cluster.sign(FAULTY, 0, Vote(NULLIFY, 0, view, 0, ZERO_HASH, self._seat, bytes(64)))
        self._is_speaking = True
        for target in targets:
            self.cluster.send(FAULTY, target, encode_message(Votes((vote,))))
        self._is_speaking = False

    def leave_one_behind(self) -> None:
        """Let views pass, all of them nullified, until the one away lacks too many to be told with a proposal."""
        said: set[int] = set()
        while (reached := max(self.cluster.nodes[number].entered for number in (1, 2))) < AWAY_VIEWS:
            self.cluster.run(self.cluster.now_ms + 20)
            if reached and reached not in said:
                said.add(reached)
                self._nullify(reached, (1, 2))
        self._is_away = False

    def heights(self) -> list[int]:
        """Return what is final on the honest nodes."""
        return [self.cluster.oracle.height(number) for number in HONEST]

    def return_under(self, *, every_ms: int, stride: int) -> None:
        """Bring it back while the faulty seat votes for a view further ahead each ``every_ms``."""
        wanted, end_ms, far = max(self.heights()) + BLOCKS, self.cluster.now_ms + PATIENCE_MS, FAR
        while min(self.heights()) < wanted and self.cluster.now_ms < end_ms:
            self.cluster.run(self.cluster.now_ms + every_ms)
            far += stride
            self._nullify(far, (AWAY,))


@pytest.mark.parametrize(("every_ms", "stride"), [(7, 3), (60, 1)])
def test_a_seat_that_votes_ever_further_ahead_keeps_no_returned_one_from_what_it_lacks(
    every_ms: int, stride: int
) -> None:
    script = _Script(seed=1)
    script.leave_one_behind()
    before = max(script.heights())
    script.return_under(every_ms=every_ms, stride=stride)
    assert min(script.heights()) >= before + BLOCKS
