"""The way to an API server through an HTTP proxy: the ``proxy-url`` of a kubeconfig.

The proxy joins two connections (CONNECT) and sees neither token nor content: TLS is with the API server. Its own
password is in the kubeconfig alone, and is shown nowhere.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

import h11
import httpx
import trio

from tasks.executor.containers.errors import ContainerRefused, EngineUnavailable

__all__ = ["ClusterProxy", "decode_proxy", "open_stream"]

PORT_DEFAULT: Final = 80
HEAD_BYTES_MAX: Final = 16 << 10
URL_LENGTH_MAX: Final = 1_024
_READ_BYTES: Final = 4 << 10


@dataclass(frozen=True)
class ClusterProxy:
    """An HTTP proxy. Shows no user and no password."""

    host: str
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def of_library(self) -> httpx.Proxy:
        """Return the proxy as the HTTP library takes it."""
        login = (self.user, self.password) if self.user or self.password else None
        return httpx.Proxy(f"http://{self.address}", auth=login)

    def headers(self) -> list[tuple[str, str]]:
        """Return what shows the proxy who asks."""
        if not (self.user or self.password):
            return []
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return [("proxy-authorization", f"Basic {login}")]


def decode_proxy(url: str) -> ClusterProxy | None:
    """Return the proxy of a URL, None for an empty one. Raises ContainerRefused, which does not show the URL."""
    if not url:
        return None
    refused = ContainerRefused("the kubeconfig's proxy-url is not http://[USER:PASSWORD@]HOST[:PORT]")
    try:
        parts = urlsplit(url)
        port = PORT_DEFAULT if parts.port is None else parts.port
    except ValueError:
        raise refused from None
    host = parts.hostname or ""
    rest = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme != "http" or not host or not host.isascii() or not port or rest or len(url) > URL_LENGTH_MAX:
        raise refused
    if not all(sign.isalnum() or sign in "-._:" for sign in host):
        raise refused
    return ClusterProxy(host, port, unquote(parts.username or ""), unquote(parts.password or ""))


async def open_stream(proxy: ClusterProxy | None, host: str, port: int) -> trio.SocketStream:
    """Return a connection to a host, through a proxy if there is one. Raises OSError, EngineUnavailable."""
    if proxy is None:
        return await trio.open_tcp_stream(host, port)
    stream = await trio.open_tcp_stream(proxy.host, proxy.port)
    try:
        await _connect(stream, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def _connect(stream: trio.SocketStream, proxy: ClusterProxy, target: str) -> None:
    """Have a proxy connect to a target. Raises EngineUnavailable for a refusal."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
    head = h11.Request(method="CONNECT", target=target, headers=[("host", target), *proxy.headers()])
    try:
        await stream.send_all(http.send(head) or b"")
        while (event := http.next_event()) is h11.NEED_DATA or isinstance(event, h11.InformationalResponse):
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(_READ_BYTES))
    except h11.RemoteProtocolError:
        raise EngineUnavailable(f"the proxy {proxy.address} does not speak HTTP") from None
    if not isinstance(event, h11.Response):
        raise EngineUnavailable(f"the proxy {proxy.address} gives no answer")
    if not 200 <= event.status_code < 300:
        raise EngineUnavailable(f"the proxy {proxy.address} answers {event.status_code}")
