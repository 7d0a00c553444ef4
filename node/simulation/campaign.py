"""Campaigns of simulated runs: all cores, resumable, with a report; no run is ever left out.

A campaign is a list of parts, a part a range of numbers, each number one run that can be played again alone. What
is done is kept in a file of lines, one for each finished piece, so that an interrupted campaign goes on where it
was. The file belongs to the code it was made with. With other code it is set aside, and the campaign starts from
the beginning.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from consensus.simulation.crash_points import COURSES, Course, operations, run_crash_point
from consensus.simulation.disk import Fault
from consensus.simulation.heal import breaks, run_break, weighted_breaks
from consensus.simulation.scenarios import run_scenario
from consensus.simulation.twins import count_scenarios, run_twins, scenario_of
from node.simulation.above_bound import run_above
from node.simulation.crash_points import WHOLE
from node.simulation.scenarios import run_whole

__all__ = ["PLANS", "RUNS", "Campaign", "Part", "Piece", "Run", "markdown", "play"]

SEVEN_ROUNDS: Final = 4
_FAULTS: Final = tuple(Fault)
_BREAKS: Final = tuple(breaks())
_WEIGHTED: Final = tuple(weighted_breaks())
_PACKAGES: Final = ("consensus", "state", "node", "billing", "tasks")


class Run(NamedTuple):
    """What one run came to."""

    kind: str
    events: int
    progress_ms: int = 0
    """How long progress took after the heal, in virtual time."""
    is_forked: bool = False


def _seed(number: int) -> Run:
    """Run replicas above a chain of hashes and a schedule of committees."""
    outcome = run_scenario(number)
    recovery_ms = 0 if outcome.kind == "above_f" else outcome.recovery_ms
    return Run(outcome.kind, outcome.events, recovery_ms, outcome.is_forked)


def _whole(number: int) -> Run:
    """Run whole nodes: real state, store and epochs below the real consensus."""
    outcome = run_whole(number).outcome
    return Run(f"whole nodes, {outcome.kind}", outcome.events, outcome.recovery_ms)


def _above(number: int) -> Run:
    found = run_above(number)
    kind = f"above the bound, {found.kind}" + ", stands still" * found.stands_still
    return Run(kind, found.events, found.recovery_ms, found.is_forked)


def _two_rounds(number: int) -> Run:
    return Run("n=4, 1 twin, 2 rounds", run_twins(scenario_of(number)))


def _three_rounds(number: int) -> Run:
    return Run("n=4, 1 twin, 3 rounds", run_twins(scenario_of(number, rounds=3)))


def _seven(number: int) -> Run:
    index = random.Random(number).randrange(count_scenarios(7, 2, SEVEN_ROUNDS))
    return Run("n=7, 2 twins", run_twins(scenario_of(index, seats=7, twins=2, rounds=SEVEN_ROUNDS)))


def _crash_point(number: int) -> Run:
    operation, fault = divmod(number, len(_FAULTS))
    return Run(_FAULTS[fault].value, 0, run_crash_point(operation + 1, _FAULTS[fault]))


@cache
def _points(part: str) -> tuple[tuple[str, Course, int], ...]:
    """Every durable operation of the courses of a part."""
    courses = {"whole": WHOLE} if part == "crash-points-whole" else COURSES
    return tuple(
        [
            (name, course, at + 1)
            for name, course in courses.items()
            if name != "one epoch"  # a part of its own
            for at in range(len(operations(course)))
        ]
    )


def _point_of(part: str, number: int) -> Run:
    which, fault = divmod(number, len(_FAULTS))
    name, course, operation = _points(part)[which]
    return Run(f"{name}, {_FAULTS[fault].value}", 0, run_crash_point(operation, _FAULTS[fault], course))


def _break(number: int) -> Run:
    seed, which = divmod(number, len(_BREAKS))
    return Run(_BREAKS[which].kind, 0, run_break(_BREAKS[which], seed).progress_ms)


def _weighted_break(number: int) -> Run:
    seed, which = divmod(number, len(_WEIGHTED))
    return Run(f"{_WEIGHTED[which].kind}, unequal", 0, run_break(_WEIGHTED[which], seed).progress_ms)


RUNS: Final[dict[str, Callable[[int], Run]]] = {
    "seeds": _seed,
    "whole": _whole,
    "above-f": _above,
    "twins-2": _two_rounds,
    "twins-3": _three_rounds,
    "twins-7": _seven,
    "crash-points": _crash_point,
    "crash-points-epochs": partial(_point_of, "crash-points-epochs"),
    "crash-points-whole": partial(_point_of, "crash-points-whole"),
    "heal": _break,
    "heal-weights": _weighted_break,
}
"""What a number means in each part."""


class Part(NamedTuple):
    """``runs`` runs from number 0, in pieces of ``piece``."""

    name: str
    runs: int
    piece: int


def _plans() -> dict[str, Callable[[], tuple[Part, ...]]]:
    def common() -> tuple[Part, ...]:
        return (
            Part("twins-2", count_scenarios(4, 1, 2), 256),
            Part("above-f", 2_000, 20),
            Part("crash-points", len(operations()) * len(_FAULTS), 120),
            Part("crash-points-epochs", len(_points("crash-points-epochs")) * len(_FAULTS), 60),
            Part("crash-points-whole", len(_points("crash-points-whole")) * len(_FAULTS), 20),
            Part("heal", 5 * len(_BREAKS), 94),
            Part("heal-weights", 5 * len(_WEIGHTED), 94),
            Part("twins-7", 50_000, 250),
        )

    return {
        "short": lambda: (Part("seeds", 200, 20), Part("whole", 40, 5), Part("heal", len(_BREAKS), 47)),
        "nightly": lambda: (Part("seeds", 100_000, 100), Part("whole", 100_000, 20), *common()),
        "release": lambda: (
            Part("seeds", 1_000_000, 250),
            Part("whole", 1_000_000, 50),
            Part("twins-3", count_scenarios(4, 1, 3), 512),
            *common(),
        ),
    }


PLANS: Final = _plans()


@dataclass(slots=True)
class Kind:
    """The runs of one kind."""

    runs: int = 0
    events: int = 0
    slowest_ms: int = 0
    slowest_number: int = -1
    forks: int = 0


@dataclass(slots=True)
class Piece:
    """The result of consecutive runs of a part."""

    part: str
    first: int
    runs: int = 0
    cpu_s: float = 0.0
    kinds: dict[str, Kind] = field(default_factory=dict)
    violations: list[tuple[int, str]] = field(default_factory=list)


def play(part: str, first: int, last: int) -> Piece:
    """Play the runs from ``first`` to below ``last``; whatever one raises is a violation with its number."""
    piece, run = Piece(part, first), RUNS[part]
    begun_s = time.process_time()
    for number in range(first, last):
        piece.runs += 1
        try:
            found = run(number)
        except Exception as error:
            piece.violations.append((number, f"{type(error).__name__}: {error}"[:500]))
            continue
        kind = piece.kinds.setdefault(found.kind, Kind())
        kind.runs += 1
        kind.events += found.events
        kind.forks += found.is_forked
        if found.progress_ms > kind.slowest_ms:
            kind.slowest_ms, kind.slowest_number = found.progress_ms, number
    piece.cpu_s = time.process_time() - begun_s
    return piece


def _code_digest() -> str:
    """A digest of the sources that runs are made of: every module of ours that is loaded for them."""
    root = Path(__file__).resolve().parents[2]
    files = [
        Path(file).resolve()
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None))
    ]
    ours = [path for path in files if path.is_relative_to(root)]
    # A compiled module lies beside its source; what compiled modules share has none.
    sources = (path.with_name(path.name.partition(".")[0] + ".py") for path in ours)
    paths = {path for path in sources if path.is_file()}
    hashed = blake2b(digest_size=16)
    for package in _PACKAGES:
        for path in sorted(path for path in paths if path.is_relative_to(root / package)):
            hashed.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    is_compiled = any(path.suffix == ".so" and path.is_relative_to(root / "consensus") for path in ours)
    return hashed.hexdigest() + (" compiled" if is_compiled else "")


class Share(NamedTuple):
    """What one of many machines plays: every ``of``-th piece of a campaign, from the ``number``-th on."""

    number: int
    of: int


ALL: Final = Share(1, 1)


class OtherCampaign(Exception):
    """The results file is from another campaign or other code."""


class Campaign:
    """One plan in one directory: ``state.jsonl`` is what is done, ``report.json`` and ``.md`` what it came to."""

    def __init__(self, name: str, parts: tuple[Part, ...], directory: Path) -> None:
        self.name = name
        self.parts = parts
        self.directory = directory
        self.pieces: dict[tuple[str, int], Piece] = {}
        self.wall_s = 0.0
        self.set_aside: Path | None = None
        """Where the state of another plan, or of other code, was put."""
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "state.jsonl"
        self._head = {"campaign": name, "parts": [list(part) for part in parts], "code": _code_digest()}
        self._load()

    def _load(self) -> None:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        records = list(_readable(lines))
        if not records or records[0] != self._head:
            if len(records) > 1:  # hours of work, of another plan or other code: set aside, never thrown away
                self.set_aside = _free_name(self._path)
                self._path.rename(self.set_aside)
            self._path.write_text(json.dumps(self._head) + "\n")
            return
        # A line that a crash has torn must not swallow the next one.
        self._path.write_text("".join([json.dumps(record) + "\n" for record in records]))
        for record in records[1:]:
            self._add(record)

    @property
    def runs_total(self) -> int:
        """How many runs the campaign has in all."""
        return sum(part.runs for part in self.parts)

    @property
    def runs_done(self) -> int:
        """How many of them are done."""
        return sum(piece.runs for piece in self.pieces.values())

    @property
    def violations(self) -> list[tuple[str, int, str]]:
        """Every run that broke a promise: part, number, what it says."""
        return sorted((p.part, number, text) for p in self.pieces.values() for number, text in p.violations)

    def take_in(self, directory: Path) -> int:
        """Add what another machine has played of this plan and code; return how many runs that are.

        Raises OtherCampaign where it is of another plan or of other code.
        """
        records = list(_readable((directory / self._path.name).read_text().splitlines()))
        if not records or records[0] != self._head:
            raise OtherCampaign(f"{directory} is of another plan, or of other code")
        before = self.runs_done
        with self._path.open("a") as state:
            for record in records[1:]:
                if (record["part"], record["first"]) not in self.pieces:
                    state.write(json.dumps(record) + "\n")
                    self._add(record)
            state.flush()
            os.fsync(state.fileno())
        return self.runs_done - before

    def _add(self, record: dict[str, Any]) -> None:
        self.wall_s += float(record.pop("wall_s"))
        piece = _piece(record)
        self.pieces[piece.part, piece.first] = piece

    def _missing(self, share: Share) -> Iterator[tuple[str, int, int]]:
        pieces = ((part, first) for part in self.parts for first in range(0, part.runs, part.piece))
        for number, (part, first) in enumerate(pieces):
            if number % share.of == share.number - 1 and (part.name, first) not in self.pieces:
                yield part.name, first, min(first + part.piece, part.runs)

    def is_done(self, share: Share) -> bool:
        """Whether nothing is missing of a share."""
        return next(self._missing(share), None) is None

    def run(self, jobs: int, on_piece: Callable[[Piece], None] = lambda _: None, share: Share = ALL) -> None:
        """Play what is missing of a share on ``jobs`` processes; what ends is on disk before more is asked."""
        context = multiprocessing.get_context("spawn")
        missing = self._missing(share)
        last_s = time.monotonic()
        with (
            ProcessPoolExecutor(jobs, mp_context=context, initializer=_spare_collections) as pool,
            self._path.open("a") as state,
        ):
            running: set[Future[Piece]] = set()
            try:
                while True:
                    for task in missing:
                        running.add(pool.submit(play, *task))
                        if len(running) >= 2 * jobs:
                            break
                    if not running:
                        return
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        piece = future.result()
                        now_s = time.monotonic()
                        self.wall_s += now_s - last_s
                        state.write(json.dumps(asdict(piece) | {"wall_s": round(now_s - last_s, 3)}) + "\n")
                        state.flush()
                        os.fsync(state.fileno())
                        last_s = now_s
                        self.pieces[piece.part, piece.first] = piece
                        on_piece(piece)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def report(self) -> dict[str, Any]:
        """Return what the campaign came to so far, and write it beside the state."""
        parts: dict[str, Any] = {}
        for part in self.parts:
            pieces = [piece for piece in self.pieces.values() if piece.part == part.name]
            kinds: dict[str, Kind] = {}
            for piece in pieces:
                for name, found in piece.kinds.items():
                    _add(kinds.setdefault(name, Kind()), found)
            parts[part.name] = {
                "runs": sum(piece.runs for piece in pieces),
                "of": part.runs,
                "events": sum(kind.events for kind in kinds.values()),
                "cpu_s": round(sum(piece.cpu_s for piece in pieces), 1),
                "violations": [list(found) for piece in pieces for found in piece.violations],
                "kinds": {name: asdict(kind) for name, kind in sorted(kinds.items())},
            }
        report = {
            "campaign": self.name,
            "code": self._head["code"],
            "runs": self.runs_done,
            "of": self.runs_total,
            "wall_s": round(self.wall_s, 1),
            "violations": len(self.violations),
            "parts": parts,
        }
        (self.directory / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        (self.directory / "report.md").write_text(markdown(report))
        return report


def _spare_collections() -> None:
    """Collect garbage seldom: what is imported stays, and a run leaves few cycles of some megabytes."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _free_name(path: Path) -> Path:
    return next(name for n in count(1) if not (name := path.with_name(f"{path.name}.{n}")).exists())


