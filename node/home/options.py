"""A node's own options: a frozen dataclass for each part of the node.

Chain parameters are not here: they stand in the genesis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

__all__ = [
    "NODE",
    "RELAY",
    "SIGNER",
    "AdminOptions",
    "DeveloperOptions",
    "ExecutorOptions",
    "HistoryOptions",
    "KeyOptions",
    "LogOptions",
    "MempoolOptions",
    "MetricsOptions",
    "NetworkOptions",
    "NodeOptions",
    "ProcessOptions",
    "RegistryOptions",
    "RpcOptions",
    "SignerOptions",
    "SyncOptions",
    "UploadOptions",
    "listen_option",
]

NODE: Final = "node"
RELAY: Final = "relay"
SIGNER: Final = "signer"
"""The kinds of homes, as the option ``kind`` of config.toml names them."""


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
class UploadOptions:
    """Blobs that the gateway takes from requesters without a node; a blob counts as a whole piece at least."""

    enabled: bool = False
    bytes_per_blob_max: int = 256 * 1024**2
    bytes_per_account_day_max: int = 1024**3
    bytes_per_caller_day_max: int = 2 * 1024**3
    """Of one IPv4 address, or /64 of IPv6; 0: no limit, behind a proxy."""
    bytes_per_day_max: int = 32 * 1024**3
    bytes_kept_max: int = 16 * 1024**3
    """Of all uploads that are kept at once."""
    balance_min: int = 10**18
    """What the account must own that signs for an upload: one that could pay a task (10^-18 DKB)."""
    keep_s: int = 24 * 3_600
    """How long a blob stays that no task of its account refers to."""


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

    KIND: ClassVar[str] = NODE

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
