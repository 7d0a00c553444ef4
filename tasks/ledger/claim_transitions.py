"""The kinds of transactions of claims that end a task (market.md 5.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from state.primitives.errors import DecodeError
from state.transition.calls import CallForm
from state.transition.rules import Context, Rule
from state.view import Overlay
from tasks.claims import InputClaim, claim_from_value
from tasks.ledger import registration
from tasks.ledger.claims import CLAIM_INPUT_GAS, claim_input
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.proving import CLAIM_DIVERGED_GAS, claim_diverged
from tasks.proofs import WindowProof, window_proof_from_value

__all__ = ["CLAIM_DIVERGED", "CLAIM_INPUT", "claim_rules"]

CLAIM_INPUT: Final = 0x1B
CLAIM_DIVERGED: Final = 0x1C

_CALLS: Final = {
    CLAIM_INPUT: CallForm(LEDGER_ADDRESS, "claimInput(bytes claim)", nested=("claim",)),
    CLAIM_DIVERGED: CallForm(LEDGER_ADDRESS, "claimDiverged(bytes proof)", nested=("proof",)),
}
CaseOf = Callable[[Overlay, Context, bytes], Case]


def _decode_input(payload: list[Any]) -> InputClaim:
    match payload:
        case [list(claim)]:
            return claim_from_value(claim)
        case _:
            raise DecodeError("[claim] expected")


def _decode_diverged(payload: list[Any]) -> WindowProof:
    match payload:
        case [list(proof)]:
            return window_proof_from_value(proof)
        case _:
            raise DecodeError("[window proof] expected")


class _Claims:
    """The rules; ``case_of`` opens a task for the sender of a transaction."""

    def __init__(self, case_of: CaseOf) -> None:
        self._case_of = case_of

    def input(self, state: Overlay, claim: InputClaim, context: Context) -> None:
        case = self._case_of(state, context, claim.task)
        claim_input(case, claim, context.sender)
        registration.touch(state, context.sender, context.block.steady_ms, case.parameters)
        case.save()

    def diverged(self, state: Overlay, proof: WindowProof, context: Context) -> None:
        case = self._case_of(state, context, proof.task)
        claim_diverged(case, proof, context.sender)
        registration.touch(state, context.sender, context.block.time_ms, case.parameters)
        case.save()


def claim_rules(case_of: CaseOf) -> tuple[Rule[Any], ...]:
    """Return the kinds of transactions of claims."""
    claims = _Claims(case_of)
    own: tuple[Rule[Any], ...] = (
        Rule(CLAIM_INPUT, "claim_input", CLAIM_INPUT_GAS, _decode_input, lambda _: 0, claims.input),
        Rule(CLAIM_DIVERGED, "claim_diverged", CLAIM_DIVERGED_GAS, _decode_diverged, lambda _: 0, claims.diverged),
    )
    return tuple(replace(rule, call=_CALLS[rule.kind]) for rule in own)
