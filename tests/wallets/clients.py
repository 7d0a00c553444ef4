"""The clients of the scenario: each library, unchanged, behind the same few operations.

viem, ethers and web3.py run in processes of their own that take one operation a line (``driver.mjs``,
``web3_driver.py``); cast is a program that is run for each operation.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from state.primitives.receipts import Event
from tasks.ledger.events import EVENTS
from tests.wallets.tools import cast, installed

REFUSALS: Final = {
    "viem": ("InsufficientFundsError", "NonceTooLowError"),
    "ethers": ("INSUFFICIENT_FUNDS", "NONCE_EXPIRED"),
    "web3.py": ("insufficient funds for gas * price + value", "nonce too low"),
    "cast": ("insufficient funds for gas * price + value", "nonce too low"),
}
"""What each client makes of a transfer above the balance, and of a nonce that is used."""
NOT_MADE: Final = {
    "cast": frozenset({"batches", "heads over WebSocket"}),
    "ethers": frozenset({"sends with receipt"}),
    "web3.py": frozenset({"sends with receipt"}),
}
"""What a client has no command for."""
OPERATION_TIMEOUT_S: Final = 120.0


class Client(Protocol):
    """A wallet: ``ask`` makes it do one operation (the names are the methods of ``web3_driver.Driver``)."""

    name: str

    async def ask(self, operation: str, **given: Any) -> Any: ...


class WalletFailed(AssertionError):
    """A client said something else than a result."""


class Lines:
    """A driver process that takes operations as lines."""

    def __init__(self, name: str, process: trio.Process) -> None:
        self.name = name
        self._process = process
        self._buffer = b""

    async def ask(self, operation: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with trio.fail_after(OPERATION_TIMEOUT_S):
            await self._process.stdin.send_all(json.dumps({"op": operation} | given).encode() + b"\n")
            while b"\n" not in self._buffer:
                piece = await self._process.stdout.receive_some()
                if not piece:
                    raise WalletFailed(f"{self.name} ended in {operation}")
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise WalletFailed(f"{self.name} {operation}: {answer['error']}")
        return answer["ok"]


@asynccontextmanager
async def driver(name: str, *command: str) -> AsyncIterator[Lines]:
    """Run a driver process."""
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, stdin=subprocess.PIPE, stdout=subprocess.PIPE, check=False)
        process: trio.Process = await nursery.start(start, command)
        try:
            yield Lines(name, process)
        finally:
            nursery.cancel_scope.cancel()


class Cast:
    """Foundry's command."""

    name = "cast"

    def __init__(self, program: Path, nursery: trio.Nursery, folder: Path) -> None:
        self._program = str(program)
        self._nursery = nursery
        self._folder = folder
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_COLOR": "1"}
        self._nodes: list[dict[str, str]] = []
        self._contracts: dict[str, Any] = {}
        self._url = ""
        self._filters: tuple[str, str] = ("", "")
        self._printed = b""

    async def ask(self, operation: str, **given: Any) -> Any:
        with trio.fail_after(OPERATION_TIMEOUT_S):
            return await getattr(self, operation)(**given)

    async def _run(self, *words: object) -> subprocess.CompletedProcess[bytes]:
        return await trio.run_process(
            [self._program, *map(str, words)], capture_stdout=True, capture_stderr=True, check=False,
            cwd=self._folder, env=self._environment,
        )  # fmt: skip

    async def _say(self, *words: object, is_online: bool = True) -> str:
        done = await self._run(*words, *(("--rpc-url", self._url) if is_online else ()))
        if done.returncode:
            raise WalletFailed(f"cast {words}: {done.stderr.decode()}")
        return done.stdout.decode().strip()

    async def _json(self, *words: object) -> Any:
        return json.loads(await self._say(*words, "--json"))

    async def connect(self, *, nodes: list[Any], node: int, contracts: dict[str, Any], chain_id: str) -> Any:
        self._nodes, self._contracts = nodes, contracts
        await self.use(node=node)
        return {"chain_id": await self._say("chain-id"), "height": await self._say("block-number")}

    async def use(self, *, node: int) -> None:
        self._url = self._nodes[node]["http"]

    async def balance(self, *, address: str, height: str | None = None) -> str:
        return await self._say("balance", address, *(() if height is None else ("--block", height)))

    async def nonce(self, *, address: str) -> str:
        return await self._say("nonce", address, "--block", "pending")

    async def code(self, *, address: str) -> str:
        return await self._say("code", address)

    async def fees(self) -> Any:
        history = json.loads(await self._say("rpc", "eth_feeHistory", "0x2", "latest", "[20]"))
        base_fee = int(await self._say("base-fee"))
        return {
            "price": await self._say("gas-price"), "cap": str(2 * base_fee),
            "base_fees": [str(int(fee, 16)) for fee in history["baseFeePerGas"]],
            "rewards": str(len(history["reward"])),
        }  # fmt: skip

    async def block(self, *, height: str) -> Any:
        block = await self._json("block", height, "--full")
        hashes = [item["hash"] for item in block["transactions"]]
        return {"number": str(int(block["number"], 16)), "hash": block["hash"], "transactions": hashes}

    async def transfer(
        self, *, key: str, to: str, value: str, legacy: bool = False, nonce: int | None = None
    ) -> str:
        more = ["--legacy"] if legacy else []
        more += [] if nonce is None else ["--nonce", str(nonce)]
        return await self._say("send", "--async", *more, "--private-key", key, "--value", value, to)

    async def request(self, *, method: str, params: list[Any]) -> Any:
        return json.loads(await self._say("rpc", "--raw", method, json.dumps(params)))

    async def transfer_with_receipt(self, *, key: str, to: str, value: str, nonce: int) -> str:
        given = ("--private-key", key, "--value", value, "--nonce", nonce, "--json", to)
        receipt = json.loads(await self._say("send", "--sync", *given))
        return str(int(receipt["status"], 16))

    def _declared(self, contract: str, kind: str, name: str) -> Any:
        abi = self._contracts[contract]["abi"]
        return next(item for item in abi if item["type"] == kind and item["name"] == name)

    def _signature(self, contract: str, name: str) -> str:
        item = self._declared(contract, "function", name)
        arguments, results = (",".join(p["type"] for p in item[part]) for part in ("inputs", "outputs"))
        return f"{name}({arguments})" + (f"({results})" if results else "")

    async def write(
        self, *, key: str, contract: str, name: str, args: list[str], value: str | None = None,
        nonce: int | None = None, gas: str | None = None,
    ) -> str:  # fmt: skip
        more = ["--value", value or "0"]
        more += [] if nonce is None else ["--nonce", str(nonce)]
        more += [] if gas is None else ["--gas-limit", gas]
        at = self._contracts[contract]["address"]
        return await self._say(
            "send", "--async", *more, "--private-key", key, at, self._signature(contract, name), *args
        )

    async def wait(self, *, hash: str) -> Any:
        it = await self._json("receipt", hash)
        block = await self._json("block", int(it["blockNumber"], 16))
        gas = int(it["gasUsed"], 16)
        return {
            "status": str(int(it["status"], 16)), "type": str(int(it["type"], 16)), "gas": str(gas),
            "fee": str(gas * int(it["effectiveGasPrice"], 16)), "from": it["from"].lower(), "to": it["to"].lower(),
            "height": str(int(it["blockNumber"], 16)), "events": [_event(log) for log in it["logs"]],
            "is_in_block": it["transactionHash"] in block["transactions"],
        }  # fmt: skip

    async def transaction(self, *, hash: str) -> Any:
        it = await self._json("tx", hash)
        shown = {name: str(int(it[name], 16)) for name in ("value", "nonce")}
        return shown | {name: it[name].lower() for name in ("from", "to", "type", "r", "s")}

    async def view(self, *, contract: str, name: str, args: list[str]) -> list[Any]:
        at = self._contracts[contract]["address"]
        found = await self._json("call", at, self._signature(contract, name), *args)
        return [item.lower() if type(item) is str else item if type(item) is bool else str(item) for item in found]

    async def _revert(self, *words: object) -> str | None:
        done = await self._run("call", *words, "--rpc-url", self._url)
        said = done.stderr.decode()
        if not done.returncode:
            return None
        if "execution reverted: " not in said:
            raise WalletFailed(f"cast {words}: {said}")
        return said.partition("execution reverted: ")[2].splitlines()[0].partition(", data:")[0]

    async def reverts(
        self, *, sender: str, contract: str, name: str, args: list[str], value: str | None = None
    ) -> str | None:
        at = self._contracts[contract]["address"]
        return await self._revert(
            "--from", sender, "--value", value or "0", at, self._signature(contract, name), *args
        )

    async def reverts_raw(self, *, sender: str, to: str, data: str) -> str | None:
        return await self._revert("--from", sender, to, "--data", data)

    async def refused(self, *, key: str, to: str, value: str, nonce: int | None = None) -> str | None:
        try:
            await self.transfer(key=key, to=to, value=value, nonce=nonce)
        except WalletFailed as error:
            return str(error)
        return None

    def _event_signature(self, contract: str, event: str) -> str:
        item = self._declared(contract, "event", event)
        parts = (p["type"] + (" indexed" if p["indexed"] else "") for p in item["inputs"])
        return f"{event}({','.join(parts)})"

    async def logs(self, *, contract: str, event: str, height: str) -> list[Any]:
        found = await self._json(
            "logs", "--from-block", height, "--address", self._contracts[contract]["address"],
            self._event_signature(contract, event),
        )  # fmt: skip
        return [_event(log)["args"] for log in found]

    async def open_filters(self, *, contract: str, event: str) -> None:
        wanted = {"address": self._contracts[contract]["address"]}
        heads, logs = [
            json.loads(await self._say("rpc", "eth_newBlockFilter")),
            json.loads(await self._say("rpc", "eth_newFilter", json.dumps(wanted))),
        ]
        self._filters = heads, logs
        self._filtered_event = event

    async def poll_filters(self) -> Any:
        heads, logs = [json.loads(await self._say("rpc", "eth_getFilterChanges", one)) for one in self._filters]
        await self._say("rpc", "eth_uninstallFilter", self._filters[0])
        told = [_event(log) for log in logs]
        return {"heads": str(len(heads)), "logs": [e["args"] for e in told if e["name"] == self._filtered_event]}

    async def watch(self, *, node: int, contract: str, event: str) -> Any:
        words = [
            "logs", "--subscribe", "--address", self._contracts[contract]["address"],
            self._event_signature(contract, event), "--json", "--rpc-url", self._nodes[node]["ws"],
        ]  # fmt: skip
        start = partial(
            trio.run_process, stdout=subprocess.PIPE, check=False, cwd=self._folder, env=self._environment
        )
        process = await self._nursery.start(start, [self._program, *words])
        self._watching = process, trio.Event(), bytearray()  # one that watched before may still print
        self._nursery.start_soon(self._read, *self._watching)
        return await self._say("block-number")

    async def _read(self, process: trio.Process, done: trio.Event, printed: bytearray) -> None:
        assert process.stdout is not None
        async for piece in process.stdout:
            printed += piece
        done.set()

    async def seen(self) -> Any:
        """Return what it was told; the end of what it prints stays in its buffer until somebody interrupts it."""
        process, done, printed = self._watching
        process.send_signal(signal.SIGINT)
        await done.wait()
        return {"heads": [], "logs": [_event(log)["args"] for log in json.loads(bytes(printed))]}

    async def sign(self, *, key: str, message: str) -> str:
        return await self._say("wallet", "sign", "--private-key", key, message, is_online=False)

    async def sign_typed(self, *, key: str, typed: Any) -> str:
        return await self._say(
            "wallet", "sign", "--private-key", key, "--data", json.dumps(typed), is_online=False
        )

    async def verify(self, *, address: str, message: str, signature: str) -> bool:
        done = await self._run("wallet", "verify", "--address", address, message, signature)
        return done.returncode == 0

    async def verify_typed(self, *, address: str, typed: Any, signature: str) -> bool:
        done = await self._run("wallet", "verify", "--data", "--address", address, json.dumps(typed), signature)
        return done.returncode == 0


