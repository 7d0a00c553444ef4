"""The description of an emulated wide-area network: hosts, their access lines, the links between them. Pure.

A topology is TOML or JSON of one strict form (docs/network.md). ``plan`` turns it into one-way pipes. For each
pair of hosts that can communicate, it lists the pipes that a packet passes: the sender's uplink, the link, the
receiver's downlink.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from state.primitives.errors import ConfigError

__all__ = [
    "HOSTS_MAX",
    "Burst",
    "Host",
    "Pipe",
    "Plan",
    "Shape",
    "Topology",
    "TopologyInvalid",
    "document_of",
    "parse_settings",
    "parse_topology",
    "plan",
]

HOSTS_MAX: Final = 250
"""Hosts of one topology, including those behind a gateway."""
TOPOLOGY_BYTES_MAX: Final = 1024 * 1024
MTU_MIN: Final = 1_280
"""The minimum that IPv6 requires of every link."""
MTU_MAX: Final = 9_000
RATE_MAX: Final = 10**10
TIME_US_MAX: Final = 60_000_000
QUEUE_BYTES_MAX: Final = 2**31 - 1
QUEUE_PACKETS_MIN: Final = 2
"""A queue for fewer packets would carry nothing."""
BURST_PACKETS_MAX: Final = 10**6
PPM: Final = 1_000_000
DEFAULT_QUEUE_US: Final = 100_000

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,15}")
_SYSCTL: Final = re.compile(r"net\.[a-z0-9_.]{1,60}")
_SYSCTL_VALUE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ ]{0,60}")
_QUANTITY: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))? ?([A-Za-z%]+)")
_RATES: Final = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_TIMES: Final = {"us": 1, "ms": 10**3, "s": 10**6}
_SIZES: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "KiB": 2**10, "MiB": 2**20}
_PARTS: Final = {"%": PPM // 100}
_NATS: Final = ("cone", "symmetric")


class TopologyInvalid(ConfigError):
    """A topology, or a change of one, does not have the form of docs/network.md."""

    code = "topology_invalid"


@dataclass(frozen=True, slots=True)
class Burst:
    """Loss in bursts (Gilbert-Elliott): mean packets between bursts, mean packets in a burst, loss inside."""

    every: int
    length: int
    loss_ppm: int = PPM


@dataclass(frozen=True, slots=True)
class Shape:
    """The effects of one direction of a line on packets."""

    rate_bit_per_s: int = 0
    """In whole IP packets; 0: unlimited."""
    delay_us: int = 0
    jitter_us: int = 0
    """Uniformly distributed from 0 to this; the order of packets is kept unless ``reorder``."""
    loss_ppm: int = 0
    """Independent for each packet. A lost packet uses its share of the rate."""
    burst: Burst | None = None
    queue_us: int = DEFAULT_QUEUE_US
    """Drop-tail queue as time at the rate; ignored if ``queue_bytes`` is set."""
    queue_bytes: int = 0
    reorder: bool = False
    down: bool = False
    """A cut cable: drops every packet."""

    def queue_limit_bytes(self, mtu: int) -> int:
        """Return the queue's size; 0 if there is no rate and so no queue."""
        if not self.rate_bit_per_s:
            return 0
        size = self.queue_bytes or self.rate_bit_per_s * self.queue_us // 8_000_000
        return min(max(size, QUEUE_PACKETS_MIN * mtu), QUEUE_BYTES_MAX)

    def passes_ppm(self) -> int:
        """Return how many of a million packets pass while the queue is not full."""
        if self.down:
            return 0
        kept = PPM - self.loss_ppm
        if self.burst is not None:
            in_burst = Fraction(self.burst.length, self.burst.every + self.burst.length)
            kept = int(kept * (1 - in_burst * Fraction(self.burst.loss_ppm, PPM)))
        return kept


