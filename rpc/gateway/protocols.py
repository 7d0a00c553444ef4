"""Makes the protocol classes that uvicorn instantiates for each connection."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

from rpc.gateway.connections import ConnectionLimiter
from rpc.gateway.fast_path import RequestHandler
from rpc.gateway.http_protocol import HttpProtocol, SharedState
from rpc.gateway.websocket_protocol import WebSocketProtocol

__all__ = ["make_protocols"]


def make_protocols(
    limiter: ConnectionLimiter, handler: RequestHandler
) -> tuple[type[asyncio.Protocol], type[asyncio.Protocol]]:
    """Return the HTTP and the WebSocket protocol for uvicorn.

    ``limiter`` bounds the connections; ``handler`` answers plain requests. uvicorn only calls what it is given,
    with its own three arguments, so these are factories although its signature asks for classes.
    """
    http = partial(HttpProtocol, SharedState(limiter, handler))
    websocket = partial(WebSocketProtocol, limiter, handler)
    return cast("type[asyncio.Protocol]", http), cast("type[asyncio.Protocol]", websocket)
