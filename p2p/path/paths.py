"""Measurements of the paths to a peer, and the choice of the control connection's path; without I/O. See
network.md 4.6.

A *path* is an ``Endpoint``: direct, through the peer's relay, or through an own relay to the peer's. If this node
knows no path, it uses one that the peer offers, by its number (``p2p.session.path_offers``). Control and bulk
choose separately: control uses the shortest round trip, bulk the highest rate (``p2p.path.bulk_plan``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from p2p.base.endpoint import Endpoint
from p2p.session.path_offers import OfferedPath

__all__ = ["Path", "PathParameters", "PathTable", "PathTables", "hops_of", "shares_hop"]

Path = Endpoint | OfferedPath

_EWMA: Final = 0.25
"""Weight of a new sample of a round trip, ..."""
_EWMA_DOWN: Final = 0.75
"""... and of a shorter one, which shows that a delay by load has ended."""


@dataclass(frozen=True, slots=True)
class PathParameters:
    """When to change a path; times in seconds, thresholds in percent."""

    paths_max: int = 12
    """Paths kept for one peer; those offered first stay."""
    switch_gain_percent: int = 25
    """How much better another control path must be, ..."""
    switch_samples: int = 3
    """... and in how many consecutive samples, before control moves."""
    loss_weight: int = 20
    """Control counts a path's round trip as longer if it loses packets: its loss ratio times this factor is added.
    ..."""
    loss_prior: int = 100
    """... Number of segments after which half of a measured loss ratio counts, ..."""
    loss_half_life_s: float = 300.0
    """... half-life of loss counts, ..."""
    loss_factor_max: float = 2.0
    """... and maximum factor. A path that fell silent counts with it for ``silence_s_max``."""
    rtt_age_s: float = 90.0
    """Older round trips are dropped."""
    rate_age_s: float = 600.0
    """How long a path's best rate counts."""
    backoff_s_min: float = 0.5
    backoff_s_max: float = 60.0
    suspect_s: float = 3.0
    """How long a path with a suspected connection is avoided: longer than the suspicion takes to confirm."""
    silence_s_min: float = 30.0
    """How long a path that accepted data and delivered nothing is avoided, doubled each time, ..."""
    silence_s_max: float = 600.0
    """... up to this. After this time without a failure the doubling starts again."""
    probe_interval_s: float = 20.0
    """Interval of handshakes that only measure another path's round trip for control, ..."""
    probe_rtt_s_min: float = 0.02
    """... unless the control path's round trip is at most this, ..."""
    probe_age_s: float = 60.0
    """... and only for paths whose measurement is older than this."""
    handshake_age_s: float = 15.0
    """A handshake's round trip is ignored if traffic on the path was measured within this time."""
    race_paths_max: int = 3
    """Paths tried in parallel without any measurements."""
    race_bytes_min: int = 1024 * 1024
    """Less waiting bulk than this uses the best known path: a race would cost more than it gains, ..."""
    race_patience_s: float = 1.0
    """... unless bulk has waited this long: then there is more to come, or the path is bad."""
    open_patience_s: float = 4.0
    """How long a plan is not measured because its bulk connections are not open yet."""
    settle_s: float = 0.5
    """Pause after a change of plan before it is measured: flows start slowly and others adapt slowly."""
    window_s: float = 1.0
    """Minimum measuring time of a plan; four round trips are added, ..."""
    window_s_max: float = 2.0
    """... up to this: round trips of an overfilled path say nothing about the others."""
    window_grains: int = 12
    """On a slow line a window lasts this many messages, ..."""
    slow_window_s_max: float = 10.0
    """... but at most this many."""
    loser_windows: int = 2
    """A path with less than ``drop_loss_percent`` of the total in this many windows is dropped without a trial."""
    add_gain_percent: int = 15
    """Required growth of the total to keep more bulk connections or one more path."""
    drop_loss_percent: int = 5
    """Allowed loss of the total to keep a reduction."""
    unclear_percent: int = 10
    """A trial whose result is this near to its threshold is measured for another window, ..."""
    trial_windows_max: int = 3
    """... up to this many windows."""
    hopeless_percent: int = 85
    """A trial that reaches less than this share of its threshold ..."""
    hopeless_s: float = 0.3
    """... is cancelled this long after it settled: it wastes capacity."""
    squeeze_percent: tuple[int, ...] = (70, 40, 15)
    """A path to be dropped is first throttled step by step to this share of its rate. A paced flow beside it needs
    two dozen round trips to double, and half of the line would be idle meanwhile."""
    hold_s: float = 20.0
    """Interval of rounds of trials after one without an improvement."""
    hold_s_max: float = 160.0
    connections_max: int = 16
    paced_patience_s: float = 30.0
    """With kernel pacing (BBR) one bulk connection fills a line, and a second one fills only its queue, which
    delays votes. More bulk connections are tried only after this time, for the rare stuck flow, ..."""
    stuck_percent: int = 80
    """... and again within ``rate_age_s`` only if a path carries less than this share of its best rate."""
    steady_windows_max: int = 5
    """Windows to wait for a stable total: the start-up growth of flows is not an effect of the change."""

    def __post_init__(self) -> None:
        assert 0 < self.drop_loss_percent < self.add_gain_percent < 100
        assert 1 <= self.race_paths_max <= self.connections_max


