"""A long fuzz of every decoder: ``python -m tests.fuzz.campaign 10000000`` (``make fuzz N=...``), docs/fuzzing.md.

N inputs to each decoder, whatever they cost, in chunks that go round: what is stopped goes on where it was, on
another machine from what the repository's record says (``played``). An input that is refused at a place where none
was before, or that runs a new block of the product, is kept and changed further.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, Final

from tests.fuzz import marks

if __name__ == "__main__":
    marks.watch()  # the product is imported below

from tests.fuzz.decoders import SOURCES, TARGETS
from tests.fuzz.kept import add_to_corpus
from tests.fuzz.played import PLAYED, Played, read_played, write_played
from tests.fuzz.reading import Course, run_chunk

ROOT: Final = Path(__file__).parents[2]
CHUNK: Final = 5_000
LONG_CHUNK: Final = 50_000
"""Once a decoder has had so many: what is kept is read again at the beginning of each chunk."""
SAVE_EVERY_S: Final = 20.0
MEMORY_MAX_BYTES: Final = 8 * 2**30
"""Address space of a process that reads: beyond it an input gets a MemoryError, and the machine lives on."""
YOUNG_OBJECTS: Final = 20_000
"""An input leaves few cycles; they are looked for seldom."""
DEFAULT_INPUTS: Final = 100_000
OTHERS: Final = tuple(sample for target in TARGETS.values() for sample in target.samples[:2])


@dataclass(frozen=True)
class State:
    """What the state file holds."""

    seed: str
    courses: Mapping[str, Course] = field(default_factory=dict)


def _prepare() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # the product's own objects are no garbage, and looking through them is dear
    gc.set_threshold(YOUNG_OBJECTS, 20, 100)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _chunk_by_name(name: str, seed: str, course: Course, count: int) -> Course:
    return run_chunk(name, TARGETS[name], seed, course, count, OTHERS)


def digest(name: str, files: Sequence[str]) -> str:
    """Return what changes with what a decoder runs: the target, its modules, and those that these import."""
    imported = frozenset[str]().union(*map(marks.imported_by, files))
    paths = sorted({SOURCES[name], *(ROOT / file for file in {*files, *imported})})
    return hashlib.sha256("".join(map(_hash_of, paths)).encode()).hexdigest()[:16]


@cache
def _hash_of(path: Path) -> str:
    return hashlib.sha256(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes()).hexdigest()


def is_current(name: str, course: Course, then: str) -> bool:
    """Return whether what was played of a decoder, when its digest was ``then``, is of the software of now."""
    files = [file for file in course.files if (ROOT / file).is_file()]
    return name in TARGETS and len(files) == len(course.files) and digest(name, files) == then


def load(path: Path) -> State | None:
    """Return the state of a campaign, less the decoders that have changed since; None where none was begun."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    courses = {}
    for name, values in document["courses"].items():
        course = Course(
            **{
                **values, "kept": tuple(values["kept"]), "failures": tuple(map(tuple, values["failures"])),
                "files": tuple(values["files"]),
            }
        )  # fmt: skip
        if is_current(name, course, document["digests"][name]):
            courses[name] = course
    return State(document["seed"], courses)


def with_played(state: State, path: Path) -> State:
    """Return a state with what the repository's record has more of, where that is of this seed and software."""
    seed, played = read_played(path)
    courses = dict(state.courses)
    for name, one in played.items():
        is_more = name not in courses or courses[name].inputs < one.course.inputs
        if seed == state.seed and is_more and is_current(name, one.course, one.digest):
            # What led further is in the corpus, or lost; what failed here has to be mended all the same.
            failures = courses[name].failures if name in courses else ()
            courses[name] = replace(one.course, failures=failures)
    return replace(state, courses=courses)


def record(state: State, path: Path) -> int:
    """Write what was played without a failure into the repository's record; return of how many decoders."""
    played = {
        name: Played(course, digest(name, course.files))
        for name, course in state.courses.items()
        if course.files and not course.failures
    }
    write_played(state.seed, played, path)
    return len(played)


