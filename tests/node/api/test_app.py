"""The served paths without a chain: keys, hosts, files, errors, lists."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from node.api.app import Guard, make_app
from node.api.driver import Driver
from node.api.making import Maker, MakerOptions, ModelFile, parse_model
from node.api.records import BATCH, JobRecord
from node.api.service import Service
from node.api.store import Store, new_id
from node.home.paths import Home
from rpc.client import Client
from state.primitives.errors import ConfigError
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey

KEY = "sk-test-0123456789"
ROW = b'{"prompt": "a", "completion": "b"}\n'


def connect() -> Client:
    return Client("http://127.0.0.1:1")  # nothing listens there


@contextmanager
def served(folder: Path) -> Iterator[tuple[Store, Callable[..., httpx.Response]]]:
    store, making = Store(folder), threading.Lock()
    account = SecretKey(digest(b"api-tests", b"app"))
    maker = Maker([ModelFile("base", folder / "none")], Home(folder / "home"), store, MakerOptions(1, 1_000))
    driver = Driver(store, maker, connect, account, lambda: None, making)
    service = Service(store, maker, connect, driver, making, account.address, 10**18, 77)
    application: Any = Guard(make_app(service, store), KEY)

    def ask(method: str, path: str, *, key: str | None = KEY, host: str = "127.0.0.1:8700", **more: Any) -> Any:
        async def send() -> httpx.Response:
            headers = {"host": host, **more.pop("headers", {})}
            if key is not None:
                headers["authorization"] = f"Bearer {key}"
            transport = httpx.ASGITransport(app=application, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700") as client:
                return await client.request(method, path, headers=headers, **more)

        return asyncio.run(send())

    try:
        yield store, ask
    finally:
        store.close()


def error_of(answer: httpx.Response) -> tuple[int, Any, Any]:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status_code, error["code"], error["param"]


def test_only_the_key_and_the_loopback_s_names_are_served(tmp_path: Path) -> None:
    with served(tmp_path) as (_, ask):
        for key in (None, "", "sk-test-0123456780", KEY + "x"):
            assert error_of(ask("GET", "/v1/models", key=key))[:2] == (401, "invalid_api_key")
        for host in ("evil.example", "evil.example:8700", "127.0.0.1.evil.example", ""):
            assert error_of(ask("GET", "/v1/models", host=host))[:2] == (403, "host_unknown")
        for host in ("localhost", "LOCALHOST:8700", "[::1]:8700"):
            assert ask("GET", "/v1/models", host=host).status_code == 200
        answer = ask("GET", "/v1/models", headers={"origin": "http://evil.example"})
        assert answer.headers["x-request-id"].startswith("req_")
        assert not [name for name in answer.headers if name.startswith("access-control")]
        preflight = ask("OPTIONS", "/v1/models", key=None, headers={"origin": "http://evil.example"})
        assert preflight.status_code == 401
        assert ask("GET", "/healthz", key=None).status_code == 200


def test_paths_that_are_not_served_have_the_form_s_errors(tmp_path: Path) -> None:
    with served(tmp_path) as (_, ask):
        assert error_of(ask("GET", "/v1/bogus"))[:2] == (404, "unknown_url")
        assert error_of(ask("PUT", "/v1/files"))[:2] == (405, "unknown_url")
        for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/responses"):
            assert error_of(ask("POST", path, json={}))[:2] == (400, "unsupported_endpoint")
        assert error_of(ask("POST", "/v1/fine_tuning/jobs/ftjob-1/pause"))[:2] == (400, "unsupported_parameter")
        assert error_of(ask("GET", "/v1/fine_tuning/jobs/ftjob-1"))[:2] == (404, "not_found")
        assert error_of(ask("POST", "/v1/batches", content=b"{"))[:2] == (400, "invalid_json")
        assert error_of(ask("POST", "/v1/batches", content=b" " * (1 << 20) + b"{}"))[:2] == (
            413,
            "body_too_large",
        )
        assert error_of(ask("GET", "/v1/files?limit=0"))[::2] == (400, "limit")


def upload(ask: Any, content: bytes, purpose: str | None = "fine-tune", name: str = "a.jsonl", **more: str) -> Any:
    fields = more if purpose is None else {"purpose": purpose, **more}
    return ask("POST", "/v1/files", files={"file": (name, content)}, data=fields)


def test_files_go_up_and_come_back(tmp_path: Path) -> None:
    with served(tmp_path) as (_, ask):
        made = upload(ask, ROW, name="../../etc/rows.jsonl").json()
        assert (made["bytes"], made["filename"], made["purpose"]) == (len(ROW), "rows.jsonl", "fine-tune")
        assert ask("GET", f"/v1/files/{made['id']}").json() == made
        assert ask("GET", f"/v1/files/{made['id']}/content").content == ROW
        assert ask("GET", "/v1/files").json()["data"] == [made]
        assert ask("DELETE", f"/v1/files/{made['id']}").json()["deleted"]
        assert error_of(ask("GET", f"/v1/files/{made['id']}/content"))[0] == 404
        assert error_of(ask("GET", "/v1/files/..%2F..%2Fapi.db/content"))[0] == 404


def test_wrong_uploads_are_refused_by_name_and_line(tmp_path: Path) -> None:
    with served(tmp_path) as (store, ask):
        broken = upload(ask, ROW * 16 + b"{broken\n" + ROW)
        assert error_of(broken) == (400, "invalid_jsonl", "file")
        assert "line 17" in broken.json()["error"]["message"]
        assert error_of(upload(ask, b""))[1] == "invalid_file_size"
        assert error_of(upload(ask, ROW, None))[1:] == ("missing_required_parameter", "purpose")
        assert error_of(upload(ask, ROW, "vision"))[1:] == ("unsupported_parameter", "purpose")
        assert error_of(upload(ask, ROW, "bogus"))[1:] == ("invalid_value", "purpose")
        assert error_of(upload(ask, ROW, more="x"))[1:] == ("unknown_parameter", "more")
        expiring = {"expires_after[anchor]": "created_at"}
        assert error_of(upload(ask, ROW, **expiring))[1:] == ("unsupported_parameter", "expires_after")
        assert error_of(ask("POST", "/v1/files", content=b"x"))[1] == "invalid_content_type"
        kind = {"content-type": "multipart/form-data; boundary=x"}
        assert error_of(ask("POST", "/v1/files", content=b"--y--", headers=kind))[0] == 400
        assert not list((tmp_path / "files").iterdir()) and not store.open_jobs()


def test_jobs_need_files_of_their_purpose_and_models_that_are_served(tmp_path: Path) -> None:
    with served(tmp_path) as (_, ask):
        file, batch = (upload(ask, ROW, purpose).json()["id"] for purpose in ("fine-tune", "batch"))
        job = {"model": "base", "training_file": file}
        place = "/v1/fine_tuning/jobs"
        assert error_of(ask("POST", place, json={**job, "training_file": "file-no"}))[::2] == (
            404,
            "training_file",
        )
        assert error_of(ask("POST", place, json={**job, "training_file": batch}))[1] == "invalid_purpose"
        assert error_of(ask("POST", place, json={**job, "model": "gpt-none"}))[:2] == (404, "model_not_found")
        assert error_of(ask("POST", place, json=job))[1] == "model_invalid"
        body = {"input_file_id": batch, "endpoint": "/v1/completions", "completion_window": "24h"}
        failed = ask("POST", "/v1/batches", json=body).json()
        assert (failed["status"], failed["failed_at"]) == ("failed", failed["created_at"])
        assert [one["line"] for one in failed["errors"]["data"]] == [1]
        assert ask("GET", "/v1/batches").json()["data"] == [failed]
        assert error_of(ask("POST", f"/v1/batches/{failed['id']}/cancel"))[:2] == (400, "job_has_ended")


def test_a_batch_is_cancelled_once_and_shows_it(tmp_path: Path) -> None:
    with served(tmp_path) as (store, ask):
        made = JobRecord(
            new_id(BATCH), BATCH, 5, {"endpoint": "/v1/completions"}, "in_progress", "base", "file-x", 0
        )
        store.add_job(made, budget=0, now_ms=0)
        for _ in range(2):
            shown = ask("POST", f"/v1/batches/{made.id}/cancel").json()
            assert shown["status"] == "cancelling" and shown["cancelling_at"]


def test_models_are_listed_and_only_tuned_ones_deleted(tmp_path: Path) -> None:
    with served(tmp_path) as (_, ask):
        assert [one["id"] for one in ask("GET", "/v1/models").json()["data"]] == ["base"]
        assert ask("GET", "/v1/models/base").json()["created"] == 77
        assert error_of(ask("GET", "/v1/models/ft:base:x"))[:2] == (404, "model_not_found")
        assert error_of(ask("DELETE", "/v1/models/base"))[0] == 403
        assert ask("GET", "/v1/dekube/budget").json()["left"] == "1"


@pytest.mark.parametrize("text", ["", "a", "=b", "a=", "ft:a=b", "a b=c", "-a=b", "a" * 97 + "=b"])
def test_names_of_models_are_checked(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_model(text)
