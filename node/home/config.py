"""Reads, checks and writes the options of a home: one TOML file, read once at the start."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import tomllib
import types
import typing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

from node.home.files import read_bounded
from node.home.kind import CONFIG_LIMIT_BYTES, KIND_OPTION, check_kind, made_by
from node.home.options import DockerOptions, KubernetesOptions, NodeOptions, RegistryOptions, UploadOptions
from rpc.gateway.limits import Proxies, is_loopback
from state.primitives.address import format_address, parse_address
from state.primitives.errors import ConfigError, DecodeError
from state.primitives.keys import SIGNATURE_BYTES, VOTE_KEY_BYTES
from state.primitives.listen import parse_host_port, parse_listen
from tasks.executor.containers.egress.addresses import Network, parse_network
from tasks.executor.containers.errors import ContainerRefused
from tasks.executor.containers.mirrors import Mirrors, parse_mirrors
from tasks.executor.measures import MEASURES
from tasks.kinds.egress import EGRESS_MAX, entry_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    class HomeOptions(DataclassInstance, Protocol):
        """All options in the config.toml of one kind of home."""

        KIND: ClassVar[str]


__all__ = [
    "AMOUNT_MAX",
    "LOG_LEVELS",
    "Checkpoint",
    "PeerAddress",
    "SignerEndpoint",
    "check_options",
    "dump_options",
    "flat_options",
    "load_options",
    "load_table",
    "mirrors_of",
    "parse_barred",
    "parse_checkpoint",
    "parse_egress",
    "parse_host_port",
    "parse_listen",
    "parse_operator",
    "parse_payout",
    "parse_peer",
    "parse_signer",
    "parse_until",
    "parse_vote_key",
    "read_table",
    "toml_value",
]

_Options = TypeVar("_Options", bound="HomeOptions")
DUMP_HEAD: Final = "# Missing options have their defaults: docs/operations.md. Changes need a restart."
TOLD_MAX: Final = 200
"""Characters of an error text about a file that are shown."""
DIGITS_MAX: Final = 78
"""Digits of a number written as text; an amount of 256 bits has at most this many."""
PROTOCOL_VERSION_MAX: Final = 255
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  compared, not listened at
PROFILES: Final = ("archive", "full", "light")
"""The profiles of ``state.store.profiles``, repeated because that module imports the database. Wallet commands
read options too."""
SYNC_MODES: Final = ("auto", "state", "blocks")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
ROLES: Final = ("validator", "compute", "verify", "relay", "storage")


BARRED_MAX: Final = 64
"""Networks that an owner bars."""
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
    "storage.bytes_kept_max": (0, _BYTES_MAX),
    "executor.jobs_max": (0, 1_024),
    "executor.verifications_max": (0, 1_024),
    "executor.docker.disk_gib": (1, 1 << 20),
    "executor.docker.image_gib": (1, 1 << 20),
    "executor.docker.notice_s": (0, 600),
    "executor.docker.egress_gib": (1, 1 << 20),
    "executor.docker.egress_mbit_per_s": (1, 10_000_000),
    "executor.kubernetes.gpus": (0, 64),
    "executor.kubernetes.disk_gib": (1, 1 << 20),
    "executor.kubernetes.reserve_percent": (0, 100),
    "executor.kubernetes.reserve_gpus": (0, 64),
    "executor.kubernetes.tasks_max": (1, 1_024),
    "executor.kubernetes.gpu_lanes": (0, 32),
    "executor.kubernetes.notice_s": (0, 600),
    "executor.kubernetes.egress_gib": (1, 1 << 20),
    "executor.kubernetes.egress_mbit_per_s": (1, 10_000_000),
    "registry.price_per_tera_unit": (0, 1 << 100),
    "registry.stake": (0, AMOUNT_MAX),
    "processes.signature_workers": (0, 256),
    "developer.protocol_version": (0, PROTOCOL_VERSION_MAX),
}
"""Minimum and maximum of each numeric option. Memory, clocks and queues allow no more."""


class PeerAddress(typing.NamedTuple):
    """A peer's address (20 bytes) and its endpoint."""

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
    """Raise ConfigError for a peer that cannot be dialled: a missing or impossible port."""
    try:
        _check_endpoint(peer.endpoint)
    except DecodeError:
        raise ConfigError(f"{where}: '{peer}': 0xADDRESS@host:port expected") from None


