"""The proxies of this node's containers: each container that is to reach names has one while it runs (R131)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog
import trio

from node.home.config import parse_barred, parse_egress
from node.home.options import DockerOptions, KubernetesOptions
from node.market.cancellation import DAMAGE
from state.primitives.errors import DekubeError
from tasks.executor.containers.backend import ContainerBackend, EntersNetworks
from tasks.executor.containers.egress.proxy import EgressLimits, EgressProxy, EgressUse, Resolve, resolve

__all__ = ["ContainerEgress", "limits_of"]

_log = structlog.get_logger("containers")

AGAIN_S: Final = 5.0
"""After how long a container that could not be entered is tried again."""
NO_MORE_LIMITS: Final = EgressLimits()
_GIB: Final = 1 << 30
_BYTES_PER_MBIT: Final = 125_000


def limits_of(options: DockerOptions | KubernetesOptions) -> EgressLimits:
    """Return what an owner allows each container. Raises ConfigError."""
    return EgressLimits(
        options.egress_gib * _GIB, options.egress_mbit_per_s * _BYTES_PER_MBIT, parse_barred(options)
    )


class ContainerEgress:
    """Serves the containers of ``backend`` within ``limits``. The owner lets them reach names of ``patterns``."""

    def __init__(
        self, backend: ContainerBackend, limits: EgressLimits = NO_MORE_LIMITS, patterns: Sequence[str] = (),
        lookup: Resolve = resolve,
    ) -> None:  # fmt: skip
        self._backend, self._limits, self._lookup = backend, limits, lookup
        self._patterns = tuple(patterns)
        self.is_open = False
        """Whether names are let reach, and nothing is known against it: then the machine says so (R130)."""
        self.total = EgressUse()
        """Of containers that have ended, since the start of the node."""

    @classmethod
    def of(cls, backend: ContainerBackend, options: DockerOptions | KubernetesOptions) -> ContainerEgress:
        """Return what a node with these options serves. Raises ConfigError."""
        return cls(backend, limits_of(options), parse_egress(options))

    def note_facts(self, closed: str) -> None:
        """Note why no container can be entered here, empty if nothing is known against it."""
        if not isinstance(self._backend, EntersNetworks):
            closed = "this back end has no proxy for containers"
        self.is_open = bool(self._patterns) and not closed
        if self._patterns and closed:
            _log.error("no container reaches a name: egress has no effect", why=closed)

    async def run(self, task: bytes, entries: Sequence[str]) -> None:
        """Serve a running container until cancelled. One that cannot be entered is tried again and again."""
        if not isinstance(self._backend, EntersNetworks):
            return  # such a back end has refused the container
        use, told = EgressUse(), False
        try:
            while True:
                try:
                    listening = await self._backend.proxy_socket(task)
                except DAMAGE:
                    raise
                except (DekubeError, OSError) as error:
                    if not told:
                        told = True
                        _log.warning("a container has no proxy", task=task, error=str(error))
                    await trio.sleep(AGAIN_S)
                    continue
                await EgressProxy(listening, entries, self._limits, use, self._lookup).run()
        finally:
            total = self.total
            total.sent_bytes += use.sent_bytes
            total.received_bytes += use.received_bytes
            total.connections += use.connections
            total.refused += use.refused
            _log.info(
                "what a container moved through its proxy", task=task, sent=use.sent_bytes,
                received=use.received_bytes, connections=use.connections, refused=use.refused,
            )  # fmt: skip
