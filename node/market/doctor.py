"""What a machine lacks to run a node that earns: findings from facts, without a look at the machine itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

__all__ = ["Facts", "Finding", "Verdict", "examine"]

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
MEMORY_MIB_MIN: Final = 2048
"""Memory that programs can take: less runs no job beside a node."""
DISK_BYTES_MIN: Final = 2 * _GIB
"""Free space of the home: less than that ends a database."""
OPEN_FILES_MIN: Final = 4096
"""Files and connections that a process may have open."""
DISK_MIB_PER_S_MIN: Final = 40
"""Less than that is a disk with a needle that does something else too, or a card."""
LINK_MBIT_MIN: Final = 100
CLOCK_OFF_MS_MAX: Final = 1000
"""How far a clock may differ from the validators'."""
BEHIND_MS_MAX: Final = 60_000
"""Age of the newest block of a node that follows its chain."""


class Verdict(StrEnum):
    """How bad a finding is."""

    FINE = "ok"
    WARNING = "warning"
    """The machine earns less than it could, or will have trouble."""
    FAULT = "fault"
    """It cannot do its work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: its ``subject``, what was found, and what to do about it."""

    subject: str
    verdict: Verdict
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out about a machine and the home of its node; sizes in bytes unless named otherwise."""

    roles: tuple[str, ...]
    engine: str
    """The option ``executor.engine``."""
    device: str = ""
    """What jobs compute on; empty if a job could not be tried."""
    job_error: str = ""
    """Why a job could not be tried."""
    isolation_missing: tuple[str, ...] = ()
    containers: bool = False
    """The options lend a container engine."""
    container_engine: str = ""
    """Its version, empty if it does not answer."""
    container_missing: tuple[str, ...] = ()
    """What it and the machine lack for containers, or why it does not answer."""
    container_users: bool = False
    """It has a user namespace for containers."""
    container_about: str = ""
    """Control groups, storage driver and kernel of the engine."""
    container_gpus_asked: int = 0
    """GPUs that the options lend to containers."""
    container_has_gpus: bool = False
    """The engine has a runtime for GPUs."""
    container_registry: str = ""
    """Where images from files are pushed; empty: nowhere."""
    container_registry_lack: str = ""
    """Why that registry takes none."""
    disk_mib_per_s: int = 0
    """How fast the disk of the home takes what is written and synced; 0: not measured."""
    link_mbit_per_s: int = 0
    """Speed of the line to the next device; 0: unknown, as in most virtual machines and with radio."""
    uplink_mbit_per_s: int = 0
    """Upload rate that the options name; 0: unknown."""
    is_clock_kept: bool | None = None
    """The clock is set by the network; None: unknown."""
    container_egress: tuple[str, ...] = ()
    """Patterns of names that the options let containers reach, ..."""
    container_closed: str = ""
    """... and why they cannot."""
    container_cluster: bool = False
    """It is a cluster of Kubernetes, ..."""
    container_isolated: bool = True
    """... and its network policies were seen to hold."""
    gpus: tuple[str, ...] = ()
    driver: str = ""
    """Version of the driver of GPUs, empty if the kernel has none."""
    cores: int = 0
    units_per_s: int = 0
    """Measured rate of one core; 0 if it could not be measured."""
    is_steady: bool = True
    """Little else ran while it was measured."""
    memory_available: int = 0
    disk_free: int = 0
    disk_wanted: int = 0
    """What the options let the node store."""
    open_files: int = 0
    exposed: tuple[str, ...] = ()
    """Files and folders of keys that other users may read."""
    busy_ports: tuple[str, ...] = ()
    """Addresses that the node is to listen at and another program has. Not known while the node runs."""
    status: Mapping[str, Any] | None = None
    """Answer of the running node; None if none runs."""
    entry: Mapping[str, Any] | None = None
    """The machine in the registry of the chain; None if it is not there, or nobody could be asked."""


def examine(facts: Facts) -> Sequence[Finding]:
    """Return all findings, in the order in which they are best mended."""
    return [
        finding
        for look in (
            _keys,
            _memory,
            _disk,
            _disk_speed,
            _open_files,
            _engine,
            _isolation,
            _containers,
            _container_gpus,
            _container_registry,
            _container_egress,
            _speed,
            _ports,
            _line,
            _clock,
            _node,
            _entry,
        )
        for finding in look(facts)
    ]


def _runs_jobs(facts: Facts) -> bool:
    return bool({"compute", "verify"} & set(facts.roles))


def _keys(facts: Facts) -> Iterator[Finding]:
    for path in facts.exposed:
        yield Finding("keys", Verdict.FAULT, f"other users can read {path}", f"chmod go-rwx {path}")
    if not facts.exposed:
        yield Finding("keys", Verdict.FINE, "no other user can read them")


def _memory(facts: Facts) -> Iterator[Finding]:
    mib = facts.memory_available // _MIB
    if mib < MEMORY_MIB_MIN:
        yield Finding(
            "memory", Verdict.WARNING, f"{mib} MiB available; jobs that need more are declined",
            "end other programs, or give the machine more memory",
        )  # fmt: skip
    else:
        yield Finding("memory", Verdict.FINE, f"{mib} MiB available")


def _disk(facts: Facts) -> Iterator[Finding]:
    free, wanted = facts.disk_free / _GIB, facts.disk_wanted / _GIB
    if facts.disk_free < DISK_BYTES_MIN:
        yield Finding("disk", Verdict.FAULT, f"{free:.1f} GiB free", "free some space, or move the home")
    elif facts.disk_free < facts.disk_wanted:
        yield Finding(
            "disk", Verdict.WARNING, f"{free:.1f} GiB free; the options let the node store {wanted:.1f} GiB",
            "lower p2p.blob_store_bytes_max or storage.bytes_kept_max",
        )  # fmt: skip
    else:
        yield Finding("disk", Verdict.FINE, f"{free:.1f} GiB free")


def _disk_speed(facts: Facts) -> Iterator[Finding]:
    speed = facts.disk_mib_per_s
    if 0 < speed < DISK_MIB_PER_S_MIN:
        yield Finding(
            "disk speed", Verdict.WARNING, f"{speed} MiB/s written and synced; blocks and containers wait for it",
            "put the home on an SSD, or end what else writes to this disk",
        )  # fmt: skip
    elif speed:
        yield Finding("disk speed", Verdict.FINE, f"{speed} MiB/s written and synced")


def _line(facts: Facts) -> Iterator[Finding]:
    link, uplink = facts.link_mbit_per_s, facts.uplink_mbit_per_s
    if 0 < link < LINK_MBIT_MIN:
        yield Finding(
            "line", Verdict.WARNING, f"{link} Mbit/s to the next device: images and inputs take long",
            "use a faster port or cable; a task whose image is not here in time is lost",
        )  # fmt: skip
    elif link:
        told = (
            f"p2p.uplink_mbit_per_s says {uplink} Mbit/s upwards" if uplink else "p2p.uplink_mbit_per_s is not set"
        )
        yield Finding("line", Verdict.FINE, f"{link} Mbit/s to the next device; {told}")


def _clock(facts: Facts) -> Iterator[Finding]:
    """Of a node that runs the clock is compared with the validators' (``_node``)."""
    if facts.status is None and facts.is_clock_kept is not None:
        if facts.is_clock_kept:
            yield Finding("clock", Verdict.FINE, "set by the network")
        else:
            yield Finding(
                "clock", Verdict.WARNING, "nothing keeps it: votes and meters need it right to a second",
                "timedatectl set-ntp true",
            )  # fmt: skip


