"""A client that prints to standard error what it waits for, when that takes long.

A gateway may be silent for long without a fault: its node catches up, or the machine is busy. The client then
retries for up to a minute. Without a message the user would think that the command hangs.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from node.cli.commands import next_command
from node.cli.responses import mark_gateway_used
from node.cli.terminal import printable
from rpc.client import Client, ClientError, GatewayUnreachable, TransactionRefused
from rpc.client.control import short_path
from rpc.client.core import ClientOptions, Fetch, Flow, Post
from rpc.client.results import Receipt
from state.primitives.hashing import keccak

__all__ = ["NOTICE_S", "GatewayNotUp", "NotFinal", "ProgressClient", "ProgressNotice", "with_notices"]

_T = TypeVar("_T")
NOTICE_S: Final = 3.0
"""A longer wait is reported."""
LOOK_S: Final = 0.25
LOOK_BYTES: Final = 4096
"""Bytes of a request or an answer that are searched. The method comes first, and a refusal is short."""
_METHOD: Final = re.compile(rb'"method":"([a-zA-Z_.]{1,64})"')
RECEIPT: Final = "dekube_waitForReceipt"
HAND_IN: Final = "dekube_sendTransaction"
DOUBTFUL: Final = (b'"node_unavailable"', b'"internal_error"')
"""Failures that are no refusal: the node behind the gateway may have received the submission."""


class GatewayNotUp(GatewayUnreachable):
    """The node runs, but its gateway does not (yet)."""


class NotFinal(TransactionRefused):
    """An accepted transaction is not final in time; it was not refused."""

    code = "not_final"


class ProgressClient(Client):
    """A client that reports after NOTICE_S what it waits for, and prints a transaction's hash once it is accepted.

    If it fails or is interrupted while a transaction may be pending, it prints how to look for it.
    """

    def __init__(self, *urls: str, control: Path | None = None, chain_id: int | None = None) -> None:
        """``control``: the control socket of the node whose gateway is used.

        Raises ConfigError for an invalid URL.
        """
        super().__init__(*urls, options=ClientOptions(chain_id=chain_id))
        mark_gateway_used()
        self._control = control
        self._new_notice: Callable[[], ProgressNotice] = ProgressNotice

    def send_and_wait(self, raw: bytes, *, behind: str = "") -> Receipt:
        """Like ``wait``. ``behind``: earlier nonces of the sender that are not used yet."""
        self._new_notice = partial(ProgressNotice, behind=behind)
        try:
            return self.wait(raw)
        finally:
            self._new_notice = ProgressNotice

    def perform(self, flow: Flow[_T]) -> _T:
        """Perform the effects of ``flow``; return what it returns."""
        with self._new_notice() as notice:
            try:
                return super().perform(with_notices(flow, notice))
            except KeyboardInterrupt:
                if notice.handed_in:
                    click.echo(err=True)  # below the ^C of the terminal
                _tell_of(notice)
                raise
            except TransactionRefused as error:
                if error.reason or not error.hash:
                    raise
                _tell_of(notice)
                raise NotFinal(str(error), hash_=error.hash) from None
            except ClientError:
                _tell_of(notice)
                raise
            except GatewayUnreachable as error:
                _tell_of(notice)
                if self._control is None or "refused" not in str(error) or not _listens(self._control):
                    raise
                raise GatewayNotUp(
                    f"{error}; the node runs, but its gateway does not listen yet: try again in some seconds, "
                    "or see `dekube status`"
                ) from None


def _tell_of(notice: ProgressNotice) -> None:
    """Print which transaction may be pending and how to look for it; nothing if there is none."""
    if hash_ := _hash_of(notice.handed_in):
        click.echo(
            f"The transaction {hash_} was sent and may still become final: "
            f"`{next_command('wallet', 'tx', hash_)}` shows it.",
            err=True,
        )


def _listens(control: Path) -> bool:
    """Tell whether a process listens at a Unix socket. A killed process leaves its socket file."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(short_path(control))
        except OSError:
            return False
    return True


