"""What jobs take as the node runs them: as processes, with their start, their inputs, their states and their ends.

``check_share`` is the processor time of all verifiers, and of the worker for serving, over the worker's own. Each
figure is of processes of the executor: a worker's over a few steps, and a verifier's over one segment from a state
that it was sent. An hour's window of ``SEGMENTS`` segments follows from both, with the draws of the market's
rules: those of tasks of an hour and longer at the price where checks are most.
A worker keeps the states between its segments, so it computes none of them again. ``peak_memory_mib`` is the
largest memory of the worker's process, ``planned_memory_mib`` what a node plans for it before it takes the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import process_time
from typing import Final, NamedTuple

import trio
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from node.bench.exact_jobs import GPT, LINES, SEED, Models
from node.bench.market_shares import HOUR_S, SEGMENTS, most_checks
from state.primitives.hashing import digest
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.state import TrainingState
from tasks.executor.job import ChildFrame, Finished, Job, Segment, Train
from tasks.executor.resource_needs import needs_of
from tasks.executor.supervisor import ProcessBackend, ProcessOptions
from tasks.models.byte_tokens import BYTES_VOCABULARY, ByteTokens
from tasks.models.embedding import EmbeddingSettings, make_embedding
from tasks.models.generating import GeneratingSettings, make_generating
from tasks.models.jobs import TuningSettings, make_tuning
from tasks.models.opening import OpenEmbedder
from tasks.models.training import TextFile, TrainingSettings, make_training
from tasks.programs.generate import MADE
from tasks.recipes import digits_spec
from tasks.spec import JobSpec

__all__ = ["MADE_BY", "Made", "Measured", "measure", "process_figures"]

NUMBERS: Final = {"seed": SEED, "max_price_per_tera_unit": 1, "match_ms": 60_000}
PROMPTS: Final = 4
NEW_TOKENS: Final = 16
EMBEDDED: Final = 64
TUNED_LENGTH: Final = 64
_NONCE: Final = bytes(12)
_WALL_S: Final = 3_600.0


class Made(NamedTuple):
    """A job with its blobs, and so many steps of it that are measured."""

    spec: JobSpec
    rows: bytes
    model: bytes = b""
    steps: int = 4


class Measured(NamedTuple):
    """Processor seconds of a process and of the node beside it; its largest memory; the states that it sent."""

    cpu_s: float
    peak_bytes: int
    states: tuple[bytes, ...]


def _classifier(_models: Models) -> Made:
    dataset = make_dataset("digits")
    spec = digits_spec(dataset, dataset_blob=bytes(32), seed=SEED, max_price_per_tera_unit=1)
    return Made(spec, dataset.encode(), steps=200)


def _gpt(_models: Models) -> Made:
    settings = TrainingSettings(GPT, steps=64, batch=4, segment_steps=1, window_steps=4)
    text = TextFile(LINES * 8, "rows.txt")
    job = make_training(text, ByteTokens(), BYTES_VOCABULARY, settings, **NUMBERS)  # type: ignore[arg-type]
    return Made(job.spec, job.rows)


def _lora(models: Models) -> Made:
    settings = TuningSettings(steps=64, batch=4, segment_steps=1, window_steps=0)
    data = LINES if models.tokeniser is not None else _numbers(4, TUNED_LENGTH)
    job = make_tuning(models.opened, data, settings, **NUMBERS)  # type: ignore[arg-type]
    return Made(job.spec, job.rows, job.model, steps=3)


def _numbers(rows: int, length: int) -> bytes:
    """Return rows of token numbers, as JSON lines."""
    return b"".join(
        b'{"input_ids": [%s]}\n' % b", ".join(b"%d" % (7 * row + place + 1) for place in range(length))
        for row in range(rows)
    )


def _generate(models: Models) -> Made:
    data = _numbers(PROMPTS, 24)
    settings = GeneratingSettings(NEW_TOKENS, batch=PROMPTS, segment_steps=1)
    job = make_generating(models.opened, data, settings, **NUMBERS)  # type: ignore[arg-type]
    return Made(job.spec, job.rows, job.model, steps=job.spec.schedule.total_steps)


def _embed(models: Models) -> Made:
    def tokens() -> object:
        raise AssertionError

    encoder = models.encoder
    opened = OpenEmbedder(encoder.shape, lambda: encoder, tokens, "mean", True)  # type: ignore[arg-type]
    settings = EmbeddingSettings(batch=16, segment_steps=1)
    job = make_embedding(opened, _numbers(EMBEDDED, 64), settings, **NUMBERS)  # type: ignore[arg-type]
    return Made(job.spec, job.rows, job.model)


MADE_BY: Final[Mapping[str, Callable[[Models], Made]]] = {
    "mlp": _classifier, "gpt": _gpt, "lora": _lora, "generate": _generate, "embed": _embed,
}  # fmt: skip


def measure(
    made: Made, engine: str, step_to: int, state: bytes | None = None, guess: bytes = b""
) -> Measured:  # fmt: skip
    """Run a job's process to a step, from a state or from its start."""
    order = Train(Job.of(made.spec), made.rows, state, step_to, False, made.model, guess)
    backend = ProcessBackend(ProcessOptions(engine=engine, niceness=0, no_progress_s=_WALL_S, wall_s=_WALL_S))
    states, peaks = list[bytes](), [0]

    async def listen(message: ChildFrame) -> None:
        if isinstance(message, Segment):
            states.append(message.state)
        if isinstance(message, Segment | Finished):
            peaks.append(max((_peak_bytes(child) for child in _children()), default=0))

    before = _cpu_s()
    trio.run(backend.run, order, listen)
    return Measured(_cpu_s() - before, max(peaks), tuple(states))


