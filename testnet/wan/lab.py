"""An emulated network on this machine: a namespace for each host, devices, NAT, and the emulator between them.

A lab is identified by its name and outlives the process that created it. In any state, ``destroy`` removes
everything of it: processes, namespaces (with devices, routes and rules), files.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from node.home.files import read_bounded
from testnet.wan.emulator import DEVICE, Emulator, EmulatorFailed, Lateness, WanUnavailable
from testnet.wan.topology import TOPOLOGY_BYTES_MAX, Host, Plan, TopologyInvalid, document_of, parse_topology, plan

__all__ = ["Lab", "attach", "check_machine", "destroy", "labs", "load_plan", "shipped"]

LABS: Final = Path("/run/dekube-wan/labs")
PREFIX: Final = "dkw"
END_S: Final = 2.0
ROAM_BITS: Final = 16
"""Offset that is added to a host's IPv6 address at each change of its address."""
ROAMS_MAX: Final = 200
_LAB: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,15}")
_ADDRESS: Final = re.compile(r"\{([A-Za-z][A-Za-z0-9-]*)(\.6)?\}")

SYSCTL: Final = {
    "net.ipv4.tcp_no_metrics_save": "1",  # a run must not learn from the one before
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv6.conf.all.forwarding": "1",
    "net.ipv6.conf.all.accept_ra": "0",
    "net.ipv6.conf.default.accept_dad": "0",
}


def check_machine() -> None:
    """Raise WanUnavailable, with what is missing, if no lab can be created."""
    if os.geteuid() != 0:
        raise WanUnavailable("emulated networks need root (namespaces and devices): run this with sudo")
    if shutil.which("ip") is None:
        raise WanUnavailable("the command `ip` is missing; install it (Debian: apt-get install iproute2)")
    if not Path("/dev/net/tun").exists():
        raise WanUnavailable("/dev/net/tun is needed (modprobe tun; in a container: --device /dev/net/tun)")


def shipped() -> dict[str, str]:
    """Return the built-in topologies, text by name."""
    folder = files("testnet.wan").joinpath("topologies")
    return {
        item.name.removesuffix(".toml"): item.read_text()
        for item in folder.iterdir()
        if item.name.endswith(".toml")
    }


def load_plan(source: str) -> Plan:
    """Return the plan of a topology file, or of a built-in topology by its name. Raises TopologyInvalid."""
    text = shipped().get(source)
    if text is None:
        try:
            text = read_bounded(Path(source), 4 * TOPOLOGY_BYTES_MAX).decode()
        except (OSError, UnicodeDecodeError) as error:
            known = ", ".join(sorted(shipped()))
            raise TopologyInvalid(f"{source}: {error}; built-in topologies are {known}") from None
    return plan(parse_topology(text))


def labs() -> list[str]:
    """Return the names of the labs that are up, completely or in part."""
    found = {path.name for path in LABS.glob("*") if path.is_dir()}
    found |= {space.split(".")[1] for space in _namespaces()}
    return sorted(found)


def destroy(name: str) -> bool:
    """Remove a lab in any state; return whether there was one."""
    with _locked(name):
        return _destroy(name)


