"""Decoding a job's prompts in segments: tokens and the cache of one batch are the state (market.md R77).

A program's step is one place of one batch. Places whose tokens are known before are computed in one pass, which
gives the same bits: those of prompts, and all of a segment if a later state is given whose tokens are guesses. So
a verifier checks what a worker claims.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from tasks.engines.arrays import Array, Arrays
from tasks.engines.errors import StateInvalid
from tasks.engines.generating_plan import VALUES_AT_ONCE, GeneratingPlan
from tasks.engines.state import TrainingState
from tasks.engines.steps import Steps
from tasks.programs.errors import SourceInvalid, StoreDiverged
from tasks.programs.generate import (
    KEYS,
    LENGTHS,
    LIMITS,
    MADE,
    OWN,
    PROMPTS,
    STOPS,
    TEMPERATURES,
    TOP_K,
    TOP_P,
    GenerateShape,
    made_tensor,
)
from tasks.programs.llama import LlamaShape, Pass, cache_tensors, llama_forward
from tasks.programs.llama_shape import adapter_tensors, frozen_tensors
from tasks.programs.memory import is_wide
from tasks.programs.operators.decoding import stored_element
from tasks.programs.operators.rows import ROW_EXPONENT, ROW_MAXIMUM, ROW_SUM, SUM_BITS
from tasks.programs.operators.storage import STORE, STORED_EXPONENT_MAX
from tasks.programs.program import Computation, SourceKind
from tasks.programs.running import ResultRunner, Runner, content_of
from tasks.programs.sampling import Sampling, row_computation, sampling_computation
from tasks.programs.tensors import ElementType

__all__ = [
    "Generator", "Own", "completions", "first_state", "prompt_contents", "prompts_in", "stop_columns", "stops_in",
]  # fmt: skip

_STOP_BYTES: Final = 3
"""Bytes of a text in one column."""
_CODES: Final = {ElementType.INT16: "<i2", ElementType.INT32: "<i4"}


def first_state(plan: GeneratingPlan) -> TrainingState:
    """Return the state before the first step: no tokens, an empty cache."""
    return TrainingState(0, {name: bytes(kind.size_bytes) for name, kind in plan.tensors().items()})


class Own(NamedTuple):
    """Numbers of a row of its own (R136): tokens at most, and how they are drawn. See ``OWN`` for the units.

    ``top_k`` is DIMENSION_MAX where all tokens are kept; a key of zeros takes the first of those that are left.
    ``stops`` are texts that end it.
    """

    limit: int
    temperature: int
    top_k: int
    top_p: int
    key: tuple[int, ...]
    stops: tuple[str, ...] = ()


def stop_columns(stops: Iterable[Sequence[str]]) -> int:
    """Return the columns that the texts need that end each row; 0 if there are none."""
    return max((1 + -(-len(_stops_bytes(one)) // _STOP_BYTES) for one in stops if one), default=0)


def _stops_bytes(stops: Sequence[str]) -> bytes:
    return json.dumps(stops, ensure_ascii=False).encode() if stops else b""


def stops_in(shape: GenerateShape, data: Mapping[str, bytes]) -> list[tuple[str, ...]]:
    """Return the texts that end each row. Raises SourceInvalid for a tensor that holds no such texts."""
    if shape.by_row is None or not shape.by_row.stop_columns:
        return [()] * shape.rows
    found = list[tuple[str, ...]]()
    for count, *parts in np.frombuffer(data[STOPS], dtype="<i4").reshape(shape.rows, -1).tolist():
        try:
            content = b"".join(part.to_bytes(_STOP_BYTES, "big") for part in parts)[: max(count, 0)]
            texts = json.loads(content) if content else []
        except (OverflowError, ValueError, RecursionError):
            texts = None
        if type(texts) is not list or not all(type(one) is str and one for one in texts):
            raise SourceInvalid("texts that end rows, in another form than a job has them")
        found.append(tuple(texts))
    return found


def _own_contents(shape: GenerateShape, own: Sequence[Own]) -> dict[str, bytes]:
    """Return the tensors of numbers that rows have of their own. Raises SourceInvalid."""
    if shape.by_row is None:
        return {}
    columns_needed = stop_columns(one.stops for one in own)
    if len(own) != shape.rows or columns_needed > shape.by_row.stop_columns:
        raise SourceInvalid(f"numbers of {shape.rows} rows are expected")
    columns = {
        LIMITS: [one.limit for one in own], TEMPERATURES: [one.temperature for one in own],
        TOP_K: [one.top_k for one in own], TOP_P: [one.top_p for one in own], KEYS: [one.key for one in own],
    }  # fmt: skip
    found = {name: np.array(values, dtype="<i4").tobytes() for name, values in columns.items()}
    if shape.by_row.stop_columns:
        table = np.zeros((shape.rows, shape.by_row.stop_columns), dtype="<i4")
        for row, one in enumerate(own):
            content = _stops_bytes(one.stops)
            table[row, 0] = len(content)
            for at in range(0, len(content), _STOP_BYTES):
                part = content[at : at + _STOP_BYTES].ljust(_STOP_BYTES, b"\0")
                table[row, 1 + at // _STOP_BYTES] = int.from_bytes(part, "big")
        found[STOPS] = table.tobytes()
    return found


def prompt_contents(
    shape: GenerateShape, prompts: list[list[int]], own: Sequence[Own] = ()
) -> dict[str, bytes]:  # fmt: skip
    """Return the tensors of prompts. Raises SourceInvalid for other prompts than the shape has."""
    most = shape.model.vocabulary
    if len(prompts) != shape.rows or not all(1 <= len(one) <= shape.length for one in prompts):
        raise SourceInvalid(f"{shape.rows} prompts of 1 to {shape.length} tokens are expected")
    if not all(0 <= token < most for one in prompts for token in one):
        raise SourceInvalid(f"tokens are below {most}")
    table = np.zeros((shape.rows, shape.length), dtype="<i4")
    for row, one in enumerate(prompts):
        table[row, : len(one)] = one
    lengths = np.array([len(one) for one in prompts], dtype="<i4").tobytes()
    return {PROMPTS: table.tobytes(), LENGTHS: lengths, **_own_contents(shape, own)}


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
    limits = [shape.new] * done
    if shape.by_row is not None:
        limits = [max(one, 0) for one in np.frombuffer(data[LIMITS], dtype="<i4")[:done].tolist()]
    for row, length, limit in zip(made[:done].tolist(), _lengths(data)[:done].tolist(), limits, strict=True):
        first = max(length - 1, 0)
        tokens = row[first : first + limit]
        at = next((at for at, token in enumerate(tokens) if token in shape.ends), len(tokens))
        found.append(tokens[: at + 1])
    return found


@lru_cache(maxsize=8)
def _computation(shape: LlamaShape, run: Pass) -> Computation:
    return llama_forward(shape, run)


@lru_cache(maxsize=8)
def _drawing(how: Sampling, count: int, vocabulary: int) -> Computation:
    return sampling_computation(how, count, vocabulary)


@lru_cache(maxsize=8)
def _drawing_by_row(count: int, vocabulary: int) -> Computation:
    return row_computation(count, vocabulary)


class Generator(Steps):
    """One run of ``plan`` over prompts and a model with its adapters, given as contents by name."""

    def __init__(
        self, plan: GeneratingPlan, model: Mapping[str, bytes], data: Mapping[str, bytes], arrays: Arrays,
        state: TrainingState, *, wide: bool | None = None, claimed: TrainingState | None = None,
    ) -> None:  # fmt: skip
        """``wide`` holds the model as binary64: four times the memory, no conversion at each use.

        Without it small models are held so (``is_wide``): a step of one place reads all weights for few rows.

        ``claimed`` is a later state that may be right, of which the tokens are enough. They are guesses: they
        change how long a run takes, and nothing else. Raises StateInvalid, SourceInvalid, UnsupportedJob.
        """
        plan.check()
        runner = Runner(plan.program, arrays)
        held = runner.load(SourceKind.MODEL, model) | runner.load(SourceKind.ADAPTER, model)
        if is_wide(plan.program) if wide is None else wide:
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
        self._own: dict[str, np.ndarray] = {}
        if plan.shape.by_row is not None:
            self._own = {name: np.frombuffer(data[name], dtype="<i4").reshape(plan.shape.rows, -1) for name in OWN}
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
            if shape.by_row is not None:
                choice = self._sampled_by_row(logits, rows, place, count)
            elif shape.sampling is not None:
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

    def _sampled_by_row(self, logits: Array, rows: slice, place: int, count: int) -> Array:
        """Return the tokens at ``count`` places of each row, as the program draws them by their own numbers."""
        arrays, batch = self._arrays, self._shape.batch
        places = np.tile(np.arange(place, place + count), batch).reshape(-1, 1)
        columns = [np.repeat(self._own[name][rows], count, axis=0) for name in OWN]
        loaded = [arrays.load(one.astype(np.float64)) for one in (*columns, places)]
        runner = ResultRunner(_drawing_by_row(batch * count, self._shape.model.vocabulary), arrays)
        (choice,) = runner.run([logits, *loaded], self._context())
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
