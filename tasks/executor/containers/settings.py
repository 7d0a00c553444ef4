"""A container's settings as the Docker engine takes them, and whether the engine took them so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tasks.custody.secrets import FOLDER as SECRETS_FOLDER
from tasks.executor.containers.egress.targets import PROXY_HOST, PROXY_PORT
from tasks.executor.containers.errors import ContainerRefused, RequestInvalid, SettingsDiffer
from tasks.executor.containers.request import SCRATCH_PATH, ContainerRequest, check_path

__all__ = [
    "CHECKPOINT_FOLDER",
    "LABEL_GPUS",
    "LABEL_NODE",
    "LABEL_TASK",
    "LOG_FILE_BYTES",
    "SOCKET_NAME",
    "SOCKET_PATH",
    "ImageFacts",
    "Places",
    "check_settings",
    "container_name",
    "create_body",
    "image_facts",
]

LABEL_NODE: Final = "dekube.node"
LABEL_TASK: Final = "dekube.task"
LABEL_GPUS: Final = "dekube.gpus"
"""Ids of the GPUs that a container has, with commas between: no other container of the node gets them."""
HOST_NAME: Final = "job"
"""Each container's name for itself; it leads to the loopback, where processes of one program find each other."""
PROCESSES_MAX: Final = 4_096
LOG_FILE_BYTES: Final = 1 << 20
LOG_FILES: Final = 2
RUN_TMPFS_BYTES: Final = 16 << 20
OOM_SCORE: Final = 500
"""The kernel ends jobs before it ends the node."""
IMAGE_VOLUMES_MAX: Final = 32
SOCKET_PATH: Final = "/run/dekube"
"""Where a container has the folder of its socket."""
SOCKET_NAME: Final = "job.sock"
GPU_VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
NO_GPU: Final = "void"
"""What NVIDIA's runtime takes for a container that is none of its business."""
_VARIABLES: Final = {
    "HOME": f"{SCRATCH_PATH}/home",
    "TMPDIR": f"{SCRATCH_PATH}/tmp",  # noqa: S108  inside the container
    "XDG_CACHE_HOME": f"{SCRATCH_PATH}/cache",
}
_PROXY: Final = f"http://{PROXY_HOST}:{PROXY_PORT}"
_PROXY_VARIABLES: Final = {
    "http_proxy": _PROXY,
    "https_proxy": _PROXY,
    "no_proxy": f"localhost,{HOST_NAME},127.0.0.1,::1",
}
"""What programs look for, in both cases. What a job sets in either case is its own."""
CHECKPOINT_FOLDER: Final = "checkpoint"
"""The folder of a container's disk that is stored while it runs."""
_TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108  paths inside the container


@dataclass(frozen=True)
class ImageFacts:
    """What the engine says of an image: its id, the references by digest, unpacked size, declared volumes."""

    image_id: str
    digests: tuple[str, ...]
    size_bytes: int
    volumes: tuple[str, ...]
    tags: tuple[str, ...] = ()

    def is_asked(self, request: ContainerRequest) -> bool:
        """Whether this is the image of ``request``: by the digest of its manifest, or by its id."""
        image = request.image
        return self.image_id == image.name or any(one.rpartition("@")[2] == image.name for one in self.digests)


@dataclass(frozen=True)
class Places:
    """Folders and files of the machine for one container: disk image's root, inputs by number, socket's folder.

    Without the last it has no socket.
    """

    disk: str
    inputs: tuple[str, ...] = ()
    socket: str = ""
    secrets: str = ""
    """Folder in memory with the files of secrets; empty without any."""

    @property
    def output(self) -> str:
        """Folder of the outputs."""
        return f"{self.disk}/output"


def container_name(node: bytes, task: bytes) -> str:
    """Return the name of a task's container: an image can bring labels along, but no name."""
    return f"dekube-{node.hex()[:16]}-{task.hex()[:32]}"


def image_facts(found: Mapping[str, Any]) -> ImageFacts:
    """Read the engine's answer about an image. Raises ContainerRefused for volumes that cannot be bounded."""
    config = found.get("Config")
    volumes = config.get("Volumes") if isinstance(config, Mapping) else None
    paths = tuple(sorted(str(path) for path in volumes)) if isinstance(volumes, Mapping) else ()
    if len(paths) > IMAGE_VOLUMES_MAX:
        raise ContainerRefused(f"the image declares {len(paths)} volumes, limit {IMAGE_VOLUMES_MAX}")
    size = found.get("Size")
    return ImageFacts(
        str(found.get("Id", "")), _texts(found.get("RepoDigests")), size if isinstance(size, int) else 0, paths,
        _texts(found.get("RepoTags")),
    )  # fmt: skip


