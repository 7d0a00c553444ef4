"""What the system contracts, their functions and their events mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from billing.prices import Role
from rpc.ethereum.task_texts import TASK_TEXTS
from rpc.ethereum.text import TERMS, UNIT, WEIGHT, Text, names_of
from tasks.ledger.registry import NodeStatus
from tasks.ledger.tampering import TamperSign

__all__ = ["ABOUT", "TEXTS"]

ABOUT: Final[Mapping[str, str]] = {
    "registry": "Machines of the compute market: what they offer, their bond and their record of verified work.",
    "tasks": "Tasks of the compute market, from the locked price to the verified and paid windows.",
    "billing": "What is locked for tasks and machines, and who was paid. Only the chain itself moves it.",
    "staking": "Stake of validators, their keys, and what epochs and proven faults do to them.",
}

_REGISTRY: Final[Mapping[tuple[str, str], Text]] = {
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
        {**TERMS, "node": "The machine.", "sponsor": "Who may bond for it; zero: nobody."},
        "Set the terms of a machine's sponsor",
    ),
    ("registry", "sponsorNode"): Text(
        "Bond for a machine with the value sent, on the terms that stand for the sender; fines take it after the "
        "machine's own bond.",
        {**TERMS, "node": "The machine."},
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
            **TERMS,
            "sponsor": "Who bonds for it, or may; zero: nobody.",
            "leaving": f"What of it is being taken back, {UNIT}.",
            "withheld": f"What of the machine's own bond came out of its pay, {UNIT}.",
        },
    ),
    ("registry", "NodeTerms"): Text(
        "The terms of a machine's sponsor were set.", {**TERMS, "sponsor": "Who may bond for it; zero: nobody."}
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
            "status": f"{names_of(NodeStatus).capitalize()}.",
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
            "due": f"What the payer owes the relay beyond what its deposit has paid, {UNIT}.",
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
        {"deposit": f"All that is there, {UNIT}.", "withdrawing": f"What of it is being taken back, {UNIT}."},
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
    ("registry", "reportTampering"): Text(
        "Report that a job on the sender's own machine was tampered with: another machine goes on, and the "
        "sender's is off the market for a while.",
        {
            "task": "A container's task that the sender runs or has lost.",
            "sign": f"What its node has seen: {names_of(TamperSign)}.",
        },
        "Report tampering on this machine",
    ),
    ("registry", "NodeTampered"): Text(
        "A machine has reported itself: a job on it was tampered with.",
        {
            "sign": f"What its node has seen: {names_of(TamperSign)}.",
            "until": "Until when it is off the market, in milliseconds since 1970.",
            "reports": "Which of its reports this is.",
        },
    ),
    ("registry", "NodeRetired"): Text(
        "A machine leaves the market.", {"gone": "False when it announces it, true when its record is gone."}
    ),
    ("registry", "NodeCoolDown"): Text(
        "A machine failed and gets no work for a while.",
        {"until": "Until when, in milliseconds since 1970.", "failures": "Failures in a row."},
    ),
}
_MONEY: Final[Mapping[tuple[str, str], Text]] = {
    ("billing", "escrowOf"): Text(
        "Return the sums of an escrow; reverts with escrow_unknown.",
        {
            "deposited": f"Paid in, {UNIT}; the sum of the others.",
            "held": f"Still locked, {UNIT}.",
            "paid": f"Paid out, {UNIT}.",
            "refunded": f"Given back, {UNIT}.",
        },
    ),
    ("billing", "earned"): Text(
        "Return what an account was ever paid for a role.", {"role": f"For what: {names_of(Role)}."}
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
        {"weight": f"{WEIGHT} in all.", "version": "Version of the rules that it follows."},
    ),
    ("staking", "CommitteeSelected"): Text(
        "The committee of a later epoch was drawn.",
        {
            "weight": f"{WEIGHT} in all.",
            "anchors": "Seats that the largest stakes have without a lottery.",
            "lotteryWeight": f"{WEIGHT} of the seats that were drawn.",
        },
    ),
    ("staking", "LotteryTooLarge"): Text(
        "More weight was drawn by lottery than is safe.",
        {"lotteryWeight": f"{WEIGHT} of the seats that were drawn.", "weight": f"{WEIGHT} in all."},
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
            "total": f"Taken so far, {UNIT}.",
            "reward": f"For the reporter, {UNIT}.",
        },
    ),
}
TEXTS: Final[Mapping[tuple[str, str], Text]] = {**_REGISTRY, **TASK_TEXTS, **_MONEY}
