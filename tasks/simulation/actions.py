"""What agents can do: each action is one transaction of the market's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from state.primitives.codec import Value, encode
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.manifests import Manifest, piece_hash
from state.primitives.signing import personal_digest
from tasks.claims import claim_to_value, find_fault
from tasks.custody.chunks import chunk_proof_to_value
from tasks.custody.keys import KeyCommitments, derive_key, key_proof_to_value, window_key_name
from tasks.custody.layout import plain_chunk_to_value
from tasks.dispute.moves import Move, encode_move
from tasks.ledger.bonds import SET_TERMS, SPONSOR_NODE, WITHDRAW_SPONSOR
from tasks.ledger.claim_transitions import CLAIM_DIVERGED, CLAIM_INPUT
from tasks.ledger.custody_queries import CustodyDuty
from tasks.ledger.custody_transitions import (
    ANSWER_DEMAND,
    ASK_CUSTODY,
    DEMAND_CUSTODY,
    END_CUSTODY,
    RECEIVE_CUSTODY,
    REVEAL_GARBAGE,
    REVEAL_MISMATCH,
    TAKE_CUSTODY,
)
from tasks.ledger.dispute_transitions import MOVE, OPEN_CHALLENGE, RESUME_DISPUTE, SEAL_CHALLENGE, SHOW_BREAK
from tasks.ledger.disputes import challenge_seal
from tasks.ledger.group_transitions import ADD_SEATS, CREATE_GROUP
from tasks.ledger.lifecycle import Reason
from tasks.ledger.queries import CheckDuty, DisputeDuty, WorkDuty
from tasks.ledger.registration import operator_words
from tasks.ledger.registry import NodeProfile, NodeRole
from tasks.ledger.serving_transitions import SERVE_WINDOW
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CANCEL_TASK,
    CREATE_TASK,
    DEMAND_RESULT,
    GIVE_UP_TASK,
    OPEN_WINDOW,
    REGISTER_NODE,
    RESUME_TASK,
    REVEAL_VERDICT,
    SEAL_VERDICT,
    START_TASK,
    SUBMIT_WINDOW,
    UPDATE_NODE,
    node_payload,
)
from tasks.ledger.trial_transitions import ASK_TRIAL, COMMIT_TRIAL, JUDGE_TRIAL, SHOW_TRIAL
from tasks.proofs import (
    Break,
    Finding,
    WindowProof,
    break_to_value,
    findings_to_value,
    make_opening,
    opening_to_value,
    segment_root,
    verdict_seal,
    window_proof_to_value,
)
from tasks.simulation.work import Made, Output, task_key
from tasks.spec import JobSpec, encode_spec
from tasks.trials import ShownLink, shown_to_value

__all__ = ["JUNK_BLOB", "Account", "Action", "Actions", "Challenge", "Offer", "Terms", "seal_of"]


JUNK: Final = b"5.1,3.5,1.4,0.2\n" * 150
"""A table that is no data set."""
JUNK_BLOB: Final = Manifest(len(JUNK), (piece_hash(JUNK),)).blob_id


class Action(NamedTuple):
    """A transaction that an agent wants: made by a ``View``, opaque to agents."""

    sender: bytes
    kind: int
    payload: list[Value]


class Offer(NamedTuple):
    """What a machine says of itself; ``operator`` is the account that it declares, or None for itself."""

    roles: NodeRole
    price_per_tera_unit: int
    rate: int
    bond: int
    slots: int = 1
    operator: Account | None = None
    until_ms: int = 0
    """Until when it offers to stay with containers; 0: it may leave."""


class Account:
    """An address with its key; keys sign only that an operator knows its machine."""

    def __init__(self, name: str, number: int) -> None:
        self.key: Final = SecretKey(digest(b"sim-account", name.encode() + number.to_bytes(8, "big")))
        self.address: Final = self.key.address


class Terms(NamedTuple):
    """On which terms a sponsor bonds for a machine; shares are in basis points."""

    share_bps: int
    withhold_bps: int
    withhold_to: int


class Challenge(NamedTuple):
    """What an outsider found in a segment of a window, and the salt of its seal."""

    task: bytes
    window: int
    segment: int
    work_digest: bytes
    state_root_after: bytes
    loss_bits: int
    salt: bytes


def seal_of(challenge: Challenge, sender: bytes) -> bytes:
    """Return the seal of a challenge."""
    return challenge_seal(*challenge[:6], sender, challenge.salt)


class Actions:
    """The transactions that agents send. Nothing here reads the chain."""

    genesis_hash: bytes

    def _profile(self, account: Account, offer: Offer) -> NodeProfile:
        operator, consent = account.address, b""
        if offer.operator is not None:
            operator = offer.operator.address
            words = personal_digest(operator_words(self.genesis_hash, account.address))
            consent = offer.operator.key.sign(words)
        return NodeProfile(
            operator, offer.roles, (), 64, 64_000, 64, offer.price_per_tera_unit, offer.rate, offer.slots, 0, (),
            "simulated", consent, offer.until_ms,
        )  # fmt: skip

    def register(self, account: Account, offer: Offer) -> Action:
        """Register a machine."""
        return Action(account.address, REGISTER_NODE, node_payload(self._profile(account, offer), offer.bond))

    def update(self, account: Account, offer: Offer) -> Action:
        """Replace what a machine says of itself; its bond stays."""
        return Action(account.address, UPDATE_NODE, node_payload(self._profile(account, offer), 0))

    def accept_sponsor(self, sender: bytes, sponsor: bytes, terms: Terms) -> Action:
        """Say on which terms somebody may bond for the sender's machine."""
        return Action(sender, SET_TERMS, [sender, sponsor, *terms])

    def sponsor(self, sender: bytes, machine: bytes, terms: Terms, amount: int) -> Action:
        """Bond for a machine."""
        return Action(sender, SPONSOR_NODE, [machine, *terms, amount])

    def withdraw_sponsor(self, sender: bytes, machine: bytes, amount: int) -> Action:
        """Announce that a sponsor takes its bond back."""
        return Action(sender, WITHDRAW_SPONSOR, [machine, amount])

    def challenge(self, sender: bytes, challenge: Challenge, amount: int) -> Action:
        """Seal a challenge of an outsider, with ``amount`` at most as its bond."""
        seal = seal_of(challenge, sender)
        return Action(sender, SEAL_CHALLENGE, [challenge.task, challenge.window, seal, amount])

    def open_challenge(self, sender: bytes, number: int, challenge: Challenge) -> Action:
        """Open a challenge that was called."""
        task, window, segment, work, root, losses, salt = challenge
        return Action(sender, OPEN_CHALLENGE, [task, window, number, segment, work, root, losses, salt])

    def create(self, sender: bytes, job: JobSpec) -> Action:
        """Create a task."""
        return Action(sender, CREATE_TASK, [encode_spec(job)])

    def group(self, sender: bytes, job: JobSpec, members: int, spares: int) -> Action:
        """Create a group, and its seat 0."""
        return Action(sender, CREATE_GROUP, [encode_spec(job), members, spares])

    def seats(self, sender: bytes, group: bytes, roots: Sequence[bytes], amount: int) -> Action:
        """Make the next seats of a group; an empty root is that of a spare."""
        return Action(sender, ADD_SEATS, [group, list(roots), amount])

    def ask_trial(self, sender: bytes) -> Action:
        """Ask for a speed trial of the sender's machine."""
        return Action(sender, ASK_TRIAL, [])

    def commit_trial(self, sender: bytes, links: int, root: bytes, amount: int) -> Action:
        """Commit to the links of a trial."""
        return Action(sender, COMMIT_TRIAL, [links, root, amount])

    def show_trial(self, sender: bytes, links: Sequence[ShownLink]) -> Action:
        """Show the links that were drawn."""
        return Action(sender, SHOW_TRIAL, [[shown_to_value(link) for link in links]])

    def judge_trial(self, sender: bytes, machine: bytes, results: Sequence[bytes]) -> Action:
        """Say what the links of another machine's trial give."""
        return Action(sender, JUDGE_TRIAL, [machine, list(results)])

    def custody_terms(self, sender: bytes, task: bytes, windows: int, amount: int) -> Action:
        """Ask for custody of the outputs of a task."""
        return Action(sender, ASK_CUSTODY, [task, KeyCommitments(task_key(task), 0, windows).root, 0, amount])

    def custody_demand(self, sender: bytes, task: bytes, window: int, holder: bytes, amount: int) -> Action:
        """Demand an output of a custodian."""
        return Action(sender, DEMAND_CUSTODY, [task, window, holder, amount])

    def cancel(self, sender: bytes, task: bytes) -> Action:
        """Cancel a task."""
        return Action(sender, CANCEL_TASK, [task])

    def resume(self, sender: bytes, task: bytes) -> Action:
        """End a pause of a task."""
        return Action(sender, RESUME_TASK, [task])

    def demand(self, sender: bytes, task: bytes, amount: int) -> Action:
        """Have drawn machines fetch the result of a task."""
        return Action(sender, DEMAND_RESULT, [task, amount])

    def accept(self, sender: bytes, duty: WorkDuty) -> Action:
        """Accept a task, with the bond that it asks."""
        return Action(sender, ACCEPT_TASK, [duty.task, duty.bond])

    def claim_junk(self, sender: bytes, task: bytes, job: JobSpec) -> Action:
        """Prove that a task's data set is ``JUNK``."""
        claim = find_fault(task, job, JUNK)
        assert claim is not None
        return Action(sender, CLAIM_INPUT, [claim_to_value(claim)])

    def start(self, sender: bytes, duty: WorkDuty) -> Action:
        """Say that the first segment was done."""
        return Action(sender, START_TASK, [duty.task, b"m" * 32])

    def give_up(self, sender: bytes, task: bytes, reason: Reason) -> Action:
        """Leave a task."""
        return Action(sender, GIVE_UP_TASK, [task, int(reason)])

    def submit(self, sender: bytes, made: Made) -> Action:
        """Prove a window, or claim that the job diverges in it."""
        leaves = made.leaves
        proof = WindowProof(
            made.task, made.window, leaves[0].step_from, leaves[-1].step_to, leaves[0].state_root_before,
            made.state_root_out, segment_root(leaves), len(leaves), b"L" * 32, b"O" * 32, made.custody or (),
            made.claim,
        )  # fmt: skip
        kind = SUBMIT_WINDOW if made.claim is None else CLAIM_DIVERGED
        return Action(sender, kind, [window_proof_to_value(proof)])

    def take_custody(self, sender: bytes, duty: CustodyDuty) -> Action:
        """Sign for an output."""
        return Action(sender, TAKE_CUSTODY, [duty.task, duty.window, duty.bond])

    def answer_demand(self, sender: bytes, duty: CustodyDuty, output: Output) -> Action:
        """Post a demanded chunk."""
        chunk = chunk_proof_to_value(output.chunk(duty.chunk))
        return Action(sender, ANSWER_DEMAND, [duty.task, duty.window, chunk])

    def receive_custody(self, sender: bytes, duty: CustodyDuty) -> Action:
        """Sign for an output that a custodian has delivered."""
        return Action(sender, RECEIVE_CUSTODY, [duty.task, duty.window])

    def end_custody(self, sender: bytes, task: bytes, window: int) -> Action:
        """End the custody of an output."""
        return Action(sender, END_CUSTODY, [task, window])

    def reveal_garbage(self, sender: bytes, output: Output) -> Action:
        """Show that a chunk in custody is not what its worker committed to."""
        name, secret = window_key_name(output.window), task_key(output.task)
        path = key_proof_to_value(KeyCommitments(secret, 0, output.windows).proof(name))
        chunk = chunk_proof_to_value(output.chunk(0))
        return Action(sender, REVEAL_GARBAGE, [output.task, output.window, derive_key(secret, name), path, chunk])

    def reveal_mismatch(self, sender: bytes, output: Output) -> Action:
        """Show that the plain bytes that a worker commits to are no state."""
        plain = plain_chunk_to_value(output.plain_chunk(0))
        return Action(sender, REVEAL_MISMATCH, [output.task, output.window, plain, []])

    def open(self, sender: bytes, made: Made, segments: Sequence[int]) -> Action:
        """Open sampled segments of a window."""
        openings: list[Value] = [
            opening_to_value(make_opening(made.leaves, at, made.digests[at], made.salts[at])) for at in segments
        ]
        return Action(sender, OPEN_WINDOW, [made.task, made.window, openings])

    def serve(self, sender: bytes, duty: WorkDuty) -> Action:
        """Say that a window is served."""
        return Action(sender, SERVE_WINDOW, [duty.task, duty.window])

    def move(self, sender: bytes, duty: DisputeDuty, move: Move) -> Action:
        """Make the move that is due in a dispute."""
        return Action(sender, MOVE, [duty.task, duty.window, duty.game, duty.number, encode_move(move)])

    def open_segment(self, sender: bytes, duty: DisputeDuty, made: Made) -> Action:
        """Open the segment that an outsider challenges."""
        at = duty.segment
        opening = encode(opening_to_value(make_opening(made.leaves, at, made.digests[at], made.salts[at])))
        return Action(sender, MOVE, [duty.task, duty.window, duty.game, duty.number, opening])

    def resume_dispute(self, sender: bytes, duty: DisputeDuty) -> Action:
        """Go on with a dispute after a missed clock."""
        assert duty.resume_price is not None
        return Action(sender, RESUME_DISPUTE, [duty.task, duty.window, duty.game, duty.resume_price])

    def show_break(self, sender: bytes, task: bytes, window: int, shown: Break) -> Action:
        """Show leaves of a window that do not fit."""
        return Action(sender, SHOW_BREAK, [task, window, *break_to_value(shown)])

    def seal(self, sender: bytes, duty: CheckDuty, findings: Sequence[Finding], nonce: bytes) -> Action:
        """Seal a verdict."""
        seal = verdict_seal(duty.task, duty.window, sender, findings, nonce)
        return Action(sender, SEAL_VERDICT, [duty.task, duty.window, seal])

    def reveal(self, sender: bytes, duty: CheckDuty, findings: Sequence[Finding], nonce: bytes) -> Action:
        """Reveal a sealed verdict."""
        return Action(sender, REVEAL_VERDICT, [duty.task, duty.window, findings_to_value(findings), nonce])