@dataclass(frozen=True, slots=True)
class Host:
    """One host: public, with or without its own line, or behind another host."""

    name: str
    up: Shape | None = None
    """The access line for all its traffic; None: not limited."""
    down: Shape | None = None
    nat: str = ""
    """IPv4 masquerading for the hosts behind it: ``cone`` keeps ports, ``symmetric`` draws a port for each flow.
    IPv6 is not translated. Both drop unsolicited packets."""
    behind: str = ""
    region: str = ""
    block_udp: bool = False
    sysctl: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topology:
    """A whole network. Links connect pairs of public hosts, by (from, to)."""

    name: str
    hosts: tuple[Host, ...]
    links: Mapping[tuple[str, str], Shape]
    regions: Mapping[tuple[str, str], Shape] = field(default_factory=dict)
    """For pairs without a link, by their hosts' regions, in both orders."""
    default: Shape | None = None
    """For pairs without either; None: they cannot communicate."""
    mtu: int = 1_500
    seed: int = 1
    sysctl: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pipe:
    """One direction of one line: ``A>B`` for a link, ``A:up`` and ``A:down`` for an access line."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Plan:
    """A topology in the emulator's form."""

    topology: Topology
    public: tuple[str, ...]
    pipes: tuple[Pipe, ...]
    routes: Mapping[tuple[str, str], tuple[int, ...]]
    """Numbers of the pipes on the route, by (from, to) of public hosts."""

    def host(self, name: str) -> Host:
        """Return a host. Raises TopologyInvalid for an unknown name."""
        for host in self.topology.hosts:
            if host.name == name:
                return host
        raise TopologyInvalid(f"no host {name!r} in {self.topology.name}")

    def gateway(self, name: str) -> str:
        """Return the public host whose line a host uses, possibly itself."""
        while behind := self.host(name).behind:
            name = behind
        return name

    def address4(self, name: str) -> IPv4Address:
        """Return a host's IPv4 address: 11.x.0.1 in public, 192.168.x.2 behind a gateway.

        Public hosts have distant addresses in public ranges, because software treats private and neighbouring
        addresses differently. No packet leaves the lab.
        """
        host = self.host(name)
        if not host.behind:
            return IPv4Address(f"11.{self.public.index(name) + 1}.0.1")
        return IPv4Address(f"192.168.{self._number(name)}.2")

    def address6(self, name: str) -> IPv6Address:
        """Return a host's IPv6 address in its gateway's /64; every host has a public one."""
        gateway = self.public.index(self.gateway(name)) + 1
        return IPv6Address("2999::") + (gateway << 96) + (self._number(name) if self.host(name).behind else 1)

    def rtt_us(self, one: str, other: str) -> int:
        """Return the round-trip delay that the links add, without queues. Raises TopologyInvalid."""
        one, other = self.gateway(one), self.gateway(other)
        return sum(
            self.pipes[n].shape.delay_us for pair in ((one, other), (other, one)) for n in self.route(*pair)
        )

    def route(self, source: str, target: str) -> tuple[int, ...]:
        """Return the pipes between two public hosts. Raises TopologyInvalid if there is no route."""
        try:
            return self.routes[source, target]
        except KeyError:
            raise TopologyInvalid(f"no route from {source!r} to {target!r} in {self.topology.name}") from None

    def pipe_number(self, name: str) -> int:
        """Return the number of the pipe ``A>B``, ``A:up`` or ``A:down``. Raises TopologyInvalid."""
        for number, pipe in enumerate(self.pipes):
            if pipe.name == name:
                return number
        raise TopologyInvalid(f"no line {name!r} in {self.topology.name}: FROM>TO, HOST:up or HOST:down")

    def changed(self, number: int, settings: Mapping[str, object]) -> Plan:
        """Return the plan with one pipe changed; settings that are not given stay. Raises TopologyInvalid."""
        pipe = self.pipes[number]
        shape = replace(pipe.shape, **parse_settings(settings, where=pipe.name))
        pipes = (*self.pipes[:number], Pipe(pipe.name, shape), *self.pipes[number + 1 :])
        return replace(self, pipes=pipes)

    def _number(self, name: str) -> int:
        return 2 + next(n for n, host in enumerate(self.topology.hosts) if host.name == name)


