"""What a node that lends a cluster offers on the market: what the cluster has free, followed as it changes.

Such a node is one machine of the registry with several slots (decision 0124). Its profile says what the next task
may have, and its slots how many tasks there are and may come. Room is looked at again before a task is accepted,
and before its meter begins: until then declining costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.home.options import KubernetesOptions
from node.market.container_room import ahead_of, is_over
from state.primitives.errors import DekubeError
from tasks.executor.containers.backend import ContainerBackend, Offer
from tasks.executor.containers.request import ContainerRequest
from tasks.ledger.queries import WorkDuty
from tasks.ledger.records import load_spec
from tasks.ledger.registry import TEXT_MAX, Gpu, NodeProfile, NodeRole, load_node
from tasks.spec import JobSpec

__all__ = ["ClusterOffers", "is_less", "offered"]

_log = structlog.get_logger("containers")

LOOK_S: Final = 5.0
"""How often the offer is looked at. The inventory below it has an age of its own."""
GROW_S: Final = 20.0
"""An offer that grew is told so long after the last change: each costs a transaction. One that shrank at once."""
PASSING_S: Final = 1.0
"""Interval of looks while own containers end, whose room a task may have."""
GPUS_MAX: Final = 16
"""GPUs of one task that are offered: each has an entry in the profile, which is bounded."""


def offered(profile: NodeProfile, offer: Offer, busy: int, options: KubernetesOptions) -> NodeProfile:
    """Return the profile of a machine with ``busy`` tasks that offers this.

    Where nothing is free, its slots are those that are taken, and what it says it has stays. Without any task it
    says that it has nothing: a profile has a slot at least.
    """
    if offer.places:
        gpus = min(offer.gpus, GPUS_MAX)
        return profile._replace(
            cores=offer.cores, memory_mib=offer.memory_mib, pcie_lanes=gpus * options.gpu_lanes,
            gpus=(Gpu(offer.gpu_model[:TEXT_MAX], max(1, offer.gpu_memory_mib)),) * gpus,
            slots=max(1, min(options.tasks_max, busy + offer.places)),
        )  # fmt: skip
    if busy:
        return profile._replace(slots=busy)
    return profile._replace(cores=0, memory_mib=0, pcie_lanes=0, gpus=(), slots=1)


def is_less(profile: NodeProfile, known: NodeProfile) -> bool:
    """Whether a profile offers less than the known one in anything."""
    return (
        profile.cores < known.cores
        or profile.memory_mib < known.memory_mib
        or len(profile.gpus) < len(known.gpus)
        or profile.slots < known.slots
    )


class ClusterOffers:
    """The room of a lent cluster beside the tasks of its node."""

    def __init__(
        self, ledger: NodeLedger, address: bytes, backend: ContainerBackend, options: KubernetesOptions,
        duties: Callable[[], Mapping[bytes, WorkDuty]], request: Callable[[JobSpec], ContainerRequest],
    ) -> None:  # fmt: skip
        self._ledger, self._address, self._backend, self._options = ledger, address, backend, options
        self._duties, self._request = duties, request
        self.is_cluster = options.enabled

    def _requests(self, tasks: list[bytes]) -> dict[bytes, ContainerRequest]:
        return {task: self._request(load_spec(self._ledger.store, task)) for task in tasks}

    async def lack(self, task: bytes, request: ContainerRequest) -> str | None:
        """Return what the cluster lacks for a task, None where none is lent.

        While other containers of this node end, it waits for their room: for half of the time that the task's next
        step has. A task that was declined never comes back to this machine. Raises EngineUnavailable, EngineError.
        """
        if not self.is_cluster:
            return None
        now_ms = self._ledger.head().steady_ms
        duty = self._duties().get(task)
        until_ms = now_ms if duty is None else now_ms + max(0, duty.deadline_ms - now_ms) // 2
        while True:
            ahead = self._requests(ahead_of(task, self._duties().values()))
            found = await self._backend.lack_of_room(task, request, ahead)
            if found is None or not found.text:
                return ""
            if not found.passes or self._ledger.head().steady_ms >= until_ms or task not in self._duties():
                return found.text
            await trio.sleep(PASSING_S)

    async def look(self, profile: NodeProfile) -> NodeProfile:
        """Return the profile with what the cluster offers now: nothing more if it does not answer."""
        try:
            return await self._look(profile)
        except DekubeError as error:
            _log.warning("the cluster cannot be looked at: it is not offered", error=str(error))
            return offered(profile, Offer(0, 0, 0, "", 0, 0), self._busy, self._options)

    @property
    def _busy(self) -> int:
        node = load_node(self._ledger.store, self._address)
        return 0 if node is None else node.busy_slots

    async def _look(self, profile: NodeProfile) -> NodeProfile:
        busy = self._busy  # as of the same moment as the tasks: one that comes meanwhile takes one of the places
        tasks = [duty.task for duty in self._duties().values() if not is_over(duty)]
        offer = await self._backend.offer(self._requests(tasks))
        return profile if offer is None else offered(profile, offer, busy, self._options)

    async def follow(
        self, profile: Callable[[], NodeProfile | None], tell: Callable[[NodeProfile], None]
    ) -> None:  # fmt: skip
        """Tell each change of the offer until cancelled. A cluster that does not answer offers nothing more."""
        told_at = -GROW_S
        while self.is_cluster:
            known = profile()
            if known is not None and known.roles & NodeRole.CONTAINER:
                found = await self.look(known)
                if found != known and (is_less(found, known) or trio.current_time() - told_at >= GROW_S):
                    _log.info(
                        "the cluster's offer", cores=found.cores, memory_mib=found.memory_mib,
                        gpus=len(found.gpus), slots=found.slots,
                    )  # fmt: skip
                    tell(found)
                    told_at = trio.current_time()
            await trio.sleep(LOOK_S)
