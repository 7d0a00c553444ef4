"""Containers in a Kubernetes cluster: made, compared with the order, watched, ended, collected, removed.

Each look is one small request, a second after the last. So nothing is kept open that an outage could break, and a
restarted node looks on where it was.
"""

from __future__ import annotations

import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from tasks.executor.containers.backend import (
    Collected,
    End,
    Ended,
    EngineFacts,
    Lack,
    Look,
    Offer,
    OnLook,
    OnPull,
    Usage,
)
from tasks.executor.containers.disks import overwrite
from tasks.executor.containers.errors import (
    BadOutputs,
    ContainerRefused,
    EngineError,
    EngineUnavailable,
    FolderChanges,
    ImageUnavailable,
    NoRoom,
    NotStarted,
)
from tasks.executor.containers.kubernetes.access import read_access
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.bounds import named_end, passed_bound, shown_bound
from tasks.executor.containers.kubernetes.canaries import are_policies_enforced, create_pod
from tasks.executor.containers.kubernetes.checkpoints import fetch_checkpoint, let_go
from tasks.executor.containers.kubernetes.comparing import check_made, check_pod
from tasks.executor.containers.kubernetes.data_path import fetch_outputs, send_inputs
from tasks.executor.containers.kubernetes.drift import DriftWatch
from tasks.executor.containers.kubernetes.egress_link import EgressLink, listen_for_link
from tasks.executor.containers.kubernetes.exec_stream import answer_of, answer_to
from tasks.executor.containers.kubernetes.inventory import Stock
from tasks.executor.containers.kubernetes.link import PodLink, while_linked
from tasks.executor.containers.kubernetes.manifests import (
    ANNOTATION_TASK,
    HELPER,
    JOB,
    LABEL_NODE,
    LABEL_TASK,
    MAIN,
    RECEIVER,
    Cluster,
    TaskNamespace,
    copy_room,
    job_body,
    namespace_body,
    namespace_of,
    pod_body,
    pod_spec,
    policy_body,
    pull_pod,
    quota_body,
)
from tasks.executor.containers.kubernetes.placement import parse_placement
from tasks.executor.containers.kubernetes.priority import lack_of_priority
from tasks.executor.containers.kubernetes.refusals import refusal_of
from tasks.executor.containers.kubernetes.rights import missing_rights
from tasks.executor.containers.kubernetes.scripts import OVERWRITE, agent_script, end_helper, stop_all
from tasks.executor.containers.kubernetes.secret_delivery import (
    forget_objects,
    put_login,
    put_variables,
    send_files,
)
from tasks.executor.containers.kubernetes.selling import Selling, about
from tasks.executor.containers.kubernetes.states import Pod, Stage, Trouble, read_pod
from tasks.executor.containers.log_entries import LogPart, LogPlace, LogSelector
from tasks.executor.containers.log_lines import parse_entry
from tasks.executor.containers.log_stream import LogTail
from tasks.executor.containers.masking import Masker
from tasks.executor.containers.mirrors import NO_MIRRORS, Mirrors
from tasks.executor.containers.outages import through_outage
from tasks.executor.containers.outputs import Outputs, pack_file
from tasks.executor.containers.request import RESTORED, ContainerRequest, is_among
from tasks.kinds.egress import is_covered

__all__ = ["KubernetesBackend", "KubernetesOptions"]

_log = structlog.get_logger("containers")

LOOK_S: Final = 1.0
START_LOOK_S: Final = 0.3
PATIENCE_S: Final = 900.0
"""How long an API server that does not answer is waited for."""
PULL_S: Final = 3_600.0
NO_MACHINE_S: Final = 60.0
"""How long a pod may wait for a machine with room."""
REMOVE_S: Final = 180.0
LATE_S: Final = 60.0
"""How long after its time a pod that was told to go may still be there; it is given up then."""
KILL_AGAIN_S: Final = 0.5
KILLS_MAX: Final = 40
SIGNAL_S: Final = 20.0
"""How long the helper may take to signal a container, which can stop the helper's programs."""
LOG_BYTES_READ_MAX: Final = 64 << 20
LINE_BYTES_MAX: Final = 1 << 20
PREFIX: Final = re.compile(r"[a-z]([a-z0-9-]{0,14}[a-z0-9])?")
_NAMESPACES: Final = "/api/v1/namespaces"
WIPE_S: Final = 600.0
"""How long files of a private container may take to be overwritten."""
_CANARY: Final = bytes(32)
_PASSED_ON: Final = frozenset(
    {
        "image", "limits", "command", "environment", "mounts", "output_path", "user", "secrets", "is_private",
        "checkpoint_path", "checkpoint_bytes", "is_resumed", "egress", "gpu_words", "gpu_memory_mib",
    }
)  # fmt: skip
"""What of a request a cluster is given. A container that asks for more is refused."""
_NO_IMAGE: Final = ("not found", "authoriz", "access denied", "no basic auth credentials")
"""What a registry answers where another try would change nothing."""
_STARTED: Final = frozenset({Stage.RUNNING, Stage.ENDED, Stage.GONE})


