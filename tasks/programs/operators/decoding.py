"""What decoding needs beside a model: where a step stands, the token there, the next one, stored integers.

See market.md 4.6. Prompts have different lengths, but all rows of a batch stand at the same place in each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Integers, integers
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import ByElements, expect, expect_attributes, whole
from tasks.programs.tensors import DIMENSION_MAX, ElementType, Number, TensorType

__all__ = ["ENDS_MAX", "STEP_PLACE", "STORE_INTEGERS", "TOKEN_AT", "UNTIL", "stored_element"]

ENDS_MAX: Final = 8
"""Tokens that end a row."""
_INT16_MAX: Final = (1 << 15) - 1
_INT32_MAX: Final = (1 << 31) - 1
_EVERY_MAX: Final = 1 << 40


def stored_element(low: int, high: int) -> ElementType:
    """Return the smallest type of a state that holds integers from ``low`` to ``high``. Raises ProgramInvalid."""
    for element, most in ((ElementType.INT16, _INT16_MAX), (ElementType.INT32, _INT32_MAX)):
        if -most <= low <= high <= most:
            return element
    raise ProgramInvalid(f"integers from {low} to {high} in a state")


class StepPlace(ByElements):
    """``step_place(; every, count, size)``: a place that goes on by ``size`` every so many steps.

    After ``count`` places it begins again.
    """

    name: Final = "step_place"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 3)
        expect(self.name, inputs)
        every, count, size = attributes
        if not 1 <= every <= _EVERY_MAX or count < 1 or size < 1 or count * size > DIMENSION_MAX:
            raise ProgramInvalid(f"{count} places of {size}, each for {every} steps")
        return TensorType(ElementType.INT64, 1, 1)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return Integers(0, (attributes[1] - 1) * attributes[2])

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return arrays.constant(float(_place(attributes, context)))

    def element(
        self,
        read: Read,
        inputs: Sequence[TensorType],
        attributes: Attributes,
        context: Context,
        row: int,
        column: int,
    ) -> Number:
        """See Operator."""
        return _place(attributes, context)


def _place(attributes: Attributes, context: Context) -> int:
    every, count, size = attributes
    return context.step // every % count * size


def _check_columns(name: str, kinds: Sequence[TensorType], place: TensorType) -> None:
    """Check columns of one length, and a place for all rows. Raises ProgramInvalid."""
    if place.rows != 1 or place.columns != 1:
        raise ProgramInvalid(f"{name} takes one place for all rows")
    if any(kind.columns != 1 or kind.rows != kinds[0].rows for kind in kinds):
        raise ProgramInvalid(f"{name} takes columns of one length")


class TokenAt(ByElements):
    """``token_at(prompts, made, lengths, place)``: in each row the token at a place, 0 the first.

    It is that of the prompt if the prompt is so long. Otherwise it was made at the place before.
    """

    name: Final = "token_at"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, *[ElementType.INT64] * 4)
        prompts, made, lengths, place = inputs
        _check_columns(self.name, [lengths], place)
        if not prompts.rows == made.rows == lengths.rows:
            raise ProgramInvalid(
                f"{lengths.rows} rows of {prompts.rows} prompts and {made.rows} rows that were made"
            )
        return lengths

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for lengths and places beyond the columns."""
        prompts, made, lengths, place = (integers(inputs, at) for at in range(4))
        if lengths.low < 0 or lengths.high > types[0].columns or place.low < 0 or place.high > types[1].columns:
            raise ProgramInvalid(f"prompts of {lengths.high} tokens, places up to {place.high}")
        return Integers(min(prompts.low, made.low), max(prompts.high, made.high))

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        prompts, made, lengths, place = inputs
        at = int(arrays.store(place)[0, 0])
        given, before = min(at, prompts.shape[1] - 1), max(at - 1, 0)
        return arrays.where(lengths > float(at), prompts[:, given : given + 1], made[:, before : before + 1])

    def element(
        self,
        read: Read,
        inputs: Sequence[TensorType],
        attributes: Attributes,
        context: Context,
        row: int,
        column: int,
    ) -> Number:
        """See Operator."""
        at = whole(read(3, 0, 0), 0, inputs[1].columns)
        if at < whole(read(2, row, 0), 0, inputs[0].columns):
            return read(0, row, at)
        return read(1, row, max(at - 1, 0))


class Until(ByElements):
    """``until(choice, token, lengths, place; limit, ends...)``: the next token of each row.

    It is the chosen one, or the token at the place itself if that was made and is one of ``ends``. A choice is
    ``limit - 1`` at most.
    """

    name: Final = "until"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect(self.name, inputs, *[ElementType.INT64] * 4)
        _check_columns(self.name, inputs[:3], inputs[3])
        limit, *ends = attributes or (0,)
        if not 1 <= limit <= DIMENSION_MAX or len(ends) > ENDS_MAX:
            raise ProgramInvalid(f"{len(ends)} tokens that end a row, of {limit}")
        if ends != sorted(set(ends)) or not all(0 <= end < limit for end in ends):
            raise ProgramInvalid("tokens that end a row stand in order, each once")
        return inputs[0]

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for tokens below 0."""
        choice, token, lengths, place = (integers(inputs, at) for at in range(4))
        if min(choice.low, token.low, lengths.low, place.low) < 0:
            raise ProgramInvalid(f"{self.name} takes no numbers below 0")
        if max(choice.high, token.high, lengths.high, place.high) > DIMENSION_MAX:
            raise ProgramInvalid(f"{self.name} takes no numbers above {DIMENSION_MAX}")
        return Integers(0, attributes[0] - 1)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        choice, token, lengths, place = inputs
        limit, *ends = attributes
        found = arrays.where(choice < float(limit), choice, limit - 1.0)
        made = arrays.where(lengths <= place, token, -1.0)
        for end in ends:
            found = arrays.where(made == float(end), token, found)
        return found

    def element(
        self,
        read: Read,
        inputs: Sequence[TensorType],
        attributes: Attributes,
        context: Context,
        row: int,
        column: int,
    ) -> Number:
        """See Operator."""
        limit, *ends = attributes
        chosen, token, length = (whole(read(at, row, 0), 0, DIMENSION_MAX) for at in range(3))
        if length <= whole(read(3, 0, 0), 0, DIMENSION_MAX) and token in ends:
            return token
        return min(chosen, limit - 1)


class StoreIntegers(ByElements):
    """``store_integers(values; low, high)``: integers of a state, which lie from ``low`` to ``high``."""

    name: Final = "store_integers"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 2)
        expect(self.name, inputs, ElementType.INT64)
        low, high = attributes
        if not low <= 0 <= high:
            raise ProgramInvalid(f"integers from {low} to {high}")
        return inputs[0]._replace(element=stored_element(low, high))

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid where an integer may be beyond."""
        found = integers(inputs, 0)
        if found.low < attributes[0] or found.high > attributes[1]:
            raise ProgramInvalid(f"integers from {found.low} to {found.high}, not within {attributes}")
        return found

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator. Engines hold stored integers as binary64."""
        return inputs[0]

    def element(
        self,
        read: Read,
        inputs: Sequence[TensorType],
        attributes: Attributes,
        context: Context,
        row: int,
        column: int,
    ) -> Number:
        """See Operator."""
        return whole(read(0, row, column), *attributes)


STEP_PLACE: Final = StepPlace()
TOKEN_AT: Final = TokenAt()
UNTIL: Final = Until()
STORE_INTEGERS: Final = StoreIntegers()
