"""A machine's work on containers: prepare, start, meter each tick, stop, collect, and say how one ended.

The engine keeps a container while the node is down. What the chain asks is read anew at each head, so a node that
starts again takes up where it was: the container by its label, its end by a file.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.home.options import ExecutorOptions, KubernetesOptions
from node.market.cancellation import DAMAGE, Abandoned, work_while
from node.market.cluster_offers import ClusterOffers
from node.market.container_attendance import Attendance
from node.market.container_backends import backend_of
from node.market.container_checkpoints import CheckpointMissed, ContainerCheckpoints
from node.market.container_egress import ContainerEgress
from node.market.container_files import ContainerFiles, ContainerNote
from node.market.container_images import ContainerImages
from node.market.container_leftovers import (
    clear_folder,
    has_secrets,
    remove_container,
    remove_packed,
    wait_left_over,
    wipe_private,
)
from node.market.container_live import Live
from node.market.container_logs import ContainerLogs
from node.market.container_room import ahead_of, lack_of_room, room_of, wanted_by
from node.market.container_seals import (
    ContainerSeals,
    checkpoint_limit,
    masked_entries,
    output_limit,
    put_mount,
    with_reason,
)
from node.market.inputs import Inputs, InputUnavailable, Supply
from node.market.machine import available_memory_bytes
from node.market.tampering import ContainerTampered, Guard, OthersNeedMachine
from node.market.task_keys import TaskKeys
from node.market.wallet import Wallet
from node.market.worker import FETCH_TRIES, PREPARE_SHARE, JobUnfit
from p2p.blob.store import BlobStore
from state.primitives.errors import DekubeError
from state.primitives.hashing import HASH_BYTES, digest
from state.view import Reader
from state.view.accounts import balance_of
from tasks.custody.secrets import NO_SECRETS, ContainerSecrets
from tasks.executor.containers.backend import ContainerBackend, End, Ended, EngineFacts, Look
from tasks.executor.containers.disks import image_bytes
from tasks.executor.containers.errors import (
    ContainerRefused,
    DigestMismatch,
    EgressUnavailable,
    ImageUnavailable,
    NoRoom,
    NotStarted,
)
from tasks.executor.containers.masking import masked
from tasks.executor.containers.request import ContainerRequest, Image, InputMount, Limits
from tasks.executor.containers.watchdog import Policy, Yielding
from tasks.kinds.container import METER_PROGRESS, ContainerPart, ExitKind, MachineLimit
from tasks.ledger.custody_records import find_terms
from tasks.ledger.lifecycle import Reason
from tasks.ledger.meter_records import ContainerEnd, MeterRecord, load_meter
from tasks.ledger.metering_transitions import FINISH_TASK, METER_TASK, finish_values
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action, WorkDuty, work_duties
from tasks.ledger.quorum_records import find_quorum, output_result, output_seal
from tasks.ledger.quorum_transitions import REVEAL_OUTPUT, SEAL_OUTPUT
from tasks.ledger.records import load_spec, load_task
from tasks.ledger.registry import load_node
from tasks.ledger.transitions import ACCEPT_TASK, GIVE_UP_TASK, START_TASK
from tasks.spec import JobSpec, container_of

__all__ = ["Containers", "containers_of", "request_of"]

_log = structlog.get_logger("containers")

GRACE_SHARE: Final = 3
"""Of the time until an end must be on chain, one part is for the container, the rest for its outputs."""
GRACE_S_MAX: Final = 60
OVERTIME_S: Final = 120
"""How long a container may run beyond its task's seconds where the chain does not answer."""
TRANSACTIONS_MIN: Final = 32
"""Ticks for which the account must be able to pay the fees before a container is accepted."""
DISK_SPARE_BYTES: Final = 512 << 20
TIDY_S: Final = 600.0
TIDY_AGAIN_S: Final = 10.0
UNREAD: Final = ContainerSecrets(files=[("/run/secrets/unread", b"")])
"""Stands for secrets that are not opened yet, where a back end says whether it takes any."""
LIVES_MAX: Final = 64
"""Containers whose state is known here, those that have ended too."""


