"""A node's own options: a frozen dataclass for each part, read once from TOML; the environment is not read.

Chain parameters are not here: they stand in the genesis.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from node.home.files import read_bounded
from node.market.uploads import UploadOptions
from rpc.gateway.limits import Proxies, is_loopback
from state.primitives.address import format_address, parse_address
from state.primitives.errors import ConfigError, DecodeError
from state.primitives.keys import SIGNATURE_BYTES, VOTE_KEY_BYTES
from state.primitives.listen import parse_host_port, parse_listen

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "AMOUNT_MAX",
    "LOG_LEVELS",
    "AdminOptions",
    "Checkpoint",
    "DeveloperOptions",
    "ExecutorOptions",
    "HistoryOptions",
    "KeyOptions",
    "LogOptions",
    "MempoolOptions",
    "MetricsOptions",
    "NetworkOptions",
    "NodeOptions",
    "PeerAddress",
    "ProcessOptions",
    "RegistryOptions",
    "RpcOptions",
    "SignerEndpoint",
    "SignerOptions",
    "SyncOptions",
    "check_options",
    "dump_options",
    "flat_options",
    "listen_option",
    "load_options",
    "load_table",
    "parse_checkpoint",
    "parse_host_port",
    "parse_listen",
    "parse_operator",
    "parse_peer",
    "parse_signer",
    "parse_vote_key",
    "read_table",
    "toml_value",
]

_Options = TypeVar("_Options")
DUMP_HEAD: Final = "# What is not here has its default (docs/operations.md); changes act at the next start."
CONFIG_LIMIT_BYTES: Final = 1024 * 1024
TOLD_MAX: Final = 200
"""Characters that are told of what is wrong with a file."""
DIGITS_MAX: Final = 78
"""Of a number that is written as text: what an amount of 256 bits has at most."""
PROTOCOL_VERSION_MAX: Final = 255
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  compared, not listened at
PROFILES: Final = ("archive", "full", "light")
"""Those of ``state.store.profiles``, which comes with the database: a wallet's commands read options too."""
SYNC_MODES: Final = ("auto", "state", "blocks")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
ROLES: Final = ("validator", "compute", "verify", "relay", "storage")


_BYTES_MAX: Final = 1 << 60
_COUNT_MAX: Final = 1 << 20
AMOUNT_MAX: Final = (1 << 127) - 1
BOUNDS: Final = {
    "p2p.inbound_max": (0, 65_536),
    "p2p.outbound_max": (0, 4_096),
    "p2p.blob_store_bytes_max": (0, _BYTES_MAX),
    "p2p.uplink_mbit_per_s": (0, 10_000_000),
    "rpc.connections_max": (1, _COUNT_MAX),
    "rpc.connections_per_address_max": (0, _COUNT_MAX),
    "rpc.units_per_s": (0, 1 << 40),
    "rpc.units_burst": (0, 1 << 40),
    "rpc.requests_per_address_max": (0, _COUNT_MAX),
    "rpc.filters_per_address_max": (0, _COUNT_MAX),
    "rpc.subscriptions_per_address_max": (0, _COUNT_MAX),
    "rpc.ready_peers_min": (0, 65_536),
    "uploads.bytes_per_blob_max": (0, _BYTES_MAX),
    "uploads.bytes_per_account_day_max": (0, _BYTES_MAX),
    "uploads.bytes_per_caller_day_max": (0, _BYTES_MAX),
    "uploads.bytes_per_day_max": (0, _BYTES_MAX),
    "uploads.bytes_kept_max": (0, _BYTES_MAX),
    "uploads.balance_min": (0, AMOUNT_MAX),
    "uploads.keep_s": (0, 100 * 366 * 86_400),
    "mempool.transactions_max": (1, 10_000_000),
    "mempool.bytes_max": (1, 1 << 40),
    "store.epochs": (1, 1 << 32),
    "sync.snapshots": (0, 1_024),
    "executor.jobs_max": (0, 1_024),
    "executor.verifications_max": (0, 1_024),
    "registry.price_per_gpu_s": (0, 1 << 100),
    "registry.stake": (0, AMOUNT_MAX),
    "processes.signature_workers": (0, 256),
    "developer.protocol_version": (0, PROTOCOL_VERSION_MAX),
}
"""Least and most of each option that is a number: beyond, memory, a clock or a queue has no such size."""