@dataclass(frozen=True)
class KubernetesOptions:
    """What this node lends in a cluster. An empty ``kubeconfig`` stands for the account of the node's own pod.

    Without ``unisolated_allowed`` a cluster that does not enforce network policies lends nothing. ``egress`` are
    patterns of the names that containers may reach (``tasks.kinds.egress``). ``mirrors`` are where images are
    pulled instead.
    """

    kubeconfig: str = ""
    prefix: str = "dekube"
    images: tuple[str, ...] = ("*",)
    helper_image: str = ""
    runtime_class: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    gpus: int = 0
    disk_gib: int = 64
    unisolated_allowed: bool = False
    node_selector: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()
    priority_class: str = "dekube"
    storage_class: str = ""
    reserve_percent: int = 0
    reserve_gpus: int = 0
    egress: tuple[str, ...] = ()
    mirrors: Mirrors = NO_MIRRORS

    def allows(self, repository: str) -> bool:
        """Whether the operator lets images of a repository run."""
        return is_among(repository, self.images)


class KubernetesBackend:
    """One node's containers in one cluster (``tasks.executor.containers.backend``).

    ``node`` is the node's address: labels and names of all objects have it. ``folder`` holds what is sent.
    """

    def __init__(self, options: KubernetesOptions, node: bytes, folder: Path) -> None:
        if not PREFIX.fullmatch(options.prefix):
            raise ContainerRefused(f"the prefix {options.prefix[:40]!r} is not a short name of a namespace")
        self._options, self._node, self._folder = options, node, folder
        placement = parse_placement(options.node_selector, options.tolerations)
        self._cluster = Cluster(
            options.prefix, options.helper_image, options.runtime_class, options.gpu_resource, placement,
            options.priority_class, options.storage_class, options.mirrors,
        )  # fmt: skip
        stock = Stock(node.hex(), placement, options.gpu_resource, options.reserve_percent, options.reserve_gpus)
        self._selling = Selling(
            lambda: self._api, self._cluster, stock, options.gpus, lambda task: self.place(task).namespace
        )
        self._api_made: ClusterApi | None = None
        self._facts: EngineFacts | None = None
        self.shown: tuple[bool, str] | None = None
        """Whether policies were seen to hold, and what was seen; None before the canary pods have run."""
        self._why: dict[bytes, End] = {}
        self.links: dict[bytes, PodLink] = {}
        """The links to the pods that are watched."""
        self._at_work: set[str] = set()
        """Namespaces that serve no task and are in use."""

    @property
    def _api(self) -> ClusterApi:
        if self._api_made is None:
            kubeconfig = self._options.kubeconfig
            self._api_made = ClusterApi(read_access(Path(kubeconfig) if kubeconfig else None))
        return self._api_made

    @property
    def is_local(self) -> bool:
        """Containers take memory and disk of the cluster's machines (``ContainerBackend``)."""
        return False

    async def aclose(self) -> None:
        """Close the connections to the API server (``ContainerBackend``)."""
        if self._api_made is not None:
            await self._api_made.aclose()

    def folder(self, task: bytes) -> Path:
        """Return the folder of a task (``ContainerBackend``)."""
        return self._folder / task.hex()[:32]

    def input_path(self, task: bytes, number: int) -> Path:
        """Return where the node puts an input (``ContainerBackend``)."""
        return self.folder(task) / "inputs" / str(number)

    async def clear(self, task: bytes) -> None:
        """Remove the folder of a task (``ContainerBackend``)."""
        await trio.to_thread.run_sync(_remove_folder, self.folder(task))

    def place(self, task: bytes) -> TaskNamespace:
        """Return where the objects of a task are."""
        return namespace_of(self._options.prefix, self._node, task)

    # What the cluster grants

    async def probe(self) -> EngineFacts:
        """Tell what the cluster grants (``ContainerBackend``)."""
        version = str((await self._api.get("/version")).get("gitVersion", ""))
        missing = await missing_rights(self._api)
        if not self._options.helper_image:
            missing.append("executor.kubernetes.helper_image, the image of the container that carries the data")
        if not missing and self._options.priority_class:
            missing += filter(None, [await lack_of_priority(self._api, self._options.priority_class)])
        inventory = None if missing else await self._selling.look(0.0)
        if inventory is not None and not inventory.machines:
            missing.append(f"a machine of the cluster that takes its pods ({dict(inventory.left_out)})")
        is_isolated, why = False, ""
        if not missing:
            try:
                is_isolated, why = await self._isolation()
            except ContainerRefused as error:
                missing.append(str(error))
        if not missing and not is_isolated and not self._options.unisolated_allowed:
            missing.append(f"enforced network policies: {why} (executor.kubernetes.unisolated_allowed)")
        self._facts = EngineFacts(
            f"Kubernetes {version}", tuple(missing), False, inventory is not None and inventory.sold.gpus > 0,
            gpus=self._options.gpus, is_isolated=is_isolated, has_root=False,
            about="" if inventory is None
            else about(inventory, self._options.gpu_resource, self._options.priority_class),
        )  # fmt: skip
        return self._facts

    async def _isolation(self) -> tuple[bool, str]:
        if self.shown is None:
            place = _own(self.place(_CANARY))
            self._at_work.add(place.namespace)
            try:
                self.shown = await are_policies_enforced(self._api, place, self._cluster, self._remove_place)
            finally:
                self._at_work.discard(place.namespace)
            if not self.shown[0]:
                _log.warning("this cluster does not isolate containers from its network", why=self.shown[1])
        return self.shown

    async def check(self, request: ContainerRequest) -> EngineFacts:
        """Return the cluster's facts, or raise (``ContainerBackend``)."""
        facts = self._facts or await self.probe()
        if facts.missing:
            raise ContainerRefused(f"this cluster lacks {', '.join(facts.missing)}")
        if not self._options.allows(request.image.repository):
            raise ContainerRefused(f"{request.image.repository}: the operator allows other images alone")
        self._options.mirrors.source(request)
        for field in fields(request):
            if field.name not in _PASSED_ON and getattr(request, field.name):
                raise ContainerRefused(f"{field.name}: not passed on to a cluster")
        for entry in request.egress:
            if not is_covered(entry, self._options.egress):
                raise ContainerRefused(f"egress: this cluster's owner does not let containers reach {entry}")
        if request.user == 0:
            raise ContainerRefused("user 0: Pod Security `restricted` does not allow it")
        if request.limits.gpus > self._options.gpus:
            raise ContainerRefused(f"{request.limits.gpus} GPUs asked for, {self._options.gpus} lent")
        if request.limits.disk_mib > self._options.disk_gib << 10:
            raise NoRoom(f"{request.limits.disk_mib} MiB of disk asked for, {self._options.disk_gib} GiB lent")
        if why := await self._selling.lack_of_cards(request):
            raise ContainerRefused(why)
        if not await self._selling.is_large_enough(request):
            raise NoRoom("no machine of the cluster is large enough")
        return facts

    async def lack_of_room(
        self, task: bytes, request: ContainerRequest, ahead: Mapping[bytes, ContainerRequest]
    ) -> Lack:  # fmt: skip
        """Return what is missing beside those ahead (``ContainerBackend``)."""
        return await self._selling.lack(task, request, ahead)

    async def offer(self, ahead: Mapping[bytes, ContainerRequest]) -> Offer:
        """Return what there is for one more container (``ContainerBackend``)."""
        return await self._selling.offer(ahead)

    # Its life

    async def prepare(self, request: ContainerRequest, on_pull: OnPull) -> None:
        """Bring the image to a machine of the cluster (``ContainerBackend``)."""
        await self.check(request)
        # Each has a namespace of its own: two tasks may want the same image, and a killed node has left one.
        place = _own(self.place(secrets.token_bytes(32)))
        self._at_work.add(place.namespace)
        try:
            await self._api.create(_NAMESPACES, namespace_body(place))
            await self._api.create(place.policies, policy_body(place))
            try:
                await put_login(self._api, place, request)
                await create_pod(self._api, place, pull_pod(request, self._cluster, place))
            except EngineError as error:
                raise ContainerRefused(f"the cluster does not admit a pod: {error}") from None
            await self._pulled(place, request)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(REMOVE_S), suppress(EngineUnavailable):
                await self._remove_place(place)
            self._at_work.discard(place.namespace)

    async def _pulled(self, place: TaskNamespace, request: ContainerRequest) -> None:
        deadline, waited_s = trio.current_time() + PULL_S, 0.0
        reason = ""
        while trio.current_time() < deadline:
            pod = await self._look(place)
            if pod is None:
                raise ImageUnavailable(f"{request.image.reference}: its pod was removed from outside")
            if pod.trouble is Trouble.START or pod.stage in (Stage.ENDED, Stage.RUNNING, Stage.GONE):
                return
            if pod.trouble is Trouble.PULL:
                if pod.why.startswith("ErrImagePull"):
                    reason = pod.why
                if pod.why.startswith("ImagePullBackOff") or any(one in pod.why.lower() for one in _NO_IMAGE):
                    raise ImageUnavailable(f"{request.image.reference}: {reason or pod.why}")
            if pod.trouble is Trouble.NO_MACHINE:
                waited_s += START_LOOK_S
                if waited_s > NO_MACHINE_S:
                    raise NoRoom(pod.why)
            await trio.sleep(START_LOOK_S)
        raise ImageUnavailable(f"{request.image.reference}: not there within {PULL_S:.0f} s")

    async def make_disk(self, task: bytes, request: ContainerRequest) -> None:
        """Nothing: the disk is made with the pod, and has room for each checkpoint (``ContainerBackend``)."""

    async def start(self, task: bytes, request: ContainerRequest) -> None:
        """Make the Job, send the inputs, and wait until the container runs (``ContainerBackend``)."""
        await self.check(request)
        place = self.place(task)
        await self._remove_place(place)  # one that never started, of an earlier life of the node
        fed = trio.Event()
        try:
            await self._order(place, request)
            await self._started(task, place, request, fed)
            is_restored = (self.folder(task) / RESTORED).is_dir()
            if request.is_private:  # the pod has them: no plain byte stays on the node's disk
                await trio.to_thread.run_sync(_wipe_folder, self.folder(task))
            if is_restored:
                await trio.to_thread.run_sync(_empty_folder, self.folder(task) / RESTORED)
        except BaseException as error:
            if not (fed.is_set() and isinstance(error, trio.Cancelled)):  # else it runs on
                remove_s = REMOVE_S + (WIPE_S if request.is_private else 0)
                with trio.CancelScope(shield=True), trio.move_on_after(remove_s):
                    await (self.wipe(task) if request.is_private else self.remove(task))
            raise
        _log.info("a container runs", task=task, image=request.image.reference)

    async def _order(self, place: TaskNamespace, request: ContainerRequest) -> None:
        try:
            for path, body in (
                (_NAMESPACES, namespace_body(place)), (place.policies, policy_body(place)),
                (f"{place.path}/resourcequotas", quota_body(place, self._cluster)),
            ):  # fmt: skip
                check_made(body, await self._api.create(path, body))
            await put_login(self._api, place, request)
            await put_variables(self._api, place, request)
            # Asked first: else the refusal would be an event of the Job's controller, which comes late.
            await create_pod(self._api, place, pod_body(request, self._cluster, place), dryRun="All")
            body = job_body(request, self._cluster, place)
            check_made(body, await self._api.create(place.jobs, body))
        except EngineError as error:
            raise NotStarted(f"the cluster refuses the container: {error}") from None

    async def _started(
        self, task: bytes, place: TaskNamespace, request: ContainerRequest, fed: trio.Event
    ) -> None:
        """Feed the pod and wait until its container runs. Raises NotStarted, NoRoom, SettingsDiffer."""
        places = [self.input_path(task, number) for number, _ in enumerate(request.mounts)]
        restored = self.folder(task) / RESTORED
        compared, waited_s = "", 0.0
        while True:
            found = await through_outage(partial(self._find, place), PATIENCE_S, LOOK_S)
            if found is None:
                await trio.sleep(START_LOOK_S)
                waited_s += START_LOOK_S
                why = await through_outage(partial(refusal_of, self._api, place), PATIENCE_S, LOOK_S)
                if why:
                    raise NotStarted(f"the cluster refuses the container: {why}")
                if waited_s > NO_MACHINE_S:
                    raise NotStarted("the cluster made no pod for the container")
                continue
            pod, raw = found
            if compared != pod.uid:
                check_pod(pod_spec(request, self._cluster), raw)
                compared = pod.uid
            if pod.stage in (Stage.RUNNING, Stage.ENDED):
                return
            if pod.trouble in (Trouble.PULL, Trouble.START):
                raise NotStarted(pod.why)
            if pod.stage is Stage.GONE:  # what is sent fits the disk that was ordered: its machine had no room
                raise NoRoom(pod.why or "the inputs could not be unpacked")
            if pod.trouble is Trouble.NO_MACHINE:
                waited_s += START_LOOK_S
                if waited_s > NO_MACHINE_S:
                    raise NoRoom(f"no machine of the cluster has room: {pod.why}")
            if pod.stage is Stage.RECEIVING:
                path = f"{place.path}/pods/{pod.name}"
                with suppress(EngineUnavailable, EngineError):  # the next look tells what became of it
                    fed.set()
                    await send_files(self._api, path, RECEIVER, request.secrets)
                    await send_inputs(self._api, path, places, restored if restored.is_dir() else None)
            await trio.sleep(START_LOOK_S)

    async def _find(self, place: TaskNamespace) -> tuple[Pod, dict[str, Any]] | None:
        """Return the pod of a place, the newest if the cluster shows more than one, None without one."""
        answer = await self._api.look(f"{place.path}/pods", limit="10")
        own = [
            one for one in answer.found.get("items") or ()
            if isinstance(one, dict)
            and ((one.get("metadata") or {}).get("labels") or {}).get(LABEL_NODE) == self._node.hex()
        ]  # fmt: skip
        if not own:
            return None
        newest = max(own, key=lambda one: str(one["metadata"].get("creationTimestamp", "")))
        return read_pod(newest, answer.at), newest

    async def _look(self, place: TaskNamespace) -> Pod | None:
        found = await through_outage(partial(self._find, place), PATIENCE_S, LOOK_S)
        return None if found is None else found[0]

    async def running(self) -> frozenset[bytes]:
        """Return the tasks whose container was started, and those whose pod is gone (``ContainerBackend``)."""
        found = set()
        for job in await self._api.list("/apis/batch/v1/jobs", f"{LABEL_NODE}={self._node.hex()}"):
            meta = job.get("metadata") or {}
            task = _task_of(meta.get("annotations"))
            if task is None or meta.get("namespace") != self.place(task).namespace or meta.get("name") != JOB:
                continue
            pod = await self._look(self.place(task))
            over = (job.get("status") or {}).get("failed") or (job.get("status") or {}).get("succeeded")
            if (over and pod is None) or (pod and pod.stage not in (Stage.WAITING, Stage.RECEIVING)):
                found.add(task)
        return frozenset(found)

    async def watch(self, task: bytes, request: ContainerRequest, on_look: OnLook) -> Ended:
        """Look at the container until it ends; end it at its limits (``ContainerBackend``)."""
        links = [PodLink(self._api, self.socket_folder(task), task)]
        if request.egress:
            links.append(EgressLink(self._api, self.socket_folder(task), task))
        self.links[task] = links[0]
        try:
            return await while_linked(links, partial(self._look_on, task, request, on_look, links))
        finally:
            del self.links[task]

    async def _look_on(
        self, task: bytes, request: ContainerRequest, on_look: OnLook, links: list[PodLink]
    ) -> Ended:  # fmt: skip
        place, up_s = self.place(task), 0.0
        drift = DriftWatch(self._api, place)

        def is_away() -> None:
            on_look(Look(is_up=False, up_s=up_s))

        has_objects = bool(request.secrets)
        while True:
            found = await through_outage(partial(self._find, place), PATIENCE_S, LOOK_S, is_away)
            if has_objects and found is not None and found[0].stage in _STARTED:  # the kubelet has read them
                with suppress(EngineUnavailable):
                    await forget_objects(self._api, place, request.secrets)
                    has_objects = False
            if found is None:  # ``stop`` removes a pod that it cannot end otherwise
                return Ended(self._why.get(task, End.LOST), 0, up_s)
            pod = found[0]
            up_s = max(up_s, pod.up_s)
            if request.checkpoint_path and pod.is_leaving and pod.has_helper and pod.stage is Stage.RUNNING:
                up_s += await let_go(self._api, f"{place.path}/pods/{pod.name}")
                _log.warning("the cluster takes a container away", task=task, machine=pod.machine, why=pod.why)
                return Ended(self._why.get(task, End.EVICTED), 0, up_s)
            if (ended := _ended(self._why.get(task), pod, up_s)) is not None:
                if ended.end is End.EVICTED:
                    _log.warning("the cluster took a container away", task=task, machine=pod.machine, why=pod.why)
                if ended.end is End.SIGNALLED:
                    ended = named_end(ended, await passed_bound(self._api, f"{place.path}/pods/{pod.name}", pod))
                return ended
            if pod.late_s > LATE_S:  # no word of its machine comes any more: what it shows is old
                _log.warning("a pod that was told to go does not go", task=task, machine=pod.machine)
                return Ended(self._why.get(task, End.EVICTED), 0, up_s)
            if pod.stage is Stage.RUNNING and (part := await drift.look(found[1])):
                _log.warning("somebody changed a running container; it is given up", task=task, part=part)
                return Ended(self._why.get(task, End.LOST), 0, up_s)
            if pod.has_helper:
                for link in links:
                    link.attach(f"{place.path}/pods/{pod.name}")
            on_look(Look(is_up=pod.stage is Stage.RUNNING and not pod.late_s, up_s=up_s))
            if up_s >= request.limits.time_limit_s:
                self._why.setdefault(task, End.TIME_LIMIT)
                await self.stop(task, request.limits.grace_s)
            else:
                await trio.sleep(LOOK_S)

    async def stop(self, task: bytes, grace_s: int) -> None:
        """Ask it to end; kill it after ``grace_s`` (``ContainerBackend``).

        The helper signals the processes of the container: a pod that is removed loses its outputs. Where the
        helper cannot, the pod goes.
        """
        self._why.setdefault(task, End.STOPPED)
        place = self.place(task)
        if await self._is_over(place):
            return
        await self._signal(place, "TERM")
        for _ in range(int(grace_s / KILL_AGAIN_S)):
            await trio.sleep(KILL_AGAIN_S)
            if await self._is_over(place):
                return
        for _ in range(KILLS_MAX):
            has_helper = await self._signal(place, "KILL")
            if await self._is_over(place):
                return
            if not has_helper:
                break
            await trio.sleep(KILL_AGAIN_S)
        pod = await self._look(place)
        if pod is not None:
            await self._api.delete(f"{place.path}/pods/{pod.name}", gracePeriodSeconds=1)

    async def _is_over(self, place: TaskNamespace) -> bool:
        pod = await self._look(place)
        return pod is None or pod.stage in (Stage.ENDED, Stage.GONE)

    async def _signal(self, place: TaskNamespace, signal: str) -> bool:
        """Have the agent signal the container, and return whether there is one that does."""
        pod = await self._look(place)
        if pod is None or not pod.has_helper:
            return False
        with suppress(EngineError, EngineUnavailable), trio.move_on_after(SIGNAL_S) as waiting:
            path = f"{place.path}/pods/{pod.name}"
            code, _ = await answer_to(self._api, path, HELPER, agent_script(stop_all(signal)))
            return code == 0
        return not waiting.cancelled_caught

    # What it leaves

    async def collect(self, task: bytes, request: ContainerRequest, packed: str) -> Collected:
        """Read log and outputs of an ended container (``ContainerBackend``)."""
        place = self.place(task)
        pod = await self._look(place)
        if pod is None:
            return Collected(b"", None, "the cluster no longer has the container")
        if pod.stage is Stage.RUNNING and not pod.is_leaving:
            raise ContainerRefused("outputs of a container that still runs are not read")
        path = f"{place.path}/pods/{pod.name}"
        log = await through_outage(partial(_log_of, self._api, path, request), PATIENCE_S, LOOK_S)
        log += shown_bound(await passed_bound(self._api, path, pod))
        if not request.output_path:
            return Collected(log, None)
        if not pod.has_helper or pod.stage is Stage.RUNNING:
            return Collected(log, None, pod.why or "the container that serves the outputs has ended")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            return Collected(log, await _outputs_of(self._api, self._folder, path, request, Path(packed)))
        except BadOutputs as error:
            return Collected(log, None, str(error))

    def socket_folder(self, task: bytes) -> Path:
        """Return the folder of the socket to which the pod's is joined (``ContainerBackend``)."""
        return self._folder / "sockets" / task.hex()[:32]

    async def proxy_socket(self, task: bytes) -> socket.socket:
        """Return where connections of the container come out, from its link (``EntersNetworks``)."""
        return listen_for_link(self.socket_folder(task))

    async def log(self, task: bytes, after: LogPlace, limit_bytes: int) -> LogPart:
        """Return what a container wrote after a place (``ContainerBackend``)."""
        place, selector = self.place(task), LogSelector(after, limit_bytes)
        found = await self._find(place)
        if found is None or found[0].stage not in (Stage.RUNNING, Stage.ENDED):
            return selector.part()
        since = datetime.fromtimestamp(after.since_s, UTC)
        params = {"container": MAIN, "timestamps": "true", "sinceTime": f"{since:%Y-%m-%dT%H:%M:%SZ}"}
        rest = b""
        async with aclosing(self._api.log(f"{place.path}/pods/{found[0].name}/log", **params)) as parts:
            async for data in parts:
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > LINE_BYTES_MAX:
                    raise EngineError(200, "a line of a log is too long")
                if not all(selector.add(parse_entry(1, line + b"\n")) for line in lines if line):
                    break
        return selector.part()

    async def usage(self, task: bytes) -> Usage | None:
        """Return what the helper measured: a cluster need not measure its pods (``ContainerBackend``)."""
        link = self.links.get(task)
        return None if link is None else link.usage()

    async def watchdog(self, task: bytes, request: ContainerRequest) -> None:
        """Nobody looks at what a cluster's administrators do (``ContainerBackend``)."""

    async def kill(self, task: bytes) -> None:
        """End its processes at once (``ContainerBackend``)."""
        await self.stop(task, 0)

    async def wipe(self, task: bytes) -> bool:
        """Overwrite inputs and disk where the helper still serves; remove the container (``ContainerBackend``).

        What a cluster's disks keep elsewhere is out of reach, as on any machine.
        """
        place, is_whole = self.place(task), False
        pod = await self._look(place)
        if pod is not None and pod.has_helper:
            with suppress(EngineError, EngineUnavailable), trio.move_on_after(WIPE_S):
                code, _ = await answer_to(
                    self._api, f"{place.path}/pods/{pod.name}", HELPER, agent_script(OVERWRITE)
                )
                is_whole = code == 0
        is_whole &= await trio.to_thread.run_sync(_wipe_folder, self.folder(task))
        await self.remove(task)
        return is_whole

    async def set_share(self, task: bytes, shares: int) -> None:
        """Nothing: the machines of a cluster are not the owner's desk (``ContainerBackend``)."""

    async def snapshot(self, task: bytes, request: ContainerRequest, packed: str) -> Outputs:
        """Store the checkpoint folder as it is at one moment (``ContainerBackend``)."""
        place, limit = self.place(task), request.checkpoint_bytes
        pod = await self._look(place)
        if pod is None or not pod.has_helper:
            raise FolderChanges("the cluster no longer has the container")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=self._folder) as archive:
            await fetch_checkpoint(
                self._api, f"{place.path}/pods/{pod.name}", archive, limit, copy_room(request), PATIENCE_S,
                wipes=request.is_private,
            )  # fmt: skip
            archive.seek(0)
            pack = partial(
                pack_file, archive, Path(packed), limit, leaves_unfinished=True,
                disk_limit_bytes=request.limits.disk_mib << 20,
            )  # fmt: skip
            return await trio.to_thread.run_sync(pack)

    async def remove(self, task: bytes) -> None:
        """Remove the container and its folder, in any state (``ContainerBackend``)."""
        await self._remove_place(self.place(task))
        await self.clear(task)
        await trio.to_thread.run_sync(_remove_folder, self.socket_folder(task))
        self._why.pop(task, None)

    async def _remove_place(self, place: TaskNamespace) -> None:
        """Remove a namespace of this node and wait until it is gone.

        Raises ContainerRefused for one of somebody else, and EngineUnavailable where it does not go.
        """
        deadline = trio.current_time() + REMOVE_S
        asked = False
        while True:
            found = await self._api.find(place.path)
            if found is None:
                return
            meta = found.get("metadata") or {}
            if (meta.get("labels") or {}).get(LABEL_NODE) != self._node.hex():
                raise ContainerRefused(f"the namespace {place.namespace} is not this node's")
            if not asked:
                for pod in await self._api.list(f"{place.path}/pods"):  # else one may take all of its time to end
                    of_pod = pod.get("metadata") or {}
                    path = f"{place.path}/pods/{of_pod.get('name')}"
                    if of_pod.get("deletionTimestamp"):
                        with suppress(EngineError, EngineUnavailable), trio.move_on_after(SIGNAL_S):
                            await answer_of(self._api, path, HELPER, end_helper())
                    await self._api.delete(path, gracePeriodSeconds=1)
                await self._api.delete(place.path, preconditions={"uid": meta.get("uid")})
                asked = True
            if trio.current_time() > deadline:
                raise EngineUnavailable(f"the namespace {place.namespace} is not gone after {REMOVE_S:.0f} s")
            await trio.sleep(START_LOOK_S)

    async def sweep(self, kept: frozenset[bytes]) -> int:
        """Remove what no kept task needs (``ContainerBackend``), also beside a namespace that does not go."""
        failure: ContainerRefused | EngineError | EngineUnavailable | None = None
        removed, names = 0, {self.place(task).namespace for task in kept} | self._at_work
        for found in await self._api.list(_NAMESPACES, f"{LABEL_NODE}={self._node.hex()}"):
            meta = found.get("metadata") or {}
            name = str(meta.get("name", ""))
            if name in names or not name.startswith(f"{self._options.prefix}-{self._node.hex()[:12]}-"):
                continue
            try:
                await self._remove_place(TaskNamespace(name, {}, ""))
                removed += 1
            except (ContainerRefused, EngineError, EngineUnavailable) as error:
                failure = failure or error
        folders = {task.hex()[:32] for task in kept}
        for folder in (*self._folder.glob("[0-9a-f]" * 32), *self._folder.glob("sockets/*")):
            if folder.name not in folders:
                await trio.to_thread.run_sync(_remove_folder, folder)
        if failure is not None:
            raise failure
        return removed


