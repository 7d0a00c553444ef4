"""Performs this node's duties on chain as a worker and as a verifier.

The chain is the queue: each new head is read for duties, and those that are not done are started. So a restart, a
lost transaction or a failed fetch needs no memory except the executor's journal and the few files that are written
before a promise on chain.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, ClassVar, Final

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.home.config import parse_payout
from node.home.options import NodeOptions
from node.home.paths import Home
from node.market.attempts import Attempts, Trouble
from node.market.blob_search import BlobSearch
from node.market.cancellation import DAMAGE, Abandoned
from node.market.challenges import Challenges
from node.market.container_copies import ContainerCopies
from node.market.containers import Containers, containers_of
from node.market.disputes import Disputes, NothingToSay, games_of
from node.market.false_outputs import FalseOutputs
from node.market.inputs import Inputs
from node.market.keeper import Keeper
from node.market.key_files import KeyFiles
from node.market.key_shares import KeyShares
from node.market.machine import Rate, describe_machine, known_rate, renewed_rate, stays_until
from node.market.own_inputs import OwnInputs
from node.market.promises import Promises
from node.market.tampering import is_reported
from node.market.task_keys import TaskKeys
from node.market.task_views import TaskViews
from node.market.trials import SpeedTrials
from node.market.verifier import TaskVerifier
from node.market.wallet import TransactionFailed, TransactionLost, Wallet
from node.market.worker import Worker
from p2p.service import Network
from state.primitives.amounts import format_amount
from state.primitives.errors import DekubeError, InvalidTransaction
from state.primitives.genesis import read_parameters
from state.primitives.hashing import HASH_BYTES, digest
from state.view.accounts import balance_of
from tasks.errors import TaskUnknown
from tasks.executor.errors import JobGivenUp
from tasks.executor.failure_count import ENDS_MAX, JobEnd
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import CHILD_MODULE, Capabilities, ProcessOptions
from tasks.ledger.check_fund import fund_balance
from tasks.ledger.custody_queries import custody_duties, input_holders
from tasks.ledger.lifecycle import ENDED
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.parking import count_parked
from tasks.ledger.queries import Action, verification_duties, work_duties
from tasks.ledger.records import by_duty_key, by_verifier_key, load_task
from tasks.ledger.registry import NodeProfile, NodeRecord, NodeStatus, load_node, require_node
from tasks.ledger.transitions import (
    HEARTBEAT,
    OPEN_WINDOW,
    REGISTER_NODE,
    REVEAL_VERDICT,
    SEAL_VERDICT,
    SET_PAYOUT,
    SUBMIT_WINDOW,
    SUSPEND_NODE,
    UPDATE_NODE,
    node_payload,
)

__all__ = ["DutyService"]

_log = structlog.get_logger("duties")

RETRY_S: Final = 5.0
"""Pause before a failed duty is tried again."""
MEASURE_AGAIN_S: Final = 600.0
"""Interval of new measurements after one that was disturbed by other load."""
SPEED_SPREAD_PERCENT: Final = 10
"""Measurements that differ by at most this much count as equal."""
LEAVE_S: Final = 6.0
"""How long a stopping node waits until its machine's suspension is on chain, ..."""
LEAVE_QUIET_S: Final = 4.0
"""... and how long without a new block."""
LEAVE_LOOK_S: Final = 0.1
PRESENCE_SHARE: Final = 2 / 3
"""Part of the time until a silent machine counts as away after which the node sends a heartbeat."""
COUNT_MAX: Final = 1_000
"""Tasks, parked tasks and verdicts are counted up to this number."""
OWED: Final = (SUBMIT_WINDOW, OPEN_WINDOW, SEAL_VERDICT, REVEAL_VERDICT)
"""Transactions for which the account reserves the fees when it raises its bond."""
MOVED_ON: Final = (
    "wrong_phase", "not_yours", "proof_mismatch", "already_sealed", "already_revealed", "move_refused",
    "move_too_soon", "dispute_unknown", "challenge_unknown", "custody_unknown", "custody_refused", "nothing_due",
)  # fmt: skip
"""Refusals that mean that the chain no longer requires this duty."""


