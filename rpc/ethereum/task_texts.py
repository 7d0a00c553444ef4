"""What the functions and events of the contract of tasks mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rpc.ethereum.text import REASON, TASK_PHASE, UNIT, WINDOW_PHASE, Text, names_of
from tasks.claims import Fault
from tasks.kinds.container import ExitKind
from tasks.ledger.disputes import DisputeEnding, DisputePhase
from tasks.ledger.group_records import GroupPhase
from tasks.ledger.lifecycle import Reason
from tasks.ledger.quorum_records import QuorumPhase

__all__ = ["TASK_TEXTS"]

TASK_TEXTS: Final[Mapping[tuple[str, str], Text]] = {
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
    ("tasks", "checkpointTask"): Text(
        "Name the checkpoint of a container that its worker has stored; pay of the interval before it is due.",
        {
            "elapsed": "Seconds since the sender's container began that the checkpoint holds.",
            "blob": "Content address of the packed folder; empty: it cannot be stored.",
            "size": "Bytes of the packed folder.",
        },
        "Name a checkpoint",
    ),
    ("tasks", "missCheckpoint"): Text(
        "Say that a checkpoint is not there, as the machine that prepares; as requester of a container "
        "refuse it, so that pay that waits is burned.",
        {
            "blob": "Content address of the checkpoint. Of a requester also zero, for what no checkpoint "
            "holds, or the address of the last machine."
        },
        "Miss or refuse a checkpoint",
    ),
    ("tasks", "finishTask"): Text(
        "Say how a container has ended, as its worker; its last seconds are paid and the task ends.",
        {
            "elapsed": "Seconds since the sender's container began.",
            "end": "How it ended, with its output and logs: canonical CBOR.",
        },
        "End a container's task",
    ),
    ("tasks", "sealOutput"): Text(
        "Say that a container of a quorum has ended, as its worker, and seal its result.",
        {
            "elapsed": "Seconds since the sender's container began.",
            "seal": "Hash of the task, the sender, the result and a salt.",
        },
        "Seal a container's output",
    ),
    ("tasks", "revealOutput"): Text(
        "Open the sender's seal once all machines of a quorum have sealed.",
        {"result": "Hash of how the container ended and what it left.", "salt": "Salt of the seal."},
        "Reveal a container's output",
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
            "phase": TASK_PHASE,
            "reason": REASON,
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
            "phase": f"Phase: {names_of(DisputePhase)}.",
            "ending": f"How it ended: {names_of(DisputeEnding)}.",
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
            "reason": REASON,
            "fault": f"What is wrong with the data set: {names_of(Fault)}; 0 if the job diverges.",
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
            "phase": f"Phase: {names_of(GroupPhase)}.",
            "reason": REASON,
        },
    ),
    ("tasks", "TaskCreated"): Text("A task was created.", {"spec": "Hash of its specification."}),
    ("tasks", "TaskPhase"): Text(
        "A task changed its phase.",
        {
            "before": "The phase before, numbered alike.",
            "phase": TASK_PHASE,
            "reason": REASON,
            "evidence": "Hash of what shows it, such as the transaction.",
        },
    ),
    ("tasks", "WindowPhase"): Text(
        "A window of a task changed its phase.",
        {"before": "The phase before, numbered alike.", "phase": WINDOW_PHASE, "reason": REASON},
    ),
    ("tasks", "WorkerAssigned"): Text("A task was given to a machine, which may accept it."),
    ("tasks", "SecondsMetered"): Text(
        "Seconds of a container were counted or paid.",
        {
            "added": "Seconds that were added.",
            "total": "Seconds of the task in all.",
            "paid": f"Price of the added seconds, {UNIT}.",
        },
    ),
    ("tasks", "OutputSealed"): Text(
        "A machine of a quorum has sealed what its container left.", {"seal": "Hash over the result and a salt."}
    ),
    ("tasks", "OutputRevealed"): Text(
        "A machine of a quorum has opened its seal.",
        {"result": "Hash of how its container ended and what it left."},
    ),
    ("tasks", "QuorumPhase"): Text(
        "A quorum of machines that run one container has moved on.",
        {
            "quorum": "Id of the task of its first seat.",
            "before": "The phase before, numbered alike.",
            "phase": f"{names_of(QuorumPhase)}.",
            "result": "Result of most of them; zero: none yet.",
        },
    ),
    ("tasks", "CheckpointStored"): Text(
        "A checkpoint of a container was stored, as its worker says.",
        {
            "blob": "Content address of the packed folder; zero: an empty one.",
            "size": "Bytes of the packed folder.",
            "elapsed": "Seconds of the task that it holds.",
        },
    ),
    ("tasks", "SecondsLost"): Text(
        "Seconds of a container are neither kept nor paid: its worker has left, or its checkpoint cannot be had.",
        {
            "lost": "Seconds that another machine does again.",
            "amount": f"Pay that returns to the task, {UNIT}.",
        },
    ),
    ("tasks", "ContainerEnded"): Text(
        "A container has ended, as its worker says; nobody has checked that.",
        {
            "kind": f"How: {names_of(ExitKind)}.",
            "code": "Exit code, or number of the signal.",
            "output": "Content address of what it left; zero: nothing.",
            "logs": "Content address of the end of what it printed; zero: nothing.",
        },
    ),
}
