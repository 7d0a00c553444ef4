"""``python -m tests.tasks.programs.fingerprint ENGINE``: hashes of small runs of programs.

Under other settings of threads and instruction sets, and with other engines, it must print the same lines.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from hashlib import blake2b, shake_256

import numpy as np

from tasks.engines.training import Trainer, initial_state
from tasks.programs.arrays import Arrays
from tasks.programs.classifier import ACTIVATIONS
from tasks.programs.llama import FIRST, TOKENS, Pass, llama_forward
from tasks.programs.operators import Context
from tasks.programs.program import Source, SourceKind
from tasks.programs.running import ResultRunner, Runner, content_of
from tasks.programs.tensors import ElementType
from tests.tasks.engines.helpers import SILU, made_up_dataset
from tests.tasks.programs.engines import engine
from tests.tasks.programs.llamas import BIASED, CONTEXT, TINY

STEPS = 12


def fingerprint(arrays: Arrays) -> dict[str, str]:
    """Return, for each activation, the program's hash, what a segment commits to, and a hash of a trace."""
    data, found = made_up_dataset(), dict[str, str]()
    for activation in ACTIVATIONS:
        plan = replace(SILU, activation=activation)
        trainer = Trainer(plan, data, arrays, initial_state(plan))
        result = trainer.run_segment(STEPS)
        runner = Runner(plan.program, arrays)
        state = runner.load(SourceKind.STATE, trainer.state().tensors)
        sources = runner.sources(state, runner.load(SourceKind.DATA, data.contents))
        trace = blake2b(digest_size=16)
        for content in runner.trace(sources, Context(STEPS, plan.seed)):
            trace.update(content)
        found[f"{activation}_program"] = plan.program.hash.hex()
        found[f"{activation}_state_root"] = result.state_root.hex()
        found[f"{activation}_work_digest"] = result.work_digest.hex()
        found[f"{activation}_loss_bits"] = f"{result.loss_bits:016x}"
        found[f"{activation}_trace"] = trace.hexdigest()
        found[f"{activation}_right"] = str(trainer.evaluate().right)
    return found | decoded(arrays)


def decoded(arrays: Arrays) -> dict[str, str]:
    """Return hashes of logits, tokens and cache of one pass of small models."""
    found: dict[str, str] = {}
    for name, shape in (("llama", TINY), ("qwen2", BIASED)):
        computation = llama_forward(shape, Pass(2, 9, 16))
        sources = [arrays.load(_drawn(source, shape.vocabulary)) for source in computation.sources]
        outcome = blake2b(digest_size=16)
        results = ResultRunner(computation, arrays).run(sources, CONTEXT)
        for number, result in zip(computation.results, results, strict=True):
            outcome.update(content_of(arrays, computation.types[number], result))
        found[f"{name}_outcome"] = outcome.hexdigest()
    return found


def _drawn(source: Source, vocabulary: int) -> np.ndarray:
    """Values from a hash of the source's name; the cache is empty."""
    shape = (source.type.rows, source.type.columns)
    words = np.frombuffer(shake_256(source.key.encode()).digest(2 * source.type.values), dtype="<u2")
    words = words.astype(np.float64).reshape(shape)
    if source.key.startswith("cache/"):
        return np.zeros(shape)
    if source.key == FIRST:
        return np.array([[0.0], [5.0]])
    if source.key == TOKENS:
        return words % vocabulary
    if source.key.endswith("/exponents"):
        return -1.0 - words % 3
    return words / 65_536 + 0.5 if source.type.element == ElementType.BINARY32 else words % 65_279 - 32_639


if __name__ == "__main__":
    for key, value in fingerprint(engine(sys.argv[1])).items():
        print(key, value)
