"""A node's own options: one frozen dataclass for each part of the node.

Chain parameters are in the genesis, not here.
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
    "StorageOptions",
    "SyncOptions",
    "UploadOptions",
    "listen_option",
]

NODE: Final = "node"
RELAY: Final = "relay"
SIGNER: Final = "signer"
"""The kinds of homes, as the option ``kind`` of config.toml names them."""


def listen_option(default: str = "") -> Any:
    """Return a field for listening addresses: "host:port", several separated by commas, or a TOML list."""
    return field(default=default, metadata={"is_listen": True})


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """Key files, relative to the node's home. Each is a keystore v3 file; all have the same passphrase."""

    account: str = "keys/account.json"
    vote: str = "keys/vote.json"
    vote_next: str = ""
    """The vote key that replaces ``vote`` in the first epoch that seats it (``dekube tx rotate-keys``)."""
    passphrase_file: str = "keys/passphrase"  # noqa: S105  a path
    """Mode 0600. Empty: prompt on the terminal."""


@dataclass(frozen=True, slots=True)
class SignerOptions:
    """Location of a validator's vote key outside this process (``dekube signer run``)."""

    endpoint: str = ""
    """"unix:PATH" (relative to the home) or "0xADDRESS@tcp:host:port". Empty: the key is in the node."""
    vote_key: str = ""
    """The public vote key (0x and 64 hex digits) that the signer must have."""
    vote_key_next: str = ""
    """Another key of the signer that replaces ``vote_key`` in the first epoch that seats it."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """Peers and relays."""

    listen: str = listen_option(":26656")
    """host:port for inbound connections. Without host: all IPv4 and IPv6 addresses. Empty: accept none; the node
    reserves at relays."""
    advertise: tuple[str, ...] = ()
    """Endpoints ("tcp:host:port") announced to peers. Empty: the listening address unless it is a wildcard."""
    bootstrap: tuple[str, ...] = ()
    """First peers: "0xADDRESS@tcp:host:port"."""
    relays: tuple[str, ...] = ()
    """Relays to reserve at: "0xADDRESS@host:port"."""
    dial_inner: bool = False
    """Dial private and loopback addresses that peers announce. Implied if the options above name such
    addresses."""
    inbound_max: int = 64
    outbound_max: int = 12
    blob_store_bytes_max: int = 64 * 1024**3
    uplink_mbit_per_s: int = 0
    """Upload rate of this machine's line; blobs get a share of it. 0: unknown, blobs are not paced."""


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """The gateway process for JSON-RPC, REST and health."""

    listen: str = listen_option("127.0.0.1:8545")
    """host:port; several as a list. Without host: all IPv4 and IPv6 addresses. Empty: no gateway."""
    cors: tuple[str, ...] = ("*",)
    hosts: tuple[str, ...] = ()
    """Further Host header values to accept beside the loopback names."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of trusted proxies: their last X-Forwarded-For entry is the client. From others the header is
    ignored."""
    connections_max: int = 16_384
    connections_per_address_max: int = 512
    """An address is an IPv4 address or an IPv6 /64. 0: no limit."""
    units_per_s: int = 5_000
    """Cost units that an address regains per second; a simple request costs one. 0: no limit."""
    units_burst: int = 20_000
    requests_per_address_max: int = 2_000
    """Concurrent requests. 0: no limit."""
    filters_per_address_max: int = 100
    subscriptions_per_address_max: int = 1_024
    """Over all WebSockets of an address. 0: no limit."""
    ready_peers_min: int = 1
    """Minimum number of peers for /readyz to succeed."""


@dataclass(frozen=True, slots=True)
class UploadOptions:
    """Blobs that the gateway accepts from requesters without a node. A blob counts as at least one whole piece."""

    enabled: bool = False
    bytes_per_blob_max: int = 1024**3
    bytes_per_account_day_max: int = 1024**3
    bytes_per_caller_day_max: int = 2 * 1024**3
    """For one IPv4 address or IPv6 /64. 0: no limit, for a gateway behind a proxy."""
    bytes_per_day_max: int = 32 * 1024**3
    bytes_kept_max: int = 16 * 1024**3
    """All kept uploads together."""
    balance_min: int = 10**18
    """Minimum balance of the account that signs for an upload, so that it could pay a task (10^-18 DKB)."""
    keep_s: int = 24 * 3_600
    """How long a blob is kept while no task of its account refers to it."""


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """The owner's methods as JSON-RPC. The control socket offers them without this option."""

    listen: str = listen_option()
    """host:port on the loopback interface. Empty: none. The token is in run/admin.token."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The Prometheus endpoint of the node process."""

    listen: str = listen_option("127.0.0.1:9100")
    """host:port; several as a list. Without host: all addresses. Empty: none."""


