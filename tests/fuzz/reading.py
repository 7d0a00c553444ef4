"""One decoder and many inputs: where each is refused, which blocks it runs, whether it takes too long or too much.

What costs time is done once for many inputs: one timer ticks for all of them, and memory is looked at when the
process has grown. The input that did it is still found.
"""

from __future__ import annotations

import resource
import signal
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from time import perf_counter, process_time
from types import FrameType
from typing import Final

from tests.fuzz.kept import corpus_of
from tests.fuzz.marks import MARKS, files_run
from tests.fuzz.mutate import mutate
from tests.fuzz.targets.base import Target

SECONDS_MAX: Final = 5.0
"""For one input, on a machine that does other things; what is quadratic in a whole message takes longer."""
TIMED_FROM_S: Final = 0.002
"""What seemed shorter is not timed once more: two looks at the processor's clock cost as much as some inputs."""
HANGS_S: Final = 60.0
"""An input that is still being read after this long, and at most twice this long, is given up."""
MEMORY_FIXED_BYTES: Final = 512 * 1024
"""Allowed to every input, beside what its size allows."""
GROWTH_BYTES_MAX: Final = 32 * 1024 * 1024
"""When the process has grown by this much, the last inputs are read again, each with its memory counted."""
LOOK_EVERY: Final = 1_000
KEPT_MAX: Final = 200
"""Inputs that are kept for a decoder, in all."""
KEPT_BYTES_MAX: Final = 2_048
FRAMES_MAX: Final = 12


@dataclass(frozen=True)
class Course:
    """How far one decoder is."""

    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    """Of the processor, changing included."""
    slowest_s: float = 0.0
    """Of the inputs that took TIMED_FROM_S or longer."""
    kept: tuple[str, ...] = ()
    """In hexadecimal, beside the samples and the corpus."""
    failures: tuple[tuple[str, str], ...] = ()
    """What was raised, and the input."""
    files: tuple[str, ...] = ()
    """Of the product, of which it has run anything; none where nothing is marked."""


Place = tuple[int, ...]
_REFUSED: Final[Place] = (0,)
"""Where does not matter any more."""


def place_of(error: BaseException | None) -> Place:
    """Return where an input was refused, through which calls, and what was raised before; () when it was not.

    Numbers of this process: code and classes that are never let go are told apart by where they are.
    """
    found: list[int] = []
    while error is not None and len(found) < 6 * FRAMES_MAX:
        found.append(id(type(error)))
        trace, depth = error.__traceback__, 0
        while trace is not None and depth < FRAMES_MAX:
            found.append(id(trace.tb_frame.f_code))
            found.append(trace.tb_lasti)
            trace, depth = trace.tb_next, depth + 1
        error = error.__context__
    return tuple(found)


class Hangs(BaseException):
    """An input is not read to its end; no decoder catches this by catching every Exception."""


class _Watch:
    """Raises Hangs into what reads the same input at two ticks."""

    def __init__(self) -> None:
        self.number = -1
        """Of the input that is being read; negative between inputs."""
        self._before = -1

    def tick(self, _signal: int, _frame: FrameType | None) -> None:
        if self.number >= 0 and self.number == self._before:
            self.number = self._before = -1
            raise Hangs
        self._before = self.number


@contextmanager
def _watching() -> Iterator[_Watch]:
    watch = _Watch()
    old = signal.signal(signal.SIGALRM, watch.tick)
    signal.setitimer(signal.ITIMER_REAL, HANGS_S, HANGS_S)
    try:
        yield watch
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def memory_of(target: Target, data: bytes) -> int:
    """Return the peak of what reading an input takes; memory must be traced."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    with suppress(Exception):
        target.run(data)
    return tracemalloc.get_traced_memory()[1] - before


def memory_allowed(target: Target, data: bytes) -> int:
    """Return the bytes that reading an input may take."""
    return target.memory * len(data) + MEMORY_FIXED_BYTES


def greedy(target: Target, inputs: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield what is wrong with the inputs that take more memory than they may."""
    tracemalloc.start()
    try:
        for data in inputs:
            used = memory_of(target, data)
            if used > memory_allowed(target, data):
                yield f"memory: more than {memory_allowed(target, data)} bytes", data
    finally:
        tracemalloc.stop()


