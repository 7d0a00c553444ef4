"""What a cluster can sell: what its machines have, minus what its pods ask for, minus what its owner keeps.

Pure: the lists come from the API server. Whatever cannot be read counts against what is sold: a machine that
cannot be read sells nothing, nor does one with a pod that cannot be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tasks.executor.containers.kubernetes.manifests import LABEL_NODE
from tasks.executor.containers.kubernetes.placement import ANYWHERE, Placement, why_not
from tasks.executor.containers.kubernetes.quantities import amount, amount_above

__all__ = [
    "NOTHING",
    "Amounts",
    "Inventory",
    "Machine",
    "Places",
    "Stock",
    "StockTaking",
    "lack_of",
    "places_for",
    "pod_amounts",
    "take_stock",
]

MACHINES_MAX: Final = 5_000
"""As many as Kubernetes supports in one cluster."""
PODS_MAX: Final = 150_000
WAITING_MAX: Final = 1_000
"""Pods that wait for a machine. Where more wait, nothing is sold."""
PLACES_LOOKED: Final = 64
"""Places of different sizes that an offer is searched in, the largest first."""
LABEL_CHARS_MAX: Final = 64
_MIB: Final = 1 << 20


class Amounts(NamedTuple):
    """Millicores, bytes of memory and of disk, pods and GPUs."""

    millicores: int = 0
    memory: int = 0
    disk: int = 0
    pods: int = 0
    gpus: int = 0

    def plus(self, other: Amounts) -> Amounts:
        """Return both together."""
        return Amounts(*(one + more for one, more in zip(self, other, strict=True)))

    def minus(self, other: Amounts) -> Amounts:
        """Return what is left; it may be below zero."""
        return Amounts(*(one - less for one, less in zip(self, other, strict=True)))

    def holds(self, other: Amounts) -> bool:
        """Whether ``other`` fits into this. What is not asked for fits also where less than nothing is left."""
        return all(one >= less for one, less in zip(self, other, strict=True) if less)


NOTHING: Final = Amounts()


class Stock(NamedTuple):
    """Which machines a node sells from, and what their owner keeps on each.

    ``node`` is the label of the node's own pods. ``keeps_percent`` of cores, memory and disk and ``keeps_gpus``
    of the resource ``gpu_resource`` are not sold.
    """

    node: str = ""
    placement: Placement = ANYWHERE
    gpu_resource: str = "nvidia.com/gpu"
    keeps_percent: int = 0
    keeps_gpus: int = 0


class Machine(NamedTuple):
    """A machine that takes pods of this node: what is free there, what is sold at all, and its GPUs' model."""

    name: str
    free: Amounts
    sold: Amounts
    model: str = ""
    model_mib: int = 0


class Places(NamedTuple):
    """The largest place for one more container, and how many of the smallest ones fit beside each other."""

    largest: Amounts
    number: int
    model: str = ""
    model_mib: int = 0


class Inventory(NamedTuple):
    """Machines that take pods of this node, and pods that wait for a machine and may get one of these.

    ``held`` has this node's pods that have a machine, by namespace: the machine, and what the pod asks for.
    ``left_out`` counts machines that take no pod of this node, by reason.
    """

    machines: tuple[Machine, ...]
    waiting: tuple[Amounts, ...]
    held: Mapping[str, tuple[tuple[str, Amounts], ...]]
    left_out: Mapping[str, int]

    @property
    def sold(self) -> Amounts:
        """What is sold of all machines together."""
        return _sum(machine.sold for machine in self.machines)

    def after(self, kept: Collection[str]) -> Inventory:
        """Return the inventory as it is when this node's pods in namespaces other than ``kept`` have ended."""
        ending: dict[str, Amounts] = {}
        for space, pods in self.held.items():
            for machine, asked in pods if space not in kept else ():
                ending[machine] = ending.get(machine, NOTHING).plus(asked)
        machines = (one._replace(free=one.free.plus(ending.get(one.name, NOTHING))) for one in self.machines)
        return self._replace(machines=tuple(machines))

    @property
    def free(self) -> Amounts:
        """What is free on all machines together."""
        return _sum(Amounts(*(max(0, one) for one in machine.free)) for machine in self.machines)


# What pods ask for