class ProgressNotice:
    """Tracks what is waited for and since when; prints each wait once, after NOTICE_S."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, behind: str = "") -> None:
        """``behind``: the nonces that must be used before a submitted transaction."""
        self._now = now
        self._taken = ""
        self.behind = behind
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._what, self._since = "", 0.0
        self._told = ""
        self.handed_in = b""
        """The request with a transaction for which neither a receipt nor a refusal has arrived."""
        self.is_doubtful = False
        """Whether some gateway may have the transaction, so that another gateway's refusal is not final."""

    def __enter__(self) -> ProgressNotice:
        threading.Thread(target=self._run, name="patience", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def wait_for(self, what: str) -> None:
        """Note what is waited for from now on; empty: nothing."""
        with self._lock:
            if what != self._what:
                self._what, self._since = what, self._now()

    def taken(self, request: bytes) -> None:
        """Print the hash of the transaction submitted by ``request``, once, so that the user has it in any
        case.
        """
        hash_ = _hash_of(request)
        if hash_ and hash_ != self._taken:
            self._taken = hash_
            click.echo(f"Sent: {hash_}", err=True)

    def due(self) -> str:
        """Return the text to print now; empty if there is none."""
        with self._lock:
            if not self._what or self._what == self._told or self._now() < self._since + NOTICE_S:
                return ""
            self._told = self._what
            return self._told

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            if what := self.due():
                click.echo(f"Waiting: {printable(what)} ...", err=True)


def with_notices(flow: Flow[_T], notice: ProgressNotice) -> Flow[_T]:
    """Pass on the effects of ``flow`` and track what is under way."""
    answer: Any = None
    error: Exception | None = None
    told = ""
    while True:
        try:
            effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as end:
            result: _T = end.value
            return result
        if isinstance(effect, Post | Fetch):
            notice.wait_for(told or _waiting_for(effect, notice.behind))
            if _method(effect) == HAND_IN:
                notice.handed_in = effect.body or b""
        answer = error = None
        try:
            answer = yield effect
        except Exception as failed:  # the flow's own to judge
            error = failed
        if isinstance(effect, Post | Fetch):
            told = _still(effect, answer, notice.behind)
            notice.wait_for(told)
            _note(notice, _method(effect), answer, error)


def _note(notice: ProgressNotice, method: str, answer: Any, error: Exception | None) -> None:
    """Note the outcome of a request: whether a gateway has the transaction, may have it, or does not have it."""
    has_receipt = isinstance(answer, bytes) and b'"receipt":{' in answer[:LOOK_BYTES]
    if method == RECEIPT and has_receipt and _hash_of(notice.handed_in).encode() in answer:  # not that of another
        notice.handed_in = b""
    if method != HAND_IN:
        return
    if _is_taken(answer):
        notice.taken(notice.handed_in)
    if not _is_refused(answer, error):
        notice.is_doubtful = True
    elif not notice.is_doubtful:
        notice.handed_in = b""


def _is_refused(answer: Any, error: Exception | None) -> bool:
    """Tell whether a gateway certainly does not have the transaction: it refused it, or no process listens."""
    if not isinstance(answer, bytes):
        return str(error).endswith("refused")
    head = answer[:LOOK_BYTES]
    return b'"error"' in head and not _is_taken(answer) and not any(reason in head for reason in DOUBTFUL)


def _is_taken(answer: Any) -> bool:
    """Tell whether an answer says that a gateway has the submitted transaction."""
    head = answer[:LOOK_BYTES] if isinstance(answer, bytes) else b""
    return b'"already_known"' in head or (b'"result"' in head and b'"error"' not in head)


def _hash_of(request: bytes) -> str:
    """Return the hash of the transaction in a request; empty if there is none."""
    try:
        raw = json.loads(request)["params"]["raw"]
        return "0x" + keccak(bytes.fromhex(raw.removeprefix("0x"))).hex()
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _method(request: Post | Fetch) -> str:
    """Return the method of a request; empty if there is none."""
    body = getattr(request, "body", None)
    found = _METHOD.search(body[:LOOK_BYTES]) if isinstance(body, bytes) else None
    return "" if found is None else found[1].decode()


def _waiting_for(request: Post | Fetch, behind: str) -> str:
    """Return what a request waits for, in words. ``behind``: the nonces before its transaction."""
    place = urlsplit(request.url).netloc
    method = _method(request)
    if not method:
        return f"{place} has not answered yet"
    if method == RECEIPT and behind:
        return f"the transaction was taken and waits for {behind} of its sender"
    if method == RECEIPT:
        return "the transaction was taken and waits for a block (`dekube status` says whether blocks come)"
    return f"{place} has not answered {method} yet; its node may be starting, catching up or busy"


def _still(request: Post | Fetch, answer: Any, behind: str) -> str:
    """Return what is still waited for after ``answer``; empty if nothing is."""
    if not isinstance(answer, bytes) or len(answer) > LOOK_BYTES:
        return ""
    if b'"node_unavailable"' in answer:
        return f"{urlsplit(request.url).netloc} reports that its node does not answer; trying again"
    return _waiting_for(request, behind) if b'"receipt":null' in answer else ""
