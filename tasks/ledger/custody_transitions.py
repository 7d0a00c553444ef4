"""The kinds of transactions of custody: terms, receipts, demands, proofs of a lie, the end (market.md 11.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.transition.calls import CallForm
from state.transition.rules import Context, Rule
from state.view import Overlay
from tasks.claims import InputClaim, claim_from_value
from tasks.custody.chunks import BlobCommitment, ChunkProof, chunk_proof_from_value
from tasks.custody.inputs import PlainClaim, plain_claim_from_value
from tasks.custody.keys import INPUTS_MAX, KEY_BYTES, KeyProof, key_proof_from_value
from tasks.custody.layout import LeafEvidence, PlainChunk, leaf_evidence_from_value, plain_chunk_from_value
from tasks.ledger import registration
from tasks.ledger.custody import ANSWER_GAS, answer, ask, demand, end, sign_delivery, take
from tasks.ledger.custody_inputs import (
    CLAIM_GARBAGE_GAS,
    CLAIM_KEYED_GAS,
    CLAIM_PLAIN_GAS,
    claim_garbage,
    claim_keyed,
    claim_plain,
    keep_input,
)
from tasks.ledger.custody_lies import reveal_garbage, reveal_mismatch
from tasks.ledger.custody_records import INPUT_WINDOW
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.proofs import CUSTODY_SIZE_LIMIT
from tasks.spec import WINDOWS_MAX

__all__ = [
    "ANSWER_DEMAND",
    "ASK_CUSTODY",
    "CLAIM_GARBAGE",
    "CLAIM_KEYED",
    "CLAIM_PLAIN",
    "DEMAND_CUSTODY",
    "END_CUSTODY",
    "KEEP_INPUT",
    "RECEIVE_CUSTODY",
    "REVEAL_GARBAGE",
    "REVEAL_MISMATCH",
    "TAKE_CUSTODY",
    "custody_rules",
]

ASK_CUSTODY: Final = 0x34
TAKE_CUSTODY: Final = 0x35
DEMAND_CUSTODY: Final = 0x36
ANSWER_DEMAND: Final = 0x37
RECEIVE_CUSTODY: Final = 0x38
REVEAL_GARBAGE: Final = 0x39
REVEAL_MISMATCH: Final = 0x3A
END_CUSTODY: Final = 0x3B
KEEP_INPUT: Final = 0x3C
CLAIM_GARBAGE: Final = 0x3D
CLAIM_PLAIN: Final = 0x3E
CLAIM_KEYED: Final = 0x3F

_CALLS: Final = {
    ASK_CUSTODY: CallForm(LEDGER_ADDRESS, "askCustody(bytes32 task, bytes32 keyRoot, uint32 inputs)", value_at=3),
    TAKE_CUSTODY: CallForm(LEDGER_ADDRESS, "takeCustody(bytes32 task, uint32 window)", value_at=2),
    DEMAND_CUSTODY: CallForm(
        LEDGER_ADDRESS, "demandCustody(bytes32 task, uint32 window, address custodian)", value_at=3
    ),
    ANSWER_DEMAND: CallForm(
        LEDGER_ADDRESS, "answerDemand(bytes32 task, uint32 window, bytes chunk)", nested=("chunk",)
    ),
    RECEIVE_CUSTODY: CallForm(LEDGER_ADDRESS, "receiveCustody(bytes32 task, uint32 window)"),
    REVEAL_GARBAGE: CallForm(
        LEDGER_ADDRESS, "revealGarbage(bytes32 task, uint32 window, bytes32 key, bytes path, bytes chunk)",
        nested=("path", "chunk"),
    ),
    REVEAL_MISMATCH: CallForm(
        LEDGER_ADDRESS, "revealMismatch(bytes32 task, uint32 window, bytes plain, bytes leaf)",
        nested=("plain", "leaf"),
    ),
    END_CUSTODY: CallForm(LEDGER_ADDRESS, "endCustody(bytes32 task, uint32 window)"),
    KEEP_INPUT: CallForm(
        LEDGER_ADDRESS, "keepInput(bytes32 task, uint64 size, bytes32 plainRoot, bytes32 cipherRoot)", value_at=4
    ),
    CLAIM_GARBAGE: CallForm(
        LEDGER_ADDRESS, "claimGarbage(bytes32 task, bytes32 key, bytes path, bytes chunk)",
        nested=("path", "chunk"),
    ),
    CLAIM_KEYED: CallForm(
        LEDGER_ADDRESS, "claimKeyed(bytes claim, bytes32 key, bytes path)", nested=("claim", "path")
    ),
    CLAIM_PLAIN: CallForm(LEDGER_ADDRESS, "claimPlain(bytes shown)", nested=("shown",)),
}  # fmt: skip
AMOUNT_LIMIT: Final = 1 << 127
CaseOf = Callable[[Overlay, Context, bytes], Case]


class CustodyTerms(NamedTuple):
    """What a requester asks for: the root of its keys, of how many inputs, and what it locks."""

    task: bytes
    key_root: bytes
    inputs: int
    amount: int


class OutputOf(NamedTuple):
    """The output of a window, and an amount for it: a custodian's bond, or 0."""

    task: bytes
    window: int
    amount: int = 0


