"""Values that follow from a call and the values of its inputs alone: those of calls that are alike are made once.

Layers of a model have the same calls on tensors of the same types, between the same bounds. A program of 4,000
calls has some hundred different ones. So values have small numbers, and a call costs one look-up by the numbers of
its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from tasks.programs.errors import ProgramInvalid

__all__ = ["along"]

V = TypeVar("V", bound=Hashable)


def along(
    begin: Iterable[V], calls: Sequence[Any], make: Callable[[int, list[V]], V],
    beside: Sequence[Hashable] = (), apart: Container[str] = (),
) -> list[V]:  # fmt: skip
    """Return the value of each tensor, those of the sources first.

    ``make`` returns that of a call's result, given the call's place in ``calls`` and the values of its inputs. It
    is asked once for all calls with the same operator and attributes and the same values. Where it also depends on
    what stands ``beside`` each tensor, calls differ by that too; operators that are ``apart`` do not depend on it.
    Raises ProgramInvalid where a call reads a tensor that does not exist yet.
    """
    numbers: dict[V, int] = {}
    values: list[V] = []
    found: list[int] = []
    for value in begin:
        number = numbers.setdefault(value, len(values))
        if number == len(values):
            values.append(value)
        found.append(number)
    if min(chain.from_iterable([inputs for _, inputs, _ in calls]), default=0) < 0:
        raise ProgramInvalid("a call reads a tensor with a number below 0")
    known: dict[tuple[Any, ...], int] = {}
    known_of, number_of, note = known.get, found.__getitem__, found.append
    for at, (operator, inputs, attributes) in enumerate(calls):
        try:
            key: tuple[Any, ...] = (operator, attributes, *map(number_of, inputs))
        except IndexError:
            raise ProgramInvalid(f"call {len(found)} reads a tensor that does not exist yet") from None
        if beside and operator not in apart:
            key += tuple([beside[number] for number in inputs])
        number = known_of(key, -1)
        if number < 0:
            value = make(at, [values[found[number]] for number in inputs])
            number = known[key] = numbers.setdefault(value, len(values))
            if number == len(values):
                values.append(value)
        note(number)
    return [values[number] for number in found]
