"""Plans the number of bulk connections on each path to a peer, by experiments on the traffic itself; without I/O.

One change at a time is tried: one path more or less, or twice or half the connections. The total received rate
decides whether the change stays. So no bytes are sent only to measure. Paths that share a bottleneck are not
counted twice. A stuck flow is noticed because one more connection raises the total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from p2p.path.paths import Path, PathTable, hops_of, shares_hop

__all__ = ["BulkPlanner", "Plan"]

Plan = Mapping[Path, int]
"""Number of bulk connections by path; paths without any are absent."""

_ALIKE: Final = 1.5
"""Paths that shared a line in one window count as equal if their rates differ by less than this."""

_Name = tuple[str, Path]
"""The type of a change, and its path."""
_INVERSE: Final = {"drop": "path", "path": "drop", "double": "halve", "halve": "double", "swap": "swap"}


@dataclass(slots=True)
class _Trial:
    """A plan that is measured against the previous one."""

    name: _Name
    before: dict[Path, int]
    rate_wanted: float
    """The rate required for the change to stay."""
    rates: list[float] = field(default_factory=list)
    """The received rates, by window."""
    after: dict[Path, int] | None = None
    """The final plan, after the abandoned path was throttled; None: the current one."""
    usual: float = 0.0
    """The rate before, ..."""
    part: float = 0.0
    """... that path's share of it, ..."""
    step: int = 0
    """... and its current throttling."""


@dataclass(slots=True)
class _Window:
    """Bytes received since a plan settled."""

    since: float
    is_open: bool = False
    """Whether arrivals are counted: not those of the tick that began before ``since``."""
    opens_until: float = 0.0
    """Until when the window restarts while bulk connections of the plan are not open."""
    carried: dict[Path, int] = field(default_factory=dict)


