"""An admission webhook of the cluster of this machine, that changes the pods of one node of the market."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.kubernetes.machine import Cluster

NAME = "changes-pods"


class Webhook:
    """What the webhook does to each pod that is made: operations of JSON Patch."""

    def __init__(self) -> None:
        self.patch: list[dict[str, Any]] = []
        self.asked = 0


@contextmanager
def changing_pods(cluster: Cluster, node: bytes, folder: Path) -> Iterator[Webhook]:
    """Serve a webhook for pods in namespaces of this node, until the context ends."""
    made = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.asked += 1
            said = {"uid": asked["request"]["uid"], "allowed": True}
            if made.patch:
                patch = base64.b64encode(json.dumps(made.patch).encode()).decode()
                said |= {"patchType": "JSONPatch", "patch": patch}
            body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": said})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    folder.mkdir()
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate),
         "-days", "2", "-subj", "/CN=webhook", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook = {
        "name": "changes.example.net", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "failurePolicy": "Fail", "timeoutSeconds": 5, "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchLabels": {"dekube.node": node.hex()}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "clientConfig": {
            "url": f"https://127.0.0.1:{server.server_port}/",
            "caBundle": base64.b64encode(certificate.read_bytes()).decode(),
        },
    }  # fmt: skip
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME}, "webhooks": [hook],
    }  # fmt: skip
    file = folder / "webhook.json"
    file.write_text(json.dumps(body))
    cluster.kubectl("apply", "-f", str(file))
    try:
        yield made
    finally:
        cluster.kubectl("delete", "mutatingwebhookconfiguration", NAME, check=False)
        server.shutdown()
        server.server_close()