def listen_option(default: str = "") -> Any:
    """Return the field of addresses to listen at: "host:port", several with commas, or a list of them in TOML."""
    return field(default=default, metadata={"is_listen": True})


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """Files of keys, relative to the node's home; each is a keystore v3 opened by the same passphrase."""

    account: str = "keys/account.json"
    vote: str = "keys/vote.json"
    vote_next: str = ""
    """The vote key that takes over from ``vote`` in the first epoch that seats it (``dekube tx rotate-keys``)."""
    passphrase_file: str = "keys/passphrase"  # noqa: S105  a path
    """Mode 0600. Empty: the passphrase is asked for on the terminal."""


@dataclass(frozen=True, slots=True)
class SignerOptions:
    """Where a validator's vote key is, when it is not in this process (``dekube signer run``)."""

    endpoint: str = ""
    """"unix:PATH" (relative to the home) or "0xADDRESS@tcp:host:port"; empty: the key votes in the node."""
    vote_key: str = ""
    """The public vote key (0x and 64 hex digits) that the signer must have."""
    vote_key_next: str = ""
    """Another one of its keys, which takes over from ``vote_key`` in the first epoch that seats it."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Peers and relays."""

    listen: str = listen_option(":26656")
    """host:port for inbound connections, without a host on all addresses of IPv4 and IPv6; empty for a node that
    accepts none (it reserves at its relays)."""
    advertise: tuple[str, ...] = ()
    """Endpoints ("tcp:host:port") that peers are told; empty: the listening address unless it is a wildcard."""
    bootstrap: tuple[str, ...] = ()
    """First peers: "0xADDRESS@tcp:host:port"."""
    relays: tuple[str, ...] = ()
    """Relays to reserve at: "0xADDRESS@host:port"."""
    dial_inner: bool = False
    """Dial private and loopback addresses that strangers name; so it is where the options above name such ones."""
    inbound_max: int = 64
    outbound_max: int = 12
    blob_store_bytes_max: int = 64 * 1024**3
    uplink_mbit_per_s: int = 0
    """What this machine's line sends at most; blobs get a part of it. 0: not known, they are not paced."""


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """The gateway process for JSON-RPC, REST and health."""

    listen: str = listen_option("127.0.0.1:8545")
    """host:port, without a host on all addresses of IPv4 and IPv6; several as a list; empty: no gateway."""
    cors: tuple[str, ...] = ("*",)
    hosts: tuple[str, ...] = ()
    """Further Host header values to accept beside the loopback names."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks whose last entry of X-Forwarded-For names the client; from elsewhere the header says nothing."""
    connections_max: int = 16_384
    connections_per_address_max: int = 512
    """An address is an IPv4 address or a /64 of IPv6. 0: no limit."""
    units_per_s: int = 5_000
    """Units of cost that flow to an address; a simple question costs one. 0: no limit."""
    units_burst: int = 20_000
    requests_per_address_max: int = 2_000
    """Under way at once. 0: no limit."""
    filters_per_address_max: int = 100
    subscriptions_per_address_max: int = 1_024
    """Over all WebSockets of an address. 0: no limit."""
    ready_peers_min: int = 1
    """Peers without which /readyz says no."""


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """The owner's methods as JSON-RPC; the control socket takes them without this."""

    listen: str = listen_option()
    """host:port of the loopback interface; empty: none. The token stands in run/admin.token."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The Prometheus endpoint of the node process."""

    listen: str = listen_option("127.0.0.1:9100")
    """host:port, without a host on all addresses; several as a list; empty: none."""