class BulkPlanner:
    """The number of bulk connections on each path to one peer.

    Call ``tick`` every quarter of a second while bulk waits. ``plan`` is the target; the caller opens and closes
    bulk connections to match it, and reports lost ones with ``lost``. It is never empty while a path is ready.
    """

    def __init__(self, table: PathTable, *, is_paced: bool = False) -> None:
        self.table = table
        self.is_paced = is_paced
        """Whether single flows fill their line; see ``PathParameters.paced_patience_s``."""
        self.plan: dict[Path, int] = {}
        self.caps: dict[Path, float] = {}
        """Rate limit in bytes per second of a path that is being abandoned."""
        self._trial: _Trial | None = None
        self._window: _Window | None = None
        self._tried: set[_Name] = set()
        self._hold_until = 0.0
        self._hold_s = table.parameters.hold_s
        self._busy_since: float | None = None
        self._last_rate: float | None = None
        self._unsteady = 0
        self._has_raced = False
        self._grain_bytes = 0
        self._losing: Counter[Path] = Counter()
        """Consecutive windows in which a path carried almost nothing."""

    @property
    def connections(self) -> int:
        """The number of bulk connections in the plan."""
        return sum(self.plan.values())

    def start(self, waiting_bytes: int, now: float) -> None:
        """Make a plan for this much waiting bulk, if there is none."""
        parameters = self.table.parameters
        best = self.table.best_bulk(now)
        if self.plan or best is None:
            return
        paths = [best]
        if waiting_bytes >= parameters.race_bytes_min and self.table.rate(best, now) is None:
            paths = self._racers(best, now)
        self._change(dict.fromkeys(paths, 1), now)
        self._tried.clear()

    def _racers(self, best: Path, now: float) -> list[Path]:
        """Return the paths to try in parallel, one of each length first: paths of one length are often similar."""
        self._has_raced = True
        ready = [path for path in self.table.order(now) if self.table.is_ready(path, now)]
        firsts = {hops_of(path): path for path in reversed(ready)}
        return list(dict.fromkeys([best, *firsts.values(), *ready]))[: self.table.parameters.race_paths_max]

    def stop(self) -> None:
        """Drop the plan: nothing waits and the bulk connections are closed. Measurements of paths are kept."""
        self.plan, self.caps = {}, {}
        self._trial = self._window = self._busy_since = self._last_rate = None
        self._has_raced = False

    def lost(self, path: Path, now: float) -> None:
        """Remove a broken path from the plan at once."""
        self.table.failed(path, now)
        self._drop_path(path, now)

    def suspected(self, path: Path, now: float) -> bool:
        """Add another path beside a stalled one; return whether there is one to add.

        If the stalled path recovers, both are measured like any other plan.
        """
        self.table.suspected(path, now)
        if path not in self.plan or any(not shares_hop(other, path) for other in self.plan):
            return False
        ready = [p for p in self.table.order(now) if p not in self.plan and self.table.is_ready(p, now)]
        apart = [other for other in ready if not shares_hop(other, path)]
        if not apart or self.connections >= self.table.parameters.connections_max:
            return False
        self._trial = None
        self._tried.clear()
        self._change({**self.plan, apart[0]: 1}, now)
        return True

    def _drop_path(self, path: Path, now: float) -> None:
        if self._trial is not None:
            self._trial.before.pop(path, None)
        if path not in self.plan:
            return
        left = {other: connections for other, connections in self.plan.items() if other != path}
        if not left and (best := self.table.best_bulk(now)) is not None:
            left = {best: 1}
        self._trial = None
        self._tried.clear()
        self._hold_until = now
        self._change(left, now)

    def tick(self, carried: Mapping[Path, int], waiting_bytes: int, now: float, *, grain_bytes: int = 0) -> None:
        """Process the bytes received since the last tick, by path with open bulk connections; change the plan when
        due.

        If bulk does not wait all the time, the rate is limited by the sender and says nothing about paths. Bytes
        are counted in whole messages of ``grain_bytes``, so a rate needs several of them.
        """
        parameters = self.table.parameters
        self._grain_bytes = grain_bytes
        for path in [path for path in self.plan if path not in self.table.paths]:
            self._drop_path(path, now)
        if not self.plan:
            self.start(waiting_bytes, now)
            return
        if not waiting_bytes:
            self._window = self._busy_since = self._last_rate = None
            if self._trial is not None and self._trial.after is not None:
                self._trial, self.caps = None, {}
            return
        if self._busy_since is None:
            self._busy_since = now
        self._race_late(waiting_bytes, now)
        window = self._window
        if window is None:
            self._window = _Window(now + parameters.settle_s)
            return
        if now < window.opens_until and not carried.keys() >= self.plan.keys():
            self._window = _Window(now + parameters.settle_s, opens_until=window.opens_until)
            return
        if not window.is_open:
            if now >= window.since:
                window.since, window.is_open = now, True
            return
        for path, count in carried.items():
            window.carried[path] = window.carried.get(path, 0) + count
        took_s = now - window.since
        rtts = [rtt_s for path in self.plan if (rtt_s := self.table.rtt_s(path, now)) is not None]
        enough_s = min(max(parameters.window_s, 4 * max(rtts, default=0.0)), parameters.window_s_max)
        is_enough = took_s >= enough_s and (
            sum(window.carried.values()) >= parameters.window_grains * grain_bytes
            or took_s >= parameters.slow_window_s_max
        )
        if not is_enough and not self._is_hopeless(window, took_s):
            return
        rates = {path: window.carried.get(path, 0) / took_s for path in self.plan}
        self._window = _Window(now, is_open=True)
        self._judge(rates, now)

    def _race_late(self, waiting_bytes: int, now: float) -> None:
        """Try paths in parallel if a small transfer has turned out to be larger."""
        parameters = self.table.parameters
        waited_s = now - (self._busy_since or now)
        if self._has_raced or self._trial is not None or len(self.plan) > 1:
            return
        if waiting_bytes < parameters.race_bytes_min and waited_s < parameters.race_patience_s:
            return
        (path, connections), *_ = self.plan.items()
        if connections == 1 and self.table.rate(path, now) is None:
            racers = self._racers(path, now)
            if len(racers) > 1:
                self._change(dict.fromkeys(racers, 1), now)

    def _is_hopeless(self, window: _Window, took_s: float) -> bool:
        """Whether the first window of a trial can be skipped."""
        trial, parameters = self._trial, self.table.parameters
        if trial is None or trial.rates or trial.after is not None or took_s < parameters.hopeless_s:
            return False
        wanted = trial.rate_wanted * took_s
        is_told = wanted >= parameters.window_grains * self._grain_bytes
        return is_told and sum(window.carried.values()) * 100 < wanted * parameters.hopeless_percent

    # -- moves -----------------------------------------------------------------------------------------------

    def _judge(self, rates: dict[Path, float], now: float) -> None:
        parameters = self.table.parameters
        total = sum(rates.values())
        trial, self._trial = self._trial, None
        if trial is not None and trial.after is not None:
            self._squeezed(trial, total, now)
            return
        if trial is not None:
            trial.rates.append(total)
            mean = sum(trial.rates) / len(trial.rates)
            is_quiet = abs(mean - trial.rate_wanted) * 100 < trial.rate_wanted * parameters.unclear_percent
            if is_quiet and len(trial.rates) < parameters.trial_windows_max:
                self._trial = trial
                return
            if mean < trial.rate_wanted:
                self._tried.add(trial.name)
                if trial.before:
                    self._change(trial.before, now)
                    self._last_rate = None  # what was closed and comes back begins slowly
                    return
            else:
                undone = _INVERSE[trial.name[0]], trial.name[1]
                self._tried = {undone}  # what was just found good need not be suspected at once
                self._hold_s = parameters.hold_s
                if trial.name[0] == "double":
                    self.table.doubled(trial.name[1], -inf)  # still more may bring more
        if len(rates) == 1:
            self.table.measured_rate(next(iter(rates)), total, now)
        last, self._last_rate = self._last_rate, total
        if self._leave_losers(rates, now) or now < self._hold_until:
            return
        if last is None or abs(total - last) * 200 > last * parameters.add_gain_percent:
            self._unsteady += 1
            if self._unsteady < parameters.steady_windows_max:
                return
        self._unsteady = 0
        found = self._next_move(rates, now)
        if found is None:
            self._tried.clear()
            self._hold_until = now + self._hold_s
            self._hold_s = min(2 * self._hold_s, parameters.hold_s_max)
            return
        name, plan = found
        if name[0] == "double":
            self.table.doubled(name[1], now)
        usual = total if last is None else (last + total) / 2  # they are alike: it stands still
        self._trial = _Trial(name, dict(self.plan), usual * (100 + self._gain_percent(name, rates)) / 100)
        if name[0] == "drop" and self.is_paced:
            self._trial.after, self._trial.usual, self._trial.part = plan, usual, rates[name[1]]
            self._squeeze(self._trial, now)
        else:
            self._change(plan, now)

    def _squeeze(self, trial: _Trial, now: float) -> None:
        """Throttle an abandoned path step by step, so that the others take over its share before it is closed."""
        self.caps = {trial.name[1]: trial.part * self.table.parameters.squeeze_percent[trial.step] / 100}
        self._window = _Window(now + self.table.parameters.settle_s)

    def _squeezed(self, trial: _Trial, total: float, now: float) -> None:
        """Continue throttling, or keep the path if the others have not compensated."""
        steps = self.table.parameters.squeeze_percent
        cut = trial.part * (100 - steps[trial.step]) / 100
        if trial.usual - total > max(cut / 4, trial.usual - trial.rate_wanted):
            self._tried.add(trial.name)
            self.caps = {}
            self._last_rate = None
            self._window = _Window(now + self.table.parameters.settle_s)
            return
        trial.step += 1
        self._trial = trial
        if trial.step < len(steps):
            self._squeeze(trial, now)
        else:
            after, trial.after = trial.after, None
            assert after is not None
            self._change(after, now)

    def _leave_losers(self, rates: dict[Path, float], now: float) -> bool:
        """Remove paths that carry almost nothing, as after a race on a congested route; return whether there were
        any.
        """
        floor = sum(rates.values()) * self.table.parameters.drop_loss_percent / 100
        self._losing = Counter({path: self._losing[path] + 1 for path, rate in rates.items() if rate < floor})
        losers = [path for path, times in self._losing.items() if times >= self.table.parameters.loser_windows]
        if not losers:
            return False
        self._tried.update(("path", path) for path in losers)
        self._change({path: connections for path, connections in self.plan.items() if path not in losers}, now)
        return True

    def _gain_percent(self, name: _Name, rates: dict[Path, float]) -> float:
        """Return the relative growth of the total that a change needs to stay."""
        parameters = self.table.parameters
        kind, path = name
        match kind:
            case "path" | "swap":
                return parameters.add_gain_percent
            case "double":
                # Of a path that is a small part of the sum, half of what it could bring at best.
                half = 50 * rates[path] / max(sum(rates.values()), 1.0)
                return max(parameters.drop_loss_percent, min(half, parameters.add_gain_percent))
            case _:
                return -parameters.drop_loss_percent

    def _next_move(self, rates: dict[Path, float], now: float) -> tuple[_Name, dict[Path, int]] | None:
        """Return a change that was not tried on this plan: reductions first (they cost nothing), then
        additions.
        """
        parameters = self.table.parameters
        plan = self.plan
        moves: list[tuple[_Name, dict[Path, int]]] = []
        if len(plan) > 1:
            # The slowest goes first; of those about as fast as it, the one that crosses most relays.
            slowest = min(rates[path] / plan[path] for path in plan)
            alike = [path for path in plan if rates[path] / plan[path] <= slowest * _ALIKE]
            alike.sort(key=hops_of, reverse=True)
            moves += [(("drop", path), {p: n for p, n in plan.items() if p != path}) for path in alike]
        widest = max(plan, key=lambda path: plan[path])
        if plan[widest] > 1:
            moves.append((("halve", widest), {**plan, widest: plan[widest] // 2}))
        room = parameters.connections_max - self.connections
        ready = [path for path in self.table.order(now) if path not in plan and self.table.is_ready(path, now)]
        if len(plan) < parameters.race_paths_max and room > 0:
            moves += [(("path", path), {**plan, path: plan[widest]}) for path in ready
                      if plan[widest] <= room]  # fmt: skip
        if len(plan) == parameters.race_paths_max or room < plan[widest]:
            # No place beside them: or a plan of slow paths would keep the better ones out for good.
            last = min(plan, key=lambda path: rates[path])
            others = {path: connections for path, connections in plan.items() if path != last}
            moves += [(("swap", path), {**others, path: plan[last]}) for path in ready]
        if self.is_paced and now - (self._busy_since or now) < parameters.paced_patience_s:
            room = 0
        for path in sorted(plan, key=lambda path: rates[path], reverse=True):
            if plan[path] <= room and (not self.is_paced or self.table.may_be_stuck(path, rates[path], now)):
                moves.append((("double", path), {**plan, path: 2 * plan[path]}))
        return next((move for move in moves if move[0] not in self._tried), None)

    def _change(self, plan: dict[Path, int], now: float) -> None:
        parameters = self.table.parameters
        is_wider = any(path not in self.plan for path in plan)
        self.plan = dict(plan)
        self.caps = {}
        self._losing.clear()
        opens_until = now + parameters.open_patience_s if is_wider else 0.0
        self._window = _Window(now + parameters.settle_s, opens_until=opens_until)
