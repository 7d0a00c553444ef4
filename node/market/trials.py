"""Speed trials on this node: compute the chain, commit, show links; judge those of others (market.md 3.6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.cancellation import Abandoned, work_while
from node.market.trial_chains import TrialChains
from node.market.wallet import Wallet
from state.primitives.errors import DekubeError
from tasks.executor.service import Executor
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import NodeRole, is_available, load_node
from tasks.ledger.trial_transitions import ASK_TRIAL, COMMIT_TRIAL, JUDGE_TRIAL, SHOW_TRIAL
from tasks.ledger.trials import (
    TrialPhase,
    TrialRecord,
    asks_from_ms,
    find_trial,
    measured_rate,
    trials_to_judge,
)
from tasks.trials import LINKS_MAX, are_right, next_state, positions_of, root_of, show, shown_to_value

__all__ = ["ChainLost", "SpeedTrials", "stop_ms"]

_log = structlog.get_logger("trials")

CHECKS_AT_ONCE: Final = 4
"""Trials of others that are taken on at one time. The executor runs one of them."""
LOST_SHARE: Final = 5
"""A machine computes for at least so many times the time that it lost before it began."""
STEP_SHARE: Final = 0.6
"""Part of the time to commit in which a machine that lost time still computes."""


class ChainLost(DekubeError):
    """The file of a chain that was committed to is gone, or another one."""

    code = "trial_chain_lost"


class Duty(NamedTuple):
    """Something that a trial asks of this node now."""

    key: tuple[str, bytes]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def stop_ms(lost_ms: int, parameters: TaskParameters) -> int:
    """Return how long after the begin of its trial a machine stops computing; it lost ``lost_ms`` of that.

    The slack is for two blocks and the network: half of it is left for the commitment. Time beyond the slack
    counts. So a machine that lost much time, say to load its engine, computes longer: the loss then changes little
    of what is measured.
    """
    usual_ms = parameters.trial_ms + parameters.trial_slack_ms // 2
    latest_ms = parameters.trial_ms + int(parameters.trial_step_ms * STEP_SHARE)
    if lost_ms * 2 <= parameters.trial_slack_ms:
        return usual_ms
    return max(usual_ms, min(latest_ms, lost_ms * (LOST_SHARE + 1)))


class SpeedTrials:
    """Does what speed trials ask of this machine, as the one that is tried and as a verifier."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, executor: Executor, parameters: TaskParameters, folder: Path
    ) -> None:
        self._ledger, self._wallet, self._executor = ledger, wallet, executor
        self._parameters = parameters
        self._chains = TrialChains(folder)
        self._begun: dict[bytes, float] = {}
        """When the trial of this machine began, by its seed, on the clock of this process."""
        self.committed = self.missed = self.judged = self.found_wrong = 0
        """Trials since the start: own ones, computed or not; those of others, and how many of these were wrong."""

    def look(self) -> Iterator[Duty]:
        """Return what is to be done now."""
        if not self._parameters.trial_ms:
            return
        state, own = self._ledger.store, self._wallet.address
        record = find_trial(state, own)
        if record is not None and record.phase is TrialPhase.RUNNING:
            if record.seed not in self._begun:
                past_ms = self._ledger.head().steady_ms - record.begun_ms
                self._begun = {record.seed: trio.current_time() - past_ms / 1000}
            yield Duty(("trial", record.seed), self.compute, (record,))
        elif record is not None and record.phase is TrialPhase.SHOWING:
            yield Duty(("show trial", record.seed), self.show, (record,))
        elif self._needs_one(record):
            yield Duty(("ask trial", own), self.ask, ())
        for other in trials_to_judge(state, own, CHECKS_AT_ONCE):
            yield Duty(("judge trial", other.seed), self.judge, (other,))

    def _needs_one(self, record: TrialRecord | None) -> bool:
        """Whether no rate of this machine counts, and it has to ask for a trial to get one."""
        state, head, parameters = self._ledger.store, self._ledger.head(), self._parameters
        node = load_node(state, self._wallet.address)
        if node is None or not node.profile.roles & NodeRole.COMPUTE or not node.profile.rate:
            return False
        if record is not None and (
            record.phase is not TrialPhase.IDLE or 0 < record.due_ms <= head.steady_ms  # it begins by itself
        ):
            return False
        return (
            is_available(node, head.steady_ms, parameters)
            and measured_rate(state, node, head.steady_ms, parameters) is None
            and asks_from_ms(record, parameters) <= head.steady_ms
        )

    def _stands(self, record: TrialRecord) -> bool:
        now = find_trial(self._ledger.store, record.address)
        return now is not None and (now.seed, now.phase, now.verifier) == (
            record.seed, record.phase, record.verifier,
        )  # fmt: skip

    async def ask(self) -> None:
        """Ask for a trial: this machine has no rate, and without one it is matched with nothing."""
        await self._wallet.send(ASK_TRIAL, [])
        _log.info("a speed trial was asked for")

    async def compute(self, record: TrialRecord) -> None:
        """Compute the chain of this machine's trial, or the rest of it, and commit to it."""
        await trio.to_thread.run_sync(self._chains.keep_only, record.seed)
        states = await trio.to_thread.run_sync(self._chains.load, record.seed)
        begun = self._begun[record.seed]
        lost_s = trio.current_time() - begun
        if len(states) > 1:  # it computed until its node was ended
            lost_s = min(lost_s, await trio.to_thread.run_sync(self._chains.idle_s, record.seed, time.time()))
        try:
            await work_while(
                self._ledger, partial(self._stands, record), partial(self._extend, record, states, begun, lost_s)
            )
        except Abandoned:
            self.missed += 1
            _log.warning("a speed trial was missed: its time is over", links=len(states) - 1)
            raise
        await trio.to_thread.run_sync(self._chains.flush, record.seed)
        root = await trio.to_thread.run_sync(root_of, states)
        await self._wallet.send(COMMIT_TRIAL, [len(states) - 1, root, 2 * self._parameters.trial_fee])
        self.committed += 1
        _log.info("a speed trial was computed", links=len(states) - 1, width=record.width)

    async def _extend(self, record: TrialRecord, states: list[bytes], begun: float, lost_s: float) -> None:
        """Add links to ``states`` until it is time to commit; at least one in all."""
        started = trio.current_time()
        with trio.CancelScope() as scope:

            async def hear(results: tuple[bytes, ...]) -> None:
                if scope.deadline == float("inf"):  # the first: from here on the engine runs
                    lost_ms = int(1000 * (lost_s + trio.current_time() - started))
                    scope.deadline = begun + stop_ms(lost_ms, self._parameters) / 1000
                for result in results[: LINKS_MAX + 1 - len(states)]:
                    states.append(next_state(states[-1], result))
                await trio.to_thread.run_sync(self._chains.append, record.seed, results)
                if len(states) > LINKS_MAX:
                    scope.cancel()

            await self._executor.run_chain(record.seed, record.width, states[-1], hear)

    async def show(self, record: TrialRecord) -> None:
        """Show the links that were drawn. Raises ChainLost."""
        states = (await trio.to_thread.run_sync(self._chains.load, record.seed))[: record.links + 1]
        if len(states) <= record.links or await trio.to_thread.run_sync(root_of, states) != record.root:
            raise ChainLost("the chain of a speed trial is not the one that this machine committed to")
        wanted = positions_of(record.lot, record.links, self._parameters.trial_samples)
        links = await trio.to_thread.run_sync(show, states, wanted)
        await self._wallet.send(SHOW_TRIAL, [[shown_to_value(link) for link in links]])

    async def judge(self, record: TrialRecord) -> None:
        """Run the links that another machine shows, and answer with their results."""
        befores = tuple(before for before, _ in record.shown_links)
        results = await work_while(
            self._ledger, partial(self._stands, record),
            partial(self._executor.check_links, record.seed, record.width, befores),
        )  # fmt: skip
        await self._wallet.send(JUDGE_TRIAL, [record.address, list(results)])
        is_right = are_right(record.shown_links, results)
        self.judged += 1
        self.found_wrong += not is_right
        _log.info("a speed trial was checked", machine=record.address, right=is_right)
