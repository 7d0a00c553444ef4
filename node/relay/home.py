"""A relay's home: loads its keys and options from disk and runs the daemon of the package ``relay``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

from node.home.config import AMOUNT_MAX, flat_options, load_table, parse_listen
from node.home.files import write_whole
from node.home.keys import load_key, node_secret, read_passphrase
from node.home.load import load_genesis
from node.home.lock import live_in
from node.home.options import RELAY, KeyOptions, LogOptions, listen_option
from node.home.paths import Home
from node.process.ports import check_listen, format_host_port
from node.relay.settlement_gateway import RpcSettlementGateway
from node.telemetry.logs import configure_logs
from p2p.secure.identity import Identity, Role
from relay.payment.credit import CreditOptions
from relay.payment.metering import Tariff
from relay.protocol.fanout import FanoutLimits
from relay.protocol.limits import RelayLimits
from relay.server.daemon import RelayDaemon, RelayOptions, run_relay
from rpc.process.log_output import LogCollector
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.genesis import genesis_hash

__all__ = ["RECEIPTS", "RelayHomeOptions", "load_relay_options", "run_relay_home"]

NUMBER_MAX: Final = 1 << 60
"""Upper bound of every integer option but the price; clocks and queues need no more."""
PRICE: Final = "tariff.price_per_gib"
RECEIPTS: Final = "data/receipts"
"""Directory of the payers' receipts, within the relay's home."""


@dataclass(frozen=True, slots=True)
class RelayHomeOptions:
    """Options of ``dekube relay run`` in config.toml."""

    KIND: ClassVar[str] = RELAY

    listen: str = listen_option(":26680")
    """host:port for clients; several as a list. Without host: all IPv4 and IPv6 addresses."""
    metrics: str = listen_option("127.0.0.1:9180")
    """host:port for /metrics and /healthz; empty: none."""
    keys: KeyOptions = field(default_factory=KeyOptions)
    peers: tuple[str, ...] = ()
    """Other relays, as relay:<address, hex>:host:port: links to them are kept open and measured."""
    drain_s: int = 20
    """Seconds for clients to move to other relays at shutdown; 0: no wait."""
    limits: RelayLimits = field(default_factory=RelayLimits)
    fanout: FanoutLimits = field(default_factory=FanoutLimits)
    tariff: Tariff = field(default_factory=Tariff)
    """Price and free tier; the default is free."""
    credit: CreditOptions = field(default_factory=CreditOptions)
    """Limits of credit, if the relay has a price."""
    rpc: tuple[str, ...] = ()
    """JSON-RPC gateways for payers' funds and the settlement of receipts. Empty: all payers count as unfunded."""
    log: LogOptions = field(default_factory=LogOptions)


def load_relay_options(home: Home) -> RelayHomeOptions:
    """Return the options of the relay of this home. Raises ConfigError."""
    options = load_table(home.config, RelayHomeOptions)
    for name, value in flat_options(options).items():
        most = AMOUNT_MAX if name == PRICE else NUMBER_MAX
        if type(value) is int and value > most:
            raise ConfigError(f"{home.config}: {name}: {value} is out of range; 0 to {most} expected")
    return options


def run_relay_home(home: Home, urls: tuple[str, ...], ask_passphrase: Callable[[], str]) -> None:
    """Run the relay of this home until it is told to stop.

    ``urls`` are JSON-RPC gateways that replace those of its options. Raises ConfigError or KeystoreError.
    """
    options = load_relay_options(home)
    urls = urls or options.rpc
    listens = {name: where for name in ("listen", "metrics") if (where := getattr(options, name))}
    for where in listens.values():
        parse_listen(where)
    configure_logs(options.log)
    chain = genesis_hash(load_genesis(home.genesis))
    file = home.passphrase_file(options.keys)
    passphrase = ask_passphrase() if file is None else read_passphrase(file)
    account = load_key(home.path(options.keys.account), passphrase)
    secret = node_secret(home)

    def make_identity() -> Identity:
        now_ms = time.time_ns() // 1_000_000
        return Identity.create(account, genesis_hash=chain, now_ms=now_ms, roles=Role.RELAY, node_secret=secret)

    def tell(daemon: RelayDaemon) -> None:
        ready = {
            "pid": os.getpid(),
            "address": format_address(account.address),
            "relay": format_host_port(*daemon.endpoint),
            "metrics": None if daemon.metrics_endpoint is None else format_host_port(*daemon.metrics_endpoint),
        }
        write_whole(home.ready, json.dumps(ready) + "\n")

    with live_in(home):
        for name, where in listens.items():
            check_listen(name, where)
        try:
            relay = RelayOptions(
                listen=options.listen, metrics_listen=options.metrics, limits=options.limits,
                fanout=options.fanout, tariff=options.tariff, credit=options.credit, peers=options.peers,
                receipts=home.path(RECEIPTS), drain_s_max=options.drain_s, collectors=(LogCollector(),),
            )  # fmt: skip
            gateway = RpcSettlementGateway(urls, account) if urls else None
            run_relay(relay, make_identity, on_ready=tell, gateway=gateway)
        finally:
            home.ready.unlink(missing_ok=True)
