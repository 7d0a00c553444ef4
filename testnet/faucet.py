"""The faucet of a test network of this machine: a process with its own account, for wallets that are tried."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import trio

from node.children import Child
from node.home import save_key, write_private
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from testnet.cluster import LOG_TAIL_LINES, SCRYPT_N_TESTNET, START_TIMEOUT_S, STOP_GRACE_S, Cluster, TestnetError
from testnet.plan import COIN, derive_key

__all__ = ["FAUCET_COINS", "FaucetProcess", "faucet_key"]

FAUCET_COINS: Final = 1_000_000 * COIN
FOLDER: Final = "faucet"
GRANTS_PER_CALLER: Final = 1_000
"""Everybody who asks does so from this machine."""


def faucet_key(seed: int) -> SecretKey:
    """Return the account that the faucet of a network of ``seed`` gives from."""
    return derive_key(seed, FOLDER)


class FaucetProcess:
    """Runs the faucet beside the members of ``cluster``, on the port after theirs."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        """Raises ConfigError where there is no such port."""
        places = [member.placement for member in cluster.plan.members]
        self._urls = [
            f"http://{member.placement.host}:{member.placement.rpc_port}"
            for member in cluster.plan.members
            if member.role == "validator"
        ]
        self._cluster = cluster
        self._port = max(place.metrics_port for place in places) + 1
        if self._port > 65535:
            raise ConfigError("testnet: no port is left for the faucet; choose --base-port or --no-faucet")
        self._root = cluster.root / FOLDER
        self._key = faucet_key(seed)
        self._passphrase = cluster.plan.passphrase

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until the network is told to end. Raises TestnetError with the end of its log when it ends first."""
        ready = self._root / "run" / "ready.json"
        child = self._start(ready)
        try:
            with trio.move_on_after(START_TIMEOUT_S) as patience:
                while not _is_of(ready, child.pid):
                    if child.returncode is not None:
                        raise TestnetError(f"the faucet ended before it was ready:\n{self._tail()}")
                    await trio.sleep(0.05)
            if patience.cancelled_caught:
                raise TestnetError(f"the faucet was not ready in {START_TIMEOUT_S:.0f} s:\n{self._tail()}")
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, child)
                await self._cluster.wait_down()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await child.stop(STOP_GRACE_S)

    async def _watch(self, child: Child) -> None:
        status = await child.wait()
        raise TestnetError(f"the faucet ended with status {status}:\n{self._tail()}")

    def _start(self, ready: Path) -> Child:
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        key, passphrase = self._root / "key.json", self._root / "passphrase"
        for path in (key, passphrase, ready):
            path.unlink(missing_ok=True)  # they derive from the seed
        write_private(passphrase, self._passphrase + "\n")
        save_key(key, self._key, self._passphrase, scrypt_n=SCRYPT_N_TESTNET)
        command = [
            sys.executable, "-m", "node", "faucet", "run", "--home", self._root, "--key", key,
            "--passphrase-file", passphrase, "--listen", f"127.0.0.1:{self._port}", "--ready-file", ready,
            "--per-ip", GRANTS_PER_CALLER, *(word for url in self._urls for word in ("--rpc", url)),
        ]  # fmt: skip
        with (self._root / "log").open("ab") as log:
            return Child([str(word) for word in command], log=log.fileno(), cwd=self._root)

    def _tail(self) -> str:
        text = (self._root / "log").read_bytes()[-4000:].decode(errors="replace")
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


def _is_of(ready: Path, pid: int) -> bool:
    try:
        document = json.loads(ready.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("pid") == pid
