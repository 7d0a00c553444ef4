"""What the chain asks of this node as a worker and as a verifier, done as it is asked.

The chain is the queue: each new head is read for duties, and whatever is not done yet is started, so a restart,
a lost transaction or a failed fetch needs no other memory than the journal of the executor and the few files
written here before anything is promised on chain.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, TypeVar

import structlog
import trio

from node.attempts import Attempts, Trouble
from node.blob_search import BlobSearch
from node.config import NodeOptions
from node.home import Home
from node.ledger import NodeLedger
from node.machine import available_memory_bytes, describe_machine, known_score
from node.promises import Promises, Published, VerdictKey, write_durably
from node.wallet import TransactionFailed, TransactionLost, Wallet
from p2p.service import Network
from state.primitives.codec import encode
from state.primitives.errors import DekubeError, InvalidTransaction, ProtocolError, RecordDamaged
from state.primitives.genesis import read_parameters
from state.primitives.hashing import HASH_BYTES, digest
from state.store.errors import StoreDamaged
from state.trie.trie import TrieDamaged
from state.view.accounts import balance_of
from tasks.datasets import DATASET_BYTES_MAX, Dataset
from tasks.engine.state import TrainingState
from tasks.errors import TaskUnknown
from tasks.executor.errors import JobFailed
from tasks.executor.needs import Needs, needs_of
from tasks.executor.results import Verdict, WindowResult, make_leaves, make_window_proof, segment_salts
from tasks.executor.service import FINAL_REASONS, Executor, ExecutorOptions
from tasks.executor.supervisor import ProcessOptions
from tasks.lifecycle import ENDED, Phase, Reason, WindowPhase
from tasks.parameters import TaskParameters
from tasks.proofs import (
    LEAVES_LIMIT_BYTES,
    Code,
    Finding,
    SegmentLeaf,
    check_leaves,
    decode_leaves,
    delivery_digest,
    encode_leaves,
    findings_to_value,
    make_opening,
    opening_to_value,
    verdict_seal,
    window_proof_to_value,
)
from tasks.queries import Action, CheckDuty, WorkDuty, verification_duties, work_duties
from tasks.records import WindowRecord, by_duty_key, by_verifier_key, load_spec, load_task, load_window
from tasks.registry import NodeProfile, NodeStatus, load_node, profile_to_value
from tasks.spec import JobSpec
from tasks.transitions import (
    ACCEPT_TASK,
    GIVE_UP_TASK,
    OPEN_WINDOW,
    REGISTER_NODE,
    RETIRE_NODE,
    REVEAL_VERDICT,
    SEAL_VERDICT,
    START_TASK,
    SUBMIT_WINDOW,
    UPDATE_NODE,
    node_payload,
)
from tasks.verification import seal_time

__all__ = ["Duties", "InputUnavailable", "Supply"]

_log = structlog.get_logger("duties")

RETRY_S: Final = 5.0
"""Pause before a duty that failed is tried again."""
FETCH_QUIET_S: Final = 60.0
"""A fetch that brings nothing for so long is begun again."""
FETCH_TRIES_MAX: Final = 3
"""Fetches in a row that bring nothing; what comes, however slowly, is waited for as long as there is time."""
QUIET_S: Final = 15.0
"""Peers that bring nothing of a data set for so long do not keep it from being looked for elsewhere."""
CHECKS_AT_ONCE_MAX: Final = 4
"""Windows whose inputs are held in memory for a check at one time; the executor re-runs fewer."""
PREPARE_SHARE: Final = 2 / 3
"""Of the time until a task must be started that its trial may take; the rest is for saying that it cannot be."""
PACE_MARGIN: Final = 2
"""A window must be done in this part of its time at the pace of the trial: a machine is not always as fast."""
DISK_SPARE_BYTES: Final = 512 << 20
"""Of the disk, that no job may count on: the chain is written there too."""
COUNT_MAX: Final = 1_000
"""Tasks and verdicts are counted up to here."""
DATASETS_HELD_MAX: Final = 2
"""Data sets kept decoded in memory."""
MOVED_ON: Final = ("wrong_phase", "not_yours", "proof_mismatch", "already_sealed", "already_revealed")
"""Refusals that say that the chain needs nothing of us any more."""
DAMAGE: Final = (RecordDamaged, StoreDamaged, TrieDamaged)
"""Of the database: no time heals it, so it ends the node as it does wherever else it is met."""


class InputUnavailable(DekubeError):
    """A blob that a duty needs could not be fetched from anybody, or is not what its root says."""

    code = "input_unavailable"


class JobUnfit(DekubeError):
    """A job that this machine cannot do in the time or space there is, or that nobody can do."""

    code = "job_unfit"


class _Abandoned(Exception):
    pass


class Supply(NamedTuple):
    """Whom to ask for blobs, and the moment (of trio's clock) after which none is waited for."""

    sources: Sequence[bytes]
    until: float = inf


class _Patience:
    """A scope that ends when nothing is noted for ``quiet_s``."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self.scope = trio.CancelScope()
        self.note()

    def note(self, *_progress: int) -> None:
        """Note that something came."""
        self.scope.deadline = trio.current_time() + self._quiet_s


_Result = TypeVar("_Result")


class Duties:
    """The node's work for the market."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, network: Network, options: NodeOptions, *, home: Home,
        secret: bytes, is_synced: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._wallet = wallet
        self._network = network
        self._options = options
        self._secret = digest(b"duty-secret", secret)
        self._is_synced = is_synced
        self._parameters = read_parameters(TaskParameters, "tasks", ledger.runtime.genesis)
        self._executor = Executor(
            ExecutorOptions(
                process=ProcessOptions(engine=options.executor.engine),
                jobs_max=options.executor.jobs_max,
                verifications_max=options.executor.verifications_max,
            ),
            home.jobs,
        )
        assert network.blobs is not None
        self._blobs = network.blobs
        self._data_dir = home.jobs.parent  # there before the first job is
        self._promises = Promises(home.jobs.parent / "promises", self._blobs, wallet.address)
        self._score = home.score
        self._left = home.jobs.parent / "drained"
        """Stands while the entry in the registry is retired because the node drains, and not because its owner
        wants out."""
        self.is_draining: Callable[[], bool] = lambda: False
        self.search: BlobSearch | None = None
        """Asks everybody for a data set that no peer has."""
        self._attempts = Attempts(RETRY_S)
        self._known_tasks: set[bytes] = set()
        self._datasets: dict[bytes, tuple[bytes, bytes]] = {}
        self._reading_dataset = trio.Lock()
        self._checks = trio.CapacityLimiter(CHECKS_AT_ONCE_MAX)

    @property
    def address(self) -> bytes:
        """The node's account."""
        return self._wallet.address

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that run now, for people."""
        return [
            {
                "task": task.hex(),
                "step": s.step,
                "total_steps": s.total_steps,
                "starts": s.starts,
                "device": s.device,
            }
            for task, s in self._executor.status.items()
        ]

    def troubles(self) -> list[dict[str, Any]]:
        """Return the duties that are tried again and again, each with why it was not done, for people."""
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
        """Return tasks of which something may still be asked, verdicts that are owed, and duties that run now."""
        state = self._ledger.store
        tasks, checks = by_duty_key(self.address), by_verifier_key(self.address)
        owed = len(state.scan(checks, checks + b"\xff" * (HASH_BYTES + 5), COUNT_MAX))
        return len(state.scan(tasks, tasks + b"\xff" * (HASH_BYTES + 1), COUNT_MAX)), owed, self._attempts.running

    @property
    def is_offered(self) -> bool:
        """Whether the registry offers this machine to tasks."""
        node = load_node(self._ledger.store, self.address)
        return node is not None and node.status is NodeStatus.ACTIVE

    async def run(self) -> None:
        """Do what is asked until cancelled."""
        if not {"compute", "verify"} & set(self._options.roles):
            return
        self._known_tasks = {entry.task for entry in await self._executor.unfinished()}
        profile = None
        if self._options.registry.auto_register:
            score = await trio.to_thread.run_sync(known_score, self._score)
            profile = await trio.to_thread.run_sync(describe_machine, self.address, self._options, score)
        async with trio.open_nursery() as nursery:
            height = -1
            while True:
                height = (await self._ledger.wait_head(height)).height
                if not self._is_synced():
                    continue
                self._attempts.look(trio.current_time())
                if self.is_draining():
                    if self.is_offered:
                        self._start(nursery, "register", self._leave_market)
                elif self._left.exists():
                    self._start(nursery, "register", self._return_to_market)
                elif profile is not None:
                    self._start(nursery, "register", self._register, profile)
                self._look(nursery)

    # Finding work

    def _look(self, nursery: trio.Nursery) -> None:
        state = self._ledger.store
        for duty in work_duties(state, self.address, self._parameters):
            if duty.action is Action.OPEN:
                self._start(nursery, ("open", duty.task, duty.window), self._open, duty)
            else:
                self._start(nursery, ("work", duty.task), self._work, duty.task)
        for check in verification_duties(state, self.address):
            key = (check.action, check.task, check.window, check.is_jury)
            self._start(nursery, key, self._seal if check.action is Action.SEAL else self._reveal, check)
        for task in list(self._known_tasks):
            self._start_forgetting(nursery, task)
        self._promises.tidy(state)
        self._attempts.looked()

    def _start(self, nursery: trio.Nursery, key: Hashable, function: Callable[..., Any], *arguments: Any) -> None:
        if self._attempts.begin(key, trio.current_time()):
            nursery.start_soon(self._guarded, key, function, *arguments)

    async def _guarded(self, key: Hashable, function: Callable[..., Any], *arguments: Any) -> None:
        """Do a duty; what fails for a reason outside this node is tried again, for the duty stays on chain."""
        try:
            await function(*arguments)
        except DAMAGE:
            raise
        except _Abandoned:
            _log.info("the chain moved on", duty=str(key))
            self._attempts.went_well(key)
        except (TransactionFailed, InvalidTransaction, TransactionLost) as error:
            if error.code in MOVED_ON:
                _log.info("a transaction of a duty was refused", duty=str(key), code=error.code)
                self._attempts.went_well(key)
            else:
                self._note(key, "a transaction of a duty was refused", error.code, str(error))
            self._attempts.rest(key, trio.current_time())
        except (DekubeError, OSError) as error:  # OSError: a full disk, or a file that is gone
            code = error.code if isinstance(error, DekubeError) else "io_error"
            self._note(key, "a duty failed and is tried again", code, str(error))
            self._attempts.rest(key, trio.current_time())
        else:
            self._attempts.went_well(key)
        finally:
            self._attempts.ended(key)

    def _note(self, key: Hashable, event: str, code: str, text: str) -> None:
        """Log why a duty was not done, unless it was so the last time."""
        if self._attempts.failed(key, Trouble(code, text)):
            _log.warning(event, duty=str(key), code=code, error=text)

    async def _while(self, stands: Callable[[], bool], work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Do ``work`` as long as the chain wants it: what it holds is free at once when the chain moves on.

        Raises _Abandoned then, and else what ``work`` raises; a damaged record as what it is.
        """
        outcome: list[_Result] = []
        failure: Exception | None = None

        async def watch() -> None:
            nonlocal failure
            height = -1
            try:
                while stands():
                    height = (await self._ledger.wait_head(height)).height
            except DAMAGE as error:
                failure = error
            except DekubeError:  # a record that is gone asks for nothing
                pass
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                outcome.append(await work())
            except Exception as error:  # raised again below: out of the nursery it would come in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        if not outcome:
            raise _Abandoned
        return outcome[0]

    # The registry

    async def _register(self, profile: NodeProfile) -> None:
        node = load_node(self._ledger.store, self.address)
        bond = max(self._options.registry.stake, self._parameters.node_bond_min)
        if node is None:
            await self._wallet.send(REGISTER_NODE, node_payload(profile, bond))
            _log.info("registered", bond=bond, score=profile.score)
            return
        if node.status is NodeStatus.RETIRING:
            return  # its owner wants out: renewing the entry would take that back
        # No two measurements of a score agree: it is no reason to write.
        same = node.profile._replace(score=profile.score) == profile
        seen_ms = self._ledger.head().time_ms - node.seen_ms
        # Below the least bond nothing is offered: one fine, or a share in a jury's fees, would end its business.
        lacks = bond - node.bond if node.bond < self._parameters.node_bond_min else 0
        more = lacks if balance_of(self._ledger.store, self.address) > lacks else 0
        if more or not same or seen_ms > self._parameters.registration_valid_ms // 2:
            await self._wallet.send(UPDATE_NODE, node_payload(profile, more))
            _log.info("registration renewed", more_bond=more)

    async def _leave_market(self) -> None:
        """Have no more work assigned to this machine, without taking back its bond."""
        write_durably(self._left, b"")
        await self._wallet.send(RETIRE_NODE, [])
        _log.info("off the market until draining ends")

    async def _return_to_market(self) -> None:
        node = load_node(self._ledger.store, self.address)
        if node is not None and node.status is NodeStatus.RETIRING:
            await self._wallet.send(UPDATE_NODE, node_payload(node.profile, 0))
            _log.info("back on the market")
        self._left.unlink(missing_ok=True)

    # The worker

    def _work_duty(self, task: bytes) -> WorkDuty | None:
        for duty in work_duties(self._ledger.store, self.address, self._parameters):
            if duty.task == task and duty.action is not Action.OPEN:
                return duty
        return None

    async def _work(self, task: bytes) -> None:
        spec = load_spec(self._ledger.store, task)
        while (duty := self._work_duty(task)) is not None:
            match duty.action:
                case Action.ACCEPT:
                    await self._accept(task, spec, duty)
                case Action.START:
                    await self._begin(task, spec, duty)
                case Action.COMPUTE:
                    await self._compute(task, spec, duty)
                    return
                case _:
                    return

    def _machine(self) -> bytes:
        node = load_node(self._ledger.store, self.address)
        return digest(b"machine", encode(profile_to_value(node.profile)) if node is not None else b"")

    async def _accept(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        """Lock the bond, if this machine has the room that the job may take; declining costs nothing yet."""
        lack = await trio.to_thread.run_sync(self._lack_of_room, task, spec)
        if lack:
            await self._wallet.send(GIVE_UP_TASK, [task, int(Reason.JOB_UNFIT)])
            raise JobUnfit(lack)
        await self._wallet.send(ACCEPT_TASK, [task, duty.bond])
        _log.info("accepted", task=task)

    def _lack_of_room(self, task: bytes, spec: JobSpec) -> str:
        """Return what the machine lacks for a job beside those it has taken on, or an empty text."""
        state, windows = self._ledger.store, self._parameters.open_windows_max
        process_max = ProcessOptions().memory_mib << 20
        asked = needs_of(spec, open_windows_max=windows)
        taken = Needs(0, 0, 0, 0)
        for other in {duty.task for duty in work_duties(state, self.address, self._parameters)} - {task}:
            taken += needs_of(load_spec(state, other), open_windows_max=windows)
        budget, free = self._blobs.budget_bytes, shutil.disk_usage(self._data_dir).free - DISK_SPARE_BYTES
        memory = available_memory_bytes()
        for name, needed, there in (
            ("memory of a job", asked.process, process_max),
            ("memory", asked.process + asked.node, memory),
            ("room for blobs", asked.blobs + taken.blobs, budget),
            ("disk", asked.blobs + asked.journal + taken.blobs + taken.journal, free),
        ):
            if needed > there:
                return f"{name}: {needed} bytes needed, {there} there"
        return ""

    async def _begin(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        """Bind this machine to the job once its beginning was tried: until then giving up is nobody's fault."""
        left_s = max(0, duty.deadline_ms - self._ledger.head().time_ms) / 1000
        reason, why = Reason.JOB_UNFIT, "not ready in time"
        with trio.move_on_after(PREPARE_SHARE * left_s) as scope:
            try:
                await self._while(partial(self._is_at, task, Action.START), partial(self._try, task, spec, duty))
                reason, why = Reason.STARTED, ""
            except InputUnavailable as error:
                reason, why = Reason.INPUT_UNAVAILABLE, str(error)
            except JobFailed as error:
                why = str(error)
                if error.reason == "diverged":
                    reason = Reason.JOB_DIVERGED
            except DAMAGE:
                raise
            except (DekubeError, OSError) as error:  # of this machine: no engine, no isolation, a full disk
                why = str(error)
        if scope.cancelled_caught or reason != Reason.STARTED:
            await self._wallet.send(GIVE_UP_TASK, [task, int(reason)])
            await self._executor.forget(task)
            raise JobUnfit(why)
        await self._wallet.send(START_TASK, [task, self._machine()])
        _log.info("started", task=task)

    async def _try(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        """Do the first segment. Raises InputUnavailable, JobUnfit where a window would be late, or as run_task."""
        dataset, start = await self._inputs(task, spec, duty)
        pace_ms = await self._executor.try_task(task, spec, dataset, start=start)
        step_from, step_to = spec.window_range(duty.window)
        parameters = self._parameters
        allowed_ms = parameters.window_slack * spec.gpu_ms_max(duty.window) + parameters.window_grace_ms
        if PACE_MARGIN * pace_ms * (step_to - step_from) > allowed_ms:
            raise JobUnfit(f"{pace_ms} ms a step: window {duty.window} would be late")

    async def _inputs(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> tuple[bytes, bytes | None]:
        """Return the data set, and the state to start from where neither journal nor job has it."""
        dataset = await self._dataset(spec, Supply(self._peers()), task)
        start: bytes | None = None
        if not await self._executor.resumes(task, spec, duty.window, duty.state_root) and duty.window:
            before = load_window(self._ledger.store, task, duty.window - 1)
            start = await self._fetch_state(before, Supply(self._holders(before)), spec)
            if before.proof.state_root_out != duty.state_root:
                raise _Abandoned
        self._known_tasks.add(task)
        return dataset, start

    def _is_at(self, task: bytes, action: Action) -> bool:
        duty = self._work_duty(task)
        return duty is not None and duty.action is action

    def _is_ours(self, task: bytes) -> bool:
        """Whether the chain still has this node as the worker of a task that runs, or waits for its verdicts."""
        record = load_task(self._ledger.store, task)
        return record.worker == self.address and record.phase in (Phase.RUNNING, Phase.OUTPUT, Phase.VERIFYING)

    async def _compute(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        is_ours = partial(self._is_ours, task)
        dataset, start = await self._while(is_ours, partial(self._inputs, task, spec, duty))
        outcome: list[BaseException | None] = [None]

        async def hand_on(result: WindowResult) -> None:
            try:
                await self._submit_window(task, spec, result)
            except _Abandoned as stop:
                outcome[0] = stop
                scope.cancel()
                await trio.lowlevel.checkpoint()

        with trio.CancelScope() as scope:
            run = partial(self._executor.run_task, task, spec, dataset, hand_on, start=start)
            try:
                done = await self._while(is_ours, run)
            except JobFailed as error:
                if error.reason not in FINAL_REASONS:
                    raise
                # It comes again however often it is tried: waiting for the deadline would only cost time.
                reason = Reason.JOB_DIVERGED if error.reason == "diverged" else Reason.JOB_UNFIT
                await self._wallet.send(GIVE_UP_TASK, [task, int(reason)])
                raise
            _log.info("job done", task=task, steps=done.steps, right=done.accuracy[0], samples=done.accuracy[1])
        if outcome[0] is not None:
            raise _Abandoned

    async def _submit_window(self, task: bytes, spec: JobSpec, result: WindowResult) -> None:
        """Publish a window's blobs, keep what opening it will need, and put its proof on chain."""
        salts = segment_salts(self._secret, task, result.window, len(result.segments))
        names: list[bytes] = []
        try:
            for number in range(len(result.segments) + 1):
                names.append(  # noqa: PERF401 - what is pinned must be known where a later one fails
                    await trio.to_thread.run_sync(self._store_state, result, number)
                )
            leaves = make_leaves(result, salts, names[:-1])
            leaves_blob = await trio.to_thread.run_sync(self._blobs.add, encode_leaves(leaves))
            probes = tuple(segment.probe_root for segment in result.segments)
            published = Published(probes, tuple(names[:-1]), leaves_blob, names[-1])
            await trio.to_thread.run_sync(self._promises.publish, task, result.window, published)
        except BaseException:
            self._promises.abandon(names)
            raise
        proof = make_window_proof(task, result, leaves, leaves_blob=leaves_blob, output_blob=names[-1])
        height = -1
        while True:
            height = (await self._ledger.wait_head(height)).height
            duty = self._work_duty(task)
            if duty is None or duty.action is not Action.COMPUTE:
                raise _Abandoned
            if duty.window > result.window:
                return  # an earlier run of this node has submitted it
            if duty.window < result.window:
                raise _Abandoned  # what this stands on does not count any more
            if not duty.blocked and duty.window == result.window:
                break
        await self._wallet.send(SUBMIT_WINDOW, [window_proof_to_value(proof)])
        _log.info(
            "window proved", task=task, window=result.window, gpu_ms=result.meter.gpu_ms, device=result.device
        )

    def _store_state(self, result: WindowResult, number: int) -> bytes:
        name = self._blobs.add(result.load_state(number))
        self._blobs.pin(name)
        return name

    async def _open(self, duty: WorkDuty) -> None:
        published = self._promises.published(duty.task, duty.window)
        if published is None:
            raise InputUnavailable(f"window {duty.window} of task {duty.task.hex()} was not published here")
        probes = published.probes
        leaves = decode_leaves(await trio.to_thread.run_sync(self._blobs.read, duty.state_blob))
        salts = segment_salts(self._secret, duty.task, duty.window, len(leaves))
        openings = [make_opening(leaves, i, probes[i], salts[i]) for i in duty.segments]
        await self._wallet.send(OPEN_WINDOW, [duty.task, duty.window, [opening_to_value(o) for o in openings]])
        _log.info("window opened", task=duty.task, window=duty.window)

    # The verifier

    async def _seal(self, duty: CheckDuty) -> None:
        findings = await self._while(partial(self._can_seal, duty), partial(self._find, duty))
        await trio.to_thread.run_sync(self._promises.seal, _verdict_key(duty), findings)
        seal = verdict_seal(duty.task, duty.window, self.address, findings, self._nonce(duty))
        await self._wallet.send(SEAL_VERDICT, [duty.task, duty.window, seal])
        _log.info("verdict sealed", task=duty.task, window=duty.window, codes=[f.code.name for f in findings])

    def _can_seal(self, duty: CheckDuty) -> bool:
        """Whether the chain still waits for this verdict."""
        window = load_window(self._ledger.store, duty.task, duty.window)
        phase = WindowPhase.JURY_SEALING if duty.is_jury else WindowPhase.SEALING
        if duty.is_delivery:
            phase = WindowPhase.DELIVERY_SEALING
        seats = window.jurors if duty.is_jury else window.verifiers
        return (
            (window.phase, window.height) == (phase, duty.height)
            and any(seat.address == self.address and not seat.seal for seat in seats)
            and self._ledger.head().time_ms < duty.deadline_ms
        )

    async def _reveal(self, duty: CheckDuty) -> None:
        findings = self._promises.sealed(_verdict_key(duty))
        await self._wallet.send(
            REVEAL_VERDICT, [duty.task, duty.window, findings_to_value(findings), self._nonce(duty)]
        )
        _log.info("verdict revealed", task=duty.task, window=duty.window)

    async def _find(self, duty: CheckDuty) -> tuple[Finding, ...]:
        """Re-run the drawn segments; what cannot be fetched from anybody is a finding too.

        So is the state after the window: nobody pays for work whose result is nowhere to be had.
        """
        spec = load_spec(self._ledger.store, duty.task)
        window = load_window(self._ledger.store, duty.task, duty.window)
        supply = Supply(self._holders(window), trio.current_time() + self._fetch_s(duty, spec))
        limit_bytes = spec.plan().state_limit_bytes
        if duty.is_delivery:
            return await self._try_result(duty, spec, window, supply)
        # Fetching holds up nobody else: what one task's blobs lack must not cost another task its verdict.
        lacks: dict[int, str] = {}
        try:
            leaves = await self._leaves(spec, window, supply)
            await self._obtain(spec.dataset.blob, supply, DATASET_BYTES_MAX, duty.task)
            await self._obtain(window.proof.output_blob, supply, limit_bytes)
        except InputUnavailable as error:
            return _unavailable(duty, error)
        for segment in duty.segments:
            try:
                await self._obtain(leaves[segment].state_blob, supply, limit_bytes)
            except InputUnavailable as error:
                lacks[segment] = str(error)
        async with self._checks:
            try:
                await self._fetch_state(window, supply, spec)
                dataset = await self._dataset(spec, supply, duty.task)
            except InputUnavailable as error:
                return _unavailable(duty, error)
            return await self._check(duty, spec, dataset, leaves, supply, lacks)

    async def _try_result(
        self, duty: CheckDuty, spec: JobSpec, window: WindowRecord, supply: Supply
    ) -> tuple[Finding, ...]:
        """Fetch the result that a requester says it cannot have; who can has a copy to serve then."""
        try:
            state = await self._fetch_state(window, supply, spec)
        except InputUnavailable as error:
            return _unavailable(duty, error)
        digest_of_it = await trio.to_thread.run_sync(delivery_digest, duty.salt, state)
        return (Finding(duty.segments[0], Code.COMPUTED, digest_of_it, window.proof.state_root_out),)

    def _fetch_s(self, duty: CheckDuty, spec: JobSpec) -> float:
        """Return how long a check waits for what it needs, which leaves time to do it and to seal."""
        left_ms = max(0, duty.deadline_ms - self._ledger.head().time_ms)
        run_ms = seal_time(spec, 0 if duty.is_delivery else len(duty.segments), self._parameters).run_ms
        return max(left_ms - run_ms // 2, left_ms // 2) / 1000

    async def _check(
        self, duty: CheckDuty, spec: JobSpec, dataset: bytes, leaves: Sequence[SegmentLeaf], supply: Supply,
        lacks: Mapping[int, str],
    ) -> tuple[Finding, ...]:  # fmt: skip
        found = []
        for segment in duty.segments:
            if segment in lacks:
                verdict = Verdict.unavailable(segment, lacks[segment])
            else:
                try:
                    state = await self._fetch(leaves[segment].state_blob, supply, spec.plan().state_limit_bytes)
                except InputUnavailable as error:
                    verdict = Verdict.unavailable(segment, str(error))
                else:
                    verdict = await self._executor.verify_segment(spec, dataset, leaves[segment], state)
            if not verdict.ok:
                _log.warning(
                    "a segment does not agree", task=duty.task, window=duty.window, segment=segment,
                    code=verdict.code.name, mismatches=list(verdict.mismatches),
                )  # fmt: skip
            found.append(verdict.finding)
        return tuple(found)

    async def _leaves(self, spec: JobSpec, window: WindowRecord, supply: Supply) -> tuple[SegmentLeaf, ...]:
        data = await self._fetch(window.proof.leaves_blob, supply, LEAVES_LIMIT_BYTES)
        try:
            leaves = decode_leaves(data)
            check_leaves(spec, window.proof, leaves)
        except ProtocolError as error:
            raise InputUnavailable(f"leaves: {error}") from None
        return leaves

    def _nonce(self, duty: CheckDuty) -> bytes:
        """Return the nonce of a seal: derived, so that a restarted verifier can still reveal.

        Another one for each draw: once revealed it would let anybody guess what a later seal of the window hides.
        """
        value = encode([duty.task, duty.window, int(duty.is_jury), duty.height])
        return digest(b"verdict-nonce", self._secret + value)

    # Inputs

    def _peers(self, *first: bytes) -> list[bytes]:
        """Return whom to ask for a blob: those who should have it, then whoever is connected."""
        connected = [peer.address for peer in self._network.peers()]
        return [address for address in dict.fromkeys([*first, *connected]) if address != self.address]

    def _holders(self, window: WindowRecord) -> list[bytes]:
        """Return whom to ask for a window's blobs: who made them, those who fetched them to check it, the rest."""
        return self._peers(window.worker, *(seat.address for seat in (*window.verifiers, *window.jurors)))

    async def _dataset(self, spec: JobSpec, supply: Supply, task: bytes) -> bytes:
        """Return the encoded data set of a job, checked against its root. Raises InputUnavailable."""
        await self._obtain(spec.dataset.blob, supply, DATASET_BYTES_MAX, task)
        async with self._reading_dataset:  # one at a time: each takes several times its size for a while
            known = self._datasets.get(spec.dataset.blob)
            if known is not None and known[0] == spec.dataset.root:
                return known[1]
            data = await self._read(spec.dataset.blob)
            try:
                root = await trio.to_thread.run_sync(_dataset_root, data)
            except DekubeError as error:
                raise InputUnavailable(f"data set: {error}") from None
            if root != spec.dataset.root:
                raise InputUnavailable("the data set is not the one of its root")
            while len(self._datasets) >= DATASETS_HELD_MAX:
                self._datasets.pop(next(iter(self._datasets)))
            self._datasets[spec.dataset.blob] = (root, data)
            return data

    async def _fetch_state(self, window: WindowRecord, supply: Supply, spec: JobSpec) -> bytes:
        """Return the state after a window, if it is the one that its worker proved. Raises InputUnavailable."""
        state = await self._fetch(window.proof.output_blob, supply, spec.plan().state_limit_bytes)
        await trio.to_thread.run_sync(_check_state, state, spec, window.proof.step_to, window.proof.state_root_out)
        return state

    async def _fetch(self, name: bytes, supply: Supply, limit_bytes: int) -> bytes:
        """Return the content of a blob, from here or from peers. Raises InputUnavailable."""
        await self._obtain(name, supply, limit_bytes)
        return await self._read(name)

    async def _read(self, name: bytes) -> bytes:
        try:
            return await trio.to_thread.run_sync(self._blobs.read, name)
        except DekubeError as error:  # evicted meanwhile, or damaged
            raise InputUnavailable(f"blob {name.hex()}: {error}") from None

    async def _obtain(self, name: bytes, supply: Supply, limit_bytes: int, dataset_of: bytes = b"") -> None:
        """Have a blob on this machine's disk. Raises InputUnavailable.

        Where no peer has the data set of the task ``dataset_of``, everybody is asked who does. The name is a
        stranger's: without ``limit_bytes`` it could be that of more than this machine holds.
        """
        blobs, tries = self._blobs, 0
        error = InputUnavailable("not here in the time there is")
        with trio.move_on_at(supply.until):
            while not blobs.is_complete(name) and tries < FETCH_TRIES_MAX:
                if tries:
                    await trio.sleep(RETRY_S / FETCH_TRIES_MAX)
                here = self._pieces_here(name)
                try:
                    patience = _Patience(FETCH_QUIET_S)
                    with patience.scope:
                        await self._bring(name, supply, limit_bytes, dataset_of, patience)
                    if patience.scope.cancelled_caught:
                        error = InputUnavailable(f"nothing came for {FETCH_QUIET_S} s")
                except DekubeError as failure:
                    error = InputUnavailable(str(failure))
                tries = 1 if self._pieces_here(name) > here else tries + 1
        if not blobs.is_complete(name):
            raise InputUnavailable(f"blob {name.hex()}: {error}")
        manifest = blobs.manifest(name)
        if manifest is not None and manifest.size_bytes > limit_bytes:
            raise InputUnavailable(f"blob {name.hex()}: {manifest.size_bytes} bytes, limit {limit_bytes}")

    def _pieces_here(self, name: bytes) -> int:
        manifest = self._blobs.manifest(name)
        if manifest is None:
            return 0
        try:
            return len(manifest.hashes) - len(self._blobs.missing(name))
        except DekubeError:  # evicted meanwhile
            return 0

    async def _bring(
        self, name: bytes, supply: Supply, limit_bytes: int, dataset_of: bytes, patience: _Patience
    ) -> None:
        fetch = partial(self._network.fetch_blob, name, supply.sources, limit_bytes=limit_bytes)
        if not dataset_of or self.search is None:
            await fetch(progress=patience.note)
            return
        direct = _Patience(QUIET_S)

        def note(_done: int, _every: int) -> None:
            direct.note()
            patience.note()

        with direct.scope, suppress(DekubeError):
            await fetch(progress=note)
            return
        await self.search.fetch(dataset_of, name, limit_bytes)

    # What outlives a restart

    def _start_forgetting(self, nursery: trio.Nursery, task: bytes) -> None:
        try:
            ended = load_task(self._ledger.store, task).phase in ENDED
        except TaskUnknown:
            ended = True  # of a state that never became final
        if ended and not self._attempts.is_running(("work", task)):
            self._start(nursery, ("forget", task), self._forget, task)

    async def _forget(self, task: bytes) -> None:
        """Drop the journal of a task that has ended; its blobs become ordinary, prunable ones (Promises.tidy)."""
        await self._executor.forget(task)
        self._known_tasks.discard(task)
        _log.info("task ended", task=task)


def _verdict_key(duty: CheckDuty) -> VerdictKey:
    return VerdictKey(duty.task, duty.window, duty.is_jury)


def _dataset_root(data: bytes) -> bytes:
    return Dataset.decode(data).root()


def _check_state(data: bytes, spec: JobSpec, step: int, root: bytes) -> None:
    """Check that a state which another worker published is the one the chain knows. Raises InputUnavailable."""
    plan = spec.plan()
    try:
        state = TrainingState.decode(data, plan)
    except DekubeError as error:
        raise InputUnavailable(f"state: {error}") from None
    if (state.step, state.root(plan)) != (step, root):
        raise InputUnavailable("the state is not the one on chain")


def _unavailable(duty: CheckDuty, error: InputUnavailable) -> tuple[Finding, ...]:
    _log.warning("a window cannot be checked", task=duty.task, window=duty.window, error=str(error))
    return tuple(Verdict.unavailable(segment, str(error)).finding for segment in duty.segments)
