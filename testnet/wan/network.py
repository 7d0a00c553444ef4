"""A whole test network on an emulated one: validators behind gateways without open ports, and relays.

Hosts behind a gateway run validators. Public hosts with no host behind them run relays, or validators too. The
programs and homes are those of ``dekube testnet up``. Only the hosts and the endpoints differ.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from node.home.config import parse_host_port
from node.home.options import MetricsOptions, NetworkOptions, ProcessOptions, RpcOptions
from node.home.paths import Home
from node.process.control import ControlUnavailable, ask_node
from state.primitives.address import format_address
from testnet.cluster import write_home
from testnet.plan import Member, Placement, derive_key, make_plan
from testnet.wan.fleet import RELAY_PORT
from testnet.wan.lab import Lab
from testnet.wan.topology import TopologyInvalid

__all__ = ["HomeNetwork", "lay_out_homes"]

RPC_PORT: Final = 8_545
METRICS_PORT: Final = 9_100
PEER_PORT: Final = parse_host_port(NetworkOptions().listen)[1]
END_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class HomeNetwork:
    """The members by host, and their homes in ``root``."""

    lab: Lab
    root: Path
    validators: tuple[str, ...]
    relays: tuple[str, ...]

    @contextmanager
    def running(self) -> Iterator[dict[str, subprocess.Popen[Any]]]:
        """Run every member on its host, relays first; they end with the block."""
        processes: dict[str, subprocess.Popen[Any]] = {}
        try:
            for host in (*self.relays, *self.validators):
                processes[host] = self.start(host)
            yield processes
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.terminate()
            until = time.monotonic() + END_S
            for process in processes.values():
                try:
                    process.wait(max(until - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def start(self, host: str) -> subprocess.Popen[Any]:
        """Start the member on a host."""
        home = self.root / host
        verb = "relay" if host in self.relays else "node"
        with (home / "log").open("ab") as log:
            return self.lab.popen(
                host, [sys.executable, "-m", "node", verb, "run", "--home", str(home)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home,
            )  # fmt: skip

    def status(self, host: str) -> dict[str, Any] | None:
        """Return a validator's status; None while it does not answer."""
        try:
            answer: dict[str, Any] = ask_node(Home(self.root / host).control, "status", timeout_s=10)
        except ControlUnavailable:
            return None
        return answer


def lay_out_homes(lab: Lab, root: Path, *, seed: int = 1, public_validators: Collection[str] = ()) -> HomeNetwork:
    """Write a home for every member of the network on a lab. Raises TopologyInvalid, ConfigError.

    They listen as ``dekube init`` configures it and are not told their addresses. ``public_validators`` are public
    hosts without a relay; these know no relay.
    """
    hosts = lab.plan.topology.hosts
    gateways = {host.behind for host in hosts}
    homes = tuple(host.name for host in hosts if host.behind and host.name not in gateways)
    public = tuple(host.name for host in hosts if not host.behind and host.name not in gateways)
    relays = tuple(host for host in public if host not in public_validators)
    validators = (*homes, *(host for host in public if host in public_validators))
    if not homes or not relays:
        raise TopologyInvalid("the topology needs hosts behind gateways (validators) and public hosts (relays)")
    here = Placement("127.0.0.1", "127.0.0.1", RELAY_PORT, RPC_PORT, METRICS_PORT)
    names = ["relay-0", *(f"validator-{n}" for n in range(len(validators)))]
    plan = make_plan(
        validators=len(validators), workers=0, seed=seed, time_ms=time.time_ns() // 1_000_000,
        placements=dict.fromkeys(names, here),
    )  # fmt: skip
    relay_keys = {host: derive_key(seed, f"relay/{host}") for host in relays}
    for host, key in relay_keys.items():
        at = replace(here, bind="0.0.0.0")  # noqa: S104
        write_home(root / host, Member(host, "relay", key, None, at, None), plan)
    members = [member for member in plan.members if member.role == "validator"]
    ways = [
        f"relay:{key.address.hex()}:{lab.plan.address4(host)}:{RELAY_PORT}" for host, key in relay_keys.items()
    ]
    first: dict[str, str] = {}
    for n, (host, member) in enumerate(zip(validators, members, strict=True)):
        way = f"tcp:{lab.plan.address4(host)}:{PEER_PORT}" if host in public else ways[n % len(ways)]
        first[host] = f"{format_address(member.account.address)}@{way}"
    known = tuple(
        f"{format_address(key.address)}@{lab.plan.address4(name)}:{RELAY_PORT}" for name, key in relay_keys.items()
    )
    for host, member in zip(validators, members, strict=True):
        assert member.options is not None
        p2p = NetworkOptions(
            relays=() if host in public else known,
            bootstrap=tuple(text for other, text in first.items() if other != host),
        )
        options = replace(
            member.options, p2p=p2p, rpc=RpcOptions(listen=f"127.0.0.1:{RPC_PORT}"),
            metrics=MetricsOptions(listen=f"127.0.0.1:{METRICS_PORT}"),
            processes=ProcessOptions(signature_workers=0),
        )  # fmt: skip
        write_home(root / host, replace(member, options=options), plan)
    return HomeNetwork(lab, root, validators, relays)
