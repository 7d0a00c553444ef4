"""``dekube network``: the known nodes, and how this node is reached."""

from __future__ import annotations

from typing import Any, Final

import click

from node.cli.output import counted, json_option, show, show_amount, show_fields, show_rows
from node.cli.session import Session, reading_options

__all__ = ["network"]

_COLUMNS: Final = ("node", "roles", "reached at", "stake", "registered", "connected")


@click.command()
@reading_options
@json_option
def network(session: Session, as_json: bool) -> None:
    """List the known nodes of the network: addresses, relays and on-chain roles.

    \b
    Examples:
      dekube network
      dekube network --json
    """
    with session.client() as client:
        first = client.call("dekube_getNetwork")
        items = list(first["items"])
        cursor = first["next"]
        while cursor is not None:
            page = client.call("dekube_getNetwork", cursor)
            items += page["items"]
            cursor = page["next"]
    if as_json:
        show({"reachability": first["reachability"], "items": items})
        return
    reached = first["reachability"]
    fields = {"reached": reached["how"], "why": reached["why"]}
    fields |= {item["endpoint"]: item["verdict"] for item in reached["endpoints"]}
    show_fields(fields, as_json=False, title="The node that was asked")
    show_rows([_row(item) for item in items], _COLUMNS, as_json=False, title=counted(len(items), "other"))


def _row(item: dict[str, Any]) -> dict[str, Any]:
    relays = [f"relay {relay['endpoint'].removeprefix('tcp:')}" for relay in item["relays"]]
    return {
        "node": item["address"],
        "roles": item["roles"],
        "reached at": [*item["endpoints"], *relays],
        "stake": "" if item["stake"] is None else show_amount(int(item["stake"])),
        "registered": item["registered_roles"],
        "connected": "yes" if item["connected"] else "",
    }