def _event(log: Any) -> Any:
    """Return name and values of a log: cast prints them as they are on the wire."""
    event = Event(
        bytes.fromhex(log["address"][2:]),
        tuple(bytes.fromhex(topic[2:]) for topic in log["topics"]),
        bytes.fromhex(log["data"][2:]),
    )
    kind = EVENTS[event.address, event.topics[0]]
    values = {
        name: "0x" + value.hex() if isinstance(value, bytes) else str(value)
        for name, value in kind.decode(event).items()
    }
    return {"name": kind.name, "args": values}


@asynccontextmanager
async def clients(folder: Path, names: frozenset[str]) -> AsyncIterator[list[Client]]:
    """Start the clients ``names``; without those that npm brings, it is not asked."""
    async with driver("web3.py", sys.executable, "-m", "tests.wallets.web3_driver") as web3:
        if names == {web3.name}:
            yield [web3]
            return
        place = await trio.to_thread.run_sync(installed)
        async with (
            driver("viem", "node", str(place / "viem.mjs")) as viem,
            driver("ethers", "node", str(place / "ethers.mjs")) as ethers,
            trio.open_nursery() as nursery,
        ):
            program = cast() if Cast.name in names else None
            found: list[Client] = [
                viem,
                ethers,
                web3,
                *([] if program is None else [Cast(program, nursery, folder)]),
            ]
            yield [client for client in found if client.name in names]
            nursery.cancel_scope.cancel()
