"""Values of tensors that follow from a call and the values of its inputs alone, as types and bounds do.

Layers of a model repeat their calls: a program of 4,000 calls has some hundred different ones. Each of these is
computed once. Different values are numbered, so a call is looked up by the numbers of its inputs' values.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from tasks.programs.errors import ProgramInvalid

__all__ = ["propagated"]

V = TypeVar("V", bound=Hashable)


def propagated(
    sources: Iterable[V], calls: Sequence[Any], compute: Callable[[int, list[V]], V],
    extra: Sequence[Hashable] = (), without_extra: Container[str] = (),
) -> list[V]:  # fmt: skip
    """Return the value of each tensor, those of the sources first.

    ``compute`` returns the value of a call's result, given the call's place in ``calls`` and the values of its
    inputs. It runs once for all calls with the same operator, attributes and values. ``extra`` has what else it
    depends on, for each tensor; operators in ``without_extra`` do not depend on that. Raises ProgramInvalid where
    a call reads a tensor that does not exist yet.
    """
    numbers: dict[V, int] = {}
    values: list[V] = []
    found: list[int] = []
    for value in sources:
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
        if extra and operator not in without_extra:
            key += tuple([extra[number] for number in inputs])
        number = known_of(key, -1)
        if number < 0:
            value = compute(at, [values[found[number]] for number in inputs])
            number = known[key] = numbers.setdefault(value, len(values))
            if number == len(values):
                values.append(value)
        note(number)
    return [values[number] for number in found]
