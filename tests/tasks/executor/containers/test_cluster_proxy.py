"""The API server behind an HTTP proxy: a real proxy with a login, and answers that no proxy gives (R145)."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.executor.containers.errors import ContainerRefused, EngineUnavailable
from tasks.executor.containers.kubernetes.access import ClusterAccess, decode_kubeconfig
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.exec_stream import run_command
from tasks.executor.containers.kubernetes.proxying import decode_proxy
from tests.http_proxy import PASSWORD, HttpProxy, running_proxy
from tests.tasks.executor.containers.test_kubernetes_access import certificate, served

CONFIG = """
clusters: [{name: c, cluster: {server: "https://127.0.0.1:PORT", proxy-url: "PROXY", MORE}}]
users: [{name: u, user: {token: abc}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def access(port: int, proxy: str, more: str = "insecure-skip-tls-verify: true") -> ClusterAccess:
    text = CONFIG.replace("PORT", str(port)).replace("PROXY", proxy).replace("MORE", more)
    return decode_kubeconfig(text.encode(), Path("/nowhere"))


@pytest.mark.parametrize(
    "url", ["https://hidden:1", "socks5://hidden:1", "hidden:1", "http://", "http://hidden:0", "http://hidden:99999",
            "http://hidden:x", "http://[hidden", "http://hidden/path", "http://hidden?a", "http://hidden#a",
            "http://a hidden", f"http://{'hidden' * 400}", "http://hidden\u00fc:1"],
)  # fmt: skip
def test_other_proxies_are_refused_without_their_text(url: str) -> None:
    with pytest.raises(ContainerRefused) as raised:
        decode_proxy(url)
    assert "hidden" not in str(raised.value)


def test_n67_a_login_of_a_proxy_is_shown_nowhere() -> None:
    made = decode_proxy("http://us%40er:pa%3Ass@proxy.example:3128/")
    assert made is not None and (made.user, made.password) == ("us@er", "pa:ss")
    assert (made.address, made.headers()) == (
        "proxy.example:3128", [("proxy-authorization", "Basic dXNAZXI6cGE6c3M=")]
    )  # fmt: skip
    shown = f"{made!r} {access(1, 'http://us%40er:pa%3Ass@proxy.example')!r}"
    assert not [secret for secret in ("us@er", "pa:ss", "us%40er", "dXNAZXI6cGE6c3M=") if secret in shown]
    assert decode_proxy("http://proxy.example").headers() == []  # type: ignore[union-attr]
    with pytest.raises(ContainerRefused, match="tls-server-name"):
        access(1, "http://proxy.example", "tls-server-name: other")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running_proxy(tmp_path_factory.mktemp("proxy")) as made:
        yield made


async def command(api: ClusterApi) -> None:
    async with run_command(api, "/api/v1/namespaces/a/pods/b", "main", ("true",)):
        pass


async def test_calls_and_streams_pass_the_proxy_and_show_no_login(proxy: HttpProxy, tmp_path: Path) -> None:
    with served(0, certificate(tmp_path, "one")) as port:
        api = ClusterApi(access(port, proxy.url()))
        assert (await api.get("/x"))["shown"] == "Bearer abc"
        with pytest.raises(EngineUnavailable):  # the server speaks no WebSocket, but it was reached
            await command(api)
        assert proxy.targets()[-2:] == [f"127.0.0.1:{port}"] * 2
        await api.aclose()
        told = []
        for wrong in (proxy.url("wrong-" + PASSWORD), f"http://u:{PASSWORD}@127.0.0.1:1"):
            other = ClusterApi(access(port, wrong))
            for call in (other.get("/x"), command(other)):
                with pytest.raises(EngineUnavailable) as raised:
                    await call
                told.append(str(raised.value))
            await other.aclose()
        assert not [text for text in told if PASSWORD in text or "owner" in text]
        assert "401" in told[1]


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200", b"HTTP/1.1 204 x\r\nA: " + b"a" * (1 << 15),
               b"HTTP/1.1 302 x\r\n\r\n", b"HTTP/1.1 100 a\r\n\r\n" * 9],
)  # fmt: skip
async def test_a_proxy_that_answers_otherwise_is_no_way(answer: bytes) -> None:
    door = socket.create_server(("127.0.0.1", 0))

    def say() -> None:
        one, _ = door.accept()
        with one:
            one.recv(4_096)
            one.sendall(answer)

    thread = threading.Thread(target=say)
    thread.start()
    api = ClusterApi(replace(access(1, f"http://127.0.0.1:{door.getsockname()[1]}")))
    with pytest.raises(EngineUnavailable):
        await command(api)
    thread.join()
    door.close()