def parse_topology(text: str) -> Topology:
    """Return the topology of a TOML or JSON document. Raises TopologyInvalid."""
    if len(text) > TOPOLOGY_BYTES_MAX:
        raise TopologyInvalid(f"longer than {TOPOLOGY_BYTES_MAX} characters")
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TopologyInvalid(f"neither TOML nor JSON: {error}") from None
    match document:
        case {"name": str(name), "hosts": dict(hosts)}:
            pass
        case _:
            raise TopologyInvalid("not a table with a name and hosts")
    known = {"name", "hosts", "links", "regions", "default", "mtu", "seed", "sysctl"}
    _check_keys(document, known, "topology")
    _check_name(name, "topology")
    if not 0 < len(hosts) <= HOSTS_MAX:
        raise TopologyInvalid(f"{len(hosts)} hosts: 1 to {HOSTS_MAX} allowed")
    members = tuple(_host(key, table) for key, table in hosts.items())
    _check_gateways(members)
    public = {host.name for host in members if not host.behind}
    default = document.get("default")
    return Topology(
        name=name,
        hosts=members,
        links=_links(document.get("links", []), public),
        regions=_regions(document.get("regions", {})),
        default=None if default is None else _shape(default, "default"),
        mtu=_integer(document.get("mtu", 1_500), MTU_MIN, MTU_MAX, "mtu"),
        seed=_integer(document.get("seed", 1), 0, 2**31 - 1, "seed"),
        sysctl=_sysctl(document.get("sysctl", {}), "sysctl"),
    )


def document_of(topology: Topology) -> dict[str, Any]:
    """Return the document, of plain values, from which ``parse_topology`` reads this topology."""
    hosts: dict[str, dict[str, Any]] = {}
    for host in topology.hosts:
        named = {key: value for key in ("nat", "behind", "region") if (value := getattr(host, key))}
        lines = {way: _table(shape) for way in ("up", "down") if (shape := getattr(host, way)) is not None}
        hosts[host.name] = {**named, **lines, "block_udp": host.block_udp, "sysctl": dict(host.sysctl)}
    links = [
        {"a": one, "b": other, "forward": _table(shape), "back": _table(topology.links[other, one])}
        for (one, other), shape in topology.links.items()
        if one < other
    ]
    regions = {f"{one}/{other}": _table(shape) for (one, other), shape in topology.regions.items() if one <= other}
    document: dict[str, Any] = {
        "name": topology.name, "mtu": topology.mtu, "seed": topology.seed, "sysctl": dict(topology.sysctl),
        "hosts": hosts, "links": links, "regions": regions,
    }  # fmt: skip
    if topology.default is not None:
        document["default"] = _table(topology.default)
    return document


def _table(shape: Shape) -> dict[str, Any]:
    burst = shape.burst
    return {
        "rate": f"{shape.rate_bit_per_s}bit" if shape.rate_bit_per_s else "none",
        "delay": f"{shape.delay_us}us",
        "jitter": f"{shape.jitter_us}us",
        "loss": _percent(shape.loss_ppm),
        "queue": f"{shape.queue_bytes}B" if shape.queue_bytes else f"{shape.queue_us}us",
        "reorder": shape.reorder,
        "down": shape.down,
        "burst": "none" if burst is None else {
            "every": burst.every, "length": burst.length, "loss": _percent(burst.loss_ppm),
        },
    }  # fmt: skip


def _percent(ppm: int) -> str:
    return f"{ppm // 10_000}.{ppm % 10_000:04}%"


