"""Checks a lab against its settings: delays, losses and rates of its lines, by plain UDP between hosts."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from math import sqrt
from struct import Struct
from typing import Any, Final

from state.primitives.errors import DekubeError
from testnet.wan.lab import Lab
from testnet.wan.topology import PPM, Shape

__all__ = ["ProbeFailed", "check", "probe"]

WAYS_MAX: Final = 12
RATE_MAX: Final = 150_000_000
"""Above this rate the sending process would be the limit."""
PROBE_S: Final = 2.0
PROBE_PACKETS_MAX: Final = 40_000
PINGS: Final = 20
PORT: Final = 19_999
PATIENCE_S: Final = 60.0
HELLOS: Final = 5
PROBE_BUFFER_BYTES: Final = 16 * 1024 * 1024
_SO_RCVBUFFORCE: Final = getattr(socket, "SO_RCVBUFFORCE", 33)  # asm-generic/socket.h; Python has no name for it
_HEAD: Final = Struct(">IIQ")
"""Number of the packet, number of packets, send time."""
_UDP_HEADERS_BYTES: Final = 28
_SIGMAS: Final = 5
_LAST_S: Final = 0.7


class ProbeFailed(DekubeError):
    """No packet arrived."""

    code = "probe_failed"


def check(lab: Lab) -> list[dict[str, Any]]:
    """Return one row for each measured value: the setting, the result, and whether they agree."""
    rows: list[dict[str, Any]] = []
    hosts = {host.name: host for host in lab.plan.topology.hosts}
    pairs = [pair for pair in lab.plan.routes if not (hosts[pair[0]].block_udp or hosts[pair[1]].block_udp)]
    alike: dict[tuple[Shape, ...], tuple[str, str]] = {}
    for pair in pairs:
        shapes = tuple(lab.plan.pipes[number].shape for number in lab.plan.route(*pair))
        if not any(shape.down for shape in shapes):
            alike.setdefault(shapes, pair)  # one of those that are set alike speaks for all
    for shapes, (one, other) in list(alike.items())[:WAYS_MAX]:
        rows += _check_way(lab, one, other, shapes)
    return rows


def _check_way(lab: Lab, one: str, other: str, shapes: tuple[Shape, ...]) -> list[dict[str, Any]]:
    mtu = lab.plan.topology.mtu
    rate = min((shape.rate_bit_per_s for shape in shapes if shape.rate_bit_per_s), default=0)
    passes = 1.0
    for shape in shapes:
        passes *= shape.passes_ppm() / PPM
    offered = min(0.7 * rate, RATE_MAX) if rate else RATE_MAX / 3
    count = int(min(offered * PROBE_S / 8 / mtu, PROBE_PACKETS_MAX))
    calm = probe(lab, one, other, count=count, rate_bit_per_s=offered)
    # Bursts make the number of losses vary by more than single ones do, by about their length.
    length = max((shape.burst.length for shape in shapes if shape.burst is not None), default=1)
    error = _SIGMAS * sqrt(max(passes * (1 - passes), 1e-6) * 2 * length / count) + 1 / count
    lost = 1 - calm["received"] / count
    rows = [_row(f"{one}>{other}", "loss %", 100 * (1 - passes), 100 * lost, 100 * error)]
    delay_ms = sum(shape.delay_us for shape in shapes) / 1e3
    sending_ms = sum(mtu * 8e3 / shape.rate_bit_per_s for shape in shapes if shape.rate_bit_per_s)
    least_ms = calm["delay_ms_min"]
    rows.append(_row(f"{one}>{other}", "delay ms", delay_ms + sending_ms, least_ms, 0.5 + delay_ms / 100))
    if rate and 1.25 * rate <= RATE_MAX:
        over = probe(lab, one, other, count=int(1.25 * rate * PROBE_S / 8 / mtu) + 50, rate_bit_per_s=1.25 * rate)
        rows.append(
            _row(
                f"{one}>{other}", "Mbit/s", rate * passes / 1e6, over["bit_per_s"] / 1e6, 0.04 * rate / 1e6 + error
            )
        )
    return rows


def _row(way: str, what: str, wanted: float, measured: float, error: float) -> dict[str, Any]:
    is_near = abs(measured - wanted) <= error
    return {"way": way, "what": what, "set": round(wanted, 3), "measured": round(measured, 3), "ok": is_near}


def probe(
    lab: Lab, one: str, other: str, *, count: int, rate_bit_per_s: float, version: int = 4
) -> dict[str, float]:
    """Send ``count`` full packets from one host to another; return the arrivals. Raises ProbeFailed.

    Both ends first send to each other, so that the homes' firewalls pass the packets if NAT keeps ports.
    """
    address = lab.plan.address4 if version == 4 else lab.plan.address6
    size = lab.plan.topology.mtu - _UDP_HEADERS_BYTES - (20 if version == 6 else 0)
    command = [sys.executable, "-m", "testnet.wan.check"]
    receiver = lab.popen(
        other, [*command, "receive", str(address(one)), str(count)], stdout=subprocess.PIPE, text=True
    )
    sender = lab.popen(
        one, [*command, "send", str(address(other)), str(count), str(size), str(int(rate_bit_per_s))]
    )
    try:
        said, _ = receiver.communicate(timeout=PATIENCE_S)
        found: dict[str, float] = json.loads(said)
    except (subprocess.TimeoutExpired, ValueError):
        raise ProbeFailed(f"{one}>{other}: no packet arrived") from None
    finally:
        for process in (receiver, sender):
            process.kill()
            process.wait()
    return found


def _socket(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    end = socket.socket(family, socket.SOCK_DGRAM)
    # Beyond what the kernel grants those who are not root: a probe that waits for its turn must lose nothing.
    end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, PROBE_BUFFER_BYTES)
    end.bind(("", PORT))
    return end


def _greet(end: socket.socket, there: tuple[str, int]) -> None:
    """Send until a packet arrives, and a little longer: then both firewalls know the flow."""
    end.settimeout(0.1)
    until, heard = time.monotonic() + PATIENCE_S, 0
    while heard < HELLOS and time.monotonic() < until:
        try:
            end.sendto(b"hello", there)
            heard += end.recvfrom(2_048)[0] == b"hello"
        except OSError:
            continue
    for _ in range(HELLOS):
        end.sendto(b"hello", there)


def _send(address: str, count: int, size: int, rate_bit_per_s: int) -> None:
    there = (address, PORT)
    with _socket(address) as end:
        _greet(end, there)
        end.settimeout(PATIENCE_S)
        while end.recvfrom(2_048)[0] != b"begin":
            pass
        end.settimeout(None)
        padding = bytes(size - _HEAD.size)
        gap_s = (size + _UDP_HEADERS_BYTES) * 8 / rate_bit_per_s
        began = time.monotonic()
        for number in range(count):
            ahead_s = began + number * gap_s - time.monotonic()
            if ahead_s > 0.0005:
                time.sleep(ahead_s)
            end.sendto(_HEAD.pack(number, count, time.monotonic_ns()) + padding, there)


def _receive(address: str, count: int) -> None:
    there = (address, PORT)
    with _socket(address) as end:
        _greet(end, there)
        for _ in range(HELLOS):
            end.sendto(b"begin", there)
        arrivals: list[int] = []
        numbers: set[int] = set()
        delays: list[int] = []
        size = 0
        end.settimeout(5.0)
        try:
            while len(numbers) < count:
                data = end.recv(10_000)
                if len(data) < _HEAD.size:
                    continue
                at = time.monotonic_ns()
                number, _, sent_at = _HEAD.unpack_from(data)
                if number not in numbers:
                    numbers.add(number)
                    arrivals.append(at)
                    delays.append(at - sent_at)
                    size = len(data)
                end.settimeout(_LAST_S)
        except TimeoutError:
            pass
    # The first part is left out: while the queue fills, more arrives than the line carries later.
    part = arrivals[len(arrivals) // 4 :]
    taken_s = (part[-1] - part[0]) / 1e9 if len(part) > 1 else 0.0
    headers = _UDP_HEADERS_BYTES + (20 if ":" in address else 0)
    rate = (len(part) - 1) * (size + headers) * 8 / taken_s if taken_s else 0.0
    delay_ms = min(delays, default=0) / 1e6
    print(json.dumps({"received": len(numbers), "bit_per_s": rate, "delay_ms_min": delay_ms}))


if __name__ == "__main__":
    if sys.argv[1] == "send":
        _send(sys.argv[2], *map(int, sys.argv[3:6]))
    else:
        _receive(sys.argv[2], int(sys.argv[3]))
