"""A server at an address of the public Internet, on this machine: in a network namespace of its own.

The policy of addresses is the product's own then, and only the look-up of names is a test's.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

NAMES: Final = ("files.example.net", "plain.example.net")
CONTENT: Final = "from the public Internet\n"
START_S: Final = 30


@dataclass(frozen=True)
class PublicServer:
    """Its address, the machine's own address on the same line, and the certificate of its authority."""

    address: str
    own_address: str
    certificate: Path

    async def lookup(self, name: str) -> Sequence[str]:
        """Look a name up as the Internet would have it."""
        known = {
            "files.example.net": [self.address],
            "plain.example.net": [self.address],
            "meta.example.net": ["169.254.169.254", "fd00:ec2::254", "168.63.129.16"],
            "host.example.net": ["127.0.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"],
            "own.example.net": [self.own_address],
            "home.example.net": ["192.168.1.1", "10.0.0.1", "100.64.0.1", "fe80::1"],
        }
        if name not in known:
            raise OSError(f"no such name: {name}")
        return known[name]


@contextmanager
def public_server(folder: Path) -> Iterator[PublicServer]:
    """Serve ``CONTENT`` at ports 443 (TLS), 80 and 53. Skips where no namespace can be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("openssl") is None:
        pytest.skip("NO PUBLIC SERVER: ROOT, IP AND OPENSSL NEEDED")
    mark = os.getpid() % 16_000
    network = f"44.{128 + mark // 64 % 64}.{mark // 4096}.{4 * (mark % 64)}"
    stem, last = network.rsplit(".", 1)
    own, address = f"{stem}.{int(last) + 1}", f"{stem}.{int(last) + 2}"
    space, near, far = f"dke-{mark}", f"dken{mark}", f"dkef{mark}"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-days", "2",
            "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=files.example.net",
            "-addext", "subjectAltName=DNS:*.example.net",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    try:
        for command in (
            f"ip netns add {space}", f"ip link add {near} type veth peer name {far} netns {space}",
            f"ip addr add {own}/30 dev {near}", f"ip link set {near} up",
            f"ip -n {space} addr add {address}/30 dev {far}", f"ip -n {space} link set {far} up",
            f"ip -n {space} link set lo up", f"ip -n {space} route add default via {own}",
        ):  # fmt: skip
            subprocess.run(command.split(), check=True, capture_output=True)
        server = subprocess.Popen(
            ["ip", "netns", "exec", space, sys.executable, "-m", __name__, str(folder)], stdout=subprocess.PIPE
        )
        try:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            yield PublicServer(address, own, folder / "cert.pem")
        finally:
            server.kill()
            server.wait()
    finally:
        subprocess.run(["ip", "link", "del", near], capture_output=True)
        subprocess.run(["ip", "netns", "del", space], capture_output=True)


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        count = self.path.removeprefix("/zeros/")
        if count == self.path:
            self._answer(CONTENT.encode())
            return
        self.send_response(200)
        self.send_header("content-length", count)
        self.end_headers()
        for sent in range(0, int(count), 1 << 16):
            self.wfile.write(bytes(min(1 << 16, int(count) - sent)))

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        self._answer(f"{self.path} {self.headers['host']} {len(self.rfile.read(size))}\n".encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Write nothing."""


def _serve(folder: Path) -> None:
    servers = [http.server.ThreadingHTTPServer(("", port), _Page) for port in (443, 80, 53)]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    servers[0].socket = context.wrap_socket(servers[0].socket, server_side=True)
    for server in servers:
        threading.Thread(target=functools.partial(server.serve_forever), daemon=True).start()
    print("ready", flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
