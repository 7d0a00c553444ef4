"""What a node sells of its cluster: an inventory that is taken anew when it is too old, and what fits into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import trio

from tasks.executor.containers.backend import Lack, Offer
from tasks.executor.containers.errors import EngineError
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.inventory import (
    PODS_MAX,
    Amounts,
    Inventory,
    Stock,
    StockTaking,
    lack_of,
    places_for,
    pod_amounts,
)
from tasks.executor.containers.kubernetes.manifests import Cluster, pod_spec
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tasks.kinds.gpus import common_words, has_card

__all__ = ["FRESH_S", "Selling"]

FRESH_S: Final = 2.0
"""An inventory by which a container is accepted is no older than that."""
KNOWN_S: Final = 15.0
"""Nor one by which room is offered, ..."""
TAKING_SHARE: Final = 10
KNOWN_S_MAX: Final = 60.0
"""... but where taking it is slow: then it takes a tenth of the time, and is this old at most."""
PAGE: Final = 500
GONE: Final = 410
"""The API server forgot the list that was read page by page: it is read from its beginning, once."""
PLACE_MIB: Final = 512
"""Memory of the smallest place that is offered, which has one core, and one GPU where GPUs are lent."""
LIVE_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"
_MIB: Final = 1 << 20


class Selling:
    """Says what fits into a cluster beside what runs there."""

    def __init__(
        self, api: Callable[[], ClusterApi], cluster: Cluster, stock: Stock, gpus: int,
        namespace: Callable[[bytes], str],
    ) -> None:  # fmt: skip
        self._api, self._cluster, self._stock, self._gpus = api, cluster, stock, gpus
        self._namespace = namespace
        self._lock = trio.Lock()
        self._taken: tuple[float, float, Inventory] | None = None
        """When the taking began, how long it took, and what was found."""

    async def look(self, age_s: float = KNOWN_S) -> Inventory:
        """Return an inventory that is no older than ``age_s``. Raises EngineUnavailable, EngineError."""
        async with self._lock:
            began = trio.current_time()
            if self._taken is None or began - self._taken[0] > age_s:
                found = await self._take()
                self._taken = began, trio.current_time() - began, found
            return self._taken[2]

    async def _take(self) -> Inventory:
        try:
            return await self._take_once()
        except EngineError as error:
            if error.status != GONE:
                raise
        return await self._take_once()

    async def _take_once(self) -> Inventory:
        taking, api = StockTaking(self._stock), self._api()
        selector = ",".join(f"{name}={value}" for name, value in self._stock.placement.selector)
        async for page in api.pages("/api/v1/nodes", labelSelector=selector):
            for one in page:
                taking.add_machine(one)
        async for page in api.pages(
            "/api/v1/pods", size=PAGE, pages_max=PODS_MAX // PAGE, fieldSelector=LIVE_PODS
        ):
            await trio.to_thread.run_sync(_add_pods, taking, page)
        return taking.result()

    def amounts(self, request: ContainerRequest) -> Amounts:
        """Return what the pod of a container asks for."""
        return pod_amounts(pod_spec(request, self._cluster), self._stock.gpu_resource)

    async def lack_of_cards(self, request: ContainerRequest) -> str:
        """Return that the scheduler may give a container other GPUs than it orders, empty if it cannot."""
        if not request.gpu_words and not request.gpu_memory_mib:
            return ""
        machines = [machine for machine in (await self.look()).machines if machine.sold.gpus]
        others = {
            machine.model
            for machine in machines
            if not has_card(machine.model, machine.model_mib, request.gpu_words, request.gpu_memory_mib)
        }
        if machines and not others:
            return ""
        has = f"may give {', '.join(sorted(others))}" if others else "has none"
        memory = (f"{request.gpu_memory_mib} MiB",) if request.gpu_memory_mib else ()
        return f"GPUs with {', '.join((*request.gpu_words, *memory))} are ordered; the cluster {has}"

    async def is_large_enough(self, request: ContainerRequest) -> bool:
        """Whether a machine could have the container, were no other pod there."""
        wanted, inventory = self.amounts(request), await self.look()
        return any(machine.sold.holds(wanted) for machine in inventory.machines)

    async def lack(self, task: bytes, request: ContainerRequest, ahead: Mapping[bytes, ContainerRequest]) -> Lack:
        """Return what is missing for a container beside those ``ahead`` (``ContainerBackend.lack_of_room``)."""
        inventory = await self.look(FRESH_S)
        wanted, first = self.amounts(request), self._without_machine(inventory, ahead)
        text = await trio.to_thread.run_sync(lack_of, inventory, wanted, first)
        known = {self._namespace(one) for one in (task, *ahead)}
        return Lack(text, passes=bool(inventory.held.keys() - known))

    def _without_machine(self, inventory: Inventory, ahead: Mapping[bytes, ContainerRequest]) -> list[Amounts]:
        """Return what those ask for whose pod has no machine yet: no list of pods counts them."""
        return [
            self.amounts(request) for task, request in ahead.items() if self._namespace(task) not in inventory.held
        ]

    async def offer(self, ahead: Mapping[bytes, ContainerRequest]) -> Offer:
        """Return what one more container may have, and how many more there may be (``ContainerBackend.offer``)."""
        slow_s = 0.0 if self._taken is None else TAKING_SHARE * self._taken[1]
        inventory = await self.look(max(KNOWN_S, min(KNOWN_S_MAX, slow_s)))
        # Who is given room that others are leaving waits for it before it accepts (``Lack.passes``).
        inventory = inventory.after({self._namespace(task) for task in ahead})
        gpus = min(1, self._gpus)
        smallest = self.amounts(_smallest(gpus))
        besides = smallest.minus(Amounts(1_000, PLACE_MIB * _MIB, 0, 0, gpus))
        first = self._without_machine(inventory, ahead)
        places = await trio.to_thread.run_sync(places_for, inventory, smallest, first)
        if not places.number:
            return Offer(0, 0, 0, "", 0, 0)
        largest = places.largest.minus(besides)
        # The scheduler chooses the machine: what is offered is what each of them has.
        cards = [(machine.model, machine.model_mib) for machine in inventory.machines if machine.sold.gpus]
        model = places.model if len({name for name, _ in cards}) < 2 else " ".join(common_words(dict(cards)))
        return Offer(
            largest.millicores // 1_000, largest.memory // _MIB, min(self._gpus, largest.gpus), model,
            min((mib for _, mib in cards), default=places.model_mib), places.number,
        )  # fmt: skip


def _add_pods(taking: StockTaking, page: Iterable[dict[str, Any]]) -> None:
    for one in page:
        taking.add_pod(one)


def _smallest(gpus: int) -> ContainerRequest:
    limits = Limits(cores=1, memory_mib=PLACE_MIB, disk_mib=16, output_bytes=0, time_limit_s=1)
    return ContainerRequest(Image("smallest", bytes(32)), replace(limits, gpus=gpus), output_path="")


def about(inventory: Inventory, gpu_resource: str, priority_class: str) -> str:
    """Say what is sold of a cluster, what is free of that, and which priority its pods have, for people."""
    sold, free = inventory.sold, inventory.free
    models = sorted({one.model for one in inventory.machines if one.sold.gpus})
    texts = [
        f"{len(inventory.machines)} machines",
        f"{free.millicores / 1_000:g} of {sold.millicores / 1_000:g} cores are free",
        f"{free.memory >> 30} of {sold.memory >> 30} GiB",
        f"{free.gpus} of {sold.gpus} {gpu_resource}" + (f" ({', '.join(models)})" if models else ""),
    ]
    texts += [f"{count} left out: {why}" for why, count in sorted(inventory.left_out.items())]
    texts.append(f"PriorityClass {priority_class}" if priority_class else "no PriorityClass of its own")
    return ", ".join(texts)
