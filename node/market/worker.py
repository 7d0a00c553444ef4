"""A worker's work: take a task on, try it, run it, prove its windows, open what the chain has drawn of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.cancellation import DAMAGE, Abandoned, work_while
from node.market.inputs import DATASET_INPUT, DatasetWrong, Inputs, InputUnavailable, JobInputs, Supply
from node.market.machine import available_memory_bytes
from node.market.promises import Promises, Published
from node.market.task_keys import TaskKeys, WindowSeal
from node.market.wallet import Wallet
from p2p.base.errors import BlobUnavailable
from p2p.blob.store import BlobStore
from state.primitives.codec import encode
from state.primitives.errors import DekubeError
from state.primitives.hashing import digest
from state.view.accounts import balance_of
from tasks.claims import InputClaim, claim_to_value, say_divergence
from tasks.custody.keys import key_proof_to_value
from tasks.custody.sealed import public_output
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.starting import Start
from tasks.engines.state import TrainingState
from tasks.engines.tuning_plan import TuningPlan
from tasks.evaluations import show_losses
from tasks.executor.errors import JobFailed, JobGivenUp
from tasks.executor.resource_needs import Needs, needs_of
from tasks.executor.results import WindowResult, make_leaves, make_window_proof, segment_salts
from tasks.executor.service import FINAL_REASONS, Executor
from tasks.executor.supervisor import ProcessOptions
from tasks.ledger.claim_transitions import CLAIM_DIVERGED, CLAIM_INPUT
from tasks.ledger.custody_records import find_terms
from tasks.ledger.custody_transitions import CLAIM_KEYED
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.progress import window_span_ms
from tasks.ledger.queries import Action, WorkDuty, work_duties
from tasks.ledger.records import load_spec, load_task, load_window
from tasks.ledger.registry import load_node, profile_to_value
from tasks.ledger.screening import kind_objections
from tasks.ledger.serving_transitions import SERVE_WINDOW
from tasks.ledger.settlement import open_windows_of
from tasks.ledger.transitions import ACCEPT_TASK, GIVE_UP_TASK, OPEN_WINDOW, START_TASK, SUBMIT_WINDOW
from tasks.proofs import (
    Opening,
    ShownLosses,
    WindowProof,
    decode_leaves,
    encode_leaves,
    make_opening,
    opening_to_value,
    window_proof_to_value,
)
from tasks.spec import JobSpec

__all__ = ["JobUnfit", "Worker"]

_log = structlog.get_logger("duties")

PREPARE_SHARE: Final = 2 / 3
"""Of the time until a task must be started that its trial may take; the rest is for saying that it cannot be."""
PACE_MARGIN: Final = 2
"""A window must be done in this part of its time at the pace of the trial: a machine is not always as fast."""
FETCH_TRIES: Final = 8
"""Fetches of a task's data set, or of the state before a window, without progress in a row: a minute and more. A
machine that has them may be starting again, and to leave the task costs its requester time."""
PRIVATE_BLOBS: Final = 2
"""Of a private task's blobs there are so many times those of a public one, at most."""
DISK_SPARE_BYTES: Final = 512 << 20
"""Of the disk, that no job may count on: the chain is written there too."""


class JobUnfit(DekubeError):
    """A job that this machine cannot do in the time or space there is, or that nobody can do."""

    code = "job_unfit"