def _readable(lines: list[str]) -> Iterator[dict[str, Any]]:
    """The lines up to the first that a crash has torn."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            return
        yield record


def _piece(record: dict[str, Any]) -> Piece:
    kinds = {name: Kind(**kind) for name, kind in record.pop("kinds").items()}
    violations = [(int(number), str(text)) for number, text in record.pop("violations")]
    return Piece(**record, kinds=kinds, violations=violations)


def _add(total: Kind, found: Kind) -> None:
    total.runs += found.runs
    total.events += found.events
    total.forks += found.forks
    if found.slowest_ms > total.slowest_ms:
        total.slowest_ms, total.slowest_number = found.slowest_ms, found.slowest_number


def markdown(report: dict[str, Any]) -> str:
    """Return a report as text for people."""
    lines = [
        f"# Simulation campaign: {report['campaign']}",
        "",
        f"{report['runs']:,} of {report['of']:,} runs, {report['violations']} violations, "
        f"{report['wall_s'] / 3600:.2f} h. Code {report['code']}.",
        "",
        "| part | kind | runs | events | slowest progress after the heal (virtual ms) | its number | forks |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, part in report["parts"].items():
        for kind, found in part["kinds"].items():
            slowest = (found["slowest_ms"], found["slowest_number"]) if found["slowest_number"] >= 0 else ("", "")
            lines.append(
                f"| {name} | {kind} | {found['runs']:,} | {found['events']:,} | {slowest[0]} | {slowest[1]} "
                f"| {found['forks'] or ''} |"
            )
    broken = [(name, *found) for name, part in report["parts"].items() for found in part["violations"]]
    lines += ["", "## Violations", ""]
    lines += [f"- `python -m node.simulation replay {name} {number}`: {text}" for name, number, text in broken]
    return "\n".join(lines if broken else [*lines, "None."]) + "\n"
