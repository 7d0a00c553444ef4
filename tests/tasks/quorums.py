"""Machines of quorums for tests: what each of them leaves, and when it falls silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from state.primitives.hashing import digest
from tasks.kinds.container import ExitKind, Metering
from tasks.ledger.lifecycle import ENDED
from tasks.ledger.meter_records import ContainerEnd, load_meter
from tasks.ledger.metering_transitions import FINISH_TASK, METER_TASK, finish_values
from tasks.ledger.queries import Action, WorkDuty, work_duties
from tasks.ledger.quorum_records import (
    SEATS,
    QuorumPhase,
    QuorumRecord,
    find_quorum,
    load_quorum,
    output_result,
    output_seal,
    quorum_seat_task,
)
from tasks.ledger.quorum_transitions import REVEAL_OUTPUT, SEAL_OUTPUT
from tasks.ledger.transitions import ACCEPT_TASK, START_TASK
from tasks.spec import JobSpec
from tests.tasks.containers import container, host
from tests.tasks.world import World

__all__ = ["RUN_S", "Hand", "Play", "deterministic", "end_of_output", "result_of", "salt_of", "seal_of"]

RUN_S: Final = 65


def deterministic(**changes: object) -> JobSpec:
    more = {"ticks": 10, "tick_s": 10, "metering": Metering("reserved", 30, 1)} | changes
    return container(**more)._replace(level=1)  # type: ignore[arg-type]


def end_of_output(output: bytes, kind: ExitKind = ExitKind.EXITED, code: int = 0) -> ContainerEnd:
    return ContainerEnd(kind, code, digest(b"test-output", output), 4_096, b"l" * 32, 77, b"")


def result_of(end: ContainerEnd) -> bytes:
    return output_result(end.kind, end.code, end.output, end.output_bytes)


def salt_of(machine: bytes) -> bytes:
    return digest(b"test-salt", machine)


def seal_of(task: bytes, machine: bytes, end: ContainerEnd) -> bytes:
    return output_seal(task, machine, result_of(end), salt_of(machine))


@dataclass
class Hand:
    """A machine: what its container leaves after ``run_s``. It does nothing of ``silent``."""

    output: bytes = b"right"
    run_s: int = RUN_S
    silent: frozenset[Action] = frozenset()
    seals: bool = True
    kind: ExitKind = ExitKind.EXITED
    code: int = 0

    @property
    def end(self) -> ContainerEnd:
        return end_of_output(self.output, self.kind, self.code)


class Play:
    """A world with hosts of different owners that do what their hands say."""

    def __init__(
        self, *hands: Hand, world: World | None = None, at_work: Mapping[bytes, Hand] | None = None
    ) -> None:  # fmt: skip
        self.world = world or World()
        self.hands: dict[bytes, Hand] = dict(at_work or {})
        for at, hand in enumerate(hands):
            self.hands[host(self.world, at + 1)] = hand
        self.task = b""
        self.refused: list[tuple[str, str]] = []

    @property
    def quorum(self) -> QuorumRecord:
        return load_quorum(self.world.state, self.task)

    def seats(self) -> list[bytes]:
        return [quorum_seat_task(self.task, seat) for seat in range(SEATS)]

    def act(self) -> None:
        for machine, hand in self.hands.items():
            for duty in work_duties(self.world.state, machine, self.world.parameters):
                if duty.action not in hand.silent and (why := self.do(machine, hand, duty)) is not None:
                    self.refused.append((duty.action.value, why))

    def do(self, machine: bytes, hand: Hand, duty: WorkDuty) -> str | None:
        world, task = self.world, duty.task
        match duty.action:
            case Action.ACCEPT:
                return world.send(machine, ACCEPT_TASK, [task, 0])
            case Action.START:
                return world.send(machine, START_TASK, [task, b"m" * 32])
            case Action.METER:
                if find_quorum(world.state, task) is None:
                    return None
                return self.meter(machine, hand, task)
            case Action.REVEAL:
                return world.send(machine, REVEAL_OUTPUT, [task, result_of(hand.end), salt_of(machine)])
            case Action.SHOW:
                seconds = load_meter(world.state, task).own_seconds
                return world.send(machine, FINISH_TASK, finish_values(task, seconds, hand.end))
            case _:
                return None

    def meter(self, machine: bytes, hand: Hand, task: bytes) -> str | None:
        world, meter = self.world, load_meter(self.world.state, task)
        quorum = find_quorum(world.state, task)
        assert quorum is not None
        tick_s = deterministic().tick_s
        passed_s = (world.time_ms - meter.began_ms) // 1000
        if meter.stop_ms and quorum.phase is QuorumPhase.STOPPING:
            allowed = max(meter.own_seconds, (meter.stop_ms - meter.began_ms) // 1000)
            stopped = end_of_output(hand.output, ExitKind.STOPPED)
            return world.send(machine, FINISH_TASK, finish_values(task, allowed, stopped))
        if passed_s >= hand.run_s and hand.seals:
            run_s = max(hand.run_s, meter.own_seconds)
            if quorum.is_blind:
                return world.send(machine, SEAL_OUTPUT, [task, run_s, seal_of(task, machine, hand.end)])
            return world.send(machine, FINISH_TASK, finish_values(task, run_s, hand.end))
        ticks = min(passed_s, hand.run_s) // tick_s * tick_s
        if ticks > meter.own_seconds and not meter.stop_ms:
            return world.send(machine, METER_TASK, [task, ticks])
        return None

    def create(self, job: JobSpec | None = None) -> bytes:
        self.task = self.world.create(job or deterministic())
        return self.task

    def run(self, *phases: QuorumPhase, blocks: int = 2_000, milliseconds: int = 1_000) -> QuorumRecord:
        """Play until the quorum is in one of ``phases``, or ended."""
        for _ in range(blocks):
            if self.quorum.phase in (*phases, QuorumPhase.ENDED):
                return self.quorum
            self.act()
            self.world.block(milliseconds)
        raise AssertionError(f"still {self.quorum}")

    def play(self) -> QuorumRecord:
        """Create a quorum and play it to its end."""
        self.create()
        return self.run()

    def run_until(self, is_so: Callable[[], bool], blocks: int = 500) -> None:
        """Play until something is so."""
        for _ in range(blocks):
            if is_so():
                return
            self.act()
            self.world.block(1_000)
        raise AssertionError(f"still {self.quorum}")

    def is_over(self) -> bool:
        return all(self.world.task(task).phase in ENDED for task in self.seats())