def request_of(spec: JobSpec, seconds_left: int, secrets: ContainerSecrets = NO_SECRETS) -> ContainerRequest:
    """Return the container of a specification. Raises RequestInvalid for one that no machine runs."""
    part = container_of(spec)
    storage = part.storage
    limits = Limits(
        cores=part.cores, memory_mib=spec.requirements.memory_mib, disk_mib=storage.disk_mib,
        output_bytes=output_limit(part), time_limit_s=max(1, seconds_left) + OVERTIME_S,
        gpus=spec.requirements.gpus, grace_s=min(GRACE_S_MAX, part.metering.grace_s // GRACE_SHARE),
    )  # fmt: skip
    mounts = tuple(
        InputMount(mount.blob, mount.path, mount.size_bytes, mount.form.is_folder) for mount in storage.mounts
    )
    return ContainerRequest(
        Image(part.image.repository, part.image.digest), limits, part.process.command, part.process.environment,
        mounts, storage.output, part.process.user,
        *(("", 0) if part.checkpoint is None else (part.checkpoint.path, checkpoint_limit(part))),
        secrets=secrets, is_private=part.is_private, egress=part.process.egress,
        archive=archive_of(part), archive_bytes=part.image.size_bytes,
        gpu_words=spec.requirements.gpu_words, gpu_memory_mib=spec.requirements.gpu_memory_mib,
    )  # fmt: skip


def archive_of(part: ContainerPart) -> bytes:
    """Return for whom an image comes as a blob: nobody else's task is served from what was loaded for this one.

    All can name the blob of a private image. The key behind the hash is handed on for its task alone.
    """
    if not part.image.blob:
        return b""
    return part.sealed.key_hash if part.sealed is not None and part.is_private else part.image.blob


def seconds_left(store: Reader, task: bytes, meter: MeterRecord) -> int:
    """Return the seconds of a task that are not counted yet."""
    return load_spec(store, task).schedule.total_steps - meter.seconds


class Containers:
    """Does what the chain asks of the machine of a container."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, inputs: Inputs, blobs: BlobStore, parameters: TaskParameters,
        backend: ContainerBackend, keys: TaskKeys, *, data_dir: Path, policy: Policy | None = None,
        notice_s: int = 0, egress: ContainerEgress | None = None,
        cluster: KubernetesOptions = KubernetesOptions(),  # noqa: B008
    ) -> None:  # fmt: skip
        self._ledger, self._wallet, self._inputs = ledger, wallet, inputs
        self._blobs, self._parameters, self._backend = blobs, parameters, backend
        self._folder = data_dir
        self._files = ContainerFiles(data_dir / "notes", blobs)
        self._guard = Guard(ledger, wallet, backend, data_dir / "tampered", policy or Policy())
        self.logs = ContainerLogs(backend, data_dir / "logs", partial(has_secrets, ledger.store))
        self._lives: dict[bytes, Live] = {}
        self._attendances: dict[bytes, Attendance] = {}
        self._idle: set[bytes] = set()
        """Tasks whose container was ended because it stood still."""
        self._seals = ContainerSeals(keys, inputs, blobs)
        self.checkpoints = ContainerCheckpoints(
            ledger, wallet, inputs, blobs, backend, data_dir / "checkpoints", self._seals
        )
        self._images = ContainerImages(backend, inputs, blobs, self._seals, data_dir)
        self.limits = 0
        """What containers lack here, for the registry (``tasks.kinds.container.MachineLimit``)."""
        self.is_leaving: Callable[[], bool] = lambda: False
        """Whether the owner takes the machine back."""
        self._notice_s = notice_s
        self.egress = egress or ContainerEgress(backend)
        """The proxies of containers that are to reach names."""
        self.offers = ClusterOffers(
            ledger, wallet.address, backend, cluster, self._duties,
            lambda spec: request_of(spec, spec.schedule.total_steps),
        )  # fmt: skip
        self._left_over = trio.Event()
        """Something is left to remove."""
        self._ready: set[bytes] = set()
        """Tasks whose inputs and disk this process has made, and whose container has not begun since."""
        self._at_work: frozenset[bytes] = frozenset()
        self.sealed = 0
        """Results that were sealed for a comparison, since the start of the node, ..."""
        self.agreed = 0
        """... and those that were what another machine had as well."""
        self.started = 0
        """Containers that were started since the start of the node, ..."""
        self.adopted = 0
        """... and those that ran already and were taken up."""

    def has(self, task: bytes) -> bool:
        """Whether this machine prepares or runs the container of a task, or has kept what it left."""
        return task in self._at_work or self._files.get(task) is not None

    def live(self, task: bytes) -> Live:
        """Return what is known of the container of a task (``has``)."""
        if task not in self._lives:
            idle = (other for other in self._lives if other not in self._at_work)
            while len(self._lives) >= LIVES_MAX and (oldest := next(idle, None)) is not None:
                del self._lives[oldest]
                idle = (other for other in self._lives if other not in self._at_work)
            self._lives[task] = Live()
            known = self._files.get(task)
            if known is not None and known.end is not None:
                self._lives[task].stage, self._lives[task].up_s = "ended", known.seconds
        return self._lives[task]

    def lives(self) -> list[Live]:
        """Return the states of the containers that run."""
        return [live for task, live in self._lives.items() if task in self._at_work and live.stage == "running"]

    async def is_ready(self) -> bool:
        """Tell whether the engine grants all that containers need, and log what it lacks."""
        try:
            facts = await self._backend.probe()
        except DekubeError as error:
            _log.error("this machine lends no containers: its engine does not answer", error=str(error))
            return False
        if facts.missing:
            _log.error("this machine lends no containers: something is missing", missing=list(facts.missing))
            return False
        if self._backend.is_local and not facts.has_user_namespace:
            _log.warning("containers with user 0 are this machine's root without its rights: no user namespace")
        self.egress.note_facts(facts.closed)
        self.limits = limits_of(facts)
        _log.info("this machine lends containers", engine=facts.version, limits=self.limits)
        return True

    def _duties(self) -> dict[bytes, WorkDuty]:
        found = work_duties(self._ledger.store, self._wallet.address, self._parameters)
        return {duty.task: duty for duty in found if load_task(self._ledger.store, duty.task).is_metered}

    def _stands(self, task: bytes, action: Action) -> bool:
        duty = self._duties().get(task)
        return duty is not None and duty.action is action

    async def tidy(self) -> None:
        """Remove what no task needs, at the start and then at intervals, until cancelled."""
        while True:
            try:
                await self._sweep()
            except DAMAGE:
                raise
            except (DekubeError, OSError) as error:
                _log.warning("containers without a task could not be removed", error=str(error))
                await trio.sleep(TIDY_AGAIN_S)
                continue
            self._left_over = trio.Event()
            with trio.move_on_after(TIDY_S):
                await wait_left_over(
                    self._left_over,
                    self._backend,
                    lambda: self._files.tasks() - self._duties().keys() - self._at_work,
                )

    async def _sweep(self) -> None:
        """Remove containers, disks and records of tasks that ask nothing of this machine."""
        reported = frozenset(await trio.to_thread.run_sync(self._guard.waiting))  # these are to be wiped
        needed = frozenset(self._duties()) | self._at_work | reported
        await wipe_private(self._backend, self._ledger.store, self._files.tasks() - needed)
        if removed := await self._backend.sweep(needed):
            _log.info("containers without a task were removed", containers=removed)
        now_ms = self._ledger.head().steady_ms
        await trio.to_thread.run_sync(self._files.tidy, now_ms, needed)
        await trio.to_thread.run_sync(self.checkpoints.tidy, now_ms, needed)
        await self._guard.report_all()
        await trio.to_thread.run_sync(self.logs.tidy, lambda task: self._files.get(task) is not None)
        await trio.to_thread.run_sync(remove_packed, self._folder, needed)

    async def work(self, task: bytes) -> None:
        """Do what the chain asks for a task, one step after the other, until it asks for nothing more."""
        self._at_work |= {task}
        try:
            await self._work(task)
        finally:
            self._at_work -= {task}
            self._idle.discard(task)
            self.logs.masks.pop(task, None)

    async def _work(self, task: bytes) -> None:
        spec = load_spec(self._ledger.store, task)
        while (duty := self._duties().get(task)) is not None:
            match duty.action:
                case Action.ACCEPT:
                    await self._accept(task, spec)
                case Action.START:
                    await self._prepare(task, spec, duty)
                case Action.METER:
                    await self._run(task, spec)
                    return
                case Action.REVEAL:
                    await self._reveal(task)
                case Action.SHOW:
                    await self._show(task)
                case Action.WAIT:  # what was sealed is needed still
                    await self._ledger.wait_head(self._ledger.head().height)
                case _:
                    return

    # Before the start

    async def _accept(self, task: bytes, spec: JobSpec) -> None:
        """Take the task on if this machine can run it; declining costs nothing."""
        why, reason = "", Reason.JOB_UNFIT
        if find_terms(self._ledger.store, task) is not None:
            why = "a container has no windows that machines could keep: a private one is sealed (`private: true`)"
        else:
            try:
                sealed = container_of(spec).sealed
                secrets = UNREAD if sealed is not None and sealed.size_bytes else NO_SECRETS
                request = request_of(spec, spec.schedule.total_steps, secrets)
                facts = await self._backend.check(request)
                if limits_of(facts) & spec.refused_limits & MachineLimit.UNISOLATED:
                    raise ContainerRefused("this cluster isolates no container, and the task does not allow that")
                lack = await self.offers.lack(task, request)
                why = self._lack_of_room(task, spec, facts.gpus) if lack is None else lack
                why = why or await trio.to_thread.run_sync(self._lack, task, spec, request)
                if not why:
                    # Told as an input that cannot be fetched: whose fault it is nobody can show.
                    why, reason = await self._seals.lack_of_key(task), Reason.INPUT_UNAVAILABLE
            except DAMAGE:
                raise
            except (DekubeError, OSError) as error:
                why, reason = str(error), Reason.JOB_UNFIT
        if why:
            await self._give_up(task, reason, why)
        await self._wallet.send(ACCEPT_TASK, [task, 0])
        _log.info("accepted", task=task)

    def _lack_of_room(self, task: bytes, spec: JobSpec, gpus: int) -> str:
        """Return what other containers have reserved and this one needs; ``gpus`` are lent to containers."""
        store = self._ledger.store
        node = load_node(store, self._wallet.address)
        if node is None:
            return "this machine is not registered"
        room = room_of(node.profile)
        others = ahead_of(task, self._duties().values())
        taken = (wanted_by(load_spec(store, other)) for other in others)
        return lack_of_room(room._replace(gpus=min(room.gpus, gpus)), taken, wanted_by(spec))

    def _lack(self, task: bytes, spec: JobSpec, request: ContainerRequest) -> str:
        part, restored_bytes = container_of(spec), self.checkpoints.size_bytes(task)
        memory, free = available_memory_bytes(), shutil.disk_usage(self._folder).free - DISK_SPARE_BYTES
        here = self._backend.is_local  # else memory and disk are those of other machines: the back end checks them
        kept_bytes = part.inputs_bytes + request.limits.output_bytes + restored_bytes + request.checkpoint_bytes
        needed = kept_bytes + part.inputs_bytes + restored_bytes + here * image_bytes(request.limits.disk_mib)
        fees = self._wallet.cost_of(
            ACCEPT_TASK, START_TASK, FINISH_TASK, *min(spec.windows, TRANSACTIONS_MIN) * (METER_TASK,)
        )
        there = balance_of(self._ledger.store, self._wallet.address)
        for name, wanted, has in (
            ("memory", here * (request.limits.memory_mib << 20), memory), ("disk", needed, free),
            ("room for blobs", kept_bytes, self._blobs.budget_bytes),
            ("funds", fees, there),
        ):  # fmt: skip
            if wanted > has:
                return f"{name}: {wanted} needed, {has} there"
        return ""

    async def _give_up(self, task: bytes, reason: Reason, why: str) -> NoReturn:
        """Leave a task. Raises JobUnfit with the reason."""
        await self._wallet.send(GIVE_UP_TASK, [task, int(reason)])
        await self._part(task)
        raise JobUnfit(why)

    async def _part(self, task: bytes) -> None:
        """Remove what is here of a task that this machine has left: the container, and what opens the task."""
        spec = load_spec(self._ledger.store, task)
        try:
            await remove_container(self._backend, task, container_of(spec))
        except (DekubeError, OSError):  # ``tidy`` removes it
            self._left_over.set()
        await self._seals.forget(task, container_of(spec))

    async def _prepare(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        """Bring image and inputs here, then say so: the meter begins with that."""
        await trio.to_thread.run_sync(self._files.forget, task)  # it may have run here before (R141)
        await trio.to_thread.run_sync(self.logs.forget, task)
        left_s = max(0, duty.deadline_ms - self._ledger.head().steady_ms) / 1000
        reason, why = Reason.JOB_UNFIT, "not ready in time"
        with trio.move_on_after(PREPARE_SHARE * left_s) as waiting:
            try:
                stands = partial(self._stands, task, Action.START)
                await work_while(self._ledger, stands, partial(self._bring, task, spec, may_miss=True))
                # Others of a cluster may have its room since: before the meter begins that is nobody's fault.
                request = request_of(spec, spec.schedule.total_steps)
                why = await self.offers.lack(task, request) or ""
                reason = Reason.JOB_UNFIT if why else Reason.STARTED
            except (CheckpointMissed, Abandoned):  # it is another machine's task now
                await self._part(task)
                raise Abandoned from None
            except (ImageUnavailable, DigestMismatch, InputUnavailable) as error:
                reason, why = Reason.INPUT_UNAVAILABLE, str(error)
            except DAMAGE:
                raise
            except (DekubeError, OSError) as error:
                why = str(error)
        if waiting.cancelled_caught and await self.checkpoints.miss_late(task):
            await self._part(task)
            raise Abandoned
        if reason is not Reason.STARTED:
            await self._give_up(task, reason, why)
        await self._wallet.send(START_TASK, [task, digest(b"machine", self._wallet.address)])

    async def _bring(self, task: bytes, spec: JobSpec, *, may_miss: bool) -> None:
        supply, live = supply_of(self._ledger.store, self._inputs, task), self.live(task)
        request = await self._request(task, spec, spec.schedule.total_steps)
        self._ready.discard(task)
        await clear_folder(self._backend, task, container_of(spec))
        live.stage = "inputs"
        await self.checkpoints.bring(task, may_miss=may_miss)  # first: who cannot have it has fetched nothing else
        live.stage = "pulling"
        await self._images.bring(task, container_of(spec), request, supply, live)
        live.stage = "inputs"
        for number, mount in enumerate(container_of(spec).storage.mounts):
            await self._inputs.obtain(mount.blob, supply, mount.size_bytes)
            key = await self._seals.mount_key(task, number, mount)
            place, source = self._backend.input_path(task, number), self._blobs.path(mount.blob)
            await trio.to_thread.run_sync(put_mount, source, place, mount, key)
        await self._backend.make_disk(task, request)
        self._ready.add(task)

    async def _request(self, task: bytes, spec: JobSpec, seconds_left: int) -> ContainerRequest:
        """Return the container of a task, with its secrets. Raises InputUnavailable, SecretsInvalid."""
        secrets = await self._seals.secrets(
            task, container_of(spec), supply_of(self._ledger.store, self._inputs, task)
        )
        if secrets:
            self.logs.masks[task] = partial(masked_entries, secrets.values)
        return request_of(spec, seconds_left, secrets)

    # From the start to the end

    async def _run(self, task: bytes, spec: JobSpec) -> None:
        """Run the container of a task that has started, or take it up; meter it, and say how it ended."""
        if await self._guard.wipe_and_report(task):
            return
        known = self._files.get(task)
        if known is None or known.end is None:
            stands = partial(self._stands, task, Action.METER)
            try:
                known = await work_while(self._ledger, stands, partial(self._attended, task, spec, known))
            except Abandoned:
                await self._part(task)
                raise
            except ContainerTampered:
                await self._guard.wipe_and_report(task)
                raise
            except OthersNeedMachine as error:
                _log.info("this machine is needed by others", task=task, why=str(error))
                await self._leave_at_once(task, spec)
                return
        if known.end is None:
            return  # it has left
        seconds = self._payable(task, known.seconds)
        if known.end.kind is ExitKind.IDLE:  # whole ticks alone are paid then (R108)
            own = load_meter(self._ledger.store, task).own_seconds
            seconds -= (seconds - own) % spec.tick_s
        quorum = find_quorum(self._ledger.store, task)
        if quorum is not None and quorum.is_blind:
            await self._seal(task, known, seconds)
        else:
            await self._wallet.send(FINISH_TASK, finish_values(task, seconds, known.end))
        await self._part(task)
        _log.info("a container ended", task=task, end=known.end.kind.name, code=known.end.code, s=known.seconds)

    # The words of a quorum (R114, R115)

    async def _seal(self, task: bytes, known: ContainerNote, seconds: int) -> None:
        """Seal the result of a container. Its salt is on disk before: without it the seal cannot be opened."""
        known = known._replace(salt=known.salt or secrets.token_bytes(HASH_BYTES))
        await trio.to_thread.run_sync(self._files.put, task, known)
        seal = output_seal(task, self._wallet.address, self._result(known), known.salt)
        await self._wallet.send(SEAL_OUTPUT, [task, seconds, seal])
        self.sealed += 1

    def _result(self, known: ContainerNote) -> bytes:
        """Return the hash that is compared with that of other machines."""
        assert known.end is not None
        return output_result(known.end.kind, known.end.code, known.end.output, known.end.output_bytes)

    def _sealed(self, task: bytes) -> ContainerNote:
        """Return what was sealed. Raises JobUnfit where nothing is known of it any more."""
        known = self._files.get(task)
        if known is None or known.end is None or not known.salt:
            raise JobUnfit("what this machine has sealed is gone from its disk")
        return known

    async def _reveal(self, task: bytes) -> None:
        known = self._sealed(task)
        await self._wallet.send(REVEAL_OUTPUT, [task, self._result(known), known.salt])

    async def _show(self, task: bytes) -> None:
        """Say how the container ended: two machines have this result, and it is paid."""
        known, seconds = self._sealed(task), load_meter(self._ledger.store, task).own_seconds
        assert known.end is not None
        # Its requester fetches the output from now on.
        await trio.to_thread.run_sync(
            self._files.put, task, known._replace(ended_ms=self._ledger.head().steady_ms)
        )
        await self._wallet.send(FINISH_TASK, finish_values(task, seconds, known.end))
        self.agreed += 1

    def _payable(self, task: bytes, seconds: int) -> int:
        """Return how many of its seconds the chain pays by now."""
        meter, now_ms = load_meter(self._ledger.store, task), self._ledger.head().steady_ms
        until_ms = min(now_ms, meter.stop_ms) if meter.stop_ms else now_ms
        allowed = max(0, until_ms - meter.began_ms) // 1000
        return max(
            meter.own_seconds,
            min(seconds, allowed, meter.own_seconds + seconds_left(self._ledger.store, task, meter)),
        )

    async def _attended(self, task: bytes, spec: JobSpec, known: ContainerNote | None) -> ContainerNote:
        """Run a container to its end, with its socket open before it starts."""
        pattern = container_of(spec).metering.pattern
        with Attendance(self._backend, task, self.live(task), pattern=pattern) as attendance:
            self._attendances[task] = attendance
            try:
                return await self._run_to_end(task, spec, known)
            finally:
                del self._attendances[task]

    async def _run_to_end(self, task: bytes, spec: JobSpec, known: ContainerNote | None) -> ContainerNote:
        meter = load_meter(self._ledger.store, task)
        request = await self._request(
            task, spec, seconds_left(self._ledger.store, task, meter) + meter.own_seconds
        )
        if task in await self._backend.running():
            request = replace(request, is_resumed=self.checkpoints.is_restored(task))
            self.adopted += known is not None
            self.live(task).is_adopted = True
        elif known is not None and meter.own_seconds:
            await self._give_up(task, Reason.WORKER_LEFT, "the container is gone from the engine")
        else:
            await trio.to_thread.run_sync(self._files.put, task, ContainerNote())
            # An earlier start failed, the node was killed meanwhile, or the image is gone.
            if task not in self._ready or await self._images.is_missing(request):
                await self._bring(task, spec, may_miss=False)
            self._ready.discard(task)
            try:
                request = replace(request, is_resumed=self.checkpoints.is_restored(task))
                await self._backend.start(task, request)
            except (NoRoom, EgressUnavailable) as error:
                await self._give_up(task, Reason.WORKER_LEFT, str(error))
            except NotStarted as error:
                log = await self._seals.keep_log(
                    task, container_of(spec), masked(request.secrets.values, str(error).encode())
                )
                return await self._ended(task, 0, ContainerEnd(ExitKind.NOT_STARTED, 0, b"", 0, *log, b""))
            self.started += 1
        return await self._guard.watch(task, request, partial(self._to_end, task, spec, request))

    async def _to_end(self, task: bytes, spec: JobSpec, request: ContainerRequest) -> ContainerNote:
        """Meter a container until it ends, and collect what it leaves."""
        ended = await self._watch(task, spec, request)
        # A cluster that takes the container away leaves in its owner's place, within the time that it gives.
        leaves = self.checkpoints.is_leaving(task) or (ended.end is End.EVICTED and bool(request.checkpoint_path))
        if leaves and not load_task(self._ledger.store, task).ending:
            await self._leave(task, request, ended)
            return ContainerNote()
        if ended.end in (End.LOST, End.EVICTED):
            await self._give_up(task, Reason.WORKER_LEFT, "the container is gone from the engine")
        if ended.end is End.EXITED and ended.code in container_of(spec).metering.again:
            await self._keep_last(task, spec, request, ended)  # another machine goes on
        known = await self._collect(task, spec, request, ended)
        if request.secrets and not container_of(spec).is_private:
            with suppress(DekubeError, OSError):  # at once: its secrets go with it; what fails is tried again
                await remove_container(self._backend, task, container_of(spec))
        return known

    def _moving_s(self, task: bytes, spec: JobSpec, up_s: float) -> int:
        """Return the seconds that count: with the meter ``progress`` none beyond ``idle_s`` after a move."""
        metering = container_of(spec).metering
        if metering.name == METER_PROGRESS:
            up_s = min(up_s, self.live(task).moved_s + metering.idle_s)
        return int(up_s)

    async def _watch(self, task: bytes, spec: JobSpec, request: ContainerRequest) -> Ended:
        """Meter a container until it ends. Raises what the engine raises, outside of any group of exceptions."""
        looks: list[Look] = [Look(is_up=False, up_s=0.0)]
        ended: list[Ended] = []
        failure: Exception | None = None
        live, part = self.live(task), container_of(spec)
        is_progress, stands_still = part.metering.name == METER_PROGRESS, trio.Event()

        def look(found: Look) -> None:
            looks[0] = found
            live.note_up(found.up_s)
            if is_progress and live.up_s - live.moved_s > part.metering.idle_s and task not in self._idle:
                _log.info("a container stands still and is ended", task=task, idle_s=part.metering.idle_s)
                self._idle.add(task)
                stands_still.set()

        async def stop() -> None:
            await stands_still.wait()
            await self._backend.stop(task, request.limits.grace_s)

        async def beside(function: Callable[[], Awaitable[None]]) -> None:
            nonlocal failure
            try:
                await function()
            except Exception as error:
                failure = error
                nursery.cancel_scope.cancel()

        def seconds() -> int:
            return self._payable(task, self._moving_s(task, spec, looks[0].up_s))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside, partial(self._meter, task, spec, request, looks))
            nursery.start_soon(beside, self._attendances[task].run)
            nursery.start_soon(beside, stop)
            if request.egress:
                nursery.start_soon(beside, partial(self.egress.run, task, request.egress))
            nursery.start_soon(beside, partial(self.checkpoints.keep, task, spec, request, seconds))
            try:
                ended.append(await self._backend.watch(task, request, look))
            except Exception as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return ended[0]

    async def _meter(self, task: bytes, spec: JobSpec, request: ContainerRequest, looks: list[Look]) -> None:
        """Meter whole ticks while the container is up, and end it when the chain says so."""
        height = -1
        while True:
            height = (await self._ledger.wait_head(height)).height
            meter = load_meter(self._ledger.store, task)
            if meter.stop_ms:
                await self._backend.stop(task, request.limits.grace_s)
                continue
            now = looks[0]
            if self.is_leaving():
                await self._end_to_leave(task, now)
                continue
            try:
                async with self.checkpoints.counting:
                    await self._meter_ticks(task, spec, now)
            except DAMAGE:
                raise
            except DekubeError as error:  # the next tick says the same and more
                _log.warning("seconds could not be metered", task=task, error=str(error))

    async def _meter_ticks(self, task: bytes, spec: JobSpec, now: Look) -> None:
        """Count the whole ticks that have passed since the last count."""
        counted_s = load_meter(self._ledger.store, task).own_seconds
        ticks = (self._payable(task, self._moving_s(task, spec, now.up_s)) - counted_s) // spec.tick_s
        if now.is_up and ticks > 0:
            await self._wallet.send(METER_TASK, [task, counted_s + ticks * spec.tick_s])

    # Leaving

    async def _end_to_leave(self, task: bytes, now: Look) -> None:
        """Have a container end within the notice, so that it keeps what it wants; one that has ended is done."""
        if now.is_up:
            if not self.checkpoints.is_leaving(task):
                await trio.to_thread.run_sync(self.checkpoints.note_leaving, task)
            await self._backend.stop(task, self._notice_s)

    async def _leave_at_once(self, task: bytes, spec: JobSpec) -> None:
        """Have a container end within the notice, and leave it."""
        request = request_of(spec, spec.schedule.total_steps)
        await trio.to_thread.run_sync(self.checkpoints.note_leaving, task)
        await self._backend.stop(task, self._notice_s)
        await self._leave(task, request, await self._backend.watch(task, request, lambda _: None))

    async def _leave(self, task: bytes, request: ContainerRequest, ended: Ended) -> None:
        """Store the last checkpoint of a container that was told to end, and give its task up."""
        await self._keep_last(task, load_spec(self._ledger.store, task), request, ended)
        await self._wallet.send(GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)])
        await self._part(task)
        _log.info("this machine has left a container", task=task, s=int(ended.up_s))

    async def _keep_last(self, task: bytes, spec: JobSpec, request: ContainerRequest, ended: Ended) -> None:
        """Count the last ticks of a container that has ended, and store its last checkpoint if it has one."""

        def seconds() -> int:
            return self._payable(task, self._moving_s(task, spec, ended.up_s))

        try:
            await self._meter_ticks(task, spec, Look(is_up=True, up_s=ended.up_s))
        except DAMAGE:
            raise
        except DekubeError as error:
            _log.warning("the last seconds could not be metered", task=task, error=str(error))
        if request.checkpoint_path and ended.end is not End.LOST:
            try:
                ended_s = self._moving_s(task, spec, ended.up_s)
                await self.checkpoints.store_last(task, request, seconds, ended_s)
            except DAMAGE:
                raise
            except (DekubeError, OSError) as error:
                _log.warning("the last checkpoint could not be stored", task=task, error=str(error))

    async def _collect(self, task: bytes, spec: JobSpec, request: ContainerRequest, ended: Ended) -> ContainerNote:
        """Keep log and output, sealed if the container is private, and remove the container at once."""
        packed = self._folder / f"{task.hex()[:32]}.tar"
        if not container_of(spec).is_private:  # else the sealed log alone is kept
            await self.logs.keep(task)
        try:
            found = await self._backend.collect(task, request, str(packed))
            log, output = found.log, (b"", 0)
            if found.why:
                log = with_reason(log, found.why, request.secrets.values)
            if found.outputs is not None:
                await self._seals.seal_file(task, container_of(spec), packed)
                size_bytes = packed.stat().st_size
                output = await trio.to_thread.run_sync(self._blobs.add_file, packed), size_bytes
        finally:
            packed.unlink(missing_ok=True)
        kept = await self._seals.keep_log(task, container_of(spec), log)
        kind, code = self._kind_of(task, ended)
        seconds = self._moving_s(task, load_spec(self._ledger.store, task), ended.up_s)
        return await self._ended(task, seconds, ContainerEnd(kind, code, *output, *kept, b""))

    def _kind_of(self, task: bytes, ended: Ended) -> tuple[ExitKind, int]:
        record = load_task(self._ledger.store, task)
        if task in self._idle and not record.ending:
            return ExitKind.IDLE, 0
        if ended.end in (End.STOPPED, End.TIME_LIMIT) and record.ending:
            return ExitKind.STOPPED, 0
        if ended.end is End.OUT_OF_MEMORY:
            return ExitKind.OUT_OF_MEMORY, 0
        if ended.end is End.OUT_OF_DISK:
            return ExitKind.OUT_OF_DISK, 0
        if ended.end is End.EXITED:
            return ExitKind.EXITED, ended.code
        return ExitKind.SIGNALLED, ended.code

    async def _ended(self, task: bytes, seconds: int, end: ContainerEnd) -> ContainerNote:
        known = ContainerNote(seconds, self._ledger.head().steady_ms, end)
        await trio.to_thread.run_sync(self._files.put, task, known)
        self.live(task).stage = "ended"
        return known


def limits_of(facts: EngineFacts) -> int:
    """Return what the containers of an engine or a cluster lack (R122)."""
    found = MachineLimit(0)
    for has, limit in (
        (facts.is_isolated, MachineLimit.UNISOLATED), (facts.has_root, MachineLimit.NO_ROOT),
        (facts.has_archives, MachineLimit.NO_ARCHIVES),
    ):  # fmt: skip
        if not has:
            found |= limit
    return int(found)


def supply_of(state: Reader, inputs: Inputs, task: bytes) -> Supply:
    """Return where the blobs of a task come from."""
    requester = load_task(state, task).requester
    return Supply(lambda: inputs.peers(requester, *inputs.keepers(task)), tries=FETCH_TRIES)


def containers_of(
    options: ExecutorOptions, ledger: NodeLedger, wallet: Wallet, inputs: Inputs, blobs: BlobStore,
    parameters: TaskParameters, keys: TaskKeys, data_dir: Path,
) -> Containers:  # fmt: skip
    """Return the containers of a node with these options. Raises ContainerRefused for options that cannot be."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    backend = backend_of(options, wallet.address, data_dir)
    uses = options.docker
    policy = Policy(Yielding(uses.on_desktop_use), Yielding(uses.on_gpu_use), Yielding(uses.on_load))
    return Containers(
        ledger, wallet, inputs, blobs, parameters, backend, keys, data_dir=data_dir, policy=policy,
        notice_s=options.notice_s, egress=ContainerEgress.of(backend, options.lent), cluster=options.kubernetes,
    )  # fmt: skip
