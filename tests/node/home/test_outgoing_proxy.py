"""HTTP_PROXY and NO_PROXY count for the Hub, buckets and web hooks; a proxy's password is shown nowhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from node.home.hub import ModelFetchFailed, fetch_model
from node.workflows.notices import Webhook
from rpc.client import WebhookUndelivered
from rpc.client.stores.bucket import Bucket
from rpc.client.stores.errors import StoreMissing, StoreUnreachable
from state.primitives.errors import StoreError
from tests.http_proxy import PASSWORD, HttpProxy, running_proxy
from tests.node.home.hub_server import Hub, serving
from tests.node.workflows.receiver import receiving

KEY = b"s" * 32


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    with running_proxy(tmp_path_factory.mktemp("proxy")) as made:
        yield made


@pytest.fixture
def through(proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the variables as an owner does; tests of this machine reach 127.0.0.1 by the proxy then."""

    def set_to(url: str, none: str = "") -> None:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, none)

    return set_to


def wrong(proxy: HttpProxy) -> list[str]:
    """Return proxies that refuse, and one that is not there, with the same password in their URLs."""
    return [proxy.url(f"not-{PASSWORD}"), f"http://owner:{PASSWORD}@127.0.0.1:1"]


@contextmanager
def files_served(folder: Path) -> Iterator[ThreadingHTTPServer]:
    """Serve a folder, in which no bucket is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def test_web_hooks_pass_the_proxy(proxy: HttpProxy, through: Any) -> None:
    said = list[str]()
    with receiving(204) as server:
        hook = Webhook(server.url, KEY, said.append, sleep=lambda _: None)
        through(proxy.url())
        hook.send("a", b"{}")
        assert proxy.targets()[-1] == server.url
        through(proxy.url(), "127.0.0.1")
        count = len(proxy.targets())
        hook.send("a", b"{}")
        assert len(proxy.targets()) == count and len(server.received) == 2
        for url in wrong(proxy):
            through(url)
            with pytest.raises(WebhookUndelivered) as raised:
                hook.send("a", b"{}")
            assert PASSWORD not in str(raised.value) + "".join(said)
        assert len(server.received) == 2


def test_the_hub_is_asked_through_the_proxy(
    proxy: HttpProxy, through: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("huggingface_hub")
    with serving(Hub({"config.json": b"{}"})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)

        def fetch() -> str:
            library.close_session()  # a process reads the variables once
            try:
                return str(fetch_model("org/tiny", tmp_path / "model", token=None, progress=lambda _: None))
            except ModelFetchFailed as error:
                return str(error)

        through(proxy.url())
        fetch()
        asked = len(hub.asked)
        assert asked and proxy.targets()[-1].startswith(hub.url)
        for url in wrong(proxy):
            through(url)
            assert PASSWORD not in fetch() and len(hub.asked) == asked


@pytest.mark.slow
def test_buckets_are_reached_through_the_proxy(
    proxy: HttpProxy, through: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("botocore")
    monkeypatch.setattr("rpc.client.stores.bucket.CALL_TRIES", 1)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    with files_served(tmp_path) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
        through(proxy.url())
        with pytest.raises(StoreMissing):
            Bucket("bucket").head("key")
        assert proxy.targets()[-1].endswith("/bucket/key")
        for url in wrong(proxy):
            through(url)
            with pytest.raises(StoreError) as raised:
                Bucket("bucket").head("key")
            assert PASSWORD not in str(raised.value)
        assert isinstance(raised.value, StoreUnreachable)
