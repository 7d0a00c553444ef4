"""A node's data connections to relays, on trio: opened for a token, or parked so that a circuit begins at once."""

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
    """The ends of circuits of one client; ``take(endpoint, stream)`` gets those that others dialled."""

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
        """Parked connections wait in it while the client runs."""
        self._accept = accept

    async def open(self, endpoint: Endpoint, token: bytes) -> trio.SocketStream:
        """Return the end of a circuit whose token a relay gave, joined.

        Raises RelayRefused, RelayUnreachable, RelayProtocolError.
        """
        stream: trio.SocketStream | None = None
        status = b""
        try:
            with trio.fail_after(self._options.connect_s_max):
                stream = await self._show(endpoint, token)
                # One byte and no more: what follows belongs to the node at the other end.
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
        """Open a data connection and show its token."""
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
        """Keep data connections waiting at a relay of ours that is in use."""
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
        """Bring in the circuit for which a relay took a parked connection, or note that it has ended."""
        if parked.status != JOINED:
            await trio.aclose_forcefully(parked.stream)
            return
        link.used_at = trio.current_time()
        self.refill(link)
        await self._accept(link.endpoint, parked.stream)

    def give_back(self, link: ControlLink, parked: ParkedConnection) -> None:
        """Let a parked connection that was not used after all wait on, or be what it has become meanwhile."""
        parked.is_asked = False
        if not parked.done.is_set():
            link.parked.append(parked)
        else:
            self._tasks.start(self._use, link, parked)

    async def joined(self, link: ControlLink, parked: ParkedConnection) -> trio.SocketStream:
        """Return a parked connection that has become the end of our circuit. Raises as ``open`` does."""
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