def _texts(found: object) -> tuple[str, ...]:
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def scratch_volumes(request: ContainerRequest, image: ImageFacts) -> tuple[str, ...]:
    """Return the declared volumes that get a folder of the disk image.

    The engine would make a volume without a limit for each of them. Raises ContainerRefused for a path that a
    container may not have.
    """
    own = request.output_path, request.checkpoint_path
    taken = {*_TEMPORARY, SCRATCH_PATH, *own, *(mount.path for mount in request.mounts)}
    rest = tuple(path for path in image.volumes if path not in taken)
    for path in rest:
        try:
            check_path(path)
        except RequestInvalid as error:
            raise ContainerRefused(f"a volume of the image: {error}") from None
    return rest


def disk_folders(request: ContainerRequest, image: ImageFacts) -> dict[str, int]:
    """Return the folders that the disk image must have, with their modes."""
    folders = {
        "scratch": 0o1777,
        "scratch/home": 0o777,
        "scratch/tmp": 0o1777,
        "scratch/cache": 0o777,
        "output": 0o777,
    }
    if request.checkpoint_path:
        folders[CHECKPOINT_FOLDER] = 0o777
    volumes = {f"volumes/{number}": 0o777 for number, _ in enumerate(scratch_volumes(request, image))}
    return folders | ({"volumes": 0o755} | volumes if volumes else {})


def _mount(source: str, target: str, *, read_only: bool = False) -> dict[str, Any]:
    return {
        "Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
    }  # fmt: skip


def mounts_of(request: ContainerRequest, image: ImageFacts, places: Places) -> list[dict[str, Any]]:
    """Return the mounts: scratch, temporary folders, output, declared volumes, and the inputs read-only."""
    made = [_mount(f"{places.disk}/scratch", SCRATCH_PATH)]
    made += [_mount(f"{places.disk}/scratch/tmp", path) for path in _TEMPORARY]
    if request.output_path:
        made.append(_mount(places.output, request.output_path))
    if request.checkpoint_path:
        made.append(_mount(f"{places.disk}/{CHECKPOINT_FOLDER}", request.checkpoint_path))
    for number, path in enumerate(scratch_volumes(request, image)):
        made.append(_mount(f"{places.disk}/volumes/{number}", path))
    for mount, source in zip(request.mounts, places.inputs, strict=True):
        made.append(_mount(source, mount.path, read_only=True))
    if places.socket:
        made.append(_mount(places.socket, SOCKET_PATH, read_only=True))
    if request.secrets.files:
        made.append(_mount(places.secrets, SECRETS_FOLDER, read_only=True))
    return made


def free_gpus(lent: Sequence[str], taken: Iterable[str], wanted: int) -> tuple[str, ...]:
    """Return ``wanted`` of the GPUs that are ``lent``, none of which is in a list of ``taken`` labels.

    Raises ContainerRefused where too few are free.
    """
    used = {gpu for label in taken for gpu in label.split(",")}
    free = [gpu for gpu in lent if gpu not in used]
    if len(free) < wanted:
        raise ContainerRefused(f"{wanted} GPUs asked for, {len(free)} of {len(lent)} are free")
    return tuple(free[:wanted])


def environment_of(
    request: ContainerRequest, gpus: Sequence[str] = (), *, has_socket: bool = False
) -> list[str]:  # fmt: skip
    """Return the variables: the request's own win over those of the machine, but for the GPUs that it may see.

    Where an engine's default runtime is NVIDIA's, this variable gives a container GPUs that it has not ordered,
    and images for CUDA bring it along with the value ``all``.
    """
    wanted = (*request.environment, *(f"{name}={value}" for name, value in request.secrets.variables))
    kept = [text for text in wanted if text.partition("=")[0] != GPU_VARIABLE]
    own = {text.partition("=")[0] for text in kept}
    machine = [f"{name}={value}" for name, value in _VARIABLES.items() if name not in own]
    if has_socket:
        machine.append(f"DEKUBE_SOCKET={SOCKET_PATH}/{SOCKET_NAME}")
    if request.egress:
        set_by_job = {name.lower() for name in own}
        for name, value in _PROXY_VARIABLES.items():
            machine += [f"{one}={value}" for one in (name, name.upper()) if name not in set_by_job]
    if request.checkpoint_path:  # names that begin with DEKUBE_ are no job's
        machine += [f"DEKUBE_CHECKPOINT={request.checkpoint_path}", f"DEKUBE_RESUMED={int(request.is_resumed)}"]
    return [*machine, *kept, f"{GPU_VARIABLE}={','.join(gpus) or NO_GPU}"]