def _ended(why: End | None, pod: Pod, up_s: float) -> Ended | None:
    """Return how a container ended, None while it has not; ``why`` its node ended it, if it did."""
    if pod.stage not in (Stage.ENDED, Stage.GONE):
        return None
    number = pod.exit.number if pod.exit is not None else 0
    if why is not None:
        return Ended(why, number, up_s)
    named = {Trouble.DISK: End.OUT_OF_DISK, Trouble.DEADLINE: End.TIME_LIMIT, Trouble.EVICTED: End.EVICTED}
    if pod.trouble in named:
        return Ended(named[pod.trouble], number, up_s)
    if pod.is_leaving or pod.exit is None:
        return Ended(End.EVICTED, number, up_s)
    if pod.exit.is_out_of_memory:
        return Ended(End.OUT_OF_MEMORY, number, up_s)
    return Ended(End.SIGNALLED if pod.exit.is_signal else End.EXITED, number, up_s)


def _own(place: TaskNamespace) -> TaskNamespace:
    """Return a place that serves no task."""
    return TaskNamespace(place.namespace, {**place.labels, LABEL_TASK: "none"}, "")


def _task_of(annotations: object) -> bytes | None:
    text = annotations.get(ANNOTATION_TASK) if isinstance(annotations, dict) else None
    try:
        task = bytes.fromhex(str(text))
    except ValueError:
        return None
    return task if len(task) == 32 else None