@dataclass(frozen=True, slots=True)
class MempoolOptions:
    """Bounds of pending transactions."""

    transactions_max: int = 50_000
    bytes_max: int = 64 * 1024 * 1024
    keep_local: bool = True
    """Keep what was handed in at this node's gateway over a restart."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """How much of the past the node keeps."""

    profile: str = "full"
    """archive, full or light."""
    epochs: int = 168
    """Epochs whose blocks the profile full keeps."""


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """How a node begins on a chain that is old already, and what it keeps for others who begin."""

    mode: str = "auto"
    """auto, state (never the blocks from the genesis) or blocks (never the state)."""
    checkpoint: str = ""
    """HEIGHT:HASH of the last block of an epoch that the operator vouches for; empty: the genesis."""
    snapshots: int = 3
    """Snapshots kept for peers; 0: none are made."""


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Jobs on this machine."""

    backend: str = "process"
    engine: str = "auto"
    """auto, numpy or torch."""
    jobs_max: int = 1
    verifications_max: int = 1


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """What this machine says of itself in the on-chain registry (roles compute and verify)."""

    auto_register: bool = True
    price_per_gpu_s: int = 10**14
    stake: int = 0
    """Stake to lock at registration, in 10^-18 DKB."""
    operator: str = ""
    """The account behind several machines, which never check each other; empty: this node's own."""
    operator_consent: str = ""
    """What `dekube worker endorse` printed for this machine with the operator's key."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Child processes beside the node."""

    signature_workers: int = 1
    """0: signatures are verified in the node process."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Structured logs on standard error."""

    level: str = "info"
    format: str = "auto"
    """auto (text on a terminal, else json), text or json."""


