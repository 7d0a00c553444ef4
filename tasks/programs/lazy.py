"""Sequences and mappings whose values are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Generic, TypeVar, overload

__all__ = ["LazyMapping", "LazySequence"]

K = TypeVar("K")
T = TypeVar("T")


class LazySequence(Sequence[T], Generic[T]):
    """``count`` values, each of which is made whenever it is asked for."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int, /) -> T: ...

    @overload
    def __getitem__(self, at: slice, /) -> Sequence[T]: ...

    def __getitem__(self, at: int | slice, /) -> T | Sequence[T]:
        numbers = range(self._count)[at]
        return self._make(numbers) if isinstance(numbers, int) else [self._make(number) for number in numbers]

    def __iter__(self) -> Iterator[T]:
        return map(self._make, range(self._count))


class LazyMapping(Mapping[K, T], Generic[K, T]):
    """A mapping that is made as a whole when something of it is first asked for."""

    def __init__(self, make: Callable[[], Mapping[K, T]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[K, T]:
        return self._make()

    def __getitem__(self, key: K, /) -> T:
        return self._made[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)
