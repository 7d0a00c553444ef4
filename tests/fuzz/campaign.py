"""A long fuzz of every decoder: ``python -m tests.fuzz.campaign 10000000`` (``make fuzz N=...``), docs/fuzzing.md.

N inputs to each decoder, whatever they cost, in chunks that go round: what is stopped goes on where it was. An
input that is refused at a place where none was before, or that runs a new line of the product, is kept and changed
further. The place costs nothing; lines are looked at in one input of TRACED_EVERY.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from time import perf_counter
from types import FrameType
from typing import Any, Final, TypeAlias

from tests.fuzz.decoders import TARGETS, Target
from tests.fuzz.mutate import mutate

ROOT: Final = Path(__file__).parents[2]
CORPUS: Final = Path(__file__).parent / "corpus"
CHUNK: Final = 5_000
SECONDS_MAX: Final = 5.0
"""For one input, on a machine that does other things; what is quadratic in a whole message takes longer."""
HANGS_S: Final = 30.0
KEPT_MAX: Final = 200
"""Inputs that are kept for a decoder, in all."""
KEPT_BYTES_MAX: Final = 2_048
FRAMES_MAX: Final = 12
TRACED_EVERY: Final = 32
PRODUCT: Final = tuple(
    str(ROOT / package) + os.sep
    for package in ("state", "billing", "tasks", "consensus", "p2p", "relay", "rpc", "node", "testnet")
)
DEFAULT_INPUTS: Final = 100_000
OTHERS: Final = tuple(sample for target in TARGETS.values() for sample in target.samples[:2])
Place: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Course:
    """How far one decoder is."""

    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    kept: tuple[str, ...] = ()
    """In hexadecimal, beside the samples and the corpus."""
    failures: tuple[tuple[str, str], ...] = ()
    """What was raised, and the input."""


@dataclass(frozen=True)
class State:
    """What the state file holds."""

    seed: str
    digest: str
    courses: Mapping[str, Course] = field(default_factory=dict)


def corpus_of(name: str) -> list[bytes]:
    """Return the inputs that are kept for a decoder in the repository."""
    return [bytes.fromhex(line) for at, line in _corpus() if at == name]


@cache
def _corpus() -> tuple[tuple[str, str], ...]:
    files = [file.read_text().splitlines() for file in sorted(CORPUS.glob("*.hex"))]
    return tuple((name, line) for name, *lines in files for line in lines)


def place_of(error: BaseException | None) -> Place:
    """Return where an input was refused, through which lines, and what was raised before; () when it was not."""
    found: list[str] = []
    while error is not None and len(found) < 3 * FRAMES_MAX:
        found.append(type(error).__name__)
        trace, depth = error.__traceback__, 0
        while trace is not None and depth < FRAMES_MAX:
            found.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
            trace, depth = trace.tb_next, depth + 1
        error = error.__context__
    return tuple(found)


class Hangs(Exception):
    """An input was not read within HANGS_S."""


def lines_of(target: Target, data: bytes) -> set[tuple[str, int]]:
    """Return the lines of the product that an input runs."""
    found: set[tuple[str, int]] = set()

    def line(frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, _event: str, _argument: object) -> Any:
        return line if frame.f_code.co_filename.startswith(PRODUCT) else None

    old = sys.gettrace()
    sys.settrace(call)
    try:
        read_one(target, data)
    finally:
        sys.settrace(old)
    return found


def _on_alarm(_number: int, _frame: FrameType | None) -> None:
    raise Hangs


def read_one(target: Target, data: bytes) -> tuple[Place, str | None]:
    """Read one input: where it was refused, and what is wrong with the decoder, if anything."""
    refused: BaseException | None = None
    started = perf_counter()
    signal.setitimer(signal.ITIMER_REAL, HANGS_S)
    try:
        target.run(data)
    except target.raises as error:
        refused = error
    except Exception as error:
        return (), repr(error)[:500]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took_s = perf_counter() - started
    return place_of(refused), f"slow: {took_s:.1f} s" if took_s > SECONDS_MAX else None


def run_chunk(name: str, target: Target, seed: str, course: Course, count: int) -> Course:
    """Give a decoder ``count`` more inputs; which ones follows from the seed and from how far it is alone."""
    old = signal.signal(signal.SIGALRM, _on_alarm)
    try:
        return _run_chunk(name, target, seed, course, count)
    finally:
        signal.signal(signal.SIGALRM, old)


def _run_chunk(name: str, target: Target, seed: str, course: Course, count: int) -> Course:
    random = Random(f"{seed}/{name}/{course.inputs}")
    pool = [*target.samples, *corpus_of(name), *map(bytes.fromhex, course.kept)]
    seen = {read_one(target, data)[0] for data in pool}
    lines = set[tuple[str, int]]().union(*[lines_of(target, data) for data in pool])
    kept, failures = list(course.kept), list(course.failures)
    accepted, slowest_s, began = course.accepted, course.slowest_s, perf_counter()
    for number in range(count):
        data = mutate(random, random.choice(pool), OTHERS)
        started = perf_counter()
        place, failure = read_one(target, data)
        slowest_s = max(slowest_s, perf_counter() - started)
        if failure is not None:
            if failure not in {known for known, _ in failures}:
                failures.append((failure, data.hex()))
            continue
        accepted += not place
        is_new, has_room = place not in seen, len(kept) < KEPT_MAX and len(data) <= KEPT_BYTES_MAX
        if has_room and number % TRACED_EVERY == 0:
            ran = lines_of(target, data)
            is_new |= not ran <= lines
            lines |= ran
        if is_new and has_room:
            seen.add(place)
            kept.append(data.hex())
            pool.append(data)
    return Course(
        inputs=course.inputs + count,
        accepted=accepted,
        seconds=course.seconds + perf_counter() - began,
        slowest_s=slowest_s,
        kept=tuple(kept),
        failures=tuple(failures),
    )


def _chunk_by_name(name: str, seed: str, course: Course, count: int) -> Course:
    return run_chunk(name, TARGETS[name], seed, course, count)


def digest() -> str:
    """Return what changes with any line of the product or of the fuzzer, the corpus included."""
    found = hashlib.sha256()
    for package in (*PRODUCT, str(Path(__file__).parent)):
        for file in sorted(Path(package).rglob("*")):
            if file.suffix in (".py", ".hex"):
                found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


def load(path: Path) -> State | None:
    """Return the state of a campaign that was begun, or None."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    courses = {
        name: Course(
            **{**values, "kept": tuple(values["kept"]), "failures": tuple(map(tuple, values["failures"]))}
        )
        for name, values in document["courses"].items()
    }
    return State(document["seed"], document["digest"], courses)