class CustodyDemand(NamedTuple):
    """A demand of the requester on a custodian, and what it locks for it at most."""

    task: bytes
    window: int
    custodian: bytes
    amount: int


class DemandedChunk(NamedTuple):
    """The chunk that was demanded."""

    task: bytes
    window: int
    chunk: ChunkProof


class RevealedGarbage(NamedTuple):
    """A window's key with its path, and a chunk in custody that it does not open."""

    task: bytes
    window: int
    key: bytes
    path: KeyProof
    chunk: ChunkProof


class RevealedMismatch(NamedTuple):
    """A plain chunk, and the leaf of the state that it differs from; None: it differs in what is fixed."""

    task: bytes
    window: int
    chunk: PlainChunk
    leaf: LeafEvidence | None


class KeptInput(NamedTuple):
    """What a requester's data set is, and what it locks for its custody."""

    task: bytes
    blob: BlobCommitment
    amount: int


class KeyedClaim(NamedTuple):
    """A claim about the cipher of an input, and the input's key with its path."""

    claim: InputClaim
    key: bytes
    path: KeyProof


class ClaimedGarbage(NamedTuple):
    """An input's key with its path, and a chunk of the cipher that it does not open."""

    task: bytes
    key: bytes
    path: KeyProof
    chunk: ChunkProof


def _is_place(task: bytes, window: int = 0) -> bool:
    return len(task) == HASH_BYTES and 0 <= window < WINDOWS_MAX


def _is_kept(task: bytes, window: int) -> bool:
    """Tell whether what is meant can be in custody: the output of a window, or the input."""
    return _is_place(task, 0 if window == INPUT_WINDOW else window)


def _decode_ask(payload: list[Any]) -> CustodyTerms:
    match payload:
        case [bytes(task), bytes(root), int(inputs), int(amount)] if (
            _is_place(task)
            and len(root) == HASH_BYTES
            and 0 <= inputs <= INPUTS_MAX
            and 0 <= amount < AMOUNT_LIMIT
        ):
            return CustodyTerms(task, root, inputs, amount)
        case _:
            raise DecodeError("[task, root of keys, inputs, amount] expected")


def _decode_take(payload: list[Any]) -> OutputOf:
    match payload:
        case [bytes(task), int(window), int(amount)] if _is_kept(task, window) and 0 <= amount < AMOUNT_LIMIT:
            return OutputOf(task, window, amount)
        case _:
            raise DecodeError("[task, window, amount] expected")


def _decode_output(payload: list[Any]) -> OutputOf:
    match payload:
        case [bytes(task), int(window)] if _is_place(task, window):
            return OutputOf(task, window)
        case _:
            raise DecodeError("[task, window] expected")