def parse_settings(settings: object, *, where: str) -> dict[str, Any]:
    """Return the fields of a ``Shape`` from a table of settings. Raises TopologyInvalid."""
    if not isinstance(settings, Mapping):
        raise TopologyInvalid(f"{where}: not a table of settings")
    known = {"rate", "delay", "rtt", "jitter", "loss", "burst", "queue", "reorder", "down"}
    _check_keys(settings, known, where)
    if "delay" in settings and "rtt" in settings:
        raise TopologyInvalid(f"{where}: give either delay (one way) or rtt (round trip), not both")
    found: dict[str, Any] = {}
    for key, value in settings.items():
        at = f"{where}, {key}"
        match key:
            case "rate":
                found["rate_bit_per_s"] = 0 if value == "none" else _quantity(value, _RATES, 1, RATE_MAX, at)
            case "delay":
                found["delay_us"] = _quantity(value, _TIMES, 0, TIME_US_MAX, at)
            case "rtt":
                found["delay_us"] = _quantity(value, _TIMES, 0, 2 * TIME_US_MAX, at) // 2
            case "jitter":
                found["jitter_us"] = _quantity(value, _TIMES, 0, TIME_US_MAX, at)
            case "loss":
                found["loss_ppm"] = _quantity(value, _PARTS, 0, PPM, at)
            case "burst":
                found["burst"] = _burst(value, at)
            case "queue":
                is_time = isinstance(value, str) and value.endswith("s")
                found["queue_us"] = _quantity(value, _TIMES, 1, TIME_US_MAX, at) if is_time else DEFAULT_QUEUE_US
                found["queue_bytes"] = 0 if is_time else _quantity(value, _SIZES, 1, QUEUE_BYTES_MAX, at)
            case _:
                if not isinstance(value, bool):
                    raise TopologyInvalid(f"{at}: not true or false")
                found[str(key)] = value
    return found


def plan(topology: Topology) -> Plan:
    """Return the pipes and routes of a topology."""
    public = tuple(host.name for host in topology.hosts if not host.behind)
    region = {host.name: host.region for host in topology.hosts}
    pipes: list[Pipe] = []
    access: dict[str, int] = {}
    for host in topology.hosts:
        for way, shape in (("up", host.up), ("down", host.down)):
            if shape is not None:
                access[f"{host.name}:{way}"] = len(pipes)
                pipes.append(Pipe(f"{host.name}:{way}", shape))
    routes: dict[tuple[str, str], tuple[int, ...]] = {}
    for one in public:
        for other in public:
            shape = topology.links.get((one, other))
            if shape is None:
                shape = topology.regions.get((region[one], region[other]), topology.default)
            if one == other or shape is None:
                continue
            link = len(pipes)
            pipes.append(Pipe(f"{one}>{other}", shape))
            stages = (access.get(f"{one}:up"), link, access.get(f"{other}:down"))
            routes[one, other] = tuple(number for number in stages if number is not None)
    return Plan(topology, public, tuple(pipes), routes)


def _host(name: str, table: object) -> Host:
    where = f"host {name}"
    _check_name(name, "host")
    if not isinstance(table, Mapping):
        raise TopologyInvalid(f"{where}: not a table")
    _check_keys(table, {each.name for each in fields(Host)} - {"name"}, where)
    match dict(table):
        case {"nat": nat} if nat not in _NATS:
            raise TopologyInvalid(f"{where}: nat is one of {', '.join(_NATS)}")
        case {"block_udp": block} if not isinstance(block, bool):
            raise TopologyInvalid(f"{where}: block_udp is true or false")
        case {"behind": str(), "up": _} | {"behind": str(), "down": _}:
            raise TopologyInvalid(f"{where}: a host behind a gateway uses the gateway's line")
        case _:
            pass
    for key in ("behind", "region"):
        if key in table:
            _check_name(table[key], where)
    lines = {way: _shape(table[way], f"{where}, {way}") if way in table else None for way in ("up", "down")}
    return Host(
        name=name, up=lines["up"], down=lines["down"], nat=table.get("nat", ""), behind=table.get("behind", ""),
        region=table.get("region", ""), block_udp=table.get("block_udp", False),
        sysctl=_sysctl(table.get("sysctl", {}), where),
    )  # fmt: skip