class Worker:
    """Does what the chain asks of the worker of a task."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, inputs: Inputs, executor: Executor, promises: Promises,
        blobs: BlobStore, parameters: TaskParameters, keys: TaskKeys, *, data_dir: Path, secret: bytes,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._wallet = wallet
        self._inputs = inputs
        self._executor = executor
        self._promises = promises
        self._blobs = blobs
        self._parameters = parameters
        self._keys = keys
        self._data_dir = data_dir
        self._secret = secret
        self.known: set[bytes] = set()
        """Tasks of which the executor may have a journal."""
        self.tasks_declined = 0
        """Tasks left before they were started, since the start of the node."""
        self.claims_made = 0
        """Tasks that this machine proved to be such that nobody can run them, since the start of the node."""
        self.late_openings = 0
        """Windows opened in the extension that costs a fine, since the start of the node."""
        self.windows_not_fetched = 0
        """Windows that a jury could not fetch and that this machine answered for, since the start of the node."""

    def _work_duty(self, task: bytes) -> WorkDuty | None:
        for duty in work_duties(self._ledger.store, self._wallet.address, self._parameters):
            if duty.task == task and duty.action not in (Action.OPEN, Action.SERVE):
                return duty
        return None

    async def work(self, task: bytes) -> None:
        """Do what the chain asks for a task, one step after the other, until it asks for nothing more."""
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
        node = load_node(self._ledger.store, self._wallet.address)
        return digest(b"machine", encode(profile_to_value(node.profile)) if node is not None else b"")

    async def _accept(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        """Lock the bond, if this machine has the room that the job may take; declining costs nothing yet."""
        # Told as an input that cannot be fetched: a complaint pauses no machine (R53).
        lack, reason = "; ".join(text for _, text in kind_objections(spec)), Reason.INPUT_UNAVAILABLE
        if not lack:
            room = await trio.to_thread.run_sync(self._lack_of_room, task, spec)
            lack, reason = room or self._lack_of_funds(spec, duty), Reason.JOB_UNFIT
        if not lack:
            is_offered = partial(self._is_at, task, Action.ACCEPT)
            lack = await work_while(self._ledger, is_offered, partial(self._lack_of_key, task))
            reason = Reason.INPUT_UNAVAILABLE
        if lack:
            await self._wallet.send(GIVE_UP_TASK, [task, int(reason)])
            self.tasks_declined += 1
            raise JobUnfit(lack)
        await self._wallet.send(ACCEPT_TASK, [task, duty.bond])
        _log.info("accepted", task=task)

    async def _lack_of_key(self, task: bytes) -> str:
        """Return that the key of a private task cannot be obtained, or is another one; else an empty text."""
        if self._keys.terms(task) is None or await self._keys.obtain_in_time(task):
            return ""
        return "the key of the task: neither its requester's node nor who holds shares of it hands it on"

    def _lack_of_room(self, task: bytes, spec: JobSpec) -> str:
        """Return what the machine lacks for a job beside those it has taken on, or an empty text."""
        state, parameters = self._ledger.store, self._parameters
        process_max = ProcessOptions().memory_mib << 20
        engine = self._executor.engine

        def needs(job: JobSpec, of_task: bytes) -> Needs:
            most = open_windows_of(job, load_task(state, of_task).rate, parameters)
            return needs_of(job, open_windows_max=most, engine=engine)

        asked = needs(spec, task)
        if self._keys.terms(task) is not None:  # the state between two windows lies under a key of each
            asked = asked._replace(blobs=PRIVATE_BLOBS * asked.blobs)
        taken = Needs(0, 0, 0, 0)
        others = {duty.task for duty in work_duties(state, self._wallet.address, self._parameters)} - {task}
        for other in others:
            taken += needs(load_spec(state, other), other)
        # Of tasks that ask for no more work, windows may wait for their verdicts and results for their requesters.
        budget = self._blobs.budget_bytes - self._blobs.kept_bytes(self._promises.blobs_of({task, *others}))
        free = shutil.disk_usage(self._data_dir).free - DISK_SPARE_BYTES
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

    def _lack_of_funds(self, spec: JobSpec, duty: WorkDuty) -> str:
        """Return what the account lacks for the bond and for saying what the job will have it say.

        Who cannot pay for a transaction when it is due is late, and fined for it.
        """
        windows = min(
            spec.windows,
            open_windows_of(spec, load_task(self._ledger.store, duty.task).rate, self._parameters) + 1,
        )
        needed = duty.bond + self._wallet.cost_of(
            ACCEPT_TASK, CLAIM_INPUT, START_TASK, GIVE_UP_TASK, *windows * (SUBMIT_WINDOW, OPEN_WINDOW)
        )
        there = balance_of(self._ledger.store, self._wallet.address)
        return f"funds: {needed} needed, {there} there" if needed > there else ""

    async def _begin(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        """Bind this machine to the job once its beginning was tried: until then giving up is nobody's fault."""
        left_s = max(0, duty.deadline_ms - self._ledger.head().steady_ms) / 1000
        claim: InputClaim | None
        reason, why, claim = Reason.JOB_UNFIT, "not ready in time", None
        with trio.move_on_after(PREPARE_SHARE * left_s) as scope:
            try:
                await work_while(
                    self._ledger, partial(self._is_at, task, Action.START), partial(self._try, task, spec, duty)
                )
                reason, why = Reason.STARTED, ""
            except DatasetWrong as error:
                claim, reason, why = error.claim, Reason.INPUT_INVALID, str(error)
            except InputUnavailable as error:
                reason, why = Reason.INPUT_UNAVAILABLE, str(error)
            except JobFailed as error:
                why = str(error)
            except DAMAGE:
                raise
            except (DekubeError, OSError) as error:  # of this machine: no engine, no isolation, a full disk
                why = str(error)
        if claim is not None:
            await self._send_claim(task, claim)
            self.claims_made += 1
            await self._executor.forget(task)
            raise JobUnfit(f"proven on chain: {why}")
        if scope.cancelled_caught or reason != Reason.STARTED:
            await self._wallet.send(GIVE_UP_TASK, [task, int(reason)])
            self.tasks_declined += 1
            await self._executor.forget(task)
            raise JobUnfit(why)
        await self._wallet.send(START_TASK, [task, self._machine()])
        _log.info("started", task=task)

    async def _send_claim(self, task: bytes, claim: InputClaim) -> None:
        """Prove that the data set is wrong; that of a private task by its key, which everybody knows then."""
        terms = self._keys.terms(task)
        if terms is None or not terms.inputs:
            await self._wallet.send(CLAIM_INPUT, [claim_to_value(claim)])
            return
        key, path = await trio.to_thread.run_sync(self._keys.input_proof, task, DATASET_INPUT)
        await self._wallet.send(CLAIM_KEYED, [claim_to_value(claim), key, key_proof_to_value(path)])

    async def _try(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        """Do the first segment. Raises InputUnavailable, JobUnfit where a window would be late, or as run_task."""
        inputs, start = await self._supply(task, spec, duty)
        pace_ms = await self._executor.try_task(task, spec, inputs.dataset, start=start, model=inputs.model)
        step_from, step_to = spec.window_range(duty.window)
        allowed_ms = window_span_ms(spec, duty.window, load_task(self._ledger.store, task).rate, self._parameters)
        if PACE_MARGIN * pace_ms * (step_to - step_from) > allowed_ms:
            raise JobUnfit(f"{pace_ms} ms a step: window {duty.window} would be late")

    async def _supply(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> tuple[JobInputs, bytes | None]:
        """Return data set and model, and the state to start from where neither journal nor job has it.

        Both are kept until no window of the task is open: who checks one fetches them from here if nobody else
        gives them.
        """
        self._promises.keep_inputs(task, spec)
        requester = load_task(self._ledger.store, task).requester
        supply = Supply(partial(self._inputs.peers, requester), tries=FETCH_TRIES)
        inputs = await self._inputs.all_of(spec, supply, task, begins=not duty.window)
        start: bytes | None = None
        resumes = await self._executor.resumes(task, spec, duty.window, duty.state_root)
        if not duty.window and (begun := spec.start()) is not None:
            start = await trio.to_thread.run_sync(_first_state, spec, begun, inputs.start)
        elif not resumes and duty.window:
            before = load_window(self._ledger.store, task, duty.window - 1)
            supply = Supply(partial(self._inputs.holders, before), tries=FETCH_TRIES)
            start = await self._inputs.fetch_state(before, supply, spec)
            if before.proof.state_root_out != duty.state_root:
                raise Abandoned
        self.known.add(task)
        return inputs, start

    def _is_at(self, task: bytes, action: Action) -> bool:
        duty = self._work_duty(task)
        return duty is not None and duty.action is action

    def _is_ours(self, task: bytes) -> bool:
        """Whether the chain still has this node as the worker of a task that runs, or waits for its verdicts."""
        record = load_task(self._ledger.store, task)
        return record.worker == self._wallet.address and record.phase in (
            Phase.RUNNING,
            Phase.OUTPUT,
            Phase.VERIFYING,
        )

    async def _compute(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        is_ours = partial(self._is_ours, task)
        inputs, start = await work_while(self._ledger, is_ours, partial(self._supply, task, spec, duty))
        outcome: list[BaseException | None] = [None]

        async def hand_on(result: WindowResult) -> None:
            try:
                await self._submit_window(task, spec, result)
            except Abandoned as stop:
                outcome[0] = stop
                scope.cancel()
                await trio.lowlevel.checkpoint()

        with trio.CancelScope() as scope:
            run = partial(
                self._executor.run_task, task, spec, inputs.dataset, hand_on, start=start, model=inputs.model
            )
            try:
                done = await work_while(self._ledger, is_ours, run)
            except JobFailed as error:
                if error.reason not in FINAL_REASONS:
                    raise
                # It comes again however often it is tried: waiting for the deadline would only cost time.
                await self._wallet.send(GIVE_UP_TASK, [task, int(Reason.JOB_UNFIT)])
                raise
            except JobGivenUp:
                # Its deadline would bring the same fine, and keep the requester waiting until then.
                await self._wallet.send(GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)])
                raise
            right, samples = done.accuracy or (None, None)
            _log.info("job done", task=task, steps=done.steps, right=right, samples=samples)
        if outcome[0] is not None:
            raise Abandoned

    async def _submit_window(self, task: bytes, spec: JobSpec, result: WindowResult) -> None:
        """Publish a window's blobs, keep what opening it will need, and put its proof on chain."""
        salts = segment_salts(self._secret, task, result.window, len(result.segments))
        names: list[bytes] = []
        seal = await trio.to_thread.run_sync(self._seal_of, task, result)
        try:
            for number in range(len(result.segments) + 1):
                names.append(  # noqa: PERF401 - what is pinned must be known where a later one fails
                    await trio.to_thread.run_sync(self._store_state, result, number, seal)
                )
            leaves = make_leaves(result, salts, names[:-1])
            leaves_blob = await trio.to_thread.run_sync(self._blobs.add, encode_leaves(leaves))
            digests = tuple(segment.work_digest for segment in result.segments)
            published = Published(digests, tuple(names[:-1]), leaves_blob, names[-1])
            await trio.to_thread.run_sync(self._promises.publish, task, result.window, published)
            self._check_kept(published)
        except BaseException:
            self._promises.abandon(names)
            raise
        proof = make_window_proof(task, result, leaves, leaves_blob=leaves_blob, output_blob=names[-1])
        proof = proof._replace(losses=await trio.to_thread.run_sync(_losses_of, spec, result))
        if seal is not None:
            assert seal.commitment is not None
            proof = proof._replace(custody=(*seal.commitment,))
        elif find_terms(self._ledger.store, task) is not None:
            content = await trio.to_thread.run_sync(result.load_state, len(result.segments))
            output = await trio.to_thread.run_sync(public_output, result.window, content)
            proof = proof._replace(custody=(*output.commitment,))
        height = -1
        while True:
            height = (await self._ledger.wait_head(height)).height
            duty = self._work_duty(task)
            if duty is None or duty.action is not Action.COMPUTE:
                raise Abandoned
            if duty.window > result.window:
                return  # an earlier run of this node has submitted it
            if duty.window < result.window:
                raise Abandoned  # what this stands on does not count any more
            if not duty.blocked and duty.window == result.window:
                break
        await self._send_proof(result, proof)

    async def _send_proof(self, result: WindowResult, proof: WindowProof) -> None:
        claim = result.diverged
        if claim is None:
            await self._wallet.send(SUBMIT_WINDOW, [window_proof_to_value(proof)])
            _log.info(
                "window proved", task=proof.task, window=result.window, compute_ms=result.compute_ms,
                device=result.device,
            )  # fmt: skip
            return
        await self._wallet.send(CLAIM_DIVERGED, [window_proof_to_value(proof)])
        self.claims_made += 1
        spec = load_spec(self._ledger.store, proof.task)
        why = say_divergence(spec, claim.step, claim.store, claim.row, claim.column)
        _log.warning("the job diverges, which was claimed", task=proof.task, window=result.window, why=why)

    def _seal_of(self, task: bytes, result: WindowResult) -> WindowSeal | None:
        """Return what encrypts the blobs of a window of a private task."""
        return self._keys.seal_of(task, result.window, [segment.state_root_before for segment in result.segments])

    def _store_state(self, result: WindowResult, number: int, seal: WindowSeal | None) -> bytes:
        content = result.load_state(number)
        name = self._blobs.add(content if seal is None else seal.blob(number, content))
        self._blobs.pin(name)
        return name

    def _check_kept(self, published: Published) -> None:
        """Raise BlobUnavailable where a blob gave way to another one before it was pinned: it is stored again."""
        for name in published.blobs:
            if not self._blobs.is_complete(name):
                raise BlobUnavailable(f"blob {name.hex()} was evicted before its window was published")

    async def openings(self, task: bytes, window: int, segments: Sequence[int]) -> list[Opening]:
        """Return the openings of segments of a window. Raises InputUnavailable: it was not published here."""
        published = self._promises.published(task, window)
        if published is None:
            raise InputUnavailable(f"window {window} of task {task.hex()} was not published here")
        leaves = decode_leaves(await trio.to_thread.run_sync(self._blobs.read, published.leaves))
        salts = segment_salts(self._secret, task, window, len(leaves))
        return [make_opening(leaves, at, published.digests[at], salts[at]) for at in segments]

    async def open(self, duty: WorkDuty) -> None:
        """Open the segments that were drawn of a window. Raises InputUnavailable: it was not published here."""
        openings = await self.openings(duty.task, duty.window, duty.segments)
        is_late = load_window(self._ledger.store, duty.task, duty.window).reason == Reason.OPENING_LATE
        await self._wallet.send(OPEN_WINDOW, [duty.task, duty.window, [opening_to_value(o) for o in openings]])
        if is_late:
            self.late_openings += 1
            _log.warning("window opened late, which cost a fine", task=duty.task, window=duty.window)
        else:
            _log.info("window opened", task=duty.task, window=duty.window)

    async def serve(self, duty: WorkDuty) -> None:
        """Say that a window is served which a jury could not fetch, if all of it is here; its bond is at stake.

        Raises InputUnavailable: it was not published here, or a blob is gone. Then more jurors could not fetch it
        either, and would be paid for that.
        """
        published = self._promises.published(duty.task, duty.window)
        spec = load_spec(self._ledger.store, duty.task)
        given = (one.blob for one in spec.inputs())
        names = (*published.blobs, *given) if published is not None else ()
        gone = [name.hex() for name in names if not self._blobs.is_complete(name)]
        if published is None or gone:
            _log.error(
                "a window is not served, and the bond is lost if that stays so", task=duty.task,
                window=duty.window, until_ms=duty.deadline_ms, missing_blobs=gone,
            )  # fmt: skip
            raise InputUnavailable(f"window {duty.window} of task {duty.task.hex()} is not here as a whole")
        await self._wallet.send(SERVE_WINDOW, [duty.task, duty.window])
        self.windows_not_fetched += 1
        _log.warning(
            "a jury could not fetch a window, and more jurors were asked for; check that peers reach this node",
            task=duty.task, window=duty.window, segments=list(duty.segments),
        )  # fmt: skip


def _first_state(spec: JobSpec, start: Start, blob: bytes) -> bytes:
    """Return the state that a job begins with, of the blob of another task's state. Raises JobUnfit."""
    try:
        state = start.state(blob)
    except DekubeError as error:
        raise JobUnfit(str(error)) from None
    if state.root(start.plan) != spec.init_root:
        raise JobUnfit("init_root is not that of the state that the job names as its start")
    return state.encode()


def _losses_of(spec: JobSpec, result: WindowResult) -> ShownLosses | None:
    """Return the losses of evaluations in the state that a window leaves. It blocks."""
    plan = spec.plan()
    if not isinstance(plan, TuningPlan | DecoderPlan) or not plan.shape.evaluate_every:
        return None
    return show_losses(spec, TrainingState.decode(result.load_state(len(result.segments)), plan))
