"""Small jobs of fine-tuning: rows, adapters, and one step of their program on an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from node.bench.plain_tuning import Rows
from tasks.programs.arrays import Arrays
from tasks.programs.finetune import (
    PLACES,
    ROW_TOKENS,
    SLOTS,
    TARGETS,
    FinetuneRates,
    FinetuneShape,
    adapter_tensors,
    finetune_program,
    marked_program,
    state_tensors,
)
from tasks.programs.layered import LAYERS, Pattern
from tasks.programs.llama_shape import LlamaShape, weight_tensors
from tasks.programs.operators import Context
from tasks.programs.program import SourceKind
from tasks.programs.running import Runner, StepResult, content_of
from tasks.programs.tensors import ElementType
from tests.tasks.programs.llamas import frozen_weights

SEED = bytes(range(32))


made_program = lru_cache(maxsize=4)(finetune_program)


def pattern_of(shape: FinetuneShape, rates: FinetuneRates) -> Pattern:
    """Return the pattern of a shape with any number of layers."""
    return Pattern(marked_program(replace(shape, model=replace(shape.model, layers=LAYERS)), rates))


@dataclass(frozen=True)
class Tuning:
    """A job with contents of all sources, by name."""

    job: FinetuneShape
    rates: FinetuneRates
    model: Mapping[str, bytes]
    data: Mapping[str, bytes]
    state: Mapping[str, bytes]

    def step(
        self, arrays: Arrays, step: int = 0, state: Mapping[str, bytes] | None = None
    ) -> tuple[StepResult, dict[str, bytes]]:
        """Return what a step gives, and the contents of the state after it."""
        program = made_program(self.job, self.rates)
        runner = Runner(program, arrays)
        loaded = [
            runner.load(kind, contents)
            for kind, contents in (
                (SourceKind.STATE, state or self.state), (SourceKind.DATA, self.data),
                (SourceKind.MODEL, self.model),
            )
        ]  # fmt: skip
        result = runner.run(runner.sources(*loaded), Context(step, SEED))
        after = {
            name: content_of(arrays, program.types[number], result.stores[name])
            for name, number in program.stores.items()
        }
        return result, after

    def adapters(self, dtype: type = np.float64) -> dict[str, np.ndarray]:
        """Return the adapters before the first step."""
        return {
            name: np.frombuffer(self.state[f"parameter/{name}"], dtype="<f4").reshape(kind.rows, kind.columns)
            .astype(dtype) for name, kind in adapter_tensors(self.job).items()
        }  # fmt: skip


def content(values: np.ndarray, element: ElementType) -> bytes:
    codes = {ElementType.BINARY32: "<f4", ElementType.INT16: "<i2", ElementType.INT32: "<i4"}
    return values.astype(codes[element]).tobytes()


def made_rows(job: FinetuneShape, seed: int = 5) -> Rows:
    """Rows of random tokens, two for a pair; some slots are free, in one row all but one."""
    random = np.random.default_rng(seed)
    rows = job.rows * job.parts
    tokens = random.integers(0, job.model.vocabulary, (rows, job.length))
    places = np.full((rows, job.slots), job.length)
    targets = np.zeros((rows, job.slots), dtype=np.int64)
    for row in range(rows):
        count = 1 if row == 1 else int(random.integers(1, job.slots + 1))
        places[row, :count] = np.sort(random.choice(job.length, count, replace=False))
        targets[row, :count] = random.integers(0, job.model.vocabulary, count)
    return Rows(tokens, places, targets)


def row_contents(job: FinetuneShape, rows: Rows) -> dict[str, bytes]:
    slots = np.full((job.rows * job.parts, job.length), job.slots)
    for row, slot in zip(*np.nonzero(rows.places < job.length), strict=True):
        slots[row, rows.places[row, slot]] = slot
    found = {ROW_TOKENS: rows.tokens, PLACES: rows.places, TARGETS: rows.targets, SLOTS: slots}
    return {name: content(values, ElementType.INT32) for name, values in found.items()}


def tuning(
    model: LlamaShape, rates: FinetuneRates, targets: tuple[str, ...] = ("query", "key", "value", "output"),
    *, batch: int = 3, rows: int = 3, length: int = 10, slots: int = 6, spread: float = 0.2, seed: int = 5,
    preference: int = 0,
) -> Tuning:  # fmt: skip
    """Return a job of a small model: adapters are random, both matrices of each."""
    job = FinetuneShape(model, 4, 8, targets, batch, length, slots, rows, rows, preference=preference)
    random = np.random.default_rng(seed)
    state = {
        name: content(random.normal(0, spread, (kind.rows, kind.columns)), kind.element)
        if name.startswith("parameter") else bytes(kind.size_bytes)
        for name, kind in state_tensors(job).items()
    }  # fmt: skip
    kinds = weight_tensors(model)
    weights = {name: content(values, kinds[name].element) for name, values in frozen_weights(model).items()}
    return Tuning(job, rates, weights, row_contents(job, made_rows(job, seed)), state)