def _check_endpoint(text: str) -> None:
    """Raise DecodeError for text that is not an endpoint, with or without ``tcp:``."""
    from p2p.base.endpoint import Endpoint

    Endpoint.named(text)


class SignerEndpoint(typing.NamedTuple):
    """A signer's endpoint: a Unix socket, or host and port with the address that the signer proves."""

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
    """The last block of an epoch that the operator trusts."""

    height: int
    block_hash: bytes


def parse_checkpoint(text: str, what: str = "HEIGHT:HASH of the last block of an epoch") -> Checkpoint:
    """Return the checkpoint of "HEIGHT:HASH". Raises ConfigError, which names ``what`` as expected."""
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


def parse_payout(registry: RegistryOptions) -> bytes | None:
    """Return the account that earnings are to go to, None where the file names none. Raises ConfigError."""
    if not registry.payout:
        return None
    try:
        return parse_address(registry.payout)
    except DecodeError as error:
        raise ConfigError(f"registry.payout: {error}") from None


def parse_until(text: str) -> datetime | None:
    """Return the time of ``executor.docker.until``, None for an empty text. Raises ConfigError."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ConfigError(
            f"executor.docker.until: a time with its zone expected, as 2027-01-31T08:00+01:00, not {text[:40]!r}"
        )
    return found


def parse_egress(lent: DockerOptions | KubernetesOptions) -> tuple[str, ...]:
    """Return the patterns of names that containers may reach, sorted. Raises ConfigError."""
    found, name = set(), f"{_table_of(lent)}.egress"
    for text in lent.egress:
        pattern = entry_of(text, is_pattern=True)
        if pattern is None:
            raise ConfigError(f"{name}: name, name:port, *.name:port or * expected, not {text[:60]!r}")
        found.add(pattern)
    if len(found) > EGRESS_MAX:
        raise ConfigError(f"{name}: {len(found)} patterns, at most {EGRESS_MAX}")
    return tuple(sorted(found))


def parse_barred(lent: DockerOptions | KubernetesOptions) -> tuple[Network, ...]:
    """Return the networks that no name may lead into. Raises ConfigError."""
    name = f"{_table_of(lent)}.egress_barred"
    if len(lent.egress_barred) > BARRED_MAX:
        raise ConfigError(f"{name}: at most {BARRED_MAX} networks")
    found = []
    for text in lent.egress_barred:
        network = parse_network(text)
        if network is None:
            raise ConfigError(f"{name}: a network as 192.0.2.0/24 expected, not {text[:60]!r}")
        found.append(network)
    return tuple(found)


def mirrors_of(lent: DockerOptions | KubernetesOptions) -> Mirrors:
    """Return where images are pulled instead. Raises ConfigError."""
    try:
        return parse_mirrors(lent.mirrors)
    except ContainerRefused as error:
        raise ConfigError(f"{_table_of(lent)}.mirrors: {error}") from None


def _table_of(lent: DockerOptions | KubernetesOptions) -> str:
    return "executor.docker" if isinstance(lent, DockerOptions) else "executor.kubernetes"


def parse_operator(registry: RegistryOptions) -> tuple[bytes, bytes] | None:
    """Return the operator's address and its signature; None if the node is its own operator.

    Raises ConfigError.
    """
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

    Raises ConfigError naming the file and the option: unknown, of the wrong type, or out of range.
    """
    options = load_table(path, NodeOptions)
    try:
        check_options(options)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return options


def load_table(path: Path, cls: type[_Options]) -> _Options:
    """Return options of type ``cls`` with a TOML file's values over the defaults.

    Raises ConfigError, also for the file of another kind of home.
    """
    try:
        data = read_bounded(path, CONFIG_LIMIT_BYTES)
        if len(data) > CONFIG_LIMIT_BYTES:
            raise ConfigError("file too large")
        document = _parse(data.decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `{made_by(cls.KIND)}` makes one") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not UTF-8 text (line {line}); options in TOML expected") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    check_kind(path, document, cls.KIND)
    try:
        return _options(cls, document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error)[:TOLD_MAX]}") from None