def _open_files(facts: Facts) -> Iterator[Finding]:
    if facts.open_files < OPEN_FILES_MIN:
        yield Finding(
            "open files", Verdict.WARNING, f"a process may have {facts.open_files} open files and connections",
            f"raise the limit to {OPEN_FILES_MIN}: LimitNOFILE of the service, or ulimit -n",
        )  # fmt: skip
    else:
        yield Finding("open files", Verdict.FINE, f"{facts.open_files} at most")


def _engine(facts: Facts) -> Iterator[Finding]:
    if not _runs_jobs(facts):
        return
    if not facts.device:
        yield Finding(
            "engine", Verdict.FAULT, f"a job of one step failed: {facts.job_error}", _engine_remedy(facts)
        )
        return
    if facts.gpus and not facts.device.startswith("cuda"):
        yield Finding(
            "engine", Verdict.WARNING, f"jobs run on {facts.device} although there is {', '.join(facts.gpus)}",
            "install the extra [ml], and set executor.engine to auto or torch",
        )  # fmt: skip
    elif not facts.gpus and facts.driver:
        yield Finding(
            "engine", Verdict.WARNING, f"driver {facts.driver} is loaded, and nvidia-smi names no GPU",
            "start nvidia-smi by hand and read its error",
        )  # fmt: skip
    else:
        with_gpus = f": {', '.join(facts.gpus)}, driver {facts.driver or 'unknown'}" if facts.gpus else ""
        yield Finding("engine", Verdict.FINE, f"jobs run on {facts.device}{with_gpus}")