async def _outputs_of(api: ClusterApi, folder: Path, pod: str, request: ContainerRequest, packed: Path) -> Outputs:
    limit = request.limits.output_bytes
    with tempfile.TemporaryFile(dir=folder) as archive:
        await fetch_outputs(api, pod, archive, limit, PATIENCE_S)
        archive.seek(0)
        return await trio.to_thread.run_sync(pack_file, archive, packed, limit)


async def _log_of(api: ClusterApi, pod: str, request: ContainerRequest) -> bytes:
    tail, size, masker = LogTail(), 0, Masker(request.secrets.values)
    try:
        async with aclosing(api.log(f"{pod}/log", container=MAIN)) as parts:
            async for data in parts:
                tail.add(await trio.to_thread.run_sync(masker.feed, data))
                size += len(data)
                if size > LOG_BYTES_READ_MAX:
                    break
        tail.add(await trio.to_thread.run_sync(masker.finish))
    except EngineError as error:  # a machine that is gone has taken the log along
        return f"[the log cannot be read: {error}]\n".encode()
    return tail.contents()


def _empty_folder(folder: Path) -> None:
    """Leave an empty folder, which tells that the container began with a checkpoint."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)


def _remove_folder(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _wipe_folder(folder: Path) -> bool:
    """Overwrite and remove a folder; tell whether all of it was overwritten."""
    is_whole = overwrite(sorted(folder.rglob("*")))
    _remove_folder(folder)
    return is_whole
