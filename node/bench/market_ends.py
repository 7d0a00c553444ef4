"""Hostile blocks of speed trials, of demands of custody, and of what the end of a block does beside deadlines.

The last ones join what one end can have: deadlines, steps of trials, machines that wake tasks, and a call.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from billing.escrow import Pool, Purpose
from node.bench.market_blocks import LONG, HostileBlock, sent
from node.bench.market_state import (
    DKB,
    HEIGHT,
    NOW_MS,
    PRICE,
    START_MS,
    MarketState,
    ignore,
    job_of,
    leaves_of,
    window_of,
)
from node.bench.market_steps import StepBlocks
from state.primitives.hashing import digest
from state.view import Overlay
from state.view.accounts import credit
from tasks.ledger import groups, registry, trials
from tasks.ledger.block_end import CALL_EVENTS_MAX
from tasks.ledger.check_fund import FUND_ADDRESS
from tasks.ledger.custody_records import Demand, DemandKind
from tasks.ledger.custody_transitions import DEMAND_CUSTODY
from tasks.ledger.deadlines import TRIAL_DRAW_SLOT, Draw, Due, schedule, schedule_draw
from tasks.ledger.draws import DRAWS_SHARE_BPS
from tasks.ledger.group_records import GroupPhase, load_group, save_group, seat_task
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.open_task import Case
from tasks.ledger.records import by_duty_key
from tasks.ledger.registry import node_subject
from tasks.ledger.trial_transitions import ASK_TRIAL, COMMIT_TRIAL, JUDGE_TRIAL, SHOW_TRIAL
from tasks.ledger.trials import TRIALS_PER_BLOCK_MAX, TrialPhase, TrialRecord
from tasks.trials import positions_of, result_digest, root_of, show, shown_to_value

__all__ = ["EndBlocks"]

_DRAWN: Final = 1 << 48
"""The first number of tasks for whose windows verifiers are drawn."""
_LOST: Final = 1 << 49
"""The first number of tasks that have lost their worker."""
_LINKS: Final = 1 << 12
"""Links of a trial whose states are shown."""
_WORKER: Final = b"\xdd" * 20
_SEED, _LOT = b"t" * 32, b"l" * 32
BPS: Final = 10_000


class EndBlocks(StepBlocks):
    """All blocks."""

    # Speed trials

    def _trial(self, at: int, phase: TrialPhase) -> TrialRecord:
        """Return a trial of a machine in ``phase``; the verifier is the next machine."""
        key, verifier = self.keys[at], self.keys[(at + 1) % len(self.keys)].address
        states = [digest(b"bench-link", bytes([number & 255, number >> 8])) for number in range(_LINKS + 1)]
        record = trials._idle(key.address)._replace(
            phase=phase, height=1, begun_ms=START_MS, due_ms=NOW_MS + 60_000, seed=_SEED, width=64, links=_LINKS,
            counted_ms=1000, last_round=0,
        )  # fmt: skip
        if phase in (TrialPhase.DRAWING, TrialPhase.SHOWING, TrialPhase.JUDGING):
            record = record._replace(root=root_of(states), lot=_LOT)
        if phase is TrialPhase.DRAWING:
            record = record._replace(height=HEIGHT, due_ms=0)
        if phase in (TrialPhase.SHOWING, TrialPhase.JUDGING):
            record = record._replace(used=(verifier,))
        if phase is TrialPhase.JUDGING:
            shown = show(states, positions_of(_LOT, _LINKS, self.parameters.trial_samples))
            record = record._replace(shown=b"".join(link.before + link.after for link in shown))
        return record

    def _tried(self, state: Overlay, phase: TrialPhase, places: range) -> None:
        """Have machines in a phase of a trial."""
        model = self._trial(0, phase)
        for at in places:
            address = self.keys[at].address
            used = tuple(self.keys[(at + 1) % len(self.keys)].address for _ in model.used)
            before = trials.find_trial(state, address) or trials._idle(address)
            trials._save(state, before, model._replace(address=address, used=used))

    def _trials_of(self, kind: int, phase: TrialPhase, payload: list[object]) -> HostileBlock:
        keys = self.keys[: self._count(kind)]
        fill = partial(self._tried, phase=phase, places=range(len(keys)))
        return HostileBlock(fill, tuple((key, kind, list(payload)) for key in keys))  # type: ignore[arg-type]

    def trial_asks(self) -> HostileBlock:
        """Only machines that ask for a trial."""
        keys = self.keys[: self._count(ASK_TRIAL)]
        return HostileBlock(ignore, tuple((key, ASK_TRIAL, []) for key in keys))

    def trial_commits(self) -> HostileBlock:
        """Only machines that commit to a chain of links."""
        payload: list[object] = [_LINKS, b"r" * 32, 2 * self.parameters.trial_fee]
        return self._trials_of(COMMIT_TRIAL, TrialPhase.RUNNING, payload)

    def trial_shows(self) -> HostileBlock:
        """Only machines that show the links that were drawn."""
        states = [digest(b"bench-link", bytes([number & 255, number >> 8])) for number in range(_LINKS + 1)]
        shown = show(states, positions_of(_LOT, _LINKS, self.parameters.trial_samples))
        return self._trials_of(SHOW_TRIAL, TrialPhase.SHOWING, [[shown_to_value(link) for link in shown]])

    def trial_words(self) -> HostileBlock:
        """Only answers of verifiers that decide nothing: another verifier is looked for."""
        count = min(len(self.keys), self._count(JUDGE_TRIAL))
        results = [result_digest(bytes([at])) for at in range(self.parameters.trial_samples)]
        body = tuple(
            (self.keys[(at + 1) % len(self.keys)], JUDGE_TRIAL, [self.keys[at].address, list(results)])
            for at in range(count)
        )
        fill = partial(self._tried, phase=TrialPhase.JUDGING, places=range(count))
        return HostileBlock(fill, body)  # type: ignore[arg-type]

    def trial_steps(self) -> HostileBlock:
        """No transaction: as many steps of trials as a block takes, in a round."""
        return HostileBlock(self._fill_trials)

    def _fill_trials(self, state: Overlay) -> None:
        self._tried(state, TrialPhase.DRAWING, range(TRIALS_PER_BLOCK_MAX))
        for key in self.keys[:TRIALS_PER_BLOCK_MAX]:
            schedule(state, Due(HEIGHT, node_subject(key.address), TRIAL_DRAW_SLOT))
        late = range(TRIALS_PER_BLOCK_MAX, 2 * TRIALS_PER_BLOCK_MAX)
        self._tried(state, TrialPhase.JUDGING, late)
        for at in late:
            record = trials.find_trial(state, self.keys[at % len(self.keys)].address)
            if record is not None:
                trials._save(state, record, record._replace(due_ms=NOW_MS - 1))

    # Custody

    def demands(self) -> HostileBlock:
        """Only demands of requesters on the custodians of an output."""
        count = self._count(DEMAND_CUSTODY)
        keys = self._cycle(count)
        fill, ids = self._copied(self._kept, keys)
        holder = bytes([0xC2]) * 20
        amount = 10**15
        body = sent([self.requester] * count, DEMAND_CUSTODY, lambda at: [ids[at], 0, holder, amount])
        return HostileBlock(fill, body)

    def late_demands(self) -> HostileBlock:
        """No transaction: deadlines of custody, each of a demand that nobody answered."""
        asked = Demand(
            DemandKind.DELIVERY, bytes([0xC2]) * 20, DKB // 1000, DKB // 1000, 1, -1, self.keys[0].address, 0,
            NOW_MS - 1, tuple(bytes([0xC6 + at]) * 20 for at in range(6)),
        )  # fmt: skip
        keys = self._cycle(256)
        fill, _ = self._copied(lambda market: self._kept(market, demand=asked, deadline_ms=0), keys)
        return HostileBlock(fill)

    # Ends of blocks

    def draws(self) -> HostileBlock:
        """No transaction: as many draws of verifiers as a block takes, each from another place of the index."""
        return HostileBlock(self._fill_draws)

    def _fill_draws(self, state: Overlay) -> None:
        count = self.parameters.deadlines_per_block * DRAWS_SHARE_BPS // BPS
        credit(state, FUND_ADDRESS, 10**30)

        def make(market: MarketState) -> Case:
            job = job_of(price=PRICE, windows=2)
            case = market.task(
                -1, job, self.requester.address, phase=Phase.RUNNING, reason=Reason.STARTED, busy=0, attempts=1,
                worker=_WORKER, price_per_tera_unit=PRICE, next_window=1, started_ms=START_MS,
            )  # fmt: skip
            case.vault.lock(Pool.BOND, _WORKER, 100 * DKB, Purpose.WORKER_BOND, owner=_WORKER)
            market.state.put(by_duty_key(_WORKER, case.record.id), b"\x01")
            window = window_of(case.record.id, job, 0, leaves_of(job, 0), _WORKER, [])
            case.begin_window(
                window._replace(
                    phase=WindowPhase.PROVED,
                    height=1,
                    deadline_ms=0,
                    sampled=(),
                    wanted=2,
                    used=(),
                    gas_price=10**12,
                )
            )
            return case

        records = self._alone(make)
        for at in range(count):
            name = self._copy(state, records, at, self.keys[at % len(self.keys)].address, _DRAWN)
            schedule_draw(state, Draw(HEIGHT, name, 0))

    def wakes(self) -> HostileBlock:
        """No transaction: as many machines as may look at parked tasks, each at as many as it may."""
        return HostileBlock(self._fill_wakes)

    def _fill_wakes(self, state: Overlay) -> None:
        for key in self.keys[-self.parameters.wakes_per_block :]:
            node = registry.require_node(state, key.address)
            node = node._replace(profile=node.profile._replace(price_per_tera_unit=1))
            registry.save_node(state, node)
            registry.wake_at(state, node, NOW_MS - 1)

    def replaced_call(self) -> HostileBlock:
        """No transaction: a call of tasks that lost their worker and have a window open; nobody can back them."""
        return HostileBlock(self._fill_replaced)

    def _fill_replaced(self, state: Overlay) -> None:
        fields = {"phase": Phase.DEGRADED, "next_window": 1, "started_ms": START_MS, "attempts": 1}
        count = 2 * self.parameters.bids_per_call
        for at, case in enumerate(self._searching(state, count, 2 * PRICE, LONG, **fields)):
            worker = self.keys[at % len(self.keys)].address
            leaves = leaves_of(case.spec, 0)
            case.begin_window(window_of(case.record.id, case.spec, 0, leaves, worker, []))
            case.save()
        self._make_poor(state)

    def cancelled_groups(self) -> HostileBlock:
        """No transaction: groups whose seats have ended but for those that end with their last window."""

        def fill(state: Overlay) -> None:
            for group in list(self._groups(state, 64, 64, 8)):
                self._whole(state, group, 72)
                record = load_group(state, group)
                due = record._replace(phase=GroupPhase.ENDED, ending=int(Phase.CANCELLED), due_ms=NOW_MS - 1)
                save_group(state, due._replace(ending_reason=int(Reason.REQUESTER_CANCELLED)))
                for seat in range(72 - groups.SEATS_PER_STEP):
                    name = seat_task(group, seat)
                    case = Case.load(self.scope(state), name)
                    case.change(phase=Phase.CANCELLED, match_at_ms=0)
                    case.save()

        return HostileBlock(fill)

    def called_end(self) -> HostileBlock:
        """No transaction: all that an end of a block may have with a call."""

        def fill(state: Overlay) -> None:
            self._fill_replaced(state)
            self._fill_deadlines(state, CALL_EVENTS_MAX // self.parameters.open_windows_max)
            self._fill_trials(state)
            self._fill_wakes(state)

        return HostileBlock(fill)

    def full_end(self) -> HostileBlock:
        """No transaction: all that an end of a block may have without a call."""

        def fill(state: Overlay) -> None:
            self._fill_deadlines(state)
            self._fill_trials(state)
            self._fill_wakes(state)

        return HostileBlock(fill)

    def drawn_end(self) -> HostileBlock:
        """No transaction: as many draws as a block takes, and the deadlines for which they leave room."""

        def fill(state: Overlay) -> None:
            self._fill_draws(state)
            self._fill_deadlines(state)
            self._fill_trials(state)
            self._fill_wakes(state)

        return HostileBlock(fill)
