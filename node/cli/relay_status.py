"""``dekube relay status``: the state of the relay in a home, read from its metrics port."""

from __future__ import annotations

import json
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from ipaddress import ip_address
from typing import Any, Final

import click
from rich.filesize import decimal

from node.cli.options import relay_home_option
from node.cli.output import counted, json_option, log_field, show_fields
from node.home.config import parse_host_port
from node.home.files import read_bounded
from node.home.kind import check_home_kind
from node.home.options import RELAY
from node.home.paths import Home
from rpc.client.control import ControlUnavailable
from state.primitives.errors import ConfigError

__all__ = ["NUMBERS", "parse_counts", "status"]

METRICS_LIMIT_BYTES: Final = 1 << 20
ASK_S: Final = 5.0
"""Timeout for each part of the relay's answer."""
READY_LIMIT_BYTES: Final = 4_096
FULL_PERCENT: Final = 100
_PREFIX: Final = "dekube_relay_"
LOG_DROPPED: Final = "log_lines_dropped_total"
LOG_SINCE: Final = "log_failing_since_seconds"
_OF_PROCESS: Final = {f"dekube_{name}": name for name in (LOG_DROPPED, LOG_SINCE)}
NUMBERS: Final = frozenset(
    {
        "bbr", "bytes_total", "circuits", "circuits_total", "connections", "control_connections",
        "fanout_connections", "hosts", "known_payers", "load_percent", "next_hop_links", "pending_circuits",
        "receipts_total", "reservations", "settled_receipts_total", "unfunded_bytes", "unpaid_bytes",
    }
)  # fmt: skip
"""Metrics without a label that every relay has."""


@click.command()
@relay_home_option
@click.option("--check", is_flag=True, help="Return exit status 1 unless the relay answers and has free slots.")
@json_option
def status(home: Home, check: bool, as_json: bool) -> None:
    """Show clients, circuits, load and debts of the relay in --home.

    The command reads the relay's metrics port (`metrics` in config.toml). Totals count from the relay's
    start.

    \b
    Example:
      dekube relay status --home relay --check
    """
    ready = _ready(home)
    of_the_start = {"address": ready.get("address"), "relay": ready["relay"]}
    found = of_the_start | _ask(ready) | of_the_start
    if as_json:
        show_fields(found, as_json=True)
    else:
        show_fields(_in_words(found), as_json=False, title=f"Relay {found['address']}")
    if check and found["load_percent"] >= FULL_PERCENT:
        raise click.exceptions.Exit(1)


def parse_counts(body: bytes) -> dict[str, Any]:
    """Return the relay's metrics by name: a number, or numbers by label. Raises ConfigError for anything else."""
    from prometheus_client.parser import text_string_to_metric_families

    counts: dict[str, Any] = {}
    try:
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                if sample.name in _OF_PROCESS:
                    name = _OF_PROCESS[sample.name]
                elif sample.name.startswith(_PREFIX):
                    name = sample.name.removeprefix(_PREFIX)
                else:
                    continue
                value = int(sample.value)  # neither NaN nor infinity is a count
                if not sample.labels:
                    counts[name] = value
                elif len(sample.labels) == 1 and name not in NUMBERS:
                    by_label = counts.setdefault(name, {})
                    if isinstance(by_label, dict):
                        by_label[next(iter(sample.labels.values()))] = value
    except (ValueError, ArithmeticError, LookupError) as error:  # the parser raises IndexError as well
        raise ConfigError(f"the answer is not metrics: {error}") from None
    if missing := sorted(NUMBERS - counts.keys()):
        raise ConfigError(f"the answer is not the metrics of a relay: {missing[0]} is missing")
    return dict(sorted(counts.items()))


def _ready(home: Home) -> dict[str, Any]:
    """Return the content of the relay's ready file."""
    try:
        found = json.loads(read_bounded(home.ready, READY_LIMIT_BYTES))
    except FileNotFoundError:
        check_home_kind(home.config, RELAY)
        raise ControlUnavailable(f"no relay runs in {home.root}; `dekube relay run` starts it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{home.ready}: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("relay"), str):
        check_home_kind(home.config, RELAY)
        raise ConfigError(f"{home.ready}: not the file of a relay; restart the relay")
    return found


def _ask(ready: dict[str, Any]) -> dict[str, Any]:
    at = ready.get("metrics")
    if not isinstance(at, str):
        raise ConfigError("the relay serves no metrics: set `metrics` in its config.toml and restart it")
    host, port = parse_host_port(at)
    connection = HTTPConnection(_dialled(host), port, timeout=ASK_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read(METRICS_LIMIT_BYTES + 1)
    except (OSError, HTTPException) as error:
        why = getattr(error, "strerror", None) or repr(error)
        raise ControlUnavailable(f"the relay does not answer at {at} ({why})") from None
    finally:
        connection.close()
    if answer.status != HTTPStatus.OK or len(body) > METRICS_LIMIT_BYTES:
        raise ControlUnavailable(f"the process at {at} is not a relay")
    try:
        return parse_counts(body)
    except ConfigError as error:
        raise ControlUnavailable(f"the process at {at} is not a relay: {error}") from None


def _dialled(host: str) -> str:
    """Return the local host name or address at which a server that listens at ``host`` is reached."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return {4: "127.0.0.1", 6: "::1"}[address.version] if address.is_unspecified else host


def _in_words(found: dict[str, Any]) -> dict[str, Any]:
    full = "full, takes nobody new" if found["load_percent"] >= FULL_PERCENT else "well"
    return {
        "health": f"{full}: {found['load_percent']} % of what it may carry",
        "listens": found["relay"],
        "clients": f"{counted(found['reservations'], 'client')} reached through it, "
        f"{counted(found['connections'], 'connection')} of {counted(found['hosts'], 'host')}",
        "circuits": f"{found['circuits']:,} run, {found['pending_circuits']:,} wait, "
        f"{found['circuits_total']:,} so far",
        "carried": decimal(found["bytes_total"]),
        "fan-out": counted(found["fanout_connections"], "connection"),
        "relays": f"linked with {found['next_hop_links']:,}",
        "payers": f"{found['known_payers']:,} known, {decimal(found['unpaid_bytes'])} not paid yet, "
        f"{counted(found['receipts_total'], 'receipt')} accepted, "
        f"{found['settled_receipts_total']:,} settled",
        "unfunded": f"{decimal(found['unfunded_bytes'])} today",
        **log_field(found.get(LOG_DROPPED, 0), found.get(LOG_SINCE, 0) * 1_000),
        "refused": _by_reason(found.get("refusals_total")),
        "closed": _by_reason(found.get("drops_total")),
        "congestion": _congestion(found),
    }


def _congestion(found: dict[str, Any]) -> str:
    if found["bbr"]:
        return "BBR"
    if not found["hosts"]:
        return "not known before the first connection"
    return "not BBR, slow on long paths with loss (docs/operations.md)"


def _by_reason(counts: Any) -> str:
    some = {reason: count for reason, count in counts.items() if count} if isinstance(counts, dict) else {}
    ordered = sorted(some.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {reason}" for reason, count in ordered) or "nothing"