def read_table(text: str, cls: type[_Options]) -> _Options:
    """Return options of type ``cls`` with the values of TOML text over the defaults. The kind is not checked.

    Raises ConfigError.
    """
    return _options(cls, _parse(text))


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of too many digits is no TOMLDecodeError
        raise ConfigError(str(error)[:TOLD_MAX]) from None


def _options(cls: type[_Options], document: dict[str, Any]) -> _Options:
    options: _Options = _build(cls, {name: value for name, value in document.items() if name != KIND_OPTION}, "")
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
    """Join a list of addresses into the text form of the option."""
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
        raise ConfigError(f"admin.listen: {options.admin.listen!r} is not on the loopback interface")
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
            raise ConfigError("signer: vote_key_next equals vote_key")
    elif options.signer.vote_key or options.signer.vote_key_next:
        raise ConfigError("signer: vote_key is set without endpoint")
    if not options.p2p.listen and not options.p2p.relays and not options.p2p.bootstrap:
        raise ConfigError("p2p: a node without p2p.listen needs relays or bootstrap peers")
    parse_operator(options.registry)
    parse_payout(options.registry)
    parse_until(options.executor.docker.until)
    for lent in (options.executor.docker, options.executor.kubernetes):
        parse_egress(lent)
        parse_barred(lent)
        mirrors_of(lent)
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
    for measure in options.executor.isolation:
        if measure not in MEASURES:
            raise ConfigError(f"executor.isolation: {measure!r} is none of {', '.join(MEASURES)}")
    docker = options.executor.docker
    for name, value in (("on_desktop_use", docker.on_desktop_use), ("on_gpu_use", docker.on_gpu_use)):
        if value not in ("ignore", "yield", "leave"):
            raise ConfigError(f"executor.docker.{name}: {value!r} is none of ignore, yield, leave")
    if docker.on_load not in ("ignore", "yield"):
        raise ConfigError(f"executor.docker.on_load: {docker.on_load!r} is none of ignore, yield")
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
    """Raise ConfigError if two components of the node would listen on one port."""
    taken: dict[int, list[tuple[str, str]]] = {}
    for name, listen in (
        ("p2p.listen", options.p2p.listen), ("rpc.listen", options.rpc.listen),
        ("metrics.listen", options.metrics.listen), ("admin.listen", options.admin.listen),
    ):  # fmt: skip
        for host, port in parse_listen(listen):
            for other, other_host in taken.get(port, ()) if port else ():
                if other != name and (host == other_host or {host, other_host} & _EVERYWHERE):
                    raise ConfigError(
                        f"{other} and {name}: both use port {port}; choose another one for one of them"
                    )
            taken.setdefault(port, []).append((name, host))


def flat_options(options: DataclassInstance, before: str = "") -> dict[str, Any]:
    """Return the value of every option by its dotted name."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(options):
        value = getattr(options, f.name)
        name = before + f.name
        found |= flat_options(value, name + ".") if dataclasses.is_dataclass(value) else {name: value}  # type: ignore[arg-type]
    return found


def dump_options(options: HomeOptions) -> str:
    """Return ``options`` as TOML text: the kind of the home, and the values that differ from the defaults."""
    lines = [DUMP_HEAD, f"{KIND_OPTION} = {toml_value(options.KIND)}"]
    tables: list[str] = []
    for f in dataclasses.fields(options):
        value = getattr(options, f.name)
        if not dataclasses.is_dataclass(value):
            lines.append(f"{f.name} = {toml_value(value)}")
            continue
        tables += _dump_table(value, f.name)
    return "\n".join(lines + tables) + "\n"


def _dump_table(value: Any, where: str) -> list[str]:
    """Return the table of some options with the values that differ from the defaults, then the tables in it."""
    default, changed, inner = type(value)(), [], []
    for f in dataclasses.fields(value):
        found = getattr(value, f.name)
        if dataclasses.is_dataclass(found):
            inner += _dump_table(found, f"{where}.{f.name}")
        elif found != getattr(default, f.name):
            changed.append(f"{f.name} = {toml_value(found)}")
    return ([f"\n[{where}]\n" + "\n".join(changed)] if changed else []) + inner


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
