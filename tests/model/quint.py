"""Runs the Quint model of ``docs/model``: installs the pinned tool, draws samples, records traces for the replay.

``python -m tests.model.quint run`` draws samples of every instance; ``record`` writes the kept traces anew.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.model.replay import WORLDS, Replay, load_trace

HERE: Final = Path(__file__).parent
MODEL: Final = HERE.parents[1] / "docs" / "model"
TOOL: Final = HERE.parents[1] / "build" / "quint"
TRACES: Final = HERE / "traces"
SPEC: Final = MODEL / "sdbft.qnt"
PROMISES: Final = ("agreement", "promises")
WITNESSES: Final = ("somethingFinal", "someViewSkipped", "notarizedAndNull", "proposedAgain", "epochEnded")
INSTANCES: Final = ("equal", "weighted", "heavy")
RECORDED: Final = ("equal", "weighted")
TRACES_EACH: Final = 16
SAMPLES_RECORDED: Final = 128
TRACES_MAX: Final = 500
STEPS: Final = 50
KEPT: Final = ("last", "current", "committed")


class QuintFailed(Exception):
    """The tool reports a violation or could not run; the text is what it printed."""


def installed() -> Path:
    """Install the tool as the lock file names it, unless it is there; return its program. Raises QuintFailed."""
    program = TOOL / "node_modules" / ".bin" / "quint"
    stamp, lock = TOOL / "installed.json", MODEL / "package-lock.json"
    TOOL.mkdir(parents=True, exist_ok=True)
    with (TOOL / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # tests of several processes want it at once
        if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
            stamp.unlink(missing_ok=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(MODEL / name, TOOL)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=TOOL, capture_output=True, text=True)
            if done.returncode:
                raise QuintFailed(done.stdout + done.stderr)
            shutil.copy(lock, stamp)
    return program


def quint_run(instance: str, *, samples: int, seed: int, steps: int = STEPS, traces: Path | None = None) -> str:
    """Draw samples of an instance and return what the tool prints. Raises QuintFailed for a violation."""
    command = [str(installed()), "run", "--backend", "typescript", "--main", instance, "--verbosity", "1"]
    command += ["--invariants", *PROMISES, "--witnesses", *WITNESSES, "--max-samples", str(samples)]
    command += ["--max-steps", str(steps), "--seed", str(seed)]
    if traces is not None:
        command += ["--n-traces", str(min(samples, TRACES_MAX)), "--out-itf", str(traces / "{seq}.itf.json")]
    done = subprocess.run([*command, str(SPEC)], capture_output=True, text=True)
    if done.returncode:
        raise QuintFailed(done.stdout + done.stderr)
    return done.stdout


def witnessed(output: str) -> dict[str, int]:
    """In how many samples each witness came true."""
    return {name: int(count) for name, count in re.findall(r"(\w+) was witnessed in (\d+) trace", output)}


def record() -> None:
    """Rewrite the stored traces: those with the rarest actions, reduced to what the replay reads."""
    shutil.rmtree(TRACES, ignore_errors=True)
    TRACES.mkdir()
    for seed, instance in enumerate(RECORDED, 1):
        with tempfile.TemporaryDirectory() as scratch:
            print(quint_run(instance, samples=SAMPLES_RECORDED, seed=seed, traces=Path(scratch)))
            # The tool writes many traces twice.
            found = {_cut(json.loads(path.read_text())): path for path in sorted(Path(scratch).iterdir())}
            seen = {trace: _features(instance, path) for trace, path in found.items()}
        often = Counter(feature for features in seen.values() for feature in features)
        rarest = sorted(seen, key=lambda trace: -sum(1 / often[feature] for feature in seen[trace]))
        for number, trace in enumerate(rarest[:TRACES_EACH]):
            (TRACES / f"{instance}-{number:02}.itf.json").write_text(trace)


def _features(instance: str, path: Path) -> set[str]:
    """What a trace makes the core do; one that the core does not follow is the rarest of all."""
    try:
        return set(Replay(WORLDS[instance], by_votes=True).run(load_trace(path)))
    except AssertionError:
        return {"disagreement", path.name}


def _cut(trace: dict[str, Any]) -> str:
    """The same trace with fewer variables, one state a line."""
    names = {name: name.rpartition("::")[2] for name in trace["vars"]}
    states = [
        {names[name]: value for name, value in state.items() if names.get(name) in KEPT}
        for state in trace["states"]
    ]
    lines = ",\n".join(json.dumps(_small(state), separators=(",", ":")) for state in states)
    return f'{{"vars":{json.dumps(KEPT)},"states":[\n{lines}\n]}}\n'


def _small(value: Any) -> Any:
    """Small integers as plain numbers, which the format allows."""
    match value:
        case {"#bigint": number}:
            return int(number)
        case dict():
            return {key: _small(item) for key, item in value.items()}
        case list():
            return [_small(item) for item in value]
        case _:
            return value


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.model.quint", description="run the Quint model")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="draw samples and check the promises")
    run.add_argument("--samples", type=int, default=1_000)
    run.add_argument("--steps", type=int, default=STEPS)
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--instance", choices=(*INSTANCES, "broken"), action="append")
    commands.add_parser("record", help="write tests/model/traces anew")
    options = parser.parse_args()
    if options.command == "record":
        record()
        return
    for instance in options.instance or INSTANCES:
        print(instance)
        try:
            print(quint_run(instance, samples=options.samples, seed=options.seed, steps=options.steps))
        except QuintFailed as failed:
            sys.exit(str(failed))


if __name__ == "__main__":
    main()
