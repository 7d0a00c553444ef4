"""What names of the system contracts mean in all of them: common parameters, units, phases."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from billing.escrow import Purpose
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.registry import NodeRole

__all__ = ["COMMON", "REASON", "TASK_PHASE", "TERMS", "UNIT", "WEIGHT", "WINDOW_PHASE", "Text", "names_of"]


def names_of(kind: type[IntEnum | IntFlag]) -> str:
    """Return the numbers of a type with their names."""
    return ", ".join(f"{int(item)} {item.name.lower().replace('_', ' ')}" for item in kind if item.name)


class Text(NamedTuple):
    """What a function or event means; ``intent`` is what a wallet says that its owner is about to do."""

    notice: str
    parameters: Mapping[str, str] = {}
    intent: str = ""


UNIT: Final = "in 10^-18 DKB"
COMMON: Final[Mapping[str, str]] = {
    "task": "Id of the task.",
    "escrow": "Id of the escrow: that of its task, or of a machine's bond.",
    "node": "Address of the machine.",
    "window": "Number of the window, from 0.",
    "number": "Number of the window, from 0.",
    "validator": "Address of the validator.",
    "operator": "Account behind it.",
    "requester": "Who pays the task.",
    "worker": "Machine that does the task; zero where there is none.",
    "actor": "Who caused it; zero: the chain itself.",
    "who": "The account.",
    "epoch": "Number of the epoch.",
    "amount": f"Amount {UNIT}.",
    "price": f"Price {UNIT} per 10^12 work units.",
    "pricePerTeraUnit": f"Price {UNIT} per 10^12 work units.",
    "budget": f"What is locked in all, {UNIT}.",
    "bond": f"Bond {UNIT}.",
    "burned": f"Burned, {UNIT}.",
    "voteKey": "Key that the validator's votes are signed with.",
    "vrfKey": "Key that its share of the randomness is proved with.",
    "committeeHash": "Hash of the committee's description.",
    "seats": "Number of seats.",
    "specification": "The job: canonical CBOR of all that decides the result.",
    "profile": "What the machine is and asks for: canonical CBOR.",
    "purpose": f"Why it moved: {names_of(Purpose)}.",
    "roles": f"Sum of what it offers: {names_of(NodeRole)}.",
    "total": f"Sum afterwards, {UNIT}.",
    "relay": "The relay.",
    "payer": "Who pays relays.",
    "deposit": f"What the payer has put down for relays afterwards, {UNIT}.",
    "releaseMs": "When it is paid out, in milliseconds since 1970; 0: never.",
}
TERMS: Final[Mapping[str, str]] = {
    "share": "Share of the machine's pay that its sponsor gets, in basis points.",
    "withhold": "Share of its pay that its own bond grows by, in basis points.",
    "until": f"Bond of its own at which nothing more is withheld and the sponsor's returns, {UNIT}.",
}
TASK_PHASE: Final = f"Phase: {names_of(Phase)}."
WINDOW_PHASE: Final = f"Phase: {names_of(WindowPhase)}."
REASON: Final = f"Why: {names_of(Reason)}."
WEIGHT: Final = "Weight of votes"
