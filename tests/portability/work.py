"""What one process of ``python -m tests.portability`` computes: hashes by name, printed as one JSON object.

    python -m tests.portability.work ENGINE WANTED.json

WANTED has the model's file, prompts as token ids, new tokens, and how many prompts are decoded at once.
"""

from __future__ import annotations

import json
import sys
from hashlib import blake2b, shake_256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final

import numpy as np

from tasks.engines.arrays import NumpyArrays
from tasks.engines.torch_arrays import TorchArrays
from tasks.engines.tuning import Tuner, first_state
from tasks.models.decoding import Decoder
from tasks.models.gguf import read_gguf
from tasks.models.llama import Model, model_from_gguf
from tasks.programs.arrays import Arrays
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators import Context
from tasks.programs.operators.rows import CONTRACT, QUANTISE, ROW_EXPONENT, ROW_SUM, SUM_BITS
from tests.tasks.programs.fingerprint import fingerprint
from tests.tasks.programs.generations import made_model
from tests.tasks.tuned import tuned

LONG_ROWS: Final = 49_152
"""Terms of a product over the vocabulary of SmolLM2."""
WIDTHS: Final = (15, 20)
SMALL: Final = LlamaShape(4_096, 64, 3, 4, 2, 16, 192, 256, 10_000, 10_000)
"""Decoded where the package with real weights is not installed."""
_CONTEXT: Final = Context(0, bytes(32))


def arrays_of(name: str) -> Arrays:
    """Return the engine of that name."""
    return TorchArrays() if name == "torch" else NumpyArrays()


def long_products(arrays: Arrays) -> dict[str, str]:
    """Return hashes of products and sums of rows of LONG_ROWS terms, at both widths."""
    words = np.frombuffer(shake_256(b"long rows").digest(2 * 6 * LONG_ROWS), dtype="<u2")
    values = (words.astype(np.float64).reshape(6, LONG_ROWS) - 32_768) / 4_096
    values[1] *= 2.0**-90  # small rows, and rows whose largest value stands alone
    values[4, 7] = 2.0**90
    found, rows = {}, [arrays.load(values[:3]), arrays.load(values[3:])]
    for bits in WIDTHS:
        exponents = [ROW_EXPONENT.run(arrays, [row], (bits,), _CONTEXT) for row in rows]
        integers = [
            QUANTISE.run(arrays, [row, exponent], (bits,), _CONTEXT)
            for row, exponent in zip(rows, exponents, strict=True)
        ]
        product = CONTRACT.run(arrays, [*integers, *exponents], (bits,), _CONTEXT)
        found[f"contract_{bits}"] = _hash(arrays, product)
    exponents = [ROW_EXPONENT.run(arrays, [row], (SUM_BITS,), _CONTEXT) for row in rows]
    for at, (row, exponent) in enumerate(zip(rows, exponents, strict=True)):
        found[f"row_sum_{at}"] = _hash(arrays, ROW_SUM.run(arrays, [row, exponent], (), _CONTEXT))
    return found


def _hash(arrays: Arrays, values: Any) -> str:
    return blake2b(arrays.store(values).astype("<f8").tobytes(), digest_size=16).hexdigest()


def tuned_state(arrays: Arrays) -> dict[str, str]:
    """Return the roots of the states of a small job of fine-tuning."""
    _, plan, made = tuned()
    run = Tuner(plan, made.model, made.data, arrays, first_state(plan))
    found = {}
    for step in (2, 6):
        result = run.run_segment(step - run.step)
        found[f"finetune_{step}"] = f"{result.state_root.hex()} {result.work_digest.hex()} {result.loss_bits:016x}"
    return found


def model_of(file: str) -> Model:
    """Return the model in a GGUF file; a small made-up one without a file."""
    if not file:
        return made_model(SMALL)
    with Path(file).open("rb") as opened:
        return model_from_gguf(read_gguf(memoryview(mmap(opened.fileno(), 0, access=ACCESS_READ))))


def completions(arrays: Arrays, wanted: dict[str, Any]) -> dict[str, str]:
    """Return the tokens after each prompt, with so many prompts at once as wanted."""
    prompts, at_once = wanted["prompts"], wanted["at_once"]
    if not prompts:
        return {}
    decoder, found = Decoder(model_of(wanted["model"]), arrays), {}
    for first in range(0, len(prompts), at_once):
        part = prompts[first : first + at_once]
        decoded = decoder.decode(part, wanted["new_tokens"])
        for at, tokens in enumerate(decoded.tokens, first):
            found[f"completion_{at}"] = " ".join(map(str, tokens))
    return found


def main() -> None:
    """Print the hashes."""
    engine, file = sys.argv[1:]
    arrays, wanted = arrays_of(engine), json.loads(Path(file).read_text(encoding="utf-8"))
    found = {**fingerprint(arrays), **long_products(arrays), **tuned_state(arrays), **completions(arrays, wanted)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
