"""A node's data connections to relays, on trio: opened with a token, or parked in advance to save a round trip."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import cast

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.sockets import CONNECT_ERRORS, Opener, tune
from relay.client.background import BackgroundTasks
from relay.client.control_link import ControlLink, ParkedConnection
from relay.client.options import RelayClientOptions
from relay.protocol.errors import Refusal, RelayProtocolError, RelayRefused, RelayUnreachable
from relay.protocol.keep_alive import keep_alive
from relay.protocol.wire import DATA_PREAMBLE, JOINED, TOKEN_BYTES, Park

__all__ = ["DataConnections"]


class DataConnections:
    """Opens and parks data connections; ``accept(endpoint, stream)`` gets those that become incoming circuits."""

    def __init__(
        self,
        connect: Opener,
        options: RelayClientOptions,
        tasks: BackgroundTasks,
        accept: Callable[[Endpoint, trio.SocketStream], Awaitable[None]],
    ) -> None:
        self._connect = connect
        self._options = options
        self._tasks = tasks
        """Each parked connection is a task of it."""
        self._accept = accept

    async def open(self, endpoint: Endpoint, token: bytes) -> trio.SocketStream:
        """Open a data connection with a token from a relay, and return it once it is joined.

        Raises RelayRefused, RelayUnreachable, RelayProtocolError.
        """
        stream: trio.SocketStream | None = None
        status = b""
        try:
            with trio.fail_after(self._options.connect_s_max):
                stream = await self._show(endpoint, token)
                # Read one byte only: what follows comes from the node at the other end.
                status = await stream.receive_some(1)
            if status == bytes((JOINED,)):
                result, stream = stream, None
                return result
        except CONNECT_ERRORS as error:
            raise RelayUnreachable(f"{endpoint}: {str(error) or type(error).__name__}") from None
        finally:
            if stream is not None:
                await trio.aclose_forcefully(stream)
        if not status:
            raise RelayUnreachable(f"{endpoint}: closed before the circuit was joined")
        raise _refused(status[0])

    async def _show(self, endpoint: Endpoint, token: bytes) -> trio.SocketStream:
        """Open a data connection and send its token."""
        stream = await self._connect(endpoint.host, endpoint.port)
        try:
            tune(stream.socket)
            keep_alive(cast(socket.socket, stream.socket))
            await stream.send_all(DATA_PREAMBLE + token)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    def refill(self, link: ControlLink) -> None:
        """Park data connections at a reserved relay that is in use."""
        if not link.is_reserving or link.error is not None or not self._tasks.is_running:
            return
        if trio.current_time() - link.used_at > self._options.parked_s:
            return
        while link.parking + len(link.parked) < self._options.parked:
            link.parking += 1
            self._tasks.start(self._park, link)

    async def _park(self, link: ControlLink) -> None:
        token = secrets.token_bytes(TOKEN_BYTES)
        try:
            try:
                with trio.fail_after(self._options.connect_s_max):
                    link.post(Park(token))
                    stream = await self._show(link.endpoint, token)
            finally:
                link.parking -= 1
        except CONNECT_ERRORS:
            return
        parked = ParkedConnection(token, stream)
        link.parked.append(parked)
        try:
            try:
                status = await stream.receive_some(1)
                parked.status = status[0] if status else -1
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                parked.status = -1
            if parked in link.parked:
                link.parked.remove(parked)
            parked.done.set()
            if not parked.is_asked:
                await self._use(link, parked)
        finally:
            if parked.status is None:  # cancelled
                await trio.aclose_forcefully(stream)

    async def _use(self, link: ControlLink, parked: ParkedConnection) -> None:
        """Accept the incoming circuit that a parked connection has become, or close it if it ended."""
        if parked.status != JOINED:
            await trio.aclose_forcefully(parked.stream)
            return
        link.used_at = trio.current_time()
        self.refill(link)
        await self._accept(link.endpoint, parked.stream)

    def give_back(self, link: ControlLink, parked: ParkedConnection) -> None:
        """Park a connection again that was not used; if it became an incoming circuit meanwhile, accept that."""
        parked.is_asked = False
        if not parked.done.is_set():
            link.parked.append(parked)
        else:
            self._tasks.start(self._use, link, parked)

    async def joined(self, link: ControlLink, parked: ParkedConnection) -> trio.SocketStream:
        """Return a parked connection once it is joined with the circuit requested. Raises as ``open`` does."""
        with trio.move_on_after(self._options.connect_s_max):
            await parked.done.wait()
        if parked.status == JOINED:
            return parked.stream
        await trio.aclose_forcefully(parked.stream)
        if parked.status is None or parked.status < 0:
            raise RelayUnreachable(f"{link.endpoint}: closed before the circuit was joined")
        raise _refused(parked.status)


def _refused(status: int) -> Exception:
    try:
        return RelayRefused(Refusal(status))
    except ValueError:
        return RelayProtocolError(f"status {status} of a data connection")