def pod_amounts(spec: Mapping[str, Any], gpu_resource: str, status: Mapping[str, Any] | None = None) -> Amounts:
    """Return what a machine sets aside for a pod, as its scheduler counts it.

    The containers together, or the largest step of its start if that is more, and the overhead. Side containers
    among the first ones go on, so they count with all that follow. A resource that the pod as a whole asks for
    counts as that. What a running container still has after a change counts if it is more. Raises ValueError,
    TypeError, AttributeError for what is no pod.
    """
    granted: dict[str, Mapping[str, Any]] = {}
    for name in ("containerStatuses", "initContainerStatuses"):
        for one in (status or {}).get(name) or ():
            granted[str(one.get("name"))] = one.get("allocatedResources") or {}

    def of(container: Mapping[str, Any]) -> Amounts:
        asked = (container.get("resources") or {}).get("requests") or {}
        return _most(
            _amounts(asked, gpu_resource), _amounts(granted.get(str(container.get("name")), {}), gpu_resource)
        )

    besides, start = NOTHING, NOTHING
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            besides = besides.plus(of(container))
            start = _most(start, besides)
        else:
            start = _most(start, besides.plus(of(container)))
    running = besides
    for container in spec.get("containers") or ():
        running = running.plus(of(container))
    total = _most(start, running)
    whole = (spec.get("resources") or {}).get("requests") or {}
    if whole:
        asked = _amounts(whole, gpu_resource)
        total = Amounts(*(named if named else one for named, one in zip(asked, total, strict=True)))
    return total.plus(_amounts(spec.get("overhead") or {}, gpu_resource))._replace(pods=1)


