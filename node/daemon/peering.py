"""A node's connection to its peers: identity, peer network, relays and reachability."""

from __future__ import annotations

import time
from typing import Final

import structlog
import trio

from node.daemon.reachability import Reachability, RelayOutage, assess_reachability
from node.home.config import parse_host_port, parse_listen, parse_peer
from node.home.keys import node_secret
from node.home.options import NodeOptions
from node.home.paths import Home
from p2p.base.endpoint import Endpoint
from p2p.base.limits import NetworkLimits
from p2p.base.sockets import Connector
from p2p.path.dial_back import DialBack
from p2p.path.hole_punch import HolePuncher
from p2p.secure.identity import Identity, Role
from p2p.service import Network, NetworkConfig, dial_policy_of
from relay.client.client import RelayClient
from relay.client.publisher import FanoutClient
from state.primitives.keys import SecretKey

__all__ = ["Peering"]

BLOB_UPLINK_PERCENT: Final = 70
"""Share of the line's upload rate that blobs may use; the rest is for the chain."""
CERTIFICATE_RENEWAL_S: Final = 24 * 3_600.0
ROLES: Final = {"validator": Role.VALIDATOR, "compute": Role.WORKER, "relay": Role.RELAY, "storage": Role.ARCHIVE}


class Peering:
    """The peer network with its relays, built from a node's options and identity. ``network.run`` runs it."""

    def __init__(self, home: Home, options: NodeOptions, account: SecretKey, chain_hash: bytes) -> None:
        self._home = home
        self._options = options
        self._account = account
        self._chain_hash = chain_hash
        self.identity = self._make_identity()
        relays = [_relay_endpoint(text) for text in options.p2p.relays]
        config = _network_config(home, options)
        log = structlog.get_logger("p2p")
        connector = Connector(dial_policy_of(config, relays))
        client = RelayClient(lambda: self.identity, relays, connect=connector.connect)
        puncher = HolePuncher(
            lambda: [*(reservation.endpoint for reservation in client.reservations), *network.dialled],
            look_up=connector.look_up,
        )
        reach = DialBack(log=log.info, on_change=lambda: client.need(not reach.is_confirmed))
        network = Network(
            config,
            self.identity,
            dialers={"relay": client, "punch": puncher},
            acceptors=(client, puncher, reach),
            fanout=FanoutClient(lambda: self.identity, on_published=client.published, connect=connector.connect),
            connector=connector,
            log=log.debug,
        )
        network.on_paths(lambda _target, known: client.two_relay_paths(known))
        client.on_leaving(network.leave)
        puncher.attach(network)
        reach.attach(network)
        network.on_roam(client.roamed)
        network.on_roam(reach.roamed)
        self.network, self.relays, self.reach = network, client, reach

    def reachability(self) -> Reachability:
        """Return how peers reach this node."""
        began_s = time.time() - trio.current_time()
        down = []
        for relay in self.relays.down:
            since_s = began_s + relay.since_s
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(since_s))
            down.append(RelayOutage(str(relay.endpoint), since, round(since_s * 1000), relay.why))
        return assess_reachability(
            listens=bool(self._options.p2p.listen),
            configured=self.network.direct,
            verdicts=self.reach.verdicts,
            relays=[reservation.endpoint for reservation in self.relays.reservations],
            down=down,
        )

    def _make_identity(self) -> Identity:
        roles = Role(0)
        for role in self._options.roles:
            roles |= ROLES.get(role, Role(0))
        return Identity.create(
            self._account,
            genesis_hash=self._chain_hash,
            now_ms=time.time_ns() // 1_000_000,
            roles=roles,
            node_secret=node_secret(self._home),
        )

    async def renew_certificates(self) -> None:
        """Sign a new certificate for the transport keys each day, until cancelled."""
        while True:
            await trio.sleep(CERTIFICATE_RENEWAL_S)
            self.identity = self._make_identity()
            self.network.renew(self.identity)


def _relay_endpoint(text: str) -> Endpoint:
    peer = parse_peer(text)
    host, port = parse_host_port(peer.endpoint.removeprefix("tcp:"))
    return Endpoint(host, port, peer.address)


def _network_config(home: Home, options: NodeOptions) -> NetworkConfig:
    p2p = options.p2p
    return NetworkConfig(
        listen=parse_listen(p2p.listen),
        advertise=p2p.advertise,
        bootstrap=p2p.bootstrap,
        dial_inner=p2p.dial_inner,
        data_dir=home.peers,
        blob_dir=home.blobs,
        blob_budget_bytes=p2p.blob_store_bytes_max,
        limits=NetworkLimits(
            peers_in_max=p2p.inbound_max,
            peers_out_target=p2p.outbound_max,
            blob_upload_bytes_per_s=p2p.uplink_mbit_per_s * 1_000_000 // 8 * BLOB_UPLINK_PERCENT // 100,
        ),
    )
