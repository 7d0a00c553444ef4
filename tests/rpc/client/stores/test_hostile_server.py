"""A server that is no S3 server but an enemy: whatever it answers is bounded and refused with a code."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import rpc.client.stores.bucket
from rpc.client.stores import fetch_request, fetch_source, put_folder
from rpc.client.stores.errors import (
    StoreChanged,
    StoreDenied,
    StoreExtraMissing,
    StoreRefused,
    StoreTooLarge,
    StoreUnreachable,
)
from state.primitives.errors import StoreError
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import request_of

Answer = Callable[[str, str], tuple[int, dict[str, str], bytes]]
"""What is answered to a method and a path."""


class Enemy:
    def __init__(self) -> None:
        self.answer: Answer = lambda _method, _path: (404, {}, b"")
        self.asked: list[str] = []
        enemy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _reply(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                enemy.asked.append(f"{self.command} {self.path}")
                status, headers, body = enemy.answer(self.command, self.path)
                self.send_response(status)
                for name, value in {"content-length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _reply

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def enemy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Enemy]:
    found = Enemy()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", found.url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setattr(rpc.client.stores.bucket, "PAUSE_S", 0.01)
    monkeypatch.setattr(rpc.client.stores.bucket, "TRIES", 2)
    monkeypatch.setattr(rpc.client.stores.bucket, "CALL_TRIES", 1)
    yield found
    found.server.shutdown()
    found.server.server_close()


def listed(keys: list[str], token: str = "", size: int = 4) -> bytes:
    items = "".join(
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;v&quot;</ETag></Contents>" for key in keys
    )
    more = (
        f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    )
    return f"<?xml version='1.0'?><ListBucketResult>{more}{items}</ListBucketResult>".encode()


def with_list(body: bytes) -> Answer:
    return lambda method, path: (200, {}, body) if method == "GET" and "list-type" in path else (404, {}, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys", [["x/../../etc/passwd"], ["/etc/passwd"], ["y/other"], ["x/a", "x/A"], ["x/a", "x/a/b"], ["x/a&#9;b"]]
)
def test_keys_that_would_leave_the_folder_are_refused(enemy: Enemy, tmp_path: Path, keys: list[str]) -> None:
    enemy.answer = with_list(listed(keys))
    with pytest.raises(StoreRefused):
        fetch_source("s3://bucket/x/", cache=tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_pages_without_end_and_huge_ones_are_refused(
    enemy: Enemy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enemy.answer = with_list(listed([], token="again"))
    with pytest.raises(StoreRefused, match="no end"):
        fetch_source("s3://bucket/x/", cache=tmp_path)
    assert len(enemy.asked) < 5
    monkeypatch.setattr(rpc.client.stores.bucket, "ANSWER_BYTES_MAX", 10_000)
    enemy.answer = with_list(b" " * 20_000)
    with pytest.raises(StoreRefused, match="more than 10000 bytes"):
        fetch_source("s3://bucket/x/", cache=tmp_path)


def test_more_than_may_be_fetched_is_refused(enemy: Enemy, tmp_path: Path) -> None:
    enemy.answer = with_list(listed(["x/a"], size=(1 << 40) + 1))
    with pytest.raises(StoreTooLarge):
        fetch_source("s3://bucket/x/", cache=tmp_path)


@pytest.mark.slow
def test_redirects_are_not_followed(enemy: Enemy, tmp_path: Path) -> None:
    other = Enemy()
    for status in (301, 302, 307, 308):
        enemy.answer = lambda _method, path, status=status: (  # type: ignore[misc]
            status, {"location": other.url + path, "x-amz-bucket-region": "eu-west-1"}, b""
        )  # fmt: skip
        with pytest.raises(StoreRefused, match="redirects"):
            fetch_source("s3://bucket/x", cache=tmp_path)
    assert other.asked == [], "keys were shown to another server"
    other.server.shutdown()
    other.server.server_close()


@pytest.mark.parametrize(
    ("headers", "body", "error"),
    [
        ({"etag": '"w"'}, b"rows", StoreChanged),
        ({"etag": '"v"', "content-length": "3"}, b"row", StoreUnreachable),
        ({"etag": '"v"'}, b"rows" * 9, StoreRefused),
        ({"etag": '"v"', "content-length": "x"}, b"rows", StoreRefused),
    ],
)
def test_content_of_another_version_or_length_is_refused(
    enemy: Enemy, tmp_path: Path, headers: dict[str, str], body: bytes, error: type[StoreError]
) -> None:
    def answer(method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        if "list-type" in path:
            return 200, {}, listed(["x/a"])
        if method == "HEAD":
            return 200, {"etag": '"v"', "content-length": "4"}, b""
        return 206, {"connection": "close", **headers}, body

    enemy.answer = answer
    with pytest.raises(error):
        fetch_source("s3://bucket/x/", cache=tmp_path)
    assert not list(tmp_path.rglob("a"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, b"not XML", StoreError),
        (200, b"<a><b></a>", StoreError),
        (200, b"<ListBucketResult><Contents><Size>x</Size></Contents></ListBucketResult>", StoreError),
        (403, b"<Error><Code>AccessDenied</Code></Error>", StoreDenied),
        (500, b"", StoreUnreachable),
        (418, b"\xff\xfe", StoreRefused),
    ],
)
def test_any_answer_is_an_error_with_a_code(
    enemy: Enemy, tmp_path: Path, status: int, body: bytes, error: type[StoreError]
) -> None:
    enemy.answer = lambda _method, _path: (status, {}, body)
    with pytest.raises(error) as caught:
        fetch_source("s3://bucket/x/", cache=tmp_path)
    assert "secret" not in str(caught.value)


def test_an_upload_that_the_store_does_not_keep_is_noticed(enemy: Enemy, tmp_path: Path) -> None:
    enemy.answer = lambda method, _path: (200 if method == "PUT" else 404, {"etag": '"v"'}, b"")
    (tmp_path / "rows").write_text("rows")
    with pytest.raises(StoreError):
        put_folder(tmp_path / "rows", "s3://bucket/x", notes=tmp_path / "notes")
    assert not any("dekube-manifest" in asked for asked in enemy.asked if asked.startswith("PUT"))


def test_without_the_extra_its_name_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "botocore.config", None)
    with pytest.raises(StoreExtraMissing, match=r"dekube-node\[s3\]") as caught:
        fetch_source("s3://bucket/x", cache=tmp_path)
    assert caught.value.code == "store_extra_missing"
    mounts = [{"source": "s3://bucket/x", "path": "/data"}]
    request = request_of({"kind": "container", "image": "a.test/image@sha256:" + "ab" * 32, "mounts": mounts})
    with pytest.raises(RequestInvalid) as refused:
        fetch_request(request)
    assert (refused.value.code, refused.value.field) == ("store_extra_missing", "mounts")
