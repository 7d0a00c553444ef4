"""A server that speaks the Hub's protocol for files of models: metadata, resolve, ranges, revisions, tokens."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c" * 40
LARGE = ".safetensors"
"""Files with this ending are kept outside Git, as large files are."""


@dataclass
class Hub:
    """A repository, and what goes wrong with it."""

    files: dict[str, bytes]
    repository: str = "org/tiny"
    licence: str = "apache-2.0"
    token: str = ""
    """Needed if not empty."""
    cut_at: int = 0
    cuts: int = 0
    """So many answers with a large file are cut off after ``cut_at`` bytes."""
    false: dict[str, bytes] = field(default_factory=dict)
    """Contents that are sent in place of those that were promised."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes that are told in place of the right ones."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and range of each request."""
    url: str = ""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            hub.asked.append((self.command, self.path, self.headers.get("Range", "")))
            path = self.path.partition("?")[0]
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._send(401, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}, with_body)
                return
            if path.startswith(f"/api/models/{hub.repository}"):
                revision = path.partition("/revision/")[2] or "main"
                if revision not in ("main", COMMIT):
                    self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
                    return
                self._send(
                    200, json.dumps(self._listing()).encode(), {"Content-Type": "application/json"}, with_body
                )
                return
            prefix = f"/{hub.repository}/resolve/{COMMIT}/"
            name = path.removeprefix(prefix)
            if not path.startswith(prefix) or name not in hub.files:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
                return
            self._send_file(name, with_body)

        def _listing(self) -> dict[str, Any]:
            siblings = []
            for name, content in hub.files.items():
                one: dict[str, Any] = {
                    "rfilename": name, "size": hub.sizes.get(name, len(content)),
                    "blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
                }  # fmt: skip
                if name.endswith(LARGE):
                    one["lfs"] = {
                        "sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134
                    }  # fmt: skip
                siblings.append(one)
            return {
                "id": hub.repository, "modelId": hub.repository, "sha": COMMIT, "private": False, "tags": [],
                "downloads": 0, "likes": 0, "siblings": siblings, "cardData": {"license": hub.licence},
            }  # fmt: skip

        def _send_file(self, name: str, with_body: bool) -> None:
            content = hub.false.get(name, hub.files[name])
            first, status = 0, 200
            headers = {
                "ETag": f'"{hashlib.sha256(hub.files[name]).hexdigest()}"', "X-Repo-Commit": COMMIT,
                "Accept-Ranges": "bytes",
            }  # fmt: skip
            if given := self.headers.get("Range", ""):
                first, status = int(given.removeprefix("bytes=").partition("-")[0]), 206
                headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            cut = hub.cut_at if hub.cuts and name.endswith(LARGE) else -1
            self._send(status, content[first:], headers, with_body, cut=cut)

        def _send(
            self, status: int, body: bytes, headers: dict[str, str], with_body: bool, *, cut: int = -1
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body and 0 <= cut < len(body):
                hub.cuts -= 1
                self.wfile.write(body[:cut])
                self.close_connection = True
            elif with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