def create_body(
    request: ContainerRequest, image: ImageFacts, places: Places, labels: Mapping[str, str],
    gpus: Sequence[str] = (), *, has_init: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Return the order to create a container; ``gpus`` are device ids. Raises ContainerRefused."""
    limits = request.limits
    if len(gpus) != limits.gpus:
        raise ContainerRefused(f"{limits.gpus} GPUs asked for, {len(gpus)} free")
    memory = limits.memory_mib << 20
    host: dict[str, Any] = {
        "NetworkMode": "none", "ReadonlyRootfs": True, "Privileged": False, "CapDrop": ["ALL"], "CapAdd": [],
        "SecurityOpt": ["no-new-privileges"], "PidsLimit": PROCESSES_MAX, "Memory": memory,
        "MemorySwap": memory, "NanoCpus": limits.cores * 10**9, "OomKillDisable": False,
        "OomScoreAdj": OOM_SCORE, "ShmSize": memory // 2, "IpcMode": "private", "PidMode": "", "UTSMode": "",
        "UsernsMode": "", "CgroupnsMode": "private", "CgroupParent": "", "Init": has_init, "AutoRemove": False,
        "PublishAllPorts": False, "PortBindings": {}, "Links": [], "VolumesFrom": [], "Binds": [], "Devices": [],
        "DeviceCgroupRules": [], "Sysctls": {}, "GroupAdd": [],
        "ExtraHosts": [f"{HOST_NAME}:127.0.0.1"],
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "LogConfig": {
            "Type": "json-file", "Config": {"max-size": str(LOG_FILE_BYTES), "max-file": str(LOG_FILES)},
        },
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "Tmpfs": {"/run": f"rw,noexec,nosuid,nodev,mode=1777,size={min(RUN_TMPFS_BYTES, memory // 4)}"},
        "Mounts": mounts_of(request, image, places),
        "DeviceRequests": [
            {"Driver": "nvidia", "Count": 0, "DeviceIDs": list(gpus), "Capabilities": [["gpu"]], "Options": {}},
        ] if gpus else [],
    }  # fmt: skip
    body: dict[str, Any] = {
        "Image": image.image_id, "Hostname": HOST_NAME, "User": f"{request.user}:{request.user}",
        "Env": environment_of(request, gpus, has_socket=bool(places.socket)),
        "Labels": dict(labels), "Tty": False, "OpenStdin": False, "AttachStdin": False, "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]}, "HostConfig": host,
    }  # fmt: skip
    if request.command:
        body["Entrypoint"], body["Cmd"] = [request.command[0]], list(request.command[1:])
    return body


_OF_CONTAINER: Final = (
    "Hostname",
    "User",
    "Tty",
    "OpenStdin",
    "AttachStdin",
    "StopSignal",
    "Healthcheck",
    "Entrypoint",
    "Cmd",
)


def check_settings(body: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Compare what the engine made with the order. Raises SettingsDiffer with the name of the first difference."""
    config, host = found.get("Config") or {}, found.get("HostConfig") or {}
    if found.get("Image") != body["Image"]:
        raise SettingsDiffer(f"Image: {found.get('Image')!r}")
    for name in _OF_CONTAINER:
        if name in body and not _is_same(body[name], config.get(name)):
            raise SettingsDiffer(f"{name}: {config.get(name)!r}")
    for name, value in body["HostConfig"].items():
        if not _is_same(value, host.get(name)):
            raise SettingsDiffer(f"{name}: {host.get(name)!r}")
    labels = config.get("Labels") or {}
    for name, value in body["Labels"].items():
        if labels.get(name) != value:
            raise SettingsDiffer(f"label {name}: {labels.get(name)!r}")
    missing = set(body["Env"]) - set(config.get("Env") or ())
    if missing:
        raise SettingsDiffer(f"Env without {sorted(missing)[0].partition('=')[0]}")
    ordered = sorted((one["Source"], one["Target"], not one["ReadOnly"]) for one in body["HostConfig"]["Mounts"])
    bound = found.get("Mounts") or ()
    made = sorted((one.get("Source"), one.get("Destination"), one.get("RW")) for one in bound)
    if ordered != made or any(one.get("Type") != "bind" for one in bound):
        raise SettingsDiffer(f"Mounts: {made!r}"[:400])
    networks = set((found.get("NetworkSettings") or {}).get("Networks") or {})
    if networks - {"none"}:
        raise SettingsDiffer(f"Networks: {sorted(networks)}")


def _is_same(ordered: Any, found: Any) -> bool:
    """Whether a found value is the ordered one: what is empty may be absent, and an engine may add fields."""
    if not ordered and ordered not in (0, False):
        return not found
    if isinstance(ordered, Mapping):
        return isinstance(found, Mapping) and all(
            _is_same(value, found.get(key)) for key, value in ordered.items()
        )
    if isinstance(ordered, list):
        return (
            isinstance(found, list)
            and len(ordered) == len(found)
            and all(_is_same(one, other) for one, other in zip(ordered, found, strict=True))
        )
    if ordered is False or (ordered == 0 and not isinstance(ordered, bool)):
        return not found
    return type(ordered) is type(found) and ordered == found
