"""Webhooks sent by the requester's side: the key's file, and an HTTP client that tries several times."""

from __future__ import annotations

import base64
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from node.home.files import read_bounded, write_private
from rpc.client import Client, WebhookUndelivered
from rpc.client.webhooks import SECRET_PREFIX, ended_event, read_webhook_secret, sign_webhook
from state.primitives.errors import ConfigError

__all__ = ["Webhook", "check_url", "open_secret_file"]

SECRET_BYTES: Final = 32
FILE_BYTES_MAX: Final = 1_024
TRIES_MAX: Final = 8
PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
"""Between two tries; it doubles from ``PAUSE_FIRST_S`` on. All tries together wait two minutes at most."""
TIMEOUT_S: Final = 15.0
URL_LENGTH_MAX: Final = 2_048
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


def open_secret_file(path: Path) -> bytes:
    """Return the key in a file, which is made, for its owner alone, if it does not exist. Raises ConfigError."""
    try:
        if not path.exists():
            made = base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
            write_private(path, f"{SECRET_PREFIX}{made}\n")
        data = read_bounded(path, FILE_BYTES_MAX)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"{path}: others may read this key; chmod 600 it, or delete it for a new one")
        text = data.decode("ascii")
    except OSError as error:
        raise ConfigError(f"{path}: {os.strerror(error.errno) if error.errno else error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a webhook key; delete it for a new one") from None
    return read_webhook_secret(text)


def check_url(url: str) -> str:
    """Return the address of a receiver: https, or http on this machine. Raises ConfigError."""
    if len(url) > URL_LENGTH_MAX or not url.isascii() or not url.isprintable():
        raise ConfigError(f"an address of a webhook has {URL_LENGTH_MAX} visible ASCII characters at most")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("not an address of a webhook; write https://HOST/PATH") from None
    if not host or parts.scheme not in ("http", "https"):
        raise ConfigError("not an address of a webhook; write https://HOST/PATH")
    if parts.scheme == "http" and host not in _LOCAL:
        raise ConfigError("a webhook to another machine needs https: anybody on the way could read it")
    return url


class Webhook:
    """A receiver of messages. Its address may hold a token, so it is never shown whole."""

    def __init__(
        self, url: str, secret: bytes, tell: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Raises ConfigError for an address that no message is sent to."""
        self._url, self._secret, self._tell, self._sleep = check_url(url), secret, tell, sleep
        self._host = urlsplit(url).hostname or ""

    def task_ended(self, client: Client, task_id: bytes) -> None:
        """Send that a task has ended, if it has. Raises WebhookUndelivered, and errors of the client."""
        task = client.task(task_id)
        if task is None or not task.has_ended:
            return
        message_id, body = ended_event(task, client.bill(task_id).totals, now_s=time.time())
        self.send(message_id, body)

    def send(self, message_id: str, body: bytes) -> None:
        """Send a message, again if it is not accepted. Raises WebhookUndelivered."""
        why, pause = "", PAUSE_FIRST_S
        with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=True) as http:
            for number in range(1, TRIES_MAX + 1):
                why = self._try(http, message_id, body)
                if not why:
                    self._tell(f"Webhook: {self._host} has the message.")
                    return
                if number < TRIES_MAX:
                    self._tell(f"Webhook: {self._host} {why}; next try in {pause:.0f} s.")
                    self._sleep(pause)
                    pause = min(2 * pause, PAUSE_MAX_S)
        raise WebhookUndelivered(
            f"{self._host} {why} in {TRIES_MAX} tries; `dekube task watch` with the same options sends it again"
        )

    def _try(self, http: httpx.Client, message_id: str, body: bytes) -> str:
        """Send once; return what went wrong, or an empty text. An answer is read no further than its status."""
        headers = sign_webhook(self._secret, message_id, int(time.time()), body)
        try:
            with http.stream("POST", self._url, content=body, headers=headers) as answer:
                return "" if answer.is_success else f"answered with status {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"was not reached ({type(error).__name__})"
