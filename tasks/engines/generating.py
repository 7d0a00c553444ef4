"""Decoding a job's prompts in segments: tokens and the cache of one batch are the state (market.md R77).

A program's step is one place of one batch. Places whose tokens are known before are computed in one pass, which
gives the same bits: those of prompts, and all of a segment if a later state is given whose tokens are guesses. So
a verifier checks what a worker claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import numpy as np

from tasks.engines.arrays import Array, Arrays
from tasks.engines.errors import StateInvalid
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.state import TrainingState
from tasks.engines.steps import Steps
from tasks.programs.errors import SourceInvalid, StoreDiverged
from tasks.programs.generate import LENGTHS, MADE, PROMPTS, GenerateShape, made_tensor
from tasks.programs.llama import LlamaShape, Pass, cache_tensors, llama_forward
from tasks.programs.llama_shape import adapter_tensors, frozen_tensors
from tasks.programs.operators.decoding import stored_element
from tasks.programs.operators.rows import ROW_EXPONENT, ROW_MAXIMUM, ROW_SUM, SUM_BITS
from tasks.programs.operators.storage import STORE, STORED_EXPONENT_MAX
from tasks.programs.program import Computation, SourceKind
from tasks.programs.running import ResultRunner, Runner, content_of
from tasks.programs.sampling import Sampling, sampling_computation
from tasks.programs.tensors import ElementType

__all__ = ["Generator", "completions", "first_state", "prompt_contents", "prompts_in"]

VALUES_AT_ONCE: Final = 1 << 22
"""Values of the largest tensor of a pass over several places."""
_CODES: Final = {ElementType.INT16: "<i2", ElementType.INT32: "<i4"}


def first_state(plan: GeneratingPlan) -> TrainingState:
    """Return the state before the first step: no tokens, an empty cache."""
    return TrainingState(0, {name: bytes(kind.size_bytes) for name, kind in plan.tensors().items()})


def prompt_contents(shape: GenerateShape, prompts: list[list[int]]) -> dict[str, bytes]:
    """Return the tensors of prompts. Raises SourceInvalid for other prompts than the shape has."""
    most = shape.model.vocabulary
    if len(prompts) != shape.rows or not all(1 <= len(one) <= shape.length for one in prompts):
        raise SourceInvalid(f"{shape.rows} prompts of 1 to {shape.length} tokens are expected")
    if not all(0 <= token < most for one in prompts for token in one):
        raise SourceInvalid(f"tokens are below {most}")
    table = np.zeros((shape.rows, shape.length), dtype="<i4")
    for row, one in enumerate(prompts):
        table[row, : len(one)] = one
    return {PROMPTS: table.tobytes(), LENGTHS: np.array([len(one) for one in prompts], dtype="<i4").tobytes()}


def prompts_in(shape: GenerateShape, data: Mapping[str, bytes]) -> list[list[int]]:
    """Return the tokens of each prompt, given the tensors of prompts."""
    table = np.frombuffer(data[PROMPTS], dtype="<i4").reshape(shape.rows, shape.length).tolist()
    return [row[:length] for row, length in zip(table, _lengths(data).tolist(), strict=True)]


def _lengths(data: Mapping[str, bytes]) -> np.ndarray:
    return np.frombuffer(data[LENGTHS], dtype="<i4").astype(np.int64)


def _made(shape: GenerateShape, state: Mapping[str, bytes]) -> np.ndarray:
    code = _CODES[stored_element(0, shape.model.vocabulary - 1)]
    return np.frombuffer(state[MADE], dtype=code).astype(np.int64).reshape(shape.rows, shape.places)


def _guess_of(shape: GenerateShape, claimed: TrainingState) -> np.ndarray | None:
    """Return the tokens of a claimed state; None where no state has them, for a liar may have claimed it."""
    content, kind = claimed.tensors.get(MADE, b""), made_tensor(shape)
    if len(content) != kind.size_bytes:
        return None
    table = _made(shape, {MADE: content})
    return table if table.min() >= 0 and table.max() < shape.model.vocabulary else None


def completions(shape: GenerateShape, data: Mapping[str, bytes], state: TrainingState) -> list[list[int]]:
    """Return the new tokens of each prompt whose batch is done, up to the first end token, which is the last."""
    made, found = _made(shape, state.tensors), list[list[int]]()
    done = state.step // shape.places * shape.batch
    for row, length in zip(made[:done].tolist(), _lengths(data)[:done].tolist(), strict=True):
        first = max(length - 1, 0)
        tokens = row[first : first + shape.new]
        at = next((at for at, token in enumerate(tokens) if token in shape.ends), len(tokens))
        found.append(tokens[: at + 1])
    return found


@lru_cache(maxsize=8)
def _computation(shape: LlamaShape, run: Pass) -> Computation:
    return llama_forward(shape, run)


@lru_cache(maxsize=8)
def _drawing(how: Sampling, count: int, vocabulary: int) -> Computation:
    return sampling_computation(how, count, vocabulary)


class Generator(Steps):
    """One run of ``plan`` over prompts and a model with its adapters, given as contents by name."""

    def __init__(
        self, plan: GeneratingPlan, model: Mapping[str, bytes], data: Mapping[str, bytes], arrays: Arrays,
        state: TrainingState, *, wide: bool = True, claimed: TrainingState | None = None,
    ) -> None:  # fmt: skip
        """``wide`` holds the model as binary64: four times the memory, no conversion in each step.

        ``claimed`` is a later state that may be right, of which the tokens are enough. They are guesses: they
        change how long a run takes, and nothing else. Raises StateInvalid, SourceInvalid, UnsupportedJob.
        """
        plan.check()
        runner = Runner(plan.program, arrays)
        held = runner.load(SourceKind.MODEL, model) | runner.load(SourceKind.ADAPTER, model)
        if wide:
            held = {name: arrays.to_doubles(values) for name, values in held.items()}
        try:
            loaded = runner.load(SourceKind.STATE, state.tensors)
        except SourceInvalid as error:
            raise StateInvalid(str(error)) from None
        super().__init__(
            plan,
            arrays,
            runner,
            state=loaded,
            data=runner.load(SourceKind.DATA, data),
            model=held,
            step=state.step,
        )
        self._shape = plan.shape
        self._prompts = np.frombuffer(data[PROMPTS], dtype="<i4").astype(np.int64).reshape(-1, plan.shape.length)
        self._lengths = _lengths(data)
        self._guess = None if claimed is None else _guess_of(plan.shape, claimed)
        self._guessed_to = 0 if claimed is None else claimed.step
        self._takes_many = True

    def _advance(self, most: int) -> list[tuple[bytes, bytes]]:
        """Do several steps in one pass where their tokens are known, otherwise one."""
        if self._takes_many:
            try:
                found = self._many(most)
            except StoreDiverged:  # only the program says with which step
                found, self._takes_many = [], False
            if found:
                return found
        return super()._advance(most)

    def _many(self, most: int) -> list[tuple[bytes, bytes]]:
        """Return probe and loss of each step of a pass, none where one step is all that can be done."""
        shape = self._shape
        batch, place = divmod(self.step, shape.places)
        rows = slice(batch % shape.batches * shape.batch, (batch % shape.batches + 1) * shape.batch)
        room = max(1, VALUES_AT_ONCE // (shape.batch * shape.widest))
        count = min(most, shape.places - place, room)
        table = self._arrays.store(self._state[MADE]).astype(np.int64)
        made, lengths = table[rows], self._lengths[rows]
        known = max(1, int(lengths.min()) - place)
        # A row without a prompt first reads column 0 before that step has written it: no guess may stand there.
        if self._guess is not None and (place or lengths.all()):
            guessed = max(0, min(self._guessed_to - self.step, count))
            made[:, place : place + guessed] = self._guess[rows, place : place + guessed]
            known = max(known, guessed)
        count = min(count, known)
        while count > 1:
            tokens = self._tokens(rows, made, place, count)
            logits, choice, *cache = self._pass(tokens, place)
            if shape.sampling is not None:
                choice = self._sampled(shape.sampling, logits, rows, place, count)
            following = self._following(choice, tokens, lengths, place)
            right = self._right(following, rows, made, place)
            if right == count:
                made[:, place : place + count] = following
                results = self._results(logits, count)
                names = [f"cache/{name}" for name in self._cache_names()]
                self._state = {
                    MADE: self._arrays.load(table.astype(np.float64)),
                    **dict(zip(names, cache, strict=True)),
                }
                return results
            count, self._guess = right, None
        return []

    def _tokens(self, rows: slice, made: np.ndarray, place: int, count: int) -> np.ndarray:
        """Return the tokens at ``count`` places from ``place`` on, as ``token_at`` gives them."""
        found = np.empty((made.shape[0], count), dtype=np.int64)
        for at in range(place, place + count):
            prompt = self._prompts[rows, min(at, self._shape.length - 1)]
            found[:, at - place] = np.where(at < self._lengths[rows], prompt, made[:, max(at - 1, 0)])
        return found

    def _pass(self, tokens: np.ndarray, place: int) -> tuple[Array, ...]:
        """Return logits, choices and the cache after one pass over ``tokens``, a row for each sequence."""
        shape, arrays = self._shape, self._arrays
        run = Pass(shape.batch, tokens.shape[1], shape.places, adapter=shape.adapter)
        weights = [self._model[name] for name in frozen_tensors(shape.model, shape.adapter)]
        cache = [self._state[f"cache/{name}"] for name in self._cache_names()]
        columns = [tokens.reshape(-1, 1), np.full((shape.batch, 1), place)]
        loaded = [arrays.load(column.astype(np.float64)) for column in columns]
        if shape.adapter is not None:
            cache += [self._model[name] for name in adapter_tensors(shape.model, shape.adapter)]
        runner = ResultRunner(_computation(shape.model, run), arrays)
        return runner.run([*weights, *loaded, *cache], self._context())

    def _sampled(self, how: Sampling, logits: Array, rows: slice, place: int, count: int) -> Array:
        """Return the tokens that are drawn at ``count`` places of each row, as the program draws them."""
        arrays, batch = self._arrays, self._shape.batch
        numbers = np.repeat(np.arange(rows.start, rows.stop), count)
        places = np.tile(np.arange(place, place + count), batch)
        columns = [arrays.load(one.astype(np.float64).reshape(-1, 1)) for one in (numbers, places)]
        runner = ResultRunner(_drawing(how, batch * count, self._shape.model.vocabulary), arrays)
        (choice,) = runner.run([logits, *columns], self._context())
        return choice

    def _cache_names(self) -> list[str]:
        names = cache_tensors(self._shape.model, self._shape.batch, self._shape.places)
        return [name.removeprefix("cache/") for name in names]

    def _following(self, choice: Array, tokens: np.ndarray, lengths: np.ndarray, place: int) -> np.ndarray:
        """Return the next token of each row and place, as ``until`` gives it."""
        chosen = self._arrays.store(choice).astype(np.int64).reshape(tokens.shape)
        chosen = np.minimum(chosen, self._shape.model.vocabulary - 1)
        places = place + np.arange(tokens.shape[1])
        is_made = lengths.reshape(-1, 1) <= places
        return np.where(is_made & np.isin(tokens, self._shape.ends), tokens, chosen)

    def _right(self, following: np.ndarray, rows: slice, made: np.ndarray, place: int) -> int:
        """Return how many steps took right tokens: all, or those up to the first wrong guess."""
        count = following.shape[1]
        lengths = self._lengths[rows].reshape(-1, 1)
        taken = made[:, place : place + count - 1]  # by the steps after the first
        is_read = lengths <= place + 1 + np.arange(count - 1)
        wrong = (is_read & (taken != following[:, :-1])).any(axis=0)
        return int(wrong.argmax()) + 1 if wrong.any() else count

    def _results(self, logits: Array, count: int) -> list[tuple[bytes, bytes]]:
        """Return probe and loss of each place. Raises StoreDiverged."""
        arrays, context, types = self._arrays, self._context(), self._program.types
        largest = ROW_MAXIMUM.run(arrays, [logits], (), context).reshape(self._shape.batch, count)
        found: list[tuple[bytes, bytes]] = []
        for at in range(count):
            column = largest[:, at : at + 1]
            probe = STORE.run(arrays, [column], (STORED_EXPONENT_MAX,), context)
            exponents = ROW_EXPONENT.run(arrays, [column.T], (SUM_BITS,), context)
            loss = ROW_SUM.run(arrays, [column.T, exponents], (), context)
            numbers = (self._program.probe, probe), (self._program.loss, loss)
            probe_bytes, loss_bytes = (content_of(arrays, types[number], values) for number, values in numbers)
            found.append((probe_bytes, loss_bytes))
        return found