def _check_gateways(hosts: tuple[Host, ...]) -> None:
    behind = {host.name: host.behind for host in hosts}
    for host in hosts:
        seen = {host.name}
        at = host.behind
        while at:
            if at not in behind:
                raise TopologyInvalid(f"host {host.name}: behind {at!r}, which is not a host")
            if at in seen:
                raise TopologyInvalid(f"host {host.name}: behind itself")
            seen.add(at)
            at = behind[at]


def _links(items: object, public: set[str]) -> dict[tuple[str, str], Shape]:
    if not isinstance(items, list):
        raise TopologyInvalid("links: not a list of tables")
    found: dict[tuple[str, str], Shape] = {}
    for item in items:
        match item:
            case {"a": str(one), "b": str(other), **rest} if {one, other} <= public and one != other:
                where = f"link {one}-{other}"
            case _:
                raise TopologyInvalid(f"link {item!r:.80}: a and b must be two different public hosts")
        ways = {key: rest.pop(key, {}) for key in ("forward", "back")}
        base = _shape(rest, where)
        for pair, key in (((one, other), "forward"), ((other, one), "back")):
            if pair in found:
                raise TopologyInvalid(f"{where}: named twice")
            found[pair] = replace(base, **parse_settings(ways[key], where=f"{where}, {key}"))
    return found


def _regions(table: object) -> dict[tuple[str, str], Shape]:
    if not isinstance(table, Mapping):
        raise TopologyInvalid("regions: not a table")
    found: dict[tuple[str, str], Shape] = {}
    for key, settings in table.items():
        one, _, other = str(key).partition("/")
        for name in (one, other or one):
            _check_name(name, "regions")
        shape = _shape(settings, f"regions {key}")
        found[one, other or one] = found[other or one, one] = shape
    return found


def _shape(settings: object, where: str) -> Shape:
    return Shape(**parse_settings(settings, where=where))


def _burst(value: object, where: str) -> Burst | None:
    match value:
        case "none":
            return None
        case {"every": int(every), "length": int(length), **rest} if not set(rest) - {"loss"}:
            loss_ppm = _quantity(rest.get("loss", "100%"), _PARTS, 0, PPM, where)
            _integer(every, 1, BURST_PACKETS_MAX, where)
            _integer(length, 1, BURST_PACKETS_MAX, where)
            return Burst(every, length, loss_ppm)
        case _:
            raise TopologyInvalid(
                f"{where}: {{every = PACKETS, length = PACKETS, loss = PART}} or 'none' expected"
            )


def _sysctl(table: object, where: str) -> dict[str, str]:
    if not isinstance(table, Mapping):
        raise TopologyInvalid(f"{where}: not a table of kernel settings")
    found: dict[str, str] = {}
    for key, value in table.items():
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        # Settings under net are those of the namespace; others would be the machine's.
        if not _SYSCTL.fullmatch(str(key)) or not isinstance(text, str) or not _SYSCTL_VALUE.fullmatch(text):
            raise TopologyInvalid(
                f"{where}: kernel setting {key!r}: the name must begin with net. and the value be plain"
            )
        found[key] = text
    return found


def _quantity(value: object, units: Mapping[str, int], least: int, most: int, where: str) -> int:
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[3] not in units:
        raise TopologyInvalid(f"{where}: {value!r:.40}: not a number with one of the units {', '.join(units)}")
    digits = found[2] or ""
    number = int(Fraction(int(found[1] + digits), 10 ** len(digits)) * units[found[3]])
    if not least <= number <= most:
        raise TopologyInvalid(f"{where}: {value!r:.40} is out of bounds")
    return number


def _integer(value: object, least: int, most: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise TopologyInvalid(f"{where}: not a number from {least} to {most}")
    return value


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TopologyInvalid(f"{what}: {name!r:.40}: the name must be a letter and up to 15 letters, digits or -")


def _check_keys(table: Mapping[Any, object], known: set[str], where: str) -> None:
    unknown: Iterator[str] = (str(key) for key in table if key not in known)
    if names := ", ".join(sorted(unknown)):
        raise TopologyInvalid(f"{where}: unknown {names}; known are {', '.join(sorted(known))}")