def save(path: Path, state: State) -> None:
    """Write the state, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(state), indent=1) + "\n")
    new.replace(path)


def play(path: Path, state: State, inputs: int, names: Sequence[str], jobs: int) -> State:
    """Give each named decoder inputs until it has had ``inputs``, a chunk in turn, saved each time."""
    courses = {name: state.courses.get(name, Course()) for name in names}
    courses = {**state.courses, **courses}
    with ProcessPoolExecutor(jobs) as pool:
        running: dict[Future[Course], str] = {}

        def go_on(name: str) -> None:
            course = courses[name]
            count = min(CHUNK - course.inputs % CHUNK, inputs - course.inputs)
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
                save(path, replace(state, courses=courses))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
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
    )
    lines += [f"FAILED {name}: {what}: {data}" for name, (what, data) in failures]
    return "\n".join([*lines, f"{len(failures)} failures, seed {state.seed}, software {state.digest}"])


def keep(state: State, each_max: int, bytes_max: int) -> int:
    """Write the shortest kept inputs of each decoder into the repository's corpus; return how many."""
    written = 0
    for name, course in state.courses.items():
        known = {data.hex() for data in corpus_of(name)}
        chosen = sorted((k for k in course.kept if k not in known and len(k) <= 2 * bytes_max), key=len)[:each_max]
        if not chosen:
            continue
        file = CORPUS / f"kept-{''.join(c if c.isalnum() else '-' for c in name)}.hex"
        old = file.read_text().splitlines()[1:] if file.exists() else []
        file.write_text("\n".join([name, *old, *chosen]) + "\n")
        written += len(chosen)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, report, or keep; returns 1 when a decoder failed, 2 when a state is of other software."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign", description=__doc__)
    parser.add_argument("inputs", type=int, nargs="?", default=DEFAULT_INPUTS, help="inputs to each decoder")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", action="append", default=[], metavar="DECODER")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "fuzz" / "state.json")
    parser.add_argument("--restart", action="store_true", help="begin anew; the old state goes to *.old")
    parser.add_argument(
        "--keep", type=int, metavar="EACH", help="put so many found inputs into the corpus, play none"
    )
    options = parser.parse_args(arguments)
    if options.restart and options.state.exists():
        options.state.replace(options.state.with_suffix(".old"))
    state = load(options.state)
    if options.keep is not None:
        print(keep(state, options.keep, bytes_max=256) if state is not None else 0, "inputs kept")
        return 0
    now = State(options.seed, digest())
    if state is not None and (state.seed, state.digest) != (now.seed, now.digest):
        print(f"{options.state} is of other software or another seed; --restart begins anew", file=sys.stderr)
        return 2
    names = options.only or list(TARGETS)
    state = play(options.state, state or now, options.inputs, names, options.jobs)
    text = report(state)
    options.state.with_name("report.txt").write_text(text + "\n")
    print(text)
    return 1 if any(course.failures for course in state.courses.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