@dataclass(frozen=True, slots=True)
class DeveloperOptions:
    """For rehearsals; refused on a chain that is not a test network."""

    protocol_version: int = 0
    """Take versions up to this for known, with the rules of this release, and signal it; 0: none but its own."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """All options of ``dekube node run``."""

    roles: tuple[str, ...] = ("verify",)
    check_invariants: bool = True
    """Check money conservation after every block (costs a pass over open tasks)."""
    keys: KeyOptions = field(default_factory=KeyOptions)
    signer: SignerOptions = field(default_factory=SignerOptions)
    p2p: NetworkOptions = field(default_factory=NetworkOptions)
    rpc: RpcOptions = field(default_factory=RpcOptions)
    uploads: UploadOptions = field(default_factory=UploadOptions)
    admin: AdminOptions = field(default_factory=AdminOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    mempool: MempoolOptions = field(default_factory=MempoolOptions)
    store: HistoryOptions = field(default_factory=HistoryOptions)
    sync: SyncOptions = field(default_factory=SyncOptions)
    executor: ExecutorOptions = field(default_factory=ExecutorOptions)
    registry: RegistryOptions = field(default_factory=RegistryOptions)
    processes: ProcessOptions = field(default_factory=ProcessOptions)
    log: LogOptions = field(default_factory=LogOptions)
    developer: DeveloperOptions = field(default_factory=DeveloperOptions)


class PeerAddress(typing.NamedTuple):
    """Who is expected (20 bytes) and where."""

    address: bytes
    endpoint: str

    def __str__(self) -> str:
        return f"{format_address(self.address)}@{self.endpoint}"


def parse_peer(text: str) -> PeerAddress:
    """Return the address and endpoint of "0xADDRESS@endpoint". Raises ConfigError."""
    address, at, endpoint = text.partition("@")
    if not at or not endpoint:
        raise ConfigError(f"{text!r}: 0xADDRESS@host:port expected")
    try:
        return PeerAddress(parse_address(address), endpoint)
    except DecodeError as error:
        raise ConfigError(f"{text!r}: {error}") from None


def _check_peer(where: str, peer: PeerAddress) -> None:
    """Raise ConfigError for a peer that cannot be dialled: one without a port, or with an impossible one."""
    try:
        _check_endpoint(peer.endpoint)
    except DecodeError:
        raise ConfigError(f"{where}: '{peer}': 0xADDRESS@host:port expected") from None


def _check_endpoint(text: str) -> None:
    """Raise DecodeError for text that is no endpoint, with or without its ``tcp:``."""
    from p2p.base.endpoint import Endpoint

    Endpoint.named(text)


class SignerEndpoint(typing.NamedTuple):
    """Where a signer answers: at a Unix socket, or at host and port under an address that it proves."""

    path: str = ""
    host: str = ""
    port: int = 0
    address: bytes = b""


def parse_signer(text: str) -> SignerEndpoint:
    """Return the endpoint of "unix:PATH" or "0xADDRESS@tcp:host:port". Raises ConfigError."""
    if text.startswith("unix:") and "\0" not in text and text != "unix:":
        return SignerEndpoint(path=text.removeprefix("unix:"))
    if text.startswith("unix:") or "@" not in text:
        raise ConfigError(f"{text!r}: unix:PATH or 0xADDRESS@tcp:host:port expected")
    peer = parse_peer(text)
    host, port = parse_host_port(peer.endpoint.removeprefix("tcp:"))
    if not host or not port:
        raise ConfigError(f"{text!r}: unix:PATH or 0xADDRESS@tcp:host:port expected")
    return SignerEndpoint(host=host, port=port, address=peer.address)


def parse_vote_key(text: str) -> bytes:
    """Return the vote key of its text. Raises ConfigError."""
    try:
        key = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        key = b""
    if len(key) != VOTE_KEY_BYTES:
        raise ConfigError(f"{text!r}: a vote key (0x and 64 hex digits) expected")
    return key


class Checkpoint(typing.NamedTuple):
    """The last block of an epoch that the operator vouches for."""

    height: int
    block_hash: bytes


def parse_checkpoint(text: str, what: str = "HEIGHT:HASH of the last block of an epoch") -> Checkpoint:
    """Return the checkpoint of "HEIGHT:HASH". Raises ConfigError, which says that ``what`` is expected."""
    height, colon, block_hash = text.strip().partition(":")
    digits = block_hash.removeprefix("0x")
    try:
        parsed = bytes.fromhex(digits)
    except ValueError:
        parsed = b""
    is_height = height.isascii() and height.isdigit() and len(height) < 15 and int(height) > 0
    if not (colon and is_height and len(digits) == 64 and len(parsed) == 32):
        raise ConfigError(f"{text!r}: {what} expected")
    return Checkpoint(int(height), parsed)


def parse_operator(registry: RegistryOptions) -> tuple[bytes, bytes] | None:
    """Return the operator's address and its signature; None where the node is its own. Raises ConfigError."""
    if not registry.operator and not registry.operator_consent:
        return None
    try:
        operator = parse_address(registry.operator)
    except DecodeError as error:
        raise ConfigError(f"registry.operator: {error}") from None
    try:
        consent = bytes.fromhex(registry.operator_consent.removeprefix("0x"))
    except ValueError:
        consent = b""
    if len(consent) != SIGNATURE_BYTES:
        raise ConfigError("registry.operator_consent: what `dekube worker endorse` prints expected")
    return operator, consent


def load_options(path: Path) -> NodeOptions:
    """Return the options of a TOML file over the defaults.

    Raises ConfigError naming the file and the option: unknown, of the wrong type, out of range.
    """
    options = load_table(path, NodeOptions)
    try:
        check_options(options)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return options


def load_table(path: Path, cls: type[_Options], *, made_by: str = "dekube init") -> _Options:
    """Return the frozen dataclass ``cls`` with the values of a TOML file over its defaults.

    Raises ConfigError, which says that ``made_by`` makes a file that is not there.
    """
    try:
        data = read_bounded(path, CONFIG_LIMIT_BYTES)
        if len(data) > CONFIG_LIMIT_BYTES:
            raise ConfigError("file too large")
        return read_table(data.decode("utf-8-sig"), cls)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `{made_by}` makes one") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not UTF-8 text (line {line}); options in TOML expected") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error)[:TOLD_MAX]}") from None


