"""Runs agents on the hosts of a lab and sends them commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from state.primitives.errors import DekubeError
from testnet.wan.agent import AgentSpec
from testnet.wan.lab import Lab

__all__ = ["RELAY_PORT", "Agent", "AgentFailed", "agents", "relay_of"]

RELAY_PORT: Final = 26_680
NODE_PORT: Final = 26_656
ANSWER_S: Final = 60.0


class AgentFailed(DekubeError):
    """An agent refused a command, did not answer in time, or has ended."""

    code = "agent_failed"


def relay_of(lab: Lab, name: str) -> str:
    """Return the endpoint of this host's relay, as agents accept it."""
    return f"{name}@{lab.plan.address4(name)}:{RELAY_PORT}"


class Agent:
    """One agent's process."""

    def __init__(self, lab: Lab, host: str, spec: AgentSpec) -> None:
        self.host = host
        self.name = spec.name
        self._asked: dict[int, Future[dict[str, Any]]] = {0: Future()}
        self._number = 0
        self._lock = threading.Lock()
        self._process = lab.popen(
            host, [sys.executable, "-m", "testnet.wan.agent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, bufsize=1, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._write(asdict(spec))
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id: ``ip netns exec`` is replaced by the command that it runs."""
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """Processor seconds that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_ready(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Wait until it has started. Raises AgentFailed."""
        return self._result(self._asked[0], timeout_s)

    def begin(self, do: str, **arguments: Any) -> Future[dict[str, Any]]:
        """Send a command without waiting for its answer."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            self._number += 1
            self._asked[self._number] = future
            self._write({"id": self._number, "do": do, **arguments})
        return future

    def ask(self, do: str, *, within_s: float = ANSWER_S, **arguments: Any) -> dict[str, Any]:
        """Send a command and return its answer. Raises AgentFailed."""
        return self._result(self.begin(do, **arguments), within_s)

    def finish(self, future: Future[dict[str, Any]], within_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the answer to the command of ``begin``. Raises AgentFailed."""
        return self._result(future, within_s)

    def kill(self) -> None:
        """Kill it, like a crash."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Stop it at once, without the announcement that a stopping relay makes."""
        self.kill()

    def _result(self, future: Future[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
        try:
            answer = future.result(timeout_s)
        except FutureTimeout:
            raise AgentFailed(f"{self.name}: no answer within {timeout_s:.0f} s") from None
        if "error" in answer:
            raise AgentFailed(f"{self.name}: {answer['error']}: {answer.get('text', '')}")
        return answer

    def _write(self, document: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(document) + "\n")
        except OSError:
            raise AgentFailed(f"{self.name} has ended") from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            future = self._asked.get(answer["id"])
            if future is not None and not future.done():
                future.set_result(answer)
        for future in list(self._asked.values()):
            if not future.done():
                future.set_result({"error": "ended", "text": "the process has ended"})


@contextmanager
def agents(lab: Lab, specs: Mapping[str, AgentSpec]) -> Iterator[dict[str, Agent]]:
    """Run agents on these hosts; relays are up before the others start."""
    started: dict[str, Agent] = {}
    try:
        for is_relay in (True, False):
            fresh = {host: Agent(lab, host, spec) for host, spec in specs.items() if bool(spec.relay) == is_relay}
            started |= fresh
            for agent in fresh.values():
                agent.wait_ready()
        yield started
    finally:
        for agent in started.values():
            agent.close()
