"""A relay daemon as a process of its own: ``python -m tests.relay.daemon_process JSON``; prints its endpoints."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

import relay.server.splice
from p2p.base.endpoint import Endpoint
from p2p.secure.identity import Identity, Role
from relay.payment.credit import CreditOptions
from relay.payment.metering import Tariff
from relay.protocol.fanout import FanoutLimits
from relay.protocol.limits import RelayLimits
from relay.server.daemon import RelayDaemon, RelayOptions, run_relay
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey

DELAY_S = 0.4
GENESIS_HASH = digest(b"test", b"relay genesis")


def account_of(name: str) -> SecretKey:
    return SecretKey(digest(b"test", name.encode()))


def identity_of(name: str, roles: Role = Role.WORKER) -> Identity:
    return Identity.create(
        account_of(name),
        genesis_hash=GENESIS_HASH,
        now_ms=time.time_ns() // 1_000_000,
        roles=roles,
        node_secret=digest(b"test node", name.encode()),
    )


class DaemonProcess:
    """A running daemon; ``kill`` is kill -9."""

    def __init__(
        self,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        name: str = "relay",
        capture: Path | None = None,
        namespace: str | None = None,
        options: dict[str, Any] | None = None,
        tariff: dict[str, int] | None = None,
        mischief: str = "",
        **limits: Any,
    ) -> None:
        tap = None if capture is None else str(capture)
        arguments = {
            "listen": f"{host}:{port}", "name": name, "limits": limits, "capture": tap,
            "mischief": mischief, "options": {"drain_s_max": 0, **(options or {})}, "tariff": tariff or {},
        }  # fmt: skip
        prefix = ["ip", "netns", "exec", namespace] if namespace else []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.relay.daemon_process", json.dumps(arguments)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the relay did not start"
        ready = json.loads(line)
        self.port: int = ready["port"]
        self.metrics_port: int = ready["metrics_port"]
        self.address = account_of(name).address
        self.endpoint = Endpoint(host, self.port, self.address)

    def metrics(self) -> dict[str, float]:
        """Return name{labels} -> value as a scrape gives them."""
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}

    def rss_kib(self) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Stop as a service manager does; return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
            if self.process.stdout is not None:
                self.process.stdout.close()


def _wiretap(path: str) -> None:
    """Write down all that the relay carries, as a spying operator would."""
    file = open(path, "ab", buffering=0)  # noqa: SIM115  open as long as the process
    carry = relay.server.splice._Direction.data_received

    def spy(half: relay.server.splice._Direction, data: bytes) -> None:
        file.write(data)
        carry(half, data)

    relay.server.splice._Direction.data_received = spy  # type: ignore[method-assign,assignment]


def _mischief(what: str) -> None:
    """``swallow``, ``flip``, ``replay`` or ``delay`` what is to be carried, as soon as a file is there."""
    kind, _, switch = what.partition(":")
    carry = relay.server.splice._Direction.data_received

    def lie(half: relay.server.splice._Direction, data: bytes) -> None:
        if not Path(switch).exists():
            carry(half, data)
        elif kind == "flip":
            carry(half, bytes((data[0] ^ 1,)) + data[1:] if len(data) < 3 else data[:-1] + bytes((data[-1] ^ 1,)))
        elif kind == "replay":
            carry(half, data + data)
        elif kind == "delay":
            asyncio.get_running_loop().call_later(DELAY_S, lambda: half.sink.is_closing() or carry(half, data))
        else:
            half.received += len(data)

    relay.server.splice._Direction.data_received = lie  # type: ignore[method-assign,assignment]


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    arguments = json.loads(sys.argv[1])
    if arguments["capture"]:
        _wiretap(arguments["capture"])
    if arguments["mischief"]:
        _mischief(arguments["mischief"])
    overrides = arguments["limits"]
    if "trusted_networks" in overrides:
        overrides["trusted_networks"] = tuple(overrides["trusted_networks"])
    more = arguments["options"]
    if "receipts" in more:
        more["receipts"] = Path(more["receipts"])
    if "fanout" in more:
        more["fanout"] = FanoutLimits(**more["fanout"])
    if "credit" in more:
        credit = more["credit"]
        more["credit"] = CreditOptions(**{**credit, "allowed": tuple(credit.get("allowed", ()))})
    if "peers" in more:
        more["peers"] = tuple(more["peers"])
    options = RelayOptions(
        listen=arguments["listen"], metrics_listen="127.0.0.1:0", limits=replace(RelayLimits(), **overrides),
        tariff=Tariff(**arguments["tariff"]), **more,
    )  # fmt: skip

    def ready(daemon: RelayDaemon) -> None:
        assert daemon.metrics_endpoint is not None
        print(json.dumps({"port": daemon.endpoint[1], "metrics_port": daemon.metrics_endpoint[1]}), flush=True)

    run_relay(options, lambda: identity_of(arguments["name"], Role.RELAY), on_ready=ready)


if __name__ == "__main__":
    main()
