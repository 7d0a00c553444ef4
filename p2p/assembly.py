"""Builds the parts of one network in the order of their dependencies; ``p2p.service`` runs them."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from p2p.base.endpoint import parse_bootstrap
from p2p.base.limits import ReceiveMemory
from p2p.base.netgroups import Origin
from p2p.base.sockets import Connector, TcpDialer
from p2p.base.transport import Dialer
from p2p.config import NetworkConfig
from p2p.gossip.core import Gossip
from p2p.path.dialling import Dialling, DialState
from p2p.path.selection import PathSelection
from p2p.peers.admission import PeerAdmission
from p2p.peers.eviction import keyed_hash
from p2p.peers.gossip_service import GossipService
from p2p.peers.inbound import InboundConnections
from p2p.peers.lifecycle import PeerLifecycle
from p2p.peers.outbound import OutboundPeers
from p2p.peers.record_exchange import TOPIC_RECORD, RecordExchange
from p2p.peers.roster import Roster
from p2p.records.addrbook import AddressBook
from p2p.secure.identity import Identity
from p2p.session.bulk_connections import MessageHandler
from p2p.session.handshaker import Handshaker
from p2p.session.outbox import Outbox
from p2p.session.peer import PeerCallbacks
from p2p.session.requests import Served

__all__ = ["Environment", "NetworkParts", "assemble"]


@dataclass(frozen=True, slots=True)
class Environment:
    """Inputs of the parts from outside: clock, randomness, connections to other hosts, logging."""

    identity: Callable[[], Identity]
    """The node's identity with its current certificate."""
    connector: Connector
    dialers: Mapping[str, Dialer]
    """By the scheme of their endpoints, beside ``tcp``."""
    origin_of: Callable[[str], Origin]
    now_ms: Callable[[], int]
    random: Random
    counters: Counter[str]
    log: Callable[..., None]


@dataclass(frozen=True, slots=True)
class NetworkParts:
    """The parts of one network; nothing runs yet."""

    handlers: dict[int, MessageHandler]
    """By the message kind that each handles."""
    served: dict[str, Served]
    """By the request method that each answers."""
    memory: ReceiveMemory
    roster: Roster
    book: AddressBook
    records: RecordExchange
    outbox: Outbox
    gossip: GossipService
    dialling: Dialling
    path_selection: PathSelection
    admission: PeerAdmission
    lifecycle: PeerLifecycle
    inbound: InboundConnections
    outbound: OutboundPeers


def assemble(config: NetworkConfig, environment: Environment) -> NetworkParts:
    """Build all parts of a network. Raises ConfigError for an invalid bootstrap peer."""
    limits, identity = config.limits, environment.identity
    counters, random, log = environment.counters, environment.random, environment.log
    handlers: dict[int, MessageHandler] = {}
    served: dict[str, Served] = {}
    memory, outbox = ReceiveMemory(limits.receive_bytes_max), Outbox(limits)
    own = identity()
    roster = Roster(own.address, limits=limits, counters=counters, log=log)
    book = AddressBook(
        key=secrets.token_bytes(32), genesis_hash=own.genesis_hash, is_kept=roster.is_persistent
    )  # fmt: skip
    core = Gossip(random=random, now=0.0, parameters=config.gossip)
    gossip = GossipService(core, roster, limits=limits, counters=counters)
    records = RecordExchange(
        book, path=None if config.data_dir is None else config.data_dir / "peers", identity=identity,
        limits=limits, random=random, now_ms=environment.now_ms,
        publish=lambda data: gossip.publish(TOPIC_RECORD, (data,)), blame=gossip.blame,
        is_kept=roster.is_persistent, log=log,
    )  # fmt: skip
    handshaker = Handshaker(
        identity, timeout_s=limits.handshake_timeout_s, now_ms=environment.now_ms, counters=counters
    )
    dialling = Dialling(
        limits=limits, dialers={"tcp": TcpDialer(environment.connector), **environment.dialers}, book=book,
        counters=counters, handshake=handshaker.dialled, log=log,
    )  # fmt: skip
    for address, endpoint in map(parse_bootstrap, config.bootstrap):
        dialling.states[address or endpoint] = DialState(address, (endpoint,))
    path_selection = PathSelection(
        dialling, roster.peers, limits=limits, random=random, counters=counters, log=log
    )
    admission = PeerAdmission(
        roster, limits=limits, certificates=records, score=core.score, origin_of=environment.origin_of,
        draw=keyed_hash(secrets.token_bytes(32)),
    )  # fmt: skip
    callbacks = PeerCallbacks(
        handlers=handlers, gossip=gossip.receive, served=served.get, find_path=path_selection.find_path,
        left_silent=path_selection.left_silent, open_bulk_connections=path_selection.open_bulk_connections,
        replace_suspected=path_selection.replace_suspected, answer_request=path_selection.answer_request,
        take_offered_paths=path_selection.take_offered_paths,
    )  # fmt: skip
    lifecycle = PeerLifecycle(
        roster,
        admission,
        gossip,
        outbox,
        callbacks=callbacks,
        memory=memory,
        limits=limits,
        counters=counters,
        log=log,
    )
    inbound = InboundConnections(
        roster, handshaker, path_selection, live=lifecycle.live, limits=limits, counters=counters, log=log
    )  # fmt: skip
    outbound = OutboundPeers(
        roster, dialling, book, live=lifecycle.live, limits=limits, random=random, counters=counters
    )  # fmt: skip
    roster.watch(outbound.on_peer)
    records.watch(on_news=outbound.wake, on_revoked=lifecycle.recheck)
    return NetworkParts(
        handlers=handlers, served=served, memory=memory, roster=roster, book=book, records=records, outbox=outbox,
        gossip=gossip, dialling=dialling, path_selection=path_selection, admission=admission, lifecycle=lifecycle,
        inbound=inbound, outbound=outbound,
    )  # fmt: skip