def _engine_remedy(facts: Facts) -> str:
    if facts.engine == "torch":
        return "install the extra [ml], or set executor.engine to auto"
    return "see the log of the node; install the package again"


def _isolation(facts: Facts) -> Iterator[Finding]:
    if not _runs_jobs(facts) or not facts.device:
        return
    if facts.isolation_missing:
        yield Finding(
            "isolation", Verdict.WARNING,
            f"this machine does not grant jobs {', '.join(facts.isolation_missing)}",
            "install libseccomp2, and use Linux 5.13 or later with Landlock (docs/operations.md)",
        )  # fmt: skip
    else:
        yield Finding("isolation", Verdict.FINE, "jobs reach no file, process or network")


def _containers(facts: Facts) -> Iterator[Finding]:
    if not facts.containers:
        return
    if not facts.container_engine or facts.container_missing:
        yield Finding(
            "containers", Verdict.FAULT, f"none are lent: {', '.join(facts.container_missing)}",
            "check the account's rights and executor.kubernetes, and see docs/operations.md (Containers)"
            if facts.container_cluster
            else "start the engine, check executor.docker.socket, and see docs/operations.md (Containers)",
        )  # fmt: skip
    elif not facts.container_isolated:
        yield Finding(
            "containers", Verdict.WARNING,
            f"{facts.container_engine}, unisolated: no policy has an effect; tasks must allow that",
            "install a network plugin that enforces policies",
        )  # fmt: skip
    elif facts.container_cluster:
        yield Finding("containers", Verdict.FINE, f"{facts.container_engine}; its network policies hold")
    elif not facts.container_users:
        yield Finding(
            "containers", Verdict.WARNING,
            f"engine {facts.container_engine}; user 0 of a container is this machine's root without its rights",
            "set userns-remap for the engine, or executor.docker.root_allowed to false",
        )  # fmt: skip
    else:
        yield Finding("containers", Verdict.FINE, f"engine {facts.container_engine}")


def _container_egress(facts: Facts) -> Iterator[Finding]:
    if not facts.containers or not facts.container_engine:
        return
    if not facts.container_egress:
        table = "executor.kubernetes" if facts.container_cluster else "executor.docker"
        yield Finding("egress of containers", Verdict.FINE, f"none: {table}.egress names nothing")
    elif facts.container_cluster and not facts.container_isolated:
        yield Finding(
            "egress of containers", Verdict.WARNING,
            f"{', '.join(facts.container_egress)}, by a proxy; this cluster lets containers pass it by",
            "use a network plugin that enforces NetworkPolicy",
        )  # fmt: skip
    elif facts.container_closed:
        yield Finding(
            "egress of containers", Verdict.WARNING,
            f"{', '.join(facts.container_egress)} cannot be reached: {facts.container_closed}",
            "run node and engine as root on one machine, in one namespace of processes",
        )  # fmt: skip
    else:
        yield Finding("egress of containers", Verdict.FINE, f"{', '.join(facts.container_egress)}, by a proxy")


def _container_registry(facts: Facts) -> Iterator[Finding]:
    if (
        not facts.containers
        or not facts.container_registry
        or not facts.container_engine
        or facts.container_missing
    ):
        return
    subject = "images from files"
    if facts.container_registry_lack:
        yield Finding(
            subject, Verdict.FAULT, f"none are taken: {facts.container_registry_lack}",
            "check executor.kubernetes.registry and the rights of executor.kubernetes.logins there",
        )  # fmt: skip
    else:
        yield Finding(subject, Verdict.FINE, f"pushed to {facts.container_registry}")