def _amounts(values: Mapping[str, Any], gpu_resource: str) -> Amounts:
    def whole(name: str) -> int:
        return -(-amount_above(values.get(name, "0")) // 1_000)

    return Amounts(
        amount_above(values.get("cpu", "0")), whole("memory"), whole("ephemeral-storage"), 0, whole(gpu_resource)
    )


def _most(one: Amounts, other: Amounts) -> Amounts:
    return Amounts(*map(max, one, other))


# What machines have


class _Known(NamedTuple):
    """A machine that takes pods of this node: what is sold there, all that it has, and its labels."""

    sold: Amounts
    whole: Amounts
    labels: Mapping[str, Any]


class StockTaking:
    """Counts a cluster object by object, so that no whole list of its pods is ever held: first the machines."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._left_out: Counter[str] = Counter()
        self._known: dict[str, _Known] = {}
        self._used: dict[str, Amounts] = {}
        self._waiting: list[Amounts] = []
        self._held: dict[str, tuple[tuple[str, Amounts], ...]] = {}
        self._unread: set[str] = set()
        self._machines = self._pods = 0

    def add_machine(self, found: Mapping[str, Any]) -> None:
        """Count a machine. Those beyond MACHINES_MAX sell nothing."""
        self._machines += 1
        why = "beyond the limit" if self._machines > MACHINES_MAX else why_not(found, self._stock.placement)
        if why:
            self._left_out[why] += 1
            return
        meta = found["metadata"]
        self._known[meta["name"]] = _known(found["status"]["allocatable"], meta.get("labels") or {}, self._stock)

    def add_pod(self, found: Mapping[str, Any]) -> None:
        """Count a pod. Beyond PODS_MAX or WAITING_MAX nothing is sold."""
        self._pods += 1
        if self._pods > PODS_MAX or len(self._waiting) > WAITING_MAX:
            self._unread.add("")
            return
        try:
            meta, spec, status = found["metadata"], found["spec"], found.get("status") or {}
            if status.get("phase") in ("Succeeded", "Failed"):
                return
            name = str(spec.get("nodeName") or status.get("nominatedNodeName") or "")
            if name and name not in self._known:
                return
            is_own = (meta.get("labels") or {}).get(LABEL_NODE) == self._stock.node
            asked = pod_amounts(spec, self._stock.gpu_resource, status)
            if name:
                self._used[name] = self._used.get(name, NOTHING).plus(asked)
                if is_own:
                    space = str(meta["namespace"])
                    self._held[space] = (*self._held.get(space, ()), (name, asked))
            elif not is_own and _may_come(spec, asked, self._known):
                self._waiting.append(asked)
        except (KeyError, TypeError, ValueError, AttributeError):
            self._unread.add(_machine_of(found))

    def result(self) -> Inventory:
        """Return what was counted."""
        left_out, known = self._left_out.copy(), dict(self._known)
        if "" in self._unread:
            left_out["not all pods are known"] += len(known)
            known = {}
        for name in self._unread & known.keys():
            del known[name]
            left_out["a pod there cannot be read"] += 1
        made = []
        for name, one in sorted(known.items()):
            free = one.sold.minus(self._used.get(name, NOTHING))
            made.append(Machine(name, free, one.sold, *_model(one.labels, self._stock.gpu_resource)))
        return Inventory(tuple(made), tuple(self._waiting), dict(self._held), dict(left_out))


def take_stock(
    machines: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], stock: Stock
) -> Inventory:  # fmt: skip
    """Return what a cluster can sell, of its lists of machines and pods."""
    taking = StockTaking(stock)
    for machine in machines:
        taking.add_machine(machine)
    for pod in pods:
        taking.add_pod(pod)
    return taking.result()


def _known(allocatable: Mapping[str, Any], labels: Mapping[str, Any], stock: Stock) -> _Known:
    whole = Amounts(
        amount(allocatable.get("cpu")), amount(allocatable.get("memory")) // 1_000,
        amount(allocatable.get("ephemeral-storage")) // 1_000, amount(allocatable.get("pods")) // 1_000,
        amount(allocatable.get(stock.gpu_resource)) // 1_000,
    )  # fmt: skip
    part = 100 - stock.keeps_percent
    sold = Amounts(
        whole.millicores * part // 100, whole.memory * part // 100, whole.disk * part // 100, whole.pods,
        max(0, whole.gpus - stock.keeps_gpus),
    )  # fmt: skip
    return _Known(sold, whole, labels)


def _machine_of(pod: Any) -> str:
    """Return the machine of a pod that cannot be read, empty where even that is not known."""
    spec = pod.get("spec") if isinstance(pod, Mapping) else None
    name = spec.get("nodeName") if isinstance(spec, Mapping) else None
    return name if isinstance(name, str) else ""


def _may_come(spec: Mapping[str, Any], asked: Amounts, known: Mapping[str, _Known]) -> bool:
    """Whether a pod that waits could get one of these machines, were it empty."""
    if spec.get("schedulingGates"):
        return False
    selector = spec.get("nodeSelector") or {}
    return any(
        one.whole.holds(asked) and all(one.labels.get(name) == value for name, value in selector.items())
        for one in known.values()
    )


def _model(labels: Mapping[str, Any], resource: str) -> tuple[str, int]:
    """Return model and MiB of a machine's GPUs, as NVIDIA's discovery labels it.

    A part of a card (``nvidia.com/mig-1g.5gb``) has labels of its own; without them its resource is the name.
    """
    name = resource.removeprefix("nvidia.com/") if resource.startswith("nvidia.com/mig-") else "gpu"
    product = labels.get(f"nvidia.com/{name}.product") or (
        labels.get("nvidia.com/gpu.product") if name == "gpu" else ""
    )
    model = str(product or resource)[:LABEL_CHARS_MAX]
    return model, amount(labels.get(f"nvidia.com/{name}.memory", "0")) // 1_000


# What fits


def lack_of(inventory: Inventory, wanted: Amounts, ahead: Sequence[Amounts] = ()) -> str:
    """Return what is missing for ``wanted``, empty if there is room whatever the scheduler does.

    It may put what is ``ahead`` and what waits onto any machines, in any order, and each onto one. So one of these
    is sure of its room if more machines have it than there are others, or if one machine has room for all
    together. What is ahead is to stay sure of its room beside ``wanted``.
    """
    others = len(ahead) + len(inventory.waiting)
    together = _sum([wanted, *ahead, *inventory.waiting])
    if any(machine.free.holds(together) for machine in inventory.machines):
        return ""
    for one in (wanted, *ahead):
        fitting = sum(machine.free.holds(one) for machine in inventory.machines)
        if fitting <= others:
            if not fitting:
                return f"no machine of the cluster has {_told(one)} free"
            return f"{fitting} machines have {_told(one)} free, and {others} others may take it first"
    return ""


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    total = NOTHING
    for one in amounts:
        total = total.plus(one)
    return total


def _told(wanted: Amounts) -> str:
    gpus = f", {wanted.gpus} GPUs" if wanted.gpus else ""
    return (
        f"{wanted.millicores / 1000:g} cores, {wanted.memory // _MIB} MiB, {wanted.disk // _MIB} MiB of disk{gpus}"
    )


def places_for(inventory: Inventory, smallest: Amounts, ahead: Sequence[Amounts] = ()) -> Places:
    """Return the largest place in which ``smallest`` fits, with the most GPUs first, and how many of these fit.

    Whatever is no larger than the place has room (``lack_of``). There are 0 where ``smallest`` has none.
    """
    if lack_of(inventory, smallest, ahead):
        return Places(NOTHING, 0)
    first = [*ahead, *inventory.waiting]
    together = _sum(first)
    sizes: dict[Amounts, Machine] = {}
    for machine in inventory.machines:
        for free in (machine.free, machine.free.minus(together)):
            if free.holds(smallest):
                sizes.setdefault(free, machine)
    by_size = sorted(sizes, key=lambda free: (free.gpus, free.millicores, free.memory, free.disk), reverse=True)
    fitting = (free for free in by_size[:PLACES_LOOKED] if not lack_of(inventory, free, ahead))
    largest = next(fitting, smallest)
    machine = sizes[by_size[0] if largest not in sizes else largest]
    return Places(largest, _count(inventory, smallest, first), machine.model, machine.model_mib)


def _count(inventory: Inventory, smallest: Amounts, first: Sequence[Amounts]) -> int:
    """Return how many of ``smallest`` fit beside what comes first, were that packed tightly; 1 at least."""
    left = [machine.free for machine in inventory.machines]
    for one in sorted(first, reverse=True):
        at = next((at for at, free in enumerate(left) if free.holds(one)), None)
        if at is not None:
            left[at] = left[at].minus(one)
    counts = (
        min(one // less for one, less in zip(free, smallest, strict=True) if less)
        for free in left
        if free.holds(smallest)
    )
    return max(1, sum(counts))
