"""What a task costs beside its work: bytes on chain, and the share of checking in its price and processor time.

A task's whole life is played by honest machines over the real rules, as in ``tasks.simulation``. Bytes are those
of its transactions, amounts those of its bill. The engine's own times tell what checking and serving take.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import process_time
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from billing.escrow import Purpose
from state.primitives.hashing import digest
from state.transition.runtime import Checked
from tasks.engines.arrays import NumpyArrays
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.state import TrainingState
from tasks.engines.training import Trainer, initial_state
from tasks.ledger import queries
from tasks.ledger.audits import SURE, samples_of
from tasks.ledger.lifecycle import Phase
from tasks.ledger.transitions import HEARTBEAT, REGISTER_NODE, UPDATE_NODE
from tasks.recipes import digits_spec
from tasks.simulation.actions import Action
from tasks.simulation.agents.base import Requester
from tasks.simulation.dice import Dice
from tasks.simulation.market import JobShape, Market, job_of
from tasks.simulation.stage import FUNDS, RATE, STEP_UNITS, Conditions, Stage, run_market
from tasks.spec import classifier_plan

__all__ = ["HOUR_S", "SEGMENTS", "figures", "most_checks"]

HOUR_S: Final = 3_600
LENGTHS: Final = {"1s": 1, "1min": 60, "1h": HOUR_S, "24h": 24 * HOUR_S}
"""Lengths of tasks in seconds, by the names of the figures."""
ASKS: Final = (25 * 10**13, 25 * 10**14, 25 * 10**15)
"""A tenth of the price that a node asks by default for 10^12 work units, that price, and ten times as much."""
SEGMENTS: Final = 64
"""Of a window."""
CHECK_STEPS: Final = 60
"""Steps that are measured."""
_MACHINES: Final = (REGISTER_NODE, UPDATE_NODE, HEARTBEAT)
PRESENCE_S: Final = 400
"""A machine without another duty sends a heartbeat so often: each two thirds of ``p.presence_ms``."""
HEARTBEAT_BYTES: Final = 97
NONCE: Final = bytes(12)


class _Counting(Market):
    """A market that counts the bytes of its transactions, but for those of machines about themselves."""

    sent_bytes = 0

    def _transactions(self, actions: Iterable[Action]) -> list[Checked]:
        made = super()._transactions(actions)
        self.sent_bytes += sum(len(at.transaction.raw) for at in made if at.rule.kind not in _MACHINES)
        return made


class _Life(NamedTuple):
    """A task from its creation to its end; ``checks`` is what it paid, ``audits`` who is drawn on average."""

    size_bytes: int
    price: int
    checks: int
    audits: float
    sampled: int
    """Segments that each drawn verifier runs again."""
    windows: int
    segment_steps: int


def _live(length_s: int, ask: int) -> _Life:
    """Play a task that takes ``length_s`` on a machine that asks ``ask``; all machines have a record."""
    windows = max(1, length_s // HOUR_S)
    steps = max(1, length_s * RATE // (STEP_UNITS * windows * SEGMENTS))
    conditions = Conditions(windows, SEGMENTS, steps, ask, 1_000, 1_000, (RATE,) * 8, is_seasoned=True)
    stage = Stage(conditions, 20, Dice(b"bench"))
    job = job_of(JobShape(windows, SEGMENTS, steps, ask, HOUR_S * 1_000, bytes(32)))
    requester = Requester(stage.requester, [job], stage.off)
    agents = [*stage.honest_machines(), requester]
    market = _Counting({agent.address: FUNDS for agent in agents}, {}, stage.dice)
    run_market(market, agents, is_seasoned=True)
    (task,) = market.tasks_of(requester.address)
    if task.phase != Phase.SETTLED:
        raise AssertionError(f"the task of the benchmark ended as {task.phase.name.lower()}")
    made = [market.window(task.id, number) for number in range(windows)]
    lines = queries.bill(market.state, task.id).lines
    checks = sum(line.amount for line in lines if line.purpose == Purpose.CHECK_FUND and line.subject is not None)
    return _Life(
        market.sent_bytes, sum(window.charge for window in made), checks,
        sum(window.chance / SURE * window.wanted for window in made) / windows,
        samples_of(SEGMENTS, made[0].wanted, market.parameters), windows, steps,
    )  # fmt: skip


def most_checks() -> tuple[float, int]:
    """Return how many verifiers a window has on average, and how many segments each of them runs again.

    Of tasks of an hour and longer, whose machines have a record, those are told that are checked most.
    """
    lives = [_live(length_s, ask) for length_s in LENGTHS.values() if length_s >= HOUR_S for ask in ASKS]
    most = max(lives, key=lambda life: life.audits * life.sampled)
    return most.audits, most.sampled


class _Costs(NamedTuple):
    """Seconds of a processor: of a work unit, and of what a check takes beside the steps; of serving one state."""

    unit_s: float
    check_s: float
    serve_s: float


def _measured() -> _Costs:
    """Measure a run of the digits job: its steps, loading and hashing states, and sending one to a verifier."""
    dataset = make_dataset("digits")
    plan = classifier_plan(digits_spec(dataset, dataset_blob=bytes(32), seed=bytes(32), max_price_per_tera_unit=1))
    encoded = initial_state(plan).encode()
    trainer = Trainer(plan, dataset, NumpyArrays(), initial_state(plan))
    trainer.run_steps(CHECK_STEPS)
    begun_s = process_time()
    trainer.run_steps(CHECK_STEPS)
    step_s = (process_time() - begun_s) / CHECK_STEPS
    begun_s = process_time()
    state = TrainingState.decode(encoded, plan)
    state.root(plan)
    checking = Trainer(plan, dataset, NumpyArrays(), state)
    checking.state().root(plan)
    check_s = process_time() - begun_s
    begun_s = process_time()
    sealed = ChaCha20Poly1305(bytes(32)).encrypt(NONCE, encoded, b"")
    ChaCha20Poly1305(bytes(32)).decrypt(NONCE, sealed, b"")
    digest(b"bench", sealed)
    return _Costs(step_s / plan.step_units, check_s, process_time() - begun_s)


def _share_of_cpu(life: _Life, costs: _Costs) -> float:
    """Return what checking takes of the processor time of the work itself, on average.

    A worker keeps the states between its segments, so it computes none of them again. Its part is to serve them:
    one for each segment that is checked, and the result.
    """
    segment_s = life.segment_steps * STEP_UNITS * costs.unit_s
    check_s = life.sampled * (segment_s + costs.check_s) + (life.sampled + 1) * costs.serve_s
    return life.audits * check_s / (SEGMENTS * segment_s)


def figures() -> dict[str, float]:
    """Return bytes on chain of an hour's work, and the shares of checking: the worst, and each."""
    costs, found, hours = _measured(), dict[str, float](), list[float]()
    for name, length_s in LENGTHS.items():
        for number, ask in enumerate(ASKS):
            life = _live(length_s, ask)
            found[f"verification_share_of_price_{name}_ask{number}"] = life.checks / life.price
            found[f"verification_share_of_cpu_{name}_ask{number}"] = _share_of_cpu(life, costs)
            found[f"bytes_per_task_{name}_ask{number}"] = life.size_bytes
            if length_s >= HOUR_S:
                hours.append(life.size_bytes * HOUR_S / length_s + HOUR_S / PRESENCE_S * HEARTBEAT_BYTES)
    worst = {
        f"verification_share_of_{what}": max(
            value for name, value in found.items() if name.startswith(f"verification_share_of_{what}")
        )
        for what in ("price", "cpu")
    }
    return {"bytes_per_task_hour": max(hours), **worst, **found}
