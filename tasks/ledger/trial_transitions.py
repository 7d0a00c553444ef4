"""The kinds of transactions of speed trials (market.md 3.6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.transition.calls import CallForm
from state.transition.rules import Context, Rule
from state.view import Overlay
from tasks.ledger import registration, trials
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import REGISTRY_ADDRESS
from tasks.trials import LINKS_MAX, SAMPLES_MAX, ShownLink, shown_from_value

__all__ = ["ASK_TRIAL", "COMMIT_TRIAL", "JUDGE_TRIAL", "SHOW_TRIAL", "trial_rules"]

ASK_TRIAL: Final = 0x50
COMMIT_TRIAL: Final = 0x51
SHOW_TRIAL: Final = 0x52
JUDGE_TRIAL: Final = 0x53
AMOUNT_LIMIT: Final = 1 << 127

_CALLS: Final = {
    ASK_TRIAL: CallForm(REGISTRY_ADDRESS, "askTrial()"),
    COMMIT_TRIAL: CallForm(REGISTRY_ADDRESS, "commitTrial(uint32 links, bytes32 root)", value_at=2),
    SHOW_TRIAL: CallForm(REGISTRY_ADDRESS, "showTrial(bytes links)", nested=("links",)),
    JUDGE_TRIAL: CallForm(REGISTRY_ADDRESS, "judgeTrial(address node, bytes results)", nested=("results",)),
}


class CommittedTrial(NamedTuple):
    """Links that a machine has computed, the root over their states, and the fees of the check."""

    links: int
    root: bytes
    amount: int


class JudgedTrial(NamedTuple):
    """A machine, and the digests of what a verifier computed for the links that it showed."""

    node: bytes
    digests: tuple[bytes, ...]


def _decode_nothing(payload: list[Any]) -> None:
    if payload:
        raise DecodeError("no payload expected")


def _decode_commit(payload: list[Any]) -> CommittedTrial:
    match payload:
        case [int(links), bytes(root), int(amount)] if (
            0 < links <= LINKS_MAX and len(root) == HASH_BYTES and 0 <= amount < AMOUNT_LIMIT
        ):
            return CommittedTrial(links, root, amount)
        case _:
            raise DecodeError("[links, root, amount] expected")


def _decode_show(payload: list[Any]) -> tuple[ShownLink, ...]:
    match payload:
        case [list(links)] if 0 < len(links) <= SAMPLES_MAX:
            return tuple(shown_from_value(link) for link in links)
        case _:
            raise DecodeError("[links] expected")


def _decode_judge(payload: list[Any]) -> JudgedTrial:
    match payload:
        case [bytes(node), list(digests)] if (
            len(node) == ADDRESS_BYTES
            and 0 < len(digests) <= SAMPLES_MAX
            and all(type(each) is bytes and len(each) == HASH_BYTES for each in digests)
        ):
            return JudgedTrial(node, tuple(digests))
        case _:
            raise DecodeError("[node, digests] expected")


def trial_rules(parameters: TaskParameters) -> tuple[Rule[Any], ...]:
    """Return the kinds of transactions of speed trials."""

    def touch(state: Overlay, context: Context) -> None:
        registration.touch(state, context.sender, context.block.steady_ms, parameters)

    def ask(state: Overlay, _payload: None, context: Context) -> None:
        trials.ask_trial(state, context.sender, context.block, parameters)
        touch(state, context)

    def commit(state: Overlay, payload: CommittedTrial, context: Context) -> None:
        trials.commit_trial(state, context.sender, *payload, context.block, parameters)
        touch(state, context)

    def show(state: Overlay, payload: tuple[ShownLink, ...], context: Context) -> None:
        trials.show_trial(state, context.sender, payload, context.block, parameters)
        touch(state, context)

    def judge(state: Overlay, payload: JudgedTrial, context: Context) -> None:
        trials.judge_trial(
            state, context.sender, payload.node, payload.digests, context.block, context.emit, parameters
        )
        touch(state, context)

    own = (
        # The steps that the chain takes of a trial are a part of what these weigh.
        Rule(ASK_TRIAL, "ask_trial", 200_000, _decode_nothing, lambda _: 0, ask),
        Rule(COMMIT_TRIAL, "commit_trial", 300_000, _decode_commit, lambda p: p.amount, commit),
        Rule(SHOW_TRIAL, "show_trial", 600_000, _decode_show, lambda _: 0, show),
        Rule(JUDGE_TRIAL, "judge_trial", 400_000, _decode_judge, lambda _: 0, judge, touches=lambda p: (p.node,)),
    )
    return tuple(replace(rule, call=_CALLS[rule.kind]) for rule in own)
