"""Turns a flow into a method: blocking for ``Client``, a coroutine for ``AsyncClient``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from rpc.client.core import Core, Flow, Stream

__all__ = ["AsyncShell", "FlowMethod", "Shell", "StreamMethod"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Shell(Protocol):
    """Performs effects and blocks meanwhile."""

    core: Core

    def perform(self, flow: Flow[_T]) -> _T:
        """Return what ``flow`` returns."""
        ...

    def iterate(self, stream: Stream[_T]) -> Iterator[_T]:
        """Yield what ``stream`` finds."""
        ...


class AsyncShell(Protocol):
    """Performs effects in an event loop."""

    core: Core

    async def aperform(self, flow: Flow[_T]) -> _T:
        """Return what ``flow`` returns."""
        ...

    def aiterate(self, stream: Stream[_T]) -> AsyncIterator[_T]:
        """Yield what ``stream`` finds."""
        ...


class FlowMethod(Generic[_P, _T]):
    """A method made of a flow; its first parameter, the core, is the client's own."""

    def __init__(self, make: Callable[Concatenate[Core, _P], Flow[_T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> FlowMethod[_P, _T]: ...
    @overload
    def __get__(self, client: Shell, owner: type) -> Callable[_P, _T]: ...
    @overload
    def __get__(self, client: AsyncShell, owner: type) -> Callable[_P, Awaitable[_T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self
        perform = client.perform if hasattr(client, "perform") else client.aperform

        def method(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            return perform(self._make(client.core, *args, **kwargs))

        return method


class StreamMethod(Generic[_P, _T]):
    """A method made of a stream: an iterator of the blocking client, an asynchronous one of the other."""

    def __init__(self, make: Callable[Concatenate[Core, _P], Stream[_T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> StreamMethod[_P, _T]: ...
    @overload
    def __get__(self, client: Shell, owner: type) -> Callable[_P, Iterator[_T]]: ...
    @overload
    def __get__(self, client: AsyncShell, owner: type) -> Callable[_P, AsyncIterator[_T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self
        iterate = client.iterate if hasattr(client, "iterate") else client.aiterate

        def method(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            return iterate(self._make(client.core, *args, **kwargs))

        return method
