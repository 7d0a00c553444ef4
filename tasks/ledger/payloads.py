"""What transactions of tasks and machines carry: payloads, and their strict decoding (market.md 5.3)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from tasks.ledger.lifecycle import Reason
from tasks.ledger.registry import NodeProfile, profile_from_value
from tasks.proofs import (
    SAMPLED_MAX,
    Finding,
    Opening,
    WindowProof,
    findings_from_value,
    opening_from_value,
    window_proof_from_value,
)
from tasks.spec import SPEC_LIMIT_BYTES, JobSpec, decode_spec

__all__ = [
    "Attestation",
    "NewTask",
    "NodeOffer",
    "OpenedWindow",
    "Payout",
    "RevealedVerdict",
    "SealedVerdict",
    "SeatOf",
    "TaskAmount",
    "TaskReason",
    "decode_amount",
    "decode_create",
    "decode_give_up",
    "decode_nothing",
    "decode_offer",
    "decode_open",
    "decode_payout",
    "decode_proof",
    "decode_reveal",
    "decode_seal",
    "decode_seat",
    "decode_start",
    "decode_task",
]

AMOUNT_LIMIT: Final = 1 << 127
WINDOW_LIMIT: Final = 1 << 32


class NodeOffer(NamedTuple):
    """A node's profile and what it adds to its bond."""

    profile: NodeProfile
    bond: int


class Payout(NamedTuple):
    """A node, and the account that its earnings go to."""

    node: bytes
    payout: bytes


class NewTask(NamedTuple):
    """A job and its specification as it was sent."""

    spec: JobSpec
    raw: bytes


class TaskAmount(NamedTuple):
    """A task and an amount for it: the worker's bond, or what its requester adds."""

    task: bytes
    amount: int


class TaskReason(NamedTuple):
    """A task that its worker gives up, and why."""

    task: bytes
    reason: Reason


class Attestation(NamedTuple):
    """What the worker runs the task on, as a hash of its description; recorded with the start."""

    task: bytes
    machine: bytes


class SeatOf(NamedTuple):
    """A verifier's seat of a window."""

    task: bytes
    window: int


class SealedVerdict(NamedTuple):
    """A verifier's sealed findings on a window."""

    task: bytes
    window: int
    seal: bytes


class RevealedVerdict(NamedTuple):
    """A verifier's findings, and the nonce that its seal was made with."""

    task: bytes
    window: int
    findings: tuple[Finding, ...]
    nonce: bytes


class OpenedWindow(NamedTuple):
    """The worker's openings of the sampled segments, in order."""

    task: bytes
    window: int
    openings: tuple[Opening, ...]


def _is_task(value: bytes) -> bool:
    return len(value) == HASH_BYTES


def decode_offer(payload: list[Any]) -> NodeOffer:
    """Read ``[profile, bond]``. Raises DecodeError."""
    match payload:
        case [list(profile), int(bond)] if 0 <= bond < AMOUNT_LIMIT:
            return NodeOffer(profile_from_value(profile), bond)
        case _:
            raise DecodeError("[profile, bond] expected")


def decode_payout(payload: list[Any]) -> Payout:
    """Read ``[node, payout address]``. Raises DecodeError."""
    match payload:
        case [bytes(node), bytes(payout)] if len(node) == len(payout) == ADDRESS_BYTES and any(payout):
            return Payout(node, payout)
        case _:
            raise DecodeError("[node, payout address] expected")


def decode_nothing(payload: list[Any]) -> None:
    """Read an empty payload. Raises DecodeError."""
    if payload:
        raise DecodeError("no payload expected")


def decode_create(payload: list[Any]) -> NewTask:
    """Read ``[specification bytes]``. Raises DecodeError."""
    match payload:
        case [bytes(raw)] if len(raw) <= SPEC_LIMIT_BYTES:
            return NewTask(decode_spec(raw), raw)
        case _:
            raise DecodeError("[specification bytes] expected")


def decode_task(payload: list[Any]) -> bytes:
    """Read ``[task]``. Raises DecodeError."""
    match payload:
        case [bytes(task)] if _is_task(task):
            return task
        case _:
            raise DecodeError("[task] expected")


def decode_amount(payload: list[Any]) -> TaskAmount:
    """Read ``[task, amount]``. Raises DecodeError."""
    match payload:
        case [bytes(task), int(amount)] if _is_task(task) and 0 <= amount < AMOUNT_LIMIT:
            return TaskAmount(task, amount)
        case _:
            raise DecodeError("[task, amount] expected")


def decode_start(payload: list[Any]) -> Attestation:
    """Read ``[task, machine hash]``. Raises DecodeError."""
    match payload:
        case [bytes(task), bytes(machine)] if _is_task(task) and len(machine) == HASH_BYTES:
            return Attestation(task, machine)
        case _:
            raise DecodeError("[task, machine hash] expected")


_GIVE_UP_REASONS: Final = (
    Reason.INPUT_UNAVAILABLE, Reason.WORKER_LEFT, Reason.JOB_UNFIT,
)  # fmt: skip


def decode_give_up(payload: list[Any]) -> TaskReason:
    """Read ``[task, reason]``. Raises DecodeError."""
    match payload:
        case [bytes(task), int(reason)] if _is_task(task) and reason in _GIVE_UP_REASONS:
            return TaskReason(task, Reason(reason))
        case _:
            raise DecodeError(f"[task, reason] expected, reason one of {[int(r) for r in _GIVE_UP_REASONS]}")


def decode_proof(payload: list[Any]) -> WindowProof:
    """Read ``[window proof]``. Raises DecodeError."""
    match payload:
        case [list(proof)]:
            return window_proof_from_value(proof)
        case _:
            raise DecodeError("[window proof] expected")


def decode_seal(payload: list[Any]) -> SealedVerdict:
    """Read ``[task, window, seal]``. Raises DecodeError."""
    match payload:
        case [bytes(task), int(window), bytes(sealed)] if (
            _is_task(task) and 0 <= window < WINDOW_LIMIT and len(sealed) == HASH_BYTES
        ):
            return SealedVerdict(task, window, sealed)
        case _:
            raise DecodeError("[task, window, seal] expected")


def decode_seat(payload: list[Any]) -> SeatOf:
    """Read ``[task, window]``. Raises DecodeError."""
    match payload:
        case [bytes(task), int(window)] if _is_task(task) and 0 <= window < WINDOW_LIMIT:
            return SeatOf(task, window)
        case _:
            raise DecodeError("[task, window] expected")


def decode_reveal(payload: list[Any]) -> RevealedVerdict:
    """Read ``[task, window, findings, nonce]``. Raises DecodeError."""
    match payload:
        case [bytes(task), int(window), list(findings), bytes(nonce)] if (
            _is_task(task) and 0 <= window < WINDOW_LIMIT and len(nonce) == HASH_BYTES
        ):
            return RevealedVerdict(task, window, findings_from_value(findings), nonce)
        case _:
            raise DecodeError("[task, window, findings, nonce] expected")


def decode_open(payload: list[Any]) -> OpenedWindow:
    """Read ``[task, window, openings]``. Raises DecodeError."""
    match payload:
        case [bytes(task), int(window), list(openings)] if (
            _is_task(task) and 0 <= window < WINDOW_LIMIT and 0 < len(openings) <= SAMPLED_MAX
        ):
            return OpenedWindow(task, window, tuple(opening_from_value(opening) for opening in openings))
        case _:
            raise DecodeError("[task, window, openings] expected")
