"""The account of a pod: its token and the authority of its cluster are renewed while the node runs."""

from __future__ import annotations

import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tasks.executor.containers.errors import EngineUnavailable
from tasks.executor.containers.kubernetes.access import in_cluster
from tasks.executor.containers.kubernetes.api import ClusterApi


class _Server(http.server.BaseHTTPRequestHandler):
    """Answers with the token that it was shown."""

    def do_GET(self) -> None:
        body = json.dumps({"shown": self.headers["Authorization"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(port: int, certificate: Path) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _Server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def certificate(folder: Path, name: str) -> Path:
    made = folder / f"{name}.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "1", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(made.with_suffix(".key")), "-out", str(made)],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


async def test_a_renewed_token_and_a_renewed_authority_are_taken_without_a_restart(tmp_path: Path) -> None:
    first, second = certificate(tmp_path, "first"), certificate(tmp_path, "second")
    account = tmp_path / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(first.read_bytes())
    (account / "token").write_text("one\n")
    with served(0, first) as port:
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
        api = ClusterApi(in_cluster(account, environment))
        assert await api.get("/version") == {"shown": "Bearer one"}
        (account / "token").write_text("two\n")
        assert await api.get("/version") == {"shown": "Bearer two"}
    with served(port, second):
        with pytest.raises(EngineUnavailable):
            await api.get("/version")  # by a connection that was open
        with pytest.raises(EngineUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await api.get("/version")
        with pytest.raises(EngineUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await api.get("/version")  # nobody is believed because he asks twice
        (account / "ca.crt").write_bytes(second.read_bytes())
        with pytest.raises(EngineUnavailable):
            await api.get("/version")  # the call that sees it
        assert await api.get("/version") == {"shown": "Bearer two"}
    await api.aclose()
