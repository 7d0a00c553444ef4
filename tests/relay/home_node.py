"""A node at home as a process of its own: ``python -m tests.relay.home_node answer|call NAME RELAY [TARGET]``."""

from __future__ import annotations

import sys

import structlog
import trio

from p2p.base.endpoint import Endpoint
from tests.relay.daemon_process import account_of
from tests.relay.nodes import Node, run_handshake

TIME_LIMIT_S = 120


async def answer(name: str, relay: Endpoint) -> None:
    """Reserve, say so, and send back reversed whatever one caller says."""
    node = Node(name, relay)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run)
        await node.client.wait_reserved()
        print("reserved", flush=True)
        circuit = await run_handshake(node, await node.arrived.receive(), None)
        while message := await circuit.receive():
            await circuit.send(message[::-1])
        nursery.cancel_scope.cancel()


async def call(name: str, relay: Endpoint, target: str) -> None:
    """Call the node of this name and print what it answers."""
    node = Node(name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run)
        address = account_of(target).address
        circuit = await run_handshake(node, await node.client.dial(relay, address), address)
        await circuit.send(b"hello from another home")
        print((await circuit.receive()).decode(), flush=True)
        await circuit.stream.aclose()
        nursery.cancel_scope.cancel()


async def main(*arguments: str) -> None:
    """Do one of the two within the time limit."""
    verb, name, endpoint, *target = arguments
    with trio.fail_after(TIME_LIMIT_S):
        if verb == "answer":
            await answer(name, Endpoint.parse(endpoint))
        else:
            await call(name, Endpoint.parse(endpoint), *target)


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    trio.run(main, *sys.argv[1:])