def run_chunk(name: str, target: Target, seed: str, course: Course, count: int, others: Sequence[bytes]) -> Course:
    """Give a decoder ``count`` more inputs; which ones follows from the seed and from how far it is alone."""
    with _watching() as watch:
        return _run_chunk(name, target, seed, course, count, others, watch)


def _run_chunk(
    name: str, target: Target, seed: str, course: Course, count: int, others: Sequence[bytes], watch: _Watch
) -> Course:
    began_s = process_time()
    random = Random(f"{seed}/{name}/{course.inputs}")
    pool = [*target.samples, *corpus_of(name), *map(bytes.fromhex, course.kept)]
    kept, failures, told = list(course.kept), list(course.failures), {what for what, _ in course.failures}
    accepted, slowest_s = course.accepted, course.slowest_s
    run, raises, draw = target.run, target.raises, random.random
    leads = list(target.samples)  # beside them those that ran a new block, the later the likelier
    seen: set[Place] = set()
    MARKS[:] = bytes(len(MARKS))
    known = bytes(MARKS)
    has_room = len(kept) < KEPT_MAX
    size_kb, recent = _size_kb(), list[bytes]()

    def fail(what: str, data: bytes) -> None:
        if what not in told:
            told.add(what)
            failures.append((what, data.hex()))

    for number in range(-len(pool), count):
        # What is known already is read first: it must lead nowhere new.
        if number < 0:
            data = pool[number]
        else:
            chance = draw()
            lead = leads[int((2 * chance) ** 0.5 * len(leads))] if chance < 0.5 else pool[int(draw() * len(pool))]
            data = mutate(random, lead, others)
        recent.append(data)
        place: Place = ()
        what = ""
        started = perf_counter()
        try:
            watch.number = number + len(pool)
            run(data)
            watch.number = -1
        except raises as error:
            watch.number = -1
            place = place_of(error) if has_room else _REFUSED
        except (Exception, Hangs) as error:
            watch.number = -1
            what = repr(error)[:500]
        took_s = perf_counter() - started
        if took_s > slowest_s and took_s > TIMED_FROM_S:
            # Others may have had the processor meanwhile, and whoever stops a campaign stops it within an input.
            took_s = took_s if what else min(took_s, _cpu_s(target, data))
            slowest_s = max(slowest_s, took_s)
            if took_s > SECONDS_MAX and not what:
                what = f"slow: more than {SECONDS_MAX:.0f} s"
        if what:
            fail(what, data)
            MARKS[:] = known
            continue
        if has_room and (place not in seen or known != MARKS):
            if number >= 0 and len(data) > KEPT_BYTES_MAX:
                MARKS[:] = known  # a smaller input may come here yet
            else:
                seen.add(place)
                if known != MARKS:
                    known = bytes(MARKS)
                    leads.append(data)
                if number >= 0:
                    kept.append(data.hex())
                    pool.append(data)
                    has_room = len(kept) < KEPT_MAX
        accepted += number >= 0 and not place
        if len(recent) == LOOK_EVERY:
            grown = _size_kb()
            if grown > size_kb + GROWTH_BYTES_MAX // 1024:
                size_kb = grown
                for what, bad in greedy(target, recent):
                    fail(what, bad)
            recent.clear()
    return Course(
        inputs=course.inputs + count,
        accepted=accepted,
        seconds=course.seconds + process_time() - began_s,
        slowest_s=slowest_s,
        kept=tuple(kept),
        failures=tuple(failures),
        files=tuple(sorted({*course.files, *files_run()})),
    )


def _cpu_s(target: Target, data: bytes) -> float:
    """Return what reading an input takes when others do not take the processor meanwhile."""
    started_s = process_time()
    with suppress(Exception):
        target.run(data)
    return process_time() - started_s


def _size_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