@dataclass(slots=True)
class _Known:
    """Measurements of one path."""

    rank: int
    guess_s: float | None = None
    rtt_s: float | None = None
    rtt_at: float = 0.0
    rate: float | None = None
    """Bytes per second that it carried alone, if ever measured."""
    rate_at: float = 0.0
    best_rate: float = 0.0
    best_at: float = -inf
    doubled_at: float = -inf
    """When more bulk connections were last tried on it."""
    lost: float = 0.0
    """Retransmitted segments of control connections, ..."""
    sent: float = 0.0
    """... and sent segments; both decay."""
    sent_at: float = 0.0
    failures: int = 0
    next_at: float = 0.0
    has_worked: bool = False
    silences: int = 0
    silent_at: float = -inf
    silent_until: float = -inf
    probed_at: float = -inf

    @property
    def ready_at(self) -> float:
        """End of its pause."""
        return max(self.next_at, self.silent_until)


def hops_of(path: Path) -> int:
    """Return the number of relays on a path. Relays are paid, so of two equal paths the one with fewer is used."""
    return len(path.hops)


def shares_hop(one: Path, other: Path) -> bool:
    """Whether two paths use the same relay, or are both direct to one host."""
    if one == other:
        return True
    if isinstance(one, OfferedPath) or isinstance(other, OfferedPath):
        return False  # nothing is known of where they lead
    if not one.hops and not other.hops:
        return one.is_punched or other.is_punched or one.host == other.host
    return not {hop.relay for hop in one.hops}.isdisjoint(hop.relay for hop in other.hops)


@dataclass(slots=True)
class _Better:
    """A path that seems better for control."""

    path: Path
    since: float
    samples: int = 0
    asked_at: float = -inf
    """When its round trip was last measured again, or that was attempted."""


