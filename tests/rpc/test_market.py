"""Market methods over real lives of tasks: what they say obeys their schemas in every phase, and adds up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import pytest

from rpc.errors import RpcError
from rpc.events import EVENTS
from rpc.market import MARKET_METHODS
from rpc.surface import DOCUMENT, SURFACE
from rpc.table import bind
from rpc.view import Description, Head
from state.primitives.receipts import EventType
from state.view import Overlay
from tasks.queries import Action
from tasks.spec import encode_spec
from tests.rpc.harness import hexed
from tests.rpc.validate import validate
from tests.tasks.world import DKB, HONEST, QUICK, REQUESTER, Manners, World, spec

COMPONENTS = DOCUMENT["components"]["schemas"]


class WorldNode:
    """As much of a node as these methods ask: the state of a world, its head, its parameters."""

    def __init__(self, world: World) -> None:
        self.world = world
        numbers = tuple((f"tasks.{field.name}", getattr(world.parameters, field.name)) for field in fields(QUICK))
        self.description = Description(7, "w", b"g" * 32, 0, 1, b"a" * 20, (), "v", (), numbers, ())
        self.kinds: Mapping[int, str] = {}
        self.events: Mapping[tuple[bytes, bytes], EventType] = EVENTS

    @property
    def head(self) -> Head:
        height = self.world.height
        return Head(height, height.to_bytes(32, "big"), self.world.time_ms, b"r" * 32, 1, 1, 0, 1)

    async def query(self, height: int, function: Callable[..., Any], *args: Any) -> Any:
        assert height <= self.world.height
        return function(Overlay(self.world.state), *args)

    async def hash_of(self, height: int) -> bytes:
        return height.to_bytes(32, "big")

    async def call(self, name: str, *params: Any, **named: Any) -> Any:
        method = SURFACE[name]
        values = bind(method.params, named or list(params))
        result = await method.handle(self, *values)
        validate(result, method.result, COMPONENTS, name)
        return result

    async def all(self, name: str, *params: Any, limit: int = 1, **named: Any) -> list[Any]:
        """Every item, page by page."""
        items: list[Any] = []
        cursor = None
        while True:
            names = [param.name for param in SURFACE[name].params]
            page = await self.call(
                name, **dict(zip(names, params, strict=False)), **named, cursor=cursor, limit=limit
            )
            items += page["items"]
            cursor = page["next"]
            if cursor is None:
                return items
            assert len(page["items"]) == limit
