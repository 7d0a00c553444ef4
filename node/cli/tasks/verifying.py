"""Who may verify a proven job, in numbers and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from node.cli.output import counted, show_amount
from state.primitives.address import parse_address
from tasks.kinds.verifiers import Verifiers

__all__ = ["count_verifiers", "told_verifiers"]


def count_verifiers(nodes: Iterable[Mapping[str, Any]], chosen: Verifiers) -> int:
    """Return how many of the registered machines may be drawn to verify."""
    return sum(_may(node, chosen) for node in nodes if "verify" in node["roles"])


def _may(node: Mapping[str, Any], chosen: Verifiers) -> bool:
    parties = (node["address"], node["operator"], node["sponsor"])
    named = {parse_address(str(party)) for party in parties if party}
    return int(node["backing"]) >= chosen.bond_min and (not chosen.names or not named.isdisjoint(chosen.names))


def told_verifiers(chosen: Verifiers, machines: int) -> dict[str, str]:
    """Return who may verify, and who then reads a private job.

    ``machines`` counts those of the requester and of the worker too: no account is needed for a quote, and who
    works is not known yet. They are never drawn (market.md 6.3), and the words say so.
    """
    if chosen.names:
        who = f"{counted(machines, 'machine')} of the accounts that you name"
    elif chosen.bond_min:
        who = f"{counted(machines, 'machine')} with a bond of {show_amount(chosen.bond_min)} or more"
    else:
        who = f"any of {counted(machines, 'machine')}"
    told = {
        "who may verify": f"{who}; none of your own, and none of its worker's",
        "who reads a private job": f"its worker, and those of {counted(machines, 'machine')} that are drawn; "
        "others only if the worker gives no answer or data is said to be missing",
    }
    if chosen.is_chosen:
        case = "if none of them answers" if machines else "as there is none now"
        told[case] = "windows are paid unchecked; nothing of the job counts for a reputation"
    return told