def read_table(text: str, cls: type[_Options]) -> _Options:
    """Return the frozen dataclass ``cls`` with the values of TOML over its defaults. Raises ConfigError."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of too many digits is no TOMLDecodeError
        raise ConfigError(str(error)[:TOLD_MAX]) from None
    options: _Options = _build(cls, document, "")
    return options


def _build(cls: Any, document: dict[str, Any], where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for name, value in document.items():
        dotted = f"{where}{name}"
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            raise ConfigError(f"unknown option {dotted}" + (f"; did you mean {where}{near[0]}?" if near else ""))
        if fields[name].metadata.get("is_listen") and type(value) is list:
            value = _listen(value, dotted)
        values[name] = _value(hints[name], value, dotted)
    return cls(**values)


def _listen(value: list[Any], dotted: str) -> str:
    """Return a list of addresses as the one text that options keep."""
    if not all(isinstance(item, str) and item and "," not in item for item in value):
        raise ConfigError(f'{dotted}: "host:port" or a list of such expected')
    return ",".join(value)


_hints = functools.cache(typing.get_type_hints)


def _value(hint: Any, value: Any, dotted: str) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ConfigError(f"{dotted}: a table expected")
        return _build(hint, value, f"{dotted}.")
    if isinstance(hint, types.GenericAlias) or typing.get_origin(hint) is tuple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{dotted}: a list of strings expected")
        return tuple(value)
    if hint is int and isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX:
        return int(value)  # amounts beyond what other TOML readers take as integers
    if type(value) is not hint:
        raise ConfigError(f"{dotted}: {hint.__name__} expected, not {type(value).__name__}")
    if hint is int and value < 0:
        raise ConfigError(f"{dotted}: may not be negative")
    return value


def check_options(options: NodeOptions) -> None:
    """Raise ConfigError for a value that is out of range or contradicts another."""
    for role in options.roles:
        if role not in ROLES:
            raise ConfigError(f"roles: {role!r} is none of {', '.join(ROLES)}")
    for name in ("p2p", "rpc", "metrics", "admin"):
        try:
            parse_listen(getattr(options, name).listen)
        except ConfigError as error:
            raise ConfigError(f"{name}.listen: {error}") from None
    try:
        Proxies(options.rpc.trusted_proxies)
    except ConfigError as error:
        raise ConfigError(f"rpc.{error}") from None
    uploads = options.uploads
    for name in UploadOptions.__slots__:
        if getattr(uploads, name) < 0:
            raise ConfigError(f"uploads.{name}: 0 or more expected")
    if uploads.enabled and uploads.bytes_kept_max > options.p2p.blob_store_bytes_max:
        raise ConfigError("uploads.bytes_kept_max: more than p2p.blob_store_bytes_max")
    if not all(is_loopback(host) for host, _ in parse_listen(options.admin.listen)):
        raise ConfigError(f"admin.listen: {options.admin.listen!r} is not of the loopback interface")
    for name, peers in (("bootstrap", options.p2p.bootstrap), ("relays", options.p2p.relays)):
        for text in peers:
            _check_peer(f"p2p.{name}", parse_peer(text))
    for endpoint in options.p2p.advertise:
        try:
            _check_endpoint(endpoint)
        except DecodeError as error:
            raise ConfigError(f"p2p.advertise: {endpoint!r}: {error}") from None
    if options.signer.endpoint:
        parse_signer(options.signer.endpoint)
        parse_vote_key(options.signer.vote_key)
        if options.signer.vote_key_next and (
            parse_vote_key(options.signer.vote_key_next) == parse_vote_key(options.signer.vote_key)
        ):
            raise ConfigError("signer: vote_key_next is vote_key")
    elif options.signer.vote_key or options.signer.vote_key_next:
        raise ConfigError("signer: a vote_key without an endpoint")
    if not options.p2p.listen and not options.p2p.relays and not options.p2p.bootstrap:
        raise ConfigError("p2p: a node that does not listen needs relays or bootstrap peers")
    parse_operator(options.registry)
    if options.store.profile not in PROFILES:
        raise ConfigError(f"store.profile: {options.store.profile!r} is none of {', '.join(PROFILES)}")
    if options.sync.mode not in SYNC_MODES:
        raise ConfigError(f"sync.mode: {options.sync.mode!r} is none of {', '.join(SYNC_MODES)}")
    if options.sync.checkpoint:
        parse_checkpoint(options.sync.checkpoint)
    if options.log.level not in LOG_LEVELS:
        raise ConfigError(f"log.level: {options.log.level!r} is none of {', '.join(LOG_LEVELS)}")
    if options.log.format not in ("auto", "text", "json"):
        raise ConfigError(f"log.format: {options.log.format!r} is none of auto, text, json")
    if options.executor.engine not in ("auto", "numpy", "torch"):
        raise ConfigError(f"executor.engine: {options.executor.engine!r} is none of auto, numpy, torch")
    if options.executor.backend != "process":
        raise ConfigError(
            f"executor.backend: {options.executor.backend!r} is not known; this version has: process"
        )

    _check_bounds(options)
    _check_ports(options)


def _check_bounds(options: NodeOptions) -> None:
    values = flat_options(options)
    for name, (least, most) in BOUNDS.items():
        if not least <= values[name] <= most:
            raise ConfigError(f"{name}: {values[name]} is out of range; {least} to {most} expected")


def _check_ports(options: NodeOptions) -> None:
    """Raise ConfigError where two parts of the node would listen at one port."""
    taken: dict[int, list[tuple[str, str]]] = {}
    for name, listen in (
        ("p2p.listen", options.p2p.listen), ("rpc.listen", options.rpc.listen),
        ("metrics.listen", options.metrics.listen), ("admin.listen", options.admin.listen),
    ):  # fmt: skip
        for host, port in parse_listen(listen):
            for other, other_host in taken.get(port, ()) if port else ():
                if other != name and (host == other_host or {host, other_host} & _EVERYWHERE):
                    raise ConfigError(f"{other} and {name}: both have port {port}; two parts cannot listen at one")
            taken.setdefault(port, []).append((name, host))


def flat_options(options: DataclassInstance, before: str = "") -> dict[str, Any]:
    """Return the value of every option by its dotted name."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(options):
        value = getattr(options, f.name)
        name = before + f.name
        found |= flat_options(value, name + ".") if dataclasses.is_dataclass(value) else {name: value}  # type: ignore[arg-type]
    return found


def dump_options(options: DataclassInstance) -> str:
    """Return the TOML text of ``options``: only what differs from the defaults."""
    lines = [DUMP_HEAD]
    tables: list[str] = []
    for f in dataclasses.fields(options):
        value = getattr(options, f.name)
        if not dataclasses.is_dataclass(value):
            lines.append(f"{f.name} = {toml_value(value)}")
            continue
        default: Any = type(value)()  # type: ignore[misc]
        changed = [
            f"{g.name} = {toml_value(getattr(value, g.name))}"
            for g in dataclasses.fields(value)
            if getattr(value, g.name) != getattr(default, g.name)
        ]
        if changed:
            tables.append(f"\n[{f.name}]\n" + "\n".join(changed))
    return "\n".join(lines + tables) + "\n"


def toml_value(value: object) -> str:
    """Return the TOML of an option's value."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if value < 2**63 else f'"{value}"'
        case str():
            return _quote(value)
        case tuple():
            return "[" + ", ".join(_quote(str(item)) for item in value) + "]"
        case _:
            raise AssertionError(f"no TOML for {value!r}")


def _quote(text: str) -> str:
    plain = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in text)
    return f'"{plain}"'
