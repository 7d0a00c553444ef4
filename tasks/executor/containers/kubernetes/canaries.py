"""Whether a cluster enforces network policies: two pods try to reach each other, with policies and without.

A cluster accepts policies also where its network plugin ignores them. So only what was seen is believed: first
the one pod must reach the other, then a policy for traffic that goes out must end that, then one for traffic that
comes in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from tasks.executor.containers.errors import ContainerRefused, EngineError, EngineUnavailable
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.exec_stream import answer_of
from tasks.executor.containers.kubernetes.manifests import (
    Cluster,
    TaskNamespace,
    helper_pod,
    namespace_body,
    policy_body,
)
from tasks.executor.containers.kubernetes.refusals import is_passing
from tasks.executor.containers.request import NOBODY

__all__ = ["are_policies_enforced"]

PORT: Final = 8_765
PODS_S: Final = 90.0
SETTLE_S: Final = 12.0
"""How long a network plugin may take until a policy holds."""
AGAIN_S: Final = 1.0
_CONNECT_S: Final = 2
_SERVER: Final = f"""
trap 'exit 0' TERM
if command -v python3 >/dev/null; then exec python3 -c '
import signal, socket
signal.signal(signal.SIGTERM, lambda *_: exit(0))
made = socket.create_server(("", {PORT}))
while True:
    other, _ = made.accept()
    other.sendall(b"canary")
    other.close()
'; fi
while :; do echo canary | nc -l -p {PORT}; done & wait $!
"""
_WAITER: Final = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"


def _client(address: str) -> str:
    assert all(sign in "0123456789abcdef.:" for sign in address)
    return f"""
if command -v python3 >/dev/null; then exec python3 -c '
import socket
exit(socket.create_connection(("{address}", {PORT}), {_CONNECT_S}).recv(6) != b"canary")
' 2>/dev/null; fi
nc -w {_CONNECT_S} {address} {PORT} </dev/null | grep -q canary
"""


async def are_policies_enforced(
    api: ClusterApi, place: TaskNamespace, cluster: Cluster, remove: Callable[[TaskNamespace], Awaitable[None]]
) -> tuple[bool, str]:
    """Return whether policies hold both ways, and else what was seen.

    Raises ContainerRefused for an image of the helper without its programs, EngineUnavailable, EngineError.
    """
    await remove(place)
    try:
        await api.create("/api/v1/namespaces", namespace_body(place))
        for name, script in (("server", _SERVER), ("client", _WAITER)):
            await create_pod(api, place, helper_pod(name, script, cluster, place, NOBODY))
        address = ""
        for name in ("client", "server"):
            address = await _address(api, place, name)
            if not address:
                return False, f"the canary pod {name!r} does not run within {PODS_S:.0f} s"
        code, _ = await answer_of(api, f"{place.path}/pods/client", "helper", "command -v python3")
        if code:
            raise ContainerRefused("python3 in executor.kubernetes.helper_image")
        return await _tell(api, place, address)
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(PODS_S):
            await remove(place)


async def create_pod(api: ClusterApi, place: TaskNamespace, body: dict[str, Any], **params: str) -> dict[str, Any]:
    """Create a pod in a new namespace: its account and its quota come a moment after it. Raises EngineError."""
    last: EngineError | None = None
    with trio.move_on_after(PODS_S):
        while True:
            try:
                return await api.create(f"{place.path}/pods", body, **params)
            except EngineError as error:
                if not is_passing(str(error)):
                    raise
                last = error
            await trio.sleep(0.1)
    raise last or EngineUnavailable(f"{place.namespace}: no pod was made within {PODS_S:.0f} s")


async def _address(api: ClusterApi, place: TaskNamespace, name: str) -> str:
    with trio.move_on_after(PODS_S):
        while True:
            status = (await api.get(f"{place.path}/pods/{name}")).get("status") or {}
            if status.get("phase") == "Running" and status.get("podIP"):
                return str(status["podIP"])
            await trio.sleep(0.3)
    return ""


async def _tell(api: ClusterApi, place: TaskNamespace, address: str) -> tuple[bool, str]:
    if not await _becomes(api, place, address, reachable=True):
        return False, "the canary pods do not reach each other without a policy, so nothing is shown"
    for kind, pod in (("Egress", "client"), ("Ingress", "server")):
        name = f"deny-{kind.lower()}"
        await api.create(place.policies, policy_body(place, name, (kind,), {"dekube.canary": pod}))
        if not await _becomes(api, place, address, reachable=False):
            return False, f"a policy that denies {kind} has no effect"
        await api.delete(f"{place.policies}/{name}")
        if kind == "Egress" and not await _becomes(api, place, address, reachable=True):
            return False, "a policy that was removed still has an effect, so nothing is shown"
    return True, ""


async def _becomes(api: ClusterApi, place: TaskNamespace, address: str, *, reachable: bool) -> bool:
    """Tell whether the one pod comes to reach the other, or no longer does, twice in a row."""
    in_row, deadline = 0, trio.current_time() + SETTLE_S
    while in_row < 2:
        code, _ = await answer_of(api, f"{place.path}/pods/client", "helper", _client(address))
        in_row = in_row + 1 if (code == 0) is reachable else 0
        if trio.current_time() > deadline:
            return False
        if in_row == 0:
            await trio.sleep(AGAIN_S)
    return True
