"""Signed messages: the published vector, what a receiver refuses, and the message about a task."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc.client import WebhookInvalid
from rpc.client.results import EscrowTotals, Task
from rpc.client.webhooks import TOLERANCE_S, ended_event, read_webhook, read_webhook_secret, sign_webhook

# The example of the specification of Standard Webhooks 1.0.0.
SECRET = read_webhook_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
MESSAGE_ID, TIME_S, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = sign_webhook(SECRET, MESSAGE_ID, TIME_S, BODY)


def test_the_signature_is_that_of_the_specification() -> None:
    assert HEADERS["webhook-signature"] == SIGNATURE
    assert read_webhook(SECRET, HEADERS, BODY, now_s=TIME_S) == {"test": 2432232314}


def test_one_right_signature_of_several_suffices_and_names_of_headers_have_any_case() -> None:
    turned = {**HEADERS, "webhook-signature": f"v1,AAAA v2,{SIGNATURE[3:]} {SIGNATURE}"}
    named = {name.title(): value for name, value in turned.items()}
    assert read_webhook(SECRET, named, BODY, now_s=TIME_S)


@pytest.mark.parametrize("change", [
    {"webhook-id": "msg_other"}, {"webhook-timestamp": str(TIME_S + 1)}, {"webhook-signature": "v1,AAAA"},
    {"webhook-signature": ""}, {"webhook-id": ""}, {"webhook-timestamp": "-1"}, {"webhook-timestamp": "9" * 40},
    {"webhook-timestamp": "١"}, {"webhook-signature": "é " * 1000},
])  # fmt: skip
def test_another_header_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(WebhookInvalid):
        read_webhook(SECRET, {**HEADERS, **change}, BODY, now_s=TIME_S)


def test_an_old_message_another_body_another_key_and_what_is_no_object_are_refused() -> None:
    for now_s in (TIME_S + TOLERANCE_S + 1, TIME_S - TOLERANCE_S - 1):
        with pytest.raises(WebhookInvalid, match="another time"):
            read_webhook(SECRET, HEADERS, BODY, now_s=now_s)
    with pytest.raises(WebhookInvalid, match="no signature"):
        read_webhook(SECRET, HEADERS, BODY + b" ", now_s=TIME_S)
    with pytest.raises(WebhookInvalid, match="no signature"):
        read_webhook(bytes(24), HEADERS, BODY, now_s=TIME_S)
    for body in (b"[]", b"{", b"\xff", b"[" * 60_000):
        with pytest.raises(WebhookInvalid, match="JSON"):
            read_webhook(SECRET, sign_webhook(SECRET, "a", TIME_S, body), body, now_s=TIME_S)


@given(st.dictionaries(st.text(), st.text()), st.binary(max_size=64), st.integers(0, 2**40))
def test_what_others_send_gives_the_typed_error(headers: dict[str, str], body: bytes, at: int) -> None:
    with pytest.raises(WebhookInvalid):
        read_webhook(SECRET, headers, body, now_s=at)


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_AAAA", "whsec_é", "whsec_" + "A" * 200, "no Base64!"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(WebhookInvalid):
        read_webhook_secret(text)


def test_the_message_says_how_a_task_ended_and_what_it_cost() -> None:
    task: Any = SimpleNamespace(
        id=b"\x01" * 32, phase="failed", document={"reason": "no_replacement"}, final_windows=2, windows=9
    )
    totals: Any = SimpleNamespace(deposited=9, paid=4, refunded=5, burned=0)
    name, body = ended_event(cast(Task, task), cast(EscrowTotals, totals), now_s=TIME_S)
    told = json.loads(body)
    assert name == "0x" + "01" * 32 + ".failed" and told["type"] == "task.failed"
    assert told["timestamp"] == "2021-02-25T15:02:10Z"
    assert told["data"]["reason"] == "no_replacement" and told["data"]["paid"] == "4"
    assert told["data"]["final_windows"] == 2 and told["data"]["refunded"] == "5"