def _decode_receive(payload: list[Any]) -> OutputOf:
    match payload:
        case [bytes(task), int(window)] if _is_kept(task, window):
            return OutputOf(task, window)
        case _:
            raise DecodeError("[task, window] expected")


def _decode_demand(payload: list[Any]) -> CustodyDemand:
    match payload:
        case [bytes(task), int(window), bytes(custodian), int(amount)] if (
            _is_kept(task, window) and len(custodian) == ADDRESS_BYTES and 0 <= amount < AMOUNT_LIMIT
        ):
            return CustodyDemand(task, window, custodian, amount)
        case _:
            raise DecodeError("[task, window, custodian, amount] expected")


def _decode_answer(payload: list[Any]) -> DemandedChunk:
    match payload:
        case [bytes(task), int(window), list(chunk)] if _is_kept(task, window):
            return DemandedChunk(task, window, chunk_proof_from_value(chunk))
        case _:
            raise DecodeError("[task, window, chunk] expected")


def _decode_garbage(payload: list[Any]) -> RevealedGarbage:
    match payload:
        case [bytes(task), int(window), bytes(key), list(path), list(chunk)] if (
            _is_place(task, window) and len(key) == KEY_BYTES
        ):
            return RevealedGarbage(task, window, key, key_proof_from_value(path), chunk_proof_from_value(chunk))
        case _:
            raise DecodeError("[task, window, key, path of the key, chunk] expected")


def _decode_mismatch(payload: list[Any]) -> RevealedMismatch:
    match payload:
        case [bytes(task), int(window), list(chunk), list(leaf)] if _is_place(task, window):
            return RevealedMismatch(task, window, plain_chunk_from_value(chunk), leaf_evidence_from_value(leaf))
        case _:
            raise DecodeError("[task, window, plain chunk, leaf of the state] expected")


def _decode_input(payload: list[Any]) -> KeptInput:
    match payload:
        case [bytes(task), int(size), bytes(plain), bytes(cipher), int(amount)] if (
            _is_place(task) and 0 < size < CUSTODY_SIZE_LIMIT and len(plain) == len(cipher) == HASH_BYTES
            and 0 <= amount < AMOUNT_LIMIT
        ):  # fmt: skip
            return KeptInput(task, BlobCommitment(size, plain, cipher), amount)
        case _:
            raise DecodeError("[task, size, root of plain chunks, root of cipher chunks, amount] expected")


def _decode_claimed(payload: list[Any]) -> ClaimedGarbage:
    match payload:
        case [bytes(task), bytes(key), list(path), list(chunk)] if _is_place(task) and len(key) == KEY_BYTES:
            return ClaimedGarbage(task, key, key_proof_from_value(path), chunk_proof_from_value(chunk))
        case _:
            raise DecodeError("[task, key, path of the key, chunk] expected")


def _decode_keyed(payload: list[Any]) -> KeyedClaim:
    match payload:
        case [list(claim), bytes(key), list(path)] if len(key) == KEY_BYTES:
            return KeyedClaim(claim_from_value(claim), key, key_proof_from_value(path))
        case _:
            raise DecodeError("[claim, key, path of the key] expected")


def _decode_plain(payload: list[Any]) -> PlainClaim:
    match payload:
        case [list(claim)]:
            return plain_claim_from_value(claim)
        case _:
            raise DecodeError("[claim] expected")


