"""Containers on a Docker engine: made, compared with the order, watched, ended, collected, removed."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from tasks.executor.containers.backend import Collected, End, Ended, EngineFacts, Look, OnLook, OnPull, Usage
from tasks.executor.containers.disks import MARKER, ContainerDisk, folder_state, image_bytes, missing_for_disks
from tasks.executor.containers.egress.entering import listen_in_container, start_and_listen, why_not_entered
from tasks.executor.containers.engine import Engine, RegistryLogin
from tasks.executor.containers.errors import (
    BadOutputs,
    ContainerRefused,
    DigestMismatch,
    EgressUnavailable,
    EngineError,
    EngineUnavailable,
    FolderChanges,
    NoRoom,
    NotStarted,
    SettingsDiffer,
)
from tasks.executor.containers.gpu_devices import devices_here, fitting_devices
from tasks.executor.containers.images import Images
from tasks.executor.containers.log_entries import LogPart, LogPlace, LogSelector
from tasks.executor.containers.log_stream import LogTail, RotationWatch
from tasks.executor.containers.masking import Masker
from tasks.executor.containers.mirrors import NO_MIRRORS, Mirrors
from tasks.executor.containers.outages import through_outage
from tasks.executor.containers.outputs import Outputs, archive_limit, pack_file
from tasks.executor.containers.request import SCRATCH_PATH, ContainerRequest, is_among
from tasks.executor.containers.settings import (
    CHECKPOINT_FOLDER,
    LABEL_GPUS,
    LABEL_NODE,
    LABEL_TASK,
    ImageFacts,
    Places,
    check_settings,
    container_name,
    create_body,
    disk_folders,
    free_gpus,
    scratch_volumes,
)
from tasks.executor.containers.watchdog_docker import ContainerWatch
from tasks.kinds.egress import is_covered

__all__ = ["DockerBackend", "DockerOptions", "engine_facts", "usage_of"]

_log = structlog.get_logger("containers")

LOOK_S: Final = 0.5
ENGINE_PATIENCE_S: Final = 120.0
"""How long an engine that does not answer is waited for: its service may be starting again."""
STOP_SPARE_S: Final = 30.0
SIGNALS_MAX: Final = 64
SNAPSHOT_TRIES: Final = 3
_SIGNALLED: Final = 128
_GIB: Final = 1 << 30


@dataclass(frozen=True)
class DockerOptions:
    """What this node lends on a Docker engine.

    ``images`` are the repositories that may run; one that ends with ``*`` stands for all that begin so.
    ``disk_gib`` bounds what images and containers of this node take together, ``image_gib`` one image. Without
    ``root_allowed`` a job that wants user 0 needs an engine with user namespaces. ``egress`` are patterns of the
    names that containers may reach (``tasks.kinds.egress``). ``mirrors`` are where images are pulled instead.
    """

    socket: str = "/var/run/docker.sock"
    images: tuple[str, ...] = ("*",)
    disk_gib: int = 64
    image_gib: int = 16
    root_allowed: bool = True
    gpus: tuple[str, ...] = ()
    egress: tuple[str, ...] = ()
    mirrors: Mirrors = NO_MIRRORS

    def allows(self, repository: str) -> bool:
        """Whether the operator lets images of a repository run."""
        return is_among(repository, self.images)


async def engine_facts(engine: Engine) -> EngineFacts:
    """Tell what an engine and this machine grant. Raises EngineUnavailable."""
    version = await engine.negotiate()
    info = await engine.get("/info")
    options = [str(one) for one in info.get("SecurityOptions") or ()]
    missing = await trio.to_thread.run_sync(missing_for_disks)
    if info.get("OSType") != "linux":
        missing.append("Linux containers")
    if not any(one.startswith("name=seccomp") for one in options):
        missing.append("seccomp")
    for key, name in (
        ("MemoryLimit", "memory limits"), ("SwapLimit", "swap limits"), ("PidsLimit", "process limits"),
        ("CpuCfsQuota", "processor limits"),
    ):  # fmt: skip
        if not info.get(key):
            missing.append(f"{name} (cgroups)")
    return EngineFacts(
        str(version.get("Version", "")), tuple(missing),
        any(one == "name=userns" or one == "name=rootless" for one in options),
        "nvidia" in (info.get("Runtimes") or {}),
        (info.get("InitCommit") or {}).get("ID") != "N/A", str(info.get("DockerRootDir", "")),
        about=f"control groups {info.get('CgroupVersion', '1')} ({info.get('CgroupDriver', 'unknown')}), storage "
        f"{info.get('Driver', 'unknown')}, kernel {info.get('KernelVersion', 'unknown')}",
        has_archives=True,
    )  # fmt: skip


class DockerBackend:
    """One node's containers on one engine (``tasks.executor.containers.backend``).

    ``node`` is the node's address: it is in the label and the name of each container. ``folder`` holds the disks.
    """

    def __init__(
        self, options: DockerOptions, node: bytes, folder: Path, logins: Mapping[str, RegistryLogin] | None = None
    ) -> None:
        self._options, self._node, self._folder = options, node, folder
        self._engine = Engine(options.socket)
        self._images = Images(
            self._engine, node, folder / "images", logins or {}, bytes_max=options.image_gib * _GIB,
            kept_bytes_max=options.disk_gib * _GIB // 2, mirrors=options.mirrors,
        )  # fmt: skip
        self._disks_bytes_max = options.disk_gib * _GIB // 2
        self._facts: EngineFacts | None = None
        self._why: dict[bytes, End] = {}
        self._choosing_gpus = trio.Lock()
        self._began_ns: dict[bytes, int] = {}
        self._made: set[bytes] = set()
        """Tasks whose disk was made, and that were not started since."""
        self._listening: dict[bytes, socket.socket] = {}
        """Sockets in the networks of containers that nobody has taken yet."""

    async def aclose(self) -> None:
        """Close the connections to the engine; containers go on."""
        await self._engine.aclose()

    def disk(self, task: bytes) -> ContainerDisk:
        """Return the disk of a task's container."""
        return ContainerDisk(self._folder / task.hex()[:32])

    @property
    def is_local(self) -> bool:
        """The engine's socket is on the node's machine (``ContainerBackend``)."""
        return True

    def folder(self, task: bytes) -> Path:
        """Return the folder of a task (``ContainerBackend``)."""
        return self.disk(task).folder

    def input_path(self, task: bytes, number: int) -> Path:
        """Return where the node puts an input (``ContainerBackend``)."""
        return self.disk(task).input_path(number)

    async def clear(self, task: bytes) -> None:
        """Remove the folder of a task (``ContainerBackend``)."""
        self._made.discard(task)
        await trio.to_thread.run_sync(self.disk(task).remove)

    def socket_folder(self, task: bytes) -> Path:
        """Return the folder of a container's socket (``ContainerBackend``)."""
        return self._folder / "sockets" / task.hex()[:32]

    # What the engine grants

    async def probe(self) -> EngineFacts:
        """Tell what the engine grants. Raises EngineUnavailable."""
        facts = await engine_facts(self._engine)
        closed = await trio.to_thread.run_sync(why_not_entered, self._engine.socket)
        has_root = self._options.root_allowed or facts.has_user_namespace
        self._facts = replace(facts, gpus=len(self._options.gpus), has_root=has_root, closed=closed)
        return self._facts

    async def _granted(self) -> EngineFacts:
        facts = self._facts or await self.probe()
        if facts.missing:
            raise ContainerRefused(f"this machine lacks {', '.join(facts.missing)}")
        return facts

    async def check(self, request: ContainerRequest) -> EngineFacts:
        """Return the engine's facts, or raise (``ContainerBackend``)."""
        facts = await self._allowed(request)
        await trio.to_thread.run_sync(_check_room, self._folder, self._disks_bytes_max, request)
        return facts

    async def _allowed(self, request: ContainerRequest) -> EngineFacts:
        """Return the engine's facts. Raises ContainerRefused for a container that may not run here."""
        facts = await self._granted()
        if not self._options.allows(request.image.repository):
            raise ContainerRefused(f"{request.image.repository}: the operator allows other images alone")
        self._options.mirrors.source(request)
        if request.user == 0 and not facts.has_user_namespace and not self._options.root_allowed:
            raise ContainerRefused("user 0 without a user namespace: the operator does not allow it")
        if request.limits.gpus and not facts.has_gpus:
            raise ContainerRefused("the engine has no runtime for GPUs")
        if request.limits.gpus > len(self._options.gpus):
            raise ContainerRefused(f"{request.limits.gpus} GPUs asked for, {len(self._options.gpus)} lent")
        if request.archive_bytes > self._options.image_gib * _GIB:
            raise ContainerRefused(
                f"an image of {request.archive_bytes} bytes, limit {self._options.image_gib} GiB"
            )
        fitting = len(await trio.to_thread.run_sync(_lent, self._options.gpus, request))
        if request.limits.gpus > fitting:
            raise ContainerRefused(f"{request.limits.gpus} GPUs of one kind asked for, {fitting} lent")
        if request.egress and facts.closed:
            raise ContainerRefused(f"egress: {facts.closed}")
        for entry in request.egress:
            if not is_covered(entry, self._options.egress):
                raise ContainerRefused(f"egress: this machine's owner does not let containers reach {entry}")
        return facts

    # Its life

    async def lack_of_room(
        self, task: bytes, request: ContainerRequest, ahead: Mapping[bytes, ContainerRequest]
    ) -> None:
        """The engine's machine is the node's own (``ContainerBackend``)."""

    async def offer(self, ahead: Mapping[bytes, ContainerRequest]) -> None:
        """The engine's machine is the node's own (``ContainerBackend``)."""

    async def prepare(self, request: ContainerRequest, on_pull: OnPull) -> None:
        """Bring the image here (``ContainerBackend``)."""
        facts = await self.check(request)
        image = await self._images.bring(request, facts.root, on_pull)
        scratch_volumes(request, image)
        await self._images.sweep()

    async def has_image(self, request: ContainerRequest) -> bool:
        """Whether the image of a request is here (``LoadsImages``)."""
        return await self._images.find(request) is not None

    async def load(self, request: ContainerRequest, archive: Path) -> None:
        """Check an archive and load its image (``LoadsImages``)."""
        facts = await self.check(request)
        await self._images.load(request, archive, facts.root)

    async def make_disk(self, task: bytes, request: ContainerRequest) -> None:
        """Make the disk of a container (``ContainerBackend``)."""
        facts, disk = await self._allowed(request), self.disk(task)
        image = await _image_of(self._images, request, facts)
        check = partial(_check_room, self._folder, self._disks_bytes_max, request, disk.folder)
        await trio.to_thread.run_sync(check)
        await trio.to_thread.run_sync(disk.make, request.limits.disk_mib, disk_folders(request, image))
        if request.checkpoint_path:
            restore = partial(disk.restore, CHECKPOINT_FOLDER, request.user, wipes=request.is_private)
            await trio.to_thread.run_sync(restore)
        self._made.add(task)

    async def start(self, task: bytes, request: ContainerRequest) -> None:
        """Make the container and start it (``ContainerBackend``)."""
        facts, disk = await self._allowed(request), self.disk(task)
        image = await _image_of(self._images, request, facts)
        await self._remove_container(task)  # one that was made and never started, of an earlier life of the node
        started = False
        self._began_ns[task] = time.time_ns()
        try:
            await trio.to_thread.run_sync(make_socket_folder, self.socket_folder(task))
            if task not in self._made:
                await self.make_disk(task, request)
            self._made.discard(task)
            if request.secrets.files:
                await trio.to_thread.run_sync(disk.put_secrets, request.secrets.files)
            async with self._choosing_gpus:  # from the choice until the container has their label
                gpus = await self._free_gpus(request)
                body = self._order(task, request, image, facts, gpus)
                made = await self._engine.post("/containers/create", body, name=container_name(self._node, task))
            await _compare(self._engine, str(made["Id"]), body)
            started = True  # where the node goes down now, its next life finds the container
            try:
                if request.egress:
                    order = partial(self._engine.post, f"/containers/{made['Id']}/start")
                    self._listening[task] = await start_and_listen(str(made["Id"]), order)
                else:
                    await self._engine.post(f"/containers/{made['Id']}/start")
            except EngineError as error:
                started = False
                raise NotStarted(str(error)) from None
            except EgressUnavailable:
                started = False
                raise
        finally:
            if not started:
                with trio.CancelScope(shield=True):
                    await (self.wipe(task) if request.is_private else self.remove(task))
        _log.info("a container runs", task=task, image=request.image.reference)

    async def proxy_socket(self, task: bytes) -> socket.socket:
        """Return a listening socket in a container's network (``EntersNetworks``)."""
        if (made := self._listening.pop(task, None)) is not None:
            return made
        found = await self._find(task)
        if found is None or not found["State"]["Running"]:
            raise EgressUnavailable("the container does not run")
        return await trio.to_thread.run_sync(listen_in_container, str(found["Id"]))

    def _order(
        self, task: bytes, request: ContainerRequest, image: ImageFacts, facts: EngineFacts, gpus: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return the order for a task's container: the same one for the same task, image and GPUs."""
        disk = self.disk(task)
        inputs = tuple(str(disk.input_path(number)) for number, _ in enumerate(request.mounts))
        return create_body(
            request, image, Places(str(disk.root), inputs, str(self.socket_folder(task)), str(disk.secrets)),
            {LABEL_NODE: self._node.hex(), LABEL_TASK: task.hex(), LABEL_GPUS: ",".join(gpus)}, gpus,
            has_init=facts.has_init,
        )  # fmt: skip

    async def running(self) -> frozenset[bytes]:
        """Return the tasks that have a container of this node (``ContainerBackend``)."""
        own = await self._own()
        return frozenset(task for task, found in own.items() if found.get("State") != "created")

    async def _free_gpus(self, request: ContainerRequest) -> tuple[str, ...]:
        """Return GPUs that no container of this node has. Raises ContainerRefused."""
        wanted = request.limits.gpus
        own = await self._own() if wanted else {}
        live = (found for found in own.values() if found.get("State") not in ("exited", "dead"))
        return free_gpus(
            await trio.to_thread.run_sync(_lent, self._options.gpus, request),
            (str(found["Labels"].get(LABEL_GPUS, "")) for found in live),
            wanted,
        )

    async def _own(self) -> dict[bytes, dict[str, Any]]:
        """Return what the engine lists of this node's containers, by task.

        Label and name must both say that they are: an image can bring labels.
        """
        filters = f'{{"label":["{LABEL_NODE}={self._node.hex()}"]}}'
        own: dict[bytes, dict[str, Any]] = {}
        for found in await self._engine.get("/containers/json", all="1", filters=filters):
            try:
                task = bytes.fromhex(str((found.get("Labels") or {}).get(LABEL_TASK, "")))
            except ValueError:
                continue
            if f"/{container_name(self._node, task)}" in (found.get("Names") or ()):
                own[task] = found
        return own

    async def _find(self, task: bytes) -> dict[str, Any] | None:
        """Return what the engine says of a task's container, None if there is none of this node."""
        try:
            found = await self._engine.get(f"/containers/{container_name(self._node, task)}/json")
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        labels = (found.get("Config") or {}).get("Labels") or {}
        if (labels.get(LABEL_NODE), labels.get(LABEL_TASK)) != (self._node.hex(), task.hex()):
            return None
        return dict(found)

    async def watch(self, task: bytes, request: ContainerRequest, on_look: OnLook) -> Ended:
        """Look at the container until it ends; end it at its limits (``ContainerBackend``)."""
        rotations, up_s, paused_s = RotationWatch(), 0.0, 0.0

        def is_away() -> None:
            on_look(Look(is_up=False, up_s=up_s))

        while True:
            found = await through_outage(partial(self._find, task), ENGINE_PATIENCE_S, LOOK_S, is_away)
            if found is None:
                return Ended(End.LOST, 0, up_s)
            state = found["State"]
            up_s = max(up_s, _up_s(state) - paused_s)
            if not state["Running"]:
                return await self._ended(task, state, up_s)
            is_up = not state.get("Paused") and not state.get("Restarting")
            paused_s += 0 if is_up else LOOK_S
            on_look(Look(is_up=is_up, up_s=up_s))
            if up_s >= request.limits.time_limit_s:
                self._why.setdefault(task, End.TIME_LIMIT)
                await self.stop(task, request.limits.grace_s)
            elif rotations.is_flood(await trio.to_thread.run_sync(_rotated_ns, str(found.get("LogPath", "")))):
                self._why.setdefault(task, End.LOG_LIMIT)
                await self.stop(task, request.limits.grace_s)
            else:
                await trio.sleep(LOOK_S)

    async def _ended(self, task: bytes, state: Mapping[str, Any], up_s: float) -> Ended:
        code = int(state.get("ExitCode", 0))
        is_signal = _SIGNALLED < code <= _SIGNALLED + SIGNALS_MAX
        number = code - _SIGNALLED if is_signal else code
        if (why := self._why.get(task)) is not None:
            return Ended(why, number, up_s)
        if code and state.get("OOMKilled"):
            return Ended(End.OUT_OF_MEMORY, number, up_s)
        if code and await trio.to_thread.run_sync(self.disk(task).is_full):
            return Ended(End.OUT_OF_DISK, number, up_s)
        return Ended(End.SIGNALLED if is_signal else End.EXITED, number, up_s)

    async def log(self, task: bytes, after: LogPlace, limit_bytes: int) -> LogPart:
        """Return what a container wrote after a place (``ContainerBackend``)."""
        found = await self._find(task)
        selector = LogSelector(after, limit_bytes)
        if found is not None and found["State"].get("Status") != "created":
            async with aclosing(self._engine.entries(found["Id"], after.since_s)) as entries:
                async for entry in entries:
                    if not selector.add(entry):
                        break
        return selector.part()

    async def usage(self, task: bytes) -> Usage | None:
        """Return what a container uses (``ContainerBackend``)."""
        found = await self._find(task)
        if found is None:
            return None
        path = f"/containers/{found['Id']}/stats"
        usage = usage_of(await self._engine.get(path, **{"stream": "false", "one-shot": "true"}))
        gpus = str((found["Config"].get("Labels") or {}).get(LABEL_GPUS, ""))
        return usage if usage is None or not gpus else replace(usage, gpus=tuple(gpus.split(",")))

    async def stop(self, task: bytes, grace_s: int) -> None:
        """Ask it to end; kill it after ``grace_s`` (``ContainerBackend``)."""
        self._why.setdefault(task, End.STOPPED)
        found = await self._find(task)
        if found is None:
            return
        if found["State"].get("Paused"):
            await self._engine.post(f"/containers/{found['Id']}/unpause")
        await self._engine.post(
            f"/containers/{found['Id']}/stop", timeout_s=grace_s + STOP_SPARE_S, t=str(grace_s)
        )

    # Who else has to do with it

    async def watchdog(self, task: bytes, request: ContainerRequest) -> ContainerWatch | None:
        """Return what looks at a task's container, None if it is gone. Raises EngineUnavailable, EngineError."""
        found = await self._find(task)
        if found is None:
            return None
        image, order = await self._images.find(request), None
        gpus = str((found["Config"].get("Labels") or {}).get(LABEL_GPUS, ""))
        if image is not None:  # its owner may have removed it meanwhile: what runs goes on
            with suppress(ContainerRefused):
                chosen = tuple(filter(None, gpus.split(",")))
                order = self._order(task, request, image, await self._granted(), chosen)
        began_ns = self._began_ns.get(task, 0)
        return ContainerWatch(
            self._engine, str(found["Id"]), int(found["State"].get("Pid") or 0), order, began_ns=began_ns
        )

    async def kill(self, task: bytes) -> None:
        """End its processes at once."""
        found = await self._find(task)
        if found is None:
            return
        try:
            await self._engine.post(f"/containers/{found['Id']}/kill", signal="SIGKILL")
        except EngineError as error:
            if error.status not in (404, 409):  # 409: it does not run any more
                raise

    async def wipe(self, task: bytes) -> bool:
        """Remove a killed container, and overwrite its disk and inputs; tell whether all was overwritten."""
        await self._remove_container(task)
        await self._images.release()
        is_whole = await trio.to_thread.run_sync(self.disk(task).wipe)
        self._forget(task)
        await trio.to_thread.run_sync(_remove_folder, self.socket_folder(task))
        return is_whole

    async def set_share(self, task: bytes, shares: int) -> None:
        """Give a running container so many shares of the processor, where others want it."""
        found = await self._find(task)
        if found is not None and found["State"]["Running"]:
            self._engine.own_calls.expect(str(found["Id"]), "update")
            await self._engine.post(f"/containers/{found['Id']}/update", {"CpuShares": shares})

    def _forget(self, task: bytes) -> None:
        if (listening := self._listening.pop(task, None)) is not None:
            listening.close()
        self._why.pop(task, None)
        self._began_ns.pop(task, None)
        self._made.discard(task)

    # What it leaves

    async def collect(self, task: bytes, request: ContainerRequest, packed: str) -> Collected:
        """Read log and outputs of an ended container (``ContainerBackend``)."""
        found = await self._find(task)
        if found is None:
            return Collected(b"", None, "the engine no longer has the container")
        if found["State"]["Running"]:
            raise ContainerRefused("outputs of a container that still runs are not read")
        tail, masker = LogTail(), Masker(request.secrets.values)
        async for data in self._engine.log(found["Id"]):
            tail.add(await trio.to_thread.run_sync(masker.feed, data))
        tail.add(await trio.to_thread.run_sync(masker.finish))
        if not request.output_path:
            return Collected(tail.contents(), None)
        try:
            outputs = await _packed(
                self._engine, self._folder, str(found["Id"]), request.output_path, Path(packed),
                request.limits.output_bytes,
            )  # fmt: skip
        except BadOutputs as error:
            return Collected(tail.contents(), None, str(error))
        return Collected(tail.contents(), outputs)

    async def snapshot(self, task: bytes, request: ContainerRequest, packed: str) -> Outputs:
        """Store the checkpoint folder as it is at one moment (``ContainerBackend``)."""
        found = await self._find(task)
        if found is None:
            raise FolderChanges("the engine no longer has the container")
        folder = self.disk(task).root / CHECKPOINT_FOLDER
        for _ in range(SNAPSHOT_TRIES):
            before = await trio.to_thread.run_sync(folder_state, folder)
            outputs: Outputs | None = None
            why: BadOutputs | FolderChanges | None = None
            try:
                outputs = await _packed(
                    self._engine, self._folder, str(found["Id"]), request.checkpoint_path, Path(packed),
                    request.checkpoint_bytes, disk_limit_bytes=request.limits.disk_mib << 20,
                )  # fmt: skip
            except BadOutputs as error:
                why = error
            except EngineUnavailable as error:  # a file became shorter as the engine read it
                why = FolderChanges(str(error))
            if before == await trio.to_thread.run_sync(folder_state, folder):
                if outputs is None:
                    assert why is not None
                    raise why
                return outputs
        raise FolderChanges(f"it changed each time that it was read, {SNAPSHOT_TRIES} times")

    async def remove(self, task: bytes) -> None:
        """Remove the container and its disk, in any state (``ContainerBackend``)."""
        await self._remove_container(task)
        await self._images.release()
        await self.clear(task)
        self._forget(task)
        await trio.to_thread.run_sync(_remove_folder, self.socket_folder(task))

    async def _remove_container(self, task: bytes) -> None:
        found = await self._find(task)
        if found is not None:
            try:
                await self._engine.delete(f"/containers/{found['Id']}", force="1", v="1")
            except EngineError as error:
                if error.status not in (404, 409):  # 409: its removal goes on already
                    raise

    async def sweep(self, kept: frozenset[bytes]) -> int:
        """Remove what no kept task needs (``ContainerBackend``)."""
        removed = 0
        for task in (await self._own()).keys() - kept:
            await self.remove(task)
            removed += 1
        names = {task.hex()[:32] for task in kept}
        for folder in self._folder.glob("[0-9a-f]" * 32):
            if folder.name not in names:
                await trio.to_thread.run_sync(ContainerDisk(folder).remove)
        for folder in (self._folder / "sockets").glob("*"):
            if folder.name not in names:
                await trio.to_thread.run_sync(_remove_folder, folder)
        return removed


async def _compare(engine: Engine, container: str, body: Mapping[str, Any]) -> None:
    """Compare settings and disk with the order, before the start. Raises SettingsDiffer."""
    check_settings(body, await engine.get(f"/containers/{container}/json"))
    try:
        await engine.stat(container, f"{SCRATCH_PATH}/{Path(MARKER).name}")
    except EngineError as error:
        raise SettingsDiffer(
            f"the engine does not see the disk that this node mounted; do they share mounts? {error}"
        ) from None


async def _packed(
    engine: Engine, folder: Path, container: str, path: str, packed: Path, limit: int, *,
    disk_limit_bytes: int | None = None,
) -> Outputs:  # fmt: skip
    """Pack the outputs of a container, or a checkpoint, which ``disk_limit_bytes`` of a disk have to hold.

    What a checkpoint leaves out, as it is still written, may be as large again as what it does not.
    """
    leaves_unfinished = disk_limit_bytes is not None
    size, most = 0, archive_limit(2 * limit if leaves_unfinished else limit)
    with tempfile.TemporaryFile(dir=folder) as archive:
        async with aclosing(engine.archive(container, path)) as parts:
            async for data in parts:
                size += len(data)
                if size > most:
                    raise BadOutputs(f"{path}: more than {limit} bytes")
                await trio.to_thread.run_sync(archive.write, data)
        archive.seek(0)
        pack = partial(pack_file, leaves_unfinished=leaves_unfinished, disk_limit_bytes=disk_limit_bytes)
        return await trio.to_thread.run_sync(pack, archive, packed, limit)


async def _image_of(images: Images, request: ContainerRequest, facts: EngineFacts) -> ImageFacts:
    image = await images.find(request)
    if image is None and request.secrets.login is not None:  # another task with a login had it removed
        image = await images.bring(request, facts.root, lambda _progress: None)
    if image is None:
        raise DigestMismatch(f"{request.image.reference}: the engine no longer has the image")
    return image


def _check_room(folder: Path, bytes_max: int, request: ContainerRequest, own: Path | None = None) -> None:
    """Raise NoRoom unless the operator's limit has room beside the disks in other folders than ``own``."""
    wanted = image_bytes(request.limits.disk_mib) + sum(mount.size_bytes for mount in request.mounts)
    disks = (file for file in folder.glob("*/disk.img") if file.parent != own)
    taken = sum(file.stat().st_size for file in disks)
    if wanted + taken > bytes_max:
        raise NoRoom(f"{wanted} bytes needed, {max(0, bytes_max - taken)} of the operator's limit are left")


def _lent(gpus: tuple[str, ...], request: ContainerRequest) -> tuple[str, ...]:
    """Return those of the lent GPUs that are what a request orders. Blocking where it orders some kind of them."""
    if not request.gpu_words and not request.gpu_memory_mib:
        return gpus
    return fitting_devices(gpus, devices_here(), request.gpu_words, request.gpu_memory_mib)


def make_socket_folder(folder: Path) -> None:
    """Make the folder of a container's socket: the container may look into it, no other user gets there."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def usage_of(found: Mapping[str, Any]) -> Usage | None:
    """Return the usage in the engine's answer, None where it tells none: the container does not run."""
    cpu, memory = found.get("cpu_stats"), found.get("memory_stats")
    used = cpu.get("cpu_usage", {}).get("total_usage") if isinstance(cpu, dict) else None
    held = memory.get("usage") if isinstance(memory, dict) else None
    if type(used) is not int or type(held) is not int:
        return None
    details = memory.get("stats") if isinstance(memory, dict) else None
    files = details.get("inactive_file", details.get("total_inactive_file", 0)) if isinstance(details, dict) else 0
    return Usage(used / 10**9, max(0, held - files) if type(files) is int else held)


def _rotated_ns(path: str) -> int:
    """Return when the engine last began a new file for a container's log, 0 if it never did."""
    try:
        return os.stat(path + ".1").st_mtime_ns
    except OSError:
        return 0


def _up_s(state: Mapping[str, Any]) -> float:
    """Return the seconds from the start of a container to its end, or until now, by the engine's machine."""
    started, ended = _moment(state.get("StartedAt")), _moment(state.get("FinishedAt"))
    if started is None:
        return 0.0
    until = datetime.now(started.tzinfo) if state.get("Running") or ended is None else ended
    return max(0.0, (until - started).total_seconds())


def _moment(text: object) -> datetime | None:
    """Return a time of the engine; it writes the year 1 for never."""
    try:
        found = datetime.fromisoformat(str(text)[:19] + "+00:00")
    except ValueError:
        return None
    return found if found.year > 1 else None
