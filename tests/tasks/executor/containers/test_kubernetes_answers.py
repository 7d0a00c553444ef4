"""What an API server may answer: lists with large objects, and a pod that was told to go and does not go."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from tasks.executor.containers.answers import ANSWER_BYTES_MAX, AnswerTooLarge
from tasks.executor.containers.backend import End, Look
from tasks.executor.containers.kubernetes.access import in_cluster
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.backend import LATE_S, KubernetesBackend, KubernetesOptions
from tasks.executor.containers.kubernetes.manifests import LABEL_NODE
from tasks.executor.containers.request import ContainerRequest, Image, Limits
from tests.fuzz.targets.kubernetes import POD
from tests.tasks.executor.containers.test_kubernetes_access import certificate

Answering = Callable[[str, dict[str, str]], dict[str, Any]]
NODE = b"\x1d" * 20
PODS, POD_BYTES = 1_200, 32 << 10


@contextmanager
def api_of(folder: Path, answering: Answering) -> Iterator[ClusterApi]:
    """Yield the client of a server that answers so over HTTPS."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            body = json.dumps(answering(path, dict(urllib.parse.parse_qsl(query)))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:  # the client has read enough
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    made = certificate(folder, "server")
    account = folder / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(made.read_bytes())
    (account / "token").write_text("token\n")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, made.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_port)}
        yield ClusterApi(in_cluster(account, environment))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_a_list_of_large_objects_is_read_in_smaller_pages(tmp_path: Path) -> None:
    """500 pods of 32 KiB are more than an answer may have: the page follows the limit of an answer."""
    asked: list[int] = []

    def answering(_path: str, query: dict[str, str]) -> dict[str, Any]:
        size, start = int(query["limit"]), int(query.get("continue", "0"))
        asked.append(size)
        numbers = range(start, min(PODS, start + size))
        items = [{"metadata": {"name": str(at)}, "text": "x" * POD_BYTES} for at in numbers]
        rest = {"continue": str(start + size)} if start + size < PODS else {}
        return {"metadata": rest, "items": items}

    assert 500 * POD_BYTES > ANSWER_BYTES_MAX - (1 << 20)
    with api_of(tmp_path, answering) as api:
        names = [one["metadata"]["name"] async for page in api.pages("/pods", size=600) for one in page]
        assert names == [str(at) for at in range(PODS)]
        assert asked == [600, *[300] * (PODS // 300)], "a page is asked for in full again and again"
        await api.aclose()


@pytest.mark.slow
async def test_one_object_beyond_the_limit_of_an_answer_is_an_error(tmp_path: Path) -> None:
    large = {"metadata": {}, "items": [{"text": "x" * (ANSWER_BYTES_MAX + 1)}]}
    with api_of(tmp_path, lambda _path, _query: large) as api:
        with pytest.raises(AnswerTooLarge):
            await api.list("/pods")
        await api.aclose()


async def test_a_pod_that_does_not_go_is_given_up_and_its_seconds_do_not_count(tmp_path: Path) -> None:
    """A machine that is off says nothing: its pod is shown as running for ever, long after it was told to go."""
    pod, looks = json.loads(POD), list[Look]()
    pod["metadata"]["labels"] = {LABEL_NODE: NODE.hex()}
    main = next(one for one in pod["status"]["containerStatuses"] if one["name"] == "main")
    main["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    pod["status"] = {"phase": "Running", "containerStatuses": [main]}
    gone_at = datetime.now(UTC)

    def answering(_path: str, _query: dict[str, str]) -> dict[str, Any]:
        pod["metadata"]["deletionTimestamp"] = f"{gone_at:%Y-%m-%dT%H:%M:%SZ}"
        return {"metadata": {}, "items": [pod]}

    limits = Limits(cores=1, memory_mib=64, disk_mib=64, output_bytes=0, time_limit_s=366 * 86_400)
    request = ContainerRequest(Image("example.test/image", bytes(32)), limits)
    backend = KubernetesBackend(KubernetesOptions(), NODE, tmp_path / "folder")

    def look(found: Look) -> None:
        nonlocal gone_at
        looks.append(found)
        if len(looks) == 2:
            gone_at -= timedelta(seconds=LATE_S + 5)

    with api_of(tmp_path, answering) as backend._api_made, trio.fail_after(30):
        ended = await backend.watch(bytes(range(32)), request, look)
        assert ended.end is End.EVICTED
        assert not looks[-1].is_up, "seconds count after the pod should have been gone"
        await backend.aclose()