def _cpu_s() -> float:
    """Return the processor time of this process, and of its children that have ended."""
    children = getrusage(RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def _children() -> list[int]:
    found = list[int]()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in path.read_text().split()]
    return found


def _peak_bytes(process: int) -> int:
    """Return the largest resident memory that a process had; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def process_figures(models: Models, name: str, engine: str = "numpy") -> dict[str, float]:
    """Return the share of checking, and memory as planned and as it was."""
    made = MADE_BY[name](models)
    segment = made.spec.schedule.segment_steps
    worker = measure(made, engine, made.steps)
    first = measure(made, engine, segment)
    step_s = max(0.0, (worker.cpu_s - first.cpu_s) / (made.steps - segment))
    fixed_s = max(0.0, first.cpu_s - segment * step_s)
    plan = made.spec.plan()
    guess = b""
    if name == "generate":
        guess = TrainingState.decode(worker.states[-1], plan).tensors[MADE]
    # A verifier has the state of the boundary before, and for answers the claimed tokens of the one after.
    checked = measure(made, engine, made.steps, worker.states[-2], guess)
    check_fixed_s = max(0.0, checked.cpu_s - segment * step_s)
    begun = process_time()
    sealed = ChaCha20Poly1305(bytes(32)).encrypt(_NONCE, worker.states[-1], b"")
    ChaCha20Poly1305(bytes(32)).decrypt(_NONCE, sealed, b"")
    digest(b"bench", sealed)
    serve_s = process_time() - begun
    audits, sampled = most_checks()
    figures = {}
    for label, length_s in (("", HOUR_S), ("_of_ten_minutes", HOUR_S // 6)):
        checks_s = sampled * (check_fixed_s + length_s / SEGMENTS + serve_s) + serve_s
        figures[f"check_share{label}"] = audits * checks_s / (fixed_s + length_s)
    planned = needs_of(made.spec, open_windows_max=1, engine=engine).process
    return figures | {
        "process_start_s": fixed_s, "process_check_start_s": check_fixed_s, "process_step_ms": 1e3 * step_s,
        "audits_a_window": audits, "segments_an_audit": float(sampled),
        "peak_memory_mib": worker.peak_bytes / (1 << 20), "planned_memory_mib": planned / (1 << 20),
        "planned_to_peak_ratio": planned / worker.peak_bytes,
    }  # fmt: skip