def _container_gpus(facts: Facts) -> Iterator[Finding]:
    if facts.containers and facts.container_engine and facts.container_about:
        subject = "cluster of containers" if facts.container_cluster else "engine of containers"
        yield Finding(subject, Verdict.FINE, facts.container_about)
    if facts.container_cluster and facts.container_about:
        if facts.container_gpus_asked and not facts.container_has_gpus:
            yield Finding(
                "GPUs of containers", Verdict.FAULT,
                f"{facts.container_gpus_asked} are lent to a container, and no machine that is sold has one",
                "check executor.kubernetes.gpu_resource, node_selector and reserve_gpus, and the device plugin",
            )  # fmt: skip
        return
    if facts.containers and facts.container_gpus_asked and not facts.container_has_gpus:
        yield Finding(
            "GPUs of containers", Verdict.FAULT,
            f"{facts.container_gpus_asked} are lent, and the engine has no runtime for them",
            "install nvidia-container-toolkit, then nvidia-ctk runtime configure --runtime=docker",
        )  # fmt: skip


def _speed(facts: Facts) -> Iterator[Finding]:
    if not _runs_jobs(facts):
        return
    told = f"{facts.units_per_s / 10**9:.1f} * 10^9 work units a second on one of {facts.cores} cores"
    if not facts.units_per_s:
        yield Finding("speed", Verdict.FAULT, "it could not be measured", "see the log of the node")
    elif not facts.is_steady:
        yield Finding(
            "speed", Verdict.WARNING, f"{told}, beside other programs", "jobs are slower beside other programs"
        )
    else:
        yield Finding("speed", Verdict.FINE, told)


def _ports(facts: Facts) -> Iterator[Finding]:
    for address in facts.busy_ports:
        yield Finding(
            "ports", Verdict.FAULT, f"another program listens at {address}",
            "end that program, or change the port in config.toml",
        )  # fmt: skip


def _node(facts: Facts) -> Iterator[Finding]:
    state = facts.status
    if state is None:
        yield Finding("node", Verdict.WARNING, "it does not run", "start it: dekube node run")
        return
    off_ms = int(state["clock_off_ms"])
    if abs(off_ms) > CLOCK_OFF_MS_MAX:
        way = "ahead of" if off_ms > 0 else "behind"
        yield Finding(
            "clock", Verdict.FAULT, f"{abs(off_ms) / 1000:.1f} s {way} the validators'", "set it by NTP"
        )  # fmt: skip
    else:
        yield Finding("clock", Verdict.FINE, "as the validators'")
    if not state["peers"]:
        yield Finding("peers", Verdict.FAULT, "none", "check p2p.bootstrap, p2p.relays and the firewall")
    elif (reached := state["reachability"])["how"] == "none":
        yield Finding(
            "peers", Verdict.WARNING, f"{state['peers']}; no peer can reach this node ({reached['why']})",
            "open the port of p2p.listen, or name relays in p2p.relays",
        )  # fmt: skip
    else:
        yield Finding("peers", Verdict.FINE, f"{state['peers']} connected")
    if state["syncing"] or int(state["behind_ms"]) > BEHIND_MS_MAX:
        yield Finding(
            "chain", Verdict.WARNING, f"the newest block is {int(state['behind_ms']) // 1000} s old",
            "wait until the node has caught up; see dekube status",
        )  # fmt: skip
    else:
        yield Finding("chain", Verdict.FINE, f"the node follows it at height {state['height']}")
    for trouble in state["troubles"]:
        yield Finding("duties", Verdict.WARNING, f"{trouble['duty']}: {trouble['error']}", "see dekube status")


def _entry(facts: Facts) -> Iterator[Finding]:
    if facts.status is None or not {"compute", "verify", "storage"} & set(facts.roles):
        return
    if facts.entry is None:
        yield Finding(
            "registry", Verdict.WARNING, "this machine is not registered, or no gateway could be asked",
            "see dekube worker show",
        )  # fmt: skip
    elif facts.entry["status"] != "active" and (report := facts.entry.get("tampering")) is not None:
        yield Finding(
            "registry", Verdict.WARNING,
            f"{facts.entry['status']}: by its own report: a container was tampered with ({report['sign']})",
            "see the log of the node, and docs/security.md (What the watchdog sees); it ends by itself",
        )  # fmt: skip
    elif facts.entry["status"] != "active" or not facts.entry["present"]:
        how = facts.entry["status"] if facts.entry["status"] != "active" else "away"
        yield Finding("registry", Verdict.WARNING, f"{how}: it gets no work", "see dekube worker show")
    else:
        yield Finding("registry", Verdict.FINE, "active")
