"""Inputs in custody: a task whose data set is kept by others is no bid before that (market.md R44 to R46).

The custody itself is that of an output (``custody``), under a number that no window has. Its author is the
requester, for whom no bond of a worker stands: without enough receipts the task stays out of the book.
"""

from __future__ import annotations

from typing import Final

from billing.errors import PaymentMissing
from billing.escrow import Pool, Purpose
from billing.prices import work_price_up
from tasks.claims import ClaimUnproven, Fault, InputClaim
from tasks.custody.chunks import BlobCommitment, ChunkProof, is_garbage
from tasks.custody.inputs import PlainClaim, check_keyed_claim, check_plain_claim
from tasks.custody.keys import KeyProof, check_key, input_key_name
from tasks.errors import CustodyOff, CustodyRefused, NotYours, WrongPhase
from tasks.ledger.claims import UpheldClaim, end_by_claim
from tasks.ledger.custody import begin_input, bond_for, reserve_for, terms_of
from tasks.ledger.custody_records import INPUT_WINDOW, find_custody, find_input, is_unreliable, save_input
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.open_task import Case
from tasks.ledger.parameters import DAY_MS, TaskParameters
from tasks.ledger.progress import hold_back, is_firm
from tasks.spec import JobSpec

__all__ = [
    "CLAIM_GARBAGE_GAS",
    "CLAIM_KEYED_GAS",
    "CLAIM_PLAIN_GAS",
    "claim_garbage",
    "claim_keyed",
    "claim_plain",
    "input_budget",
    "keep_input",
]

CLAIM_GARBAGE_GAS: Final = 3_000_000
"""Weight of a claim that a cipher is garbage: a chunk with its paths, and the end of the task."""
CLAIM_KEYED_GAS: Final = 6_000_000
"""Weight of a claim about a cipher with its key: as one about an input, with the path of the key."""
CLAIM_PLAIN_GAS: Final = 5_000_000
"""Weight of a claim about plain chunks: its bytes, judging it, and the end of the task."""
DATA_SET: Final = 0
"""Number of the one input of a job."""


def input_budget(spec: JobSpec, parameters: TaskParameters) -> int:
    """Return what the requester of a job locks for the custody of its data set: a line of the quote."""
    return reserve_for(spec.inputs()[0].size_bytes, parameters) if parameters.custody_copies else 0


def keep_input(case: Case, sender: bytes, blob: BlobCommitment, amount: int) -> None:
    """Have a task's data set kept, and the task wait for that before it is a bid.

    Raises CustodyOff, NotYours, WrongPhase, CustodyRefused, PaymentMissing, InsufficientBalance.
    """
    record, parameters = case.record, case.parameters
    terms_of(case)
    if sender != record.requester:
        raise NotYours("the sender is not the requester")
    if record.phase != Phase.MATCHING or record.ending or is_firm(case):  # else it would leave the next call
        raise WrongPhase(record.phase.name.lower())
    if find_custody(case.state, record.id, INPUT_WINDOW) is not None:
        raise CustodyRefused("the input is in custody, or about to be")
    if is_unreliable(case.scope.parent, sender, case.now // DAY_MS, parameters):
        raise CustodyRefused("too many machines had no input of the sender's today")
    size = case.spec.inputs()[0].size_bytes
    if blob.size != size:
        raise CustodyRefused(f"the data set of the job has {size} bytes")
    due = input_budget(case.spec, parameters)
    if amount != due:
        raise PaymentMissing(due=due, got=amount)
    case.vault.lock(Pool.CUSTODY, sender, due, Purpose.CUSTODY, owner=sender)
    price = work_price_up(case.spec.window_units(0), case.spec.max_price_per_tera_unit)
    save_input(case.state, record.id, blob)
    begin_input(case, blob, due, bond_for(price, parameters))
    hold_back(case)


def claim_keyed(case: Case, sender: bytes, claim: InputClaim, key: bytes, key_proof: KeyProof) -> None:
    """End a task whose worker proves with the input's key that the task's blob is no cipher of its data set.

    That needs no commitment: the blob's name stands in the job.
    Raises NotYours, WrongPhase, CustodyOff, KeyInvalid, ClaimUnproven, ChunkInvalid.
    """
    _check_worker(case, sender)
    _check_input_key(case, key, key_proof)
    check_keyed_claim(case.spec, claim, key)
    upheld = UpheldClaim(Reason.INPUT_INVALID, int(claim.fault), claim.place, claim.size)
    end_by_claim(case, upheld, CLAIM_KEYED_GAS)


def _check_worker(case: Case, sender: bytes) -> None:
    record = case.record
    if sender != record.worker:
        raise NotYours("the sender is not the task's worker")
    if record.phase not in (Phase.PREPARING, Phase.RUNNING):
        raise WrongPhase(record.phase.name.lower())


def _check_input_key(case: Case, key: bytes, key_proof: KeyProof) -> None:
    terms = terms_of(case)
    check_key(terms.key_root, terms.inputs, terms.windows, input_key_name(DATA_SET), key, key_proof)


def _claimable(case: Case, sender: bytes) -> BlobCommitment:
    _check_worker(case, sender)
    blob = find_input(case.state, case.record.id)
    if blob is None:
        raise CustodyOff("the requester has not committed to an input")
    return blob


def claim_garbage(case: Case, sender: bytes, key: bytes, key_proof: KeyProof, chunk: ChunkProof) -> None:
    """End a task whose worker proves with the input's key that a chunk of the cipher is garbage.

    Raises NotYours, WrongPhase, CustodyOff, KeyInvalid, ChunkInvalid, ClaimUnproven.
    """
    blob = _claimable(case, sender)
    _check_input_key(case, key, key_proof)
    if not is_garbage(blob, key, chunk, case.spec.dataset.root):
        raise ClaimUnproven("the chunk is the one that the requester committed to")
    _uphold(case, Fault.GARBAGE, (0, 0, chunk.number), blob, CLAIM_GARBAGE_GAS)


def claim_plain(case: Case, sender: bytes, claim: PlainClaim) -> None:
    """End a task whose worker proves by plain chunks that the input is not its data set.

    Raises NotYours, WrongPhase, CustodyOff, ChunkInvalid, ClaimUnproven.
    """
    blob = _claimable(case, sender)
    check_plain_claim(case.spec, blob, claim)
    _uphold(case, claim.fault, claim.place, blob, CLAIM_PLAIN_GAS)


def _uphold(case: Case, fault: Fault, place: tuple[int, int, int], blob: BlobCommitment, gas: int) -> None:
    end_by_claim(case, UpheldClaim(Reason.INPUT_INVALID, int(fault), place, blob.size), gas)