@dataclass(frozen=True, slots=True)
class MempoolOptions:
    """Limits of pending transactions."""

    transactions_max: int = 50_000
    bytes_max: int = 64 * 1024 * 1024
    keep_local: bool = True
    """Keep transactions submitted at this node's gateway across a restart."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """How much history the node keeps."""

    profile: str = "full"
    """archive, full or light."""
    epochs: int = 168
    """Epochs whose blocks the profile full keeps."""


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """How a node begins on an old chain, and what it keeps for other new nodes."""

    mode: str = "auto"
    """auto, state (never sync all blocks from the genesis) or blocks (never fetch the state)."""
    checkpoint: str = ""
    """HEIGHT:HASH of the last block of an epoch that the operator trusts. Empty: the genesis."""
    snapshots: int = 3
    """Snapshots kept for peers; 0: none are made."""


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """Containers of strangers on a Docker engine of this machine (docs/operations.md)."""

    enabled: bool = False
    socket: str = "/var/run/docker.sock"
    images: tuple[str, ...] = ("*",)
    """Repositories that may run; one that ends with ``*`` stands for all that begin so."""
    mirrors: tuple[str, ...] = ()
    """Where images are pulled instead, by the same digest: ``docker.io=mirror.example/hub``."""
    disk_gib: int = 64
    """Half for images, half for the disks of containers."""
    image_gib: int = 16
    """An image that has more unpacked is refused."""
    logins: str = ""
    """File of logins for registries, like Docker's config.json, readable by its owner alone."""
    root_allowed: bool = True
    """Run user 0 without rights on an engine without user namespaces; false: refuse it."""
    gpus: tuple[str, ...] = ()
    """Ids of the GPUs that containers may have."""
    egress: tuple[str, ...] = ()
    """Names that containers may reach: name:port, ``*.name:port``, or ``*`` for all; without a port 443."""
    egress_barred: tuple[str, ...] = ()
    """Networks that no such name may lead into, beside private and special ones."""
    egress_gib: int = 64
    """Most that a container sends and receives."""
    egress_mbit_per_s: int = 1_000
    """Most that it sends and receives in a second."""
    on_desktop_use: str = "yield"
    """Somebody sits at the machine: ignore it, yield (the least share of the processor), or leave the task."""
    on_gpu_use: str = "yield"
    """Other programs compute or draw on a card: the same."""
    on_load: str = "yield"
    """Who is logged in uses half of the cores: ignore it, or yield."""
    notice_s: int = 60
    """Seconds that a container has to end when the machine is taken back (`dekube worker leave`)."""
    until: str = ""
    """Until when the machine stays with its containers (ISO 8601 with a zone); leaving earlier costs.

    Empty: it may leave at any time."""


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """Containers of strangers in a Kubernetes cluster (docs/operations.md)."""

    enabled: bool = False
    kubeconfig: str = ""
    """File with a token or a certificate. Empty: the account of the pod in which the node runs."""
    prefix: str = "dekube"
    """How the namespaces of this node begin: each task has one."""
    images: tuple[str, ...] = ("*",)
    """Repositories that may run; one that ends with ``*`` stands for all that begin so."""
    mirrors: tuple[str, ...] = ()
    """Where images of tasks are pulled instead, by the same digest: ``docker.io=mirror.example/hub``."""
    helper_image: str = ""
    """Image by digest that carries inputs and outputs: ``sh``, ``tar``, ``head``, ``sha256sum``, ``stat``."""
    runtime_class: str = ""
    """RuntimeClass of the pods. Empty: the cluster's own."""
    gpus: int = 0
    """GPUs that one container may have."""
    gpu_resource: str = "nvidia.com/gpu"
    disk_gib: int = 64
    """Disk that one container may have."""
    unisolated_allowed: bool = False
    """Lend also where network policies have no effect, to tasks that allow it; false: lend nothing there."""
    node_selector: tuple[str, ...] = ()
    """Labels (``name=value``) that machines must have: others are not sold."""
    tolerations: tuple[str, ...] = ()
    """Taints of machines that are sold all the same: ``key=value:Effect``, ``key:Effect`` or ``key``."""
    priority_class: str = "dekube"
    """PriorityClass of the pods, below the cluster's own work. Made if it is missing. Empty: the cluster's own."""
    storage_class: str = ""
    """StorageClass of the disks of containers. Empty: the disk of the machine."""
    reserve_percent: int = 0
    """Share of the cores, memory and disk of each machine that is not sold."""
    reserve_gpus: int = 0
    """GPUs of each machine that are not sold."""
    tasks_max: int = 16
    """Tasks at once; the chain bounds them too."""
    registry: str = ""
    """Where this node pushes images that come as files: https://HOST/PATH. Pods pull them from there."""
    logins: str = ""
    """File with the login for that registry, like Docker's config.json, readable by its owner alone."""
    gpu_lanes: int = 16
    """PCIe lanes of each GPU, which no cluster tells. Below 8 no task of several GPUs comes."""
    egress: tuple[str, ...] = ()
    """Names that containers may reach: name:port, ``*.name:port``, or ``*`` for all; without a port 443."""
    egress_barred: tuple[str, ...] = ()
    """Networks that no such name may lead into, beside private and special ones."""
    egress_gib: int = 64
    """Most that a container sends and receives."""
    egress_mbit_per_s: int = 1_000
    """Most that it sends and receives in a second."""
    notice_s: int = 60
    """Seconds that a container has to end when the cluster is taken back (`dekube worker leave`)."""


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Jobs on this machine."""

    backend: str = "process"
    engine: str = "auto"
    """auto, numpy or torch."""
    isolation: tuple[str, ...] = ()
    """Measures without which no job may run here (docs/operations.md); all others are taken where they can be."""
    jobs_max: int = 1
    verifications_max: int = 1
    docker: DockerOptions = field(default_factory=DockerOptions)
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)

    @property
    def notice_s(self) -> int:
        """Seconds that a container has to end when its machine is taken back."""
        return self.lent.notice_s

    @property
    def lent(self) -> DockerOptions | KubernetesOptions:
        """The engine or the cluster whose options count."""
        return self.kubernetes if self.kubernetes.enabled else self.docker

    @property
    def lends_containers(self) -> bool:
        """Whether an engine or a cluster is lent."""
        return self.docker.enabled or self.kubernetes.enabled


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """What a machine with role storage keeps for others: outputs of tasks, and shares of their keys."""

    bytes_kept_max: int = 32 * 1024**3
    """It signs for no output, and keeps no share with its input, beyond that."""


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """This machine's entry in the on-chain registry (roles compute and verify)."""

    auto_register: bool = True
    price_per_tera_unit: int = 25 * 10**14
    """Price of 10^12 work units: 0.36 DKB for an hour of a core that does 4 * 10^10 of them a second."""
    stake: int = 0
    """Stake to lock at registration, in 10^-18 DKB."""
    sponsored: bool = False
    """Register without a bond: another account bonds for this machine (`dekube worker terms`)."""
    operator: str = ""
    """The account that operates several machines, which never check each other. Empty: this node's own."""
    operator_consent: str = ""
    """Output of `dekube worker endorse` for this machine, made with the operator's key."""
    payout: str = ""
    """The account that this machine's earnings go to; empty: the operator, or the node's own."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Child processes beside the node."""

    signature_workers: int = 1
    """0: verify signatures in the node process."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Structured logs on standard error."""

    level: str = "info"
    format: str = "auto"
    """auto (text on a terminal, else json), text or json."""


@dataclass(frozen=True, slots=True)
class DeveloperOptions:
    """For rehearsals of upgrades. Refused on a chain that is not a test network."""

    protocol_version: int = 0
    """Accept and signal protocol versions up to this one, with the rules of this release. 0: only its own
    version."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """All options of ``dekube node run``."""

    KIND: ClassVar[str] = NODE

    roles: tuple[str, ...] = ("verify",)
    check_invariants: bool = True
    """Check money conservation after every block. Each check reads all open tasks."""
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
    storage: StorageOptions = field(default_factory=StorageOptions)
    registry: RegistryOptions = field(default_factory=RegistryOptions)
    processes: ProcessOptions = field(default_factory=ProcessOptions)
    log: LogOptions = field(default_factory=LogOptions)
    developer: DeveloperOptions = field(default_factory=DeveloperOptions)