def save(path: Path, state: State) -> None:
    """Write the state, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    digests = {name: digest(name, course.files) for name, course in state.courses.items()}
    new.write_text(json.dumps({**asdict(state), "digests": digests}, indent=1) + "\n")
    new.replace(path)


def play(path: Path, state: State, inputs: int, names: Sequence[str], jobs: int) -> State:
    """Give each named decoder inputs until it has had ``inputs``, a chunk in turn, saved every SAVE_EVERY_S."""
    courses = {name: state.courses.get(name, Course()) for name in names}
    courses = {**state.courses, **courses}
    saved_s = monotonic()
    with ProcessPoolExecutor(jobs, initializer=_prepare) as pool:
        running: dict[Future[Course], str] = {}

        def go_on(name: str) -> None:
            course = courses[name]
            size = CHUNK if course.inputs < LONG_CHUNK else LONG_CHUNK
            count = min(size - course.inputs % size, inputs - course.inputs)
            if count > 0:
                running[pool.submit(_chunk_by_name, name, state.seed, course, count)] = name

        try:
            for name in sorted(names, key=lambda name: TARGETS[name].cost):
                go_on(name)
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    name = running.pop(future)
                    courses[name] = future.result()
                    go_on(name)
                if monotonic() - saved_s > SAVE_EVERY_S or not running:
                    save(path, replace(state, courses=courses))
                    saved_s = monotonic()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            save(path, replace(state, courses=courses))
    return replace(state, courses=courses)


def report(state: State) -> str:
    """Return a table of what was played, the dearest decoders first, and what failed."""
    rows = sorted(state.courses.items(), key=lambda item: -item[1].seconds / max(1, item[1].inputs))
    lines = [f"{'decoder':32} {'inputs':>12} {'accepted':>12} {'kept':>5} {'us/input':>9} {'slowest ms':>10}"]
    for name, course in rows:
        each_us = course.seconds / max(1, course.inputs) * 1e6
        lines.append(
            f"{name[:32]:32} {course.inputs:12,} {course.accepted:12,} {len(course.kept):5} {each_us:9.1f} "
            f"{course.slowest_s * 1000:10.1f}"
        )
    inputs, seconds = sum(c.inputs for _, c in rows), sum(c.seconds for _, c in rows)
    least = min((course.inputs for _, course in rows), default=0)
    failures = [(name, failure) for name, course in rows for failure in course.failures]
    lines.append(
        f"{len(rows)} decoders, at least {least:,} inputs each, {inputs:,} in all, {seconds / 3600:.2f} h"
        f" ({inputs / max(seconds, 1e-9):,.0f} a second)"
    )
    lines += [f"FAILED {name}: {what}: {data}" for name, (what, data) in failures]
    return "\n".join([*lines, f"{len(failures)} failures, seed {state.seed}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, report, or keep; returns 1 when a decoder failed, 2 when a state is of another seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign", description=__doc__)
    parser.add_argument("inputs", type=int, nargs="?", default=DEFAULT_INPUTS, help="inputs to each decoder")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", action="append", default=[], metavar="DECODER")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "fuzz" / "state.json")
    parser.add_argument("--restart", action="store_true", help="begin at nothing; the old state goes to *.old")
    parser.add_argument(
        "--keep", type=int, metavar="EACH", help="put so many found inputs into the corpus, play none"
    )
    parser.add_argument("--played", type=Path, default=PLAYED, help="the record of what was played")
    parser.add_argument("--record", action="store_true", help="write what was played into the record, play none")
    options = parser.parse_args(arguments)
    if options.restart and options.state.exists():
        options.state.replace(options.state.with_suffix(".old"))
    for file in (*SOURCES.values(), *(path for name in marks.PACKAGES for path in (ROOT / name).rglob("*.py"))):
        _hash_of(file)  # now: what is written to it later is not what is played
    state = load(options.state)
    if options.keep is not None:
        courses = state.courses if state is not None else {}
        print(sum(add_to_corpus(name, c.kept, options.keep, 256) for name, c in courses.items()), "inputs kept")
        return 0
    if state is not None and state.seed != options.seed:
        print(f"{options.state} is of another seed; --restart begins anew", file=sys.stderr)
        return 2
    state = state or State(options.seed)
    if not options.restart:
        state = with_played(state, options.played)
    if options.record:
        print(record(state, options.played), "decoders recorded")
        return 0
    names = options.only or list(TARGETS)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped either way, what was played is saved
    state = play(options.state, state, options.inputs, names, options.jobs)
    text = report(state)
    options.state.parent.mkdir(parents=True, exist_ok=True)
    options.state.with_name("report.txt").write_text(text + "\n")
    print(text)
    return 1 if any(course.failures for course in state.courses.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
