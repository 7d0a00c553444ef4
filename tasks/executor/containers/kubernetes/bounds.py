"""Bounds that no cluster sets for a pod: its processes and its files. How their requester hears of them (R165)."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Final

import trio

from tasks.executor.containers.backend import End, Ended
from tasks.executor.containers.errors import EngineError, EngineUnavailable
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.exec_stream import answer_to
from tasks.executor.containers.kubernetes.manifests import HELPER
from tasks.executor.containers.kubernetes.scripts import WHY
from tasks.executor.containers.kubernetes.states import Pod

__all__ = ["named_end", "passed_bound", "shown_bound"]

KILLED: Final = 9
ASK_S: Final = 20.0
"""How long a helper may take to say it: the container may have stopped its agent."""
_SAID: Final = re.compile(rb"(processes|files) ([0-9]{1,9})")


async def passed_bound(api: ClusterApi, path: str, pod: Pod) -> str:
    """Return which bound a killed container of a pod has passed (``files 65536``), empty for none that is told."""
    if pod.exit is None or not pod.exit.is_signal or pod.exit.number != KILLED or not pod.has_helper:
        return ""
    if pod.exit.is_out_of_memory:
        return ""
    with suppress(EngineError, EngineUnavailable), trio.move_on_after(ASK_S):
        code, told = await answer_to(api, path, HELPER, WHY)
        if code == 0 and _SAID.fullmatch(told):
            return told.decode()
    return ""


def named_end(ended: Ended, bound: str) -> Ended:
    """Return how a container ended that passed a bound: one with too many files has no disk left."""
    if bound.startswith("files") and ended.end is End.SIGNALLED:
        return replace(ended, end=End.OUT_OF_DISK)
    return ended


def shown_bound(bound: str) -> bytes:
    """Return the last line of the log of a container that passed a bound."""
    name, _, number = bound.partition(" ")
    return f"[ended by its machine: more {name} than it may have, {number}]\n".encode() if bound else b""