class _Custody:
    """The rules; ``case_of`` opens a task for the sender of a transaction."""

    def __init__(self, case_of: CaseOf) -> None:
        self._case_of = case_of

    def _done(self, state: Overlay, case: Case, context: Context) -> None:
        registration.touch(state, context.sender, context.block.steady_ms, case.parameters)
        case.save()

    def ask(self, state: Overlay, payload: CustodyTerms, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        ask(case, context.sender, payload.key_root, payload.inputs, payload.amount)
        self._done(state, case, context)

    def take(self, state: Overlay, payload: OutputOf, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        take(case, payload.window, context.sender, payload.amount)
        self._done(state, case, context)

    def demand(self, state: Overlay, payload: CustodyDemand, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        demand(case, payload.window, context.sender, payload.custodian, payload.amount)
        self._done(state, case, context)

    def answer(self, state: Overlay, payload: DemandedChunk, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        answer(case, payload.window, context.sender, payload.chunk)
        self._done(state, case, context)

    def receive(self, state: Overlay, payload: OutputOf, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        sign_delivery(case, payload.window, context.sender)
        self._done(state, case, context)

    def garbage(self, state: Overlay, payload: RevealedGarbage, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        reveal_garbage(case, payload.window, context.sender, payload.key, payload.path, payload.chunk)
        self._done(state, case, context)

    def mismatch(self, state: Overlay, payload: RevealedMismatch, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        reveal_mismatch(case, payload.window, context.sender, payload.chunk, payload.leaf)
        self._done(state, case, context)

    def end(self, state: Overlay, payload: OutputOf, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        end(case, payload.window, context.sender)
        self._done(state, case, context)

    def input(self, state: Overlay, payload: KeptInput, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        keep_input(case, context.sender, payload.blob, payload.amount)
        self._done(state, case, context)

    def claimed(self, state: Overlay, payload: ClaimedGarbage, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        claim_garbage(case, context.sender, payload.key, payload.path, payload.chunk)
        self._done(state, case, context)

    def keyed(self, state: Overlay, payload: KeyedClaim, context: Context) -> None:
        case = self._case_of(state, context, payload.claim.task)
        claim_keyed(case, context.sender, payload.claim, payload.key, payload.path)
        self._done(state, case, context)

    def plain(self, state: Overlay, payload: PlainClaim, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        claim_plain(case, context.sender, payload)
        self._done(state, case, context)


def _free(_payload: Any) -> int:
    return 0


def _amount(payload: Any) -> int:
    return int(payload.amount)


def custody_rules(case_of: CaseOf) -> tuple[Rule[Any], ...]:
    """Return the kinds of transactions of custody."""
    custody = _Custody(case_of)
    own = (
        Rule(ASK_CUSTODY, "ask_custody", 180_000, _decode_ask, _amount, custody.ask),
        Rule(TAKE_CUSTODY, "take_custody", 400_000, _decode_take, _amount, custody.take),
        # What the chain does for it: draws of a chunk, or of three receivers.
        Rule(DEMAND_CUSTODY, "demand_custody", 500_000, _decode_demand, _amount, custody.demand),
        Rule(ANSWER_DEMAND, "answer_demand", ANSWER_GAS, _decode_answer, _free, custody.answer),
        Rule(RECEIVE_CUSTODY, "receive_custody", 420_000, _decode_receive, _free, custody.receive),
        # A proof may void as many windows as are open, at the end of the block. About a state all tensors are laid
        # out, of which there are thousands.
        Rule(REVEAL_GARBAGE, "reveal_garbage", 2_000_000, _decode_garbage, _free, custody.garbage),
        Rule(REVEAL_MISMATCH, "reveal_mismatch", 8_000_000, _decode_mismatch, _free, custody.mismatch),
        Rule(END_CUSTODY, "end_custody", 1_000_000, _decode_output, _free, custody.end),
        # What the chain does for it: up to four draws, and the end.
        Rule(KEEP_INPUT, "keep_input", 600_000, _decode_input, _amount, custody.input),
        Rule(CLAIM_GARBAGE, "claim_garbage", CLAIM_GARBAGE_GAS, _decode_claimed, _free, custody.claimed),
        Rule(CLAIM_KEYED, "claim_keyed", CLAIM_KEYED_GAS, _decode_keyed, _free, custody.keyed),
        Rule(CLAIM_PLAIN, "claim_plain", CLAIM_PLAIN_GAS, _decode_plain, _free, custody.plain),
    )
    return tuple(replace(rule, call=_CALLS[rule.kind]) for rule in own)
