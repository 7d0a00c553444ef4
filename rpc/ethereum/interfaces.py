"""Files that describe the system contracts to others: Solidity interfaces, ABI, clear signing (ERC-7730).

All of them are made from the declarations that calls are dispatched by (``contracts.abi_json``); only what a name
means, and in which unit it counts, is written here. ``dekube contracts`` writes them, docs/contracts has them.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from billing.escrow import Purpose
from billing.prices import Role
from rpc.ethereum.contracts import CONTRACTS, abi_json
from rpc.methods.method import Json
from state.primitives.address import format_address
from tasks.claims import Fault
from tasks.kinds.container import ExitKind
from tasks.ledger.disputes import DisputeEnding, DisputePhase
from tasks.ledger.events import EVENTS
from tasks.ledger.group_records import GroupPhase
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.registry import NodeRole, NodeStatus

__all__ = ["KINDS", "Text", "contract_files", "text_of"]

KINDS: Final = ("solidity", "abi", "erc7730")
SCHEMA: Final = "https://eips.ethereum.org/assets/eip-7730/erc7730-v2.schema.json"
OWNER: Final = "DEKUBE"
WIDTH: Final = 110
RESERVED: Final = frozenset(
    (
        "after", "alias", "apply", "auto", "byte", "case", "copyof", "default", "define", "final", "implements",
        "in", "inline", "let", "macro", "match", "mutable", "null", "of", "partial", "promise", "reference",
        "relocatable", "sealed", "sizeof", "static", "supports", "switch", "typedef", "typeof", "var",
        "address", "bool", "bytes", "string", "constant", "event", "external", "function", "mapping", "payable",
        "pure", "return", "returns", "storage", "struct", "this", "view", "virtual",
    )
)  # fmt: skip
"""Words that are no names in Solidity; a parameter of such a name has an underscore after it there."""


def _names(kind: type[IntEnum | IntFlag]) -> str:
    return ", ".join(f"{int(item)} {item.name.lower().replace('_', ' ')}" for item in kind if item.name)


class Text(NamedTuple):
    """What a function or event means; ``intent`` is what a wallet says that its owner is about to do."""

    notice: str
    parameters: Mapping[str, str] = {}
    intent: str = ""


_ABOUT: Final[Mapping[str, str]] = {
    "registry": "Machines of the compute market: what they offer, their bond and their record of verified work.",
    "tasks": "Tasks of the compute market, from the locked price to the verified and paid windows.",
    "billing": "What is locked for tasks and machines, and who was paid. Only the chain itself moves it.",
    "staking": "Stake of validators, their keys, and what epochs and proven faults do to them.",
}
_UNIT: Final = "in 10^-18 DKB"
_COMMON: Final[Mapping[str, str]] = {
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
    "amount": f"Amount {_UNIT}.",
    "price": f"Price {_UNIT} per 10^12 work units.",
    "pricePerTeraUnit": f"Price {_UNIT} per 10^12 work units.",
    "budget": f"What is locked in all, {_UNIT}.",
    "bond": f"Bond {_UNIT}.",
    "burned": f"Burned, {_UNIT}.",
    "voteKey": "Key that the validator's votes are signed with.",
    "vrfKey": "Key that its share of the randomness is proved with.",
    "committeeHash": "Hash of the committee's description.",
    "seats": "Number of seats.",
    "specification": "The job: canonical CBOR of all that decides the result.",
    "profile": "What the machine is and asks for: canonical CBOR.",
    "purpose": f"Why it moved: {_names(Purpose)}.",
    "roles": f"Sum of what it offers: {_names(NodeRole)}.",
    "total": f"Sum afterwards, {_UNIT}.",
    "relay": "The relay.",
    "payer": "Who pays relays.",
    "deposit": f"What the payer has put down for relays afterwards, {_UNIT}.",
    "releaseMs": "When it is paid out, in milliseconds since 1970; 0: never.",
}
_TERMS: Final[Mapping[str, str]] = {
    "share": "Share of the machine's pay that its sponsor gets, in basis points.",
    "withhold": "Share of its pay that its own bond grows by, in basis points.",
    "until": f"Bond of its own at which nothing more is withheld and the sponsor's returns, {_UNIT}.",
}
_TASK_PHASE: Final = f"Phase: {_names(Phase)}."
_WINDOW_PHASE: Final = f"Phase: {_names(WindowPhase)}."
_REASON: Final = f"Why: {_names(Reason)}."
_WEIGHT: Final = "Weight of votes"

_TEXTS: Final[Mapping[tuple[str, str], Text]] = {
    ("registry", "registerNode"): Text(
        "Register the sender as a machine; the value sent is its bond.", intent="Register a machine"
    ),
    ("registry", "updateNode"): Text(
        "Renew the sender's record and end its retirement or suspension; the value sent is added to its bond.",
        intent="Renew a machine's record",
    ),
    ("registry", "retireNode"): Text(
        "Take the sender's machine off the market; its bond returns after its duties.", intent="Retire a machine"
    ),
    ("registry", "suspendNode"): Text(
        "Offer the sender's machine nothing until it renews its record; its bond and duties stay.",
        intent="Suspend a machine",
    ),
    ("registry", "heartbeat"): Text(
        "Say that the sender's machine is on. No task is offered to it for that; updateNode does so.",
        intent="Show that a machine is on",
    ),
    ("registry", "askTrial"): Text(
        "Have a speed trial of the sender's machine begin.", intent="Ask for a speed trial"
    ),
    ("registry", "commitTrial"): Text(
        "Commit to the links of the sender's speed trial; the value sent pays its verifiers.",
        {"links": "How many links the machine has computed.", "root": "The root over the states between them."},
        intent="Commit to a speed trial",
    ),
    ("registry", "showTrial"): Text(
        "Show the links that were drawn of the sender's speed trial.",
        {"links": "The links with their paths, in CBOR."},
        intent="Show links of a speed trial",
    ),
    ("registry", "judgeTrial"): Text(
        "Give the results that the verifier computed for the links of a machine's speed trial.",
        {"node": "The machine.", "results": "The digest of each link's result, in CBOR."},
        intent="Judge a speed trial",
    ),
    ("registry", "TrialBegun"): Text(
        "A speed trial of a machine has begun.",
        {
            "seed": "What its chain follows from.",
            "width": "Rows and columns of its matrices.",
            "until": "Until when it commits, in milliseconds since 1970.",
        },
    ),
    ("registry", "TrialDrawn"): Text(
        "A verifier was drawn for a speed trial.", {"verifier": "The verifier's machine."}
    ),
    ("registry", "TrialRoundEnded"): Text(
        "A round of speed trials is over: each machine that is on was tried in it.",
        {"number": "Rounds that are over."},
    ),
    ("registry", "TrialEnded"): Text(
        "A speed trial is over.",
        {"rate": "Work units a second that it measured, 0 for none.", "reason": "How it ended (market.md R48)."},
    ),
    ("registry", "NodeSeen"): Text("A machine has shown that it is on."),
    ("registry", "setPayout"): Text(
        "Have a machine's earnings paid to another account; only its payout address can, at first itself or its "
        "operator.",
        {"node": "The machine.", "payout": "The account that is paid from now on."},
        "Change where earnings go",
    ),
    ("registry", "setTerms"): Text(
        "Set who may bond for a machine, and which shares of its pay go to that account and to the machine's own "
        "bond; only its payout address can. A sponsor's bond that is locked keeps its terms.",
        {**_TERMS, "node": "The machine.", "sponsor": "Who may bond for it; zero: nobody."},
        "Set the terms of a machine's sponsor",
    ),
    ("registry", "sponsorNode"): Text(
        "Bond for a machine with the value sent, on the terms that stand for the sender; fines take it after the "
        "machine's own bond.",
        {**_TERMS, "node": "The machine."},
        "Bond for a machine",
    ),
    ("registry", "withdrawSponsor"): Text(
        "Ask for a part of the sender's bond for a machine; it is at risk until it is paid out. Replaces what was "
        "asked for before; 0 cancels that.",
        {"node": "The machine."},
        "Take back a bond for a machine",
    ),
    ("registry", "sponsorOf"): Text(
        "Return who bonds for a machine, or may; reverts with node_unknown.",
        {
            **_TERMS,
            "sponsor": "Who bonds for it, or may; zero: nobody.",
            "leaving": f"What of it is being taken back, {_UNIT}.",
            "withheld": f"What of the machine's own bond came out of its pay, {_UNIT}.",
        },
    ),
    ("registry", "NodeTerms"): Text(
        "The terms of a machine's sponsor were set.", {**_TERMS, "sponsor": "Who may bond for it; zero: nobody."}
    ),
    ("registry", "NodeSponsored"): Text("Somebody bonds for a machine.", {"sponsor": "Who bonds for it."}),
    ("registry", "SponsorLeaving"): Text(
        "A bond for a machine is being taken back; 0: it no longer is.", {"sponsor": "Who bonds for it."}
    ),
    ("registry", "SponsorReturned"): Text("A bond for a machine was paid out.", {"sponsor": "Whose it is."}),
    ("registry", "NodePayout"): Text(
        "A machine's earnings go to another account.", {"payout": "The account that is paid."}
    ),
    ("registry", "nodeOf"): Text(
        "Return a machine's record; reverts with node_unknown.",
        {
            "status": f"{_names(NodeStatus).capitalize()}.",
            "gpus": "Number of its GPUs.",
            "slots": "Tasks that it takes at a time.",
            "busySlots": "Tasks that it has.",
            "seenMs": "When it last acted, in milliseconds since 1970.",
            "reputationMilli": "Its record of verified work in thousandths.",
        },
    ),
    ("registry", "isRegistered"): Text(
        "Tell whether a machine is registered.", {"registered": "Whether there is a record."}
    ),
    ("registry", "settleCarriage"): Text(
        "Acknowledge what a payer has signed for bytes that the sender, a registered relay, has carried.",
        {
            "receipt": "The payer's newest receipt of a channel: canonical CBOR.",
            "certificate": "The payer's node certificate, which names the key that signed it: canonical CBOR.",
        },
        intent="Bring a receipt for carried bytes",
    ),
    ("registry", "CarriageAcknowledged"): Text(
        "A payer's receipt was brought; what is left due is paid out of the payer's later earnings.",
        {
            "payer": "Who has signed the receipt.",
            "size": "Bytes since the receipt before.",
            "due": f"What the payer owes the relay beyond what its deposit has paid, {_UNIT}.",
        },
    ),
    ("registry", "fundCarriage"): Text(
        "Add the value sent to what the sender has put down for relays: they carry on it, and it pays them.",
        intent="Put down a deposit for relays",
    ),
    ("registry", "withdrawCarriage"): Text(
        "Ask for a part of the sender's deposit for relays; it is paid out eight days later, less what relays "
        "still bring receipts for. Takes the place of what was asked for before; 0 takes that back.",
        intent="Take back a deposit for relays",
    ),
    ("registry", "carriageOf"): Text(
        "Return what an account has put down for relays.",
        {"deposit": f"All that is there, {_UNIT}.", "withdrawing": f"What of it is being taken back, {_UNIT}."},
    ),
    ("registry", "CarriagePaid"): Text("A relay was paid out of a payer's deposit."),
    ("registry", "CarriageFunded"): Text("A payer has put down more for relays."),
    ("registry", "CarriageWithdrawal"): Text(
        "A payer asks for a part of its deposit; 0: it no longer does.",
    ),
    ("registry", "CarriageReturned"): Text("What a payer had asked for was paid out."),
    ("registry", "NodeRegistered"): Text("A machine was registered."),
    ("registry", "NodeUpdated"): Text("A machine renewed its record."),
    ("registry", "NodeSuspended"): Text("A machine is off until it renews its record."),
    ("registry", "NodeRetired"): Text(
        "A machine leaves the market.", {"gone": "False when it announces it, true when its record is gone."}
    ),
    ("registry", "NodeCoolDown"): Text(
        "A machine failed and gets no work for a while.",
        {"until": "Until when, in milliseconds since 1970.", "failures": "Failures in a row."},
    ),
    ("tasks", "createTask"): Text(
        "Create a task; the value sent is exactly its budget (budgetOf).", intent="Create a task"
    ),
    ("tasks", "createGroup"): Text(
        "Create a group of tasks with its first member; the value sent is exactly the member's budget (budgetOf).",
        {"members": "Tasks that compute, 64 at most.", "spares": "Machines that stand by."},
        "Create a group of tasks",
    ),
    ("tasks", "addSeats"): Text(
        "Add the next members and spares to a group of the sender; the value sent is exactly their total budget.",
        {
            "group": "Id of the group.",
            "roots": "The state that each starts from, empty for a spare: canonical CBOR.",
        },
        "Add members to a group",
    ),
    ("tasks", "cancelGroup"): Text(
        "Cancel a group of the sender; what was proved is still paid.",
        {"group": "Id of the group."},
        "Cancel a group of tasks",
    ),
    ("tasks", "cancelTask"): Text(
        "Cancel a task of the sender; what was proved is still paid.", intent="Cancel a task"
    ),
    ("tasks", "acceptTask"): Text(
        "Accept an assigned task; the value sent is the bond that is still due.", intent="Accept a task"
    ),
    ("tasks", "startTask"): Text(
        "Start an accepted task.", {"machine": "Hash of the description of what runs it."}, "Start a task"
    ),
    ("tasks", "submitWindow"): Text(
        "Prove a window of work.", {"proof": "The window proof: canonical CBOR."}, "Submit a proof of work"
    ),
    ("tasks", "claimInput"): Text(
        "Prove, as its worker, that a task's data set is not the one that it names; that ends the task.",
        {"claim": "The claim with the chunks that show it: canonical CBOR."},
        "Prove that a task cannot run",
    ),
    ("tasks", "claimDiverged"): Text(
        "Prove a window up to a step that diverges, as its worker; the task ends with it if that stands.",
        {"proof": "The window proof with the claim: canonical CBOR."},
        "Prove that a task diverges",
    ),
    ("tasks", "sealVerdict"): Text(
        "Seal what a drawn verifier found, before anybody opens anything.",
        {"seal": "Hash over findings and nonce."},
        "Seal a verdict",
    ),
    ("tasks", "revealVerdict"): Text(
        "Reveal the findings that were sealed.",
        {"findings": "A finding for each drawn segment: canonical CBOR.", "nonce": "The nonce of the seal."},
        "Reveal a verdict",
    ),
    ("tasks", "move"): Text(
        "Make the move that is due in a dispute about a window, as one of its sides.",
        {
            "game": "Number of the dispute.",
            "number": "Number of the move in the dispute, from 0.",
            "encoded": "The move: canonical CBOR.",
        },
        "Move in a dispute",
    ),
    ("tasks", "sealChallenge"): Text(
        "Challenge a segment of a window that is not final; the value sent is the bond, of which what is due is "
        "locked.",
        {"seal": "Hash of segment, result, sender and a random salt."},
        "Challenge a window",
    ),
    ("tasks", "showBreak"): Text(
        "Prove that leaves of a window do not fit each other or the job.",
        {
            "segment": "The segment whose leaf does not fit.",
            "leaves": "Its leaf with its path, and the leaf before if that one ends elsewhere: canonical CBOR.",
        },
        "Prove a false window",
    ),
    ("tasks", "openChallenge"): Text(
        "Open a sealed challenge that was called.",
        {
            "challenge": "Number of the challenge.",
            "segment": "The segment that is wrong.",
            "workDigest": "Digest of the work that the sender found.",
            "stateRoot": "Root of the state after the segment that the sender found.",
            "lossBits": "Bits of the sum of losses that the sender found.",
            "salt": "The salt of the seal.",
        },
        "Open a challenge",
    ),
    ("tasks", "resumeDispute"): Text(
        "Go on with a dispute whose clock the sender missed; the value sent is paid to the other side.",
        {"game": "Number of the dispute."},
        "Resume a dispute",
    ),
    ("tasks", "askCustody"): Text(
        "Have storage machines keep the outputs of a task's windows; the value sent is the whole budget.",
        {
            "keyRoot": "Merkle root over the hashes of the task's keys.",
            "inputs": "Number of inputs that have keys.",
        },
        "Ask for custody",
    ),
    ("tasks", "takeCustody"): Text(
        "Sign for the output of a window, as a machine drawn to keep it; the value sent is the bond.",
        intent="Keep an output",
    ),
    ("tasks", "demandCustody"): Text(
        "Demand a chunk of an output of a custodian, or its delivery; of the value sent what is due is locked.",
        {"custodian": "The machine that keeps the output."},
        "Demand an output",
    ),
    ("tasks", "answerDemand"): Text(
        "Post the chunk that was demanded of the sender.",
        {"chunk": "The chunk with its paths: canonical CBOR."},
        "Answer a demand",
    ),
    ("tasks", "receiveCustody"): Text(
        "Sign for the output of a window, as the machine drawn to receive it.", intent="Receive an output"
    ),
    ("tasks", "revealGarbage"): Text(
        "Show with a window's key that what lies in custody is not what its worker committed to.",
        {
            "key": "The key of the window's output.",
            "path": "The key's path to the root in the task: canonical CBOR.",
            "chunk": "A chunk in custody with its paths: canonical CBOR.",
        },
        "Prove garbage",
    ),
    ("tasks", "revealMismatch"): Text(
        "Show that a chunk of an output is not what the state of the window has there.",
        {
            "plain": "The plain chunk with its path: canonical CBOR.",
            "leaf": "A leaf of the state with its paths, or an empty list: canonical CBOR.",
        },
        "Prove a false output",
    ),
    ("tasks", "endCustody"): Text(
        "End the custody of a final window's output, as the requester.", intent="End custody"
    ),
    ("tasks", "keepInput"): Text(
        "Have storage machines keep a task's data set before it is offered; the value sent is the whole budget.",
        {
            "size": "Bytes of the data set.",
            "plainRoot": "Merkle root over its plain chunks.",
            "cipherRoot": "Merkle root over its cipher chunks.",
        },
        "Keep an input",
    ),
    ("tasks", "claimGarbage"): Text(
        "Show with an input's key, as the worker, that its cipher is garbage; that ends the task.",
        {
            "key": "The key of the input.",
            "path": "The key's path to the root in the task: canonical CBOR.",
            "chunk": "A chunk of the cipher with its paths: canonical CBOR.",
        },
        "Prove garbage in an input",
    ),
    ("tasks", "claimKeyed"): Text(
        "Prove, as its worker, that a task's blob does not decrypt to its data set; that ends the task.",
        {
            "claim": "The claim with the chunks of the cipher that show it: canonical CBOR.",
            "key": "The key of the input.",
            "path": "The key's path to the root in the task: canonical CBOR.",
        },
        "Prove that a private task cannot run",
    ),
    ("tasks", "claimPlain"): Text(
        "Show, as the worker, that a private input is not the job's data set; that ends the task.",
        {"shown": "The claim with the plain chunks that show it: canonical CBOR."},
        "Prove that an input is wrong",
    ),
    ("tasks", "declineSeat"): Text(
        "Leave the sender's seat of a window shortly after its draw, without a fine; another machine is drawn.",
        intent="Decline a check",
    ),
    ("tasks", "openWindow"): Text(
        "Open the drawn segments of a proved window, as its worker.",
        {"openings": "An opening for each drawn segment: canonical CBOR."},
        "Open a window",
    ),
    ("tasks", "serveWindow"): Text(
        "Say that the sender serves what a jury could not fetch of its window; a larger jury is drawn.",
        intent="Serve a window",
    ),
    ("tasks", "meterTask"): Text(
        "Count the seconds of a container, as its worker; they are paid at once.",
        {"elapsed": "Seconds since the sender's container began: whole ticks."},
        "Meter a container",
    ),
    ("tasks", "finishTask"): Text(
        "Say how a container has ended, as its worker; its last seconds are paid and the task ends.",
        {
            "elapsed": "Seconds since the sender's container began.",
            "end": "How it ended, with its output and logs: canonical CBOR.",
        },
        "End a container's task",
    ),
    ("tasks", "poke"): Text(
        "Do what a passed deadline of a task demands, where the chain has not yet.", intent="Poke a task"
    ),
    ("tasks", "topUpTask"): Text(
        "Add the value sent to what a task of the sender may spend on verification.", intent="Top up a task"
    ),
    ("tasks", "resumeTask"): Text("Resume a paused task of the sender.", intent="Resume a task"),
    ("tasks", "demandResult"): Text(
        "Have drawn machines fetch the result of an ended task of the sender that it cannot have; the value sent "
        "pays them if they can, and comes back if the worker does not serve it.",
        intent="Demand a task's result",
    ),
    ("tasks", "giveUpTask"): Text(
        "Give up a task, as its worker.",
        {
            "reason": f"{int(Reason.INPUT_UNAVAILABLE)} input unavailable, {int(Reason.WORKER_LEFT)} worker left, "
            f"{int(Reason.JOB_UNFIT)} job unfit."
        },
        "Give up a task",
    ),
    ("tasks", "taskOf"): Text(
        "Return where a task stands; reverts with task_unknown.",
        {
            "phase": _TASK_PHASE,
            "reason": _REASON,
            "windows": "Windows that it is to have.",
            "nextWindow": "The window under way.",
            "finalWindows": "Windows that are verified and paid.",
            "deadlineMs": "Deadline of the phase in milliseconds since 1970; 0: none.",
        },
    ),
    ("tasks", "budgetOf"): Text("Return what createTask must be sent for a specification."),
    ("tasks", "DisputePhase"): Text(
        "A dispute about a window was opened, suspended, resumed or ended.",
        {
            "game": "Number of the dispute.",
            "phase": f"Phase: {_names(DisputePhase)}.",
            "ending": f"How it ended: {_names(DisputeEnding)}.",
            "challenger": "Who says that the segment is wrong.",
        },
    ),
    ("tasks", "DisputeMove"): Text(
        "A side of a dispute made a move.",
        {"game": "Number of the dispute.", "move": "Number of the move.", "player": "Who made it."},
    ),
    ("tasks", "ChallengeSealed"): Text(
        "Somebody sealed a challenge of a window.",
        {"challenge": "Number of the challenge.", "challenger": "Who sealed it."},
    ),
    ("tasks", "ChallengeCalled"): Text(
        "A sealed challenge has to be opened now.",
        {"challenge": "Number of the challenge.", "challenger": "Who sealed it."},
    ),
    ("tasks", "CustodianDrawn"): Text(
        "A machine was drawn to keep the output of a window.",
        {"custodian": "The machine.", "bond": "What it locks as it signs."},
    ),
    ("tasks", "CustodyUnkept"): Text("None of the drawn machines keeps an output: its window will be void.", {}),
    ("tasks", "CustodyTaken"): Text("A machine keeps the output of a window.", {"custodian": "The machine."}),
    ("tasks", "CustodyDemanded"): Text(
        "The requester demands an output of the machine that keeps it.",
        {
            "custodian": "The machine.",
            "kind": "1: a chunk on chain, 2: a delivery of the whole.",
            "chunk": "Number of the chunk.",
            "receiver": "The machine that receives a delivery.",
        },
    ),
    ("tasks", "CustodyServed"): Text(
        "A demand was answered.",
        {"custodian": "The machine that keeps the output.", "kind": "1: a chunk on chain, 2: a delivery."},
    ),
    ("tasks", "CustodyLost"): Text(
        "A machine lost its bond for an output that it does not serve.", {"custodian": "The machine."}
    ),
    ("tasks", "CustodyEnded"): Text("The custody of a window's output ended."),
    ("tasks", "ClaimUpheld"): Text(
        "A worker proved what ends a task.",
        {
            "claimant": "The worker, which is paid for its preparation.",
            "reason": _REASON,
            "fault": f"What is wrong with the data set: {_names(Fault)}; 0 if the job diverges.",
        },
    ),
    ("tasks", "DivergenceClaimed"): Text(
        "A worker claims that the job diverges; verifiers run it again.",
        {
            "worker": "The worker.",
            "window": "Number of the window.",
            "step": "The step that diverges, from 0.",
            "store": "Number of the store without a value in the job's program.",
        },
    ),
    ("tasks", "SeatDrawn"): Text("A machine was drawn to check a window.", {"verifier": "The machine."}),
    ("tasks", "SeatDeclined"): Text(
        "A drawn machine left its seat of a window; another is drawn.", {"verifier": "The machine."}
    ),
    ("tasks", "GroupCreated"): Text(
        "A group was created.",
        {
            "group": "Id of the group.",
            "spec": "Hash of the specification of its first member.",
            "members": "Tasks that compute.",
            "spares": "Machines that stand by.",
        },
    ),
    ("tasks", "GroupSeat"): Text(
        "A task was created as a seat of a group.",
        {"group": "Id of the group.", "seat": "Number of the seat; members first, then spares."},
    ),
    ("tasks", "GroupPhase"): Text(
        "A group changed its phase.",
        {
            "group": "Id of the group.",
            "before": "The phase before, numbered alike.",
            "phase": f"Phase: {_names(GroupPhase)}.",
            "reason": _REASON,
        },
    ),
    ("tasks", "TaskCreated"): Text("A task was created.", {"spec": "Hash of its specification."}),
    ("tasks", "TaskPhase"): Text(
        "A task changed its phase.",
        {
            "before": "The phase before, numbered alike.",
            "phase": _TASK_PHASE,
            "reason": _REASON,
            "evidence": "Hash of what shows it, such as the transaction.",
        },
    ),
    ("tasks", "WindowPhase"): Text(
        "A window of a task changed its phase.",
        {"before": "The phase before, numbered alike.", "phase": _WINDOW_PHASE, "reason": _REASON},
    ),
    ("tasks", "WorkerAssigned"): Text("A task was given to a machine, which may accept it."),
    ("tasks", "SecondsMetered"): Text(
        "Seconds of a container were counted and paid.",
        {
            "added": "Seconds that were added.",
            "total": "Seconds of the task in all.",
            "paid": f"Price of the added seconds, {_UNIT}.",
        },
    ),
    ("tasks", "ContainerEnded"): Text(
        "A container has ended, as its worker says; nobody has checked that.",
        {
            "kind": f"How: {_names(ExitKind)}.",
            "code": "Exit code, or number of the signal.",
            "output": "Content address of what it left; zero: nothing.",
            "logs": "Content address of the end of what it printed; zero: nothing.",
        },
    ),
    ("billing", "escrowOf"): Text(
        "Return the sums of an escrow; reverts with escrow_unknown.",
        {
            "deposited": f"Paid in, {_UNIT}; the sum of the others.",
            "held": f"Still locked, {_UNIT}.",
            "paid": f"Paid out, {_UNIT}.",
            "refunded": f"Given back, {_UNIT}.",
        },
    ),
    ("billing", "earned"): Text(
        "Return what an account was ever paid for a role.", {"role": f"For what: {_names(Role)}."}
    ),
    ("billing", "Locked"): Text("Money was locked.", {"from": "Who paid it."}),
    ("billing", "Paid"): Text("Money was paid out.", {"to": "Who received it."}),
    ("billing", "Refunded"): Text("Money was given back.", {"to": "Who received it."}),
    ("billing", "Burned"): Text("Money was burned."),
    ("staking", "stake"): Text(
        "Stake the value sent, as a validator with these keys.",
        {
            "possession": "Signature of the vote key over the digest of possession.",
            "vrfPossession": "Proof of the VRF key over the same digest.",
        },
        "Stake",
    ),
    ("staking", "unstake"): Text("Take back a part of the stake; it is paid out later.", intent="Unstake"),
    ("staking", "stakeOf"): Text("Return stake and keys of a validator; zeros for none."),
    ("staking", "unbondingOf"): Text(
        "Return what an account has unstaked and not received yet.",
        {"nextReleaseMs": "When the next part is paid out, in milliseconds since 1970; 0: never."},
    ),
    ("staking", "jailedUntil"): Text(
        "Return until when a validator has no seat.", {"epoch": "First epoch that may seat it; 0: now."}
    ),
    ("staking", "minimumStake"): Text("Return the least stake of a validator."),
    ("staking", "Staked"): Text("A validator added to its stake or changed its keys."),
    ("staking", "Unstaked"): Text(
        "A validator took back a part of its stake.",
        {"releaseTimeMs": "When it is paid out, in milliseconds since 1970."},
    ),
    ("staking", "Unbonded"): Text("What was unstaked was paid out."),
    ("staking", "EpochBegan"): Text(
        "An epoch began.",
        {"weight": f"{_WEIGHT} in all.", "version": "Version of the rules that it follows."},
    ),
    ("staking", "CommitteeSelected"): Text(
        "The committee of a later epoch was drawn.",
        {
            "weight": f"{_WEIGHT} in all.",
            "anchors": "Seats that the largest stakes have without a lottery.",
            "lotteryWeight": f"{_WEIGHT} of the seats that were drawn.",
        },
    ),
    ("staking", "LotteryTooLarge"): Text(
        "More weight was drawn by lottery than is safe.",
        {"lotteryWeight": f"{_WEIGHT} of the seats that were drawn.", "weight": f"{_WEIGHT} in all."},
    ),
    ("staking", "Jailed"): Text(
        "A validator was absent for too long and has no seat for a while.",
        {"untilEpoch": "First epoch that may seat it again.", "times": "How often it was jailed in a row."},
    ),
    ("staking", "VersionScheduled"): Text(
        "Enough weight has signalled another version of the rules.",
        {"version": "Number of the version.", "epoch": "First epoch that follows it."},
    ),
    ("staking", "Equivocated"): Text(
        "A validator was proven to have signed two votes where one is allowed.",
        {
            "operator": "The validator.",
            "reporter": "Who brought the proof.",
            "fault": "Number of the kind of fault.",
            "view": "View of the votes.",
        },
    ),
    ("staking", "Slashed"): Text(
        "Stake was taken for proven faults.",
        {
            "operator": "The validator.",
            "total": f"Taken so far, {_UNIT}.",
            "reward": f"For the reporter, {_UNIT}.",
        },
    ),
}


def text_of(contract: str, name: str, parameter: str = "") -> str:
    """Return what a function or event means, or a parameter or result of it. A KeyError is a text to write."""
    text = _TEXTS[contract, name]
    if not parameter:
        return text.notice
    return text.parameters[parameter] if parameter in text.parameters else _COMMON[parameter]


def contract_files(kinds: Iterable[str], chain_id: int) -> Iterator[tuple[str, str]]:
    """Yield name and content of the files of ``kinds``; wallets find ERC-7730's by ``chain_id`` and address."""
    wanted = set(kinds)
    for address, name in CONTRACTS.items():
        abi = abi_json(address, (), EVENTS)
        if "solidity" in wanted:
            yield f"{interface_of(name)}.sol", _solidity(name, address, abi)
        if "abi" in wanted:
            yield f"{name}.json", _json(abi)  # generators name a class by all before the last dot
        if "erc7730" in wanted and any(_writes(abi)):
            yield f"calldata-{name}.erc7730.json", _json(_clear_signing(name, address, abi, chain_id))


