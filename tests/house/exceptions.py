"""What is let off a rule of the house, each with its reason. An entry that is no longer needed is an error."""

from __future__ import annotations

from typing import Final

LONG_FUNCTIONS: Final[dict[str, str]] = {}
LONG_FILES: Final[dict[str, str]] = {}
LARGE_CLASSES: Final[dict[str, str]] = {}
IMPURE: Final[dict[str, str]] = {
    "p2p.assembly": "builds the parts that reach the network, and draws their keys",
    "p2p.base.listening": "opens listening sockets",
    "p2p.base.sockets": "opens and tunes TCP sockets",
    "p2p.base.transport": "the interfaces of dialers and acceptors, whose streams are trio's",
    "p2p.blob.store": "keeps blobs in files, locked between threads",
    "p2p.blob.transfer": "requests pieces of blobs from peers (trio)",
    "p2p.gossip.validation": "runs one validator a topic (trio); the queue is p2p.gossip.validation_queue",
    "p2p.multicast.service": "runs p2p.multicast.core between peers and relays (trio, fresh keys)",
    "p2p.path.dial_back": "dials back and asks to be dialled (trio); what follows is p2p.path.endpoint_status",
    "p2p.path.dialling": "dials (trio); the choice of paths is p2p.path.paths",
    "p2p.path.hole_punch": "opens sockets on both ends of a NAT",
    "p2p.path.steering": "opens and moves connections (trio) as p2p.path.paths and p2p.path.bulk_plan say",
    "p2p.peers.accepting": "accepts connections (trio)",
    "p2p.peers.admission": "judges live connections and peers; the choice is p2p.peers.eviction",
    "p2p.peers.gossip_service": "runs p2p.gossip.core between peers and validators (trio)",
    "p2p.peers.lifecycle": "runs peers (trio)",
    "p2p.peers.outbound": "dials peers (trio)",
    "p2p.peers.record_exchange": "exchanges records with peers and keeps them in files (trio)",
    "p2p.peers.roster": "the table of running peers; waits for changes (trio)",
    "p2p.service": "starts the network: draws keys, listens, dials (trio)",
    "p2p.session.bulk_connections": "reads and writes connections (trio); the order is p2p.session.bulk_streams",
    "p2p.session.connection": "one connection's stream (trio) and fresh ping tokens",
    "p2p.session.greeting": "runs p2p.secure.handshake on streams (trio)",
    "p2p.session.peer": "reads and writes a peer's connections (trio); the order is p2p.session.mux",
    "p2p.session.requests": "waits for answers (trio)",
    "relay.client.background": "the nursery of the relay client (trio)",
    "relay.client.circuit_stream": "one end of a circuit (a trio stream)",
    "relay.client.circuits": "ends circuits and reads the clock of trio; the paths are relay.client.known_relays'",
    "relay.client.client": "dials through relays (trio); draws the nonces of routes",
    "relay.client.control_link": "one control connection (trio); the messages are relay.protocol.wire's",
    "relay.client.data_connections": "opens and parks data connections (trio); draws their tokens",
    "relay.client.link_states": "asks relays at intervals (trio); the record is relay.protocol.link_state",
    "relay.client.links": "opens control links in the background (trio)",
    "relay.client.payments": "sends receipts at intervals (trio); the sums are relay.payment.metering's",
    "relay.client.publisher": "publishes and receives fan-out pieces (trio)",
    "relay.client.reservations": "reserves and renews (trio); the ranking is relay.client.reputation's",
    "relay.payment.accounts": "asks the chain and writes receipts in threads (asyncio)",
    "relay.payment.receipts": "keeps receipts in files",
    "relay.protocol.keep_alive": "sets socket options",
    "relay.server.admission": "holds the transports of clients (asyncio); the counts are relay.protocol.limits'",
    "relay.server.circuits": "runs circuits (asyncio) as relay.server.core says",
    "relay.server.daemon": "listens and carries out what relay.server.core says (asyncio)",
    "relay.server.fanout_daemon": "connections for fan-out (asyncio) around relay.protocol.fanout",
    "relay.server.handshake": "connections of clients (asyncio)",
    "relay.server.next_hop": "connections to other relays (asyncio)",
    "relay.server.splice": "passes bytes between two transports (asyncio)",
    "relay.server.telemetry": "answers HTTP for monitoring (asyncio)",
}
