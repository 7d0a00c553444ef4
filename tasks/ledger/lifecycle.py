"""The life cycle of a task and of each of its windows, as tables.

See market.md 5.1, 5.2; the picture is in docs/tasks.md.

Nothing but these tables decides what may follow what. An event that has no entry for a phase is refused where a
transaction caused it, and is a bug where the chain caused it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = [
    "ENDED",
    "LIVE_WINDOW",
    "NEXT_PHASE",
    "NEXT_WINDOW_PHASE",
    "TIMEOUTS",
    "WINDOW_TIMEOUTS",
    "Event",
    "Phase",
    "Reason",
    "WindowEvent",
    "WindowPhase",
    "stage_of",
]


class Phase(IntEnum):
    """Where a task stands. Numbers are stable; the gaps belong to phases of later assurance levels."""

    CREATED = 1
    MATCHING = 3
    ASSIGNED = 4
    PREPARING = 5
    RUNNING = 6
    DEGRADED = 7
    PAUSED = 8
    STANDBY = 9
    """The machine of a spare seat has prepared, and waits to be called to a seat of its group."""
    OUTPUT = 10
    VERIFYING = 11
    SETTLED = 13
    FAILED = 14
    CANCELLED = 15
    EXPIRED = 16


class Event(IntEnum):
    """What can happen to a task."""

    ADMIT = 1
    ASSIGN = 2
    ACCEPT = 3
    SEARCH = 4
    """Look for a first worker again: none has started yet."""
    LOSE = 5
    """The worker is gone, or its work does not count; another one continues."""
    START = 6
    LAST_WINDOW = 7
    DRAWN = 8
    PAUSE = 9
    RESUME = 10
    WIND_UP = 11
    """No more work; what is proved is still verified and paid."""
    EXPIRE = 12
    SETTLE = 13
    FAIL = 14
    CANCEL = 15
    EXTEND = 16
    """The window under way was not proved in time; its worker gets longer once."""
    STAND_BY = 17
    """The machine of a spare seat has prepared."""


NEXT_PHASE: Final = {
    (Phase.CREATED, Event.ADMIT): Phase.MATCHING,
    (Phase.MATCHING, Event.ASSIGN): Phase.ASSIGNED,
    (Phase.MATCHING, Event.EXPIRE): Phase.EXPIRED,
    (Phase.MATCHING, Event.CANCEL): Phase.CANCELLED,
    (Phase.ASSIGNED, Event.ACCEPT): Phase.PREPARING,
    (Phase.ASSIGNED, Event.SEARCH): Phase.MATCHING,
    (Phase.ASSIGNED, Event.LOSE): Phase.DEGRADED,
    (Phase.ASSIGNED, Event.WIND_UP): Phase.VERIFYING,
    (Phase.PREPARING, Event.START): Phase.RUNNING,
    (Phase.PREPARING, Event.STAND_BY): Phase.STANDBY,
    (Phase.STANDBY, Event.WIND_UP): Phase.VERIFYING,
    (Phase.PREPARING, Event.SEARCH): Phase.MATCHING,
    (Phase.PREPARING, Event.LOSE): Phase.DEGRADED,
    (Phase.PREPARING, Event.WIND_UP): Phase.VERIFYING,
    (Phase.RUNNING, Event.LAST_WINDOW): Phase.OUTPUT,
    (Phase.RUNNING, Event.EXTEND): Phase.RUNNING,
    (Phase.RUNNING, Event.LOSE): Phase.DEGRADED,
    (Phase.RUNNING, Event.WIND_UP): Phase.VERIFYING,
    (Phase.DEGRADED, Event.ASSIGN): Phase.ASSIGNED,
    (Phase.DEGRADED, Event.PAUSE): Phase.PAUSED,
    (Phase.DEGRADED, Event.WIND_UP): Phase.VERIFYING,
    (Phase.PAUSED, Event.RESUME): Phase.DEGRADED,
    (Phase.PAUSED, Event.WIND_UP): Phase.VERIFYING,
    (Phase.OUTPUT, Event.DRAWN): Phase.VERIFYING,
    (Phase.OUTPUT, Event.LOSE): Phase.DEGRADED,
    (Phase.OUTPUT, Event.WIND_UP): Phase.VERIFYING,
    (Phase.VERIFYING, Event.LOSE): Phase.DEGRADED,
    (Phase.VERIFYING, Event.SETTLE): Phase.SETTLED,
    (Phase.VERIFYING, Event.FAIL): Phase.FAILED,
    (Phase.VERIFYING, Event.CANCEL): Phase.CANCELLED,
}

ENDED: Final = frozenset({Phase.SETTLED, Phase.FAILED, Phase.CANCELLED, Phase.EXPIRED})

TIMEOUTS: Final = {
    Phase.MATCHING: Event.EXPIRE,
    Phase.ASSIGNED: Event.LOSE,
    Phase.PREPARING: Event.LOSE,
    Phase.RUNNING: Event.LOSE,
    Phase.DEGRADED: Event.PAUSE,
    Phase.PAUSED: Event.WIND_UP,
}
"""What a passed deadline does. STANDBY waits for its group; OUTPUT, VERIFYING and RUNNING with all windows open
wait for those of windows; a worker has one extension in RUNNING."""


class WindowPhase(IntEnum):
    """Where a window stands on its way from a proof to a final payment."""

    PROVED = 1
    """Waits for the beacon of a block after the proof, which draws verifiers."""
    SEALING = 2
    REVEALING = 3
    OPENING = 4
    """Verifiers have revealed; the worker opens the sampled leaves last."""
    DISPUTED = 5
    """Games run about it, or sealed challenges are called."""
    JURY_SEALING = 6
    JURY_REVEALING = 7
    ACCEPTED = 8
    FINAL = 9
    VOID = 10
    DEMANDED = 11
    """The requester of an ended task cannot have its result: waits for the draw of machines that try."""
    DELIVERY_SEALING = 12
    DELIVERY_REVEALING = 13
    LOST = 14
    """Its worker was paid for it and does not serve it."""
    DOUBTED = 15
    """A verifier could not fetch what it needed: waits for the draw of a jury."""


class WindowEvent(IntEnum):
    """What can happen to a window."""

    DRAW = 1
    CLOSE_SEALS = 2
    CLOSE_REVEALS = 3
    AGREE = 4
    MISMATCH = 5
    REDRAW = 6
    REJECT = 7
    FINALISE = 8
    DROP = 9
    """It stands on a window that does not count, or nobody could check it."""
    DEMAND = 10
    EXTEND = 11
    DOUBT = 12
    """Nothing is left to play, but a verifier could not fetch a blob."""
    RECHECK = 14
    """Nothing is left to play, and no verdict stands: others are drawn."""
    PASS = 13
    """It was not selected for audit: nobody is drawn, and anybody may challenge it."""


NEXT_WINDOW_PHASE: Final[dict[tuple[WindowPhase, WindowEvent], WindowPhase]] = {
    (WindowPhase.PROVED, WindowEvent.DRAW): WindowPhase.SEALING,
    (WindowPhase.PROVED, WindowEvent.REDRAW): WindowPhase.PROVED,
    (WindowPhase.PROVED, WindowEvent.PASS): WindowPhase.ACCEPTED,
    (WindowPhase.SEALING, WindowEvent.CLOSE_SEALS): WindowPhase.REVEALING,
    (WindowPhase.SEALING, WindowEvent.REDRAW): WindowPhase.PROVED,
    (WindowPhase.SEALING, WindowEvent.PASS): WindowPhase.ACCEPTED,
    (WindowPhase.REVEALING, WindowEvent.CLOSE_REVEALS): WindowPhase.OPENING,
    (WindowPhase.REVEALING, WindowEvent.REDRAW): WindowPhase.PROVED,
    (WindowPhase.REVEALING, WindowEvent.PASS): WindowPhase.ACCEPTED,
    (WindowPhase.OPENING, WindowEvent.AGREE): WindowPhase.ACCEPTED,
    (WindowPhase.OPENING, WindowEvent.EXTEND): WindowPhase.OPENING,
    (WindowPhase.OPENING, WindowEvent.MISMATCH): WindowPhase.DISPUTED,
    (WindowPhase.OPENING, WindowEvent.DOUBT): WindowPhase.DOUBTED,
    (WindowPhase.OPENING, WindowEvent.REJECT): WindowPhase.VOID,
    (WindowPhase.DISPUTED, WindowEvent.AGREE): WindowPhase.ACCEPTED,
    (WindowPhase.DISPUTED, WindowEvent.DOUBT): WindowPhase.DOUBTED,
    (WindowPhase.DISPUTED, WindowEvent.REJECT): WindowPhase.VOID,
    (WindowPhase.DISPUTED, WindowEvent.RECHECK): WindowPhase.PROVED,
    (WindowPhase.DOUBTED, WindowEvent.DRAW): WindowPhase.JURY_SEALING,
    (WindowPhase.DOUBTED, WindowEvent.REDRAW): WindowPhase.DOUBTED,
    (WindowPhase.DOUBTED, WindowEvent.REJECT): WindowPhase.VOID,
    (WindowPhase.JURY_SEALING, WindowEvent.REJECT): WindowPhase.VOID,
    (WindowPhase.JURY_SEALING, WindowEvent.CLOSE_SEALS): WindowPhase.JURY_REVEALING,
    (WindowPhase.JURY_SEALING, WindowEvent.REDRAW): WindowPhase.DOUBTED,
    (WindowPhase.JURY_REVEALING, WindowEvent.REJECT): WindowPhase.VOID,
    (WindowPhase.JURY_REVEALING, WindowEvent.REDRAW): WindowPhase.DOUBTED,
    **{
        (phase, event): after
        for phase in (WindowPhase.DOUBTED, WindowPhase.JURY_SEALING, WindowPhase.JURY_REVEALING)
        for event, after in (
            (WindowEvent.AGREE, WindowPhase.ACCEPTED), (WindowEvent.MISMATCH, WindowPhase.DISPUTED),
            (WindowEvent.RECHECK, WindowPhase.PROVED), (WindowEvent.DOUBT, WindowPhase.DOUBTED),
        )
    },
    (WindowPhase.ACCEPTED, WindowEvent.MISMATCH): WindowPhase.DISPUTED,
    (WindowPhase.ACCEPTED, WindowEvent.FINALISE): WindowPhase.FINAL,
    **{
        (phase, WindowEvent.DROP): WindowPhase.VOID
        for phase in WindowPhase
        if phase < WindowPhase.FINAL or phase == WindowPhase.DOUBTED
    },
    (WindowPhase.FINAL, WindowEvent.DEMAND): WindowPhase.DEMANDED,
    (WindowPhase.DEMANDED, WindowEvent.DRAW): WindowPhase.DELIVERY_SEALING,
    (WindowPhase.DELIVERY_SEALING, WindowEvent.CLOSE_SEALS): WindowPhase.DELIVERY_REVEALING,
    (WindowPhase.DELIVERY_REVEALING, WindowEvent.AGREE): WindowPhase.FINAL,
    (WindowPhase.DELIVERY_REVEALING, WindowEvent.REJECT): WindowPhase.LOST,
    **{
        (phase, event): after
        for phase in (WindowPhase.DEMANDED, WindowPhase.DELIVERY_SEALING, WindowPhase.DELIVERY_REVEALING)
        for event, after in (
            (WindowEvent.REDRAW, WindowPhase.DEMANDED), (WindowEvent.FINALISE, WindowPhase.FINAL),
        )
    },
}  # fmt: skip

LIVE_WINDOW: Final = frozenset(WindowPhase) - {WindowPhase.FINAL, WindowPhase.VOID, WindowPhase.LOST}

WINDOW_TIMEOUTS: Final = {
    WindowPhase.PROVED: WindowEvent.DRAW,
    WindowPhase.SEALING: WindowEvent.CLOSE_SEALS,
    WindowPhase.REVEALING: WindowEvent.CLOSE_REVEALS,
    WindowPhase.OPENING: WindowEvent.REJECT,
    WindowPhase.DISPUTED: WindowEvent.AGREE,
    WindowPhase.DOUBTED: WindowEvent.DRAW,
    WindowPhase.JURY_SEALING: WindowEvent.CLOSE_SEALS,
    WindowPhase.JURY_REVEALING: WindowEvent.AGREE,
    WindowPhase.ACCEPTED: WindowEvent.FINALISE,
    WindowPhase.DEMANDED: WindowEvent.DRAW,
    WindowPhase.DELIVERY_SEALING: WindowEvent.CLOSE_SEALS,
    WindowPhase.DELIVERY_REVEALING: WindowEvent.AGREE,
}
"""What a passed deadline does at best: a draw without candidates or a round without verdicts draws again, a jury's
majority may reject, and a game may show a lie."""


class Reason(IntEnum):
    """Why a task or window changed its phase; stable numbers, they stand in events and histories."""

    CREATED = 1
    ADMITTED = 2
    MATCHED = 3
    ACCEPTED = 4
    STARTED = 5
    ALL_WINDOWS_PROVED = 6
    VERIFIERS_DRAWN = 7
    ALL_WINDOWS_FINAL = 8
    NO_MATCH = 9
    ACCEPT_TIMEOUT = 10
    WORKER_DECLINED = 11
    PREPARE_TIMEOUT = 12
    INPUT_UNAVAILABLE = 13
    WORKER_LEFT = 14
    JOB_DIVERGED = 15
    WINDOW_TIMEOUT = 16
    NO_REPLACEMENT = 17
    FUNDS_LOW = 18
    GRACE_OVER = 19
    ATTEMPTS_EXHAUSTED = 20
    REQUESTER_CANCELLED = 21
    REQUESTER_RESUMED = 22
    WORK_REJECTED = 23
    NOT_OPENED = 24
    NO_VERIFIER = 25
    DISPUTE_UNRESOLVED = 26
    PREDECESSOR_VOID = 27
    PROVED = 28
    ALL_SEALED = 29
    SEAL_TIMEOUT = 30
    ALL_REVEALED = 31
    REVEAL_TIMEOUT = 32
    VERDICTS_AGREE = 33
    VERDICTS_DIFFER = 34
    JURY_UPHELD = 35
    CHALLENGE_OVER = 36
    JOB_UNFIT = 37
    """The job does not fit itself, says a worker: its data, its start or the time that it allows."""
    RESULT_DEMANDED = 38
    RESULT_DELIVERED = 39
    RESULT_LOST = 40
    OPENING_LATE = 41
    """The worker did not open in time, and gets one extension for a fine."""
    LIE_PROVEN = 42
    """A dispute has proven a lie of the window's worker."""
    ANSWER_MISSING = 43
    """The worker did not answer in a dispute, or contradicted itself there."""
    CHALLENGED = 44
    """An outsider sealed a challenge, which is called."""
    CHALLENGES_LOST = 45
    """The worker has won all disputes about the window."""
    BLOB_MISSED = 46
    """A verifier could not fetch what it needed."""
    INPUT_INVALID = 47
    """A claim has proven that an input of the task is not what the task names: nobody can run it."""
    NOT_DRAWN = 48
    """The window was not selected for audit."""
    NOT_SERVED = 49
    """A jury could not fetch what a verifier had missed: the worker is asked to serve it, or loses its bond."""
    SERVED = 50
    """The worker says that it serves what was missed: a larger jury is drawn."""
    WINDOW_LATE = 51
    """The worker did not prove the window in time, and gets one extension for a fine."""
    STANDING_BY = 52
    """The machine of a spare seat has prepared."""
    SPARE_CALLED = 53
    """The machine of a spare seat was given a seat that had lost its own."""
    GROUP_ENDED = 54
    """The members of the spare's group have ended."""
    NOT_KEPT = 55
    """None of the machines that were drawn for the output of a window has signed for it (R90)."""
    CONTAINER_EXITED = 60
    """The container has ended by itself."""
    METER_SILENT = 61
    """The machine of a container has metered nothing for too long."""
    TIME_USED_UP = 62
    """The container has run for as long as its task allows."""
    CONTAINER_AGAIN = 63
    """The container has ended with a code after which another machine goes on."""
    TAMPERED = 80
    """The machine itself has seen that somebody read or changed the memory or the files of the container."""
    CHECKPOINT_REFUSED = 81
    """The requester says that what the machine has stored holds no work (R137)."""
    CHECKPOINT_MISSED = 82
    """The machine that prepared says that it cannot have the checkpoint (R156)."""
    OUTPUT_SEALED = 70
    """The container has ended, and its machine has sealed its output (R114)."""
    OUTPUT_DIFFERS = 71
    """Two other machines have left an output that is another one."""
    NO_MAJORITY = 72
    """No two machines have left the same output."""
    NOT_REVEALED = 73
    """The machine has sealed an output and has not shown it in time."""
    SEAT_UNNEEDED = 74
    """The quorum has ended without this machine."""
    NO_PARTNER = 75
    """The quorum lacks machines that could confirm an output."""


def stage_of(phase: Phase) -> str:
    """Return the part of the life cycle that users speak of: create, run or output; ended after it."""
    if phase in ENDED:
        return "ended"
    if phase in (Phase.OUTPUT, Phase.VERIFYING):
        return "output"
    return "create" if phase <= Phase.ASSIGNED else "run"