def interface_of(contract: str) -> str:
    """Return the name of a contract's interface in Solidity."""
    return f"IDekube{contract.capitalize()}"


def _json(document: Json) -> str:
    return json.dumps(document, indent=2) + "\n"


def _writes(abi: Json) -> Iterator[Json]:
    return (item for item in abi if item["type"] == "function" and item["stateMutability"] != "view")


# Solidity


def _solidity(contract: str, address: bytes, abi: Json) -> str:
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "pragma solidity >=0.8.4;",
        "",
        *_comment(
            [
                f"@title DEKUBE: the {contract} contract",
                f"@notice {_ABOUT[contract]}",
                f"@dev At {format_address(address)} on every chain; the node itself is behind it, no EVM. Amounts "
                f"are {_UNIT}. What is refused reverts with Error(string): a stable code.",
            ],
            "",
        ),
        f"interface {interface_of(contract)} {{",
    ]
    for item in sorted(abi, key=lambda item: item["type"], reverse=True):  # functions, then events, in their order
        lines += [*_member(contract, item), ""]
    return "\n".join([*lines[:-1], "}"]) + "\n"


def _member(contract: str, item: Json) -> list[str]:
    name, outputs = item["name"], item.get("outputs", [])
    tags = [f"@notice {text_of(contract, name)}"]
    tags += [f"@param {_name(p)} {text_of(contract, name, p['name'])}" for p in item["inputs"]]
    tags += [f"@return {_name(p)} {text_of(contract, name, p['name'])}" for p in outputs]
    if item["type"] == "event":
        arguments = [f"{p['type']}{' indexed' if p['indexed'] else ''} {_name(p)}" for p in item["inputs"]]
        return [*_comment(tags, "    "), *_declaration(f"event {name}", arguments, ";")]
    arguments = [f"{_type(p, 'calldata')} {_name(p)}" for p in item["inputs"]]
    results = [f"{_type(p, 'memory')} {_name(p)}" for p in outputs]
    mutability = "" if item["stateMutability"] == "nonpayable" else f" {item['stateMutability']}"
    returned = f" returns ({', '.join(results)})" if results else ""
    tail = f" external{mutability}{returned};"
    return [
        *_comment(tags, "    "),
        *_declaration(f"function {name}", arguments, tail),
    ]


