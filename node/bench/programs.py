"""``dekube bench programs``: a search for programs whose time does not follow their work units (market.md 4.6).

Programs of all kinds of jobs are drawn with random sizes and run for a step. The worst of each kind are changed a
little, again and again, and kept if they become worse. A ratio says how many times longer a unit of the program
takes than one of the challenge program, as for ``dekube bench operators``. Work is paid by units: a large ratio is
work that is paid too little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from time import thread_time
from typing import Any, Final

import numpy as np

from node.bench.operators import challenge_units_per_s
from tasks.engines.arrays import NumpyArrays
from tasks.programs.adamw import Rates
from tasks.programs.decoder import DecoderShape, decoder_program
from tasks.programs.embed import EmbedShape, embed_program
from tasks.programs.errors import ProgramInvalid
from tasks.programs.evaluate import EvaluateShape, evaluate_program
from tasks.programs.finetune import FinetuneRates, FinetuneShape, finetune_program
from tasks.programs.generate import GenerateShape, generate_program
from tasks.programs.llama_shape import PROJECTIONS, LlamaShape
from tasks.programs.operators import Context
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import Program, Source, SourceKind
from tasks.programs.running import Runner
from tasks.programs.sampling import Sampling
from tasks.programs.tensors import ElementType

__all__ = ["KINDS", "Sizes", "program_of", "run", "search", "units_ratio"]

UNITS_MAX: Final = 6_000_000_000
"""Units of a program that is tried: a second or two."""
VALUES_MAX: Final = 1 << 25
"""Values of all sources of a program that is tried."""
CHANGED_PART: Final = 0.3
"""Share of the sizes that a change of a program changes."""
_SEED: Final = bytes(32)
_RATES: Final = FinetuneRates(Rates(1_000_000), "cosine", 1, 9, NANO)
_CODES: Final = {
    ElementType.BINARY32: "<f4", ElementType.INT16: "<i2", ElementType.INT32: "<i4",
}  # fmt: skip
_WEIGHTS: Final = 1 << 12
_EXPONENT: Final = -2


@dataclass(frozen=True)
class Sizes:
    """What a program follows from, whatever its kind; each kind takes what it needs."""

    vocabulary: int
    head_width: int
    heads: int
    grouped: int
    layers: int
    hidden: int
    length: int
    slots: int
    batch: int
    rank: int

    @property
    def model(self) -> LlamaShape:
        """The shape of the model. Raises ProgramInvalid."""
        heads = self.heads * self.grouped
        return LlamaShape(
            self.vocabulary, heads * self.head_width, self.layers, heads, self.heads, self.head_width, self.hidden,
            max(64, 2 * self.length), 10_000, 10_000,
        )  # fmt: skip


_MOST: Final[Mapping[str, int]] = {
    "vocabulary": 8_192, "head_width": 64, "heads": 8, "grouped": 4, "layers": 4, "hidden": 1_024, "length": 256,
    "slots": 256, "batch": 32, "rank": 64,
}  # fmt: skip


def _tuned(sizes: Sizes, preference: int = 0) -> Program:
    shape = FinetuneShape(
        sizes.model, sizes.rank, 8, PROJECTIONS[:4], sizes.batch, sizes.length, min(sizes.slots, sizes.length),
        sizes.batch, sizes.batch, preference=preference,
    )  # fmt: skip
    return finetune_program(shape, _RATES, checks_bounds=False)


def _trained(sizes: Sizes) -> Program:
    shape = DecoderShape(sizes.model, sizes.batch, sizes.length, sizes.batch, sizes.batch)
    return decoder_program(shape, _RATES, checks_bounds=False)


def _generated(sizes: Sizes, sampling: Sampling | None) -> Program:
    shape = GenerateShape(
        sizes.model, sizes.batch, sizes.batch, sizes.length, min(sizes.slots, sizes.length), sampling=sampling
    )
    return generate_program(shape, checks_bounds=False)


def _evaluated(sizes: Sizes) -> Program:
    shape = EvaluateShape(sizes.model, sizes.batch, sizes.batch, sizes.length, min(sizes.slots, sizes.length))
    return evaluate_program(shape, checks_bounds=False)


def _embedded(sizes: Sizes) -> Program:
    shape = EmbedShape(sizes.model, sizes.batch, sizes.batch, sizes.length, "mean", True)
    return embed_program(shape, checks_bounds=False)


KINDS: Final[Mapping[str, Callable[[Sizes], Program]]] = {
    "finetune": _tuned,
    "preferences": lambda sizes: _tuned(sizes, NANO // 10),
    "train": _trained,
    "generate": lambda sizes: _generated(sizes, None),
    "sample": lambda sizes: _generated(sizes, Sampling(NANO // 2, NANO // 2, 40)),
    "evaluate": _evaluated,
    "embed": _embedded,
}
"""What makes a program of sizes, by kind."""


def program_of(kind: str, sizes: Sizes) -> Program | None:
    """Return the program of a kind; None where there is none, or where it would take too long to try."""
    try:
        program = KINDS[kind](sizes)
    except ProgramInvalid:
        return None
    values = sum(source.type.values for source in program.sources)
    return program if program.units <= UNITS_MAX and values <= VALUES_MAX else None


def units_ratio(program: Program, units_per_s: float) -> float:
    """Run a step twice; return how much longer a unit took than one of the challenge, at the better time."""
    arrays, random = NumpyArrays(), np.random.default_rng(1)
    runner = Runner(program, arrays)
    contents: dict[SourceKind, dict[str, bytes]] = {kind: {} for kind in SourceKind}
    for source in program.sources:
        contents[source.kind][source.key] = _content(source, random)
    state, data, model = (
        runner.load(kind, contents[kind]) for kind in (SourceKind.STATE, SourceKind.DATA, SourceKind.MODEL)
    )
    model = {name: arrays.to_doubles(values) for name, values in model.items()}  # as a worker holds it
    taken = []
    for _ in range(2):
        started = thread_time()
        runner.run(runner.sources(state, data, model), Context(0, _SEED))
        taken.append(thread_time() - started)
    return min(taken) * units_per_s / program.units


def _content(source: Source, random: np.random.Generator) -> bytes:
    """Return values that any program takes: small fractions, weights, and zeros for places and tokens."""
    kind = source.type
    if kind.element is ElementType.BINARY32:
        return random.normal(0, 0.1, kind.values).astype("<f4").tobytes()
    if source.kind is SourceKind.MODEL and source.key.endswith("/exponents"):
        return np.full(kind.values, _EXPONENT, _CODES[kind.element]).tobytes()
    if source.kind is SourceKind.MODEL:
        return random.integers(-_WEIGHTS, _WEIGHTS, kind.values).astype(_CODES[kind.element]).tobytes()
    return bytes(kind.size_bytes)


def _drawn(random: Random) -> Sizes:
    found = {name: round(2 ** random.uniform(0, np.log2(most))) for name, most in _MOST.items()}
    return Sizes(**{**found, "head_width": max(2, found["head_width"] // 2 * 2)})


def _changed(sizes: Sizes, random: Random) -> Sizes:
    found: dict[str, Any] = {}
    for name, most in _MOST.items():
        if random.random() < CHANGED_PART:
            value = min(most, max(1, round(getattr(sizes, name) * 2 ** random.uniform(-2, 2))))
            found[name] = max(2, value // 2 * 2) if name == "head_width" else value
    return replace(sizes, **found)


def search(
    kind: str, units_per_s: float, *, drawn: int, changes: int, seed: int = 1
) -> tuple[float, Sizes]:  # fmt: skip
    """Return the worst ratio of a kind that was found, and its sizes."""
    random, worst, found = Random(f"{kind}:{seed}"), 0.0, _drawn(Random(seed))
    for number in range(drawn + changes):
        sizes = _drawn(random) if number < drawn else _changed(found, random)
        program = program_of(kind, sizes)
        if program is not None and (ratio := units_ratio(program, units_per_s)) > worst:
            worst, found = ratio, sizes
    return worst, found


def run(*, drawn: int = 40, changes: int = 40, seed: int = 1) -> dict[str, float]:
    """Search and return the worst ratio of each kind with its sizes, and the worst of all."""
    units_per_s = challenge_units_per_s(NumpyArrays())
    figures, worst = {"numpy_units_per_s": units_per_s}, list[float]()
    for kind in KINDS:
        ratio, sizes = search(kind, units_per_s, drawn=drawn, changes=changes, seed=seed)
        worst.append(ratio)
        figures[f"{kind}_worst_ratio"] = ratio
        figures |= {f"{kind}_{name}": float(getattr(sizes, name)) for name in _MOST}
    return {**figures, "worst_ratio": max(worst)}