class Lab:
    """One network. ``with Lab(plan) as lab`` creates and removes it."""

    def __init__(self, plan: Plan, name: str | None = None) -> None:
        self.plan = plan
        self.name = name or plan.topology.name
        if not _LAB.fullmatch(self.name):
            raise TopologyInvalid(
                f"lab {self.name!r:.40}: the name must be a letter and up to 15 letters, digits or -"
            )
        self._folder = LABS / self.name
        self.emulator = Emulator(self._folder)

    def __enter__(self) -> Lab:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        destroy(self.name)

    def up(self) -> None:
        """Create it after removing an older lab of its name. Raises WanUnavailable, EmulatorFailed."""
        check_machine()
        if any(host.nat or host.block_udp for host in self.plan.topology.hosts):
            for tool in ("iptables-restore", "ip6tables-restore"):
                if shutil.which(tool) is None:
                    raise WanUnavailable(f"{tool} is needed for NAT (Debian: apt-get install iptables)")
        with _locked(self.name):
            _destroy(self.name)
            try:
                self._make()
            except BaseException:
                _destroy(self.name)
                raise

    def address4(self, host: str) -> IPv4Address:
        """Return a host's current IPv4 address."""
        return self.plan.address4(host) + self._roams(host)

    def address6(self, host: str) -> IPv6Address:
        """Return a host's current IPv6 address."""
        return self.plan.address6(host) + (self._roams(host) << ROAM_BITS)

    def _roams(self, host: str) -> int:
        path = self._folder / f"roams-{self.plan.host(host).name}"
        return int(path.read_text()) if path.exists() else 0

    def roam(self, host: str, *, away_s: float = 0.0) -> tuple[IPv4Address, IPv6Address]:
        """Remove a host's addresses, wait ``away_s``, and assign new ones; return them.

        Its connections break silently, like those of a machine that moves to another network. Raises
        TopologyInvalid for a public host, whose address is part of the topology.
        """
        gateway = self.plan.host(host).behind
        if not gateway:
            raise TopologyInvalid(f"{host} is not behind a gateway, so it cannot roam")
        before4, before6, roams = self.address4(host), self.address6(host), self._roams(host) + 1
        if roams > ROAMS_MAX:
            raise TopologyInvalid(f"{host} has roamed {ROAMS_MAX} times: take the network down and up again")
        self._ip(host, f"addr del {before4}/24 dev {DEVICE}", f"addr del {before6}/128 dev {DEVICE}")
        time.sleep(away_s)
        (self._folder / f"roams-{host}").write_text(str(roams))
        after4, after6 = self.address4(host), self.address6(host)
        inner = self.plan.host(host)
        while inner.behind:
            number = self.plan.topology.hosts.index(inner)
            self._ip(inner.behind, f"-6 route add {after6}/128 via fe80::2 dev lan{number}")
            inner = self.plan.host(inner.behind)
        self._ip(
            host,
            f"addr add {after4}/24 dev {DEVICE}",
            f"addr add {after6}/128 dev {DEVICE} nodad",
            f"route replace default via {self.plan.address4(host) - 1}",
            f"-6 route replace default via fe80::1 dev {DEVICE}",
        )
        return after4, after6

    def namespace(self, host: str) -> str:
        """Return the name of a host's namespace. Raises TopologyInvalid."""
        return f"{PREFIX}.{self.name}.{self.plan.host(host).name}"

    def argv(self, host: str, command: Sequence[str]) -> list[str]:
        """Return ``command`` for execution in a host; ``{B}`` and ``{B.6}`` in a word become B's addresses."""

        def address(found: re.Match[str]) -> str:
            return str(self.address6(found[1]) if found[2] else self.address4(found[1]))

        words = (_ADDRESS.sub(address, word) for word in command)
        return ["ip", "netns", "exec", self.namespace(host), *words]

    def popen(self, host: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command in a host; it ends at the latest with the lab."""
        return subprocess.Popen(self.argv(host, command), **options)

    def run(self, host: str, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in a host and return its output."""
        options = {"capture_output": True, "text": True, "check": True, "timeout": 120} | options
        done: subprocess.CompletedProcess[str] = subprocess.run(self.argv(host, command), **options)
        return done

    def set(self, line: str, **settings: object) -> None:
        """Change a line in use: ``A>B``, ``A-B`` (both directions), ``A:up``, ``A:down``.

        Raises TopologyInvalid, EmulatorFailed.
        """
        for name in _directions(line, self.plan):
            number = self.plan.pipe_number(name)
            self.plan = self.plan.changed(number, settings)
            self.emulator.set_pipe(number, self.plan.pipes[number].shape, self.plan.topology.mtu)
            with (self._folder / "changes").open("a") as file:
                file.write(json.dumps([number, settings]) + "\n")

    @contextmanager
    def forwarded(self, gateway: str, port: int, host: str) -> Iterator[None]:
        """Forward a gateway's TCP ``port`` to a host behind it over IPv4, during the block."""
        inner = str(self.plan.address4(host))
        match = ("-p", "tcp", "--dport", str(port))
        rules = (
            ("-t", "nat", "{}", "PREROUTING", "-i", DEVICE, *match, "-j", "DNAT", "--to-destination", inner),
            ("{}", "FORWARD", "-i", DEVICE, "-d", inner, *match, "-j", "ACCEPT"),
        )

        def change(verb: str) -> None:
            for rule in rules:
                self._in(self.plan.host(gateway), "iptables", *(word.format(verb) for word in rule))

        change("-I")
        try:
            yield
        finally:
            change("-D")

    def stats(self) -> dict[str, Any]:
        """Return the counters of hosts and lines (without idle lines), and the emulator's delay."""
        counted = self.emulator.stats()
        counted["hosts"] = dict(zip(self.plan.public, counted["hosts"], strict=True))
        counted["pipes"] = {self.plan.pipes[int(number)].name: each for number, each in counted["pipes"].items()}
        return counted

    def lateness(self) -> Lateness:
        """Return the emulator's delivery delay since the last ``reset``."""
        return self.emulator.lateness()

    def reset(self) -> None:
        """Reset the counters."""
        self.emulator.reset()

    # -- making it -------------------------------------------------------------------------------------------

    def _make(self) -> None:
        plan = self.plan
        self._folder.mkdir(parents=True)
        (self._folder / "topology.json").write_text(json.dumps(document_of(plan.topology)))
        for host in plan.topology.hosts:
            _call("ip", "netns", "add", self.namespace(host.name))
        for host in plan.topology.hosts:
            settings = {**SYSCTL, **plan.topology.sysctl, **host.sysctl}
            pairs = [f"{key}={value}" for key, value in settings.items()]
            self._in(host, "sysctl", "-q", "-w", *pairs)
        self.emulator.start(plan, {name: self.namespace(name) for name in plan.public})
        for name in plan.public:
            self._ip(
                name,
                "link set lo up",
                f"link set {DEVICE} mtu {plan.topology.mtu} txqueuelen 10000 up",
                f"addr add {plan.address4(name)}/8 dev {DEVICE}",
                f"addr add {plan.address6(name)}/16 dev {DEVICE} nodad",
            )
        for number, host in enumerate(plan.topology.hosts):
            if host.behind:
                self._join(host, f"lan{number}")
        for host in plan.topology.hosts:
            if host.nat or host.block_udp:
                for version, tool in ((4, "iptables-restore"), (6, "ip6tables-restore")):
                    self._in(host, tool, feed="\n".join(_rules(host, version)) + "\n")

    def _join(self, host: Host, device: str) -> None:
        """Put a host behind its gateway: a cable, a private IPv4 network, and a route for its IPv6 address."""
        inner4, inner6 = self.plan.address4(host.name), self.plan.address6(host.name)
        inside = self.namespace(host.name)
        self._ip(
            host.behind,
            f"link add {device} mtu {self.plan.topology.mtu} type veth peer name {DEVICE} netns {inside}",
            f"link set {device} up",
            f"addr add {inner4 - 1}/24 dev {device}",
            f"addr add fe80::1/64 dev {device} nodad",
            f"-6 route add {inner6}/128 via fe80::2 dev {device}",
        )
        self._ip(
            host.name,
            "link set lo up",
            f"link set {DEVICE} mtu {self.plan.topology.mtu} up",
            f"addr add {inner4}/24 dev {DEVICE}",
            f"addr add fe80::2/64 dev {DEVICE} nodad",
            f"addr add {inner6}/128 dev {DEVICE} nodad",
            f"route add default via {inner4 - 1}",
            f"-6 route add default via fe80::1 dev {DEVICE}",
        )
        outer = self.plan.host(host.behind)
        while outer.behind:  # nested: those further out know the way in
            number = self.plan.topology.hosts.index(outer)
            self._ip(outer.behind, f"-6 route add {inner6}/128 via fe80::2 dev lan{number}")
            outer = self.plan.host(outer.behind)

    def _ip(self, host: str, *lines: str) -> None:
        for family in ("", "-6"):
            wanted = [line.removeprefix("-6 ") for line in lines if line.startswith("-6 ") == bool(family)]
            if wanted:
                options = ("-n", self.namespace(host), *filter(None, (family,)))
                _call("ip", *options, "-batch", "-", feed="\n".join(wanted) + "\n")

    def _in(self, host: Host, *command: str, feed: str = "") -> None:
        _call("ip", "netns", "exec", self.namespace(host.name), *command, feed=feed)


def attach(name: str) -> Lab:
    """Return the lab of this name that is up. Raises TopologyInvalid."""
    folder = LABS / name
    try:
        if not _LAB.fullmatch(name):
            raise FileNotFoundError
        lab = Lab(plan(parse_topology((folder / "topology.json").read_text())), name)
        changes = folder / "changes"
        for line in changes.read_text().splitlines() if changes.exists() else ():
            number, settings = json.loads(line)
            lab.plan = lab.plan.changed(number, settings)
    except OSError:
        raise TopologyInvalid(
            f"no network {name!r:.40} is up; these are up: {', '.join(labs()) or 'none'}"
        ) from None
    return lab


def _rules(host: Host, version: int) -> Iterator[str]:
    """Yield a firewall for ``iptables-restore`` that drops unsolicited packets from outside."""
    if host.nat and version == 4:
        yield "*nat"
        yield f"-A POSTROUTING -o {DEVICE} -j MASQUERADE" + (" --random-fully" if host.nat == "symmetric" else "")
        yield "COMMIT"
    yield "*filter"
    if host.block_udp:
        yield from (f"-A {chain} -p udp -j DROP" for chain in ("INPUT", "OUTPUT", "FORWARD"))
    if host.nat:
        yield f"-A INPUT -i {DEVICE} -p {'icmp' if version == 4 else 'ipv6-icmp'} -j ACCEPT"
        for chain in ("INPUT", "FORWARD"):
            yield f"-A {chain} -i {DEVICE} -m conntrack --ctstate NEW,INVALID -j DROP"
    yield "COMMIT"


def _directions(line: str, plan: Plan) -> tuple[str, ...]:
    """Return the pipes of a line's name; names of hosts may contain "-"."""
    for at in (n for n, character in enumerate(line) if character == "-"):
        one, other = line[:at], line[at + 1 :]
        if {one, other} <= set(plan.public):
            return f"{one}>{other}", f"{other}>{one}"
    return (line,)


def _namespaces(name: str = "") -> list[str]:
    folder = Path("/run/netns")
    start = f"{PREFIX}.{name}." if name else f"{PREFIX}."
    return sorted(path.name for path in folder.glob(f"{start}*")) if folder.exists() else []


def _destroy(name: str) -> bool:
    if not _LAB.fullmatch(name):
        raise TopologyInvalid(f"lab {name!r:.40}: no such name")
    folder = LABS / name
    spaces = _namespaces(name)
    Emulator(folder).stop()
    _end_all(lambda: [int(pid) for space in spaces for pid in _ask("ip", "netns", "pids", space).split()])
    for space in spaces:
        _ask("ip", "netns", "del", space)
    was_there = bool(spaces) or folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    return was_there


def _end_all(pids: Callable[[], list[int]]) -> None:
    """End processes: by SIGTERM, then by SIGKILL."""
    found = pids()
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        until = time.monotonic() + END_S
        while found and time.monotonic() < until:
            time.sleep(0.02)
            found = [pid for pid in pids() if not _is_dead(pid)]


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextmanager
def _locked(name: str) -> Iterator[None]:
    if not _LAB.fullmatch(name):
        raise TopologyInvalid(f"lab {name!r:.40}: no such name")
    check_machine()
    LABS.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (LABS.parent / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _call(*command: str, feed: str = "") -> None:
    done = subprocess.run(command, input=feed, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-400:]
        raise EmulatorFailed(f"{' '.join(command[:6])}: {said}")


def _ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def changes_of(pairs: Sequence[str]) -> Mapping[str, object]:
    """Return the settings in words KEY=VALUE. Raises TopologyInvalid."""
    found: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise TopologyInvalid(f"{pair!r:.40}: not KEY=VALUE")
        found[key] = {"true": True, "false": False}.get(value, value)
    return found