def _name(parameter: Json) -> str:
    name: str = parameter["name"]
    return f"{name}_" if name in RESERVED else name


def _type(parameter: Json, place: str) -> str:
    kind: str = parameter["type"]
    return f"{kind} {place}" if kind in ("bytes", "string") else kind


def _declaration(head: str, arguments: list[str], tail: str) -> list[str]:
    return textwrap.wrap(
        f"{head}({', '.join(arguments)}){tail}", WIDTH, initial_indent="    ", subsequent_indent="        ",
        break_on_hyphens=False,
    )  # fmt: skip


def _comment(tags: list[str], indent: str) -> list[str]:
    lines = []
    for tag in tags:
        lines += textwrap.wrap(
            tag, WIDTH, initial_indent=f"{indent}/// ", subsequent_indent=f"{indent}///   ", break_on_hyphens=False
        )
    return lines


# Clear signing


def _clear_signing(contract: str, address: bytes, abi: Json, chain_id: int) -> Json:
    formats = {}
    enums: dict[str, dict[str, str]] = {}
    for item in _writes(abi):
        name = item["name"]
        declared = ", ".join(f"{p['type']} {p['name']}" for p in item["inputs"])
        fields = [{"path": "@.value", "label": "Amount", "format": "amount"}]
        fields = fields if item["stateMutability"] == "payable" else []
        fields += [_field(p, enums) for p in item["inputs"]]
        formats[f"{name}({declared})"] = {
            "$id": name, "intent": _TEXTS[contract, name].intent, "fields": fields,
        }  # fmt: skip
    metadata: Json = {"owner": OWNER, "contractName": f"{OWNER} {contract}"}
    return {
        "$schema": SCHEMA,
        "context": {
            "$id": f"{OWNER} {contract}",
            "contract": {"deployments": [{"chainId": chain_id, "address": format_address(address)}]},
        },
        "metadata": metadata | ({"enums": enums} if enums else {}),
        "display": {"formats": formats},
    }


def _field(parameter: Json, enums: dict[str, dict[str, str]]) -> Json:
    name, kind = parameter["name"], parameter["type"]
    field: Json = {"path": f"#.{name}", "label": _label(name), "format": "raw"}
    if name == "amount":
        field["format"] = "amount"
    elif kind == "address":
        field |= {"format": "addressName", "params": {"types": ["eoa"]}}
    elif name == "reason":
        enums["reason"] = {str(int(item)): item.name.lower().replace("_", " ").capitalize() for item in Reason}
        field |= {"format": "enum", "params": {"$ref": "$.metadata.enums.reason"}}
    elif kind == "bytes":  # an encoding for machines: shown where there is room
        field["visible"] = "optional"
    return field


def _label(name: str) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    return words.capitalize().replace("Vrf", "VRF")
