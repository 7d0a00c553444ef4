"""What a client may ask for, read strictly."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.api import lines, requests
from node.api.errors import ApiError
from node.api.lines import read_request
from node.api.reading import read_json
from node.api.requests import CHAT, COMPLETIONS, read_batch, read_page, read_tuning
from node.api.states import OPEN_TASK, batch_end, is_started, tuning_end
from tasks.ledger.lifecycle import Phase

TUNING = {"model": "m", "training_file": "file-1"}
NAMES = sorted({
    *requests._TUNING, *requests._BATCH, *requests._HYPERPARAMETERS, *lines._SHARED, *lines._CHAT_ONLY,
    *lines._COMPLETIONS_ONLY, "role", "content", "type", "text", "supervised",
})  # fmt: skip
BATCH = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


def test_settings_are_read_where_either_version_of_the_format_has_them() -> None:
    numbers = {"n_epochs": 4, "batch_size": "auto", "learning_rate_multiplier": 0.5}
    old = read_tuning({**TUNING, "hyperparameters": numbers})
    new = read_tuning({**TUNING, "method": {"type": "supervised", "supervised": {"hyperparameters": numbers}}})
    assert (old.epochs, old.batch, old.rate_factor) == (4, None, 0.5)
    assert (new.epochs, new.batch, new.rate_factor) == (4, None, 0.5)


def test_preferences_are_a_method_with_a_beta() -> None:
    method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 2}}}
    found = read_tuning({**TUNING, "method": method})
    assert (found.method, found.beta, found.epochs, found.as_method) == ("dpo", 0.2, 2, True)
    for bare in ({"type": "dpo"}, {"type": "dpo", "dpo": {"hyperparameters": {"beta": "auto"}}}):
        found = read_tuning({**TUNING, "method": bare})
        assert (found.method, found.beta) == ("dpo", None)
    assert read_tuning(TUNING).method == "supervised"


@pytest.mark.parametrize(
    ("change", "reason", "param"),
    [
        ({"model": None}, "missing_required_parameter", "model"),
        ({"model": 5}, "invalid_value", "model"),
        ({"training_file": ""}, "invalid_value", "training_file"),
        ({"validation_file": 2}, "invalid_value", "validation_file"),
        ({"bogus": 1}, "unknown_parameter", "bogus"),
        ({"hyperparameters": {"n_epochs": 0}}, "invalid_value", "hyperparameters.n_epochs"),
        ({"hyperparameters": {"n_epochs": True}}, "invalid_value", "hyperparameters.n_epochs"),
        ({"hyperparameters": {"rank": 4}}, "unknown_parameter", "hyperparameters.rank"),
        ({"hyperparameters": {"learning_rate_multiplier": float("nan")}}, "invalid_value",
         "hyperparameters.learning_rate_multiplier"),
        ({"method": {"type": "reinforcement"}}, "unsupported_parameter", "method.type"),
        ({"method": {"type": "bogus"}}, "invalid_value", "method.type"),
        ({"method": {"type": "dpo", "supervised": {}}}, "unsupported_parameter", "method.supervised"),
        ({"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0}}}}, "invalid_value",
         "method.dpo.hyperparameters.beta"),
        ({"method": {"type": "supervised", "supervised": {"hyperparameters": {"beta": 0.1}}}}, "unknown_parameter",
         "method.supervised.hyperparameters.beta"),
        ({"hyperparameters": {"beta": 0.1}}, "unknown_parameter", "hyperparameters.beta"),
        ({"method": {"type": "supervised", "dpo": {}}}, "unsupported_parameter", "method.dpo"),
        ({"method": {}}, "missing_required_parameter", "method.type"),
        ({"integrations": [{"type": "wandb"}]}, "unsupported_parameter", "integrations"),
        ({"suffix": "Not Lower"}, "invalid_value", "suffix"),
        ({"seed": -1}, "invalid_value", "seed"),
        ({"metadata": {"k": 1}}, "invalid_value", "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid_value", "metadata"),
    ],
)  # fmt: skip
def test_wrong_fields_of_a_tuning_are_refused_by_name(change: dict[str, Any], reason: str, param: str) -> None:
    with pytest.raises(ApiError) as error:
        read_tuning({**TUNING, **change})
    assert (error.value.status, error.value.reason, error.value.param) == (400, reason, param)


@pytest.mark.parametrize(
    ("change", "reason", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "unsupported_parameter", "endpoint"),
        ({"endpoint": "/v1/bogus"}, "invalid_value", "endpoint"),
        ({"completion_window": "1h"}, "invalid_value", "completion_window"),
        ({"completion_window": None}, "missing_required_parameter", "completion_window"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "unsupported_parameter",
         "output_expires_after"),
    ],
)  # fmt: skip
def test_wrong_fields_of_a_batch_are_refused_by_name(change: dict[str, Any], reason: str, param: str) -> None:
    with pytest.raises(ApiError) as error:
        read_batch({**BATCH, **change})
    assert (error.value.reason, error.value.param) == (reason, param)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"a": NaN}', b"\xff", b'"x"'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError):
        read_json(body)


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"limit": "9" * 40}, {"order": "up"}]
)
def test_a_page_has_limits(query: dict[str, str]) -> None:
    with pytest.raises(ApiError):
        read_page(query)


def test_every_phase_of_a_task_has_a_status() -> None:
    phases = {phase.name.lower() for phase in Phase}
    assert phases >= OPEN_TASK
    for phase in phases:
        is_started(phase)
        assert (tuning_end(phase, is_cancelling=False) is None) == (phase in OPEN_TASK)
        assert (batch_end(phase, is_cancelling=False, is_late=False) is None) == (phase in OPEN_TASK)
    with pytest.raises(ValueError, match="bogus"):
        is_started("bogus")


def test_ends_of_jobs() -> None:
    assert tuning_end("expired", is_cancelling=False) == "failed"
    assert tuning_end("failed", is_cancelling=True) == "cancelled"
    assert tuning_end("settled", is_cancelling=True) == "succeeded"
    assert batch_end("cancelled", is_cancelling=False, is_late=True) == "expired"
    assert batch_end("cancelled", is_cancelling=True, is_late=False) == "cancelled"
    assert batch_end("expired", is_cancelling=False, is_late=False) == "expired"
    assert batch_end("settled", is_cancelling=True, is_late=False) == "completed"


LEAVES: list[Any] = [
    None, True, False, 0, 1, -1, 2**70, 0.5, float("inf"), float("nan"), "", "x", "auto", "\ud800", "x" * 600, [],
    {}, "supervised", CHAT, COMPLETIONS, "24h",
]  # fmt: skip
ODD = [
    *LEAVES, *([one] for one in LEAVES), *({name: one} for one in LEAVES for name in ("type", "role", "\ud800")),
    *([{"role": "user", "content": one}] for one in LEAVES), [{"role": "user", "content": [{"type": "text"}]}],
    *({"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": one}}} for one in LEAVES),
    *({"batch_size": one, "learning_rate_multiplier": one} for one in LEAVES),
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(values=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(ODD), max_size=6))
def test_no_object_does_anything_but_be_read_or_refused(values: dict[str, Any]) -> None:
    """A refusal can always be sent, whatever the object has."""
    for read in (
        read_tuning, read_batch, partial(read_request, 1, "name", "m", endpoint=CHAT),
        partial(read_request, 1, "name", "m", endpoint=COMPLETIONS),
    ):  # fmt: skip
        try:
            read(values)
        except ApiError as error:
            orjson.dumps(error.to_json())
