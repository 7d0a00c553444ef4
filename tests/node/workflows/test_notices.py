"""Webhooks over HTTP: tries, a receiver that answers with errors, addresses, the file of the key."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.workflows import notices
from node.workflows.notices import TRIES_MAX, Webhook, check_url, open_secret_file
from rpc.client import Client, WebhookInvalid, WebhookUndelivered
from rpc.client.webhooks import read_webhook
from state.primitives.errors import ConfigError
from tests.node.workflows.receiver import receiving

SECRET = b"s" * 32


def test_a_message_is_sent_again_until_it_is_accepted_and_can_be_verified() -> None:
    said, pauses = list[str](), list[float]()
    with receiving(500, 404, 204) as server:
        Webhook(server.url, SECRET, said.append, sleep=pauses.append).send("0xab.settled", b'{"a":1}')
    assert len(server.received) == 3 and pauses == [1.0, 2.0]
    assert {headers["webhook-id"] for headers, _ in server.received} == {"0xab.settled"}
    headers, body = server.received[-1]
    assert read_webhook(SECRET, headers, body, now_s=time.time()) == {"a": 1}
    assert "500" in said[0] and not any("hidden" in line for line in said)


def test_tries_have_a_limit_and_no_redirection_is_followed() -> None:
    pauses = list[float]()
    with receiving(302) as server, pytest.raises(WebhookUndelivered, match="302"):
        Webhook(server.url, SECRET, lambda _: None, sleep=pauses.append).send("a", b"{}")
    assert len(server.received) == TRIES_MAX and len(pauses) == TRIES_MAX - 1 and max(pauses) <= 60
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        with pytest.raises(WebhookUndelivered, match="was not reached"):
            Webhook(url, SECRET, lambda _: None, sleep=lambda _: None).send("a", b"{}")


def test_the_end_of_a_task_is_told_once_it_has_ended() -> None:
    task = SimpleNamespace(
        id=b"\x01" * 32, phase="settled", document={}, final_windows=1, windows=1, has_ended=False
    )
    totals = SimpleNamespace(deposited=2, paid=1, refunded=1, burned=0)
    client: Any = SimpleNamespace(task=lambda _: task, bill=lambda _: SimpleNamespace(totals=totals))
    with receiving(200) as server:
        webhook = Webhook(server.url, SECRET, lambda _: None)
        webhook.task_ended(cast(Client, client), task.id)
        assert not server.received
        task.has_ended = True
        webhook.task_ended(cast(Client, client), task.id)
    ((headers, body),) = server.received
    assert read_webhook(SECRET, headers, body, now_s=time.time())["type"] == "task.settled"


def test_addresses_others_could_read_or_that_are_none_are_refused() -> None:
    for url in ("https://example.org/x", "http://localhost:1/x", "http://[::1]:1/x"):
        assert check_url(url) == url
    for url in ("", "example.org", "ftp://a/b", "http://example.org/x", "https://", "https://a:b/", "https://ä/",
                "https://a/" + "b" * 3000, "https://a/\n"):  # fmt: skip
        with pytest.raises(ConfigError):
            check_url(url)


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "made" / "webhook.key"
    first = open_secret_file(file)
    assert len(first) == notices.SECRET_BYTES and open_secret_file(file) == first
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_text().startswith("whsec_")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read"):
        open_secret_file(file)
    file.chmod(0o600)
    for wrong in (b"", b"\xff", b"whsec_AAAA", b"A" * 5000):
        file.write_bytes(wrong)
        with pytest.raises((ConfigError, WebhookInvalid)):
            open_secret_file(file)
    with pytest.raises(ConfigError):
        open_secret_file(tmp_path)