class DutyService:
    """Performs the node's duties in the market."""

    worker_type: ClassVar[type[Worker]] = Worker
    verifier_type: ClassVar[type[TaskVerifier]] = TaskVerifier
    child_module: ClassVar[str] = CHILD_MODULE
    """The program of jobs; test networks have one that lies."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, network: Network, options: NodeOptions, *, home: Home,
        secret: bytes, is_synced: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._wallet = wallet
        self._options = options
        self._is_synced = is_synced
        self._rate_file = home.rate
        data_dir = home.jobs.parent  # there before the first job is
        self._network = network
        self._is_leaving = False
        self._told_payout = False
        self._speed = Rate(0, is_steady=False)
        self._profile: NodeProfile | None = None
        """The profile that this node registered."""
        self.is_draining: Callable[[], bool] = lambda: False
        self.is_taken_back: Callable[[], bool] = lambda: False
        """Whether the owner takes the machine back, with the containers that run on it."""
        self._attempts = Attempts(RETRY_S)
        self._parameters = parameters = read_parameters(TaskParameters, "tasks", ledger.runtime.genesis)
        self._executor = executor = Executor(
            ExecutorOptions(
                process=ProcessOptions(
                    engine=options.executor.engine,
                    child_module=self.child_module,
                    isolation_required=frozenset(options.executor.isolation),
                ),
                jobs_max=options.executor.jobs_max,
                verifications_max=options.executor.verifications_max,
            ),
            home.jobs,
            on_end=self._note_end,
            on_start=self._note_start,
        )
        self.capabilities: Capabilities | None = None
        """What the last job process got on this machine, if there was one."""
        self._is_unfit = False
        """No job may run here: a measure of ``executor.isolation`` is not granted, or the engine is missing."""
        self.job_ends = 0
        """Job and check processes that ended unexpectedly since the start."""
        files = partial(KeyFiles, data_dir / "keys", secret=secret)
        self.keys = keys = TaskKeys(ledger, network, wallet.address, secret, files(kind="key"))
        blobs, secret = network.blobs, digest(b"duty-secret", secret)
        assert blobs is not None
        self._promises = promises = Promises(data_dir / "promises", blobs, wallet.address)
        self._own_inputs = OwnInputs(ledger.store, blobs, wallet.address)
        self._own_inputs.tidy()  # before a byte of another blob can push them out
        self._inputs = inputs = Inputs(network, wallet.address)
        inputs.keys = keys
        self._own_copies = ContainerCopies(
            ledger.store, blobs, inputs, lambda: self._own_inputs.open_tasks, lambda: ledger.head().steady_ms,
            purpose="own checkpoint",
        )  # fmt: skip
        inputs.custodians = partial(input_holders, ledger.store)
        self._worker = self.worker_type(
            ledger, wallet, inputs, executor, promises, blobs, parameters, keys, data_dir=data_dir, secret=secret
        )
        self.containers: Containers | None = None
        """Containers on this machine's engine or in a cluster, where the options lend it."""
        if options.executor.lends_containers:
            self.containers = containers_of(
                options.executor, ledger, wallet, inputs, blobs, parameters, keys, data_dir / "containers"
            )
            self.containers.is_leaving = lambda: self.is_taken_back()
        self.views = TaskViews(ledger, network, wallet, lambda: self.containers)
        self._lends_containers = False
        self._false_outputs = FalseOutputs(ledger, wallet, keys)
        self._verifier = self.verifier_type(
            ledger, wallet, inputs, executor, promises, parameters, self._false_outputs,
            secret=secret,
            free_bytes=lambda: shutil.disk_usage(data_dir).free,
        )  # fmt: skip
        self._disputes = Disputes(
            ledger, wallet, inputs, executor, parameters, openings=self._worker.openings, secret=secret
        )
        self._keeper = keeper = Keeper(
            ledger, wallet, inputs, blobs, bytes_max=options.storage.bytes_kept_max,
            others=lambda: self.shares.kept_bytes,
        )  # fmt: skip
        self.shares = KeyShares(
            ledger, network, wallet, keys, inputs, blobs, files(kind="share"),
            (lambda: keeper.room_bytes) if "storage" in options.roles else None,
        )  # fmt: skip
        self.trials = SpeedTrials(ledger, wallet, executor, parameters, data_dir / "trials")
        self.challenges = Challenges(ledger, wallet, inputs, executor, data_dir / "challenges", secret=secret)

    def serve(self) -> None:
        """Answer requests of other nodes from now on; called once for a network."""
        self.keys.serve()
        self.shares.serve()
        self.views.serve()

    def search_with(self, search: BlobSearch) -> None:
        """Use ``search`` for data sets that no peer has."""
        self._inputs.search = search

    @property
    def address(self) -> bytes:
        """The node's account."""
        return self._wallet.address

    def jobs(self) -> list[dict[str, Any]]:
        """Return the running jobs for display."""
        return [
            {
                "task": task.hex(),
                "step": s.step,
                "total_steps": s.total_steps,
                "starts": s.starts,
                "device": s.device,
                "ends": s.ends,
                "last_end": s.last_end,
            }
            for task, s in self._executor.status.items()
        ]

    def troubles(self) -> list[dict[str, Any]]:
        """Return the failing duties, each with its reason, for display."""
        return [
            {
                "duty": str(key[0] if isinstance(key, tuple) else key),
                "task": key[1].hex() if isinstance(key, tuple) else None,
                "code": code,
                "error": text,
            }
            for key, (code, text) in self._attempts.troubles.items()
        ]

    def under_way(self) -> tuple[int, int, int]:
        """Return the open tasks, the verdicts and disputes still due, and the number of running duties."""
        state = self._ledger.store
        tasks, checks = by_duty_key(self.address), by_verifier_key(self.address)
        owed = len(state.scan(checks, checks + b"\xff" * (HASH_BYTES + 5), COUNT_MAX))
        owed += len(games_of(state, self.address))
        return len(state.scan(tasks, tasks + b"\xff" * (HASH_BYTES + 1), COUNT_MAX)), owed, self._attempts.running

    @property
    def market_events(self) -> dict[str, int]:
        """What this machine left or did late since the start; the names are labels of a metric."""
        return {
            "task_declined": self._worker.tasks_declined,
            "task_claimed": self._worker.claims_made,
            "seat_declined": self._verifier.seats_declined,
            "opening_late": self._worker.late_openings,
            "window_not_fetched": self._worker.windows_not_fetched,
            "trial_computed": self.trials.committed,
            "trial_missed": self.trials.missed,
            "trial_checked": self.trials.judged,
            "trial_found_wrong": self.trials.found_wrong,
        }

    @property
    def lies_shown(self) -> int:
        """How often this machine showed that false bytes were in custody, since the start."""
        return self._false_outputs.shown

    @property
    def disputes(self) -> dict[str, int]:
        """How many disputes this machine plays, by state: open or suspended."""
        return self._disputes.counts()

    @property
    def dispute_results(self) -> dict[str, int]:
        """How many disputes of this machine ended since the start, by result: won, lost or dropped."""
        return self._disputes.results

    def dispute_rows(self) -> list[dict[str, Any]]:
        """Return the disputes of this machine for display."""
        return self._disputes.rows()

    def parked_tasks(self) -> int:
        """Return how many tasks of the chain found no machine and wait for one that changes."""
        return count_parked(self._ledger.store, COUNT_MAX)

    def check_fund(self) -> int:
        """Return what the chain's check fund can put down, in 10^-18 DKB."""
        return fund_balance(self._ledger.store)

    @property
    def is_offered(self) -> bool:
        """Whether the registry offers this machine to tasks."""
        return self._status() is NodeStatus.ACTIVE

    def _status(self) -> NodeStatus | None:
        node = load_node(self._ledger.store, self.address)
        return None if node is None else node.status

    async def leave(self) -> None:
        """Suspend this machine on chain before its node stops in order; wait only briefly.

        A suspended machine gets no offers and no checks, but keeps its present duties. If no block or no peer
        arrives (the whole network stops), it does not wait.
        """
        self._is_leaving = True
        if not self._is_synced() or not self.is_offered:
            return
        with trio.move_on_after(LEAVE_S) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_alone, nursery.cancel_scope)
                try:
                    await self._suspend()
                except DAMAGE:
                    raise
                except (DekubeError, OSError) as error:
                    _log.warning(
                        "the chain could not be told that this machine stops; it may still be offered work",
                        error=str(error),
                    )
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught or self.is_offered:
            _log.warning(
                "the node stops before its machine's suspension is on chain; it may still be offered work"
            )

    async def _end_when_alone(self, scope: trio.CancelScope) -> None:
        """Cancel ``scope`` if no block arrives for LEAVE_QUIET_S, or if all peers disconnected."""
        had_peers = bool(self._network.peers())
        height, heard_at = self._ledger.head().height, trio.current_time()
        while trio.current_time() < heard_at + LEAVE_QUIET_S and (self._network.peers() or not had_peers):
            await trio.sleep(LEAVE_LOOK_S)
            if (now := self._ledger.head().height) != height:
                height, heard_at = now, trio.current_time()
        scope.cancel()

    async def run(self) -> None:
        """Perform the duties until cancelled."""
        if ended := await self._executor.end_leftovers():
            _log.warning("jobs of an earlier process of this node still ran and were killed", processes=ended)
        is_machine = bool({"compute", "verify", "storage"} & set(self._options.roles))
        self._worker.known = {entry.task for entry in await self._executor.unfinished()}
        async with trio.open_nursery() as nursery:
            if self.containers is not None:
                nursery.start_soon(self.containers.tidy)
                nursery.start_soon(self.containers.offers.follow, lambda: self._profile, self._offer)
            if is_machine and self._options.registry.auto_register:
                nursery.start_soon(self._measure)
            nursery.start_soon(self._executor.run_players)
            height = -1
            while True:
                height = (await self._ledger.wait_head(height)).height
                if not self._is_synced():
                    continue
                self._attempts.look(trio.current_time())
                if self._is_leaving or not is_machine:
                    pass
                elif self.is_draining() or self._is_unfit:
                    if self.is_offered:
                        self._start(nursery, "register", self._suspend)
                elif is_reported(self._ledger, self.address):
                    pass  # what this machine has reported keeps it off the market for a while
                elif self._status() is NodeStatus.SUSPENDED:
                    self._start(nursery, "register", self._return_to_market)
                elif self._profile is not None:
                    self._start(nursery, "register", self._register, self._profile)
                if not self._is_leaving and self._silent_ms() > self._parameters.presence_ms * PRESENCE_SHARE:
                    self._start(nursery, "presence", self._show_presence)
                self._look(nursery)

    # Finding work

    def _look(self, nursery: trio.Nursery) -> None:
        state, verifier = self._ledger.store, self._verifier
        for duty in work_duties(state, self.address, self._parameters):
            if duty.action in (Action.OPEN, Action.SERVE):
                answer = self._worker.open if duty.action is Action.OPEN else self._worker.serve
                self._start(nursery, (duty.action.value, duty.task, duty.window), answer, duty)
            elif self.containers is not None and load_task(state, duty.task).is_metered:
                self._start(nursery, ("work", duty.task), self.containers.work, duty.task)
            else:
                self._start(nursery, ("work", duty.task), self._worker.work, duty.task)
        for check in verification_duties(state, self.address):
            key = (check.action, check.task, check.window, check.is_jury)
            self._start(nursery, key, verifier.seal if check.action is Action.SEAL else verifier.reveal, check)
        self._look_at_disputes(nursery)
        for due in self.trials.look():
            self._start(nursery, due.key, due.function, *due.arguments)
        for kept in custody_duties(state, self.address):
            name = ("custody", kept.task, kept.window, kept.action, kept.chunk)
            self._start(nursery, name, self._keeper.perform, kept)
        self._keeper.tidy()
        self._own_inputs.tidy()
        self.shares.tidy()  # it knows which tasks are kept
        for copies in (self._own_copies, self.shares.copies):
            for wanted in copies.look():
                self._start(nursery, ("copy", wanted.task, wanted.blob), copies.fetch, wanted)
        for task in list(self._worker.known):
            self._start_forgetting(nursery, task)
        self._promises.tidy(state)
        self.keys.tidy()
        self._attempts.looked()

    def _look_at_disputes(self, nursery: trio.Nursery) -> None:
        for game in self._disputes.look():
            self._start(nursery, ("play", game.task, game.window, game.number), self._disputes.play, game)
        for window, number in self.challenges.to_open():
            self._start(nursery, ("open challenge", *window), self.challenges.open, window, number)
        for window in self.challenges.to_check():
            self._start(nursery, ("challenge", *window), self.challenges.check, window)

    def _start(self, nursery: trio.Nursery, key: Hashable, function: Callable[..., Any], *arguments: Any) -> None:
        if self._attempts.begin(key, trio.current_time()):
            nursery.start_soon(self._guarded, key, function, *arguments)

    async def _guarded(self, key: Hashable, function: Callable[..., Any], *arguments: Any) -> None:
        """Perform a duty. After an external failure it is tried again, because it stays on chain."""
        try:
            await function(*arguments)
        except DAMAGE:
            raise
        except Abandoned:
            _log.info("a duty was cancelled: the chain no longer requires it", duty=str(key))
            self._attempts.went_well(key)
        except (TransactionFailed, InvalidTransaction, TransactionLost) as error:
            if error.code in MOVED_ON:
                _log.info(
                    "a transaction of a duty was refused: the chain no longer requires it",
                    duty=str(key),
                    code=error.code,
                )
                self._attempts.went_well(key)
            else:
                self._note(key, "a transaction of a duty was refused", error.code, str(error))
            self._attempts.rest(key, trio.current_time())
        except (JobGivenUp, NothingToSay) as error:
            self._note(key, "a duty is given up", error.code, str(error))
            self._attempts.give_up(key)
        except (DekubeError, OSError) as error:  # OSError: a full disk, or a file that is gone
            code = error.code if isinstance(error, DekubeError) else "io_error"
            self._note(key, "a duty failed and is tried again", code, str(error))
            self._attempts.rest(key, trio.current_time())
        else:
            self._attempts.went_well(key)
        finally:
            self._attempts.ended(key)

    def _note_start(self, got: Capabilities) -> None:
        if got == self.capabilities:
            return
        self.capabilities = got
        if got.missing:
            _log.warning(
                "this machine does not grant all measures that isolate jobs", device=got.device,
                granted=sorted(got.isolation), missing=sorted(got.missing),
            )  # fmt: skip
        else:
            _log.info("jobs are isolated", device=got.device, granted=sorted(got.isolation))

    def _note_end(self, end: JobEnd) -> None:
        self.job_ends += 1
        _log.warning(
            "the process of a check ended by itself" if end.is_check else "the process of a job ended by itself",
            task=end.task, code=end.code, error=end.text, times=end.times, of_at_most=ENDS_MAX,
            given_up=end.is_last,
        )  # fmt: skip

    def _note(self, key: Hashable, event: str, code: str, text: str) -> None:
        """Log why a duty failed, unless the reason is the same as last time."""
        if self._attempts.failed(key, Trouble(code, text)):
            _log.warning(event, duty=str(key), code=code, error=text)

    # The registry

    async def _register(self, profile: NodeProfile) -> None:
        node = load_node(self._ledger.store, self.address)
        sponsored = self._options.registry.sponsored
        bond = 0 if sponsored else max(self._options.registry.stake, self._parameters.node_bond_min)
        if node is None:
            await self._wallet.send(REGISTER_NODE, node_payload(profile, bond))
            _log.info("this machine was registered", bond=format_amount(bond), rate=profile.rate)
            return
        if node.status is NodeStatus.RETIRING:
            return  # its owner wants out: renewing the entry would take that back
        if not self._is_news(node.profile.rate):
            profile = profile._replace(rate=node.profile.rate)
        same = node.profile == profile
        # Below the least bond nothing is offered: one fine, or a share in a jury's fees, would end its business.
        lacks = max(0, bond - node.bond) if node.backing < self._parameters.node_bond_min else 0
        # What is owed to tasks has to be said in time, or it costs another fine: that much stays.
        spare = balance_of(self._ledger.store, self.address) - self._wallet.cost_of(UPDATE_NODE, *OWED)
        more = lacks if spare > lacks else 0
        await self._move_payout(node)
        is_old = self._ledger.head().steady_ms - node.renewed_ms > self._parameters.registration_valid_ms // 2
        if more or not same or is_old:
            await self._wallet.send(UPDATE_NODE, node_payload(profile, more))
            _log.info("this machine's registration was renewed", more_bond=format_amount(more))

    def _silent_ms(self) -> int:
        """Return how long this machine has not acted on chain while it is on the market; 0 if it is not."""
        node = load_node(self._ledger.store, self.address)
        if node is None or node.status is not NodeStatus.ACTIVE:
            return 0
        return self._ledger.head().steady_ms - node.seen_ms

    async def _show_presence(self) -> None:
        """Show the chain that this machine is on. One that was away looks at parked tasks then, by an update."""
        was_away = self._silent_ms() > self._parameters.presence_ms
        await self._wallet.send(HEARTBEAT, [])
        if was_away:
            node = require_node(self._ledger.store, self.address)
            await self._wallet.send(UPDATE_NODE, node_payload(node.profile, 0))

    async def _move_payout(self, node: NodeRecord) -> None:
        """Have earnings paid to the account of the configuration, while this node's own is still paid."""
        payout = parse_payout(self._options.registry)
        if payout in (None, node.payout):
            return
        if node.payout == self.address:
            await self._wallet.send(SET_PAYOUT, [self.address, payout])
            _log.info("earnings go to another account", payout=payout)
        elif not self._told_payout:
            self._told_payout = True
            _log.warning(
                "registry.payout is not where earnings go, and only that account can change it",
                earnings_go_to=node.payout, configured=payout,
            )  # fmt: skip

    async def _suspend(self) -> None:
        """Suspend this machine, so that it gets no new work; its bond stays locked."""
        await self._wallet.send(SUSPEND_NODE, [])
        _log.info("this machine was suspended: it gets no new work until the node runs again")

    def _is_news(self, known: int) -> bool:
        """Whether the measured speed should replace the registered one.

        Measurements always differ slightly. A disturbed one is too low, never too high.
        """
        measured = self._speed
        if abs(measured.units_per_s - known) * 100 <= SPEED_SPREAD_PERCENT * max(measured.units_per_s, known):
            return False
        return measured.units_per_s > 0 and (measured.is_steady or measured.units_per_s > known)

    async def _measure(self) -> None:
        """Measure the machine's speed; again when it is idle, until a measurement was not disturbed.

        Duties do not wait for that: a node that restarts may have seconds for a move.
        """
        if self._options.executor.isolation and {"compute", "verify"} & set(self._options.roles):
            try:
                await self._executor.probe()
            except DAMAGE:
                raise
            except (DekubeError, OSError) as error:
                self._is_unfit = True
                _log.error("no job may run on this machine, so it takes none", error=str(error))
                return
        self._speed = await trio.to_thread.run_sync(known_rate, self._rate_file)
        if self.containers is not None:
            self._lends_containers = await self.containers.is_ready()
        profile = await trio.to_thread.run_sync(
            partial(
                describe_machine, containers=self._lends_containers,
                egress=self.containers is not None and self.containers.egress.is_open,
                limits=0 if self.containers is None else self.containers.limits,
                until_ms=stays_until(
                    self._options, self._ledger.head().steady_ms, time.time_ns() // 1_000_000
                ),
            ),
            self.address, self._options, self._speed.units_per_s,
        )  # fmt: skip
        if self._lends_containers and self.containers is not None and self.containers.offers.is_cluster:
            profile = await self.containers.offers.look(profile)
        self._profile = profile
        while self._profile is not None and not self._speed.is_steady:
            await trio.sleep(MEASURE_AGAIN_S)
            if self._attempts.running or self._is_leaving:
                continue
            found = await trio.to_thread.run_sync(renewed_rate, self._rate_file)
            if found.is_steady or found.units_per_s > self._speed.units_per_s:
                self._speed, self._profile = found, self._profile._replace(rate=found.units_per_s)
                _log.info(
                    "this machine's speed was measured again", rate=found.units_per_s, steady=found.is_steady
                )

    def _offer(self, profile: NodeProfile) -> None:
        """Have the registry say this: the next head sends what differs."""
        self._profile = profile if self._profile is None else profile._replace(rate=self._profile.rate)

    async def _return_to_market(self) -> None:
        node = load_node(self._ledger.store, self.address)
        if node is not None and node.status is NodeStatus.SUSPENDED:
            profile = self._profile or node.profile
            if not self._is_news(node.profile.rate):
                profile = profile._replace(rate=node.profile.rate)
            await self._wallet.send(UPDATE_NODE, node_payload(profile, 0))
            _log.info("this machine is back on the market")

    # What outlives a restart

    def _start_forgetting(self, nursery: trio.Nursery, task: bytes) -> None:
        state = self._ledger.store
        try:
            over = load_task(state, task).phase in ENDED or state.get(by_duty_key(self.address, task)) is None
        except TaskUnknown:
            over = True  # of a state that never became final
        if over and not self._attempts.is_running(("work", task)):
            self._start(nursery, ("forget", task), self._forget, task)

    async def _forget(self, task: bytes) -> None:
        """Drop the journal of a task without duties of this node: it has ended or was reassigned.

        Its blobs become ordinary, prunable ones (Promises.tidy).
        """
        await self._executor.forget(task)
        self._worker.known.discard(task)
        _log.info("a task has ended for this machine", task=task)