class PathTable:
    """The paths to one peer, and the measurements of each."""

    def __init__(self, parameters: PathParameters | None = None) -> None:
        self.parameters = parameters or PathParameters()
        self._known: dict[Path, _Known] = {}
        self._better: _Better | None = None
        """The path that is better than the current one, and in how many consecutive samples."""

    def offer(self, paths: Iterable[Path]) -> None:
        """Set the available paths, the most likely first; measurements of paths that stay are kept."""
        offered = list(dict.fromkeys(paths))[: self.parameters.paths_max]
        self._known = {path: self._known.get(path) or _Known(rank) for rank, path in enumerate(offered)}
        for rank, path in enumerate(offered):
            self._known[path].rank = rank

    @property
    def paths(self) -> tuple[Path, ...]:
        """The available paths in the order of the offer."""
        return tuple(self._known)

    def guessed_rtt(self, path: Path, rtt_s: float | None) -> None:
        """Note a round trip that others report. It only orders paths of equal length until one is measured."""
        known = self._known.get(path)
        if known is not None:
            known.guess_s = rtt_s

    # -- what is learnt --------------------------------------------------------------------------------------

    def measured_rtt(self, path: Path, rtt_s: float, now: float) -> None:
        """Note a round trip measured on the path. A shorter one counts quickly, a longer one gradually."""
        known = self._known.get(path)
        if known is None or rtt_s < 0:
            return
        if known.rtt_s is None or self._is_asked(path):  # what it was before is what is suspected
            known.rtt_s = rtt_s
        else:
            known.rtt_s += (_EWMA if rtt_s > known.rtt_s else _EWMA_DOWN) * (rtt_s - known.rtt_s)
        known.rtt_at = now

    def shook_hands(self, path: Path, took_s: float, now: float) -> None:
        """Note the time of a handshake on a path.

        It includes processing, so it counts only without a recent round trip.
        """
        known = self._known.get(path)
        is_old = known is not None and now - known.rtt_at > self.parameters.handshake_age_s
        if self.rtt_s(path, now) is None or is_old or self._is_asked(path):
            self.measured_rtt(path, took_s, now)

    def measured_loss(self, path: Path, lost: int, sent: int, now: float) -> None:
        """Note how many of a control connection's segments were retransmitted."""
        known = self._known.get(path)
        if known is not None and 0 <= lost <= sent and sent:
            kept = self._loss_kept(known, now)
            known.lost, known.sent, known.sent_at = known.lost * kept + lost, known.sent * kept + sent, now

    def _loss_kept(self, known: _Known, now: float) -> float:
        return float(0.5 ** (max(now - known.sent_at, 0.0) / self.parameters.loss_half_life_s))

    def measured_rate(self, path: Path, bytes_per_s: float, now: float) -> None:
        """Note the rate of a path while it alone was filled."""
        known = self._known.get(path)
        if known is not None and bytes_per_s >= 0:
            known.rate, known.rate_at = bytes_per_s, now
            if bytes_per_s >= known.best_rate or now - known.best_at > self.parameters.rate_age_s:
                known.best_rate, known.best_at = bytes_per_s, now

    def doubled(self, path: Path, now: float) -> None:
        """Note that more bulk connections are tried on a path."""
        known = self._known.get(path)
        if known is not None:
            known.doubled_at = now

    def may_be_stuck(self, path: Path, bytes_per_s: float, now: float) -> bool:
        """Whether to try more bulk connections on a path where one should be enough."""
        known = self._known.get(path)
        if known is None or now - known.doubled_at > self.parameters.rate_age_s:
            return True
        return bytes_per_s * 100 < known.best_rate * self.parameters.stuck_percent

    def failed(self, path: Path, now: float) -> None:
        """Note that a path could not be opened, or broke."""
        known = self._known.get(path)
        if known is None:
            return
        known.failures += 1
        wait_s = self.parameters.backoff_s_min * 2 ** min(known.failures - 1, 16)
        known.next_at = now + min(wait_s, self.parameters.backoff_s_max)
        known.rtt_s, known.rate = None, None

    def suspected(self, path: Path, now: float) -> None:
        """Note that a path delivers nothing now; it is not used for new connections for a while."""
        known = self._known.get(path)
        if known is not None:
            known.next_at = max(known.next_at, now + self.parameters.suspect_s)

    def fell_silent(self, path: Path, now: float) -> None:
        """Note that a path accepted data and delivered nothing.

        That it can be opened no longer counts in its favour.
        """
        known = self._known.get(path)
        if known is None:
            return
        parameters = self.parameters
        if now - known.silent_at > parameters.silence_s_max:
            known.silences = 0
        known.silences += 1
        known.silent_at = now
        wait_s = parameters.silence_s_min * 2 ** min(known.silences - 1, 16)
        known.silent_until = now + min(wait_s, parameters.silence_s_max)
        known.rtt_s, known.rate = None, None

    def to_probe(self, current: Path, now: float) -> Path | None:
        """Return the path whose round trip should be measured now, if any: control moves only to measured paths.

        The paths take turns. With votes as the only traffic, nothing else would measure the others.
        """
        parameters = self.parameters
        here = self.rtt_s(current, now)
        if here is None or here < parameters.probe_rtt_s_min:
            return None
        better = self._better
        if (
            better is not None
            and not self._is_confirmed(better)
            and now - better.asked_at >= parameters.probe_interval_s
        ):
            better.asked_at = now
            self._known[better.path].probed_at = now
            return better.path
        if any(now - known.probed_at < parameters.probe_interval_s for known in self._known.values()):
            return None
        due = [
            (known.probed_at, known.rank, path)
            for path, known in self._known.items()
            if path != current
            and self.is_ready(path, now)
            and (known.rtt_s is None or now - known.rtt_at > parameters.probe_age_s)
        ]
        if not due:
            return None
        path = min(due, key=lambda item: item[:2])[2]
        self._known[path].probed_at = now
        return path

    def worked(self, path: Path) -> None:
        """Note that a path was opened."""
        known = self._known.get(path)
        if known is not None:
            known.failures, known.next_at, known.has_worked = 0, 0.0, True

    def has_worked(self, path: Path) -> bool:
        """Whether a path was ever opened, so that it is known to lead to the peer."""
        known = self._known.get(path)
        return known is not None and known.has_worked

    # -- what follows from it --------------------------------------------------------------------------------

    def rtt_s(self, path: Path, now: float) -> float | None:
        """Return the round trip of a path, if measured recently."""
        known = self._known.get(path)
        if known is None or known.rtt_s is None or now - known.rtt_at > self.parameters.rtt_age_s:
            return None
        return known.rtt_s

    def length_s(self, path: Path, now: float) -> float | None:
        """Return the round trip of a path as it counts for control, longer if packets get lost or the path fell
        silent.

        A lost packet arrives one retransmission later, and a committee waits for its slower votes.
        """
        rtt_s = self.rtt_s(path, now)
        if rtt_s is None:
            return None
        known, parameters = self._known[path], self.parameters
        kept = self._loss_kept(known, now)
        share = known.lost * kept / (known.sent * kept + parameters.loss_prior)
        is_silent = now - known.silent_at <= parameters.silence_s_max
        most = parameters.loss_factor_max
        return rtt_s * (most if is_silent else min(1 + parameters.loss_weight * share, most))

    def rate(self, path: Path, now: float) -> float | None:
        """Return the estimated rate of a path in bytes per second."""
        known = self._known.get(path)
        if known is None or known.rate is None or now - known.rate_at > self.parameters.rate_age_s:
            return None
        return known.rate

    def is_ready(self, path: Path, now: float) -> bool:
        """Whether a path is available and not paused after a failure."""
        known = self._known.get(path)
        return known is not None and known.ready_at <= now

    def order(self, now: float) -> list[Path]:
        """Return the paths in the order for dialling control: ready ones first, then by round trip, then as
        offered.

        Of paths without measurements the shorter ones come first, and of equal ones those with better reports.
        """

        def cost(item: tuple[Path, _Known]) -> tuple[float, float, int, float, int]:
            path, known = item
            pause_s = max(known.next_at - now, 0.0)
            rtt_s = self.rtt_s(path, now)
            if rtt_s is not None:
                return pause_s, rtt_s, 0, 0.0, known.rank
            return pause_s, inf, hops_of(path), inf if known.guess_s is None else known.guess_s, known.rank

        return [path for path, _known in sorted(self._known.items(), key=cost)]

    def better_control(self, current: Path, now: float) -> Path | None:
        """Process one sample; return the path to which control should move, once it was better in enough samples.

        Control never moves to a path without a measured round trip, because the move costs a handshake. Nor to one
        that was fast only at another time: what slows the current path, a busy machine or a full line, may slow
        both.
        """
        here = self.length_s(current, now)
        lengths = (
            (length_s, self._known[path].rank, path) for path in self._known
            if path != current and self.is_ready(path, now)
            and (length_s := self.length_s(path, now)) is not None
        )  # fmt: skip
        best = min(lengths, default=None, key=lambda item: item[:2])
        if here is None or best is None or best[0] * (100 + self.parameters.switch_gain_percent) > here * 100:
            self._better = None
            return None
        if self._better is None or self._better.path != best[2]:
            self._better = _Better(best[2], now)
        better = self._better
        better.samples += 1
        if better.samples < self.parameters.switch_samples or not self._is_confirmed(better):
            return None
        self._better = None
        return better.path

    def _is_asked(self, path: Path) -> bool:
        """Whether a path seems better for control and its round trip must be measured again."""
        return self._better is not None and self._better.path == path and not self._is_confirmed(self._better)

    def _is_confirmed(self, better: _Better) -> bool:
        known = self._known.get(better.path)
        return known is not None and known.rtt_at >= better.since

    def best_bulk(self, now: float) -> Path | None:
        """Return the path for a little bulk: the fastest known, else the one for control."""
        ready = [path for path in self.order(now) if self.is_ready(path, now)]
        if not ready:
            return None
        known = [(rate, path) for path in ready if (rate := self.rate(path, now)) is not None]
        if not known:
            return ready[0]
        fastest = max(rate for rate, _path in known)
        floor = fastest * (100 - self.parameters.drop_loss_percent) / 100
        return min((path for rate, path in known if rate >= floor), key=hops_of)


class PathTables:
    """The tables of many peers; the least recently used one is dropped, so memory is bounded."""

    def __init__(self, parameters: PathParameters | None = None, *, peers_max: int = 1_024) -> None:
        self.parameters = parameters or PathParameters()
        self._peers_max = peers_max
        self._tables: OrderedDict[bytes, PathTable] = OrderedDict()

    def table(self, peer: bytes) -> PathTable:
        """Return the table of a peer, created on first use."""
        table = self._tables.pop(peer, None) or PathTable(self.parameters)
        self._tables[peer] = table
        if len(self._tables) > self._peers_max:
            self._tables.popitem(last=False)
        return table
