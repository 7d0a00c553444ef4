"""Hostile blocks about jobs of fine-tuning: the largest programs, each of another job that no node has seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from billing.escrow import Pool, Purpose
from node.bench.market_blocks import Blocks, HostileBlock, sent
from node.bench.market_state import DKB, PRICE, START_MS, WORK, ignore, job_of
from state.primitives.codec import Value
from state.primitives.keys import SecretKey
from state.primitives.merkle import MerkleTree, leaf_hash, root_of_top
from state.view import Overlay
from tasks.dispute.moves import ShowTrace
from tasks.kinds.finetune import (
    KIND_FINETUNE,
    Adapters,
    BaseModel,
    FinetunePart,
    Preference,
    RateSchedule,
    RowSet,
    TrainingLoop,
)
from tasks.ledger.claim_transitions import CLAIM_DIVERGED
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.records import by_duty_key
from tasks.ledger.transitions import CREATE_TASK, SUBMIT_WINDOW
from tasks.programs.divergence import Divergence, diverged_root
from tasks.programs.finetune import CLIPPED_MAX, PROJECTIONS
from tasks.programs.operators.scalars import NANO
from tasks.programs.work import WORK_START, extend_work
from tasks.proofs import WindowProof, window_proof_to_value
from tasks.spec import JobSpec, Optimiser, encode_spec

__all__ = ["ProgramBlocks"]

_LAYERS: Final = CLIPPED_MAX // (2 * len(PROJECTIONS))
"""So many layers may have all adapters and be clipped; more calls of a layer there are not."""
_PROBE: Final = b"p" * 32
Payload = Callable[[bytes, JobSpec], list[Value]]


def tuned_job(number: int) -> JobSpec:
    """Return a job with all that a layer may have, on preferences; each number is another program.

    One that evaluates has some calls more, a twentieth, but its proofs would have to show losses.
    """
    model = BaseModel("llama", b"m" * 32, b"M" * 32, 40, 8, _LAYERS, 2, 1, 4, 12, 16, 10_000, 10_000, 0, 1)
    part = FinetunePart(
        model, RowSet(b"r" * 32, b"R" * 32, 8, 7, 6, 4), Adapters(4, 8, PROJECTIONS), 2,
        Optimiser("adamw", 1_000_000 + number, 900_000_000, 999_000_000, 10, 1),
        RateSchedule("cosine", 1, NANO), TrainingLoop(accumulate=2), preference=Preference(NANO // 10),
    )  # fmt: skip
    job = job_of(price=PRICE // 2, windows=2)
    schedule = job.schedule._replace(segment_steps=1, window_steps=2, total_steps=4)
    return job._replace(kind=KIND_FINETUNE, part=part, schedule=schedule)


class ProgramBlocks(Blocks):
    """All blocks, with those about fine-tuning."""

    def tuned_creations(self) -> HostileBlock:
        """Only tasks with as many calls of a layer as there may be."""
        keys = self._cycle(self._count(CREATE_TASK))
        return HostileBlock(ignore, sent(keys, CREATE_TASK, lambda at: [encode_spec(tuned_job(at))]))

    def tuned_moves(self) -> HostileBlock:
        """Only commitments to traces: each needs a program, and the bytes of all of its tensors."""
        program = tuned_job(0).program()
        place = program.places[program.loss].position
        loss = root_of_top(1, leaf_hash(bytes(8)))
        tree = MerkleTree([loss] * len(program.traced))
        move = ShowTrace(tree.root, _PROBE, 0, tree.siblings(place))
        return self.first_moves(tuned_job, move, extend_work(WORK_START, _PROBE, 0))

    @cached_property
    def _store(self) -> int:
        program: Any = tuned_job(0).program()
        return int(program.stored[-1][1])

    def tuned_claims(self) -> HostileBlock:
        """Only claims that a job diverges."""

        def claim(task: bytes, job: JobSpec) -> list[Value]:
            found = Divergence(0, self._store, 0, 0, job.init_root)
            proof = WindowProof(
                task, 0, 0, 1, job.init_root, diverged_root(found), WORK, 1, b"L" * 32, b"O" * 32, (), found
            )
            return [window_proof_to_value(proof)]

        return self._of_running(CLAIM_DIVERGED, claim)

    def tuned_proofs(self) -> HostileBlock:
        """Only proofs of windows: each asks for the work units of another step."""

        def prove(task: bytes, job: JobSpec) -> list[Value]:
            start, stop = job.window_range(0)
            count = job.window_segments(0)
            proof = WindowProof(task, 0, start, stop, job.init_root, b"s" * 32, WORK, count, b"L" * 32, b"O" * 32)
            return [window_proof_to_value(proof)]

        return self._of_running(SUBMIT_WINDOW, prove)

    def _of_running(self, kind: int, payload_of: Payload) -> HostileBlock:
        """Return a block of one kind about tasks that run, each of another job."""
        keys = self._cycle(self._count(kind))
        body: list[tuple[SecretKey, int, list[Value]]] = []

        def fill(state: Overlay) -> None:
            market = self.market(state)
            body.clear()
            for at, key in enumerate(keys):
                job = tuned_job(at)
                case = market.task(
                    2 * self.tasks + at, job, self.requester.address, phase=Phase.RUNNING, reason=Reason.STARTED,
                    worker=key.address, attempts=1, price_per_tera_unit=PRICE // 4, next_window=0,
                    started_ms=START_MS,
                )  # fmt: skip
                case.vault.lock(Pool.BOND, key.address, DKB, Purpose.WORKER_BOND, owner=key.address)
                state.put(by_duty_key(key.address, case.record.id), b"\x01")
                case.save()
                body.append((key, kind, payload_of(case.record.id, job)))

        fill(Overlay(self.disk))
        return HostileBlock(fill, tuple(body))
